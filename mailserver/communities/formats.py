"""What both formats of history archives have in common (61/STATUS-Community-History-Archives).

A history archive holds the messages of a community's channels in one range of time, and is padded to whole pieces of
the torrent. `spec_format` is the form of the specification, `deployed_format` that of status-go. Times are seconds
unless a name says otherwise; content topics are strings in both, those of Waku v1 `/waku/1/0x<topic>/rfc26`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from mailserver.errors import LocalProtocolError
from mailserver.ids.envelopes import NS

PIECE_BYTES = 102_400
"""Length of a torrent's pieces: 100 KiB, as deployed. The specification leaves it open."""

MAX_CHUNK_BYTES = 30_000_000
"""How many bytes of encoded messages one history archive holds. A range with more makes several."""

MAX_ARCHIVE_MESSAGES = 500_000
"""How many messages one holds: more than fit into MAX_CHUNK_BYTES of sealed ones."""

MAX_ENCODED_MESSAGE_BYTES = 2 * 1024 * 1024
"""How long an encoded message may be. An envelope has at most 1 MiB."""

MAX_ARCHIVE_BYTES = 1000 * PIECE_BYTES
"""How long one may be that we read: 102 MB. Deployed ones count only payloads and signers for their 30,000,000."""

MAX_TOPICS = 1000
"""How many content topics a history archive may list. Deployed communities have less than 50 channels."""

HASH_BYTES = 32


class TimeRange(NamedTuple):
    """The time from `lower` to `upper`, without `upper`: [lower, upper), in Unix seconds."""

    lower: int
    upper: int

    def has(self, timestamp_ns: int) -> bool:
        """Whether a time in Unix nanoseconds lies in it."""
        return self.lower * NS <= timestamp_ns < self.upper * NS

    def overlaps(self, other: "TimeRange") -> bool:
        """Whether some moment lies in both."""
        return self.lower < other.upper and other.lower < self.upper


class CommunityMessage(NamedTuple):
    """A message as it stands in a history archive.

    Messages sort by time, then by hash. `hash`: 32 bytes, the message hash of 14/WAKU2-MESSAGE, or in the deployed
    format the hash of the envelope. `encoded`: the message in the format's own protobuf form; each format has functions
    that make and read it.
    """

    timestamp_ns: int
    hash: bytes
    content_topic: str
    encoded: bytes


@dataclass(frozen=True, slots=True)
class HistoryArchive:
    """A decoded history archive. `content_topics`: of all channels, also of those without messages."""

    time_range: TimeRange
    content_topics: tuple[str, ...]
    messages: tuple[CommunityMessage, ...]


@dataclass(frozen=True, slots=True)
class EncodedArchive:
    """An encoded history archive, ready to be appended to `data`.

    `data`: whole pieces. `padding`: how many zero bytes at its end are outside of the encoded message (deployed format;
    0 in that of the specification, where padding is a field). `messages`: how many it holds.
    """

    time_range: TimeRange
    content_topics: tuple[str, ...]
    data: bytes
    padding: int
    messages: int


class EntryFields(NamedTuple):
    """What an index says of one history archive. `offset`, `size` and `padding` in bytes; see EncodedArchive."""

    time_range: TimeRange
    content_topics: tuple[str, ...]
    offset: int
    size: int
    padding: int


class Format(Protocol):
    """A format of history archives."""

    @property
    def name(self) -> str:
        """`spec` or `deployed`."""

    def encode_archives(
        self, time_range: TimeRange, content_topics: Sequence[str], messages: Iterable[CommunityMessage]
    ) -> Iterator[EncodedArchive]:
        """Encode the messages of a range, in as many history archives as MAX_CHUNK_BYTES asks for.

        The same arguments always give the same bytes. Of no messages, the specification's format makes one archive that
        says so, and the deployed format makes none.

        Args:
            content_topics: those of all channels, in any order.
            messages: each once, in ascending order.
        Raises:
            LocalProtocolError: a message is out of order or range, is of another topic, or too long; or there are more
                than MAX_TOPICS topics.
            DecodeError: a content topic is not of Waku v1 (deployed format).
        """

    def decode_archive(self, data: bytes, padding: int) -> HistoryArchive:
        """Decode one.

        Args:
            data: as EncodedArchive has it, padding included.
            padding: as the index says.
        Raises:
            DecodeError: it does not parse, its padding is not zero, or a bound is passed.
        """

    def encode_entry(self, fields: EntryFields) -> bytes:
        """Encode what an index says of an archive (WakuMessageArchiveIndexMetadata)."""

    def decode_entries(self, encoded: Iterable[bytes]) -> list[EntryFields]:
        """Decode many of them.

        Raises:
            DecodeError: one does not parse, or a bound is passed.
        """


def chunks(
    time_range: TimeRange, content_topics: Iterable[str], messages: Iterable[CommunityMessage]
) -> Iterator[list[CommunityMessage]]:
    """Cut the messages of a range into those of each history archive: see `Format.encode_archives`.

    Raises:
        LocalProtocolError: as there.
    """
    topics = frozenset(content_topics)
    if len(topics) > MAX_TOPICS:
        raise LocalProtocolError("a history archive lists more topics than are read")
    chunk, length, before = list[CommunityMessage](), 0, None
    for message in messages:
        if before is not None and message[:2] <= before[:2]:
            raise LocalProtocolError("messages of a history archive are not in ascending order")
        if not time_range.has(message.timestamp_ns) or message.content_topic not in topics:
            raise LocalProtocolError("a message of a history archive is of another range or topic")
        size = len(message.encoded)
        if size > MAX_ENCODED_MESSAGE_BYTES:
            raise LocalProtocolError("a message of a history archive is too long to be read")
        if length + size > MAX_CHUNK_BYTES or len(chunk) >= MAX_ARCHIVE_MESSAGES:
            yield chunk
            chunk, length = [], 0
        chunk.append(message)
        length += size
        before = message
    if chunk:
        yield chunk
