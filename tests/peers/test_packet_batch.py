"""mailserver.peers.packet_batch, by itself."""

import math

from mailserver.errors import DisconnectReason, RemoteProtocolError
from mailserver.limits.intake_bounds import TURN_BYTES, Load
from mailserver.net.inbound import Inbound, Packet
from mailserver.peers.packet_batch import PacketBatch
from mailserver.waku.packets import PacketCode
from mailserver.waku.peer import Event, PacketIgnored

FAULT = RemoteProtocolError(DisconnectReason.SUBPROTOCOL_ERROR, "wrong")
WRONG = b"\xff"
EMPTY = b"\xc0"


def decoded(packet: Packet) -> Event:
    """A decoder that takes anything but WRONG."""
    if packet.payload == WRONG:
        raise FAULT
    return PacketIgnored(packet.code or 0)


def request(size: int) -> Packet:
    """A packet whose work is its length."""
    return Packet(PacketCode.P2P_REQUEST, bytes(size), size)


def messages() -> Packet:
    """A packet that takes memory."""
    return Packet(PacketCode.MESSAGES, EMPTY, len(EMPTY))


PING = Packet(None, b"", 1)


def inbound_of(*packets: Packet) -> Inbound:
    inbound = Inbound(decoded)
    for packet in packets:
        inbound.add(packet)
    return inbound


def batch_of(inbound: Inbound, max_memory: float = math.inf) -> PacketBatch:
    return PacketBatch(inbound, max_memory=max_memory)


def test_batch_costs_what_its_packets_cost_together() -> None:
    inbound = inbound_of(request(100), PING, messages(), request(200))
    load = Load.of(PacketCode.MESSAGES, EMPTY)

    batch = batch_of(inbound)

    assert len(inbound) == 0
    assert batch.work == 300 + load.work
    assert batch.memory == load.memory
    assert batch.loads == [Load(100, 0), load, Load(200, 0)]
    assert batch.sizes == [100, 1, 1, 200]


def test_packet_counts_as_long_as_its_work_by_the_rate_limits() -> None:
    update = Packet(PacketCode.STATUS_UPDATE, bytes(10), 10)

    batch = batch_of(inbound_of(update))

    assert batch.sizes == [Load.of(PacketCode.STATUS_UPDATE, bytes(10)).work]
    assert batch.sizes[0] > 10


def test_batch_is_no_more_than_one_turns_work() -> None:
    inbound = inbound_of(*(request(TURN_BYTES // 4) for _ in range(6)))

    assert [len(batch_of(inbound).sizes) for _ in range(2)] == [4, 2]


def test_packet_that_is_more_than_a_turns_work_goes_alone() -> None:
    inbound = inbound_of(request(1), request(2 * TURN_BYTES), request(1))

    assert [batch_of(inbound).work for _ in range(3)] == [1, 2 * TURN_BYTES, 1]


def test_batch_takes_no_more_memory_than_there_is_and_one_packet_at_least() -> None:
    inbound = inbound_of(*(messages() for _ in range(6)))
    each = Load.of(PacketCode.MESSAGES, EMPTY).memory

    assert [len(batch_of(inbound, most).loads) for most in (3 * each, 2 * each - 1, 1)] == [3, 1, 1]


def test_long_packet_goes_alone_and_costs_nothing_before_it_is_read() -> None:
    long = Packet(PacketCode.MESSAGES, bytearray(10), 10)
    inbound = inbound_of(messages(), PING, long, messages())

    batches = [batch_of(inbound) for _ in range(3)]

    assert [batch.sizes for batch in batches] == [[1, 1], [10], [1]]
    assert batches[1].loads == [Load(0, 0)]


def test_events_end_before_the_packet_that_breaks_a_rule() -> None:
    inbound = inbound_of(Packet(98, b"", 0), PING, Packet(99, b"", 0), Packet(1, WRONG, 1), Packet(97, b"", 0))
    batch = batch_of(inbound)

    events = batch.decode(inbound)

    assert events == [PacketIgnored(98), PacketIgnored(99)]
    assert batch.fault is FAULT


def test_batch_without_a_fault_has_an_event_for_each_packet() -> None:
    inbound = inbound_of(Packet(98, b"", 0), PING, Packet(99, b"", 0))
    batch = batch_of(inbound)

    assert batch.decode(inbound) == [PacketIgnored(98), PacketIgnored(99)]
    assert batch.fault is None
