"""What a query about message ids finds: newest first in whatever answers history requests, the store and the archive.

Nothing needs to be kept for it: a MUID is made from the envelope that it names. Lists in the order of arrival, and what
finds envelopes by id, are the store's (`store.message_ids`).

A cursor is where a list ended: created(4) || envelope hash(32) of the last one if it was newest first; in the order of
arrival, 8 bytes.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, islice
from typing import Generic, NamedTuple, TypeVar

from mailserver.errors import DecodeError
from mailserver.history.read_ahead import Places, ReadAhead
from mailserver.ids.envelopes import joined_metas, joined_muids
from mailserver.ids.muid import Muid, metadata_of
from mailserver.mail.request import Cursor
from mailserver.store.interface import GoesOn, HistorySource, Page, Payer, Place, Query, Raws, always
from mailserver.store.message_ids import (
    ALL_METADATA,
    BEFORE_ALL,
    Arrival,
    ArrivedIds,
    MessageIds,
    MetadataRange,
)
from mailserver.waku.bloom import Interest
from mailserver.waku.envelope import decode_envelope
from mailserver.wakuid.packets import MAX_FETCHED_IDS, Order

IDS_AT_ONCE = MAX_FETCHED_IDS
"""Of how many envelopes MUIDs are made at once: those of a packet."""

BYTES_AT_ONCE = 1024 * 1024
"""How many bytes of envelopes are read for that."""

READ_AHEAD = 4
"""So many lists of ids read ahead at a time. While its client stalls, such a list keeps BYTES_AT_ONCE at most, and keys
of 32 bytes of FOUND_AHEAD matches; another keeps no more than the keys of a packet."""

FOUND_AHEAD = 4000
"""How many matches such a list looks for at once. To look for those of each packet alone takes so many trips to the
store's threads that it waits again for what it reads ahead."""

SLICE = 250
"""What was read is looked at in slices of so many envelopes, half a millisecond each, between which others go on."""

ARRIVAL_BYTES = 8

SEARCHED_AT_ONCE = 512
"""How many matches are looked for at once where only some of them are in the range of metadata."""

ID_WORK = 10
"""To look at the metadata of an envelope, and make its MUID, costs as much as this much work of the store."""

_MAX_ARRIVAL = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Selection:
    """Which envelopes a list is of: those that `interest` wants, created from `lower` to `upper` (Unix seconds, both
    inclusive), whose metadata is in a range. `cursor`: where a list before it ended, in the same order."""

    lower: int
    upper: int
    interest: Interest
    metadata: MetadataRange = ALL_METADATA
    order: Order = Order.NEWEST_FIRST
    cursor: bytes = b""

    @property
    def bounds(self) -> tuple[int, int]:
        """When such envelopes were created, which have an id: as `lower` and `upper`."""
        first, last = self.metadata.created
        return max(self.lower, first, 1), min(self.upper, last)

    def below(self) -> Place | None:
        """Below which place a list that is newest first goes on.

        Raises:
            DecodeError: the cursor is none of such a list.
        """
        return Cursor.decode(self.cursor) if self.cursor else None

    def after(self) -> Arrival:
        """After which arrival a list in the order of arrival goes on.

        Raises:
            DecodeError: the cursor is none of such a list.
        """
        if not self.cursor:
            return BEFORE_ALL
        place = int.from_bytes(self.cursor, "big")
        if len(self.cursor) != ARRIVAL_BYTES or place > _MAX_ARRIVAL:
            raise DecodeError("cursor is not of a list in the order of arrival", got=len(self.cursor))
        return Arrival(place)


@dataclass(frozen=True, slots=True)
class IdList:
    """Some MUIDs. `cursor`: where the list goes on; `is_all`: whether nothing follows at the moment."""

    muids: Sequence[Muid]
    cursor: bytes
    is_all: bool


