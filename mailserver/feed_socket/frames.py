"""What goes over the feed socket, as bytes. No I/O.

A frame is a length (4 bytes, of what follows), a kind (1 byte) and a body; numbers are big-endian. The daemon says
HELLO first, and again whenever its terms have changed:

    HELLO      version (1), min_pow (8, a double), max_envelope_bytes (4), whether all topics are wanted (1),
               how many are, if not all (2), those (4 each), network topic (the rest, UTF-8)
    ENVELOPES  one or more of: hash (32), length (4), the envelope
    MISSED     how many envelopes, which came before the next ones (8); 0 if that is not known
    STORED     request id (8): the envelope that was posted under it is on disk
    REFUSED    request id (8), why (1)

The gateway says JOIN first, once, and then nothing but POST. So does the service for communities:

    JOIN       as what (1): 0 a gateway, which is sent what is live; 1 the service for communities, which only posts
    POST       request id (8), the envelope (the rest)
"""

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Generic, NamedTuple, TypeVar

from mailserver.errors import DecodeError
from mailserver.ids.muid import MAX_NETWORK_TOPIC_BYTES
from mailserver.waku.acceptance import MAX_ENVELOPE_BYTES, Verdict
from mailserver.waku.envelope import HASH_BYTES, TOPIC_BYTES, EnvelopeHash, Topic
from mailserver.waku.packets import MAX_TOPIC_INTEREST

FEED_FILE = "feed"
"""The name of the socket in the data directory."""

VERSION = 1

BATCH_BYTES = 64 * 1024
"""With the envelope that reaches this, a batch is full. It is less than the kernel holds for a socket."""

MAX_POSTS_AT_ONCE = 32
MAX_POSTED_BYTES_AT_ONCE = 2 * 1024 * 1024
"""How many envelopes of one gateway, and how many bytes of them, may wait for their answers. With the one that reaches
this, no more are read from the gateway. A commit takes some 5 ms, and stores all of them."""


class Kind(IntEnum):
    """What a frame is."""

    HELLO = 0x00
    ENVELOPES = 0x01
    MISSED = 0x02
    STORED = 0x03
    REFUSED = 0x04
    POST = 0x10
    JOIN = 0x11


class Role(Enum):
    """As what the other side joins."""

    GATEWAY = 0
    COMMUNITIES = 1


class PostRefusal(Enum):
    """Why a posted envelope was not stored. The value is the number on the wire."""

    MALFORMED = 0
    STORE_UNAVAILABLE = 1
    EXPIRED = 2
    VERY_OLD = 3
    FROM_THE_FUTURE = 4
    FORGED_TIME = 5
    OVERSIZE = 6
    LOW_POW = 7
    UNWANTED_TOPIC = 8
    TOPIC_LIMIT = 9

    @classmethod
    def of(cls, verdict: Verdict) -> "PostRefusal":
        """The refusal that a verdict leads to; not for ACCEPTED."""
        return cls[verdict.name]

    @property
    def text(self) -> str:
        """The same in words."""
        return _TEXTS[self] if self in _TEXTS else Verdict[self.name].value


_TEXTS = {
    PostRefusal.MALFORMED: "bytes are no envelope",
    PostRefusal.STORE_UNAVAILABLE: "the store could not take the envelope",
}


class FeedEnvelope(NamedTuple):
    """A live envelope: its bytes as received, and their Keccak-256."""

    hash: EnvelopeHash
    raw: bytes


@dataclass(frozen=True, slots=True)
class Terms:
    """What a gateway must know to post: an envelope has at least a proof of work of `min_pow`, one of `topics`, and at
    most `max_envelope_bytes`.

    `topics`: None for all. `network_topic`: the one to which message ids belong.
    """

    network_topic: str
    min_pow: float
    max_envelope_bytes: int
    topics: frozenset[Topic] | None


@dataclass(frozen=True, slots=True)
class Hello:
    """The daemon's first frame, and each that has new terms."""

    terms: Terms

    def encode(self) -> bytes:
        """The frame."""
        terms = self.terms
        topics = terms.topics
        listed = b"" if topics is None else _COUNT.pack(len(topics)) + b"".join(sorted(topics))
        head = _HELLO.pack(VERSION, terms.min_pow, terms.max_envelope_bytes, topics is None)
        return encode_frame(Kind.HELLO, head, listed, terms.network_topic.encode("utf-8", "surrogateescape"))


@dataclass(frozen=True, slots=True)
class Envelopes:
    """A batch of live envelopes, in the order in which they were accepted."""

    envelopes: tuple[FeedEnvelope, ...]

    def encode(self) -> bytes:
        """The frame."""
        parts = (part for hash_, raw in self.envelopes for part in (hash_, _LENGTH.pack(len(raw)), raw))
        return encode_frame(Kind.ENVELOPES, *parts)


