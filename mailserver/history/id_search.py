"""Looks for what a list of message ids, newest first, is made of: in whatever answers history requests.

A cursor is where a list ended: created(4) || envelope hash(32) of the last one if it was newest first, where zeros may
stand for the part of the hash that a store's index has not; in the order of arrival, identity of the store(16) || place
in it(8).
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from mailserver.errors import DecodeError
from mailserver.history.sending import LIKELY_BYTES
from mailserver.mail.request import Cursor
from mailserver.store.interface import GoesOn, HistorySource, Page, Payer, Place, Query, Raws
from mailserver.store.message_ids import ALL_METADATA, BEFORE_ALL, Arrival, MetadataRange
from mailserver.waku.bloom import FULL_INTEREST, Interest
from mailserver.wakuid.packets import Order

STORE_ID_BYTES = 16
ARRIVAL_BYTES = 8

FOUND_BYTES = 4 * 1024 * 1024
"""No more is looked for at once than what will have so many bytes, if the envelopes are as long as those before: what
was found is read to its end, whatever it costs."""

SEARCHED_AT_ONCE = 512
"""How many matches are looked for at once where only some of them are in the range of metadata."""

_MAX_ARRIVAL = (1 << 63) - 1


class CursorOfAnotherStore(DecodeError):
    """A list was to go on behind a place of another store, or of this one before it was put back to an earlier moment:
    other envelopes have such places here."""

    def __init__(self) -> None:
        super().__init__("cursor is of another store, or of before this one was restored: begin anew")


def arrival_cursor(store_id: str, end: Arrival) -> bytes:
    """The cursor of a list in the order of arrival.

    Args:
        store_id: the store's identity, hex digits.
    """
    return bytes.fromhex(store_id) + int(end).to_bytes(ARRIVAL_BYTES, "big")


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

    def after(self, store_id: str) -> Arrival:
        """After which arrival a list in the order of arrival goes on.

        Args:
            store_id: the store's identity, hex digits.
        Raises:
            CursorOfAnotherStore: the cursor is of another store.
            DecodeError: the cursor is none of such a list.
        """
        if not self.cursor:
            return BEFORE_ALL
        store, place = self.cursor[:STORE_ID_BYTES], int.from_bytes(self.cursor[STORE_ID_BYTES:], "big")
        if len(self.cursor) != STORE_ID_BYTES + ARRIVAL_BYTES or place > _MAX_ARRIVAL:
            raise DecodeError("cursor is not of a list in the order of arrival", got=len(self.cursor))
        if store != bytes.fromhex(store_id):
            raise CursorOfAnotherStore
        return Arrival(place)


class MeteredPayer:
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


class ReadPiece(NamedTuple):
    """What was read at once, of which page, and how many of the page were read before. `is_cut`: whether more of the
    same page is left to read; `may_be_more`: whether that is so, or another search may find more."""

    raws: Raws
    page: Page
    first: int
    is_cut: bool
    may_be_more: bool

    def cursor_behind(self, number: int) -> bytes:
        """Where a list goes on that ends with one of these, by its number."""
        return Cursor(*self.page.place(self.first + number)).encode()


class IdSearch:
    """Finds what a selection may have, newest first, and reads it piece by piece, at a payer's expense.

    `found_at_once`: how many are looked for at once, if so many are wanted. `at_once`: how much is read at once.
    """

    def __init__(
        self,
        source: HistorySource,
        selection: Selection,
        payer: Payer,
        goes_on: GoesOn,
        found_at_once: int,
        at_once: AtOnce,
        *,
        reads_found: bool = False,
    ) -> None:
        """Begin with nothing found.

        Args:
            reads_found: whether all that is found is read at once. Then a store may do both in one statement.
        Raises:
            DecodeError: the cursor is none of a list that is newest first.
        """
        self._source = source
        read_bytes = at_once.bytes if reads_found and selection.interest == FULL_INTEREST else 0
        self._query = Query(*selection.bounds, selection.interest, selection.below(), read_bytes)
        self._is_of_all = selection.metadata == ALL_METADATA
        self._page: Page | None = None
        self._at = 0  # how many of it were read
        self._mean = LIKELY_BYTES
        self.meter = MeteredPayer(payer, goes_on)
        self.found_at_once = found_at_once
        self.at_once = at_once

    async def read(self, wanted: int) -> ReadPiece | None:
        """Read the next piece; None at the end, or if the search is not to go on.

        Args:
            wanted: how many are wanted of what follows, at least 1.
        Raises:
            StoreError: the source cannot be read.
        """
        page = await self._next_page(wanted)
        if page is None:
            return None
        # As many as will fit if they are as long as those of the piece before.
        count = min(page.left, self.at_once.envelopes, self.at_once.bytes // self._mean + 1)
        raws = await page.read(count, self.at_once.bytes)
        if raws.body:
            self._mean = len(raws.body) // (len(raws.sizes) - raws.sizes.count(0))
        first, is_cut = self._at, page.left > 0
        self._at += len(raws.sizes)
        return ReadPiece(raws, page, first, is_cut, may_be_more=is_cut or page.end is not None)

    async def _next_page(self, wanted: int) -> Page | None:
        """A page of the source of which something is left; None if there is none, or the search is not to go on."""
        while self._page is None or not self._page.left:
            if self._page is not None:
                if self._page.end is None or not self.meter.goes_on():
                    return None
                self._query = replace(self._query, below=self._page.end)
            if self._query.lower > self._query.upper:
                return None
            # If few of them are in the range, not every search is for the few that are still wanted.
            most = min(wanted, self.found_at_once) if self._is_of_all else SEARCHED_AT_ONCE
            rows = min(most, (self._query.read_bytes or FOUND_BYTES) // self._mean + 1)
            self._page = await self._source.find(self._query, rows, payer=self.meter.payer, goes_on=self.meter.goes_on)
            self._at = 0
        return self._page

    @property
    def cursor(self) -> bytes:
        """Where the next page begins, once all was read that was found; empty if there is none."""
        end = self._query.below if self._page is None else self._page.end
        return b"" if end is None or self._query.lower > self._query.upper else Cursor(*end).encode()
