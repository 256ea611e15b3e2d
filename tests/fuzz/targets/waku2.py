"""Frames and packets of Waku v2, as light clients and service nodes send them; requests to a table of subscriptions."""

from collections.abc import Iterator

from mailserver.errors import DecodeError
from mailserver.ids.envelopes import NS
from mailserver.ids.waku_message import WakuMessage
from mailserver.waku2.codes import FilterStatus
from mailserver.waku2.fields import MAX_REQUEST_ID_BYTES, request_id_of
from mailserver.waku2.filter_client import FilterClient
from mailserver.waku2.filter_packets import (
    FilterSubscribeRequest,
    FilterSubscribeType,
    MessagePush,
    decode_filter_subscribe_request,
)
from mailserver.waku2.frames import FrameReader, encode_frame
from mailserver.waku2.lightpush import LightPushRequest
from mailserver.waku2.lightpush_rules import LightPushRules
from mailserver.waku2.old_filter import FilterRequest, FilterRpc, decode_filter_rpc
from mailserver.waku2.store_query import StoreQueryRequest
from mailserver.waku2.store_rules import MAX_PAGE_ENTRIES, StoreQuery, check_query
from mailserver.waku2.subscriptions import SubscriptionLimits, Subscriptions
from tests.data import load
from tests.fuzz.choices import Choices
from tests.fuzz.target import Target
from tests.waku2.packets import KINDS, OTHER, PUBSUB, RECORDED, TOPIC, Packet, decode

KINDS_IN_ORDER = list(KINDS)
MAX_FRAME_BYTES = 2048
RULES = LightPushRules(PUBSUB)

# Packets


def fuzz_packets(data: bytes) -> None:
    """However frames are cut, the same bodies come out; each is a packet that is written and read again, or refused."""
    if not data:
        return
    kind, size, stream = KINDS_IN_ORDER[data[0] % len(KINDS_IN_ORDER)], 1 + data[0] // len(KINDS_IN_ORDER), data[1:]
    whole, _ = _bodies(stream, len(stream) or 1)
    cut, _ = _bodies(stream, size)
    assert cut[: len(whole)] == whole
    for body in (stream, *cut):
        assert len(request_id_of(body).encode()) <= MAX_REQUEST_ID_BYTES
        try:
            packet = decode(kind, body)
        except DecodeError:
            continue
        again = packet.encode()
        assert decode(kind, again) == packet
        _judge(packet)


def _bodies(stream: bytes, size: int) -> tuple[list[bytes], bool]:
    """The bodies of all frames before the first fault, and whether there is none."""
    reader, bodies = FrameReader(MAX_FRAME_BYTES), list[bytes]()
    try:
        for at in range(0, len(stream), size):
            bodies += reader.receive_data(stream[at : at + size])
            assert reader.pending <= MAX_FRAME_BYTES + 5
        reader.receive_eof()
    except DecodeError:
        return bodies, False
    assert b"".join(map(encode_frame, bodies)) == stream
    return bodies, True


def _judge(packet: Packet) -> None:
    """The rules take whatever can be decoded."""
    match packet:
        case StoreQueryRequest():
            query = check_query(packet)
            if isinstance(query, StoreQuery):
                assert 1 <= query.limit <= MAX_PAGE_ENTRIES
                has_names = query.message_hashes or query.muids
                assert not (has_names and (query.content_topics or query.pubsub_topic))
                assert (query.pubsub_topic is None) == (not query.content_topics)
                assert all(33 <= len(each) <= 64 for each in query.muids)
        case LightPushRequest():
            verdict = RULES.judge(packet.pubsub_topic, packet.message, 1_700_000_000 * NS)
            assert not verdict.is_success or (packet.message and packet.message.timestamp)
        case _:
            pass


def packet_seeds() -> Iterator[bytes]:
    """Those that another implementation has encoded, each by itself and in a frame."""
    for name, encoded in load("waku2/packets.json").items():
        first = KINDS_IN_ORDER.index(type(RECORDED[name]))
        yield bytes([first]) + bytes.fromhex(encoded)
        yield bytes([first + 7 * len(KINDS_IN_ORDER)]) + encode_frame(bytes.fromhex(encoded))


# Subscriptions

PEERS = ("one", "two", "three", "four")
TOPICS = (TOPIC, OTHER, "/a", "")
PUBSUBS = (PUBSUB, "/waku/2/rs/1/5", "")
LIMITS = SubscriptionLimits(max_request_topics=4, max_criteria=6, max_subscribers=3, max_table_bytes=12_000)


