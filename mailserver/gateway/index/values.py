"""What the index of messages answers: a page of store v3 (13/WAKU2-STORE)."""

from collections.abc import Sequence
from dataclasses import dataclass

from mailserver.errors import MailserverError
from mailserver.ids.waku_message import MessageHash, WakuMessage
from mailserver.waku2.store_query import WakuMessageKeyValue, encode_key_value

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


@dataclass(frozen=True, slots=True)
class StoredEntry(WakuMessageKeyValue):
    """A message of a page as an answer has it. It is encoded once, however often it is asked for."""

    encoded: bytes = b""

    @classmethod
    def of(cls, name: MessageHash, message: WakuMessage, network_topic: str) -> "StoredEntry":
        """Encode a message."""
        encoded = encode_key_value(name, message.encode(), network_topic)
        return cls(name, message, network_topic, encoded=encoded)

    def encode(self) -> bytes:
        """The protobuf form."""
        return self.encoded + self.encode_muid()


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Entries in the order (timestamp, hash), whatever the direction.

    `cursor`: where the next page begins; None if nothing follows.
    """

    entries: Sequence[WakuMessageKeyValue]
    cursor: MessageHash | None
