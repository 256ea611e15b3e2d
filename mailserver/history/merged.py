"""One history from two sources: the store, and the archive for what the store no longer has.

An envelope is in both until the store prunes it. The store knows up to which time of creation it ever removed anything.
Above that time, only the store is asked. At or below it, both are asked, and their envelopes are put into one order; an
envelope that is in both is taken from the store.

The store may remove envelopes while a request is answered. It moves that time before they can no longer be found. So
the time is read after the search. Where a page finds while it is read that an envelope is gone, all that is left of it
is found again, from there on: what the store had then is in the archive by now. A search more is little beside asking
the archive for each envelope that is gone, and is paid for in the same way. One that is found again in the store has
not been deleted: if it still cannot be read, its row is damaged, and it is left out.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count, groupby
from typing import Protocol

from mailserver.archive.reading.page import ArchivePage
from mailserver.archive.reading.scan import Match
from mailserver.archive.reading.search import ArchiveFound
from mailserver.store.interface import (
    OURSELVES,
    GoesOn,
    Page,
    Payer,
    Place,
    Query,
    Raws,
    StoredHistory,
    StoredPage,
    always,
)
from mailserver.waku.envelope import EnvelopeHash
from mailserver.waku.last_hash import LastHash


class ArchivedHistory(Protocol):
    """The source of older envelopes: `mailserver.archive.reading.source.ArchiveSource`."""

    async def find(
        self, query: Query, most: int, *, above: Place | None, payer: Payer, goes_on: GoesOn = always
    ) -> ArchiveFound:
        """Find the first `most` envelopes that a query wants and that come before the place `above`."""

    def page(self, found: Sequence[Match], query: Query, payer: Payer) -> ArchivePage:
        """Make a page that reads some of the envelopes that were found for a query."""


FindBelow = Callable[[Place, int], Awaitable["FoundPages"]]
"""Finds so many envelopes below a place."""


class MergedHistory:
    """A `store.interface.HistorySource` of a store and its archive."""

    def __init__(self, store: StoredHistory, archive: ArchivedHistory) -> None:
        self._store = store
        self._archive = archive

    async def find(self, query: Query, limit: int, *, payer: Payer = OURSELVES, goes_on: GoesOn = always) -> Page:
        """Find the first `limit` matches, newest first.

        Args:
            payer: for whom the sources are read.
            goes_on: whether to go on after this much work; if not, the page ends early. It is asked once more where
                the rest of a page has to be found again.
        Raises:
            StoreError: a source cannot be read.
        """

        async def find_below(place: Place, left: int) -> FoundPages:
            return await self._find(replace(query, below=place), left, payer, goes_on)

        return MergedPage(await self._find(query, limit, payer, goes_on), find_below)

    async def _find(self, query: Query, limit: int, payer: Payer, goes_on: GoesOn) -> "FoundPages":
        page = await self._store.find(query, limit, payer=payer, goes_on=goes_on)
        until, end = self._store.removed_until, page.end
        if query.lower > until or (end is not None and end[0] > until):
            return FoundPages.of_store(page)
        older = replace(query, upper=min(query.upper, until))
        # One more than fits shows whether there are more.
        found = await self._archive.find(older, limit + 1, above=end, payer=payer, goes_on=goes_on)
        ranks = page.ranks([match.place for match in found.matches])
        missing = [(rank, match) for rank, match in zip(ranks, found.matches, strict=True) if rank is not None]
        if not missing and found.reached is None:
            return FoundPages.of_store(page)
        return self._merge(page, missing, found.reached, limit, older, payer)

    def _merge(
        self,
        page: StoredPage,
        missing: Sequence[tuple[int, Match]],
        reached: Place | None,
        limit: int,
        query: Query,
        payer: Payer,
    ) -> "FoundPages":
        """Merge what the store has found with what only the archive has.

        Args:
            missing: the archive's envelopes in order, each with how many of the store's come before it.
            reached: where the search of the archive ended early; None if it did not.
        """
        stored, end, is_cut = page.left, page.end, False
        if reached is not None:
            (rank,) = page.ranks([reached])
            stored = stored if rank is None else rank
            end, is_cut = reached, True
        order = _order([rank for rank, _ in missing], stored)
        if len(order) > limit:
            order = order[:limit]
            stored, is_cut, reached = order.count(False), True, None
            last_missing = order.count(True) - 1
            end = None if not order[-1] else missing[last_missing][1].place
        if is_cut:
            page.cut(stored)
        archived = self._archive.page([match for _, match in missing[: order.count(True)]], query, payer)
        return FoundPages(page, archived, order, end, ended_early=reached is not None or page.ended_early)


@dataclass(frozen=True, slots=True)
class FoundPages:
    """What was found in both sources for a page.

    `archived`: what only the archive has; None if there is nothing. `order`: as for `Interleaved`. `end`: where the
    next page begins; None: where the store's next page does.
    """

    stored: StoredPage
    archived: ArchivePage | None
    order: Sequence[bool]
    end: Place | None
    ended_early: bool

    @classmethod
    def of_store(cls, page: StoredPage) -> "FoundPages":
        """What was found in the store alone."""
        return cls(page, None, [False] * page.left, None, page.ended_early)

    def places(self, number: int) -> list[Place]:
        """The places of the first of them, so many."""
        numbers = count(), count()
        places = []
        for is_archived in self.order[:number]:
            source = self.archived if is_archived else self.stored
            assert source is not None, "what is not found is in no order"
            places.append(source.place(next(numbers[is_archived])))
        return places


def _order(ranks: Sequence[int], stored: int) -> list[bool]:
    """Return, for each envelope of a page in order, whether it is the archive's.

    Args:
        ranks: for each envelope of the archive, how many of the store's come before it.
        stored: how many envelopes are the store's.
    """
    order: list[bool] = []
    before = 0
    for rank in ranks:
        order += [False] * (min(rank, stored) - before)
        order.append(True)
        before = min(rank, stored)
    return order + [False] * (stored - before)


class SourcePage(Protocol):
    """Envelopes of one source, which read themselves, some at a time: see `store.interface.Page`."""

    async def read(self, count: int, max_bytes: int) -> Raws:
        """Read the next ones."""


class Interleaved(ABC):
    """Envelopes of both sources in one order. Each is read when its place in the order is reached.

    `left`: how many are still to be read. `at`, `stored_at`: how many were read since they were found; of the store.
    """

    def __init__(self, stored: SourcePage, archived: SourcePage | None, order: Sequence[bool]) -> None:
        """Take what was found: see `take`."""
        self._pending: Raws | None = None
        self._may_be_damaged = False
        self.take(stored, archived, order)

    def take(self, stored: SourcePage, archived: SourcePage | None, order: Sequence[bool]) -> None:
        """Take what was found.

        Args:
            archived: may be None if nothing of it is in the order.
            order: for each envelope, whether it is the archive's.
        """
        self._stored = stored
        self._archived = archived
        self._runs = [[is_archived, len([*run])] for is_archived, run in groupby(order)]
        self._runs.reverse()
        self.left = len(order)
        self.at = self.stored_at = 0

    @abstractmethod
    async def find_again(self) -> bool:
        """Take what is left, as it is found now: the next one is not in the store. Return whether it is said to be."""

    async def read(self, count: int, max_bytes: int) -> Raws:
        """Read the next envelopes, `count` at most; see `store.interface.Page`."""
        bodies: list[bytes] = []
        sizes: list[int] = []
        total = archived = 0
        while self.left and len(sizes) < count and (not sizes or total < max_bytes):
            raws = self._pending or await self._read_on(count - len(sizes), max_bytes - total)
            self._pending = None
            if self._may_be_damaged:
                self._may_be_damaged = False
                if not raws.sizes[0]:
                    sizes.append(0)
                    self.at += 1
                    self.stored_at += 1
                    self.left -= 1
                    rest = Raws(raws.body, raws.sizes[1:], raws.archived)
                    self._pending = rest if rest.sizes else None
                    continue
            if sizes and total + len(raws.body) > max_bytes:
                # A source always reads at least one envelope. This one does not fit, so it waits for the next packet.
                self._pending = raws
                break
            is_gone = 0 in raws.sizes
            there = raws.sizes[: raws.sizes.index(0)] if is_gone else raws.sizes
            body = raws.body[: sum(there)] if is_gone else raws.body
            bodies.append(body)
            sizes += there
            total += len(body)
            archived += raws.archived
            self.at += len(there)
            self.left -= len(there)
            if not raws.archived:
                self.stored_at += len(there)
            if is_gone:
                # The next might be gone when it is read. Each time, something was deleted in between, and is paid for.
                self._may_be_damaged = await self.find_again()
        return Raws(b"".join(bodies), sizes, archived)

    async def _read_on(self, count: int, max_bytes: int) -> Raws:
        """Read some of the next run: consecutive envelopes that are all the store's, or all the archive's."""
        run = self._runs[-1]
        is_archived, left = run
        source = self._archived if is_archived else self._stored
        assert source is not None, "what is not found is in no order"
        raws = await source.read(min(count, left), max_bytes)
        run[1] -= len(raws.sizes)
        if not run[1]:
            self._runs.pop()
        return raws


class MergedPage(Interleaved):
    """A `store.interface.Page` with envelopes of both sources."""

    def __init__(self, found: FoundPages, find_below: FindBelow) -> None:
        """Take what was found, and what finds the rest of it again."""
        super().__init__(found.stored, found.archived, found.order)
        self._found = found
        self._find_below = find_below
        self._last = LastHash()
        self._places: list[Place] = []  # of what was read before the rest was found again

    @property
    def ended_early(self) -> bool:
        """Whether the search ended before the page was full or everything was found; `end` says where to continue."""
        return self._found.ended_early

    @property
    def last_hash(self) -> EnvelopeHash | None:
        """Keccak-256 of the last envelope that was read; None before the first."""
        return self._last.value()

    @property
    def end(self) -> Place | None:
        """Where the next page begins, once all of this one was read; None if there is none."""
        return self._found.stored.end if self._found.end is None else self._found.end

    def place(self, number: int) -> Place:
        """The place of an envelope that was read, by its number; see `store.interface.Page`."""
        before = len(self._places)
        return self._places[number] if number < before else self._found.places(number - before + 1)[-1]

    async def find_again(self) -> bool:
        """Take what is left, as it is found now; return whether the store is said to have the one that it has not."""
        above = self._found.stored.above(self.stored_at)
        found = await self._find_below(above, self.left)
        self._places += self._found.places(self.at)
        self._found = found
        self.take(found.stored, found.archived, found.order)
        return bool(found.order) and not found.order[0] and found.stored.above(0) == above

    async def read(self, count: int, max_bytes: int) -> Raws:
        """Read the next envelopes, `count` at most; see `store.interface.Page`."""
        raws = await super().read(count, max_bytes)
        if raws.body:
            self._last.take(raws.last)
        return raws
