"""mailserver.peers.packet_batch, by itself."""

import math
import weakref

import pytest

from mailserver.errors import DisconnectReason, RemoteProtocolError
from mailserver.limits.intake_bounds import QUANTUM_BYTES, PacketCost
from mailserver.net.inbound import Inbound, LongMessage, Message
from mailserver.net.sessions import WAKU
from mailserver.peers.packet_batch import PacketBatch
from mailserver.rlpx.events import BaseMessageReceived, MessageReceived
from mailserver.waku.packets import PacketCode
from mailserver.waku.peer import Event, PacketIgnored
from mailserver.wakuid.packets import WAKUID, IdPacketCode
from tests.memory import no_search_for_cycles

FAULT = DisconnectReason.SUBPROTOCOL_ERROR, "wrong"
WRONG = b"\xff"
EMPTY = b"\xc0"


def decoded(message: MessageReceived | LongMessage) -> Event:
    """A decoder that takes anything but WRONG."""
    if message.payload == WRONG:
        raise RemoteProtocolError(*FAULT)
    return PacketIgnored(message.code)


def packet(code: int, payload: bytes = b"") -> MessageReceived:
    return MessageReceived(WAKU, code, payload)


def request(size: int) -> MessageReceived:
    """A packet whose work is its length."""
    return packet(PacketCode.P2P_REQUEST, bytes(size))


def messages() -> MessageReceived:
    """A packet that takes memory."""
    return packet(PacketCode.MESSAGES, EMPTY)


PING = BaseMessageReceived(1)


def inbound_of(*messages: Message) -> Inbound:
    inbound = Inbound(decoded)
    for message in messages:
        inbound.add(message)
    return inbound


def batch_of(
    inbound: Inbound, max_memory: float = math.inf, headroom: tuple[float, float] = (math.inf, math.inf)
) -> PacketBatch:
    return PacketBatch(inbound, max_memory=max_memory, headroom=headroom)


def test_batch_costs_what_its_packets_cost_together() -> None:
    inbound = inbound_of(request(100), PING, messages(), request(200))
    cost = PacketCost.of(PacketCode.MESSAGES, EMPTY)

    batch = batch_of(inbound)

    assert len(inbound) == 0
    assert batch.work == 300 + cost.work
    assert batch.memory == cost.memory
    assert batch.costs == [PacketCost(100, 0), cost, PacketCost(200, 0)]
    assert batch.sizes == [100, 1, 1, 200]


def test_packet_counts_as_long_as_its_work_by_the_rate_limits() -> None:
    update = packet(PacketCode.STATUS_UPDATE, bytes(10))

    batch = batch_of(inbound_of(update))

    assert batch.sizes == [PacketCost.of(PacketCode.STATUS_UPDATE, bytes(10)).work]
    assert batch.sizes[0] > 10


def test_question_counts_as_long_as_its_work_too() -> None:
    batch = batch_of(inbound_of(MessageReceived(WAKUID, IdPacketCode.FETCH_ITEMS, bytes(10))))

    assert batch.costs == [PacketCost.of_question(10)]
    assert batch.sizes == [PacketCost.of_question(10).work]


def test_batch_is_no_more_than_one_turns_work() -> None:
    inbound = inbound_of(*(request(QUANTUM_BYTES // 4) for _ in range(6)))

    assert [len(batch_of(inbound).sizes) for _ in range(2)] == [4, 2]


def test_packet_that_is_more_than_a_turns_work_goes_alone() -> None:
    inbound = inbound_of(request(1), request(2 * QUANTUM_BYTES), request(1))

    assert [batch_of(inbound).work for _ in range(3)] == [1, 2 * QUANTUM_BYTES, 1]


def test_batch_takes_no_more_memory_than_there_is_and_one_packet_at_least() -> None:
    inbound = inbound_of(*(messages() for _ in range(6)))
    each = PacketCost.of(PacketCode.MESSAGES, EMPTY).memory

    assert [len(batch_of(inbound, most).costs) for most in (3 * each, 2 * each - 1, 1)] == [3, 1, 1]


@pytest.mark.parametrize(
    ("headroom", "counts"),
    [
        ((2.5, math.inf), [3, 3]),  # the third passes the limit
        ((2.0, math.inf), [3, 3]),
        ((-1.0, math.inf), [1, 1, 1, 1, 1, 1]),
        ((math.inf, 199.0), [2, 2, 2]),
        ((math.inf, 200.0), [3, 3]),
        ((1.0, 350.0), [2, 2, 2]),
    ],
)
def test_message_that_passes_a_rate_limit_is_the_last(headroom: tuple[float, float], counts: list[int]) -> None:
    inbound = inbound_of(*(request(100) for _ in range(6)))

    taken = []
    while len(inbound):
        taken.append(len(batch_of(inbound, headroom=headroom).sizes))

    assert taken == counts


def test_pings_pass_a_rate_limit_as_packets_do() -> None:
    inbound = inbound_of(PING, request(1), PING, PING)

    assert len(batch_of(inbound, headroom=(2.0, math.inf)).sizes) == 3


def test_long_packet_goes_alone_and_costs_nothing_before_it_is_read() -> None:
    long = LongMessage(PacketCode.MESSAGES, bytearray(10))
    inbound = inbound_of(messages(), PING, long, messages())

    batches = [batch_of(inbound) for _ in range(3)]

    assert [batch.sizes for batch in batches] == [[1, 1], [10], [1]]
    assert batches[1].costs == [PacketCost(0, 0)]


def test_events_end_before_the_packet_that_breaks_a_rule() -> None:
    inbound = inbound_of(packet(98), PING, packet(99), packet(1, WRONG), packet(97))
    batch = batch_of(inbound)

    events = batch.decode(inbound)

    assert events == [PacketIgnored(98), PacketIgnored(99)]
    assert batch.fault == FAULT


def test_packet_that_breaks_a_rule_is_not_kept() -> None:
    class Payload(bytearray):
        """One that can be watched."""

    payload = Payload(WRONG)
    is_kept = weakref.ref(payload)
    inbound = inbound_of(LongMessage(PacketCode.MESSAGES, payload))
    del payload

    with no_search_for_cycles():
        batch = batch_of(inbound)
        batch.decode(inbound)

        assert is_kept() is None
    assert batch.fault == FAULT


def test_batch_without_a_fault_has_an_event_for_each_packet() -> None:
    inbound = inbound_of(packet(98), PING, packet(99))
    batch = batch_of(inbound)

    assert batch.decode(inbound) == [PacketIgnored(98), PacketIgnored(99)]
    assert batch.fault is None
