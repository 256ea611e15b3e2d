"""mailserver.peers.paced_sender: memory for packets that are longer than others, until they are read."""

import asyncio
from typing import cast

import pytest

from mailserver.errors import ConnectionLost, RequestRejected
from mailserver.limits.intake_bounds import MemoryBudget
from mailserver.limits.loop_scheduler import LoopScheduler, WorkBudget
from mailserver.limits.send_rate import SendRate
from mailserver.mail.packing import TARGET_PACKET_BYTES
from mailserver.net.connection import Connection
from mailserver.peers.paced_sender import UNREAD_TIMEOUT_S, PacedSender
from mailserver.waku.packets import PacketCode, PeerSettings, RateLimits
from tests.simulated_time import in_simulated_time
from tests.waiting import turns

LONG = TARGET_PACKET_BYTES + 1
ROOM = 2 * LONG


class Reader:
    """A connection whose peer reads, or does not."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.is_lost = False
        self.sent: list[int] = []

    async def drain(self) -> None:
        if self.sent:
            await self.reads.wait()
        if self.is_lost:
            raise ConnectionLost(None, "gone")

    def send(self, code: PacketCode, payload: bytes) -> None:
        self.sent.append(len(payload))
        self.reads.clear()


def sender_to(reader: Reader, memory: MemoryBudget, send_rate: SendRate | None = None) -> PacedSender:
    return PacedSender(cast(Connection, reader), send_rate or SendRate(), WorkBudget(LoopScheduler(), 10**9), memory)


async def stalled(memory: MemoryBudget) -> tuple[PacedSender, Reader]:
    """A peer that does not read a long packet."""
    reader = Reader()
    sender = sender_to(reader, memory)
    await sender.wait_turn(LONG)
    sender.send(PacketCode.MESSAGES, bytes(LONG))
    return sender, reader


async def test_long_packet_takes_memory_until_it_is_read_and_others_take_none() -> None:
    memory = MemoryBudget(ROOM)
    sender, reader = await stalled(memory)
    assert memory.used_bytes == LONG

    draining = asyncio.create_task(sender.drain())
    await turns()
    assert memory.used_bytes == LONG
    reader.reads.set()
    await draining

    assert memory.used_bytes == 0
    await sender.wait_turn(TARGET_PACKET_BYTES)
    sender.send(PacketCode.MESSAGES, bytes(TARGET_PACKET_BYTES))
    assert memory.used_bytes == 0


async def test_memory_is_given_back_before_the_next_turn() -> None:
    memory = MemoryBudget(ROOM)
    sender, reader = await stalled(memory)
    reader.reads.set()

    await sender.wait_turn(LONG)

    assert memory.used_bytes == LONG


async def test_long_packet_waits_until_others_are_read() -> None:
    memory = MemoryBudget(ROOM)
    _, first = await stalled(memory)
    (one, two) = [asyncio.create_task(stalled(memory)) for _ in range(2)]
    await turns()
    assert (one.done(), two.done()) == (True, False)
    assert not first.reads.is_set()

    one_sender, one_reader = await one
    one_reader.reads.set()
    await one_sender.drain()
    await two

    assert memory.used_bytes == ROOM


@in_simulated_time
async def test_long_packet_does_not_wait_for_ever_and_then_counts_for_nothing() -> None:
    memory = MemoryBudget(ROOM)
    for _ in range(2):
        await stalled(memory)
    send_rate, loop = SendRate(), asyncio.get_running_loop()
    send_rate.follow(PeerSettings(packet_rate_limits=RateLimits(peer=1)))
    sender = sender_to(Reader(), memory, send_rate)
    began = loop.time()

    with pytest.raises(RequestRejected, match="do not read"):
        await sender.wait_turn(LONG)

    assert loop.time() - began == pytest.approx(UNREAD_TIMEOUT_S)
    assert memory.used_bytes == ROOM
    await sender.wait_turn(10)  # its turn was given back
    assert loop.time() - began == pytest.approx(UNREAD_TIMEOUT_S)


async def test_packet_that_is_longer_than_was_thought_takes_memory_if_there_is_some() -> None:
    memory = MemoryBudget(ROOM)
    readers = [Reader() for _ in range(3)]
    senders = [sender_to(reader, memory) for reader in readers]
    for sender in senders:
        await sender.wait_turn(10)

    for sender in senders[:2]:
        sender.send(PacketCode.P2P_MESSAGE, bytes(LONG))
    with pytest.raises(RequestRejected):
        senders[2].send(PacketCode.P2P_MESSAGE, bytes(LONG))

    assert memory.used_bytes == ROOM
    assert readers[2].sent == []


async def test_sender_that_ends_holds_nothing() -> None:
    memory = MemoryBudget(ROOM)
    sender, reader = await stalled(memory)
    reader.is_lost = True
    reader.reads.set()

    with pytest.raises(ConnectionLost):
        await sender.wait_turn(10)
    sender.end()
    sender.end()

    assert memory.used_bytes == 0


async def test_task_that_is_cancelled_while_it_waits_takes_no_memory() -> None:
    memory = MemoryBudget(ROOM)
    (sender, _), _ = await stalled(memory), await stalled(memory)
    waiting = asyncio.create_task(stalled(memory))
    await turns()

    waiting.cancel()
    await asyncio.wait([waiting])
    sender.end()

    assert memory.used_bytes == LONG
