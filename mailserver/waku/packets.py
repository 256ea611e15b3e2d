"""Packet codes and the payloads that are not envelopes (6/WAKU1 "Packet Codes", "Status", confirmations)."""

import math
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

from mailserver.codec import rlp
from mailserver.errors import DecodeError
from mailserver.waku.bloom import FULL_INTEREST, Interest, PackedTopics, check_bloom
from mailserver.waku.envelope import HASH_BYTES, TOPIC_BYTES, EnvelopeHash, Topic

MAX_TOPIC_INTEREST = 10_000
"""Most topics in a topic interest (6/WAKU1 "Topic Interest Field")."""

MAX_UNPACKED_TOPICS = 256
"""If a peer has more topics, they are kept packed. Unpacked, 10,000 topics of each of 500 peers would take 450 MB."""

MAX_STATUS_OPTIONS = 64
"""Most options in a Status or a Status Update. 7 are known, each once; the rest are for later specifications, whose
options are ignored. 20 kB of tiny ones would take longer to look at than 10,000 topics."""

MAX_PACKET_BYTES = 1024 * 1024
"""The longest payload that we send: deployed clients disconnect if it is longer."""

MAX_RECEIVED_PACKET_BYTES = 1536 * 1024
"""The longest payload that we accept: the 1.5 MB of 6/WAKU1 "Maximum Packet Size"."""

MAX_LONG_PACKET_BYTES = 16 * 1024 * 1024
"""The same for a packet of a named peer: as much as RLPx allows a message to inflate to. A Go node sends its whole pool
in one packet to each peer that connects."""

DEFAULT_POW_REQUIREMENT = 0.001
"""What a Status without a PoW requirement means."""

_U64_BYTES = 8
_T = TypeVar("_T")


class PacketCode(IntEnum):
    """6/WAKU1 "Packet Codes" and 8/WAKU-MAIL; the numbers on the wire, decimal."""

    STATUS = 0
    MESSAGES = 1
    BATCH_ACKNOWLEDGED = 11
    MESSAGE_RESPONSE = 12
    STATUS_UPDATE = 22
    P2P_REQUEST_COMPLETE = 125
    P2P_REQUEST = 126
    P2P_MESSAGE = 127


PACKET_CODE_COUNT = 128
"""How many message ids the capability takes."""


class StatusKey(IntEnum):
    """Keys of the association list in Status and Status Update."""

    POW_REQUIREMENT = 0
    BLOOM_FILTER = 1
    LIGHT_NODE = 2
    CONFIRMATIONS = 3
    PACKET_RATE_LIMITS = 4
    TOPIC_INTEREST = 5
    BYTE_RATE_LIMITS = 6


class RateLimits(NamedTuple):
    """Limits per second by IP address, peer id and topic; 0 is no limit. All three are always sent."""

    ip: int = 0
    peer: int = 0
    topic: int = 0


NO_RATE_LIMITS = RateLimits()
"""What a Status without rate limits means."""


