"""mailserver.net.inbound, by itself."""

import asyncio
import math
import weakref

import pytest

from mailserver.codec import snappy
from mailserver.errors import DecodeError
from mailserver.limits.intake_bounds import QUANTUM_BYTES, STRUCTURE_FACTOR
from mailserver.net.inbound import Event, Inbound, LongMessage, SessionMessage, inflated, one_by_one
from mailserver.net.sessions import WAKU
from mailserver.rlpx.events import BaseMessageReceived, LongMessageReceived, MessageReceived
from mailserver.waku.envelope import PART_ENVELOPES, encode_envelopes
from mailserver.waku.packets import PacketCode
from mailserver.waku.peer import LargePacket, P2PMessagesReceived, PacketIgnored
from tests.mailservers import make_envelope
from tests.memory import no_search_for_cycles
from tests.waiting import until


def ignored(message: MessageReceived | LongMessage) -> Event:
    """A decoder that understands nothing."""
    return PacketIgnored(message.code)


def begun(message: MessageReceived) -> LargePacket:
    return LargePacket(message.code, message.payload)


def packet(code: int, payload: bytes = b"") -> MessageReceived:
    return MessageReceived(WAKU, code, payload)


def of(*messages: SessionMessage) -> Inbound:
    inbound = Inbound(ignored, begun)
    for message in messages:
        inbound.add(message)
    return inbound


def test_packets_are_taken_in_the_order_in_which_they_came() -> None:
    first, second = packet(1, b"a"), LongMessage(2, bytearray(b"bc"))
    inbound = of(first, second)

    assert len(inbound) == 2
    assert inbound.peek() == first
    assert [inbound.take(), inbound.take()] == [first, second]
    assert inbound.peek() is None
    with pytest.raises(IndexError):
        inbound.take()


async def test_handler_is_told_of_one_packet_at_a_time_and_of_no_ping() -> None:
    told: list[Event] = []

    async def handler(event: Event) -> None:
        told.append(event)

    inbound = of(BaseMessageReceived(1), packet(7), packet(8))
    receive = one_by_one(handler)

    assert await receive(inbound) == 0.0
    assert told == []
    await receive(inbound)
    assert told == [PacketIgnored(7)]
    await receive(inbound)
    assert told == [PacketIgnored(7), PacketIgnored(8)]
    assert len(inbound) == 0


MANY = [make_envelope(number, data_bytes=1) for number in range(2 * PART_ENVELOPES + 1)]


async def test_each_part_of_a_large_packet_is_an_event_and_others_go_on_in_between() -> None:
    told: list[Event] = []

    async def handler(event: Event) -> None:
        told.append(event)

    inbound = of(packet(PacketCode.P2P_MESSAGE, encode_envelopes([each.raw for each in MANY])))
    receiving = asyncio.ensure_future(one_by_one(handler)(inbound))

    seen: list[int] = []
    while not receiving.done():
        await asyncio.sleep(0)
        seen.append(len(told))

    assert told == [P2PMessagesReceived(MANY[at : at + PART_ENVELOPES]) for at in range(0, len(MANY), PART_ENVELOPES)]
    assert seen[:3] == [1, 2, 3]


async def test_others_go_on_between_packets_that_take_long_together() -> None:
    told: list[Event] = []

    async def handler(event: Event) -> None:
        told.append(event)

    inbound = of(*[packet(PacketCode.STATUS_UPDATE, bytes(100))] * 40)
    receive = one_by_one(handler)

    async def receive_all() -> None:
        while len(inbound):
            await receive(inbound)

    receiving = asyncio.ensure_future(receive_all())
    await asyncio.sleep(0)
    assert len(told) == math.ceil(QUANTUM_BYTES / (100 * STRUCTURE_FACTOR))
    await receiving
    assert len(told) == 40


async def test_what_is_not_wanted_is_not_even_decoded() -> None:
    told: list[Event] = []

    async def handler(event: Event) -> None:
        told.append(event)

    inbound = of(packet(1), packet(2))
    receive = one_by_one(handler, is_wanted=lambda message: message.code == 2)

    await receive(inbound)
    await receive(inbound)

    assert told == [PacketIgnored(2)]


@pytest.mark.parametrize("is_compressed", [True, False], ids=["compressed", "plain"])
async def test_long_message_is_let_go_as_it_came_once_it_is_inflated(is_compressed: bool) -> None:
    payload = bytes(range(256)) * 1000
    body = bytearray(snappy.compress(payload) if is_compressed else payload)
    message = LongMessageReceived(WAKU, 1, memoryview(body)[:], is_compressed)

    result = await inflated(message)

    assert result == payload
    body.clear()  # BufferError if anything still refers to it


async def test_damaged_long_message_is_let_go_too() -> None:
    body = bytearray(snappy.compress(bytes(range(256)) * 1000)[:-1])
    message = LongMessageReceived(WAKU, 1, memoryview(body)[:], is_compressed=True)

    with pytest.raises(DecodeError):
        await inflated(message)

    body.clear()


async def test_what_a_damaged_long_message_inflated_to_is_freed_at_once() -> None:
    body = bytearray(snappy.compress(bytes(range(256)) * 1000)[:-1])
    message = LongMessageReceived(WAKU, 1, memoryview(body)[:], is_compressed=True)

    faults = []

    with no_search_for_cycles():
        try:
            await inflated(message)
        except DecodeError as error:
            faults.append(weakref.ref(error))  # it refers to the frames that raised it

        await until(lambda: [fault() for fault in faults] == [None])  # the thread, too, lets go
