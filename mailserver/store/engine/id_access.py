"""What is asked of the rows and ids of a store about message ids, one statement at a time, at one payer's expense."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from mailserver.store.engine.index_state import StateReader
from mailserver.store.engine.lookups import Lookups, PlaceRange
from mailserver.store.engine.page import RowReader
from mailserver.store.engine.snapshots import ReaderTurns, SnapshotReader
from mailserver.store.engine.stored_ids import IdTables

RowName = Hashable
"""What names a row, as an engine needs it to read the row."""

IndexMark = tuple[str | None, int | None]
"""To which network topic ids belong, and up to which row all are indexed."""


class WalkedRows(NamedTuple):
    """Rows in the order of arrival that were looked at.

    `looked_at`: how many. `last`: the `seq` of the last, None if there are none. All else is of those in range, in
    their order: `topics` one after the other.
    """

    looked_at: int
    last: int | None
    seqs: Sequence[int]
    names: Sequence[RowName]
    created: Sequence[int]
    topics: bytes


class IdAccess(StateReader, ReaderTurns, Protocol):
    """The statements. All but those that are given a snapshot raise StoreError."""

    @property
    def rows(self) -> RowReader[Any]:
        """Reads envelopes."""

    def lookups(self) -> Lookups:
        """The statements of a new search."""

    def rows_named(self, names: Sequence[RowName]) -> Any:
        """The rows of these names, as `rows` reads them."""

    async def arrived(self, within: PlaceRange, after: int, rows: int) -> WalkedRows:
        """Look at the next `rows` rows after a place in the order of arrival."""

    async def of_ids(self, places: Sequence[tuple[int, bytes]]) -> tuple[IndexMark, Mapping[bytes, RowName]]:
        """Which of these ids (created, id), MAX_LOOKUPS at most, are indexed, and their rows."""

    async def walk(
        self, after: tuple[int, bytes], end: int, rows: int
    ) -> tuple[IndexMark, int | None, bytes, Sequence[RowName]]:
        """The next `rows` ids behind a place, created before `end`: the last second, the ids one after the other, and
        their rows. Where a row is damaged, the ids may not fit the rows."""

    def state_in(self, reader: SnapshotReader) -> IndexMark:
        """The state of the index at the moment of a snapshot, in its thread."""

    def tables_in(self, reader: SnapshotReader) -> IdTables:
        """The tables at the moment of a snapshot, in its thread."""
