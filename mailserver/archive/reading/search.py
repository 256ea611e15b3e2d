"""Searches the archive for a page of envelopes: row group by row group, the newest first, until the page is full.

A record says when the first and the last envelope of its period were created. An index, or a footer, says the same of
each row group. The search looks at the newest row group first, and ends when all others are older than a full page. So
the cost of an answer depends on what the search looks at on the way. If that becomes too much, the page ends early,
whatever was asked for, and names the place down to which everything was looked at.

To find the row groups of a period that is not in memory takes some round trips to where the archive is. So those of
several periods are looked for at the same time, where several threads read: first of one, then of twice as many each
time that the page is not full yet. What is looked for in vain costs no more than what was looked for before it.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mailserver.archive.index.columns import Numbers
from mailserver.archive.reading.catalog import Period
from mailserver.archive.reading.reads import STEP_WORK
from mailserver.archive.reading.row_groups import RowGroup
from mailserver.archive.reading.scan import Candidate, Match, Wanted, first
from mailserver.store.interface import GoesOn, Place, Query
from mailserver.waku.envelope import HASH_BYTES, EnvelopeHash

ANY_NUMBER = 200_000
"""So many matches are enough of a time that is known to have fewer."""

LOWEST_HASH = EnvelopeHash(bytes(HASH_BYTES))
_LAST_HASH = EnvelopeHash(b"\xff" * HASH_BYTES)
_BEFORE_TIME: Place = (-1, LOWEST_HASH)


class Reader(Protocol):
    """What a search reads with. `work`: what the search has cost so far."""

    work: int

    @property
    def at_once(self) -> int:
        """How many reads go on at the same time, at most."""

    async def row_groups(self, periods: Sequence[Period], wanted: Wanted) -> Sequence[Candidate]:
        """Return the row groups of some periods that may have wanted envelopes."""

    async def matches(self, groups: Sequence[Candidate], wanted: Wanted) -> list[Match]:
        """Return the first wanted envelopes of some row groups, in order."""

    def cost(self, group: RowGroup) -> int:
        """Return how much work it is to look through a row group."""


@dataclass(frozen=True, slots=True)
class ArchiveFound:
    """The first matches, newest first. `reached`: everything above this place was searched; None if everything was."""

    matches: list[Match]
    reached: Place | None = None


async def search(
    reader: Reader,
    periods: Sequence[Period],
    query: Query,
    most: int,
    *,
    above: Place | None,
    goes_on: GoesOn,
    seconds: Numbers | None = None,
) -> ArchiveFound:
    """Find the first `most` envelopes that a query wants.

    Args:
        periods: the archive's periods; the one with the newest envelope comes first.
        above: only envelopes before this place.
        goes_on: asked with the work done so far; if it says no, the search ends early.
        seconds: only envelopes that were created in one of these; None for all.
    """
    lowest = max(above or _BEFORE_TIME, (query.lower - 1, _LAST_HASH))
    wanted = Wanted(query.interest, lowest, _top(query), most, seconds)
    low, high = wanted.above[0], wanted.below[0] - (wanted.below[1] == LOWEST_HASH)
    waiting = [period for period in reversed(periods) if period.created[0] <= high and period.created[1] >= low]
    groups: list[tuple[int, int, Candidate]] = []  # a heap
    number = 0
    ahead = 1
    best: list[Match] = []
    while waiting or groups:
        newest_group = -groups[0][0] if groups else -1
        newest = min(high, max(newest_group, waiting[-1].created[1] if waiting else -1))
        if len(best) == most and best[-1].created > newest:
            break
        if newest < high and not goes_on(reader.work):
            reached = newest + 1, LOWEST_HASH
            return ArchiveFound([match for match in best if match.place > reached], reached)
        if waiting and waiting[-1].created[1] >= newest_group:
            some = [waiting.pop()]
            while waiting and len(some) < ahead and waiting[-1].created[1] >= low:
                some.append(waiting.pop())
            ahead = min(2 * ahead, reader.at_once)
            for group in await reader.row_groups(some, wanted):
                if group.created[0] <= high and group.created[1] >= low:
                    heapq.heappush(groups, (-group.created[1], number, group))
                    number += 1
            continue
        taken = _take(groups, waiting, reader)
        best = first(most, [*await reader.matches(taken, wanted), *best])
        wanted = wanted.beside(best)
        low = wanted.above[0]
    return ArchiveFound(best)


def _top(query: Query) -> Place:
    """Return the place that all wanted envelopes come after."""
    top = query.upper + 1, LOWEST_HASH
    return top if query.below is None else min(top, query.below)


def _take(groups: list[tuple[int, int, Candidate]], waiting: Sequence[Period], reader: Reader) -> list[Candidate]:
    """Take the row groups for the next step: none that is older than the next period."""
    oldest = waiting[-1].created[1] if waiting else -1
    taken: list[Candidate] = []
    work = 0
    while groups and (not taken or (-groups[0][0] >= oldest and work < STEP_WORK)):
        *_, group = heapq.heappop(groups)
        taken.append(group)
        work += reader.cost(group.group)
    return taken
