"""The store of envelopes as the rest of the mailserver uses it, whatever engine keeps it.

An engine is a package beside this file, and fulfils `Store`. What leaves it are values: envelopes, times, hashes,
counts. Row ids, statements and paths stay inside.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple, Protocol

from mailserver.handoff.archived import Archived
from mailserver.handoff.last_run import Compaction, CompactionState
from mailserver.handoff.last_upkeep import Task, Upkeep
from mailserver.store.retention import Surplus, Usage
from mailserver.waku.bloom import Interest
from mailserver.waku.envelope import EnvelopeHash, Topic

Place = tuple[int, EnvelopeHash]
"""Where an envelope stands in the order of answers, which is newest first: (created, hash)."""

GoesOn = Callable[[int], bool]
"""Whether a search may go on after so much work, in units of about 0.3 us."""


def always(_: int) -> bool:
    """To the end."""
    return True


class NewEnvelope(NamedTuple):
    """An envelope to be stored. Times are Unix seconds; `raw` is the envelope as it came, `hash` its Keccak-256."""

    received: int
    created: int
    topic: Topic
    hash: EnvelopeHash
    raw: bytes


@dataclass(frozen=True, slots=True)
class Query:
    """Envelopes created from `lower` to `upper` (Unix seconds, inclusive) that `interest` wants.

    `below`: only what comes after this place in the order of answers.
    """

    lower: int
    upper: int
    interest: Interest
    below: Place | None = None


def _nobody(_: int) -> None:
    """What we read for ourselves is charged to nobody."""


@dataclass(frozen=True, slots=True)
class Payer:
    """For whom something is read: one of a group, such as a peer of an address.

    `charge` is told how much work it is, before it is done, and again, below 0, what was too much. So also what fails,
    or is given up, is charged.
    """

    group: Hashable = None
    member: Hashable = None
    charge: Callable[[int], None] = _nobody


OURSELVES = Payer()


class Raws(NamedTuple):
    """Envelopes one after the other, as a packet holds them, and the length of each; 0 of one that was deleted.

    `archived`: how many of them came from the archive.
    """

    body: bytes
    sizes: Sequence[int]
    archived: int = 0

    @property
    def last(self) -> bytes:
        """The last of them; there is one."""
        size = next(size for size in reversed(self.sizes) if size)
        return self.body[len(self.body) - size :]

    def split(self) -> list[bytes]:
        """Each that is there, by itself."""
        return [self.body[start:end] for start, end in pairwise(accumulate(self.sizes, initial=0)) if end > start]


class Page(Protocol):
    """What a search has found, newest first. It reads itself, some envelopes at a time; its payer pays for that."""

    @property
    def left(self) -> int:
        """How many envelopes are still to be read."""

    @property
    def ended_early(self) -> bool:
        """Whether the search ended before the page was full or all was found; `end` says where to go on."""

    @property
    def last_hash(self) -> EnvelopeHash | None:
        """Keccak-256 of the last envelope that was read, whatever its bytes are by now; None before the first."""

    @property
    def end(self) -> Place | None:
        """Where the next page goes on, once all of this one is read; None if there is none."""

    async def read(self, count: int, max_bytes: int) -> Raws:
        """Read the next envelopes, byte for byte as received; one that was deleted since is left out.

        Of what is there the first comes, and more as long as all are within `max_bytes`.

        Args:
            count: how many at most; not many more than will do: all are looked at.
        Raises:
            StoreError: the store cannot be read.
        """


class StoredPage(Page, Protocol):
    """A page of a store. Before any of it is read, envelopes of another source can be put between its own."""

    def ranks(self, places: Sequence[Place]) -> list[int | None]:
        """How many of what was found come before each of these places; None for one that was found itself."""

    def cut(self, count: int) -> None:
        """Leave out all but the first `count`; there is more behind them."""


class HistorySource(Protocol):
    """Where answers to history requests come from."""

    async def find(self, query: Query, limit: int, *, payer: Payer = OURSELVES, goes_on: GoesOn = always) -> Page:
        """Find the first `limit` matches, newest first.

        Args:
            payer: who asks: where many read, whoever has had less work done for it is next.
            goes_on: whether to go on after so much work; else a page ends early, of a store only one by bloom filter.
        Raises:
            StoreError: the source cannot be read.
        """


class Handoff(Protocol):
    """What daemon and nightly job tell each other about one store (`mailserver.handoff`).

    Everything here waits for the disk: call it in a thread, but for `pruning_turn`, which takes microseconds.
    """

    def archived(self) -> Archived | None:
        """Which rows are in the archive, as the compaction says; None if it has never said.

        Raises:
            ArchivedError: the record cannot be read.
        """

    def is_being_compacted(self) -> bool:
        """Whether a run of the compaction reads the store.

        Raises:
            OSError: the lock cannot be looked at.
        """

    def pruning_turn(self) -> AbstractContextManager[bool]:
        """Keep a run of the compaction from starting while a batch is deleted; yield whether none is under way.

        Raises:
            OSError: the lock cannot be looked at.
        """

    def last_run(self) -> tuple[CompactionState, Compaction | None]:
        """How the last run of the compaction stands, and its record; None if there has been none.

        Raises:
            CompactionRecordError: the record cannot be read.
            OSError: the lock cannot be looked at.
        """

    def last_upkeep(self, task: Task) -> tuple[CompactionState, Upkeep | None]:
        """How the last merge, or verification, of the archive stands, and its record.

        Raises:
            UpkeepRecordError: the record cannot be read.
            OSError: the lock cannot be looked at.
        """


class Deleted(NamedTuple):
    """What one batch of deletions took: so many envelopes, and their bytes."""

    envelopes: int
    bytes: int


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What is in a store. `oldest` and `newest` are creation times in Unix seconds, None in an empty store."""

    envelopes: int
    bytes: int
    topics: int
    oldest: int | None
    newest: int | None


