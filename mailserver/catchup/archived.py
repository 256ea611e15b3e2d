"""Finding out what our archive has and the store lacks, and the other way round, by comparing message ids.

What only the archive has is stored again, so a store that was lost gets back what was archived of it. The two are
compared as two mailservers are (`catchup.comparing`): not below what retention has deleted, and by negentropy, in which
the archive is the side that asks. Both keep sums of ids. Those of the archive are compared first, by day, and for days
that differ by minute. Only for minutes that differ, or of which the archive knows no sum, envelopes are read, some
thousands at a time, and their ids made.
"""

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from mailserver.archive.index.id_sums import MINUTE_S
from mailserver.archive.reading.by_id import ItemsOfTime
from mailserver.archive.reading.id_sums import Span, SumsOfTime
from mailserver.archive.reading.page import ArchivePage
from mailserver.archive.reading.scan import Match
from mailserver.catchup.compared import Compared
from mailserver.catchup.page_rules import Judge, JudgedPage
from mailserver.catchup.ranges import MissingRange
from mailserver.live.intake import Clock
from mailserver.reconcile.sides import Initiator
from mailserver.reconcile.storage import MemoryStorage
from mailserver.reconcile.sums import TimeSum, ask_about, differing
from mailserver.store.interface import OURSELVES, Payer
from mailserver.store.message_ids import ComparedScope, Comparison, StoreWithIds
from mailserver.units import SECONDS_PER_DAY
from mailserver.waku.acceptance import Acceptance
from mailserver.waku.envelope import decode_envelope

log = logging.getLogger(__name__)

ITEMS_AT_ONCE = 10_000
"""Of how many archived envelopes the ids are compared at once: 3 MB."""

MAX_DAYS = 30
"""How many days are compared at once where both have nothing, or the sums are the same: the first of all time may be
asked for. Where anything is read, it is one day, of which the ids that only the store has are in memory. In 30 days
there are no more than 43,200 minutes, of which every other may have a known sum: `reconcile.sums` takes so many."""

ENVELOPES_AT_ONCE = 256
BYTES_AT_ONCE = 1024 * 1024
"""How many envelopes are stored at once, and about how many bytes."""


class ArchivedSets(Protocol):
    """The archive: `mailserver.archive.reading.source.ArchiveSource`."""

    async def sums(self, network_topic: str, lower: int, upper: int, *, by_minute: bool) -> SumsOfTime:
        """Say what there is of a time by the sums of ids: by day, or by minute."""

    async def newest_items(self, network_topic: str, times: Sequence[Span], most: int) -> ItemsOfTime:
        """Make the ids of the newest envelopes of some times, of whole seconds, of about `most` of them."""

    def page_by_id(self, found: Sequence[Match], payer: Payer) -> ArchivePage:
        """Make a page that reads some of the envelopes that were found by their ids, in any order."""


