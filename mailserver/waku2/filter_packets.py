"""The packets of filter-subscribe and filter-push 2.0.0-beta1 (12/WAKU2-FILTER; waku-proto, filter/v2).

    FilterSubscribeRequest   1 request_id, 2 filter_subscribe_type, 10 pubsub_topic, 11 content_topics, repeated
    FilterSubscribeResponse  1 request_id, 10 status_code, 11 status_desc
    MessagePush              1 waku_message, 2 pubsub_topic

A request without a type is a ping, as in nwaku. nwaku's client demands fields 1 and 10 of an answer: both are always
written. It demands the pubsub topic of a push, and js-waku drops pushes without one.
"""

from dataclasses import dataclass
from enum import IntEnum

from mailserver.codec.protobuf import write_bytes, write_number
from mailserver.errors import DecodeError
from mailserver.ids.waku_message import MAX_MESSAGE_BYTES, WakuMessage, decode_message
from mailserver.waku2.fields import (
    CONTENT_TOPICS,
    PUBSUB_TOPIC,
    REQUEST_ID,
    STATUS_CODE,
    STATUS_DESC,
    message,
    read,
    uint32,
    write_text,
)

MAX_SUBSCRIBE_REQUEST_BYTES = 128 * 1024
"""100 content topics of 1,024 bytes. nwaku reads 1.5 MB, which no client of 100 topics needs."""

MAX_SUBSCRIBE_RESPONSE_BYTES = 8 * 1024

MAX_PUSH_BYTES = MAX_MESSAGE_BYTES + 1024


class FilterSubscribeType(IntEnum):
    """What a request asks for; the numbers on the wire."""

    SUBSCRIBER_PING = 0
    SUBSCRIBE = 1
    UNSUBSCRIBE = 2
    UNSUBSCRIBE_ALL = 3


_REQUEST = {
    1: REQUEST_ID,
    2: uint32("filter_subscribe_type"),
    10: PUBSUB_TOPIC,
    11: CONTENT_TOPICS,
}
_RESPONSE = {1: REQUEST_ID, 10: STATUS_CODE, 11: STATUS_DESC}
_PUSH = {1: message("waku_message", MAX_MESSAGE_BYTES), 2: PUBSUB_TOPIC}


@dataclass(frozen=True, slots=True)
class FilterSubscribeRequest:
    """Asks for messages of these content topics on a pubsub topic, or for no more of them, or whether any are asked."""

    request_id: str
    filter_subscribe_type: FilterSubscribeType = FilterSubscribeType.SUBSCRIBER_PING
    pubsub_topic: str | None = None
    content_topics: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """The protobuf form."""
        parts = [write_text(1, self.request_id)]
        if self.filter_subscribe_type:
            parts.append(write_number(2, self.filter_subscribe_type))
        if self.pubsub_topic is not None:
            parts.append(write_text(10, self.pubsub_topic))
        parts += [write_text(11, topic) for topic in self.content_topics]
        return b"".join(parts)


def decode_filter_subscribe_request(packet: bytes) -> FilterSubscribeRequest:
    """Decode the protobuf form.

    Raises:
        DecodeError: it has another form, an unknown type, or is beyond a bound.
    """
    fields = read(packet, _REQUEST)
    kind = fields.number("filter_subscribe_type") or 0
    try:
        subscribe_type = FilterSubscribeType(kind)
    except ValueError as error:
        raise DecodeError("filter_subscribe_type is unknown", got=kind) from error
    return FilterSubscribeRequest(
        fields.text("request_id") or "",
        subscribe_type,
        fields.text("pubsub_topic"),
        fields.texts("content_topics"),
    )


@dataclass(frozen=True, slots=True)
class FilterSubscribeResponse:
    """The answer: a `FilterStatus`, or a code that we do not know."""

    request_id: str
    status_code: int
    status_desc: str | None = None

    def encode(self) -> bytes:
        """The protobuf form."""
        parts = [write_text(1, self.request_id), write_number(10, self.status_code)]
        if self.status_desc is not None:
            parts.append(write_text(11, self.status_desc))
        return b"".join(parts)


def decode_filter_subscribe_response(packet: bytes) -> FilterSubscribeResponse:
    """Decode the protobuf form.

    Raises:
        DecodeError: it has another form, or is beyond a bound.
    """
    fields = read(packet, _RESPONSE)
    return FilterSubscribeResponse(
        fields.text("request_id") or "", fields.number("status_code") or 0, fields.text("status_desc")
    )


@dataclass(frozen=True, slots=True)
class MessagePush:
    """One message, and where it was received; None: whoever sent it did not say, though it should."""

    waku_message: WakuMessage
    pubsub_topic: str | None

    def encode(self) -> bytes:
        """The protobuf form."""
        message = self.waku_message.encode()
        return write_bytes(1, message) if self.pubsub_topic is None else encode_message_push(message, self.pubsub_topic)


def encode_message_push(message: bytes, pubsub_topic: str) -> bytes:
    """A MessagePush, from a message that is encoded already: it is the same for all who get it."""
    return write_bytes(1, message) + write_text(2, pubsub_topic)


def decode_message_push(packet: bytes) -> MessagePush:
    """Decode the protobuf form.

    Raises:
        DecodeError: it has another form, or is beyond a bound; or it has no message.
    """
    fields = read(packet, _PUSH)
    waku_message = fields.message("waku_message")
    if waku_message is None:
        raise DecodeError("waku_message is missing")
    return MessagePush(decode_message(waku_message), fields.text("pubsub_topic"))
