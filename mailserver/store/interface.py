"""The store of envelopes as the rest of the mailserver uses it, whichever engine keeps it.

An engine is a package beside this file that fulfils `Store`, and `StoreWithIds` in `store.message_ids`. Only values
leave it: envelopes, times, hashes, counts. Row ids, statements and files stay inside. `tests/store/` tests every engine
for what is said here.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple, Protocol

from mailserver.handoff.archived import Mark
from mailserver.store.handoff import Handoff
from mailserver.store.others import Others
from mailserver.store.retention import Surplus, Usage
from mailserver.waku.bloom import Interest
from mailserver.waku.envelope import EnvelopeHash, Topic

Place = tuple[int, EnvelopeHash]
"""A place in the order of answers, which is newest first: (created, hash)."""

GoesOn = Callable[[int], bool]
"""Tells whether a search may go on after this much work, in units of about 0.3 us."""


def always(_: int) -> bool:
    """Go on to the end."""
    return True


class NewEnvelope(NamedTuple):
    """An envelope to store. Times are Unix seconds; `raw` is the envelope as it arrived, `hash` its Keccak-256."""

    received: int
    created: int
    topic: Topic
    hash: EnvelopeHash
    raw: bytes


@dataclass(frozen=True, slots=True)
class Query:
    """Envelopes created from `lower` to `upper` (Unix seconds, inclusive) that `interest` wants.

    `below`: only those that come after this place in the order of answers. `read_bytes`: if not 0, all that is found is
    read at once; a store may read so many bytes of it as it is found, and end the page there."""

    lower: int
    upper: int
    interest: Interest
    below: Place | None = None
    read_bytes: int = 0


def _no_charge(_: int) -> None:
    """Charge no peer: the mailserver reads for itself."""


@dataclass(frozen=True, slots=True)
class Payer:
    """For whom the store is read: a member of a group, such as a peer at an address.

    `charge` is called with the work before it is done, and with a negative amount if it turns out to be less. So a read
    that fails or is cancelled is charged, too.
    """

    group: Hashable = None
    member: Hashable = None
    charge: Callable[[int], None] = _no_charge


OURSELVES = Payer()


class Raws(NamedTuple):
    """Envelopes one after the other, as a packet holds them, and the length of each: 0 if it was deleted.

    `archived`: how many of them came from the archive.
    """

    body: bytes
    sizes: Sequence[int]
    archived: int = 0

    @property
    def last(self) -> bytes:
        """The last envelope; there must be one."""
        size = next(size for size in reversed(self.sizes) if size)
        return self.body[len(self.body) - size :]

    def split(self) -> list[bytes]:
        """Each envelope by itself; deleted ones are left out."""
        return [self.body[start:end] for start, end in pairwise(accumulate(self.sizes, initial=0)) if end > start]


class Page(Protocol):
    """What a search has found, newest first. It reads itself, some envelopes at a time, at its payer's expense."""

    @property
    def left(self) -> int:
        """How many envelopes are still to be read."""

    @property
    def ended_early(self) -> bool:
        """Whether the search ended before the page was full or everything was found; `end` says where to continue."""

    @property
    def last_hash(self) -> EnvelopeHash | None:
        """Keccak-256 of the last envelope that was read, even if it is damaged by now; None before the first."""

    @property
    def end(self) -> Place | None:
        """Where the next page begins, once all of this one is read; None if there is no next page."""

    def place(self, number: int) -> Place:
        """The place of an envelope that was read, by how many lengths `read` has returned before its own. A page
        that is cut behind it goes on below. It is what was found: of what was read, a disk may have turned a bit."""

    async def read(self, count: int, max_bytes: int) -> Raws:
        """Read the next envelopes, byte for byte as received. One that was deleted since is left out, unless the
        page is of an archive, too, and that has it.

        The first one is always read, and more as long as all of them fit into `max_bytes`. There may be none after all,
        and `left` may become less than what was found, if some were deleted.

        Args:
            count: how many at most. Ask for few more than are needed: each of them is looked at.
        Raises:
            StoreError: the store cannot be read.
        """


class StoredPage(Page, Protocol):
    """A page of a store. Before any of it is read, envelopes of another source can be put between its own."""

    def ranks(self, places: Sequence[Place]) -> list[int | None]:
        """How many of what was found come before each of these places; None for one that was found itself."""

    def cut(self, count: int) -> None:
        """Leave out all but the first `count`; there is more behind them."""

    def above(self, number: int) -> Place:
        """The place right above an envelope that was found, by its number: what is below it begins with that envelope.
        It may have been deleted since."""


class HistorySource(Protocol):
    """Where answers to history requests come from."""

    async def find(self, query: Query, limit: int, *, payer: Payer = OURSELVES, goes_on: GoesOn = always) -> Page:
        """Find the first `limit` matches, newest first.

        Args:
            payer: for whom to read. If many read at once, the payer for whom less work was done is served first.
            goes_on: whether to go on after this much work. If not, a page ends early; a store ends only pages by bloom
                filter early.
        Raises:
            StoreError: the source cannot be read.
        """


class TimeRecord(Protocol):
    """The moment that time has certainly reached (`upkeep.proven_time`), which the engine keeps with the store."""

    async def read(self) -> int | None:
        """Read the moment, in Unix seconds; None if none was written yet, and the engine has no clock of its own.

        Raises:
            StoreError: the record cannot be read.
        """

    async def write(self, moment: int) -> None:
        """Store this moment in place of the one before.

        Raises:
            StoreError: it cannot be written; what was there is still there.
        """


class Deleted(NamedTuple):
    """How many envelopes a batch of deletions removed, and their bytes."""

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
    """How much a store holds of one day of reception (Unix seconds / 86400); bytes are those of the envelopes."""

    day: int
    envelopes: int
    bytes: int


