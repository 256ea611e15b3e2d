"""mailserver.limits.intake_bounds: what packets are counted with, and who waits for whom."""

import asyncio

import pytest

from mailserver.limits.intake_bounds import (
    ENVELOPE_MEMORY_BYTES,
    MAX_INTAKE_BYTES,
    MAX_STRUCTURE_BYTES,
    PACKET_MEMORY_BYTES,
    RESERVED_BYTES,
    STRUCTURE_FACTOR,
    MemoryBudget,
    PacketCost,
)
from mailserver.waku.envelope import MAX_ENVELOPES_PER_PACKET, MIN_SEALED_BYTES, encode_envelopes
from mailserver.waku.packets import MAX_RECEIVED_PACKET_BYTES, PacketCode
from tests.mailservers import make_envelope, make_envelopes
from tests.waiting import DEADLINE_S, turns

LARGE = RESERVED_BYTES + 1


def packet(*sizes: int) -> bytes:
    return encode_envelopes([make_envelope(number, data_bytes=size).raw for number, size in enumerate(sizes)])


# What is counted


def test_packet_of_ordinary_envelopes_is_as_much_work_as_it_is_long() -> None:
    payload = packet(500, 300)

    cost = PacketCost.of(PacketCode.MESSAGES, payload)

    assert cost.work == len(payload)
    assert cost.memory == len(payload) + PACKET_MEMORY_BYTES + 2 * ENVELOPE_MEMORY_BYTES


def test_tiny_envelopes_are_as_much_work_as_any_and_take_as_much_memory() -> None:
    payload = packet(*[1] * 100)

    cost = PacketCost.of(PacketCode.MESSAGES, payload)

    assert cost.work == 100 * MIN_SEALED_BYTES > len(payload)
    assert cost.memory > 100 * ENVELOPE_MEMORY_BYTES


def test_envelopes_outside_gossip_are_work_and_do_not_wait_for_the_disk() -> None:
    payload = packet(*[1] * 100)

    assert PacketCost.of(PacketCode.P2P_MESSAGE, payload) == PacketCost(100 * MIN_SEALED_BYTES, 0)


@pytest.mark.parametrize("code", [PacketCode.STATUS_UPDATE, PacketCode.MESSAGE_RESPONSE, 99])
def test_other_packets_are_more_work_than_they_are_long(code: int) -> None:
    assert PacketCost.of(code, bytes(100)) == PacketCost(100 * STRUCTURE_FACTOR, 0)


def test_requests_have_limits_of_their_own() -> None:
    assert PacketCost.of(PacketCode.P2P_REQUEST, bytes(100)) == PacketCost(100, 0)


def test_question_is_as_much_work_as_any_packet_up_to_where_its_items_must_end() -> None:
    assert PacketCost.of_question(100) == PacketCost(100 * STRUCTURE_FACTOR, 0)
    assert PacketCost.of_question(100_000).work == 100_000 + MAX_STRUCTURE_BYTES * (STRUCTURE_FACTOR - 1)


@pytest.mark.parametrize("payload", [b"", b"\x80", b"\xc5\x01", b"\xf9\xff", b"\xff" * 9])
def test_packet_that_does_not_decode_has_a_load_like_any(payload: bytes) -> None:
    assert (
        PacketCost.of(PacketCode.MESSAGES, payload).memory <= PACKET_MEMORY_BYTES + len(payload) + ENVELOPE_MEMORY_BYTES
    )


def test_largest_packet_of_all_finds_room() -> None:
    most = MAX_RECEIVED_PACKET_BYTES + PACKET_MEMORY_BYTES + (MAX_ENVELOPES_PER_PACKET + 1) * ENVELOPE_MEMORY_BYTES

    assert 2 * most < MAX_INTAKE_BYTES <= 64 * 1024 * 1024


