"""What the index of messages answers: a page of store v3 (13/WAKU2-STORE)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from mailserver.errors import MailserverError
from mailserver.ids.waku_message import MessageHash, WakuMessage
from mailserver.waku2.store_query import WakuMessageKeyValue

MAX_PAGE_BYTES = 3 * 1024 * 1024
"""A page ends with the last envelope that fits into this. js-waku reads no answer of more than 4 MiB; a message takes
some 300 bytes more than its payload."""


class UnknownCursor(MailserverError):
    """A page is to begin behind a message that is not known, or was forgotten."""

    def __str__(self) -> str:
        return "the cursor is no message of this store"


class TooManyAlike(MailserverError):
    """A MUID would have to be told from more messages than one query may read."""

    def __str__(self) -> str:
        return "too many messages were created when those of these MUIDs were, or have their meta"


class EncodedMessage(NamedTuple):
    """A message as it is pushed: its hash, content topic, time in Unix nanoseconds, and its protobuf form."""

    hash: MessageHash
    content_topic: str
    timestamp: int
    encoded: bytes


class PageEntry(Protocol):
    """A message of a page, or its hash alone: a WakuMessageKeyValue, or what is encoded already."""

    @property
    def message_hash(self) -> MessageHash: ...

    def encode(self) -> bytes:
        """The protobuf form of a WakuMessageKeyValue."""


class StoredEntry(NamedTuple):
    """A message of a page as an answer has it: a WakuMessageKeyValue in its protobuf form. It is encoded once, however
    often it is asked for."""

    message_hash: MessageHash
    encoded: bytes

    @classmethod
    def of(cls, name: MessageHash, message: WakuMessage, network_topic: str) -> "StoredEntry":
        """Encode a message."""
        return cls(name, WakuMessageKeyValue(name, message, network_topic).encode())

    def encode(self) -> bytes:
        """The protobuf form."""
        return self.encoded


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Entries in the order (timestamp, hash), whatever the direction.

    `cursor`: where the next page begins; None if nothing follows.
    """

    entries: Sequence[PageEntry]
    cursor: MessageHash | None
