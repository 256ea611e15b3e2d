"""Large frames over mailserver.net.connection: they share memory, small ones need none of it."""

import asyncio
import contextlib
import random
import threading
from collections.abc import AsyncIterator

import pytest

from mailserver.codec import snappy
from mailserver.codec.rlp import list_prefix
from mailserver.codec.snappy import decompress_long
from mailserver.errors import DisconnectReason
from mailserver.limits.frame_memory import FRAME_TIMEOUT_S, MAX_LONG_MESSAGE_BYTES, SMALL_FRAME_BYTES, ReceiveMemory
from mailserver.net import inbound
from mailserver.net.frame_source import LONG_MEMORY_TIMEOUT_S, MEMORY_TIMEOUT_S
from mailserver.net.inbound import Event
from mailserver.net.sessions import WAKU
from mailserver.rlpx.framing import HEADER_BYTES
from mailserver.waku.packets import MAX_RECEIVED_PACKET_BYTES, PACKET_CODE_COUNT, PacketCode
from mailserver.waku.peer import LongMessagesReceived, P2PRequestReceived
from mailserver.wakuid.packets import WAKUID, IdPacketCode
from tests.net.wires import Running, Wires
from tests.raw_peer import RawPeer
from tests.simulated_time import in_simulated_time, pass_time
from tests.waiting import DEADLINE_S, turns, until

LARGE_BYTES = 400_000
SOON_S = 1.0


