"""The packets of store-query 3.0.0 (13/WAKU2-STORE; waku-proto, store/v3).

    StoreQueryRequest    1 request_id, 2 include_data, 10 pubsub_topic, 11 content_topics, repeated, 12 time_start,
                         13 time_end, both sint64, 20 message_hashes, repeated, 51 pagination_cursor,
                         52 pagination_forward, 53 pagination_limit
    StoreQueryResponse   1 request_id, 10 status_code, 11 status_desc, 20 messages, repeated, 51 pagination_cursor
    WakuMessageKeyValue  1 message_hash, 2 message, 3 pubsub_topic; 2 and 3 both or neither

nwaku's client demands fields 1, 10 and 11 of an answer: all three are always written.

Ours, for MUIDs (codex-pm, ADR 0001 "Waku Store's bandwidth-consumption optimization"):

    StoreQueryRequest    20 message_hashes may have MUIDs, which are longer than hashes; 1000 include_muids
    WakuMessageKeyValue  1000 muid: if it was asked for, and the message has one

Other servers refuse a hash that is too long, and do not see field 1000: no client gets another answer than it asked
for. A field of its own for the MUIDs of a request would be ignored there, and answered with everything.
"""

from dataclasses import dataclass
from functools import lru_cache

from mailserver.codec import varint
from mailserver.codec.protobuf import unzigzag, write_bytes, write_number, zigzag
from mailserver.errors import DecodeError
from mailserver.ids.muid import MAX_MUID_BYTES, Muid, check_muid
from mailserver.ids.waku_message import (
    MAX_MESSAGE_BYTES,
    MESSAGE_HASH_BYTES,
    MessageHash,
    WakuMessage,
    decode_message,
)
from mailserver.waku2.fields import (
    CONTENT_TOPICS,
    MAX_U64,
    MESSAGE,
    PUBSUB_TOPIC,
    REQUEST_ID,
    STATUS_CODE,
    STATUS_DESC,
    Fields,
    boolean,
    data,
    number,
    read,
    write_text,
)

MAX_QUERY_BYTES = 192 * 1024
"""Of a request: MAX_READ_HASHES, and 100 content topics of 1,024 bytes."""

MAX_ANSWER_BYTES = 4 * 1024 * 1024
"""Of an answer: js-waku reads no longer frame (it-length-prefixed)."""

MAX_READ_HASHES = 1000
"""How many hashes are read of a request. A service takes fewer, and can say so: it has the request's id."""

MAX_READ_MESSAGES = 1000
"""How many messages are read of an answer; no server that is deployed sends more than 100."""

_HASH_BYTES = MAX_MUID_BYTES
"""Longest hash that is read. One of a length that is not lawful is refused by the rules, with the request's id."""

_MUIDS = 1000
"""The number of our own fields: nobody uses it, and it is far from those that others may add."""

_REQUEST = {
    1: REQUEST_ID,
    2: boolean("include_data"),
    10: PUBSUB_TOPIC,
    11: CONTENT_TOPICS,
    12: number("time_start", MAX_U64),
    13: number("time_end", MAX_U64),
    20: data("message_hashes", _HASH_BYTES, MAX_READ_HASHES),
    51: data("pagination_cursor", _HASH_BYTES),
    52: boolean("pagination_forward"),
    53: number("pagination_limit", MAX_U64),
    _MUIDS: boolean("include_muids"),
}
_RESPONSE = {
    1: REQUEST_ID,
    10: STATUS_CODE,
    11: STATUS_DESC,
    20: data("messages", MAX_MESSAGE_BYTES + 1024, MAX_READ_MESSAGES),
    51: data("pagination_cursor", _HASH_BYTES),
}
_KEY_VALUE = {
    1: data("message_hash", _HASH_BYTES),
    2: MESSAGE,
    3: PUBSUB_TOPIC,
    _MUIDS: data("muid", MAX_MUID_BYTES),
}


@dataclass(frozen=True, slots=True)
class StoreQueryRequest:
    """Asks for a page of messages, or of their hashes. What is None is absent; times are Unix nanoseconds.

    Nothing here is checked yet but its form: hashes and cursor may have any length up to 64 bytes.
    """

    request_id: str
    include_data: bool = False
    pubsub_topic: str | None = None
    content_topics: tuple[str, ...] = ()
    time_start: int | None = None
    time_end: int | None = None
    message_hashes: tuple[bytes, ...] = ()
    pagination_cursor: bytes | None = None
    pagination_forward: bool = False
    pagination_limit: int | None = None
    include_muids: bool = False

    def encode(self) -> bytes:
        """The protobuf form."""
        parts = [write_text(1, self.request_id)]
        if self.include_data:
            parts.append(write_number(2, 1))
        if self.pubsub_topic is not None:
            parts.append(write_text(10, self.pubsub_topic))
        parts += [write_text(11, topic) for topic in self.content_topics]
        if self.time_start is not None:
            parts.append(write_number(12, zigzag(self.time_start)))
        if self.time_end is not None:
            parts.append(write_number(13, zigzag(self.time_end)))
        parts += [write_bytes(20, each) for each in self.message_hashes]
        if self.pagination_cursor is not None:
            parts.append(write_bytes(51, self.pagination_cursor))
        if self.pagination_forward:
            parts.append(write_number(52, 1))
        if self.pagination_limit is not None:
            parts.append(write_number(53, self.pagination_limit))
        if self.include_muids:
            parts.append(write_number(_MUIDS, 1))
        return b"".join(parts)