def fuzz_subscriptions(data: bytes) -> None:
    """Nobody is pushed what he does not believe in, nor anything after it was taken back; no limit is passed."""
    choices = Choices(data)
    table: Subscriptions[str] = Subscriptions(LIMITS)
    clients = {peer: FilterClient[str]() for peer in PEERS}
    now = 0.0
    while choices.more:
        peer, action = choices.pick(PEERS), choices.below(9)
        now += choices.below(256) / 4
        match action:
            case 0:
                table.gone(peer, now)
            case 1:
                table.connected(peer)
            case 2:
                table.push_failed(peer, now)
            case 3:
                table.push_reached(peer)
            case 4:
                for expired in table.expire(now):
                    clients[expired] = FilterClient()
                timer = table.next_timer()
                assert timer is None or timer > now
            case 5:
                _ask_old(table, clients[peer], peer, choices, now)
            case _:
                _ask(table, clients[peer], peer, choices, now)
        _check(table, clients)


def _ask(table: Subscriptions[str], client: FilterClient[str], peer: str, choices: Choices, now: float) -> None:
    kind = choices.pick([*FilterSubscribeType])
    pubsub_topic, topics = choices.pick(PUBSUBS), tuple(choices.pick(TOPICS) for _ in range(choices.below(6)))
    request = FilterSubscribeRequest("id", kind, pubsub_topic, topics)
    assert decode_filter_subscribe_request(request.encode()) == request
    answer = table.answer(peer, request, now)
    assert answer.request_id == request.request_id
    if answer.status_code == FilterStatus.OK:
        match kind:
            case FilterSubscribeType.SUBSCRIBE:
                client.subscribe("node", "id", pubsub_topic, topics)
            case FilterSubscribeType.UNSUBSCRIBE:
                client.unsubscribe("node", "id", pubsub_topic, topics)
            case FilterSubscribeType.UNSUBSCRIBE_ALL:
                client.unsubscribe_all("node", "id")
            case FilterSubscribeType.SUBSCRIBER_PING:
                pass
    client.on_response("node", answer)


def _ask_old(table: Subscriptions[str], client: FilterClient[str], peer: str, choices: Choices, now: float) -> None:
    topics = tuple(choices.pick(TOPICS) for _ in range(choices.below(6)))
    request = FilterRequest(choices.flag(), choices.pick(PUBSUBS), topics)
    rpc = FilterRpc(choices.pick("rs"), request)
    assert decode_filter_rpc(rpc.encode()) == rpc
    if table.apply_old(peer, rpc.request_id, request, now).status == FilterStatus.OK:
        client.request_old("node", rpc.request_id, request)


def _check(table: Subscriptions[str], clients: dict[str, FilterClient[str]]) -> None:
    assert len(table) <= LIMITS.max_subscribers
    assert table.memory_bytes <= LIMITS.max_table_bytes or not table.criteria
    held = dict.fromkeys(PEERS, 0)
    for pubsub_topic in PUBSUBS[:2]:
        for topic in TOPICS[:3]:
            message = WakuMessage(b"", topic)
            for each in table.matches(pubsub_topic, topic):
                assert each.wants(pubsub_topic, topic)
                assert each.subscriber in table
                assert len(each) <= LIMITS.max_criteria
                if each.request_id is None:
                    held[each.subscriber] += 1
                    push = MessagePush(message, pubsub_topic)
                    assert clients[each.subscriber].fault_of("node", push) is None
    assert max(held.values()) <= LIMITS.max_criteria
    if not len(table):
        assert (table.criteria, table.memory_bytes, table.next_timer()) == (0, 0, None)


def subscription_seeds() -> Iterator[bytes]:
    """Each action after a subscription, and both filters with wide and narrow requests."""
    subscribe = bytes([0, 6, 1, 1, 0, 2, 0, 1])
    for action in range(9):
        yield subscribe + bytes([0, action, 200, 2, 0, 2, 0, 1]) + bytes([0, 4, 240])
    for peer in range(4):
        yield subscribe + bytes([peer, 5, 1, 1, 0, 0, 0]) + bytes([peer, 5, 1, 1, 0, 0, 0, 0])


TARGETS = {
    "packets": Target(fuzz_packets, packet_seeds, max_bytes=2048),
    "subscriptions": Target(fuzz_subscriptions, subscription_seeds, max_bytes=512),
}
