"""What several workers on a store in a file say to the one that writes it, as bytes. No I/O.

Frames are those of `feed_socket.frames`. The writer sends ENVELOPES, MISSED and STORED as it does to gateways, and

    NOT_STORED   request id (8), why (the rest, UTF-8)

A worker says

    PUT          request id (8), source (8, 0 for the worker itself), whether they are live (1), then each envelope:
                 received (8), created (8), topic (4), hash (32), length (4), the envelope. Without any: commit a change
                 without content.
    INDEX        request id (8), 0 or up to which row the message ids are to be indexed anew (8). STORED comes as soon
                 as more of them may be indexed.

Both are the same program, so there are no versions.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from mailserver.errors import DecodeError
from mailserver.feed_socket.frames import (
    OF_DAEMON,
    Envelopes,
    Frame,
    FrameKind,
    Kind,
    Missed,
    Stored,
    encode_frame,
)
from mailserver.store.interface import NewEnvelope
from mailserver.waku.acceptance import MAX_ENVELOPE_BYTES
from mailserver.waku.envelope import HASH_BYTES, TOPIC_BYTES, EnvelopeHash, Topic

WORKERS_FILE = "workers"
"""The name of the socket in the data directory."""

PUT_BYTES = 256 * 1024
"""With the envelope that reaches this, a PUT is full. A packet that is longer goes into several."""

MAX_CAUSE_BYTES = 1024


class WorkerKind(IntEnum):
    """What a frame is, besides those of the feed."""

    NOT_STORED = 0x20
    PUT = 0x21
    INDEX = 0x22


@dataclass(frozen=True, slots=True)
class NotStored:
    """What was asked for was not done: `cause` is one line for the operator."""

    request_id: int
    cause: str

    def encode(self) -> bytes:
        """The frame."""
        cause = self.cause.encode("utf-8", "surrogateescape")[:MAX_CAUSE_BYTES]
        return encode_frame(WorkerKind.NOT_STORED, _NUMBER.pack(self.request_id), cause)


@dataclass(frozen=True, slots=True)
class Put:
    """Envelopes to store, of a source of the worker; none: is anything stored at present?"""

    request_id: int
    source: int
    is_live: bool
    envelopes: tuple[NewEnvelope, ...]

    def encode(self) -> bytes:
        """The frame."""
        parts = (
            part
            for received, created, topic, hash_, raw in self.envelopes
            for part in (_EACH.pack(received, created, topic, hash_, len(raw)), raw)
        )
        return encode_frame(WorkerKind.PUT, _PUT.pack(self.request_id, self.source, self.is_live), *parts)


@dataclass(frozen=True, slots=True)
class Index:
    """Say when more message ids may be indexed; first index all anew, if those up to row `anew_until` are."""

    request_id: int
    anew_until: int = 0

    def encode(self) -> bytes:
        """The frame."""
        return encode_frame(WorkerKind.INDEX, _INDEX.pack(self.request_id, self.anew_until))


OfWriter = Envelopes | Missed | Stored | NotStored
OfWorker = Put | Index

_NUMBER = struct.Struct(">Q")
_PUT = struct.Struct(">Q Q ?")
_INDEX = struct.Struct(">Q Q")
_EACH = struct.Struct(f">q q {TOPIC_BYTES}s {HASH_BYTES}s I")


def cut_puts(envelopes: Sequence[NewEnvelope]) -> Iterator[tuple[NewEnvelope, ...]]:
    """Put envelopes, in their order, into parts of about PUT_BYTES. No envelope is above MAX_ENVELOPE_BYTES."""
    part: list[NewEnvelope] = []
    size = 0
    for envelope in envelopes:
        part.append(envelope)
        size += _EACH.size + len(envelope.raw)
        if size >= PUT_BYTES:
            yield tuple(part)
            part, size = [], 0
    if part:
        yield tuple(part)


def _decode_put(body: bytes) -> OfWorker:
    if len(body) < _PUT.size:
        raise DecodeError("PUT is truncated", got=len(body))
    request_id, source, is_live = _PUT.unpack_from(body)
    envelopes = []
    at = _PUT.size
    while at < len(body):
        start = at + _EACH.size
        if start > len(body):
            raise DecodeError("PUT is truncated", got=len(body))
        received, created, topic, hash_, length = _EACH.unpack_from(body, at)
        if length > len(body) - start:
            raise DecodeError("envelope in a PUT is truncated", got=len(body) - start, limit=length)
        at = start + length
        envelopes.append(NewEnvelope(received, created, Topic(topic), EnvelopeHash(hash_), body[start:at]))
    return Put(request_id, source, is_live, tuple(envelopes))


def _decode_index(body: bytes) -> OfWorker:
    if len(body) != _INDEX.size:
        raise DecodeError("INDEX has the wrong length", got=len(body), limit=_INDEX.size)
    return Index(*_INDEX.unpack(body))


def _decode_not_stored(body: bytes) -> Frame | NotStored:
    if len(body) < _NUMBER.size:
        raise DecodeError("NOT_STORED is truncated", got=len(body))
    (request_id,) = _NUMBER.unpack_from(body)
    return NotStored(request_id, body[_NUMBER.size :].decode("utf-8", "surrogateescape"))


OF_WRITER: dict[int, FrameKind[Frame | NotStored]] = {
    **{kind: FrameKind(*OF_DAEMON[kind]) for kind in (Kind.ENVELOPES, Kind.MISSED, Kind.STORED)},
    WorkerKind.NOT_STORED: FrameKind(_NUMBER.size + MAX_CAUSE_BYTES, _decode_not_stored),
}
OF_WORKER: dict[int, FrameKind[OfWorker]] = {
    WorkerKind.PUT: FrameKind(_PUT.size + PUT_BYTES + _EACH.size + MAX_ENVELOPE_BYTES, _decode_put),
    WorkerKind.INDEX: FrameKind(_INDEX.size, _decode_index),
}
"""Which frames each side sends."""
