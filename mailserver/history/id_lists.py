"""What a query about message ids finds: newest first in whatever answers history requests, the store and the archive.

Nothing needs to be kept for it: a MUID is made from the envelope that it names. Lists in the order of arrival, and what
finds envelopes by id, are the store's (`store.message_ids`).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, islice
from typing import Generic, TypeVar

from mailserver.history.id_search import AtOnce, IdSearch, MeteredPayer, ReadPiece, Selection, arrival_cursor
from mailserver.history.read_ahead import ReadAhead
from mailserver.ids.envelopes import joined_metas, joined_muids
from mailserver.ids.muid import Muid, metadata_of
from mailserver.store.interface import GoesOn, HistorySource, Payer, Query, Raws, always
from mailserver.store.message_ids import ALL_METADATA, ArrivedIds, MessageIds, MetadataRange
from mailserver.wakuid.packets import MAX_FETCHED_IDS, Order

IDS_AT_ONCE = MAX_FETCHED_IDS
"""Of how many envelopes MUIDs are made at once: those of a packet."""

BYTES_AT_ONCE = 1024 * 1024
"""How many bytes of envelopes are read for that."""

READ_AHEAD = 4
"""So many lists of ids read ahead at a time. While its client stalls, such a list keeps what it has read ahead, up to
BYTES_AT_ONCE or one envelope, and MUIDs of as much, and keys of 32 bytes of FOUND_AHEAD matches. Another keeps the keys
of a packet."""

FOUND_AHEAD = 4000
"""How many matches such a list looks for at once, and how many it reads, if they are short. To look for those of each
packet alone takes so many trips to the store's threads that it waits again for what it reads ahead."""

SLICE = 256
"""What was read is looked at in slices of so many envelopes, between which others go on. One of usual envelopes takes
half a millisecond."""

ID_WORK = 10
"""To look at the metadata of an envelope, and make its MUID, costs as much as this much work of the store."""


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
    _reading_ahead: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(READ_AHEAD), init=False)

    async def list(self, selection: Selection, limit: int, payer: Payer, goes_on: GoesOn = always) -> IdList:
        """List the first `limit` ids of a selection.

        Args:
            limit: MAX_IDS_OF_PAGE at most.
            payer: for whom to read, as in `HistorySource.find`.
            goes_on: whether to go on after this much work. If not, the list ends early.
        Raises:
            CursorOfAnotherStore: the cursor is of the order of arrival of another store.
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
    ) -> "AsyncIterator[IdMatches[Muid]]":
        """Find the first `limit` ids of a selection that is newest first, to be read `count` at a time.

        Raises:
            DecodeError: the cursor is none of such a list.
        """
        at_once = AtOnce(count, BYTES_AT_ONCE)
        search = IdSearch(self.source, selection, payer, goes_on, count, at_once, reads_found=True)
        async with ReadAhead[ReadPiece | None](self._reading_ahead) as ahead:
            yield IdMatches(search, partial(_muids, self.ids.network_topic, selection.metadata), limit, ahead)

    async def _as_arrived(self, selection: Selection, limit: int, payer: Payer, goes_on: GoesOn) -> IdList:
        after, query = selection.after(self.ids.store_id), Query(*selection.bounds, selection.interest)
        metadata, meter = selection.metadata, MeteredPayer(payer, goes_on)
        muids: list[Muid] = []
        arrived = ArrivedIds((), after, is_all=query.lower > query.upper)
        while len(muids) < limit and not arrived.is_all:
            arrived = await self.ids.as_arrived(
                query, limit - len(muids), after=arrived.end, payer=meter.payer, goes_on=meter.goes_on
            )
            muids += [name for name in arrived.muids if metadata.has(metadata_of(name))]
            if not meter.goes_on():
                break
        return IdList(muids, arrival_cursor(self.ids.store_id, arrived.end), arrived.is_all)


T = TypeVar("T")


class IdMatches(Generic[T]):
    """What a query finds, newest first: MUIDs, or envelopes. They read themselves, some at a time, at their payer's
    expense.

    Envelopes without an id are left out. `left`: how many may still be read.
    """

    def __init__(
        self,
        search: IdSearch,
        taking: Callable[[Raws], list[T | None]],
        limit: int,
        ahead: ReadAhead[ReadPiece | None] | None = None,
    ) -> None:
        """Begin, where a search does. As many are read at a time as that reads at once when it begins.

        Args:
            taking: makes what is wanted of each of some envelopes that were read; None of one that is not wanted.
            limit: how many are read at most.
            ahead: what comes next is read there while what was read before is worked on. None: it is not.
        """
        self._search = search
        self._taking = taking
        self._ahead = ahead
        self._at_a_time = search.at_once.envelopes
        self._cut_at = b""  # the cursor of a list that ends between two matches of a page
        self._taken: list[T] = []  # what of a piece was not read yet
        self._wanted = limit  # of what follows the pieces that were taken
        self._is_searched = not limit
        self.left = limit

    @property
    def is_over(self) -> bool:
        """Whether nothing follows, as far as is known."""
        return self._is_searched and not self._taken

    async def read(self) -> list[T]:
        """Read the next matches. None at all: the search is over, and `cursor` says whether there may be more.

        Raises:
            StoreError: the source cannot be read.
        """
        while not self._taken and not self._is_searched:
            piece = await self._next_piece()
            if piece is None:
                self._is_searched = True
            else:
                self._taken = await self._take(piece)
                self._is_searched = not (self._wanted and piece.may_be_more)
        found = self._taken[: self._at_a_time]
        del self._taken[: self._at_a_time]
        self.left -= len(found)
        return found

    async def _next_piece(self) -> ReadPiece | None:
        ahead, search = self._ahead, self._search
        piece = await (search.read(self._wanted) if ahead is None or not ahead.has_begun else ahead.next())
        if ahead is not None and piece is not None and piece.may_be_more:
            wanted = self._wanted - len(piece.raws.sizes)
            if wanted > 0 and await ahead.take_place():
                search.found_at_once = FOUND_AHEAD
                search.at_once = search.at_once._replace(envelopes=FOUND_AHEAD)
                ahead.begin(search.read(wanted))
        return piece

    async def _take(self, piece: ReadPiece) -> list[T]:
        raws = piece.raws
        self._search.meter.charge((len(raws.sizes) - raws.sizes.count(0)) * ID_WORK)
        taken: list[T | None] = []
        for some in _slices(raws):
            await asyncio.sleep(0)
            taken += self._taking(some)
        found = [each for each in taken if each is not None]
        if len(found) > self._wanted or (found and len(found) == self._wanted and piece.is_cut):
            there = (at for at, each in enumerate(taken) if each is not None)
            self._cut_at = piece.cursor_behind(next(islice(there, self._wanted - 1, None)))
            del found[self._wanted :]
        self._wanted -= len(found)
        return found

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
) -> IdMatches[bytes]:
    """The first `limit` envelopes of a selection, as they were received: see `IdMatches`.

    Args:
        payer: for whom to read, as in `HistorySource.find`.
        goes_on: whether to go on after this much work.
    Raises:
        DecodeError: the cursor is none of a list that is newest first.
    """
    search = IdSearch(source, selection, payer, goes_on, limit, at_once)
    return IdMatches(search, partial(_envelopes, selection.metadata), limit)


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