@dataclass(frozen=True, slots=True)
class ReceptionDay:
    """What is in a store of one day of reception (Unix seconds / 86400); bytes are those of the envelopes."""

    day: int
    envelopes: int
    bytes: int


class StoredHistory(HistorySource, Protocol):
    """A store, as far as history is concerned that may go on elsewhere."""

    async def find(self, query: Query, limit: int, *, payer: Payer = OURSELVES, goes_on: GoesOn = always) -> StoredPage:
        """See `HistorySource`."""

    @property
    def removed_until(self) -> int:
        """Of what was created later, in Unix seconds, all that was ever stored is here. To ask costs nothing.

        Whoever asks once a page was found learns of all that was removed before that.
        """


class Store(StoredHistory, Protocol):
    """A store that is open for writing."""

    # Writing.

    async def put(self, envelopes: Sequence[NewEnvelope], source: Hashable = None) -> None:
        """Store envelopes; return once they are on disk. What is there already is left as it is.

        Args:
            source: whose they are: sources take turns, so that none waits for all that the others have queued.
        Raises:
            StoreError: they are not stored, or not all.
        """

    async def missing(self, envelopes: Sequence[NewEnvelope]) -> list[NewEnvelope]:
        """Which of these envelopes are not in the store; in their order, each as often as it is given.

        Raises:
            StoreError: the store cannot be read.
        """

    def hold(self, why: str) -> None:
        """Store nothing that is put from now on, for this reason; "": store it again. Pruning goes on."""

    @property
    def queued(self) -> tuple[int, int]:
        """How many envelopes wait for the disk, and their bytes."""

    # How it is.

    @property
    def problem(self) -> str:
        """Why envelopes are not stored at present; "" if they are, as far as it is known."""

    @property
    def damage(self) -> str:
        """What else is wrong with what is stored, as far as it was used since it was opened; "" if nothing is."""

    @property
    def is_lost(self) -> bool:
        """Whether what is open is no longer the store that was opened: nothing is stored or deleted until a restart."""

    def tell(self, on_change: Callable[[], None]) -> None:
        """Have this called whenever `problem` or `damage` has changed by what was written or read."""

    async def touch(self) -> None:
        """Commit something that changes nothing: it takes the disk to do so.

        Raises:
            StoreError: nothing can be stored at present.
        """

    async def look_at_files(self) -> None:
        """Look whether what is open is still the store that was opened: else nothing is stored any more.

        Raises:
            StoreError: it is not.
        """

    async def identity(self) -> str:
        """What tells this store from every other.

        Raises:
            StoreError: the store cannot be read.
        """

    @property
    def handoff(self) -> Handoff:
        """What the nightly job and the daemon tell each other about this store."""

    # Upkeep.

    async def usage(self) -> Usage:
        """Say how much there is and what it takes on disk, without counting it.

        Raises:
            StoreError: the store cannot be read.
        """

    async def sizes_on_disk(self) -> tuple[int, int]:
        """How many bytes the store takes on disk, and beside that its log; 0 of one that is not there."""

    async def stats(self) -> StoreStats:
        """Say what is in the store, without counting it.

        Raises:
            StoreError: the store cannot be read.
        """

    async def reception_days(self, limit: int) -> list[ReceptionDay]:
        """What is there of the last days of reception that have anything, the latest first.

        Raises:
            StoreError: the store cannot be read.
        """

    async def held(self, surplus: Surplus) -> int:
        """How much of what is too much is there.

        Raises:
            StoreError: the store cannot be read.
        """

    async def oldest_reception(self) -> int | None:
        """When the oldest was received, in Unix seconds; None in an empty store.

        Raises:
            StoreError: the store cannot be read.
        """

    async def last_reception(self, until: int) -> int | None:
        """When the last was received that was received by `until`, in Unix seconds; None if there is none.

        Rows from the future, of a clock that was ahead, tell nothing of when we were last there.

        Raises:
            StoreError: the store cannot be read.
        """

    async def prune(self, surplus: Surplus, archived: Mapping[int, int] | None = None) -> Deleted:
        """Delete a batch of what is too much, oldest by reception first; return what was deleted: 0 at the end.

        Args:
            archived: of each day of reception, up to which of its rows the archive has it, as the compaction's record
                says (`handoff.archived`); no later row goes, and none of a day not named. None: all may.
        Raises:
            StoreError: nothing was deleted.
        """

    async def give_back_pages(self) -> int:
        """Shorten the file by a few free pages, if there are more than are soon used again; return by how many.

        Raises:
            StoreError: the engine could not.
        """

    async def shrinks(self) -> bool:
        """Whether the file can give pages back.

        Raises:
            StoreError: the store cannot be read.
        """
