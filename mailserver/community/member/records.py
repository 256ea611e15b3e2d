"""What `history.db` holds, as values. Ranges are in Unix seconds, timestamps of messages in Unix nanoseconds."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, NewType

from mailserver.communities.formats import TimeRange
from mailserver.communities.index import IndexEntry
from mailserver.communities.links import AnnouncedLink

Content = NewType("Content", bytes)
"""What an archive is named by here: SHA-256 of the SHA-1 hashes of its pieces, 32 bytes.

The id in an index says only where an archive is and of which time: two control nodes give the same id to different
archives. The content says what is in it, and the torrent says it before anything is downloaded.
"""


class ArchiveState(Enum):
    """How far an archive is."""

    MISSING = "missing"
    DOWNLOADED = "downloaded"
    IMPORTED = "imported"
    REFUSED = "refused"


class ListedArchive(NamedTuple):
    """An archive that an index lists. `form`: the name of the format."""

    content: Content
    form: str
    entry: IndexEntry


@dataclass(frozen=True, slots=True)
class KnownArchive:
    """What is known of an archive. `entry`: as the index has it that listed it last.

    `messages`: how many it has; None before it is imported. `refused`: why it cannot be used.
    """

    content: Content
    form: str
    entry: IndexEntry
    is_listed: bool
    state: ArchiveState
    messages: int | None = None
    refused: str | None = None

    @property
    def time_range(self) -> TimeRange:
        """Of which time it is."""
        return self.entry.time_range


class HistoryMessage(NamedTuple):
    """A message of the history.

    `payload` is sealed as in the envelope, unless the control node has opened it: then `signer` is its sender's public
    key.
    """

    timestamp: int
    hash: bytes
    content_topic: str
    payload: bytes
    signer: bytes | None = None
    meta: bytes | None = None
    version: int | None = None


class Attempt(NamedTuple):
    """An attempt to fetch. `at`: Unix seconds. `problem`: why not all came that is wanted; None if it did."""

    uri: str
    at: int
    problem: str | None


@dataclass(frozen=True, slots=True)
class KnownHistory:
    """What is known of the archives of a community, in the order of time, and of its links.

    `link` is the newest one, `refused_link` why its torrent cannot be used. `attempt` is the last one.
    """

    archives: tuple[KnownArchive, ...]
    link: AnnouncedLink | None
    refused_link: str | None
    attempt: Attempt | None

    @property
    def problem(self) -> str | None:
        """Why not all is here that is wanted."""
        return self.refused_link or (self.attempt.problem if self.attempt is not None else None)


@dataclass(frozen=True, slots=True)
class Overview(KnownHistory):
    """What there is of a community.

    `unarchived` counts the messages that no archive has; `oldest` and `newest` are of all.
    """

    messages: int
    unarchived: int
    oldest: int | None
    newest: int | None
