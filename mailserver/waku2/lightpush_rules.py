"""Which messages of light clients are bridged to Waku v1, and what their senders are told.

A message is bridged if its content topic is that of a topic of v1 (23/WAKU2-TOPICS), on the network topic that is
served here. It needs a timestamp: without one, clients would not agree about its hash, and no store would have it. One
that is `ephemeral` is refused: it becomes an envelope like any other, and mailservers store those (14/WAKU2-MESSAGE: it
"SHOULD NOT" be stored). Meta of more than 64 bytes is refused before, by the decoder.
Spec: 19/WAKU2-LIGHTPUSH, 15/WAKU2-BRIDGE, 13/WAKU2-STORE "eligibility".
"""

from dataclasses import dataclass
from typing import NamedTuple

from mailserver.errors import DecodeError
from mailserver.ids.envelopes import NS, topic_of
from mailserver.ids.waku_message import WakuMessage
from mailserver.waku2.codes import LightPushStatus
from mailserver.waku2.lightpush import DEFAULT_MAX_MESSAGE_BYTES, LightPushResponse, PushResponse, PushRpc

MAX_TIMESTAMP_OFFSET_S = 20
"""How far a timestamp may be from our clock, either way. Stores MAY refuse what is further off (13/WAKU2-STORE)."""

RELAYED_TO = 1
"""What answers say of the peers that have got a message, at least: nwaku's client takes 0 as a failure."""


class LightPushVerdict(NamedTuple):
    """What became of a message: the code, and a text for its sender. The older protocol has only the text."""

    status: LightPushStatus
    text: str

    @property
    def is_success(self) -> bool:
        """Whether it was taken."""
        return self.status == LightPushStatus.OK

    def response(self, request_id: str, relay_peer_count: int = RELAYED_TO) -> LightPushResponse:
        """The answer of 3.0.0."""
        count = max(relay_peer_count, RELAYED_TO) if self.is_success else None
        return LightPushResponse(request_id, self.status, self.text, count)

    def push_rpc(self, request_id: str) -> PushRpc:
        """The answer of 2.0.0-beta1."""
        return PushRpc(request_id, response=PushResponse(self.is_success, self.text))


def verdict(status: LightPushStatus) -> LightPushVerdict:
    """A verdict with the text of its code."""
    return LightPushVerdict(status, status.text)


@dataclass(frozen=True, slots=True)
class LightPushRules:
    """What is bridged here."""

    network_topic: str
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES

    def judge(self, pubsub_topic: str | None, message: WakuMessage | None, now_ns: int) -> LightPushVerdict:
        """Say whether a message may be bridged: OK if it may.

        Args:
            pubsub_topic: None or empty: that to which the content topic belongs, which can only be ours.
            now_ns: Unix time in nanoseconds.
        """
        if message is None:
            return LightPushVerdict(LightPushStatus.BAD_REQUEST, "message is missing")
        if pubsub_topic and pubsub_topic != self.network_topic:
            return LightPushVerdict(
                LightPushStatus.UNSUPPORTED_PUBSUB_TOPIC, f"only {self.network_topic} is served here"
            )
        if len(message.encode()) > self.max_message_bytes:
            return LightPushVerdict(
                LightPushStatus.PAYLOAD_TOO_LARGE, f"the message has more than {self.max_message_bytes} bytes"
            )
        why = _fault(message, now_ns)
        return verdict(LightPushStatus.OK) if why is None else LightPushVerdict(LightPushStatus.INVALID_MESSAGE, why)


def _fault(message: WakuMessage, now_ns: int) -> str | None:
    """What of a message keeps it from being bridged, for its sender."""
    try:
        topic_of(message.content_topic)
    except DecodeError:
        return "only content topics /waku/1/0x<8 hex digits, in lower case>/rfc26 are bridged to Waku v1"
    if not message.timestamp:
        return "timestamp is not set"
    if abs(message.timestamp - now_ns) > MAX_TIMESTAMP_OFFSET_S * NS:
        return f"timestamp is more than {MAX_TIMESTAMP_OFFSET_S} s off"
    if message.ephemeral:
        return "ephemeral messages cannot be kept from being stored in Waku v1"
    return None