@contextlib.asynccontextmanager
async def peers(count: int) -> AsyncIterator[list[tuple[Running, RawPeer]]]:
    """Peers whose large frames have room for one of them at a time."""
    wires, memory = Wires(), ReceiveMemory(LARGE_BYTES + LARGE_BYTES // 2)
    try:
        yield [await wires.open(memory=memory) for _ in range(count)]
    finally:
        await wires.close()


def frame(raw: RawPeer, size: int = LARGE_BYTES) -> bytes:
    """A frame that cannot be compressed; its payload does not matter."""
    return raw.packet(PacketCode.P2P_REQUEST, random.Random(1).randbytes(size))


def requests(running: Running) -> int:
    """How many frames have come."""
    return sum(isinstance(event, P2PRequestReceived) for event in running.events)


async def begin(raw: RawPeer) -> bytes:
    """Send a large frame up to its last byte; return that."""
    whole = frame(raw)
    raw.write(whole[:-1])
    await pass_time(SOON_S)
    return whole[-1:]


@in_simulated_time
async def test_large_frame_waits_until_another_one_is_there() -> None:
    async with peers(2) as [(first, first_raw), (second, second_raw)]:
        last = await begin(first_raw)
        second_raw.write(frame(second_raw))
        await pass_time(SOON_S)
        assert second.connection.received_bytes < LARGE_BYTES
        assert requests(second) == 0

        first_raw.write(last)
        await pass_time(SOON_S)

        assert (requests(first), requests(second)) == (1, 1)


@in_simulated_time
async def test_small_frames_wait_for_nobody() -> None:
    async with peers(3) as [(_, first_raw), (_, second_raw), (third, third_raw)]:
        await begin(first_raw)
        await begin(second_raw)

        third_raw.write(frame(third_raw, SMALL_FRAME_BYTES // 2))
        await pass_time(SOON_S)

        assert requests(third) == 1


@in_simulated_time
async def test_memory_comes_back_when_its_peer_goes_away() -> None:
    async with peers(2) as [(_, first_raw), (second, second_raw)]:
        await begin(first_raw)
        second_raw.write(frame(second_raw))

        await first_raw.close()
        await pass_time(SOON_S)

        assert requests(second) == 1


@in_simulated_time
async def test_large_frame_that_does_not_come_ends_its_connection() -> None:
    async with peers(1) as [(first, first_raw)]:
        whole = frame(first_raw)
        for number in range(int(FRAME_TIMEOUT_S)):  # never silent
            first_raw.write(whole[number * 100 : number * 100 + 100])
            assert first.connection.is_open
            await pass_time(1.0)

        closed = await first.ended()

    assert closed.reason is DisconnectReason.PING_TIMEOUT
    assert closed.cause == "frame took longer than 30 s"


@in_simulated_time
async def test_who_waits_for_memory_for_too_long_is_disconnected() -> None:
    async with peers(2) as [(_, first_raw), (second, second_raw)]:
        await begin(first_raw)
        second_raw.write(frame(second_raw))
        await pass_time(MEMORY_TIMEOUT_S - SOON_S)
        assert second.connection.is_open
        await pass_time(2 * SOON_S)

        closed = await second.ended()

    assert closed.reason is DisconnectReason.REQUESTED
    assert closed.cause == "no memory for a large frame"


@in_simulated_time
async def test_large_frames_in_a_row_may_take_longer_than_one() -> None:
    async with peers(1) as [(first, first_raw)]:
        for number in range(1, 5):
            last = await begin(first_raw)
            await pass_time(FRAME_TIMEOUT_S / 2)
            first_raw.write(last)
            await pass_time(SOON_S)
            assert requests(first) == number


# Long messages: of peers that the operator has named

LONG = MAX_RECEIVED_PACKET_BYTES + 1


@contextlib.asynccontextmanager
async def named_peers(count: int) -> AsyncIterator[list[tuple[Running, RawPeer]]]:
    """Peers that may send long messages; their messages come uncompressed, which no thread is needed for."""
    wires, memory = Wires(), ReceiveMemory()
    try:
        joined = [await wires.connect(memory=memory, is_named=lambda _: True) for _ in range(count)]
        for _, raw in joined:
            await raw.greet(version=4)
        yield joined
    finally:
        await wires.close()


def long_packet(raw: RawPeer) -> bytes:
    """A frame with a long packet of Messages, its envelopes in no order."""
    return raw.packet(PacketCode.MESSAGES, list_prefix(LONG) + bytes(LONG))


def long_messages(running: Running) -> int:
    """How many long packets have come."""
    return sum(isinstance(event, LongMessagesReceived) for event in running.events)


@in_simulated_time
async def test_long_message_waits_until_another_one_has_been_acted_on() -> None:
    gate = asyncio.Event()

    async def wait_at_long_messages(event: Event) -> None:
        if isinstance(event, LongMessagesReceived):
            await gate.wait()

    wires, memory = Wires(), ReceiveMemory()
    first, first_raw = await wires.connect(memory=memory, is_named=lambda _: True, act=wait_at_long_messages)
    second, second_raw = await wires.connect(memory=memory, is_named=lambda _: True)
    for raw in (first_raw, second_raw):
        await raw.greet(version=4)
    first_raw.write(long_packet(first_raw))
    await pass_time(SOON_S)
    second_raw.write(long_packet(second_raw))

    await pass_time(FRAME_TIMEOUT_S + MEMORY_TIMEOUT_S)
    assert (long_messages(first), long_messages(second)) == (1, 0)
    assert first.connection.is_open
    assert second.connection.is_open
    assert second.connection.received_bytes < LARGE_BYTES
    gate.set()
    await pass_time(SOON_S)

    assert (long_messages(first), long_messages(second)) == (1, 1)
    await wires.close()


@in_simulated_time
async def test_long_message_that_trickles_holds_up_the_next_for_no_longer_than_a_frame_may_take() -> None:
    async with named_peers(2) as [(first, first_raw), (second, second_raw)]:
        whole = long_packet(first_raw)
        first_raw.write(whole[:LARGE_BYTES])
        await pass_time(SOON_S)
        second_raw.write(long_packet(second_raw))
        for number in range(int(FRAME_TIMEOUT_S)):
            assert long_messages(second) == 0
            first_raw.write(whole[LARGE_BYTES + number : LARGE_BYTES + number + 1])
            await pass_time(1.0)

        assert (await first.ended()).cause == f"frame took longer than {FRAME_TIMEOUT_S:g} s"
        assert first.connection.refused_bytes > LONG  # to be had in another way
        await pass_time(SOON_S)
        assert long_messages(second) == 1


@in_simulated_time
async def test_long_message_whose_sender_gives_up_is_told_as_one_that_was_too_long() -> None:
    async with named_peers(2) as [(first, first_raw), (second, second_raw)]:
        first_raw.write(long_packet(first_raw)[:LARGE_BYTES])
        second_raw.write(frame(second_raw)[:-100])
        await pass_time(SOON_S)
        for raw in (first_raw, second_raw):
            raw.writer.close()

        for running in (first, second):
            await running.ended()
        assert first.connection.refused_bytes > LONG
        assert second.connection.refused_bytes == 0


@in_simulated_time
async def test_ordinary_large_frames_do_not_wait_for_a_long_message() -> None:
    async with named_peers(2) as [(_, first_raw), (second, second_raw)]:
        first_raw.write(long_packet(first_raw)[:LARGE_BYTES])
        await pass_time(SOON_S)

        second_raw.write(frame(second_raw))
        await pass_time(SOON_S)

        assert requests(second) == 1


@in_simulated_time
async def test_long_message_of_another_capability_than_waku_is_a_fault() -> None:
    wires = Wires()
    running, raw = await wires.connect(memory=ReceiveMemory(), is_named=lambda _: True)
    await raw.greet(version=4, capabilities=(WAKU, WAKUID))
    code = PACKET_CODE_COUNT + IdPacketCode.QUERY  # those of wakuid follow those of waku
    raw.write(raw.packet(code, bytes(LONG)))

    end = await running.ended()
    assert (end.reason, end.cause) == (DisconnectReason.SUBPROTOCOL_ERROR, "packet 3 of wakuid is too long")
    await wires.close()


async def test_long_message_that_does_not_inflate_is_a_fault() -> None:
    wires = Wires()
    running, raw = await wires.connect(memory=ReceiveMemory(), is_named=lambda _: True)
    await raw.greet()
    packet = bytearray(snappy.compress(random.Random(1).randbytes(LONG)))
    packet[-1000:] = b"\xff" * 1000
    raw.compressed = False  # it is, already
    raw.write(raw.packet(PacketCode.MESSAGES, bytes(packet)))

    assert (await running.ended()).reason is DisconnectReason.PROTOCOL_BREACH
    await wires.close()


@in_simulated_time
async def test_long_message_does_not_wait_for_ever() -> None:
    wires, memory = Wires(), ReceiveMemory()
    held = memory.long.reserve(MAX_LONG_MESSAGE_BYTES, lambda: None)
    running, raw = await wires.connect(memory=memory, is_named=lambda _: True)
    await raw.greet(version=4)
    raw.write(long_packet(raw))
    await pass_time(LONG_MEMORY_TIMEOUT_S - SOON_S)
    assert running.connection.is_open
    await pass_time(2 * SOON_S)

    assert (await running.ended()).cause == "no memory for a large frame"
    memory.long.release(held)
    await wires.close()


async def test_memory_of_a_long_message_is_counted_until_its_thread_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    began, go_on = threading.Event(), threading.Event()

    def decompress_slowly(data: memoryview) -> bytearray:
        began.set()
        assert go_on.wait(DEADLINE_S)
        return decompress_long(data)

    monkeypatch.setattr(inbound, "decompress_long", decompress_slowly)
    wires, memory = Wires(), ReceiveMemory()
    running, raw = await wires.connect(memory=memory, is_named=lambda _: True)
    await raw.greet()
    raw.write(long_packet(raw))
    await asyncio.to_thread(began.wait, DEADLINE_S)

    running.task.cancel()
    await turns()
    share = memory.long.reserve(MAX_LONG_MESSAGE_BYTES, lambda: None)
    assert not share.is_granted
    go_on.set()
    await until(lambda: share.is_granted)

    assert running.task.cancelled()
    memory.long.release(share)
    await wires.close()


@in_simulated_time
async def test_only_messages_may_be_long() -> None:
    async with named_peers(1) as [(running, raw)]:
        raw.write(raw.packet(PacketCode.P2P_MESSAGE, list_prefix(LONG) + bytes(LONG)))

        closed = await running.ended()

    assert closed.reason is DisconnectReason.SUBPROTOCOL_ERROR
    assert closed.cause == f"packet {PacketCode.P2P_MESSAGE} is too long"


@in_simulated_time
async def test_frame_of_a_stranger_is_refused_on_its_header() -> None:
    wires = Wires()
    running, raw = await wires.open(memory=ReceiveMemory())
    raw.write(raw.packet(PacketCode.MESSAGES, random.Random(1).randbytes(2 * LONG))[:HEADER_BYTES])

    closed = await running.ended()

    assert closed.reason is DisconnectReason.PROTOCOL_BREACH
    assert "too long" in closed.cause
    await wires.close()
