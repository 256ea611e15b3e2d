"""History archives in the form of the specification (61/STATUS "WakuMessageHistoryArchive").

1  version    1
2  metadata   see `metadata`
3  messages   repeated: 14/WAKU2-MESSAGE, sealed as it was sent
4  padding    as many zero bytes as make the whole a multiple of PIECE_BYTES
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mailserver.codec import varint
from mailserver.codec.protobuf import write_bytes, write_number
from mailserver.communities.formats import (
    PIECE_BYTES,
    CommunityMessage,
    EncodedArchive,
    EntryFields,
    HistoryArchive,
    TimeRange,
    chunks,
)
from mailserver.communities.metadata import LATEST_VERSION, MetadataForm, read_archive
from mailserver.errors import DecodeError
from mailserver.ids.envelopes import NS, message_of
from mailserver.ids.waku_message import WakuMessage, decode_message
from mailserver.waku.envelope import Envelope

_PADDING = 4


@dataclass(frozen=True, slots=True)
class SpecFormat:
    """The specification's format. Message hashes depend on the network topic (14/WAKU2-MESSAGE)."""

    network_topic: str

    @property
    def name(self) -> str:
        """See Format."""
        return "spec"

    def message(self, message: WakuMessage) -> CommunityMessage:
        """A message as it stands in a history archive."""
        return self._message(message, message.encode())

    def message_of(self, envelope: Envelope) -> CommunityMessage:
        """The message of an envelope, which stays sealed.

        Raises:
            NoId: it claims to have been created at or before the first second of 1970.
        """
        return self.message(message_of(envelope))

    def encode_archives(
        self, time_range: TimeRange, content_topics: Sequence[str], messages: Iterable[CommunityMessage]
    ) -> Iterator[EncodedArchive]:
        """See Format."""
        topics, made = tuple(sorted(set(content_topics))), 0
        begin = write_number(1, LATEST_VERSION) + write_bytes(2, _FORM.encode(time_range, topics))
        for chunk in chunks(time_range, topics, messages):
            yield self._encode(begin, time_range, topics, chunk)
            made += 1
        if not made:
            yield self._encode(begin, time_range, topics, [])

    def decode_archive(self, data: bytes, padding: int = 0) -> HistoryArchive:
        """See Format."""
        if padding:
            raise DecodeError("padding stands outside of a history archive", got=padding, limit=0)
        found = read_archive(data, padded=True)
        time_range, topics = _FORM.decode(found.data("metadata") or b"")
        messages = [self._message(decode_message(each), each) for each in found.all_data("messages")]
        return HistoryArchive(time_range, topics, tuple(messages))

    def encode_entry(self, fields: EntryFields) -> bytes:
        """See Format."""
        return _FORM.encode_entry(fields)

    def decode_entries(self, encoded: Iterable[bytes]) -> list[EntryFields]:
        """See Format."""
        return _FORM.decode_entries(encoded)

    def _message(self, message: WakuMessage, encoded: bytes) -> CommunityMessage:
        return CommunityMessage(
            message.timestamp or 0, message.hash(self.network_topic), message.content_topic, encoded
        )

    def _encode(
        self, begin: bytes, time_range: TimeRange, topics: tuple[str, ...], messages: list[CommunityMessage]
    ) -> EncodedArchive:
        parts = [begin, *(write_bytes(3, message.encoded) for message in messages)]
        parts.append(padding_field(sum(map(len, parts))))
        return EncodedArchive(time_range, topics, b"".join(parts), 0, len(messages))


def waku_message(message: CommunityMessage) -> WakuMessage:
    """What stands in a history archive of this format, as a message.

    Raises:
        DecodeError: it is of another format.
    """
    return decode_message(message.encoded)


def padding_field(length: int, piece_bytes: int = PIECE_BYTES) -> bytes:
    """The field that makes so many bytes a multiple of `piece_bytes`; nothing, if they are.

    The specification has the padding filled "until" the size is a multiple. This need not end: a field of bytes takes
    2 bytes more than it holds, or 3 from 128 bytes on, and so on; so no field has 1, 2, 130 or 16,387 bytes. If one of
    these is wanted, there is one piece more.
    """
    wanted = -length % piece_bytes
    while wanted:
        for size_bytes in range(1, varint_bytes(wanted) + 1):
            held = wanted - 1 - size_bytes
            if held > 0 and varint_bytes(held) == size_bytes:
                return write_bytes(_PADDING, bytes(held))
        wanted += piece_bytes
    return b""


def varint_bytes(value: int) -> int:
    """How many bytes a number takes."""
    return len(varint.encode(value))


def _encode_topic(content_topic: str) -> bytes:
    return content_topic.encode()


def _decode_topic(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise DecodeError("content topic is not UTF-8") from error


_FORM = MetadataForm(LATEST_VERSION, NS, PIECE_BYTES, _encode_topic, _decode_topic)
