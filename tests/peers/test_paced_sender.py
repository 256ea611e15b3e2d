"""mailserver.peers.paced_sender: what a packet is more or less than its turn was for counts with the next."""

import asyncio
from dataclasses import dataclass, field
from typing import cast

import pytest

from mailserver.errors import ConnectionLost, DisconnectReason
from mailserver.limits.intake_bounds import MemoryBudget
from mailserver.limits.loop_scheduler import LoopScheduler, WorkBudget
from mailserver.limits.send_rate import SendRate
from mailserver.net.connection import Connection
from mailserver.peers.paced_sender import RATE_TIMEOUT_S, PacedSender
from mailserver.waku.packets import PacketCode, PeerSettings, RateLimits
from tests.simulated_time import in_simulated_time


@dataclass
class Sent:
    """Where it leads to: takes down when what was sent."""

    packets: list[tuple[float, int]] = field(default_factory=list)
    disconnected: str = ""

    async def drain(self) -> None:
        """It reads everything at once."""

    def disconnect(self, reason: DisconnectReason, cause: str) -> None:
        assert reason is DisconnectReason.SUBPROTOCOL_ERROR
        self.disconnected = cause

    def send(self, code: PacketCode, payload: bytes) -> None:
        assert code is PacketCode.P2P_MESSAGE
        self.packets.append((asyncio.get_running_loop().time(), len(payload)))


async def sent_through(sender: PacedSender, packets: list[tuple[int, int]]) -> None:
    for expected, size in packets:
        await sender.wait_turn(expected)
        sender.send(PacketCode.P2P_MESSAGE, bytes(size))


@pytest.mark.parametrize(
    ("packets", "moments"),
    [
        ([(400, 400)] * 4, [0.0, 0.5, 1.0, 1.5]),
        ([(400, 800)] * 3, [0.0, 1.0, 2.0]),  # the second waits for the rest of the first
        ([(400, 100)] * 5, [0.0, 0.125, 0.25, 0.375, 0.5]),
    ],
)
@in_simulated_time
async def test_peer_gets_no_more_than_it_takes_whatever_was_expected(
    packets: list[tuple[int, int]], moments: list[float]
) -> None:
    send_rate, sent = SendRate(), Sent()
    send_rate.follow(PeerSettings(byte_rate_limits=RateLimits(peer=1000)))  # 800 a second are used, and 400 go at once

    await sent_through(
        PacedSender(cast(Connection, sent), send_rate, WorkBudget(LoopScheduler(), 10**9), MemoryBudget(2**30)), packets
    )

    assert [moment for moment, _ in sent.packets] == pytest.approx(moments, abs=1e-3)


@pytest.mark.parametrize(("expected", "size", "turns"), [(10, 10, 0), (10, 60, 1), (60, 10, 0), (100, 100, 4)])
async def test_turns_are_counted_by_what_was_sent(expected: int, size: int, turns: int) -> None:
    waited = 0

    class Counted(LoopScheduler):
        async def wait_turn(self, work: int = 1, source: object = None) -> None:
            nonlocal waited
            waited += 1

    sender = PacedSender(cast(Connection, Sent()), SendRate(), WorkBudget(Counted(), 100), MemoryBudget(2**30))

    await sent_through(sender, [(expected, size)] * 4)

    assert waited == turns


@pytest.mark.parametrize(
    "settings",
    [PeerSettings(byte_rate_limits=RateLimits(peer=1000)), PeerSettings(packet_rate_limits=RateLimits(peer=5))],
)
@in_simulated_time
async def test_turn_in_which_nothing_was_sent_is_given_back(settings: PeerSettings) -> None:
    send_rate, sent = SendRate(), Sent()
    send_rate.follow(settings)
    sender = PacedSender(cast(Connection, sent), send_rate, WorkBudget(LoopScheduler(), 500), MemoryBudget(2**30))

    for _ in range(20):
        await sender.wait_turn(100)
    await sent_through(sender, [(100, 100)])

    ((moment, size),) = sent.packets
    assert moment == pytest.approx(0.0, abs=1e-3)
    assert size == 100


@in_simulated_time
async def test_peer_that_takes_too_little_is_disconnected_after_a_while() -> None:
    send_rate, sent = SendRate(), Sent()
    send_rate.follow(PeerSettings(byte_rate_limits=RateLimits(peer=1)))
    sender = PacedSender(cast(Connection, sent), send_rate, WorkBudget(LoopScheduler(), 10**9), MemoryBudget(2**30))
    began = asyncio.get_running_loop().time()

    with pytest.raises(ConnectionLost):
        await sender.wait_turn(500)

    assert asyncio.get_running_loop().time() - began == pytest.approx(RATE_TIMEOUT_S)
    assert "less than one packet" in sent.disconnected
