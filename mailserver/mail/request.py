"""History requests in all their forms (8/WAKU-MAIL "Requesting Historic Envelopes", and deployed clients).

    in the clear     [id, lower, upper, limit, cursor, bloom, [topics]]     newer Go client
    in an envelope   [lower, upper, bloom, [topics], limit, cursor, batch]  deployed Go client
                     [lower, upper, bloom, limit, cursor, [topics]]         specification, Nim client

In an envelope the fourth element, a list or an integer, tells the two apart; trailing elements may be absent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, NewType

from mailserver.codec import rlp
from mailserver.codec.keccak import keccak256
from mailserver.errors import DecodeError, Rejection, RequestRejected
from mailserver.waku.bloom import BLOOM_BYTES, Interest, bloom_of
from mailserver.waku.envelope import HASH_BYTES, MAX_U32, TOPIC_BYTES, Envelope, EnvelopeHash, Topic, decode_envelope

RequestId = NewType("RequestId", bytes)
"""What an answer refers to, 32 bytes: Keccak-256 of the RLP of the request's envelope, or the id given in the clear."""

REQUEST_ID_BYTES = 32

UNSEALED_ID = RequestId(bytes(REQUEST_ID_BYTES))
"""Stands in a request that is still to be sealed: its id will be the hash of its envelope."""

CURSOR_BYTES = 4 + HASH_BYTES

MAX_REQUEST_TOPICS = 1000
"""Most topics in one request (8/WAKU-MAIL, ABNF of `topics`). Deployed clients ask for 10 at a time."""

OPEN_UPPER_AHEAD_S = 60
"""An `upper` of 0 means until now, plus this for clocks that run ahead."""

_CLEAR_FIELDS = 7
_ENVELOPE_FIELDS = 5
_MIN_SEALED_FIELDS = 4
_BATCH_FIELD = 6
_INTEGER_BYTES = 4
_MAX_ITEMS = 2 * MAX_REQUEST_TOPICS + 16


class Cursor(NamedTuple):
    """A place in the order (created, hash), newest first. What follows it is strictly below it."""

    created: int
    hash: EnvelopeHash

    def encode(self) -> bytes:
        """Encode created(4, big-endian) || hash(32)."""
        return self.created.to_bytes(4, "big") + self.hash

    @classmethod
    def decode(cls, data: bytes) -> "Cursor":
        """Decode 36 bytes.

        Raises:
            DecodeError: another length.
        """
        if len(data) != CURSOR_BYTES:
            raise DecodeError("cursor has the wrong length", got=len(data), limit=CURSOR_BYTES)
        return cls(int.from_bytes(data[:4], "big"), EnvelopeHash(data[4:]))


@dataclass(frozen=True, slots=True)
class MailRequest:
    """One history request: envelopes created from `lower` to `upper`, both inclusive, Unix seconds.

    `upper` and `limit` are as sent: 0 asks for the default. `one_per_packet`: the client takes only one
    envelope per P2P Message packet (batch = 0).
    """

    request_id: RequestId
    lower: int
    upper: int
    interest: Interest
    limit: int = 0
    cursor: Cursor | None = None
    one_per_packet: bool = False

    def bounds(self, now: int) -> tuple[int, int]:
        """Return the bounds with the default filled in.

        Args:
            now: Unix seconds.
        Raises:
            RequestRejected: the lower bound is above the upper.
        """
        upper = self.upper or min(now + OPEN_UPPER_AHEAD_S, MAX_U32)
        if self.lower > upper:
            raise RequestRejected(Rejection.BAD_RANGE, f"{self.lower} > {upper}")
        return self.lower, upper


@dataclass(frozen=True, slots=True)
class SealedRequest:
    """A request in an envelope, still to be opened; then `decode_fields` reads what is inside."""

    request_id: RequestId
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class ClearRequest:
    """A request in the clear: its fields, to be read by `decode_clear`."""

    request_id: RequestId
    fields: list[rlp.Item]


def decode_request(payload: bytes) -> SealedRequest | ClearRequest:
    """Tell which form the payload of P2P Request has.

    Raises:
        DecodeError: not RLP, or neither an envelope nor the clear form.
    """
    fields = rlp.decode(payload, max_items=_MAX_ITEMS)
    if isinstance(fields, list):
        first = fields[0] if fields else b""
        if len(fields) >= _CLEAR_FIELDS and isinstance(first, bytes) and len(first) == REQUEST_ID_BYTES:
            return ClearRequest(RequestId(first), fields)
        if len(fields) == _ENVELOPE_FIELDS:
            envelope = decode_envelope(payload)
            return SealedRequest(RequestId(envelope.hash()), envelope)
    raise DecodeError("P2P Request is neither an envelope nor a request in the clear")


def fallback_request_id(payload: bytes) -> RequestId:
    """The id for the answer to a request without a readable id: Keccak-256 of the payload of the packet."""
    return RequestId(keccak256(payload))


