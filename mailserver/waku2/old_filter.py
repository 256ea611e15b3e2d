"""The packets of the old filter 2.0.0-beta1 (12/WAKU2-FILTER; waku-proto, filter/v1).

    FilterRPC      1 requestId, 2 request, 3 push
    FilterRequest  1 subscribe, 2 topic, 3 contentFilters, repeated: { 1 contentTopic }
    MessagePush    1 messages, repeated

Everything is in a FilterRPC, whichever side sends it. A request has no answer.
"""

from dataclasses import dataclass

from mailserver.codec.protobuf import write_bytes, write_number
from mailserver.ids.muid import MAX_NETWORK_TOPIC_BYTES
from mailserver.ids.waku_message import MAX_CONTENT_TOPIC_BYTES, MAX_MESSAGE_BYTES, WakuMessage, decode_message
from mailserver.waku2.fields import MAX_READ_TOPICS, MAX_REQUEST_ID_BYTES, boolean, data, message, read, write_text

MAX_OLD_REQUEST_BYTES = 128 * 1024
"""Of a FilterRPC that a client sends: as many content topics as in filter-subscribe."""

MAX_OLD_PUSH_BYTES = MAX_MESSAGE_BYTES + 1024
"""Of a FilterRPC that a client reads."""

MAX_PUSHED_MESSAGES = 100
"""Read of one push. We send one message a push."""

MAX_OTHER_FILTER_FIELDS = 4
"""Fields of a content filter that are not known, or come twice: a request may have MAX_READ_TOPICS of these."""

_FILTER_BYTES = MAX_CONTENT_TOPIC_BYTES + 16
_RPC = {
    1: data("requestId", MAX_REQUEST_ID_BYTES),
    2: message("request", MAX_OLD_REQUEST_BYTES),
    3: message("push", MAX_OLD_PUSH_BYTES),
}
_REQUEST = {
    1: boolean("subscribe"),
    2: data("topic", MAX_NETWORK_TOPIC_BYTES),
    3: data("contentFilters", _FILTER_BYTES, MAX_READ_TOPICS),
}
_CONTENT_FILTER = {1: data("contentTopic", MAX_CONTENT_TOPIC_BYTES)}
_PUSH = {1: data("messages", MAX_MESSAGE_BYTES, MAX_PUSHED_MESSAGES)}


@dataclass(frozen=True, slots=True)
class FilterRequest:
    """Asks for messages, or for no more of them. An empty `topic` is any; no `content_topics` are any, too."""

    subscribe: bool
    topic: str = ""
    content_topics: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """The protobuf form."""
        parts = [write_number(1, self.subscribe)]
        if self.topic:
            parts.append(write_text(2, self.topic))
        parts += [write_bytes(3, write_text(1, topic)) for topic in self.content_topics]
        return b"".join(parts)


@dataclass(frozen=True, slots=True)
class OldMessagePush:
    """Messages that matched the FilterRequest whose id stands beside them."""

    messages: tuple[WakuMessage, ...]

    def encode(self) -> bytes:
        """The protobuf form."""
        return b"".join(write_bytes(1, message.encode()) for message in self.messages)


@dataclass(frozen=True, slots=True)
class FilterRpc:
    """What goes over a stream, either way: a request, or a push."""

    request_id: str
    request: FilterRequest | None = None
    push: OldMessagePush | None = None

    def encode(self) -> bytes:
        """The protobuf form."""
        parts = [write_text(1, self.request_id)]
        if self.request is not None:
            parts.append(write_bytes(2, self.request.encode()))
        if self.push is not None:
            parts.append(write_bytes(3, self.push.encode()))
        return b"".join(parts)


def encode_old_push(message: bytes) -> bytes:
    """What a FilterRPC that pushes one message has behind the id: it is the same for all who get that."""
    return write_bytes(3, write_bytes(1, message))


def encode_pushing_rpc(request_id: str, old_push: bytes) -> bytes:
    """A FilterRPC that pushes what `encode_old_push` has made."""
    return write_text(1, request_id) + old_push


def decode_filter_rpc(packet: bytes) -> FilterRpc:
    """Decode the protobuf form.

    Raises:
        DecodeError: it has another form, or is beyond a bound.
    """
    fields = read(packet, _RPC)
    request, push = fields.message("request"), fields.message("push")
    return FilterRpc(
        fields.text("requestId") or "",
        None if request is None else _decode_request(request),
        None if push is None else _decode_push(push),
    )


def _decode_request(packet: bytes) -> FilterRequest:
    fields = read(packet, _REQUEST)
    filters = [read(each, _CONTENT_FILTER, MAX_OTHER_FILTER_FIELDS) for each in fields.all_data("contentFilters")]
    topics = tuple(each.text("contentTopic") or "" for each in filters)
    return FilterRequest(fields.flag("subscribe"), fields.text("topic") or "", topics)


def _decode_push(packet: bytes) -> OldMessagePush:
    return OldMessagePush(tuple(decode_message(each) for each in read(packet, _PUSH).all_data("messages")))
