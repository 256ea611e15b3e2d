"""History archives as status-go makes and reads them (its `communities.proto`).

    1  version    absent
    2  metadata   see `metadata`
    3  messages   repeated: its own WakuMessage, which holds the opened payload and its signer
    then, outside of the message: zero bytes up to a multiple of PIECE_BYTES

To make these, the control node must have the keys of the channels. Times are seconds, topics those of Waku v1.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mailserver.codec.keccak import keccak256
from mailserver.codec.protobuf import write_bytes
from mailserver.communities.formats import (
    HASH_BYTES,
    PIECE_BYTES,
    CommunityMessage,
    EncodedArchive,
    EntryFields,
    HistoryArchive,
    TimeRange,
    chunks,
)
from mailserver.communities.metadata import MAX_SECOND, MetadataForm, check_zero, number, read_archive, some_bytes
from mailserver.errors import DecodeError
from mailserver.ids.envelopes import NS, content_topic_of, topic_of
from mailserver.ids.waku_message import MAX_MESSAGE_BYTES
from mailserver.waku.envelope import TOPIC_BYTES, Envelope, Topic
from mailserver.waku.payload import OpenedPayload, open_symmetric
from mailserver.waku2 import fields

_UNCOMPRESSED = b"\x04"
SIG_BYTES = 65
MAX_THIRD_PARTY_ID_BYTES = 1024


@dataclass(frozen=True, slots=True)
class DeployedMessage:
    """A WakuMessage of status-go.

    `sig`: the public key of the one who signed the payload, with 0x04 in front, 65 bytes, or empty. `timestamp`: when
    the envelope was created, Unix seconds. `hash`: of the envelope, 32 bytes. `third_party_id`: of a message that was
    imported from another service, else empty.
    """

    sig: bytes
    timestamp: int
    topic: Topic
    payload: bytes
    padding: bytes
    hash: bytes
    third_party_id: str = ""

    def encode(self) -> bytes:
        """The protobuf form."""
        parts = (
            some_bytes(1, self.sig),
            number(2, self.timestamp),
            some_bytes(3, self.topic),
            some_bytes(4, self.payload),
            some_bytes(5, self.padding),
            some_bytes(6, self.hash),
            some_bytes(7, self.third_party_id.encode()),
        )
        return b"".join(parts)


_MESSAGE = {
    1: fields.data("sig", SIG_BYTES),
    2: fields.number("timestamp", MAX_SECOND),
    3: fields.data("topic", TOPIC_BYTES),
    4: fields.data("payload", MAX_MESSAGE_BYTES),
    5: fields.data("padding", MAX_MESSAGE_BYTES),
    6: fields.data("hash", HASH_BYTES),
    7: fields.data("third_party_id", MAX_THIRD_PARTY_ID_BYTES),
}


def decode_message(data: bytes) -> DeployedMessage:
    """Read a WakuMessage of status-go.

    Raises:
        DecodeError: not protobuf, a field of another type, too long or too large, or a topic that is not 4 bytes.
    """
    found = fields.read(data, _MESSAGE)
    topic = found.data("topic") or b""
    if len(topic) != TOPIC_BYTES:
        raise DecodeError("topic of a message is not 4 bytes", got=len(topic))
    return DeployedMessage(
        found.data("sig") or b"",
        found.number("timestamp") or 0,
        Topic(topic),
        found.data("payload") or b"",
        found.data("padding") or b"",
        found.data("hash") or b"",
        found.text("third_party_id") or "",
    )


def opened_by_one_of(keys: Iterable[bytes], envelope: Envelope) -> OpenedPayload | None:
    """What the first of these keys that fits opens; None if the envelope is somebody else's, on the same topic."""
    for key in keys:
        with contextlib.suppress(DecodeError):
            return open_symmetric(envelope.data, key)
    return None


def message_of(envelope: Envelope, opened: OpenedPayload) -> CommunityMessage:
    """The message of an envelope that the channel's key has opened."""
    sig = b"" if opened.signer is None else _UNCOMPRESSED + opened.signer
    return message(
        DeployedMessage(sig, envelope.created, envelope.topic, opened.payload, opened.padding, envelope.hash())
    )


def message(deployed: DeployedMessage) -> CommunityMessage:
    """A message as it stands in a history archive."""
    return _message(deployed, deployed.encode())


def deployed_message(of: CommunityMessage) -> DeployedMessage:
    """What stands in a history archive of this format.

    Raises:
        DecodeError: it is of another format.
    """
    return decode_message(of.encoded)


@dataclass(frozen=True, slots=True)
class DeployedFormat:
    """The format of status-go."""

    @property
    def name(self) -> str:
        """See Format."""
        return "deployed"

    def encode_archives(
        self, time_range: TimeRange, content_topics: Sequence[str], messages: Iterable[CommunityMessage]
    ) -> Iterator[EncodedArchive]:
        """See Format."""
        topics = tuple(sorted(set(content_topics)))
        begin = write_bytes(2, _FORM.encode(time_range, topics))
        for chunk in chunks(time_range, topics, messages):
            parts = [begin, *(write_bytes(3, message.encoded) for message in chunk)]
            padding = padding_bytes(sum(map(len, parts)))
            parts.append(bytes(padding))
            yield EncodedArchive(time_range, topics, b"".join(parts), padding, len(chunk))

    def decode_archive(self, data: bytes, padding: int) -> HistoryArchive:
        """See Format."""
        end = len(data) - padding
        if end < 0:
            raise DecodeError("padding of a history archive is longer than itself", got=padding, limit=len(data))
        check_zero(data, end)
        found = read_archive(data[:end], padded=False)
        time_range, topics = _FORM.decode(found.data("metadata") or b"")
        messages = [_message(decode_message(each), each) for each in found.all_data("messages")]
        return HistoryArchive(time_range, topics, tuple(messages))

    def encode_entry(self, fields: EntryFields) -> bytes:
        """See Format."""
        return _FORM.encode_entry(fields)

    def decode_entries(self, encoded: Iterable[bytes]) -> list[EntryFields]:
        """See Format."""
        return _FORM.decode_entries(encoded)


def padding_bytes(length: int, piece_bytes: int = PIECE_BYTES) -> int:
    """How many zero bytes follow an encoded archive. One that fills several pieces is followed by a whole one more."""
    return piece_bytes - length if length <= piece_bytes else piece_bytes - length % piece_bytes


def _message(deployed: DeployedMessage, encoded: bytes) -> CommunityMessage:
    # Messages that were imported from another service may have no hash.
    name = deployed.hash if len(deployed.hash) == HASH_BYTES else keccak256(encoded)
    return CommunityMessage(deployed.timestamp * NS, name, content_topic_of(deployed.topic), encoded)


def _decode_topic(value: bytes) -> str:
    if len(value) != TOPIC_BYTES:
        raise DecodeError("topic of a history archive is not 4 bytes", got=len(value))
    return content_topic_of(Topic(value))


_FORM = MetadataForm(0, 1, 1, topic_of, _decode_topic)
