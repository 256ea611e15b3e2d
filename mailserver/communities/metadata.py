"""WakuMessageArchiveMetadata and WakuMessageArchiveIndexMetadata, in which both formats are alike.

                                     specification             deployed
    1  version                       1                         absent
    2  from, 3 to                    nanoseconds               seconds
    4  contentTopic, repeated        strings                   topics of Waku v1, 4 bytes
    4  num_pieces, or size           how many pieces           bytes
    5  padding                       none                      bytes

"uint8", as the specification has it, is no type of protobuf: `version` is a varint. What is 0 or empty is left out, as
in every encoder of proto3. Ranges are half-open: `to` is the first moment that is no part of it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from mailserver.codec.protobuf import write_bytes, write_number
from mailserver.communities.formats import MAX_ARCHIVE_PIECES, MAX_TOPICS, PIECE_BYTES, EntryFields, TimeRange
from mailserver.errors import DecodeError
from mailserver.ids.waku_message import MAX_CONTENT_TOPIC_BYTES
from mailserver.waku2 import fields
from mailserver.waku2.fields import MAX_U32, MAX_U64

MAX_SECOND = 2**33
"""The latest time of a range or message, in Unix seconds. In nanoseconds, it fits into 64 bits with sign."""

MAX_METADATA_BYTES = 1024 * 1024
MAX_DATA_BYTES = 2**46
"""The longest `data` of a community: 64 TiB."""


@dataclass(frozen=True, slots=True)
class MetadataForm:
    """How a format writes metadata.

    `version`: what it writes, and the highest that it reads. `unit`: how many of its units a second has. `whole`: in
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
        """Read it: the range, and the content topics.

        Raises:
            DecodeError: not protobuf, a later version, a range that is empty or not in whole seconds, a topic that the
                format cannot have, or a bound is passed.
        """
        found = fields.read(data, _METADATA)
        self.check_version(found)
        lower, upper = (self._second(found.number(name) or 0) for name in ("from", "to"))
        if lower >= upper:
            raise DecodeError("range of a history archive is empty", got=f"{lower} to {upper}")
        return TimeRange(lower, upper), tuple(map(self.decode_topic, found.all_data("content_topic")))

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

    def decode_entry(self, data: bytes) -> EntryFields:
        """Read it.

        Raises:
            DecodeError: as `decode`.
        """
        found = fields.read(data, _ENTRY)
        self.check_version(found)
        time_range, content_topics = self.decode(found.data("metadata") or b"")
        size = (found.number("size") or 0) * self.whole
        if not 0 < size <= MAX_ARCHIVE_PIECES * PIECE_BYTES:
            raise DecodeError("size of a history archive is out of bounds", got=size, limit=MAX_ARCHIVE_PIECES)
        padding = (found.number("padding") or 0) if self.whole == 1 else 0
        if padding >= size:
            raise DecodeError("padding of a history archive is as long as itself", got=padding, limit=size)
        return EntryFields(time_range, content_topics, found.number("offset") or 0, size, padding)

    def check_version(self, found: fields.Fields) -> None:
        """Check the version of what has been read.

        Raises:
            DecodeError: it is a later one.
        """
        version = found.number("version") or 0
        if version > self.version:
            raise DecodeError("version of a history archive is not known", got=version, limit=self.version)

    def _second(self, value: int) -> int:
        second, rest = divmod(value, self.unit)
        if rest:
            raise DecodeError("range of a history archive is not in whole seconds", got=value)
        if second > MAX_SECOND:
            raise DecodeError("range of a history archive is too late", got=second, limit=MAX_SECOND)
        return second


def number(field_number: int, value: int) -> bytes:
    """A number that is left out if it is 0."""
    return write_number(field_number, value) if value else b""


def some_bytes(field_number: int, value: bytes) -> bytes:
    """Bytes that are left out if they are empty."""
    return write_bytes(field_number, value) if value else b""


VERSION = fields.number("version", MAX_U32)

_METADATA = {
    1: VERSION,
    2: fields.number("from", MAX_U64),
    3: fields.number("to", MAX_U64),
    4: fields.data("content_topic", MAX_CONTENT_TOPIC_BYTES, MAX_TOPICS),
}

_ENTRY = {
    1: VERSION,
    2: fields.data("metadata", MAX_METADATA_BYTES),
    3: fields.number("offset", MAX_DATA_BYTES),
    4: fields.number("size", MAX_ARCHIVE_PIECES * PIECE_BYTES),
    5: fields.number("padding", MAX_ARCHIVE_PIECES * PIECE_BYTES),
}
