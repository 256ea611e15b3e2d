"""The statements about message ids in SQLite: rows by arrival, and the tables `ids` and `id_sums`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mailserver.store.engine import work
from mailserver.store.engine.id_access import IndexMark, RowName, WalkedRows
from mailserver.store.engine.id_sums import ID_BYTES
from mailserver.store.engine.keys import pieces
from mailserver.store.engine.lookups import PlaceRange
from mailserver.store.engine.message_ids import StoredMessageIds
from mailserver.store.engine.snapshots import SnapshotReader
from mailserver.store.interface import Payer
from mailserver.store.sqlite.lookups import WITHIN, Lookups
from mailserver.store.sqlite.packing import SLOTS, numbers, packed_bytes, packed_numbers, slots_for
from mailserver.store.sqlite.reader import RowReader
from mailserver.store.sqlite.reader_pool import PaidReader, ReaderPool

STATE = "(SELECT network_topic FROM id_index), (SELECT until_seq FROM id_index)"

_GOAL = f"SELECT {STATE}, (SELECT coalesce(max(seq), 0) FROM envelopes)"
_ARRIVED = f"""
    SELECT count(*), max(seq), {
    ", ".join(f"{packed} FILTER (WHERE {WITHIN})" for packed in ("group_concat(seq)", "group_concat(created)"))
}, CAST(group_concat(topic, '') FILTER (WHERE {WITHIN}) AS BLOB)
    FROM (SELECT seq, created, topic, hash FROM envelopes WHERE seq > ? ORDER BY seq LIMIT ?)
"""
_WALK = f"""
    SELECT {STATE}, max(created), {packed_bytes("id")}, {packed_numbers("seq")} FROM (
        SELECT created, id, seq FROM ids
        WHERE (created, id) > (?, ?) AND (created, id) < (?, x'') ORDER BY created, id LIMIT ?
    )
"""
_SUMS = f"""
    SELECT
        min(bucket), max(bucket), CASE WHEN max(bucket) - min(bucket) >= count(*) THEN {packed_numbers("bucket")} END,
        {packed_numbers("count")}, {packed_bytes("sum")}
    FROM (
        SELECT bucket, CAST(count AS INTEGER) AS count, sum FROM id_sums
        WHERE span = ? AND bucket >= ? AND bucket <= ? ORDER BY bucket LIMIT ?
    )
"""
_IDS = f"""
    SELECT {packed_numbers("created")}, {packed_bytes("id")} FROM (
        SELECT created, id FROM ids WHERE (created, id) >= (?, ?) AND (created, id) < (?, x'')
        ORDER BY created, id LIMIT ?
    )
"""


def _of_ids(slots: int) -> str:
    return f"""
        WITH asked (created, id) AS (VALUES {", ".join(["(?, ?)"] * slots)})
        SELECT {STATE}, {packed_bytes("id")}, {packed_numbers("seq")} FROM (
            SELECT i.id, i.seq FROM asked AS a CROSS JOIN ids AS i
            WHERE i.created = a.created AND i.id = a.id LIMIT -1
        )
    """


_OF_IDS = {slots: _of_ids(slots) for slots in SLOTS}


class SnapshotTables:
    """A `store.engine.stored_ids.IdTables`."""

    def __init__(self, reader: SnapshotReader) -> None:
        self._reader = reader
        self.spend = reader.spend

    def sums(self, span: int, first: int, last: int, limit: int) -> tuple[list[int], list[int], bytes]:
        """Some buckets of a span."""
        lowest, highest, some, counts, sums = self._reader.read(_SUMS, (span, first, last, limit))
        # Where envelopes are many, no bucket is empty: then it takes as long to unpack the numbers as to find them.
        buckets = numbers(some) if some or lowest is None else [*range(lowest, highest + 1)]
        return buckets, numbers(counts), sums or b""

    def ids(self, created: int, item_id: bytes, end: int, limit: int) -> tuple[list[int], bytes]:
        """Some ids from a place on."""
        seconds, ids = self._reader.read(_IDS, (created, item_id, end, limit))
        return numbers(seconds), ids or b""


class SqliteIdAccess:
    """A `store.engine.id_access.IdAccess`. The name of a row is its `seq`."""

    def __init__(self, reader: PaidReader) -> None:
        self._reader = reader
        self.payer = reader.payer
        self.turn = reader.turn
        self.correct = reader.correct
        self.rows = RowReader(reader)

    def lookups(self) -> Lookups:
        """The statements of a new search."""
        return Lookups(self._reader)

    def rows_named(self, names: Sequence[RowName]) -> Sequence[Any]:
        """The rows of these names."""
        return names

    async def index_goal(self) -> tuple[str | None, int | None, int]:
        """The state of the index, and the last row there is."""
        ((network_topic, until_seq, goal),) = await self._reader.run(_GOAL, (), work.STATEMENT)
        return network_topic, until_seq, goal

    async def arrived(self, within: PlaceRange, after: int, rows: int) -> WalkedRows:
        """Look at the next rows in the order of arrival."""
        most = work.STATEMENT + rows * work.ROW
        ((walked, last, *packed, topics),) = await self._reader.run(_ARRIVED, (*within * 3, after, rows), most)
        self.correct((walked - rows) * work.ROW)
        seqs, created = map(numbers, packed)
        return WalkedRows(walked, last, seqs, seqs, created, topics or b"")

    async def of_ids(self, places: Sequence[tuple[int, bytes]]) -> tuple[IndexMark, Mapping[bytes, RowName]]:
        """Which of these ids are indexed, and their rows."""
        slots = slots_for(len(places))
        parameters: list[object] = [value for place in places for value in place]
        parameters += [None] * (2 * slots - len(parameters))  # these match nothing
        most = work.STATEMENT + len(places) * (work.ID + work.PAIR)
        ((network_topic, until_seq, ids, seqs),) = await self._reader.run(_OF_IDS[slots], parameters, most)
        return (network_topic, until_seq), dict(zip(pieces(ids, ID_BYTES), numbers(seqs), strict=True))

    async def walk(
        self, after: tuple[int, bytes], end: int, rows: int
    ) -> tuple[IndexMark, int | None, bytes, Sequence[RowName]]:
        """The next ids behind a place."""
        most = work.STATEMENT + rows * work.ROW
        ((network_topic, until_seq, last, packed, seqs),) = await self._reader.run(_WALK, (*after, end, rows), most)
        found = numbers(seqs)
        self.correct((len(found) - rows) * work.ROW)
        return (network_topic, until_seq), last, packed or b"", found

    def state_in(self, reader: SnapshotReader) -> IndexMark:
        """The state of the index at the moment of a snapshot."""
        network_topic, until_seq = reader.read(f"SELECT {STATE}")
        return network_topic, until_seq

    def tables_in(self, reader: SnapshotReader) -> SnapshotTables:
        """The tables at the moment of a snapshot."""
        return SnapshotTables(reader)


@dataclass(frozen=True)
class SqliteMessageIds(StoredMessageIds):
    """Those of a store in SQLite."""

    readers: ReaderPool

    def access(self, payer: Payer) -> SqliteIdAccess:
        """The statements, as a payer runs them."""
        return SqliteIdAccess(PaidReader(self.readers, payer))
