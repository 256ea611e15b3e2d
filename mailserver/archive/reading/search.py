"""Searches the archive for a page of envelopes: row group by row group, the newest first, until the page is full.

A record says when the first and the last envelope of its period were created. An index, or a footer, says the same of
each row group. The search looks at the newest row group first, and ends when all others are older than a full page. So
the cost of an answer depends on what the search looks at on the way. If that becomes too much, the page ends early,
whatever was asked for, and names the place down to which everything was looked at.

To find the row groups of a period that is not in memory takes some round trips to where the archive is. So those of
several periods are looked for at the same time, where several threads read: first of one, then of twice as many each
time that the page is not full yet. What is looked for in vain costs no more than what was looked for before it. If it
cannot be read, that is a fault only once the page needs it.

A run of the compaction may replace periods meanwhile, one after the other. If one is gone, the search looks again what
there is, and goes on: what it has found in other periods stays, as no run takes anything out of the archive.
"""

import heapq
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from mailserver.archive.errors import ArchiveError
from mailserver.archive.index.columns import Numbers
from mailserver.archive.reading.catalog import Period
from mailserver.archive.reading.reads import STEP_WORK
from mailserver.archive.reading.row_groups import FileGone, RowGroup
from mailserver.archive.reading.scan import Candidate, Match, WantedEnvelopes, first
from mailserver.store.interface import GoesOn, Place, Query, always
from mailserver.waku.envelope import HASH_BYTES, EnvelopeHash

ANY_NUMBER = 200_000
"""So many matches are enough of a time that is known to have fewer."""

ATTEMPTS = 3
"""How often files of a period may be missing: its record is replaced a moment after its files."""

MAX_CHANGES = 100
"""How often a search looks again what there is, because a period was replaced. A run replaces each once, and takes
longer for a hundred than a request may take."""

LOWEST_HASH = EnvelopeHash(bytes(HASH_BYTES))
LAST_HASH = EnvelopeHash(b"\xff" * HASH_BYTES)
_BEFORE_TIME: Place = (-1, LOWEST_HASH)


class Reader(Protocol):
    """What a search reads with. `work`: what the search has cost so far."""

    work: int

    @property
    def at_once(self) -> int:
        """How many reads go on at the same time, at most."""

    async def row_groups(
        self, periods: Sequence[Period], wanted: WantedEnvelopes
    ) -> list[Sequence[Candidate] | ArchiveError]:
        """Return the row groups of each of some periods that may have wanted envelopes, or why it cannot be read."""

    async def matches(self, groups: Sequence[Candidate], wanted: WantedEnvelopes) -> list[Match]:
        """Return the first wanted envelopes of some row groups, in order."""

    def cost(self, group: RowGroup) -> int:
        """Return how much work it is to look through a row group."""


@dataclass(frozen=True, slots=True)
class ArchiveFound:
    """The first matches, newest first. `reached`: everything above this place was searched; None if everything was."""

    matches: list[Match]
    reached: Place | None = None


ListPeriods = Callable[[], Awaitable[Sequence[Period]]]
"""Looks which periods there are. The one with the newest envelope comes first."""


class _Group(NamedTuple):
    """A row group to look through, and its period. The one with the newest envelope is the least."""

    age: int
    number: int
    period: Period
    candidate: Candidate


async def search(
    reader: Reader,
    listed: ListPeriods,
    query: Query,
    most: int,
    *,
    above: Place | None = None,
    goes_on: GoesOn = always,
    seconds: Numbers | None = None,
) -> ArchiveFound:
    """Find the first `most` envelopes that a query wants.

    Args:
        listed: called once, and once more whenever a period has gone.
        above: only envelopes before this place.
        goes_on: asked with the work done so far; if it says no, the search ends early.
        seconds: only envelopes that were created in one of these; None for all.
    Raises:
        FileGone: files are missing.
        ArchiveError: the archive cannot be read.
    """
    lowest = max(above or _BEFORE_TIME, (query.lower - 1, LAST_HASH))
    one = _Search(reader, WantedEnvelopes(query.interest, lowest, _top(query), most, seconds))
    await one.look_again(listed)
    while one.waiting or one.groups:
        newest = one.newest
        if one.is_full and one.best[-1].created > newest:
            break
        if newest < one.high and not goes_on(reader.work):
            reached = newest + 1, LOWEST_HASH
            return ArchiveFound([match for match in one.best if match.place > reached], reached)
        try:
            await one.step()
        except FileGone:
            if not one.may_look_again:
                raise
            await one.look_again(listed)
    return ArchiveFound(one.best)


