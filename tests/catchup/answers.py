"""Answers of sources that are not as they should be, and what we log about them."""

import pytest

from mailserver.waku.envelope import Envelope, encode_envelopes, mine
from mailserver.waku.packets import PacketCode
from tests.catchup.servers import SMALL, THREE_DAYS, Archive, Asked
from tests.mailservers import NEWS, NOW
from tests.pairs import digest


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    """What we have logged; asyncio has its own to say on a busy machine."""
    ours = [record for record in caplog.records if record.name.startswith("mailserver")]
    return [record.message for record in ours if record.levelno == level]


def worthy(count: int) -> list[Envelope]:
    return [mine(NOW - n + 50, 50, NEWS, digest(f"worthy {n}"), target=0.01, first_nonce=n) for n in range(count)]


async def endless_page(asked: Asked) -> None:
    """Goes on and on, as fast as it is read."""
    packet = encode_envelopes([envelope.raw for envelope in THREE_DAYS[:80]] * 100)
    while not asked.peer.writer.is_closing():
        asked.peer.say(PacketCode.P2P_MESSAGE, packet)
        await asked.peer.writer.drain()


HONEST = Archive(THREE_DAYS, max_limit=SMALL)


async def refuse(asked: Asked) -> None:
    asked.fail("no \x1b[31mroom")
