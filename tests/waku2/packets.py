"""Packets of each kind: those that @waku/proto has encoded, and what is in them; and how to draw others."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

from hypothesis import strategies as st

from mailserver.ids.muid import Muid
from mailserver.ids.waku_message import MessageHash, WakuMessage
from mailserver.waku2.filter_packets import (
    FilterSubscribeRequest,
    FilterSubscribeResponse,
    FilterSubscribeType,
    MessagePush,
    decode_filter_subscribe_request,
    decode_filter_subscribe_response,
    decode_message_push,
)
from mailserver.waku2.lightpush import (
    LightPushRequest,
    LightPushResponse,
    PushRequest,
    PushResponse,
    PushRpc,
    decode_light_push_request,
    decode_light_push_response,
    decode_push_rpc,
)
from mailserver.waku2.metadata import Metadata, decode_metadata
from mailserver.waku2.old_filter import FilterRequest, FilterRpc, OldMessagePush, decode_filter_rpc
from mailserver.waku2.store_query import (
    StoreQueryRequest,
    StoreQueryResponse,
    WakuMessageKeyValue,
    decode_store_query_request,
    decode_store_query_response,
)

PUBSUB = "/waku/2/rs/1/4"
TOPIC = "/waku/1/0xdeadbeef/rfc26"
OTHER = "/waku/1/0x00000001/rfc26"

FULL = WakuMessage(b"\x00\xff\x10", TOPIC, version=1, timestamp=1_700_000_000_123_456_789, meta=b"meta", ephemeral=True)
BARE = WakuMessage(b"hello", OTHER)


class Packet(Protocol):
    """What every packet can do."""

    def encode(self) -> bytes: ...


P = TypeVar("P", bound=Packet)


class Kind(NamedTuple):
    """A kind of packet: how it is decoded, and drawn."""

    decode: Callable[[bytes], Packet]
    drawn: st.SearchStrategy[Packet]


def hash_of(byte: int) -> MessageHash:
    return MessageHash(bytes([byte]) * 32)


RECORDED: dict[str, Packet] = {
    "filter_ping": FilterSubscribeRequest("id-1"),
    "filter_subscribe": FilterSubscribeRequest("id-2", FilterSubscribeType.SUBSCRIBE, PUBSUB, (TOPIC, OTHER)),
    "filter_unsubscribe": FilterSubscribeRequest("id-3", FilterSubscribeType.UNSUBSCRIBE, PUBSUB, (TOPIC,)),
    "filter_unsubscribe_all": FilterSubscribeRequest("id-4", FilterSubscribeType.UNSUBSCRIBE_ALL, PUBSUB),
    "filter_response": FilterSubscribeResponse("id-2", 503, "full"),
    "filter_push": MessagePush(FULL, PUBSUB),
    "filter_push_without_topic": MessagePush(BARE, None),
    "old_subscribe": FilterRpc("id-5", FilterRequest(True, PUBSUB, (TOPIC, OTHER))),
    "old_unsubscribe": FilterRpc("id-6", FilterRequest(False, "", (TOPIC,))),
    "old_push": FilterRpc("id-5", push=OldMessagePush((FULL, BARE))),
    "store_request": StoreQueryRequest(
        "id-7",
        include_data=True,
        pubsub_topic=PUBSUB,
        content_topics=(TOPIC, OTHER),
        time_start=1_700_000_000_000_000_000,
        time_end=1_700_086_400_000_000_000,
        pagination_cursor=hash_of(0xAB),
        pagination_forward=True,
        pagination_limit=25,
    ),
    "store_request_by_hash": StoreQueryRequest("id-8", pubsub_topic=PUBSUB, message_hashes=(hash_of(1), hash_of(2))),
    "store_request_before_1970": StoreQueryRequest("id-9", time_start=-1, time_end=0),
    "store_response": StoreQueryResponse(
        "id-7",
        200,
        "OK",
        (WakuMessageKeyValue(hash_of(1), FULL, PUBSUB), WakuMessageKeyValue(hash_of(2))),
        hash_of(2),
    ),
    "lightpush_request": LightPushRequest("id-10", PUBSUB, FULL),
    "lightpush_response": LightPushResponse("id-10", 421, "another topic"),
    "lightpush_response_relayed": LightPushResponse("id-10", 200, relay_peer_count=3),
    "push_request": PushRpc("id-11", PushRequest(PUBSUB, FULL)),
    "push_response": PushRpc("id-11", response=PushResponse(True, "OK")),
    "metadata": Metadata(1, (0, 4, 300)),
    "metadata_request": Metadata(1),
}
"""What was given to @waku/proto, by the name of what it made of it."""

texts = st.text(max_size=20)
u32 = st.integers(0, 2**32 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
hashes = st.binary(min_size=32, max_size=32).map(MessageHash)
topics = st.lists(texts, max_size=4).map(tuple)
messages = st.builds(
    WakuMessage,
    payload=st.binary(max_size=40),
    content_topic=texts,
    version=st.none() | u32,
    timestamp=st.none() | i64,
    meta=st.binary(max_size=64),
    ephemeral=st.none() | st.booleans(),
)
muids = st.none() | st.binary(min_size=33, max_size=64).map(Muid)
key_values = st.builds(WakuMessageKeyValue, hashes, muid=muids) | st.builds(
    WakuMessageKeyValue, hashes, messages, texts, muids
)

KINDS: dict[type[Packet], Kind] = {
    FilterSubscribeRequest: Kind(
        decode_filter_subscribe_request,
        st.builds(FilterSubscribeRequest, texts, st.sampled_from(FilterSubscribeType), st.none() | texts, topics),
    ),
    FilterSubscribeResponse: Kind(
        decode_filter_subscribe_response, st.builds(FilterSubscribeResponse, texts, u32, st.none() | texts)
    ),
    MessagePush: Kind(decode_message_push, st.builds(MessagePush, messages, st.none() | texts)),
    FilterRpc: Kind(
        decode_filter_rpc,
        st.builds(
            FilterRpc,
            texts,
            st.none() | st.builds(FilterRequest, st.booleans(), texts, topics),
            st.none() | st.builds(OldMessagePush, st.lists(messages, max_size=3).map(tuple)),
        ),
    ),
    StoreQueryRequest: Kind(
        decode_store_query_request,
        st.builds(
            StoreQueryRequest,
            texts,
            st.booleans(),
            st.none() | texts,
            topics,
            st.none() | i64,
            st.none() | i64,
            st.lists(st.binary(max_size=64), max_size=3).map(tuple),
            st.none() | st.binary(max_size=64),
            st.booleans(),
            st.none() | st.integers(0, 2**64 - 1),
            st.booleans(),
        ),
    ),
    StoreQueryResponse: Kind(
        decode_store_query_response,
        st.builds(
            StoreQueryResponse, texts, u32, texts, st.lists(key_values, max_size=3).map(tuple), st.none() | hashes
        ),
    ),
    LightPushRequest: Kind(
        decode_light_push_request, st.builds(LightPushRequest, texts, st.none() | texts, st.none() | messages)
    ),
    LightPushResponse: Kind(
        decode_light_push_response, st.builds(LightPushResponse, texts, u32, st.none() | texts, st.none() | u32)
    ),
    PushRpc: Kind(
        decode_push_rpc,
        st.builds(
            PushRpc,
            texts,
            st.none() | st.builds(PushRequest, texts, st.none() | messages),
            st.none() | st.builds(PushResponse, st.booleans(), st.none() | texts),
        ),
    ),
    Metadata: Kind(decode_metadata, st.builds(Metadata, st.none() | u32, st.lists(u32, max_size=6).map(tuple))),
}
"""Every kind of packet."""

drawn_packets: st.SearchStrategy[Packet] = st.one_of([kind.drawn for kind in KINDS.values()])


def decode(kind: type[Packet], data: bytes) -> Packet:
    return KINDS[kind].decode(data)
