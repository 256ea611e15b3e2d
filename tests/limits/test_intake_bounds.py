"""mailserver.limits.intake_bounds: what packets are counted with, and who waits for whom."""

import asyncio

import pytest

from mailserver.limits.intake_bounds import (
    ENVELOPE_MEMORY_BYTES,
    MAX_INTAKE_BYTES,
    PACKET_MEMORY_BYTES,
    RESERVED_BYTES,
    STRUCTURE_FACTOR,
    Load,
    SharedMemory,
)
from mailserver.waku.envelope import LEAST_SEALED_BYTES, MAX_ENVELOPES_PER_PACKET, encode_envelopes
from mailserver.waku.packets import MAX_RECEIVED_PACKET_BYTES, PacketCode
from tests.mailservers import make_envelope, make_envelopes
from tests.waiting import turns

LARGE = RESERVED_BYTES + 1


def packet(*sizes: int) -> bytes:
    return encode_envelopes([make_envelope(number, data_bytes=size).raw for number, size in enumerate(sizes)])


# What is counted


def test_packet_of_ordinary_envelopes_is_as_much_work_as_it_is_long() -> None:
    payload = packet(500, 300)

    load = Load.of(PacketCode.MESSAGES, payload)

    assert load.work == len(payload)
    assert load.memory == len(payload) + PACKET_MEMORY_BYTES + 2 * ENVELOPE_MEMORY_BYTES


def test_tiny_envelopes_are_as_much_work_as_any_and_take_as_much_memory() -> None:
    payload = packet(*[1] * 100)

    load = Load.of(PacketCode.MESSAGES, payload)

    assert load.work == 100 * LEAST_SEALED_BYTES > len(payload)
    assert load.memory > 100 * ENVELOPE_MEMORY_BYTES


def test_envelopes_outside_gossip_are_work_and_do_not_wait_for_the_disk() -> None:
    payload = packet(*[1] * 100)

    assert Load.of(PacketCode.P2P_MESSAGE, payload) == Load(100 * LEAST_SEALED_BYTES, 0)


@pytest.mark.parametrize("code", [PacketCode.STATUS_UPDATE, PacketCode.MESSAGE_RESPONSE, 99])
def test_other_packets_are_more_work_than_they_are_long(code: int) -> None:
    assert Load.of(code, bytes(100)) == Load(100 * STRUCTURE_FACTOR, 0)


def test_requests_have_limits_of_their_own() -> None:
    assert Load.of(PacketCode.P2P_REQUEST, bytes(100)) == Load(100, 0)


@pytest.mark.parametrize("payload", [b"", b"\x80", b"\xc5\x01", b"\xf9\xff", b"\xff" * 9])
def test_packet_that_does_not_decode_has_a_load_like_any(payload: bytes) -> None:
    assert Load.of(PacketCode.MESSAGES, payload).memory <= PACKET_MEMORY_BYTES + len(payload) + ENVELOPE_MEMORY_BYTES


def test_largest_packet_of_all_finds_room() -> None:
    most = MAX_RECEIVED_PACKET_BYTES + PACKET_MEMORY_BYTES + (MAX_ENVELOPES_PER_PACKET + 1) * ENVELOPE_MEMORY_BYTES

    assert 2 * most < MAX_INTAKE_BYTES <= 64 * 1024 * 1024


def test_packet_of_some_short_messages_needs_no_room() -> None:
    payload = encode_envelopes([envelope.raw for envelope in make_envelopes(5, data_bytes=600)])

    assert Load.of(PacketCode.MESSAGES, payload).memory <= RESERVED_BYTES


# Memory


async def test_who_needs_more_than_there_is_waits_until_it_is_there() -> None:
    memory = SharedMemory(3 * LARGE)
    await memory.enter(2 * LARGE, holds=False)
    waiting = asyncio.create_task(memory.enter(2 * LARGE, holds=False))
    await turns()
    assert not waiting.done()

    memory.leave(2 * LARGE)

    await waiting
    assert memory.used_bytes == 2 * LARGE


async def test_those_who_wait_are_let_in_in_their_order() -> None:
    memory = SharedMemory(LARGE)
    await memory.enter(LARGE, holds=True)
    waiting = [asyncio.create_task(memory.enter(size, holds=True)) for size in (LARGE, 10, LARGE)]
    await turns()
    assert [task.done() for task in waiting] == [False] * 3  # not even the one that there would be room for

    for expected in ([True, False, False], [True, True, False], [True] * 3):
        memory.leave(memory.used_bytes)
        await turns()
        assert [task.done() for task in waiting] == expected


async def test_short_packet_of_who_has_none_waiting_gets_in_whatever_others_have() -> None:
    memory = SharedMemory(LARGE)
    await memory.enter(LARGE, holds=False)
    waiting = asyncio.create_task(memory.enter(LARGE, holds=False))
    await turns()

    await asyncio.wait_for(memory.enter(RESERVED_BYTES, holds=False), 1)
    another = asyncio.create_task(memory.enter(RESERVED_BYTES, holds=True))
    await turns()

    assert memory.used_bytes == LARGE + RESERVED_BYTES
    assert not waiting.done()
    assert not another.done()
    memory.leave(memory.used_bytes)
    await waiting
    another.cancel()


async def test_who_does_not_wait_is_told_whether_there_was_memory() -> None:
    memory = SharedMemory(LARGE)

    assert memory.enter_at_once(LARGE, holds=False)
    assert not memory.enter_at_once(LARGE, holds=False)
    assert not memory.enter_at_once(1, holds=True)
    assert memory.enter_at_once(RESERVED_BYTES, holds=False)
    assert memory.used_bytes == LARGE + RESERVED_BYTES


async def test_packet_that_is_larger_than_all_memory_gets_in_alone() -> None:
    memory = SharedMemory(LARGE)

    await memory.enter(10 * LARGE, holds=False)

    assert memory.used_bytes == 10 * LARGE


async def test_who_gives_up_waiting_takes_nothing_and_holds_up_nobody() -> None:
    memory = SharedMemory(LARGE)
    await memory.enter(LARGE - 10, holds=True)
    first, second = (asyncio.create_task(memory.enter(size, holds=True)) for size in (LARGE, 10))
    await turns()

    first.cancel()

    await second
    assert memory.used_bytes == LARGE
    memory.leave(LARGE)
    assert memory.used_bytes == 0


async def test_who_gives_up_in_the_moment_it_is_let_in_takes_nothing() -> None:
    memory = SharedMemory(LARGE)
    await memory.enter(LARGE, holds=True)
    first, second = (asyncio.create_task(memory.enter(LARGE, holds=True)) for _ in range(2))
    await turns()

    memory.leave(LARGE)
    first.cancel()

    await second
    assert first.cancelled()
    assert memory.used_bytes == LARGE


async def test_who_is_gone_and_does_not_know_it_yet_is_passed_over() -> None:
    memory = SharedMemory(LARGE)
    await memory.enter(LARGE, holds=True)
    first, second = (asyncio.create_task(memory.enter(LARGE, holds=True)) for _ in range(2))
    await turns()

    first.cancel()
    memory.leave(LARGE)

    await second
    assert first.cancelled() or first.cancelling()
    assert memory.used_bytes == LARGE
