"""The packets of lightpush 3.0.0 and 2.0.0-beta1 (19/WAKU2-LIGHTPUSH; waku-proto, lightpush).

    3.0.0        LightPushRequest   1 request_id, 20 pubsub_topic, 21 message
                 LightPushResponse  1 request_id, 10 status_code, 11 status_desc, 12 relay_peer_count
    2.0.0-beta1  PushRpc            1 request_id, 2 request, 3 response
                 PushRequest        1 pubsub_topic, 2 message
                 PushResponse       1 is_success, 2 info

nwaku's client demands fields 1 and 10 of a LightPushResponse, 1 of a PushRpc and 1 of a PushResponse: they are always
written.
"""

from dataclasses import dataclass

from mailserver.codec.protobuf import write_bytes, write_number
from mailserver.ids.waku_message import WakuMessage, decode_message
from mailserver.waku2.fields import (
    MAX_STATUS_TEXT_BYTES,
    MESSAGE,
    PUBSUB_TOPIC,
    REQUEST_ID,
    STATUS_CODE,
    STATUS_DESC,
    boolean,
    data,
    message,
    read,
    uint32,
    write_text,
)

DEFAULT_MAX_MESSAGE_BYTES = 150 * 1024
"""Of the protobuf form of a message that is sent: what nwaku relays by default."""

MAX_LIGHTPUSH_REQUEST_BYTES = DEFAULT_MAX_MESSAGE_BYTES + 64 * 1024
"""As nwaku. A message that is a little too long is answered with 413; the stream of a longer request is reset."""

MAX_LIGHTPUSH_RESPONSE_BYTES = 8 * 1024

_REQUEST = {1: REQUEST_ID, 20: PUBSUB_TOPIC, 21: MESSAGE}
_RESPONSE = {1: REQUEST_ID, 10: STATUS_CODE, 11: STATUS_DESC, 12: uint32("relay_peer_count")}
_PUSH_RPC = {
    1: REQUEST_ID,
    2: message("request", MAX_LIGHTPUSH_REQUEST_BYTES),
    3: message("response", MAX_LIGHTPUSH_RESPONSE_BYTES),
}
_PUSH_REQUEST = {1: PUBSUB_TOPIC, 2: MESSAGE}
_PUSH_RESPONSE = {1: boolean("is_success"), 2: data("info", MAX_STATUS_TEXT_BYTES)}


@dataclass(frozen=True, slots=True)
class LightPushRequest:
    """Asks to publish a message. No pubsub topic: that to which the content topic belongs. No message: malformed."""

    request_id: str
    pubsub_topic: str | None
    message: WakuMessage | None

    def encode(self) -> bytes:
        """The protobuf form."""
        parts = [write_text(1, self.request_id)]
        if self.pubsub_topic is not None:
            parts.append(write_text(20, self.pubsub_topic))
        if self.message is not None:
            parts.append(write_bytes(21, self.message.encode()))
        return b"".join(parts)


def decode_light_push_request(packet: bytes) -> LightPushRequest:
    """Decode the protobuf form.

    Raises:
        DecodeError: it has another form, or is beyond a bound.
    """
    fields = read(packet, _REQUEST)
    return LightPushRequest(
        fields.text("request_id") or "", fields.text("pubsub_topic"), _message(fields.message("message"))
    )


@dataclass(frozen=True, slots=True)
class LightPushResponse:
    """The answer: a `LightPushStatus`, or a code that we do not know. `relay_peer_count`: who has got the message."""

    request_id: str
    status_code: int
    status_desc: str | None = None
    relay_peer_count: int | None = None

    def encode(self) -> bytes:
        """The protobuf form."""
        parts = [write_text(1, self.request_id), write_number(10, self.status_code)]
        if self.status_desc is not None:
            parts.append(write_text(11, self.status_desc))
        if self.relay_peer_count is not None:
            parts.append(write_number(12, self.relay_peer_count))
        return b"".join(parts)


def decode_light_push_response(packet: bytes) -> LightPushResponse:
    """Decode the protobuf form.

    Raises:
        DecodeError: it has another form, or is beyond a bound.
    """
    fields = read(packet, _RESPONSE)
    return LightPushResponse(
        fields.text("request_id") or "",
        fields.number("status_code") or 0,
        fields.text("status_desc"),
        fields.number("relay_peer_count"),
    )


@dataclass(frozen=True, slots=True)
class PushRequest:
    """The request of 2.0.0-beta1. An empty pubsub topic is none."""

    pubsub_topic: str
    message: WakuMessage | None

    def encode(self) -> bytes:
        """The protobuf form."""
        message = b"" if self.message is None else write_bytes(2, self.message.encode())
        return write_text(1, self.pubsub_topic) + message


@dataclass(frozen=True, slots=True)
class PushResponse:
    """The answer of 2.0.0-beta1. `info`: for people, or None."""

    is_success: bool
    info: str | None = None

    def encode(self) -> bytes:
        """The protobuf form."""
        return write_number(1, self.is_success) + (b"" if self.info is None else write_text(2, self.info))


@dataclass(frozen=True, slots=True)
class PushRpc:
    """What goes over a stream of 2.0.0-beta1, either way."""

    request_id: str
    request: PushRequest | None = None
    response: PushResponse | None = None

    def encode(self) -> bytes:
        """The protobuf form."""
        parts = [write_text(1, self.request_id)]
        if self.request is not None:
            parts.append(write_bytes(2, self.request.encode()))
        if self.response is not None:
            parts.append(write_bytes(3, self.response.encode()))
        return b"".join(parts)


def decode_push_rpc(packet: bytes) -> PushRpc:
    """Decode the protobuf form.

    Raises:
        DecodeError: it has another form, or is beyond a bound.
    """
    fields = read(packet, _PUSH_RPC)
    request, response = fields.message("request"), fields.message("response")
    return PushRpc(
        fields.text("request_id") or "",
        None if request is None else _decode_request(request),
        None if response is None else _decode_response(response),
    )


def _decode_request(packet: bytes) -> PushRequest:
    fields = read(packet, _PUSH_REQUEST)
    return PushRequest(fields.text("pubsub_topic") or "", _message(fields.message("message")))


def _decode_response(packet: bytes) -> PushResponse:
    fields = read(packet, _PUSH_RESPONSE)
    return PushResponse(fields.flag("is_success"), fields.text("info"))


def _message(found: bytes | None) -> WakuMessage | None:
    return None if found is None else decode_message(found)
