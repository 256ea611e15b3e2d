"""What a query about message ids finds: newest first in whatever answers history requests, the store and the archive.

Nothing needs to be kept for it: a MUID is made from the envelope that it names. Lists in the order of arrival, and what
finds envelopes by id, are the store's (`store.message_ids`).

A cursor is where a list ended: created(4) || envelope hash(32) of the last one if it was newest first; in the order of
arrival, 8 bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, islice
from typing import Generic, TypeVar

from mailserver.errors import DecodeError
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
"""Of how many envelopes MUIDs are made at once: those of a packet. It takes 1.7 ms."""

BYTES_AT_ONCE = 1024 * 1024
"""How many bytes of envelopes are read for that."""

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
        found = matching_ids(self.source, self.ids.network_topic, selection, limit, payer, goes_on)
        muids: list[Muid] = []
        while more := await found.read(IDS_AT_ONCE, BYTES_AT_ONCE):
            muids += more
        return IdList(muids, found.cursor, is_all=not found.cursor)

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


T = TypeVar("T")


class Matches(Generic[T]):
    """What a query finds, newest first: MUIDs, or envelopes. They read themselves, some at a time, at their payer's
    expense.

    Envelopes without an id are left out. `left`: how many may still be read.
    """

    def __init__(
        self,
        source: HistorySource,
        taking: Callable[[Raws], list[T | None]],
        selection: Selection,
        limit: int,
        payer: Payer,
        goes_on: GoesOn = always,
    ) -> None:
        """Find the first `limit` envelopes of a selection.

        Args:
            taking: makes what is wanted of each of some envelopes that were read; None of one that is not wanted.
            payer: for whom to read, as in `HistorySource.find`.
            goes_on: whether to go on after this much work.
        Raises:
            DecodeError: the cursor is none of a list that is newest first.
        """
        self._source = source
        self._taking = taking
        self._query = Query(*selection.bounds, selection.interest, selection.below())
        self._is_of_all = selection.metadata == ALL_METADATA
        self._meter = _Meter(payer, goes_on)
        self._page: Page | None = None
        self._cut_at = b""  # the cursor of a list that ends between two matches of a page
        self.left = limit

    async def read(self, count: int, max_bytes: int) -> list[T]:
        """Read the next matches. None at all: the search is over, and `cursor` says whether there may be more.

        Args:
            count, max_bytes: how many at most, as in `store.interface.Page.read`.
        Raises:
            StoreError: the source cannot be read.
        """
        while self.left and (page := await self._next_page()) is not None:
            raws = await page.read(min(page.left, count), max_bytes)
            self._meter.charge((len(raws.sizes) - raws.sizes.count(0)) * ID_WORK)
            taken = self._taking(raws)
            found = [each for each in taken if each is not None]
            if found:
                if len(found) > self.left or (len(found) == self.left and page.left > 0):
                    self._cut_at = _cursor_behind(raws, taken, self.left)
                    del found[self.left :]
                self.left -= len(found)
                return found
        return []

    @property
    def cursor(self) -> bytes:
        """Where the next page begins, once the search is over; empty if there is none."""
        if self._cut_at:
            return self._cut_at
        end = self._query.below if self._page is None else self._page.end
        return b"" if end is None or self._query.lower > self._query.upper else Cursor(*end).encode()

    async def _next_page(self) -> Page | None:
        """A page of the source of which something is left; None if there is none, or the search is not to go on."""
        while self._page is None or not self._page.left:
            if self._page is not None:
                if self._page.end is None or not self._meter.goes_on():
                    return None
                self._query = replace(self._query, below=self._page.end)
            if self._query.lower > self._query.upper:
                return None
            # If few of them are in the range, not every search is for the few that are still wanted.
            rows = self.left if self._is_of_all else SEARCHED_AT_ONCE
            self._page = await self._source.find(
                self._query, rows, payer=self._meter.payer, goes_on=self._meter.goes_on
            )
        return self._page


def matching_ids(
    source: HistorySource,
    network_topic: str,
    selection: Selection,
    limit: int,
    payer: Payer,
    goes_on: GoesOn = always,
) -> Matches[Muid]:
    """The MUIDs of the first `limit` envelopes of a selection: see `Matches`."""
    return Matches(source, partial(_muids, network_topic, selection.metadata), selection, limit, payer, goes_on)


def matching_envelopes(
    source: HistorySource, selection: Selection, limit: int, payer: Payer, goes_on: GoesOn = always
) -> Matches[bytes]:
    """The first `limit` envelopes of a selection, as they were received: see `Matches`."""
    return Matches(source, partial(_envelopes, selection.metadata), selection, limit, payer, goes_on)


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