def test_packet_of_some_short_messages_needs_no_room() -> None:
    payload = encode_envelopes([envelope.raw for envelope in make_envelopes(5, data_bytes=600)])

    assert PacketCost.of(PacketCode.MESSAGES, payload).memory <= RESERVED_BYTES


# Memory


async def test_task_that_needs_more_memory_than_there_is_waits_until_it_is_there() -> None:
    memory = MemoryBudget(3 * LARGE)
    await memory.acquire(2 * LARGE, is_first=True)
    waiting = asyncio.create_task(memory.acquire(2 * LARGE, is_first=True))
    await turns()
    assert not waiting.done()

    memory.release(2 * LARGE)

    await waiting
    assert memory.used_bytes == 2 * LARGE


async def test_waiting_tasks_get_memory_in_their_order() -> None:
    memory = MemoryBudget(LARGE)
    await memory.acquire(LARGE, is_first=False)
    waiting = [asyncio.create_task(memory.acquire(size, is_first=False)) for size in (LARGE, 10, LARGE)]
    await turns()
    assert [task.done() for task in waiting] == [False] * 3  # not even the one that there would be room for

    for expected in ([True, False, False], [True, True, False], [True] * 3):
        memory.release(memory.used_bytes)
        await turns()
        assert [task.done() for task in waiting] == expected


async def test_first_short_packet_of_a_peer_gets_memory_whatever_others_have() -> None:
    memory = MemoryBudget(LARGE)
    await memory.acquire(LARGE, is_first=True)
    waiting = asyncio.create_task(memory.acquire(LARGE, is_first=True))
    await turns()

    await asyncio.wait_for(memory.acquire(RESERVED_BYTES, is_first=True), DEADLINE_S)
    another = asyncio.create_task(memory.acquire(RESERVED_BYTES, is_first=False))
    await turns()

    assert memory.used_bytes == LARGE + RESERVED_BYTES
    assert not waiting.done()
    assert not another.done()
    memory.release(memory.used_bytes)
    await waiting
    another.cancel()


async def test_memory_that_is_tried_for_is_taken_or_refused_at_once() -> None:
    memory = MemoryBudget(LARGE)

    assert memory.try_acquire(LARGE, is_first=True)
    assert not memory.try_acquire(LARGE, is_first=True)
    assert not memory.try_acquire(1, is_first=False)
    assert memory.try_acquire(RESERVED_BYTES, is_first=True)
    assert memory.used_bytes == LARGE + RESERVED_BYTES


async def test_packet_that_is_larger_than_all_memory_gets_in_alone() -> None:
    memory = MemoryBudget(LARGE)

    await memory.acquire(10 * LARGE, is_first=True)

    assert memory.used_bytes == 10 * LARGE


async def test_cancelled_task_takes_no_memory_and_delays_no_other() -> None:
    memory = MemoryBudget(LARGE)
    await memory.acquire(LARGE - 10, is_first=False)
    first, second = (asyncio.create_task(memory.acquire(size, is_first=False)) for size in (LARGE, 10))
    await turns()

    first.cancel()

    await second
    assert memory.used_bytes == LARGE
    memory.release(LARGE)
    assert memory.used_bytes == 0


async def test_task_cancelled_as_it_gets_memory_takes_none() -> None:
    memory = MemoryBudget(LARGE)
    await memory.acquire(LARGE, is_first=False)
    first, second = (asyncio.create_task(memory.acquire(LARGE, is_first=False)) for _ in range(2))
    await turns()

    memory.release(LARGE)
    first.cancel()

    await second
    assert first.cancelled()
    assert memory.used_bytes == LARGE


async def test_task_that_is_being_cancelled_is_passed_over() -> None:
    memory = MemoryBudget(LARGE)
    await memory.acquire(LARGE, is_first=False)
    first, second = (asyncio.create_task(memory.acquire(LARGE, is_first=False)) for _ in range(2))
    await turns()

    first.cancel()
    memory.release(LARGE)

    await second
    assert first.cancelled() or first.cancelling()
    assert memory.used_bytes == LARGE
