"""Four ways to fill the `meta` of a v2 message, with what each gives and costs. Envelopes have their own: `envelopes`.

              bytes  unique                            sorts by       says to all who see an id
    timestamp 8      unless two messages share a ns    nanoseconds    when it was made
    ULID      16     80 random bits in a millisecond   milliseconds   when it was made
    UUID      16     122 random bits                   nothing        nothing
    encrypted 32     as its content is                 nothing        nothing, without the key

A time in an id tells anybody when somebody was active, and over many messages who talks with whom. Two messages that
have one meta and one payload are one message, and the second is lost: so whoever makes meta must never repeat it.
Spec: codex-pm, ADR 0001, "Example message metadata schemas".
"""

from typing import NamedTuple
from uuid import RFC_4122, UUID

from mailserver.codec.aes import siv_open, siv_seal
from mailserver.errors import DecodeError

MAX_NS = (1 << 63) - 1
"""Timestamps are int64."""

MAX_MS = (1 << 48) - 1

TIMESTAMP_META_BYTES = 8
ULID_BYTES = 16
ULID_RANDOM_BYTES = 10
UUID_BYTES = 16
UUID_VERSION = 4
META_KEY_BYTES = 64
INFO_BYTES = 16
ENCRYPTED_META_BYTES = 32


class Ulid(NamedTuple):
    """What a ULID says: Unix time in milliseconds, and 10 random bytes."""

    milliseconds: int
    randomness: bytes


def timestamp_meta(nanoseconds: int) -> bytes:
    """Make meta of a time: int64, big-endian.

    For: simple, and fast; sorts to the nanosecond. Against: two messages of one nanosecond, or of a coarse clock, with
    one payload are one message; everybody sees when it was made.

    Args:
        nanoseconds: Unix time, from 0 to MAX_NS.
    """
    _within(nanoseconds, MAX_NS)
    return nanoseconds.to_bytes(TIMESTAMP_META_BYTES, "big")


def read_timestamp_meta(meta: bytes) -> int:
    """The Unix time in nanoseconds.

    Raises:
        DecodeError: not 8 bytes, or above MAX_NS.
    """
    _length(meta, TIMESTAMP_META_BYTES)
    nanoseconds = int.from_bytes(meta, "big")
    if nanoseconds > MAX_NS:
        raise DecodeError("time is beyond 63 bits", got=nanoseconds, limit=MAX_NS)
    return nanoseconds


def ulid_meta(milliseconds: int, randomness: bytes) -> bytes:
    """Make meta of a time and randomness: a ULID in its binary form, 48 and 80 bits, big-endian.

    For: never the same twice; sorts to the millisecond. Against: everybody sees when it was made.

    Args:
        milliseconds: Unix time, from 0 to MAX_MS.
        randomness: 10 random bytes.
    Spec: github.com/ulid/spec, "Binary Layout and Byte Order".
    """
    _within(milliseconds, MAX_MS)
    _exact(randomness, ULID_RANDOM_BYTES)
    return milliseconds.to_bytes(ULID_BYTES - ULID_RANDOM_BYTES, "big") + randomness


def read_ulid_meta(meta: bytes) -> Ulid:
    """The time and the randomness.

    Raises:
        DecodeError: not 16 bytes.
    """
    _length(meta, ULID_BYTES)
    return Ulid(int.from_bytes(meta[:-ULID_RANDOM_BYTES], "big"), meta[-ULID_RANDOM_BYTES:])


def uuid_meta(randomness: bytes) -> bytes:
    """Make meta of randomness alone: a UUID of version 4.

    For: never the same twice, and says nothing. Against: sorts by nothing, so a client finds its own messages only by
    the ids that it has kept.

    Args:
        randomness: 16 random bytes, of which 122 bits are used.
    Spec: RFC 9562, section 5.4.
    """
    _exact(randomness, UUID_BYTES)
    return UUID(bytes=randomness, version=UUID_VERSION).bytes


def read_uuid_meta(meta: bytes) -> UUID:
    """The UUID.

    Raises:
        DecodeError: not 16 bytes, or not of version 4.
    """
    _length(meta, UUID_BYTES)
    found = UUID(bytes=meta)
    if found.variant != RFC_4122 or found.version != UUID_VERSION:
        raise DecodeError("UUID is not of version 4", got=found)
    return found


def encrypted_meta(key: bytes, content_topic: str, info: bytes) -> bytes:
    """Make meta that only those who have a key can read: AES-SIV of 16 bytes, bound to the content topic.

    For: looks random, and yet says what its makers want to find again; nothing links two messages. Against: sorts by
    nothing; whoever looks for messages must try the key on each id.

    The specification names Noise sessions, and leaves it at that. 32 bytes have no room for a nonce and a tag beside
    what they should say. AES-SIV needs no nonce: its tag serves as one. So the same info gives the same meta.

    Args:
        key: 64 bytes that are used for nothing else. Whoever has it can read and make meta.
        info: 16 bytes, never twice under one key, such as a time and a counter, or a sender's number and a counter.
    Spec: RFC 5297.
    """
    _exact(key, META_KEY_BYTES)
    _exact(info, INFO_BYTES)
    return siv_seal(key, info, content_topic.encode())


def read_encrypted_meta(key: bytes, content_topic: str, meta: bytes) -> bytes:
    """The info: 16 bytes.

    Raises:
        DecodeError: not 32 bytes, or made with another key or for another content topic: not ours.
    """
    _length(meta, ENCRYPTED_META_BYTES)
    return siv_open(key, meta, content_topic.encode())


def _within(value: int, most: int) -> None:
    if not 0 <= value <= most:
        raise ValueError(f"{value} is not between 0 and {most}")


def _exact(given: bytes, length: int) -> None:
    if len(given) != length:
        raise ValueError(f"{len(given)} bytes instead of {length}")


def _length(meta: bytes, length: int) -> None:
    if len(meta) != length:
        raise DecodeError("meta has another length", got=len(meta), limit=length)