@dataclass(frozen=True, slots=True)
class Missed:
    """The gateway was too slow, or the daemon did not hear of what other mailservers have stored: so many envelopes are
    left out between the last batch and the next; 0 if nobody knows how many."""

    count: int

    def encode(self) -> bytes:
        """The frame."""
        return encode_frame(Kind.MISSED, _NUMBER.pack(self.count))


@dataclass(frozen=True, slots=True)
class Stored:
    """A posted envelope is on disk."""

    request_id: int

    def encode(self) -> bytes:
        """The frame."""
        return encode_frame(Kind.STORED, _NUMBER.pack(self.request_id))


@dataclass(frozen=True, slots=True)
class Refused:
    """A posted envelope is not stored."""

    request_id: int
    refusal: PostRefusal

    def encode(self) -> bytes:
        """The frame."""
        return encode_frame(Kind.REFUSED, _REFUSED.pack(self.request_id, self.refusal.value))


@dataclass(frozen=True, slots=True)
class Post:
    """An envelope to store and relay. It need not be one: who gets it decodes it."""

    request_id: int
    raw: bytes

    def encode(self) -> bytes:
        """The frame."""
        return encode_frame(Kind.POST, _NUMBER.pack(self.request_id), self.raw)


@dataclass(frozen=True, slots=True)
class Join:
    """What the other side is."""

    role: Role

    def encode(self) -> bytes:
        """The frame."""
        return encode_frame(Kind.JOIN, bytes([self.role.value]))


Frame = Hello | Envelopes | Missed | Stored | Refused | Post | Join

_HEAD = struct.Struct(">I B")
_LENGTH = struct.Struct(">I")
_COUNT = struct.Struct(">H")
_NUMBER = struct.Struct(">Q")
_REFUSED = struct.Struct(">Q B")
_HELLO = struct.Struct(">B d I ?")
_EACH = HASH_BYTES + _LENGTH.size

MAX_BODY_BYTES = {
    Kind.HELLO: _HELLO.size + _COUNT.size + MAX_TOPIC_INTEREST * TOPIC_BYTES + MAX_NETWORK_TOPIC_BYTES,
    Kind.ENVELOPES: BATCH_BYTES + _EACH + MAX_ENVELOPE_BYTES,
    Kind.MISSED: _NUMBER.size,
    Kind.STORED: _NUMBER.size,
    Kind.REFUSED: _REFUSED.size,
    Kind.POST: _NUMBER.size + MAX_ENVELOPE_BYTES,
    Kind.JOIN: 1,
}
"""The longest body of each kind."""


def cut_batches(envelopes: Iterable[FeedEnvelope]) -> Iterator[Envelopes]:
    """Put envelopes, in their order, into batches of about BATCH_BYTES. No envelope is above MAX_ENVELOPE_BYTES."""
    batch: list[FeedEnvelope] = []
    size = 0
    for envelope in envelopes:
        batch.append(envelope)
        size += _EACH + len(envelope.raw)
        if size >= BATCH_BYTES:
            yield Envelopes(tuple(batch))
            batch, size = [], 0
    if batch:
        yield Envelopes(tuple(batch))


F = TypeVar("F")


class FrameKind(NamedTuple, Generic[F]):
    """How long the body of a kind of frame may be, and what decodes it, or raises DecodeError."""

    max_body_bytes: int
    decode: Callable[[bytes], F]


class FrameReader(Generic[F]):
    """Frames of the other side, out of bytes that come in pieces of any length."""

    def __init__(self, kinds: Mapping[int, FrameKind[F]]) -> None:
        """Begin before the first frame.

        Args:
            kinds: what the other side may send.
        """
        self._kinds = kinds
        self._data = bytearray()

    def receive_data(self, data: bytes) -> list[F]:
        """Take bytes; return the frames that end in them.

        Raises:
            DecodeError: a frame that the other side may not send, or one that is too long or wrong. The rest cannot be
                read.
        """
        self._data += data
        frames: list[F] = []
        at = 0
        while len(self._data) - at >= _HEAD.size:
            length, kind = _HEAD.unpack_from(self._data, at)
            known = self._kinds.get(kind)
            if known is None:
                raise DecodeError("frame is of an unknown kind", got=kind)
            if not 1 <= length <= 1 + known.max_body_bytes:
                raise DecodeError("frame is too long or too short", got=length, limit=1 + known.max_body_bytes)
            stop = at + _LENGTH.size + length
            if stop > len(self._data):
                break
            frames.append(known.decode(bytes(memoryview(self._data)[at + _HEAD.size : stop])))
            at = stop
        del self._data[:at]
        return frames


def encode_frame(kind: int, *parts: bytes) -> bytes:
    """A frame, of the parts of its body."""
    return b"".join((_HEAD.pack(1 + sum(map(len, parts)), kind), *parts))