@dataclass(frozen=True, slots=True)
class StatusOptions:
    """What one Status or Status Update says; None where the key is absent.

    `bloom` is 64 bytes, `topic_interest` at most MAX_TOPIC_INTEREST topics.
    """

    pow_requirement: float | None = None
    bloom: bytes | None = None
    light_node: bool | None = None
    confirmations: bool | None = None
    packet_rate_limits: RateLimits | None = None
    topic_interest: frozenset[Topic] | None = None
    byte_rate_limits: RateLimits | None = None

    def encode(self) -> bytes:
        """Encode `[[key, value], ...]` in ascending order of the keys.

        Deployed clients stop reading at a key they do not know: the later a key was added, the higher it is.
        """
        pairs: list[tuple[StatusKey, rlp.Encodable]] = []
        if self.pow_requirement is not None:
            bits = int.from_bytes(struct.pack(">d", abs(self.pow_requirement)), "big")  # -0.0 would be no PoW to read
            pairs.append((StatusKey.POW_REQUIREMENT, rlp.encode_uint(bits)))
        if self.bloom is not None:
            pairs.append((StatusKey.BLOOM_FILTER, self.bloom))
        if self.light_node is not None:
            pairs.append((StatusKey.LIGHT_NODE, rlp.encode_uint(self.light_node)))
        if self.confirmations is not None:
            pairs.append((StatusKey.CONFIRMATIONS, rlp.encode_uint(self.confirmations)))
        if self.packet_rate_limits is not None:
            limits = [rlp.encode_uint(limit) for limit in self.packet_rate_limits]
            pairs.append((StatusKey.PACKET_RATE_LIMITS, limits))
        if self.topic_interest is not None:
            pairs.append((StatusKey.TOPIC_INTEREST, sorted(self.topic_interest)))
        if self.byte_rate_limits is not None:
            limits = [rlp.encode_uint(limit) for limit in self.byte_rate_limits]
            pairs.append((StatusKey.BYTE_RATE_LIMITS, limits))
        return rlp.encode([[rlp.encode_uint(key), value] for key, value in pairs])

    def since(self, previous: "StatusOptions") -> "StatusOptions":
        """Return what has changed since `previous`: a Status Update has nothing else (6/WAKU1 "Status Update").

        Both must be complete: all numbers, and either a bloom filter or topics. If one has topics and the other a bloom
        filter, that is a change: each discards the other at the peer.
        """
        pairs = ((name, getattr(self, name), getattr(previous, name)) for name in self.__slots__)
        return StatusOptions(**{name: value for name, value, before in pairs if value != before})

    @classmethod
    def decode(cls, payload: bytes) -> "StatusOptions":
        """Decode the payload of Status or Status Update; unknown keys are ignored, of a repeated one the last counts.

        Raises:
            DecodeError: not a list of pairs, more than MAX_STATUS_OPTIONS, or the value of a known key is invalid.
        """
        _check_count(payload)
        values: dict[str, Any] = {}
        for item in rlp.decode_list(payload):
            pair = rlp.as_list(item)
            if len(pair) < 2:
                raise DecodeError("status option is not a pair", got=len(pair), limit=2)
            key, value = rlp.as_bytes(pair[0]), pair[1]
            if len(key) > 1 or key == b"\x00":  # no known key is so long, or has a leading zero
                continue
            match int.from_bytes(key, "big"):
                case StatusKey.POW_REQUIREMENT:
                    values["pow_requirement"] = _decode_pow(value)
                case StatusKey.BLOOM_FILTER:
                    values["bloom"] = check_bloom(rlp.as_bytes(value))
                case StatusKey.LIGHT_NODE:
                    values["light_node"] = _decode_bool(value)
                case StatusKey.CONFIRMATIONS:
                    values["confirmations"] = _decode_bool(value)
                case StatusKey.PACKET_RATE_LIMITS:
                    values["packet_rate_limits"] = _decode_limits(value)
                case StatusKey.TOPIC_INTEREST:
                    values["topic_interest"] = _decode_interest(value)
                case StatusKey.BYTE_RATE_LIMITS:
                    values["byte_rate_limits"] = _decode_limits(value)
        return cls(**values)


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """What holds for a peer after its Status and every Status Update. The defaults are those of an empty Status."""

    pow_requirement: float = DEFAULT_POW_REQUIREMENT
    interest: Interest = FULL_INTEREST
    light_node: bool = False
    confirmations: bool = False
    packet_rate_limits: RateLimits = NO_RATE_LIMITS
    byte_rate_limits: RateLimits = NO_RATE_LIMITS

    def updated(self, options: StatusOptions) -> "PeerSettings":
        """Apply a Status or Status Update. What is absent stays; a bloom alone discards the topics, and the reverse."""
        interest = self.interest
        topics = options.topic_interest
        if topics is not None:
            interest = Interest(topics=PackedTopics(topics) if len(topics) > MAX_UNPACKED_TOPICS else topics)
        elif options.bloom is not None:
            interest = Interest(bloom=options.bloom)
        return PeerSettings(
            pow_requirement=_given(options.pow_requirement, self.pow_requirement),
            interest=interest,
            light_node=_given(options.light_node, self.light_node),
            confirmations=_given(options.confirmations, self.confirmations),
            packet_rate_limits=_given(options.packet_rate_limits, self.packet_rate_limits),
            byte_rate_limits=_given(options.byte_rate_limits, self.byte_rate_limits),
        )


class EnvelopeErrorCode(IntEnum):
    """Why an envelope was refused, in Message Response. Deployed Go nodes send 21 for both."""

    TIME_SYNC = 1
    INVALID = 2


_DEPLOYED_TIME_SYNC = 21


class EnvelopeError(NamedTuple):
    """One refused envelope of a confirmed packet."""

    hash: EnvelopeHash
    code: int
    description: str


MESSAGE_RESPONSE_VERSION = 1

_NO_ERRORS_HEAD, _NO_ERRORS_TAIL = b"\xe4\x01\xe2\xa0", b"\xc0"
"""The bytes around the hash if no envelope was refused: headers of lists of 36 and 34 bytes, and an empty list."""