def decode_clear(request: ClearRequest) -> MailRequest:
    """Read a request in the clear.

    Raises:
        RequestRejected: a field is not what it should be.
    """
    _, lower, upper, limit, cursor, bloom, topics = request.fields[:_CLEAR_FIELDS]
    return _build(request.request_id, lower=lower, upper=upper, limit=limit, cursor=cursor, bloom=bloom, topics=topics)


def decode_fields(request_id: RequestId, plaintext: bytes) -> MailRequest:
    """Read the request inside an opened envelope, in the deployed form or the specification's.

    Raises:
        RequestRejected: it does not decode, or a field is not what it should be.
    """
    try:
        fields = rlp.decode_list(plaintext, max_items=_MAX_ITEMS)
    except DecodeError as error:
        raise RequestRejected(Rejection.MALFORMED, str(error)) from error
    if len(fields) < _MIN_SEALED_FIELDS:
        raise RequestRejected(Rejection.MALFORMED, f"{len(fields)} fields")
    lower, upper, bloom, fourth = fields[:_MIN_SEALED_FIELDS]
    rest = [*fields[_MIN_SEALED_FIELDS:], *[b""] * 3]
    if isinstance(fourth, list):
        limit, cursor, batch = rest[:3]
        return _build(
            request_id,
            lower=lower,
            upper=upper,
            limit=limit,
            cursor=cursor,
            bloom=bloom,
            topics=fourth,
            one_per_packet=len(fields) > _BATCH_FIELD and batch in (b"", b"\x00"),
        )
    cursor, topics = rest[:2]
    return _build(request_id, lower=lower, upper=upper, limit=fourth, cursor=cursor, bloom=bloom, topics=topics or [])


def encode_fields(request: MailRequest) -> bytes:
    """Encode what goes into the envelope, in the deployed form."""
    bloom, topics = _encode_interest(request.interest)
    return rlp.encode(
        [
            rlp.encode_uint(request.lower),
            rlp.encode_uint(request.upper),
            bloom,
            topics,
            rlp.encode_uint(request.limit),
            request.cursor.encode() if request.cursor else b"",
            rlp.encode_uint(not request.one_per_packet),
        ]
    )


def _encode_interest(interest: Interest) -> tuple[bytes, Sequence[bytes]]:
    if interest.topics is None:
        return interest.bloom, []
    return bloom_of(interest.topics), sorted(interest.topics)


def _build(
    request_id: RequestId,
    *,
    lower: rlp.Item,
    upper: rlp.Item,
    limit: rlp.Item,
    cursor: rlp.Item,
    bloom: rlp.Item,
    topics: rlp.Item,
    one_per_packet: bool = False,
) -> MailRequest:
    try:
        return MailRequest(
            request_id,
            lower=_uint(lower),
            upper=_uint(upper),
            interest=_interest(topics, bloom),
            limit=_uint(limit),
            cursor=_cursor(cursor),
            one_per_packet=one_per_packet,
        )
    except DecodeError as error:
        raise RequestRejected(Rejection.MALFORMED, str(error)) from error


def _uint(item: rlp.Item) -> int:
    """An integer of at most 4 bytes, leading zeros allowed: the specification writes fields of 4 octets."""
    data = rlp.as_bytes(item)
    if len(data) > _INTEGER_BYTES:
        raise DecodeError("integer of a request is too long", got=len(data), limit=_INTEGER_BYTES)
    return int.from_bytes(data, "big")


def _cursor(item: rlp.Item) -> Cursor | None:
    if not item:  # empty, or null as the specification allows
        return None
    try:
        return Cursor.decode(rlp.as_bytes(item))
    except DecodeError as error:
        raise RequestRejected(Rejection.BAD_CURSOR, str(error)) from error


def _interest(topics: rlp.Item, bloom: rlp.Item) -> Interest:
    """The topics if there are any, whatever the bloom filter is; else the bloom filter."""
    wanted = rlp.as_list(topics)
    if len(wanted) > MAX_REQUEST_TOPICS:
        raise RequestRejected(Rejection.TOO_MANY_TOPICS, f"{len(wanted)} > {MAX_REQUEST_TOPICS}")
    if wanted:
        if not all(isinstance(topic, bytes) and len(topic) == TOPIC_BYTES for topic in wanted):
            raise RequestRejected(Rejection.BAD_TOPIC)
        return Interest(topics=frozenset(Topic(rlp.as_bytes(topic)) for topic in wanted))
    bloom = rlp.as_bytes(bloom)
    if not bloom:
        raise RequestRejected(Rejection.EMPTY_FILTER)
    if len(bloom) != BLOOM_BYTES:
        raise RequestRejected(Rejection.BAD_BLOOM, f"{len(bloom)} bytes")
    return Interest(bloom=bloom)