def _decode_hello(body: bytes) -> Hello:
    if len(body) < _HELLO.size:
        raise DecodeError("HELLO is truncated", got=len(body))
    version, min_pow, max_envelope_bytes, wants_all = _HELLO.unpack_from(body)
    if version != VERSION:
        raise DecodeError("version of the feed socket is another one", got=version, limit=VERSION)
    if not (math.isfinite(min_pow) and min_pow >= 0):
        raise DecodeError("proof of work in HELLO is no number from 0", got=min_pow)
    if not 1 <= max_envelope_bytes <= MAX_ENVELOPE_BYTES:
        raise DecodeError("length in HELLO is out of range", got=max_envelope_bytes, limit=MAX_ENVELOPE_BYTES)
    at, topics = _HELLO.size, None
    if not wants_all:
        topics, at = _topics(body, at)
    name = body[at:]
    if not 1 <= len(name) <= MAX_NETWORK_TOPIC_BYTES:
        raise DecodeError("network topic has the wrong length", got=len(name), limit=MAX_NETWORK_TOPIC_BYTES)
    return Hello(Terms(name.decode("utf-8", "surrogateescape"), min_pow, max_envelope_bytes, topics))


def _topics(body: bytes, at: int) -> tuple[frozenset[Topic], int]:
    """Read the topics that are wanted; return them, and where they end."""
    start = at + _COUNT.size
    if start > len(body):
        raise DecodeError("HELLO is truncated", got=len(body))
    (count,) = _COUNT.unpack_from(body, at)
    stop = start + count * TOPIC_BYTES
    if count > MAX_TOPIC_INTEREST or stop > len(body):
        raise DecodeError("HELLO has too many topics, or too few", got=count, limit=MAX_TOPIC_INTEREST)
    return frozenset(Topic(body[each : each + TOPIC_BYTES]) for each in range(start, stop, TOPIC_BYTES)), stop


def _decode_envelopes(body: bytes) -> Envelopes:
    envelopes = []
    at = 0
    while at < len(body):
        start = at + _EACH
        if start > len(body):
            raise DecodeError("batch is truncated", got=len(body))
        (length,) = _LENGTH.unpack_from(body, at + HASH_BYTES)
        if length > len(body) - start:
            raise DecodeError("envelope in a batch is truncated", got=len(body) - start, limit=length)
        stop = start + length
        envelopes.append(FeedEnvelope(EnvelopeHash(body[at : at + HASH_BYTES]), body[start:stop]))
        at = stop
    if not envelopes:
        raise DecodeError("batch is empty")
    return Envelopes(tuple(envelopes))


def _decode_missed(body: bytes) -> Missed:
    return Missed(_number(body))


def _decode_stored(body: bytes) -> Stored:
    return Stored(_number(body))


def _number(body: bytes) -> int:
    if len(body) != _NUMBER.size:
        raise DecodeError("number has the wrong length", got=len(body), limit=_NUMBER.size)
    number: int
    (number,) = _NUMBER.unpack(body)
    return number


def _decode_refused(body: bytes) -> Refused:
    if len(body) != _REFUSED.size:
        raise DecodeError("REFUSED has the wrong length", got=len(body), limit=_REFUSED.size)
    request_id, code = _REFUSED.unpack(body)
    try:
        return Refused(request_id, PostRefusal(code))
    except ValueError as error:
        raise DecodeError("reason of a refusal is unknown", got=code) from error


def _decode_post(body: bytes) -> Post:
    if len(body) < _NUMBER.size:
        raise DecodeError("POST is truncated", got=len(body))
    return Post(_number(body[: _NUMBER.size]), body[_NUMBER.size :])


def _decode_join(body: bytes) -> Join:
    if not body:
        raise DecodeError("JOIN is truncated", got=0)
    try:
        return Join(Role(int.from_bytes(body)))
    except ValueError as error:
        raise DecodeError("role of who joins is unknown", got=int.from_bytes(body)) from error


_DECODERS: dict[Kind, Callable[[bytes], Frame]] = {
    Kind.HELLO: _decode_hello,
    Kind.ENVELOPES: _decode_envelopes,
    Kind.MISSED: _decode_missed,
    Kind.STORED: _decode_stored,
    Kind.REFUSED: _decode_refused,
    Kind.POST: _decode_post,
    Kind.JOIN: _decode_join,
}

OF_DAEMON: dict[int, FrameKind[Frame]] = {
    kind: FrameKind(MAX_BODY_BYTES[kind], _DECODERS[kind])
    for kind in (Kind.HELLO, Kind.ENVELOPES, Kind.MISSED, Kind.STORED, Kind.REFUSED)
}
OF_GATEWAY: dict[int, FrameKind[Frame]] = {
    kind: FrameKind(MAX_BODY_BYTES[kind], _DECODERS[kind]) for kind in (Kind.JOIN, Kind.POST)
}
"""Which frames each side sends."""
