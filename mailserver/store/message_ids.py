"""The message ids of a store as whatever lists, finds and compares them uses it: see `store.interface` for the
envelopes.

The MUID of an envelope (`mailserver.ids`) is made from it when it is listed. What finds an envelope by its id needs an
index, which has an envelope some time after it was confirmed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NewType, Protocol

from mailserver.errors import MailserverError, StoreError
from mailserver.ids.envelopes import NS
from mailserver.ids.muid import Muid
from mailserver.reconcile.sides import Differences, Needed
from mailserver.reconcile.wire import MAX_MESSAGE_BYTES
from mailserver.store.interface import OURSELVES, GoesOn, Payer, Query, Raws, Store, always
from mailserver.waku.bloom import FULL_INTEREST, Interest
from mailserver.waku.envelope import MAX_U32

MAX_IDS_OF_PAGE = 10_000
"""The longest list of ids: 520 kB of MUIDs."""

MAX_IDS_TO_FIND = 10_000
"""How many ids are looked for at once: as many as a page lists."""

MAX_IDS_OF_TOPICS = 50_000
"""How many envelopes a comparison by topics may be of: for each message they are read, which takes a second."""

_TIME_BYTES = 8

Arrival = NewType("Arrival", int)
"""A place in the order of arrival: a number of the engine's own, from 0 to 2^63 - 1. It stays the place of an envelope
for as long as the store lives, and is never another's."""

BEFORE_ALL = Arrival(0)


class NotIndexedYet(StoreError):
    """The store still indexes the ids of what it has, so it cannot say what has an id, and what has not.

    Args:
        left: how many envelopes are not indexed yet, at most.
    """

    def __init__(self, left: int) -> None:
        super().__init__(left)
        self.left = left

    def __str__(self) -> str:
        return f"the store is still indexing the ids of {self.left} envelopes"


class StoreBusy(StoreError):
    """So much is done for others, or so much had to be read, that it took too long: no failure."""


class OtherNetworkTopic(StoreError):
    """The ids of a store belong to another network topic than they are to belong to."""

    def __init__(self, before: str, wanted: str) -> None:
        super().__init__(before, wanted)
        self.before = before
        self.wanted = wanted

    def __str__(self) -> str:
        return (
            f"the message ids of the store belong to the network topic {self.before}, not {self.wanted}: "
            "set --network-topic as it was, or change them with waku-mailserver reindex"
        )


class TooManyIds(MailserverError):
    """More envelopes of some topics were created in a time than a comparison by topics can be of.

    Args:
        limit: how many it can be of.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit

    def __str__(self) -> str:
        return f"more than {self.limit} envelopes are to be compared by topics"


class RangeTooWide(MailserverError):
    """So many envelopes were created in the time of those that are looked for that not each of them was looked at."""

    def __str__(self) -> str:
        return "too many others would have to be looked at to find these ids: ask for fewer, or for shorter times"


@dataclass(frozen=True, slots=True)
class MetadataRange:
    """The metadata of MUIDs from `low`, inclusive, to `high`, exclusive, compared as bytes. None: without an end."""

    low: bytes = b""
    high: bytes | None = None

    @classmethod
    def of_prefix(cls, prefix: bytes) -> "MetadataRange":
        """All metadata that begins with these bytes."""
        stem = prefix.rstrip(b"\xff")
        return cls(prefix, stem[:-1] + bytes([stem[-1] + 1]) if stem else None)

    def has(self, metadata: bytes) -> bool:
        """Whether metadata is in the range."""
        return self.low <= metadata and (self.high is None or metadata < self.high)

    @property
    def created(self) -> tuple[int, int]:
        """From which second of creation to which there can be envelopes of it, both inclusive.

        Their metadata begins with the nanosecond of creation (`ids.envelopes`).
        """
        return _second(self.low), MAX_U32 if self.high is None else min(MAX_U32, _second(self.high))


def _second(bound: bytes) -> int:
    return int.from_bytes(bound[:_TIME_BYTES].ljust(_TIME_BYTES, b"\0"), "big") // NS


ALL_METADATA = MetadataRange()


@dataclass(frozen=True, slots=True)
class ArrivedIds:
    """MUIDs in the order of arrival.

    `end`: how far this has come: a list that begins there has what follows, and whatever arrives later. `is_all`:
    whether nothing follows at the moment.
    """

    muids: Sequence[Muid]
    end: Arrival
    is_all: bool


class FoundEnvelopes(Protocol):
    """Envelopes that have some ids. They read themselves, some at a time, at their payer's expense."""

    @property
    def left(self) -> int:
        """How many are still to be read."""

    async def read(self, count: int, max_bytes: int) -> Raws:
        """Read the next ones; see `store.interface.Page`.

        Raises:
            RangeTooWide: what is left had to be found again, and was not.
            StoreError: the store cannot be read.
        """

    @property
    def items(self) -> Sequence[bytes]:
        """The ids of reconciliation of all of them, in their order: also of what is read already."""


