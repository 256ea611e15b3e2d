"""mailserver.peers.packet_batch, by itself."""

import math
import weakref

import pytest

from mailserver.codec.keccak import keccak256
from mailserver.errors import DisconnectReason, RemoteProtocolError
from mailserver.limits.intake_bounds import LARGE_WORK, PART_WORK, QUANTUM_BYTES, PacketCost
from mailserver.net.inbound import Inbound, LongMessage, SessionMessage
from mailserver.net.sessions import WAKU
from mailserver.peers.packet_batch import PacketBatch
from mailserver.rlpx.events import BaseMessageReceived, MessageReceived
from mailserver.waku.envelope import PART_ENVELOPES, encode_envelopes
from mailserver.waku.packets import PacketCode
from mailserver.waku.peer import Event, LargePacket, MessagesReceived, P2PMessagesReceived, PacketIgnored
from mailserver.wakuid.packets import WAKUID, IdPacketCode
from tests.mailservers import make_envelope
from tests.memory import no_search_for_cycles

FAULT = DisconnectReason.SUBPROTOCOL_ERROR, "wrong"
WRONG = b"\xff"
EMPTY = b"\xc0"


def decoded(message: MessageReceived | LongMessage) -> Event:
    """A decoder that takes anything but WRONG."""
    if message.payload == WRONG:
        raise RemoteProtocolError(*FAULT)
    return PacketIgnored(message.code)


def begun(message: MessageReceived) -> LargePacket:
    return LargePacket(message.code, message.payload)


def packet(code: int, payload: bytes = b"") -> MessageReceived:
    return MessageReceived(WAKU, code, payload)


def request(size: int) -> MessageReceived:
    """A packet whose work is its length."""
    return packet(PacketCode.P2P_REQUEST, bytes(size))


def messages() -> MessageReceived:
    """A packet that takes memory."""
    return packet(PacketCode.MESSAGES, EMPTY)


PING = BaseMessageReceived(1)


def inbound_of(*messages: SessionMessage) -> Inbound:
    inbound = Inbound(decoded, begun)
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


MANY = [make_envelope(number, data_bytes=1) for number in range(2 * PART_ENVELOPES + 1)]


async def wait_no_turn(_: int) -> None:
    """A turn that comes at once."""


@pytest.mark.parametrize("code", [PacketCode.MESSAGES, PacketCode.P2P_MESSAGE])
async def test_large_packet_is_decoded_part_by_part_to_what_any_is(code: PacketCode) -> None:
    payload = encode_envelopes([each.raw for each in MANY])
    inbound = inbound_of(PING, packet(code, payload), PING)
    batch = batch_of(inbound)
    turns: list[int] = []

    async def note_turn(work: int) -> None:
        turns.append(work)

    assert batch.is_large
    (event,) = await batch.decode_large(inbound, note_turn)

    expected = (
        P2PMessagesReceived(MANY) if code == PacketCode.P2P_MESSAGE else MessagesReceived(MANY, keccak256(payload))
    )
    assert event == expected
    assert turns == [PART_WORK] * 3
    assert batch.fault is None


def test_other_batches_are_not_large() -> None:
    few = packet(PacketCode.MESSAGES, encode_envelopes([each.raw for each in MANY[:PART_ENVELOPES]]))

    for messages_ in ([few], [PING], [packet(PacketCode.STATUS_UPDATE, bytes(LARGE_WORK))]):
        assert not batch_of(inbound_of(*messages_)).is_large
    assert not batch_of(inbound_of(LongMessage(PacketCode.MESSAGES, bytearray(LARGE_WORK + 1)))).is_large


async def test_large_packet_that_breaks_a_rule_is_a_fault_and_no_event() -> None:
    inbound = inbound_of(packet(PacketCode.MESSAGES, encode_envelopes([each.raw for each in MANY] + [EMPTY])))
    batch = batch_of(inbound)

    assert await batch.decode_large(inbound, wait_no_turn) == []
    assert batch.fault == (DisconnectReason.SUBPROTOCOL_ERROR, "MESSAGES: expiry is missing")


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
