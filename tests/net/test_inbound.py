"""mailserver.net.inbound, by itself."""

import pytest

from mailserver.net.inbound import Inbound, Packet, one_by_one
from mailserver.waku.peer import Event, PacketIgnored


def ignored(packet: Packet) -> Event:
    """A decoder that understands nothing."""
    assert packet.code is not None
    return PacketIgnored(packet.code)


def of(*packets: Packet) -> Inbound:
    inbound = Inbound(ignored)
    for packet in packets:
        inbound.add(packet)
    return inbound


def test_packets_are_taken_in_the_order_in_which_they_came() -> None:
    first, second = Packet(1, b"a", 1), Packet(2, b"bc", 2)
    inbound = of(first, second)

    assert len(inbound) == 2
    assert inbound.peek() == first
    assert [inbound.take(), inbound.take()] == [first, second]
    assert inbound.peek() is None
    with pytest.raises(IndexError):
        inbound.take()


def test_packet_is_long_if_its_payload_may_be_changed() -> None:
    assert Packet(1, bytearray(2), 2).is_long
    assert not Packet(1, bytes(2), 2).is_long


async def test_handler_is_told_of_one_packet_at_a_time_and_of_no_ping() -> None:
    told: list[Event] = []

    async def handler(event: Event) -> None:
        told.append(event)

    inbound = of(Packet(None, b"", 1), Packet(7, b"", 0), Packet(8, b"", 0))
    receive = one_by_one(handler)

    assert await receive(inbound) == 0.0
    assert told == []
    await receive(inbound)
    assert told == [PacketIgnored(7)]
    await receive(inbound)
    assert told == [PacketIgnored(7), PacketIgnored(8)]
    assert len(inbound) == 0