class MessageResponse(NamedTuple):
    """Which envelopes of a Messages packet were refused; none if `errors` is empty.

    `batch_hash` is Keccak-256 of that packet's payload. It is a tuple, which is made faster: each packet has one.
    """

    batch_hash: bytes
    errors: tuple[EnvelopeError, ...] = ()

    def encode(self) -> bytes:
        """Encode `[1, [batch-hash, [[envelope-hash, code, description], ...]]]`."""
        if not self.errors and len(self.batch_hash) == HASH_BYTES:  # nearly always; this takes a tenth of the time
            return b"".join((_NO_ERRORS_HEAD, self.batch_hash, _NO_ERRORS_TAIL))
        around: dict[tuple[int, str], tuple[bytes, bytes]] = {}  # nearly all of them say the same
        encoded: list[bytes] = []
        for hash_, code, description in self.errors:
            head, tail = around.get((code, description)) or around.setdefault(
                (code, description), _around_hash(code, description)
            )
            encoded += (head, hash_, tail)
        items = b"".join(encoded)
        batch = rlp.encode(self.batch_hash) + rlp.list_prefix(len(items)) + items
        body = rlp.encode(rlp.encode_uint(MESSAGE_RESPONSE_VERSION)) + rlp.list_prefix(len(batch)) + batch
        return rlp.list_prefix(len(body)) + body

    @classmethod
    def decode(cls, payload: bytes) -> "MessageResponse | None":
        """Decode a response; None if its version is not 1, as the form of others is unknown.

        Raises:
            DecodeError: the payload has another form.
        """
        fields = rlp.decode_list(payload)
        if len(fields) < 2:
            raise DecodeError("message response has too few elements", got=len(fields), limit=2)
        if rlp.as_uint(fields[0], _U64_BYTES) != MESSAGE_RESPONSE_VERSION:
            return None
        response = rlp.as_list(fields[1])
        if len(response) < 2:
            raise DecodeError("message response has too few elements", got=len(response), limit=2)
        errors = tuple(_decode_error(item) for item in rlp.as_list(response[1]))
        return cls(rlp.as_bytes(response[0], HASH_BYTES), errors)


def encode_batch_acknowledged(batch_hash: bytes) -> bytes:
    """Encode the deployed form: the 32-byte hash as a bare string."""
    return rlp.encode(batch_hash)


def decode_batch_acknowledged(payload: bytes) -> bytes:
    """Decode the batch hash, from the bare string or the list `[version, hash]`.

    Raises:
        DecodeError: the payload has another form.
    """
    item = rlp.decode(payload)
    if isinstance(item, list):
        if len(item) < 2:
            raise DecodeError("batch acknowledgement has too few elements", got=len(item), limit=2)
        item = item[1]
    return rlp.as_bytes(item, HASH_BYTES)


def _around_hash(code: int, description: str) -> tuple[bytes, bytes]:
    """What stands before and after the 32 bytes of the hash in an encoded error."""
    tail = rlp.encode(rlp.encode_uint(code)) + rlp.encode(description.encode())
    return rlp.list_prefix(1 + HASH_BYTES + len(tail)) + bytes((0x80 + HASH_BYTES,)), tail


def _decode_error(item: rlp.Item) -> EnvelopeError:
    fields = rlp.as_list(item)
    if len(fields) < 3:
        raise DecodeError("envelope error has too few elements", got=len(fields), limit=3)
    code = rlp.as_uint(fields[1], _U64_BYTES)
    return EnvelopeError(
        EnvelopeHash(rlp.as_bytes(fields[0], HASH_BYTES)),
        EnvelopeErrorCode.TIME_SYNC if code == _DEPLOYED_TIME_SYNC else code,
        rlp.as_bytes(fields[2]).decode("utf-8", "replace"),
    )


def _check_count(payload: bytes) -> None:
    """Check how many options there are, before any of them is read."""
    _, at, end = rlp.header(payload, 0, len(payload))
    count = 0
    while at < end:
        count += 1
        if count > MAX_STATUS_OPTIONS:
            raise DecodeError("status has too many options", limit=MAX_STATUS_OPTIONS)
        at = rlp.header(payload, at, end)[2]


def _decode_pow(value: rlp.Item) -> float:
    bits = rlp.as_uint(value, _U64_BYTES)
    (requirement,) = struct.unpack(">d", bits.to_bytes(_U64_BYTES, "big"))
    if not isinstance(requirement, float) or not math.isfinite(requirement) or math.copysign(1, requirement) < 0:
        raise DecodeError("PoW requirement is not a finite number from 0 on", got=requirement)
    return requirement


def _decode_bool(value: rlp.Item) -> bool:
    number = rlp.as_uint(value, 1)
    if number > 1:
        raise DecodeError("boolean is neither 0 nor 1", got=number)
    return bool(number)


def _decode_limits(value: rlp.Item) -> RateLimits:
    limits = rlp.as_list(value)
    if len(limits) < len(RateLimits._fields):
        raise DecodeError("rate limits are fewer than three numbers", got=len(limits), limit=3)
    return RateLimits(*(rlp.as_uint(limit, _U64_BYTES) for limit in limits[: len(RateLimits._fields)]))


def _decode_interest(value: rlp.Item) -> frozenset[Topic]:
    topics = rlp.as_list(value)
    if len(topics) > MAX_TOPIC_INTEREST:
        raise DecodeError("topic interest is too long", got=len(topics), limit=MAX_TOPIC_INTEREST)
    return frozenset(Topic(rlp.as_bytes(topic, TOPIC_BYTES)) for topic in topics)


def _given(value: _T | None, otherwise: _T) -> _T:
    return otherwise if value is None else value