async def compare_with_archive(
    store: StoreWithIds,
    archive: ArchivedSets,
    acceptance: Acceptance,
    clock: Clock,
    *,
    since: int,
    until: int,
    takes: bool,
    show: Callable[[Compared], None],
) -> Compared:
    """Compare the two, and store what only the archive has.

    Args:
        since, until: the range of creation times, Unix seconds, inclusive.
        takes: whether to store it; else it is only counted.
        show: called after each step with how far it is.
    Raises:
        NotIndexedYet: the store still indexes message ids.
        StoreBusy: it has too much to do for others.
        StoreError: either cannot be read, or an envelope is not on disk.
    """
    lower = max(since, store.pruned_until + 1, 1)
    sides = _Sides(store, archive, Judge(acceptance.requirements), clock, takes=takes)
    done = Compared(lower, until, reached=until + 1)
    days = 1
    while done.reached > lower:
        upper = done.reached - 1
        # From the beginning of a day on: of a part of one, only whole minutes have a sum.
        first = max(lower, (upper // SECONDS_PER_DAY - MAX_DAYS + 1) * SECONDS_PER_DAY)
        alike, times = await sides.compare_sums(first, upper)
        done = replace(done, archived=done.archived + alike)
        while times:
            before = done
            some = _take_newest(times, days)
            done, left = await sides.compare(done, some)
            times += left
            is_empty = replace(done, reached=before.reached) == before
            days = min(2 * days, MAX_DAYS) if is_empty else 1
            show(done)
        done = replace(done, reached=first)
        show(done)
    log.info(
        "compared with the archive from=%d to=%d archived=%d missing=%d stored=%d refused=%d unarchived=%d",
        lower,
        until,
        done.archived,
        done.missing,
        done.stored,
        done.refused,
        done.unarchived,
    )
    return done


class _Sides:
    """Store and archive."""

    def __init__(self, store: StoreWithIds, archive: ArchivedSets, judge: Judge, clock: Clock, *, takes: bool) -> None:
        self._store = store
        self._ids = store.message_ids
        self._archive = archive
        self._judge = judge
        self._clock = clock
        self._takes = takes

    async def compare_sums(self, lower: int, upper: int) -> tuple[int, list[Span]]:
        """Compare the sums of a time; return how many ids have the same, and when the others were created, in order."""
        comparison = self._ids.comparison(ComparedScope(lower, upper))
        days = await self._archive.sums(self._ids.network_topic, lower, upper, by_minute=False)
        alike, different = await _different(days.known, comparison)
        times = days.unknown
        for day in different:
            if not day.ids or day.upper - day.lower < MINUTE_S:
                times.append((day.lower, day.upper))
                continue
            minutes = await self._archive.sums(self._ids.network_topic, day.lower, day.upper, by_minute=True)
            count, of_day = await _different(minutes.known, comparison)
            alike += count
            times += minutes.unknown
            times += ((minute.lower, minute.upper) for minute in of_day)
        return alike, _joined(times)

    async def compare(self, done: Compared, times: Sequence[Span]) -> tuple[Compared, list[Span]]:
        """Compare the newest of some times, which are in order; return how far all is then, and what is left of
        them."""
        archived = await self._archive.newest_items(self._ids.network_topic, times, ITEMS_AT_ONCE)
        items = archived.items
        by_time = sorted((match.created, item) for item, match in items.items())
        have, need = set[bytes](), 0
        left: list[Span] = []
        for lower, upper in times:
            if lower < archived.lower:
                left.append((lower, min(upper, archived.lower - 1)))
            if upper >= archived.lower:
                scope = ComparedScope(max(lower, archived.lower), upper)
                of_time = by_time[bisect_left(by_time, (scope.lower, b"")) : bisect_left(by_time, (upper + 1, b""))]
                only_archived, only_stored = await self._difference(scope, of_time)
                have |= only_archived
                need += len(only_stored)
        done = replace(
            done,
            reached=archived.lower,
            archived=done.archived + len(items),
            missing=done.missing + len(have),
            unarchived=done.unarchived + need,
        )
        if not have or not self._takes:
            return done, left
        stored, refused = await self._take([match for item, match in items.items() if item in have], done)
        return replace(done, stored=done.stored + stored, refused=done.refused + refused), left

    async def _difference(
        self, scope: ComparedScope, items: Sequence[tuple[int, bytes]]
    ) -> tuple[set[bytes], set[bytes]]:
        """The ids that only the archive has, and those that only the store has. With limited messages, negentropy may
        name one more than once."""
        storage = await asyncio.to_thread(MemoryStorage, items)  # it takes 20 ms for 10,000
        comparison = self._ids.comparison(scope)
        archive = Initiator(storage)
        have, need = set[bytes](), set[bytes]()
        message: bytes | None = archive.begin()
        while message is not None:
            steps = archive.receive(await comparison.respond(message))
            while True:
                try:
                    found = next(steps)
                except StopIteration as end:
                    message = end.value
                    break
                have.update(found.have)
                need.update(found.need_ids)
                await asyncio.sleep(0)
        return have, need

    async def _take(self, matches: Sequence[Match], done: Compared) -> tuple[int, int]:
        """Store envelopes of the archive; return how many are new, and how many the settings do not accept."""
        page = self._archive.page_by_id(matches, OURSELVES)
        stored = refused = 0
        while page.left:
            raws = (await page.read(ENVELOPES_AT_ONCE, BYTES_AT_ONCE)).split()
            judged = JudgedPage(self._judge, MissingRange(done.lower, done.upper), self._clock())
            judged.add(map(decode_envelope, raws))
            missing = await self._store.missing([*judged.right.values()])
            if missing:
                await self._store.put(missing, source="archive")
            stored += len(missing)
            refused += len(raws) - len(judged.right)
        return stored, refused


async def _different(known: Sequence[TimeSum], comparison: Comparison) -> tuple[int, list[TimeSum]]:
    """How many ids have the same sums in the store, and the sums that differ."""
    if not known:
        return 0, []
    different = differing(known, await comparison.respond(ask_about(known)))
    return sum(one.ids for one in known) - sum(one.ids for one in different), different


def _joined(times: Iterable[Span]) -> list[Span]:
    """Times in order, those that follow each other as one."""
    found: list[Span] = []
    for lower, upper in sorted(times):
        joins = found and found[-1][1] + 1 == lower
        found.append((found.pop()[0] if joins else lower, upper))
    return found


def _take_newest(times: list[Span], days: int) -> list[Span]:
    """Take the newest out of some times: of one day, or what is in so many of the last of them."""
    upper = times[-1][1]
    lower, day_ago = upper - days * SECONDS_PER_DAY, upper - SECONDS_PER_DAY
    some: list[Span] = []
    while times and (not some or times[-1][0] > day_ago):
        first, last = times.pop()
        if first <= lower:
            times.append((first, lower))
            first = lower + 1
        some.insert(0, (first, last))
    return some
