"""What peers say to a daemon: fresh envelopes, history requests, a flood; and how they judge what comes back."""

import asyncio
import contextlib
import random
import sqlite3
import time
from pathlib import Path

from mailserver.codec import rlp
from mailserver.codec.keccak import keccak256
from mailserver.errors import DisconnectReason
from mailserver.mail.completion import Completion, Failure, decode_completion
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.waku.bloom import FULL_BLOOM
from mailserver.waku.envelope import Envelope, decode_envelopes, encode_envelope, encode_envelopes
from mailserver.waku.packets import MAX_PACKET_BYTES, MessageResponse, PacketCode
from tests.integration.daemons import Daemon
from tests.integration.peers import Peers
from tests.mailservers import NEWS, fill
from tests.raw_peer import (
    Hangup,
    Packet,
    RawPeer,
)
from tests.waiting import DEADLINE_S

CLEAR_ID = b"0123456789abcdef0123456789abcdef"
EMPTY_LIST = b"\xc0"


def clear_request(
    *, limit: int = 0, cursor: bytes = b"", topics: tuple[bytes, ...] = (), one_id: bytes = CLEAR_ID
) -> bytes:
    """A request in the clear, for everything there is or these topics."""
    bloom = b"" if topics else FULL_BLOOM
    return rlp.encode([one_id, b"", b"\xff" * 4, rlp.encode_uint(limit), cursor, bloom, list(topics)])


async def ask(raw: RawPeer, payload: bytes) -> tuple[list[Envelope], Completion | Failure]:
    """Send a request and wait for the answer."""
    raw.say(PacketCode.P2P_REQUEST, payload)
    packets, completion = await raw.hear_answer()
    assert all(len(packet) <= MAX_PACKET_BYTES for packet in packets)
    return [envelope for packet in packets for envelope in decode_envelopes(packet)], decode_completion(completion)


async def everything(raw: RawPeer) -> list[bytes]:
    """All that the daemon serves, following cursors."""
    found: list[bytes] = []
    cursor = b""
    while True:
        envelopes, outcome = await ask(raw, clear_request(cursor=cursor))
        assert isinstance(outcome, Completion)
        found += [envelope.raw for envelope in envelopes]
        if outcome.cursor is None:
            return found
        cursor = outcome.cursor.encode()


def fresh(count: int, data_bytes: int = 300) -> list[Envelope]:
    """Envelopes of this moment that are all different, with the proof of work of a ttl of 50."""
    now = int(time.time())
    return [
        encode_envelope(now + 50, 50, NEWS, random.randbytes(data_bytes), random.getrandbits(60)) for _ in range(count)
    ]


def messages(envelopes: list[Envelope]) -> bytes:
    return encode_envelopes([envelope.raw for envelope in envelopes])


async def serves(peers: Peers, daemon: Daemon, raw: RawPeer | None = None) -> bool:
    """Whether a peer, a new one if none is given, is confirmed and answered."""
    raw = raw or await peers.join(daemon, "who looks")
    payload = messages(fresh(1))
    raw.say(PacketCode.MESSAGES, payload)
    heard = await raw.hear_confirmation()
    envelopes, _ = await ask(raw, clear_request(limit=1))
    return heard == confirmation(payload) and len(envelopes) == 1


def confirmation(payload: bytes) -> list[Packet]:
    batch_hash = keccak256(payload)
    return [
        Packet(PacketCode.MESSAGE_RESPONSE, MessageResponse(batch_hash).encode()),
        Packet(PacketCode.BATCH_ACKNOWLEDGED, b"\xa0" + batch_hash),
    ]


async def prepare(folder: Path, envelopes: list[Envelope]) -> None:
    """Make a store with these envelopes."""
    async with open_store(folder / STORE_FILE) as store:
        await fill(store, envelopes)


class Flood:
    """A peer that posts as fast as it can, and takes down what is confirmed."""

    def __init__(self, raw: RawPeer) -> None:
        self._raw = raw
        self._sent: dict[bytes, list[Envelope]] = {}
        self.confirmed: list[bytes] = []
        self.reason: DisconnectReason | None = None
        self._tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._hear())]

    async def _send(self) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                envelopes = fresh(random.choice([1, 10, 100]))
                payload = messages(envelopes)
                self._sent[keccak256(payload)] = envelopes
                self._raw.say(PacketCode.MESSAGES, payload)
                await self._raw.writer.drain()
                await asyncio.sleep(0)

    async def _hear(self) -> None:
        try:
            while True:
                code, payload = await self._raw.hear_packet()
                if code == PacketCode.BATCH_ACKNOWLEDGED:
                    self.confirmed += [envelope.raw for envelope in self._sent.pop(payload[1:])]
        except Hangup as hangup:
            self.reason = hangup.reason

    async def cut(self) -> None:
        """Go away without a word."""
        self._raw.writer.transport.abort()
        await self.end()

    async def end(self) -> None:
        """Wait until the daemon has hung up."""
        sending, hearing = self._tasks
        await asyncio.wait_for(hearing, DEADLINE_S)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


def check_store(folder: Path) -> int:
    """Check the file by SQLite's own means; return how many envelopes there are."""
    with contextlib.closing(sqlite3.connect(folder / STORE_FILE)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        ((count, different),) = connection.execute("SELECT count(*), count(DISTINCT raw) FROM envelopes").fetchall()
        ((counted,),) = connection.execute("SELECT sum(envelopes) FROM days").fetchall()
    assert count == different == counted
    return int(count)