@dataclass(frozen=True, slots=True)
class ComparedScope:
    """Which ids are compared: those of envelopes created from `lower` to `upper` (Unix seconds, inclusive) that
    `interest` wants. Both sides must compare the same."""

    lower: int
    upper: int
    interest: Interest = FULL_INTEREST

    @property
    def seconds(self) -> tuple[int, int]:
        """From which second to which there can be envelopes of it, both inclusive."""
        return min(max(0, self.lower), MAX_U32 + 1), max(-1, min(self.upper, MAX_U32))


class Comparison(Protocol):
    """Finds out what a store and another mailserver's lack of each other's ids: either side, by negentropy.

    Items are the ids of reconciliation (`ids.muid.sync_id`), by the second of creation. What was stored before the
    first message is compared; what comes later may be. Nothing else is kept from message to message. So one of these
    can be used for any number of messages, or a new one be made for each.

    All methods raise:
        NotIndexedYet: too much of what was stored before is not indexed yet.
        TooManyIds: the scope has topics, and more envelopes than MAX_IDS_OF_TOPICS.
        StoreBusy: so much is compared for others, or so much had to be read for this message, that it took too long.
        StoreError: the store cannot be read.
    """

    async def respond(self, message: bytes) -> bytes:
        """Answer a message, as the side that is asked: see `reconcile.sides.Responder`.

        Raises:
            DecodeError: the message is none.
        """

    async def begin(self) -> bytes:
        """Make the first message, as the side that asks."""

    async def receive(self, message: bytes, on_found: Callable[[Differences], None]) -> bytes | None:
        """Take an answer, as the side that asks; return the next message, None at the end.

        Args:
            on_found: called with the differences that are found, some at a time, before this returns. An id may be
                named more than once, and by a liar although nobody has it. What this raises ends the comparison.
        Raises:
            OtherVersion: the other side does not speak our version.
            DecodeError: the message is none.
        """


class MessageIds(Protocol):
    """The ids of a store's envelopes. An envelope without an id (`ids.envelopes`) is in no list, and is not found."""

    @property
    def network_topic(self) -> str:
        """The pubsub topic to which the ids belong."""

    @property
    def store_id(self) -> str:
        """The store's identity, hex digits: a place in the order of arrival is of no other."""

    async def as_arrived(
        self,
        query: Query,
        limit: int,
        *,
        after: Arrival = BEFORE_ALL,
        payer: Payer = OURSELVES,
        goes_on: GoesOn = always,
    ) -> ArrivedIds:
        """List the MUIDs of the first `limit` matches that arrived after a place, in the order of their arrival.

        All that arrived since is looked at, whether it matches or not.

        Args:
            limit: from 1 to MAX_IDS_OF_PAGE.
            payer: for whom to read, as in `HistorySource.find`.
            goes_on: whether to go on after this much work. If not, the page ends early.
        Raises:
            StoreError: the store cannot be read.
        """

    async def find(
        self, muids: Sequence[Muid], *, payer: Payer = OURSELVES, goes_on: GoesOn = always
    ) -> FoundEnvelopes:
        """Find the envelopes that have these MUIDs, in this order, each once. What is not there is left out.

        This waits, for seconds at most, until what was stored before the call is indexed.

        Args:
            muids: MAX_IDS_TO_FIND at most.
            goes_on: whether to go on after this much work, where each of them takes more than a look at an index.
        Raises:
            NotIndexedYet: too much is not indexed yet.
            RangeTooWide: it did not go on.
            StoreError: the store cannot be read.
        """

    async def find_items(
        self, groups: Sequence[Needed], *, payer: Payer = OURSELVES, goes_on: GoesOn = always
    ) -> FoundEnvelopes:
        """Find the envelopes that have these ids of reconciliation, group after group, each once.

        Those of a group come in the order of (created, id). Its ids are walked through from `lower` on until all that
        are wanted were met, or `upper` was passed. So the range should be no wider than need be: each id in it is
        looked at. It waits as `find` does, once for all groups.

        Args:
            groups: SHA-256 of MUIDs (`ids.muid.sync_id`), MAX_IDS_TO_FIND at most in all, in any order; and when their
                envelopes were created, in Unix seconds, inclusive.
            goes_on: whether to go on after this much work.
        Raises:
            NotIndexedYet: too much is not indexed yet.
            RangeTooWide: it did not go on.
            StoreError: the store cannot be read.
        """

    def comparison(
        self, scope: ComparedScope, *, frame_bytes: int = MAX_MESSAGE_BYTES, payer: Payer = OURSELVES
    ) -> Comparison:
        """What compares the ids of a scope with another mailserver's.

        Args:
            frame_bytes: the longest message to make, from `reconcile.wire.MIN_FRAME_BYTES` to MAX_MESSAGE_BYTES.
            payer: for whom to read, as in `HistorySource.find`. It is charged for messages that are none, too.
        """


class StoreWithIds(Store, Protocol):
    """A store that can list its message ids, find envelopes by them, and compare them: every engine's."""

    @property
    def message_ids(self) -> MessageIds:
        """The ids of its envelopes, on the network topic that it was opened with."""
