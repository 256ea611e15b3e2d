"""The protobuf messages in which both formats are alike, and what they differ in.

WakuMessageArchiveMetadata and WakuMessageArchiveIndexMetadata:

                                     specification             deployed
    1  version                       1                         absent
    2  from, 3 to                    nanoseconds               seconds
    4  contentTopic, repeated        strings                   topics of Waku v1, 4 bytes
    4  num_pieces, or size           how many pieces           bytes
    5  padding                       none                      bytes

"uint8", as the specification has it, is no type of protobuf: `version` is a varint. What is 0 or empty is left out, as
in every encoder of proto3. Ranges are half-open: `to` is the first moment that is no part of it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from mailserver.codec.protobuf import WireType, write_bytes, write_number
from mailserver.communities.formats import (
    MAX_ARCHIVE_BYTES,
    MAX_ARCHIVE_MESSAGES,
    MAX_ENCODED_MESSAGE_BYTES,
    MAX_TOPICS,
    PIECE_BYTES,
    EntryFields,
    TimeRange,
)
from mailserver.errors import DecodeError
from mailserver.ids.waku_message import MAX_CONTENT_TOPIC_BYTES
from mailserver.waku2 import fields
from mailserver.waku2.fields import MAX_U32, MAX_U64

LATEST_VERSION = 1
"""Of everything. status-go leaves it out, which reads as 0."""

MAX_SECOND = 2**33
"""The latest time of a range or message, in Unix seconds. In nanoseconds, it fits into 64 bits with sign."""

MAX_METADATA_BYTES = 1024 * 1024
MAX_DATA_BYTES = 2**46
"""The longest `data` of a community: 64 TiB."""


@dataclass(frozen=True, slots=True)
class MetadataForm:
    """How a format writes metadata.

    `version`: what it writes. `unit`: how many of its units a second has. `whole`: in
    how many bytes it counts sizes. `encode_topic` and `decode_topic` raise DecodeError for what the format cannot have.
    """

    version: int
    unit: int
    whole: int
    encode_topic: Callable[[str], bytes]
    decode_topic: Callable[[bytes], str]

    def encode(self, time_range: TimeRange, content_topics: tuple[str, ...]) -> bytes:
        """WakuMessageArchiveMetadata."""
        parts = [
            number(1, self.version),
            number(2, time_range.lower * self.unit),
            number(3, time_range.upper * self.unit),
            *(write_bytes(4, self.encode_topic(topic)) for topic in content_topics),
        ]
        return b"".join(parts)

    def decode(self, data: bytes) -> tuple[TimeRange, tuple[str, ...]]:
        """Read it: the range, and the content topics, each once: several chats of status-go may have the same.

        Raises:
            DecodeError: not protobuf, a later version, a range that is empty or not in whole seconds, a topic that the
                format cannot have, or a bound is passed.
        """
        return self._decode(data, {})

    def encode_entry(self, entry: EntryFields) -> bytes:
        """WakuMessageArchiveIndexMetadata."""
        parts = [
            number(1, self.version),
            write_bytes(2, self.encode(entry.time_range, entry.content_topics)),
            number(3, entry.offset),
            number(4, entry.size // self.whole),
            number(5, entry.padding),
        ]
        return b"".join(parts)

    def decode_entries(self, encoded: Iterable[bytes]) -> list[EntryFields]:
        """Read many of them.

        Raises:
            DecodeError: as `decode`.
        """
        known: dict[bytes, _Tail] = {}
        return [self._decode_entry(data, known) for data in encoded]

    def _decode_entry(self, data: bytes, known: dict[bytes, "_Tail"]) -> EntryFields:
        found = fields.read(data, _ENTRY)
        check_version(found)
        time_range, content_topics = self._decode(found.data("metadata") or b"", known)
        size = (found.number("size") or 0) * self.whole
        if not PIECE_BYTES <= size <= MAX_ARCHIVE_BYTES:
            raise DecodeError("size of a history archive is out of bounds", got=size, limit=MAX_ARCHIVE_BYTES)
        padding = (found.number("padding") or 0) if self.whole == 1 else 0
        if padding >= size:
            raise DecodeError("padding of a history archive is as long as itself", got=padding, limit=size)
        return EntryFields(time_range, content_topics, found.number("offset") or 0, size, padding)

    def _decode(self, data: bytes, known: dict[bytes, "_Tail"]) -> tuple[TimeRange, tuple[str, ...]]:
        # Nearly all entries of an index list the same topics, in the same bytes: these are read once.
        at = _end_of_numbers(data)
        head, tail = fields.read(data[:at], _METADATA), known.get(data[at:])
        if tail is None:
            read = fields.read(data[at:], _METADATA)
            topics = map(self.decode_topic, read.all_data("content_topic"))
            tail = known[data[at:]] = _Tail(read, tuple(dict.fromkeys(topics)))
        check_version(head)
        check_version(tail.read)
        lower, upper = self._second(_last("from", head, tail.read)), self._second(_last("to", head, tail.read))
        if lower >= upper:
            raise DecodeError("range of a history archive is empty", got=f"{lower} to {upper}")
        return TimeRange(lower, upper), tail.content_topics

    def _second(self, value: int) -> int:
        second, rest = divmod(value, self.unit)
        if rest:
            raise DecodeError("range of a history archive is not in whole seconds", got=value)
        if second > MAX_SECOND:
            raise DecodeError("range of a history archive is too late", got=second, limit=MAX_SECOND)
        return second


class _Tail(NamedTuple):
    """What follows the numbers with which metadata begins."""

    read: fields.Fields
    content_topics: tuple[str, ...]


def _last(name: str, head: fields.Fields, tail: fields.Fields) -> int:
    """A number: what comes twice counts as it comes last."""
    found = tail.number(name)
    return (head.number(name) if found is None else found) or 0


def _end_of_numbers(data: bytes) -> int:
    """Where the fields 1 to 3 end with which metadata begins, if they are numbers as they should be."""
    at = 0
    while at < len(data) and data[at] in _NUMBERS:
        at += 1
        while at < len(data) and data[at] >= 0x80:
            at += 1
        at += 1
    return at


def read_archive(data: bytes, *, padded: bool) -> fields.Fields:
    """Read a WakuMessageArchive, without what may follow it: `metadata`, and all `messages`.

    Args:
        padded: whether it has a field for padding, which is checked.
    Raises:
        DecodeError: not protobuf, a later version, its padding is not zero, or a bound is passed.
    """
    if len(data) > MAX_ARCHIVE_BYTES:
        raise DecodeError("history archive is too long", got=len(data), limit=MAX_ARCHIVE_BYTES)
    found = fields.read(data, _PADDED_ARCHIVE if padded else _ARCHIVE)
    check_version(found)
    for padding in found.all_data("padding"):
        check_zero(padding, 0)
    return found


def check_version(found: fields.Fields) -> None:
    """Check the version of what has been read.

    Raises:
        DecodeError: it is a later one.
    """
    version = found.number("version") or 0
    if version > LATEST_VERSION:
        raise DecodeError("version of a history archive is not known", got=version, limit=LATEST_VERSION)


def check_zero(data: bytes, at: int) -> None:
    """Check that all bytes from `at` on are zero.

    Raises:
        DecodeError: one is not.
    """
    if data.count(0, at) != len(data) - at:
        raise DecodeError("padding of a history archive is not zero")


def number(field_number: int, value: int) -> bytes:
    """A number that is left out if it is 0."""
    return write_number(field_number, value) if value else b""


def some_bytes(field_number: int, value: bytes) -> bytes:
    """Bytes that are left out if they are empty."""
    return write_bytes(field_number, value) if value else b""


_VERSION = fields.number("version", MAX_U32)

_NUMBERS = bytes(number << 3 | WireType.VARINT for number in (1, 2, 3))

_METADATA = {
    1: _VERSION,
    2: fields.number("from", MAX_U64),
    3: fields.number("to", MAX_U64),
    4: fields.data("content_topic", MAX_CONTENT_TOPIC_BYTES, MAX_TOPICS),
}

_ENTRY = {
    1: _VERSION,
    2: fields.data("metadata", MAX_METADATA_BYTES),
    3: fields.number("offset", MAX_DATA_BYTES),
    4: fields.number("size", MAX_ARCHIVE_BYTES),
    5: fields.number("padding", MAX_ARCHIVE_BYTES),
}

_ARCHIVE = {
    1: _VERSION,
    2: fields.data("metadata", MAX_METADATA_BYTES),
    3: fields.data("messages", MAX_ENCODED_MESSAGE_BYTES, MAX_ARCHIVE_MESSAGES),
}

_PADDED_ARCHIVE = _ARCHIVE | {4: fields.data("padding", MAX_ARCHIVE_BYTES, most_often=2)}
