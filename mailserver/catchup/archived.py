"""Finding out what our archive has and the store lacks, and the other way round, by comparing message ids.

What only the archive has is stored again, so a store that was lost gets back what was archived of it. The two are
compared as two mailservers are (`catchup.comparing`): not below what retention has deleted, and by negentropy, in which
the archive is the side that asks. The store answers from its sums. The archive keeps none: its envelopes are read, some
thousands at a time, and their ids made.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from mailserver.archive.reading.by_id import ItemsOfTime
from mailserver.archive.reading.page import ArchivePage
from mailserver.archive.reading.scan import Match
from mailserver.catchup.compared import Compared
from mailserver.catchup.page_rules import Judge, JudgedPage
from mailserver.catchup.ranges import Range
from mailserver.live.intake import Clock
from mailserver.reconcile.sides import Initiator
from mailserver.reconcile.storage import MemoryStorage
from mailserver.store.interface import OURSELVES, Payer
from mailserver.store.message_ids import Scope, StoreWithIds
from mailserver.units import SECONDS_PER_DAY
from mailserver.waku.acceptance import Acceptance
from mailserver.waku.envelope import decode_envelope

log = logging.getLogger(__name__)

ITEMS_AT_ONCE = 10_000
"""Of how many archived envelopes the ids are compared at once: 3 MB."""

MAX_DAYS = 30
"""How many days are compared at once where both have nothing: the first of all time may be asked for. Where one of them
has something, it is one day, of which the ids that only the store has are in memory."""

ENVELOPES_AT_ONCE = 256
BYTES_AT_ONCE = 1024 * 1024
"""How many envelopes are stored at once, and about how many bytes."""


class ArchivedSets(Protocol):
    """The archive: `mailserver.archive.reading.source.ArchiveSource`."""

    async def newest_items(self, network_topic: str, lower: int, upper: int, most: int) -> ItemsOfTime:
        """Make the ids of the newest envelopes of a time, of whole seconds, of about `most` of them."""

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
        upper, before = done.reached - 1, done
        done = await sides.compare(done, max(lower, upper - days * SECONDS_PER_DAY + 1), upper)
        is_empty = replace(done, reached=before.reached) == before
        days = min(2 * days, MAX_DAYS) if is_empty else 1
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
        self._archive = archive
        self._judge = judge
        self._clock = clock
        self._takes = takes

    async def compare(self, done: Compared, lower: int, upper: int) -> Compared:
        """Compare the newest of a time; return how far all is then."""
        network_topic = self._store.message_ids.network_topic
        archived = await self._archive.newest_items(network_topic, lower, upper, ITEMS_AT_ONCE)
        items = archived.items
        have, need = await self._difference(Scope(archived.lower, upper), items)
        done = replace(
            done,
            reached=archived.lower,
            archived=done.archived + len(items),
            missing=done.missing + len(have),
            unarchived=done.unarchived + len(need),
        )
        if not have or not self._takes:
            return done
        stored, refused = await self._take([match for item, match in items.items() if item in have], done)
        return replace(done, stored=done.stored + stored, refused=done.refused + refused)

    async def _difference(self, scope: Scope, items: Mapping[bytes, Match]) -> tuple[set[bytes], set[bytes]]:
        """The ids that only the archive has, and those that only the store has. With limited messages, negentropy may
        name one more than once."""
        storage = await asyncio.to_thread(
            MemoryStorage, [(match.created, item) for item, match in items.items()]
        )  # it takes 20 ms for 10,000
        comparison = self._store.message_ids.comparison(scope)
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
            judged = JudgedPage(self._judge, Range(done.lower, done.upper), self._clock())
            judged.add(map(decode_envelope, raws))
            missing = await self._store.missing([*judged.right.values()])
            if missing:
                await self._store.put(missing, source="archive")
            stored += len(missing)
            refused += len(raws) - len(judged.right)
        return stored, refused
