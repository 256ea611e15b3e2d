"""The message of Waku v2: its protobuf form, and its hash (14/WAKU2-MESSAGE; waku-proto, message/v1).

    no  name              type                what is refused
    1   payload           bytes               a message without it, as nwaku does
    2   content_topic     string              a message without it, as nwaku does
    3   version           optional uint32
    10  timestamp         optional sint64     Unix time in nanoseconds
    11  meta              optional bytes      more than 64 bytes
    21  rate_limit_proof  optional bytes      more than 4 KiB
    31  ephemeral         optional bool

As in the decoders that are deployed, unknown fields are skipped, among them those of another wire type; if a field
comes twice, the last one counts; of a version the low 32 bits are taken; and `ephemeral` is any number but 0.
"""

from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import NewType

from mailserver.codec.protobuf import WireType, read_fields, unzigzag, write_bytes, write_number, zigzag
from mailserver.errors import DecodeError

MessageHash = NewType("MessageHash", bytes)
"""SHA-256 of a message's attributes: 32 bytes. Store v3 and all clients of v2 name messages by it."""

MESSAGE_HASH_BYTES = 32

MAX_MESSAGE_BYTES = 1024 * 1024 + 256
"""The longest message that is read: the longest envelope in this form. nwaku by default relays 150 KiB."""

MAX_CONTENT_TOPIC_BYTES = 1024
"""In UTF-8. The specification has no limit; deployed topics have less than 100."""

MAX_META_BYTES = 64
MAX_RATE_LIMIT_PROOF_BYTES = 4096

MAX_FIELDS = 64
"""Fields of a message, those included that are not known or come twice. No message has more than the seven below; one
of MAX_MESSAGE_BYTES could have half a million, which would take half a second to read."""

FIELDS_KEPT = 1024
"""How many content topics, and how many timestamps, are remembered as they are encoded: up to 2 MB. Envelopes that were
created in the same second have the same timestamp, and to encode it takes as long as all other fields."""

_KINDS = {
    1: ("payload", WireType.LENGTH_DELIMITED, MAX_MESSAGE_BYTES),
    2: ("content_topic", WireType.LENGTH_DELIMITED, MAX_CONTENT_TOPIC_BYTES),
    3: ("version", WireType.VARINT, 2**32 - 1),
    10: ("timestamp", WireType.VARINT, 2**64 - 1),
    11: ("meta", WireType.LENGTH_DELIMITED, MAX_META_BYTES),
    21: ("rate_limit_proof", WireType.LENGTH_DELIMITED, MAX_RATE_LIMIT_PROOF_BYTES),
    31: ("ephemeral", WireType.VARINT, 2**64 - 1),
}
"""Name, wire type, and the bits that are taken of a number, or the greatest length."""


@dataclass(frozen=True, slots=True)
class WakuMessage:
    """A message of Waku v2. What is None is absent; `timestamp` is Unix time in nanoseconds."""

    payload: bytes
    content_topic: str
    version: int | None = None
    timestamp: int | None = None
    meta: bytes = b""
    rate_limit_proof: bytes | None = None
    ephemeral: bool | None = None

    def encode(self) -> bytes:
        """The protobuf form, its fields in the order of their numbers. Empty payloads are written, too: see above."""
        parts = [write_bytes(1, self.payload), _content_topic_field(self.content_topic)]
        if self.version is not None:
            parts.append(write_number(3, self.version))
        if self.timestamp is not None:
            parts.append(_timestamp_field(self.timestamp))
        if self.meta:
            parts.append(write_bytes(11, self.meta))
        if self.rate_limit_proof is not None:
            parts.append(write_bytes(21, self.rate_limit_proof))
        if self.ephemeral is not None:
            parts.append(write_number(31, self.ephemeral))
        return b"".join(parts)

    def hash(self, network_topic: str) -> MessageHash:
        """SHA-256(network topic || payload || content topic || meta || timestamp as 8 bytes, big-endian).

        What is absent is left out, but for the timestamp: without one, this is 8 zero bytes, as nwaku has it. js-waku
        leaves out a timestamp of 0. So no message of ours is without one, or has 0.
        Spec: 14/WAKU2-MESSAGE "Deterministic message hashing".
        """
        time = (self.timestamp or 0).to_bytes(8, "big", signed=True)
        parts = network_topic.encode(), self.payload, self.content_topic.encode(), self.meta, time
        return MessageHash(sha256(b"".join(parts)).digest())


@lru_cache(maxsize=FIELDS_KEPT)
def _content_topic_field(content_topic: str) -> bytes:
    return write_bytes(2, content_topic.encode())


@lru_cache(maxsize=FIELDS_KEPT)
def _timestamp_field(timestamp: int) -> bytes:
    return write_number(10, zigzag(timestamp))


def decode_message(data: bytes) -> WakuMessage:
    """Decode the protobuf form.

    Raises:
        DecodeError: not protobuf, longer than MAX_MESSAGE_BYTES, more than MAX_FIELDS, a field too long, payload or
            content topic missing, or the latter not UTF-8.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        raise DecodeError("message is too long", got=len(data), limit=MAX_MESSAGE_BYTES)
    numbers: dict[str, int] = {}
    texts: dict[str, bytes] = {}
    for number, wire_type, value in read_fields(data, MAX_FIELDS):
        if number not in _KINDS:
            continue
        name, expected, most = _KINDS[number]
        if wire_type is not expected:
            continue
        if isinstance(value, int):
            numbers[name] = value & most
        else:
            if len(value) > most:
                raise DecodeError(f"{name} is too long", got=len(value), limit=most)
            texts[name] = value
    for name in ("payload", "content_topic"):
        if name not in texts:
            raise DecodeError(f"{name} is missing")
    try:
        content_topic = texts["content_topic"].decode()
    except UnicodeDecodeError as error:
        raise DecodeError("content_topic is not UTF-8") from error
    return WakuMessage(
        texts["payload"],
        content_topic,
        version=numbers.get("version"),
        timestamp=unzigzag(numbers["timestamp"]) if "timestamp" in numbers else None,
        meta=texts.get("meta", b""),
        rate_limit_proof=texts.get("rate_limit_proof"),
        ephemeral=bool(numbers["ephemeral"]) if "ephemeral" in numbers else None,
    )
