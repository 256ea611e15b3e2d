"""The search for a page in the archive: by row groups, the last created first, until it is full.

A period's record says from when to when its envelopes were created, a footer the same of each row group. What is
created last is looked at first, and nothing that is older than all of a full page. So the cost of an answer follows
what is looked at on the way, and a page ends early, whatever it asks for, once that is too much: with a place that
all that was looked at lies above.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mailserver.archive.reading.catalog import Period
from mailserver.archive.reading.reads import STEP_WORK
from mailserver.archive.reading.row_groups import RowGroup
from mailserver.archive.reading.scan import Candidate, Match, Wanted, first
from mailserver.store.interface import GoesOn, Place, Query
from mailserver.waku.envelope import HASH_BYTES, EnvelopeHash

LEAST_HASH = EnvelopeHash(bytes(HASH_BYTES))
_LAST_HASH = EnvelopeHash(b"\xff" * HASH_BYTES)
_BEFORE_TIME: Place = (-1, LEAST_HASH)


class Reader(Protocol):
    """What a search reads by; it says what it has cost so far."""

    work: int

    async def row_groups(self, period: Period, wanted: Wanted) -> Sequence[Candidate]:
        """The row groups of a period that may have something of what is wanted."""

    async def matches(self, groups: Sequence[Candidate], wanted: Wanted) -> list[Match]:
        """The first of what is wanted of some row groups, in order."""

    def cost(self, group: RowGroup) -> int:
        """How much work it is to look through a row group."""


@dataclass(frozen=True, slots=True)
class ArchiveFound:
    """The first matches, newest first. `reached`: all that lies above it was looked at; None: all was."""

    matches: list[Match]
    reached: Place | None = None


async def search(
    reader: Reader, periods: Sequence[Period], query: Query, most: int, *, above: Place | None, goes_on: GoesOn
) -> ArchiveFound:
    """Find the first `most` envelopes that a query wants.

    Args:
        periods: of the archive, the last created first.
        above: only what stands before this place.
    """
    wanted = Wanted(query.interest, max(above or _BEFORE_TIME, (query.lower - 1, _LAST_HASH)), _top(query), most)
    low, high = wanted.above[0], wanted.below[0] - (wanted.below[1] == LEAST_HASH)
    waiting = [period for period in reversed(periods) if period.created[0] <= high and period.created[1] >= low]
    groups: list[tuple[int, int, Candidate]] = []  # a heap
    number = 0
    best: list[Match] = []
    while waiting or groups:
        newest_group = -groups[0][0] if groups else -1
        newest = min(high, max(newest_group, waiting[-1].created[1] if waiting else -1))
        if len(best) == most and best[-1].created > newest:
            break
        if newest < high and not goes_on(reader.work):
            reached = newest + 1, LEAST_HASH
            return ArchiveFound([match for match in best if match.place > reached], reached)
        if waiting and waiting[-1].created[1] >= newest_group:
            for group in await reader.row_groups(waiting.pop(), wanted):
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
    """What everything that is wanted lies strictly below."""
    top = query.upper + 1, LEAST_HASH
    return top if query.below is None else min(top, query.below)


def _take(groups: list[tuple[int, int, Candidate]], waiting: Sequence[Period], reader: Reader) -> list[Candidate]:
    """The next row groups that are looked through in one step: none that is older than what waits."""
    oldest = waiting[-1].created[1] if waiting else -1
    taken: list[Candidate] = []
    work = 0
    while groups and (not taken or (-groups[0][0] >= oldest and work < STEP_WORK)):
        *_, group = heapq.heappop(groups)
        taken.append(group)
        work += reader.cost(group.group)
    return taken