class StoredHistory(HistorySource, Protocol):
    """A store, as far as history is concerned that may go on elsewhere."""

    async def find(self, query: Query, limit: int, *, payer: Payer = OURSELVES, goes_on: GoesOn = always) -> StoredPage:
        """See `HistorySource`."""

    @property
    def removed_until(self) -> int:
        """The store still has everything it ever stored that was created later than this, in Unix seconds. It costs
        nothing to ask.

        If this is read after a page was found, it covers all that was removed before the search.
        """


class Store(StoredHistory, Protocol):
    """A store that is open for writing."""

    # Writing.

    async def put(self, envelopes: Sequence[NewEnvelope], source: Hashable = None, *, is_live: bool = False) -> None:
        """Store envelopes; return once they are on disk. Those that are there already are left as they are.

        Args:
            source: the sender. Sources take turns, so that none waits for all that the others have queued.
            is_live: whether they have just been posted, so that other mailservers on the store hear of them (`others`).
        Raises:
            StoreError: some or all of them are not stored.
        """

    async def missing(self, envelopes: Sequence[NewEnvelope]) -> list[NewEnvelope]:
        """Return those of these envelopes that are not in the store, in their order, each as often as it is given.

        Raises:
            StoreError: the store cannot be read.
        """

    def hold(self, why: str) -> None:
        """Refuse every `put` from now on, for this reason; "": take envelopes again. Pruning goes on."""

    @property
    def queued(self) -> tuple[int, int]:
        """How many envelopes wait for the disk, and their bytes."""

    @property
    def unindexed(self) -> int:
        """How many envelopes may not be in the index of message ids yet. 0: all that were put are.

        They get there some time after they were confirmed; an old store's, and those of another network topic, while
        the store is in use.
        """

    # Its state.

    @property
    def problem(self) -> str:
        """Why envelopes are not being stored; "" if they are, as far as is known."""

    @property
    def damage(self) -> str:
        """What else is wrong with the store, as far as was noticed since it was opened; "" if nothing is."""

    @property
    def is_lost(self) -> bool:
        """Whether the store was removed or replaced under us: nothing is stored or deleted until a restart."""

    @property
    def generation(self) -> int:
        """Rises whenever the store may have lost what it confirmed before, as a database does that goes back in time.

        What was put is there for certain only as long as this is what it was before the `put`. It costs nothing to ask.
        """

    def tell(self, on_change: Callable[[], None]) -> None:
        """Set a function to call whenever a write or a read has changed `problem` or `damage`."""

    async def touch(self) -> None:
        """Commit a change without content, which shows that the disk takes it.

        Raises:
            StoreError: nothing can be stored now.
        """

    async def check_presence(self) -> None:
        """Check that the store was not removed or replaced under us. If it was, nothing is stored any more.

        Raises:
            StoreError: it was.
        """

    async def identity(self) -> str:
        """An identity that no other store has.

        Raises:
            StoreError: the store cannot be read.
        """

    @property
    def location(self) -> str:
        """Where the store is, for people: a path, or a URL without its password."""

    @property
    def handoff(self) -> Handoff:
        """What the nightly job and the daemon tell each other about this store."""

    @property
    def time_record(self) -> TimeRecord:
        """The moment that time has certainly reached."""

    @property
    def others(self) -> Others | None:
        """The other mailservers on the store; None if no store of the engine has any."""

    # Upkeep.

    async def usage(self) -> Usage:
        """How much there is and what it takes on disk; nothing is counted for it.

        Raises:
            StoreError: the store cannot be read.
        """

    async def sizes_on_disk(self) -> tuple[int, int]:
        """How many bytes the store takes on disk, and how many its log takes; 0 for one that does not exist."""

    async def stats(self) -> StoreStats:
        """What is in the store; nothing is counted for it.

        Raises:
            StoreError: the store cannot be read.
        """

    async def reception_days(self, limit: int) -> list[ReceptionDay]:
        """The last days of reception that have any envelopes, the latest first.

        Raises:
            StoreError: the store cannot be read.
        """

    async def held(self, surplus: Surplus) -> int:
        """How many envelopes of the surplus are in the store.

        Raises:
            StoreError: the store cannot be read.
        """

    async def oldest_reception(self) -> int | None:
        """When the oldest envelope was received, in Unix seconds; None in an empty store.

        Raises:
            StoreError: the store cannot be read.
        """

    async def last_reception(self, until: int) -> int | None:
        """When the last envelope was received that was received by `until`, in Unix seconds; None if there is none.

        Envelopes from the future, received when our clock was ahead, do not show when we were last running.

        Raises:
            StoreError: the store cannot be read.
        """

    async def prune(self, surplus: Surplus, archived: Mapping[int, Mark] | None = None) -> Deleted:
        """Delete a batch of the surplus, oldest by reception first; return what was deleted: 0 at the end.

        Args:
            archived: for each day of reception, up to which mark it is in the archive (`handoff.archived`). Envelopes
                beyond the mark are kept, and so are all of a day not named. None: any may be deleted.
        Raises:
            StoreError: nothing was deleted.
        """

    @property
    def pruned_until(self) -> int:
        """Nothing that was created later than this was ever pruned, in Unix seconds; -1 if nothing was.

        What else a store may lack, such as what was lost with a disk, does not count, as it does for `removed_until`.
        It costs nothing to ask.
        """

    async def maintain(self) -> bool:
        """Do a few milliseconds of housekeeping, such as giving back space; return whether there was any to do.

        Raises:
            StoreError: the engine could not.
        """

    async def shrinks(self) -> bool:
        """Whether deleted envelopes' space is given back to the disk at all; else it is only used again.

        Raises:
            StoreError: the store cannot be read.
        """
