"""What the index of messages is asked for, and what it says: store v3 as far as it is no protobuf (13/WAKU2-STORE)."""

from collections.abc import Sequence
from dataclasses import dataclass

from mailserver.errors import MailserverError
from mailserver.ids.waku_message import MessageHash, WakuMessage

MAX_TOPICS_OF_QUERY = 100
"""How many content topics a query may name. Clients that are deployed name 10 at most."""

MAX_HASHES_OF_QUERY = 100
"""How many messages a query may name by their hashes."""

MAX_MESSAGES_OF_PAGE = 100

MAX_PAGE_BYTES = 3 * 1024 * 1024
"""A page ends with the last envelope that fits into this. js-waku reads no answer of more than 4 MiB; a message takes
some 300 bytes more than its payload."""


class UnknownCursor(MailserverError):
    """A page is to begin behind a message that is not known, or was forgotten."""

    def __str__(self) -> str:
        return "the cursor is no message of this store"


@dataclass(frozen=True, slots=True)
class MessageQuery:
    """A page of messages of one network topic, in the order (timestamp, hash). Times are Unix nanoseconds.

    `content_topics`: any of these; None for all. `time_start` is inclusive, `time_end` exclusive. `hashes`: only these,
    and then topics and times count for nothing; None for all. `cursor`: only what follows this message, or comes before
    it, if `is_forward` is False. `limit`: from 1 to MAX_MESSAGES_OF_PAGE. `include_data`: the messages,
    and not only their hashes.
    """

    content_topics: tuple[str, ...] | None = None
    time_start: int | None = None
    time_end: int | None = None
    hashes: tuple[MessageHash, ...] | None = None
    cursor: MessageHash | None = None
    is_forward: bool = True
    limit: int = 20
    include_data: bool = True

    def __post_init__(self) -> None:
        """Check the bounds.

        Raises:
            ValueError: one is passed.
        """
        if not 1 <= self.limit <= MAX_MESSAGES_OF_PAGE:
            raise ValueError(f"a page of {self.limit} messages is not one of 1 to {MAX_MESSAGES_OF_PAGE}")
        if len(self.content_topics or ()) > MAX_TOPICS_OF_QUERY:
            raise ValueError(f"more than {MAX_TOPICS_OF_QUERY} content topics")
        if len(self.hashes or ()) > MAX_HASHES_OF_QUERY:
            raise ValueError(f"more than {MAX_HASHES_OF_QUERY} hashes")


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message that is in the store. `message` is None if only its hash was asked for."""

    hash: MessageHash
    message: WakuMessage | None


@dataclass(frozen=True, slots=True)
class MessagePage:
    """Messages in the order (timestamp, hash), whatever the direction.

    `cursor`: where the next page begins; None if nothing follows.
    """

    messages: Sequence[StoredMessage]
    cursor: MessageHash | None
