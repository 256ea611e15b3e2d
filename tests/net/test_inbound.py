"""mailserver.net.inbound, by itself."""

import weakref

import pytest

from mailserver.codec import snappy
from mailserver.errors import DecodeError
from mailserver.net.inbound import Event, Inbound, LongMessage, Message, inflated, one_by_one
from mailserver.net.sessions import WAKU
from mailserver.rlpx.events import BaseMessageReceived, LongMessageReceived, MessageReceived
from mailserver.waku.peer import PacketIgnored
from tests.memory import no_search_for_cycles
from tests.waiting import until


def ignored(message: MessageReceived | LongMessage) -> Event:
    """A decoder that understands nothing."""
    return PacketIgnored(message.code)


def packet(code: int, payload: bytes = b"") -> MessageReceived:
    return MessageReceived(WAKU, code, payload)


def of(*messages: Message) -> Inbound:
    inbound = Inbound(ignored)
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