@dataclass(frozen=True, slots=True)
class IdLists:
    """Lists the ids of a store, and of the archive that its history goes on in."""

    source: HistorySource
    ids: MessageIds
    _places: Places = field(default_factory=lambda: Places(READ_AHEAD), init=False)

    async def list(self, selection: Selection, limit: int, payer: Payer, goes_on: GoesOn = always) -> IdList:
        """List the first `limit` ids of a selection.

        Args:
            limit: MAX_IDS_OF_PAGE at most.
            payer: for whom to read, as in `HistorySource.find`.
            goes_on: whether to go on after this much work. If not, the list ends early.
        Raises:
            DecodeError: the cursor is none of this order.
            StoreError: the store, or the archive, cannot be read.
        """
        if selection.order is Order.AS_ARRIVED:
            return await self._as_arrived(selection, limit, payer, goes_on)
        muids: list[Muid] = []
        async with self.newest(selection, limit, payer, goes_on) as found:
            while more := await found.read():
                muids += more
        return IdList(muids, found.cursor, is_all=not found.cursor)

    @contextlib.asynccontextmanager
    async def newest(
        self, selection: Selection, limit: int, payer: Payer, goes_on: GoesOn = always, count: int = IDS_AT_ONCE
    ) -> "AsyncIterator[Matches[Muid]]":
        """Find the first `limit` ids of a selection that is newest first, to be read `count` at a time.

        Raises:
            DecodeError: the cursor is none of such a list.
        """
        search = _Search(self.source, selection, limit, payer, goes_on, AtOnce(count, BYTES_AT_ONCE))
        found = Matches(search, partial(_muids, self.ids.network_topic, selection.metadata))
        if not self._places.take():
            yield found
            return
        try:
            async with found.read_ahead():
                yield found
        finally:
            self._places.give_back()

    async def _as_arrived(self, selection: Selection, limit: int, payer: Payer, goes_on: GoesOn) -> IdList:
        after, query = selection.after(), Query(*selection.bounds, selection.interest)
        metadata, meter = selection.metadata, _Meter(payer, goes_on)
        muids: list[Muid] = []
        arrived = ArrivedIds((), after, is_all=query.lower > query.upper)
        while len(muids) < limit and not arrived.is_all:
            arrived = await self.ids.as_arrived(
                query, limit - len(muids), after=arrived.end, payer=meter.payer, goes_on=meter.goes_on
            )
            muids += [name for name in arrived.muids if metadata.has(metadata_of(name))]
            if not meter.goes_on():
                break
        return IdList(muids, int(arrived.end).to_bytes(ARRIVAL_BYTES, "big"), arrived.is_all)


class _Meter:
    """A payer, and how much work was done for it since this was made."""

    def __init__(self, payer: Payer, goes_on: GoesOn) -> None:
        self._work = 0
        self._goes_on = goes_on
        self._charge = payer.charge
        self.payer = replace(payer, charge=self.charge)

    def charge(self, amount: int) -> None:
        self._work += amount
        self._charge(amount)

    def goes_on(self, _: int = 0) -> bool:
        """Whether to go on after all this work."""
        return self._goes_on(self._work)


class AtOnce(NamedTuple):
    """How much is read at once: so many envelopes of so many bytes, at most."""

    envelopes: int
    bytes: int


class _Piece(NamedTuple):
    """What was read at once. `is_cut`: whether the same search has found more; `may_be_more`: whether any has."""

    raws: Raws
    is_cut: bool
    may_be_more: bool


class _Search:
    """Finds what a selection may have, newest first, and reads it piece by piece, at a payer's expense.

    `left`: how many are still wanted; `found_at_once`: how many are looked for at once, if all are wanted.
    """

    def __init__(
        self, source: HistorySource, selection: Selection, limit: int, payer: Payer, goes_on: GoesOn, at_once: AtOnce
    ) -> None:
        """Begin, for `limit` of them.

        Raises:
            DecodeError: the cursor is none of a list that is newest first.
        """
        self._source = source
        self._query = Query(*selection.bounds, selection.interest, selection.below())
        self._is_of_all = selection.metadata == ALL_METADATA
        self._at_once = at_once
        self._page: Page | None = None
        self.meter = _Meter(payer, goes_on)
        self.left = limit
        self.found_at_once = at_once.envelopes

    async def read(self) -> _Piece | None:
        """Read the next piece; None at the end, or if the search is not to go on.

        Raises:
            StoreError: the source cannot be read.
        """
        page = await self._next_page()
        if page is None:
            return None
        raws = await page.read(min(page.left, self._at_once.envelopes), self._at_once.bytes)
        is_cut = page.left > 0
        return _Piece(raws, is_cut, may_be_more=is_cut or page.end is not None)

    async def _next_page(self) -> Page | None:
        """A page of the source of which something is left; None if there is none, or the search is not to go on."""
        while self._page is None or not self._page.left:
            if self._page is not None:
                if self._page.end is None or not self.meter.goes_on():
                    return None
                self._query = replace(self._query, below=self._page.end)
            if self._query.lower > self._query.upper:
                return None
            # If few of them are in the range, not every search is for the few that are still wanted.
            rows = min(self.left, self.found_at_once) if self._is_of_all else SEARCHED_AT_ONCE
            self._page = await self._source.find(self._query, rows, payer=self.meter.payer, goes_on=self.meter.goes_on)
        return self._page

    @property
    def cursor(self) -> bytes:
        """Where the next page begins, once all was read that was found; empty if there is none."""
        end = self._query.below if self._page is None else self._page.end
        return b"" if end is None or self._query.lower > self._query.upper else Cursor(*end).encode()


