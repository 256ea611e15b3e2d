"""Large frames over mailserver.net.connection: they share memory, small ones need none of it."""

import contextlib
import random
from collections.abc import AsyncIterator

from mailserver.errors import DisconnectReason
from mailserver.net.connection import TURN_TIMEOUT_S
from mailserver.net.memory import FRAME_TIMEOUT_S, SMALL_FRAME_BYTES, ReceiveMemory
from mailserver.waku.packets import PacketCode
from mailserver.waku.peer import P2PRequestReceived
from tests.net.test_connection import Running, Wires
from tests.raw_peer import RawPeer
from tests.simulated_time import in_simulated_time, pass_time

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
        await pass_time(TURN_TIMEOUT_S - SOON_S)
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