def decode_store_query_request(packet: bytes) -> StoreQueryRequest:
    """Decode the protobuf form.

    Raises:
        DecodeError: it has another form, or is beyond a bound.
    """
    fields = read(packet, _REQUEST)
    return StoreQueryRequest(
        request_id=fields.text("request_id") or "",
        include_data=fields.flag("include_data"),
        pubsub_topic=fields.text("pubsub_topic"),
        content_topics=fields.texts("content_topics"),
        time_start=_time(fields, "time_start"),
        time_end=_time(fields, "time_end"),
        message_hashes=fields.all_data("message_hashes"),
        pagination_cursor=fields.data("pagination_cursor"),
        pagination_forward=fields.flag("pagination_forward"),
        pagination_limit=fields.number("pagination_limit"),
        include_muids=fields.flag("include_muids"),
    )


def _time(fields: Fields, name: str) -> int | None:
    value = fields.number(name)
    return None if value is None else unzigzag(value)


@dataclass(frozen=True, slots=True)
class WakuMessageKeyValue:
    """A message of a page, or its hash alone: then `message` and `pubsub_topic` are None.

    `muid`: None if it was not asked for, or the message has none.
    """

    message_hash: MessageHash
    message: WakuMessage | None = None
    pubsub_topic: str | None = None
    muid: Muid | None = None

    def encode(self) -> bytes:
        """The protobuf form."""
        parts = [write_bytes(1, self.message_hash)]
        if self.message is not None and self.pubsub_topic is not None:
            parts += [write_bytes(2, self.message.encode()), write_text(3, self.pubsub_topic)]
        if self.muid is not None:
            parts.append(encode_muid(self.muid))
        return b"".join(parts)


def encode_muid(name: Muid) -> bytes:
    """The last field of a WakuMessageKeyValue, for one that is encoded already."""
    return write_bytes(_MUIDS, name)


def decode_key_value(packet: bytes) -> WakuMessageKeyValue:
    """Decode the protobuf form. A message without its pubsub topic, or the other way round, is left out, as in nwaku.

    Raises:
        DecodeError: it has another form, or is beyond a bound; or its hash is not 32 bytes, or its MUID 33 to 64.
    """
    fields = read(packet, _KEY_VALUE)
    message_hash = fields.data("message_hash") or b""
    if len(message_hash) != MESSAGE_HASH_BYTES:
        raise DecodeError("message_hash is not 32 bytes", got=len(message_hash), limit=MESSAGE_HASH_BYTES)
    message, pubsub_topic, name = fields.message("message"), fields.text("pubsub_topic"), fields.data("muid")
    muid = None if name is None else check_muid(name)
    if message is None or pubsub_topic is None:
        return WakuMessageKeyValue(MessageHash(message_hash), muid=muid)
    return WakuMessageKeyValue(MessageHash(message_hash), decode_message(message), pubsub_topic, muid)


_MESSAGES_TAG = write_bytes(20, b"")[:-1]
"""What stands before the length of each message of a response."""

LENGTHS_KEPT = 1024
"""Of so many lengths of messages it is remembered how they are written. Applications pad what they send."""


@lru_cache(maxsize=LENGTHS_KEPT)
def _message_head(message_bytes: int) -> bytes:
    """What stands before a message of a response."""
    return _MESSAGES_TAG + varint.encode(message_bytes)


@dataclass(frozen=True, slots=True)
class StoreQueryResponse:
    """A page, the oldest message first; or why there is none. `pagination_cursor`: where the next page begins.

    `encoded`: whoever answers has its messages here, in their protobuf form, in place of `messages`.
    """

    request_id: str
    status_code: int
    status_desc: str
    messages: tuple[WakuMessageKeyValue, ...] = ()
    pagination_cursor: bytes | None = None
    encoded: tuple[bytes, ...] = ()

    def encode(self) -> bytes:
        """The protobuf form."""
        parts = [write_text(1, self.request_id), write_number(10, self.status_code), write_text(11, self.status_desc)]
        for each in (*(message.encode() for message in self.messages), *self.encoded):
            parts.append(_message_head(len(each)))
            parts.append(each)
        if self.pagination_cursor is not None:
            parts.append(write_bytes(51, self.pagination_cursor))
        return b"".join(parts)


def decode_store_query_response(packet: bytes) -> StoreQueryResponse:
    """Decode the protobuf form.

    Raises:
        DecodeError: it has another form, or is beyond a bound.
    """
    fields = read(packet, _RESPONSE)
    return StoreQueryResponse(
        request_id=fields.text("request_id") or "",
        status_code=fields.number("status_code") or 0,
        status_desc=fields.text("status_desc") or "",
        messages=tuple(decode_key_value(each) for each in fields.all_data("messages")),
        pagination_cursor=fields.data("pagination_cursor"),
    )