T = TypeVar("T")


class Matches(Generic[T]):
    """What a query finds, newest first: MUIDs, or envelopes. They read themselves, some at a time, at their payer's
    expense.

    Envelopes without an id are left out.
    """

    def __init__(self, search: _Search, taking: Callable[[Raws], list[T | None]]) -> None:
        """Begin, where a search does.

        Args:
            taking: makes what is wanted of each of some envelopes that were read; None of one that is not wanted.
        """
        self._search = search
        self._taking = taking
        self._ahead: ReadAhead[_Piece | None] | None = None
        self._cut_at = b""  # the cursor of a list that ends between two matches of a page

    @property
    def left(self) -> int:
        """How many may still be read."""
        return self._search.left

    @contextlib.asynccontextmanager
    async def read_ahead(self) -> AsyncIterator[None]:
        """As long as the context is entered, read what comes next while MUIDs are made of what was read before."""
        self._search.found_at_once = FOUND_AHEAD
        self._ahead = ReadAhead(self._search.read)
        try:
            yield
        finally:
            await self._ahead.stop()
            self._ahead = None

    async def read(self) -> list[T]:
        """Read the next matches. None at all: the search is over, and `cursor` says whether there may be more.

        Raises:
            StoreError: the source cannot be read.
        """
        search = self._search
        while search.left and (piece := await self._next_piece()) is not None:
            raws = piece.raws
            search.meter.charge((len(raws.sizes) - raws.sizes.count(0)) * ID_WORK)
            taken: list[T | None] = []
            for some in _slices(raws):
                await asyncio.sleep(0)
                taken += self._taking(some)
            found = [each for each in taken if each is not None]
            if found:
                if len(found) > search.left or (len(found) == search.left and piece.is_cut):
                    self._cut_at = _cursor_behind(raws, taken, search.left)
                    del found[search.left :]
                search.left -= len(found)
                return found
        return []

    async def _next_piece(self) -> _Piece | None:
        if self._ahead is None:
            return await self._search.read()
        piece = await self._ahead.next()
        if piece is not None and piece.may_be_more and len(piece.raws.sizes) < self.left:
            self._ahead.begin()
        return piece

    @property
    def cursor(self) -> bytes:
        """Where the next page begins, once the search is over; empty if there is none."""
        return self._cut_at or self._search.cursor


def matching_envelopes(
    source: HistorySource,
    selection: Selection,
    limit: int,
    payer: Payer,
    goes_on: GoesOn = always,
    *,
    at_once: AtOnce,
) -> Matches[bytes]:
    """The first `limit` envelopes of a selection, as they were received: see `Matches`.

    Args:
        payer: for whom to read, as in `HistorySource.find`.
        goes_on: whether to go on after this much work.
    Raises:
        DecodeError: the cursor is none of a list that is newest first.
    """
    search = _Search(source, selection, limit, payer, goes_on, at_once)
    return Matches(search, partial(_envelopes, selection.metadata))


def _slices(raws: Raws) -> Iterator[Raws]:
    """What was read, SLICE envelopes at a time."""
    start = 0
    for at in range(0, len(raws.sizes), SLICE):
        sizes = raws.sizes[at : at + SLICE]
        end = start + sum(sizes)
        yield Raws(raws.body[start:end], sizes)
        start = end


def _muids(network_topic: str, metadata: MetadataRange, raws: Raws) -> list[Muid | None]:
    names = joined_muids(network_topic, raws.body, raws.sizes)
    if metadata == ALL_METADATA:
        return names
    return [name if name is not None and metadata.has(metadata_of(name)) else None for name in names]


def _envelopes(metadata: MetadataRange, raws: Raws) -> list[bytes | None]:
    metas, ends = joined_metas(raws.body, raws.sizes), accumulate(raws.sizes)
    return [
        raws.body[end - size : end] if meta is not None and metadata.has(meta) else None
        for meta, size, end in zip(metas, raws.sizes, ends, strict=True)
    ]


def _cursor_behind(raws: Raws, taken: Sequence[object], count: int) -> bytes:
    """The cursor of a list that ends with match `count` of what was taken of these."""
    at = next(islice((at for at, each in enumerate(taken) if each is not None), count - 1, None))
    end = sum(raws.sizes[: at + 1])
    last = decode_envelope(raws.body[end - raws.sizes[at] : end])
    return Cursor(last.created, last.hash()).encode()