class _Search:
    """What one search has found, and where it still has to look.

    `high`: nothing that was created later is wanted. `waiting`: periods to look into, the newest last. `groups`: a heap
    of row groups to look through. `best`: the first matches so far.
    """

    def __init__(self, reader: Reader, wanted: WantedEnvelopes) -> None:
        self.high = wanted.below[0] - (wanted.below[1] == LOWEST_HASH)
        self.waiting: list[Period] = []
        self.groups: list[_Group] = []
        self.best: list[Match] = []
        self._reader = reader
        self._wanted = wanted
        self._looked_into: set[Period] = set()
        self._gone: Counter[Period] = Counter()
        self._ahead = 1
        self._number = 0

    @property
    def is_full(self) -> bool:
        """Whether as many were found as are wanted."""
        return len(self.best) == self._wanted.most

    @property
    def newest(self) -> int:
        """When the newest envelope that is left to look at may have been created."""
        newest_period = self.waiting[-1].created[1] if self.waiting else -1
        return min(self.high, max(-self.groups[0].age if self.groups else -1, newest_period))

    @property
    def may_look_again(self) -> bool:
        """Whether what has gone can have been replaced."""
        return self._gone.total() <= MAX_CHANGES and max(self._gone.values()) < ATTEMPTS

    async def look_again(self, listed: ListPeriods) -> None:
        """Look which periods there are. The row groups of those that were replaced are left to their successors."""
        periods = await listed()
        self._looked_into.intersection_update(periods)
        self.groups = [group for group in self.groups if group.period in self._looked_into]
        heapq.heapify(self.groups)
        self.waiting = [
            period
            for period in reversed(periods)
            if period not in self._looked_into and period.created[0] <= self.high and period.created[1] >= self._low
        ]

    async def step(self) -> None:
        """Look into the next periods, or through the next row groups.

        Raises:
            FileGone: a period has been replaced, or files of it are missing.
            ArchiveError: one of these cannot be read.
        """
        newest_group = -self.groups[0].age if self.groups else -1
        if self.waiting and self.waiting[-1].created[1] >= newest_group:
            await self._look_into_periods()
        else:
            await self._look_through_groups()

    async def _look_into_periods(self) -> None:
        some = [self.waiting.pop()]
        while self.waiting and len(some) < self._ahead and self.waiting[-1].created[1] >= self._low:
            some.append(self.waiting.pop())
        self._ahead = min(2 * self._ahead, self._reader.at_once)
        found = dict(zip(some, await self._reader.row_groups(some, self._wanted), strict=True))
        for period, groups in found.items():
            if not isinstance(groups, ArchiveError):
                self._looked_into.add(period)
                for group in groups:
                    self._push(period, group)
        failed = {period: groups for period, groups in found.items() if isinstance(groups, ArchiveError)}
        if some[0] in failed:
            self._gone[some[0]] += 1
            self.waiting += reversed(failed)
            raise failed[some[0]]
        self.waiting += reversed(failed)  # they were looked into ahead: perhaps in vain

    async def _look_through_groups(self) -> None:
        taken = self._take()
        try:
            found = await self._reader.matches([group.candidate for group in taken], self._wanted)
        except FileGone:
            gone = {group.period for group in taken}  # one of them, and the others are in memory
            self._gone.update(gone)
            self._looked_into -= gone
            raise
        self.best = first(self._wanted.most, [*found, *self.best])
        self._wanted = self._wanted.beside(self.best)

    def _push(self, period: Period, group: Candidate) -> None:
        if group.created[0] <= self.high and group.created[1] >= self._low:
            heapq.heappush(self.groups, _Group(-group.created[1], self._number, period, group))
            self._number += 1

    def _take(self) -> list[_Group]:
        """Take the row groups for the next step: none that is older than the next period."""
        oldest = self.waiting[-1].created[1] if self.waiting else -1
        taken: list[_Group] = []
        work = 0
        while self.groups and (not taken or (-self.groups[0].age >= oldest and work < STEP_WORK)):
            taken.append(heapq.heappop(self.groups))
            work += self._reader.cost(taken[-1].candidate.group)
        return taken

    @property
    def _low(self) -> int:
        """Nothing that was created earlier is wanted."""
        return self._wanted.above[0] + (self._wanted.above[1] == LAST_HASH)


def _top(query: Query) -> Place:
    """Return the place that all wanted envelopes come after."""
    top = query.upper + 1, LOWEST_HASH
    return top if query.below is None else min(top, query.below)
