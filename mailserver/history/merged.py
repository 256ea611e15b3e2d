"""One history from two sources: the store, and the archive for what the store no longer has.

An envelope is in both until the store prunes it. The store knows up to which time of creation it ever removed anything.
Above that time, only the store is asked. At or below it, both are asked, and their envelopes are put into one order; an
envelope that is in both is taken from the store.

The store may remove envelopes while a request is answered. It moves that time before they can no longer be found. So
the time is read after the search.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Protocol

from mailserver.archive.reading.page import ArchivePage
from mailserver.archive.reading.scan import Match
from mailserver.archive.reading.search import ArchiveFound
from mailserver.codec.keccak import keccak256
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


class ArchivedHistory(Protocol):
    """The source of older envelopes: `mailserver.archive.reading.source.ArchiveSource`."""

    async def find(
        self, query: Query, most: int, *, above: Place | None, payer: Payer, goes_on: GoesOn = always
    ) -> ArchiveFound:
        """Find the first `most` envelopes that a query wants and that come before the place `above`."""

    def page(self, found: Sequence[Match], query: Query, payer: Payer) -> ArchivePage:
        """Make a page that reads some of the envelopes that were found for a query."""


class MergedHistory:
    """A `store.interface.HistorySource` of a store and its archive."""

    def __init__(self, store: StoredHistory, archive: ArchivedHistory) -> None:
        self._store = store
        self._archive = archive

    async def find(self, query: Query, limit: int, *, payer: Payer = OURSELVES, goes_on: GoesOn = always) -> Page:
        """Find the first `limit` matches, newest first.

        Args:
            payer: for whom the sources are read.
            goes_on: whether to go on after this much work; if not, the page ends early.
        Raises:
            StoreError: a source cannot be read.
        """
        page = await self._store.find(query, limit, payer=payer, goes_on=goes_on)
        until, end = self._store.removed_until, page.end
        if query.lower > until or (end is not None and end[0] > until):
            return page
        older = replace(query, upper=min(query.upper, until))
        # One more than fits shows whether there are more.
        found = await self._archive.find(older, limit + 1, above=end, payer=payer, goes_on=goes_on)
        ranks = page.ranks([match.place for match in found.matches])
        missing = [(rank, match) for rank, match in zip(ranks, found.matches, strict=True) if rank is not None]
        if not missing and found.reached is None:
            return page
        return self._merge(page, missing, found.reached, limit, older, payer)

    def _merge(
        self,
        page: StoredPage,
        missing: Sequence[tuple[int, Match]],
        reached: Place | None,
        limit: int,
        query: Query,
        payer: Payer,
    ) -> "MergedPage":
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
        return MergedPage(page, archived, order, end=end, ended_early=reached is not None or page.ended_early)


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


class Source(Protocol):
    """Envelopes of one source, which read themselves, some at a time: see `store.interface.Page`."""

    async def read(self, count: int, max_bytes: int) -> Raws:
        """Read the next ones."""


class Interleaved:
    """Envelopes of both sources in one order. Each is read when its place in the order is reached."""

    def __init__(self, stored: Source, archived: Source, order: Sequence[bool]) -> None:
        """Take what was found.

        Args:
            order: for each envelope, whether it is the archive's.
        """
        self._stored = stored
        self._archived = archived
        self._runs = [[is_archived, len([*run])] for is_archived, run in groupby(order)]
        self._runs.reverse()
        self._pending: Raws | None = None
        self.left = len(order)
        """How many envelopes are still to be read."""

    async def read(self, count: int, max_bytes: int) -> Raws:
        """Read the next envelopes, `count` at most; see `store.interface.Page`."""
        body = bytearray()
        sizes: list[int] = []
        archived = 0
        while self.left and len(sizes) < count and (not body or len(body) < max_bytes):
            raws = self._pending or await self._read_on(count - len(sizes), max_bytes - len(body))
            self._pending = None
            if body and len(body) + len(raws.body) > max_bytes:
                # A source always reads at least one envelope. This one does not fit, so it waits for the next packet.
                gone = raws.sizes.index(len(raws.body))
                sizes += raws.sizes[:gone]
                self.left -= gone
                self._pending = Raws(raws.body, raws.sizes[gone:], raws.archived)
                break
            body += raws.body
            sizes += raws.sizes
            archived += raws.archived
            self.left -= len(raws.sizes)
        return Raws(bytes(body), sizes, archived)

    async def _read_on(self, count: int, max_bytes: int) -> Raws:
        """Read some of the next run: consecutive envelopes that are all the store's, or all the archive's."""
        run = self._runs[-1]
        is_archived, left = run
        source = self._archived if is_archived else self._stored
        raws = await source.read(min(count, left), max_bytes)
        run[1] -= len(raws.sizes)
        if not run[1]:
            self._runs.pop()
        return raws


class MergedPage(Interleaved):
    """A `store.interface.Page` with envelopes of both sources."""

    def __init__(
        self, stored: StoredPage, archived: ArchivePage, order: Sequence[bool], *, end: Place | None, ended_early: bool
    ) -> None:
        """Take what was found.

        Args:
            order: as for `Interleaved`.
            end: where the next page begins; None: where the store's next page does.
        """
        super().__init__(stored, archived, order)
        self._page = stored
        self._end = end
        self._last: bytes | None = None
        self.ended_early = ended_early
        """Whether the search ended before the page was full or everything was found; `end` says where to continue."""

    @property
    def last_hash(self) -> EnvelopeHash | None:
        """Keccak-256 of the last envelope that was read; None before the first."""
        return None if self._last is None else EnvelopeHash(keccak256(self._last))

    @property
    def end(self) -> Place | None:
        """Where the next page begins, once all of this one was read; None if there is none."""
        return self._page.end if self._end is None else self._end

    async def read(self, count: int, max_bytes: int) -> Raws:
        """Read the next envelopes, `count` at most; see `store.interface.Page`."""
        raws = await super().read(count, max_bytes)
        if raws.body:
            self._last = raws.last
        return raws
