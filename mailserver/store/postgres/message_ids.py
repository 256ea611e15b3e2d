"""The statements about message ids in PostgreSQL: rows by arrival, and the tables `ids` and `id_sums`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from mailserver.store.engine import work
from mailserver.store.engine.id_access import IndexMark, RowName, WalkedRows
from mailserver.store.engine.id_sums import ID_BYTES
from mailserver.store.engine.keys import HASH_PREFIX_BYTES, pieces
from mailserver.store.engine.lookups import PlaceRange
from mailserver.store.engine.message_ids import StoredMessageIds
from mailserver.store.engine.snapshots import SnapshotReader
from mailserver.store.interface import Payer
from mailserver.store.postgres.lookups import PostgresLookups, bounds, within
from mailserver.store.postgres.readers import REMOVED, PaidReader, ReaderPool
from mailserver.store.postgres.rows import RowPlaces, RowReader

_STATE = "(SELECT network_topic FROM id_index), (SELECT until_seq FROM id_index)"
_STATE_ALONE = f"SELECT {_STATE}"
_GOAL = f"SELECT {_STATE}, (SELECT coalesce(max(seq), 0) FROM envelopes)"
_PACKED = ("array_agg(seq)", "array_agg(created)", "string_agg(hash, ''::bytea)", "string_agg(topic, ''::bytea)")
# A statement that waits for a partition to be made may have been planned without it, and yet see what was stored behind
# it. So a page ends with what was there when an earlier statement had waited.
_END = "SELECT coalesce(max(seq), 0) FROM envelopes"
_ARRIVED = f"""
    SELECT count(*), max(seq), {", ".join(f"{packed} FILTER (WHERE {within(1)})" for packed in _PACKED)}
    FROM (
        SELECT seq, created, topic, hash FROM envelopes WHERE seq > $5 AND seq <= $7 ORDER BY seq LIMIT $6
    ) AS following
"""
_OF_IDS = f"""
    SELECT {REMOVED}, {_STATE}, string_agg(i.id, ''::bytea), array_agg(i.created), string_agg(i.hash, ''::bytea)
    FROM unnest($1::bigint[], $2::bytea[]) AS a (created, id)
    CROSS JOIN LATERAL (SELECT created, id, hash FROM ids WHERE created = a.created AND id = a.id OFFSET 0) AS i
"""
_WALK = f"""
    SELECT {REMOVED}, {_STATE}, string_agg(id, ''::bytea), array_agg(created), string_agg(hash, ''::bytea) FROM (
        SELECT created, id, hash FROM ids
        WHERE created >= $1 AND created < $3 AND (created, id) > ($1, $2) ORDER BY created, id LIMIT $4
    ) AS following
"""
_SUMS = """
    SELECT array_agg(bucket), array_agg(count), string_agg(sum, ''::bytea) FROM (
        SELECT bucket, count, sum FROM id_sums
        WHERE span = $1 AND bucket >= $2 AND bucket <= $3 ORDER BY bucket LIMIT $4
    ) AS following
"""
_IDS = """
    SELECT array_agg(created), string_agg(id, ''::bytea) FROM (
        SELECT created, id FROM ids
        WHERE created >= $1 AND created < $3 AND (created, id) >= ($1, $2) ORDER BY created, id LIMIT $4
    ) AS following
"""


def _names(created: Sequence[int] | None, hashes: bytes | None) -> list[RowName]:
    """Names of rows: (created, stored prefix of the hash)."""
    return [*zip(created or (), pieces(hashes, HASH_PREFIX_BYTES), strict=True)]


class SnapshotTables:
    """A `store.engine.stored_ids.IdTables`."""

    def __init__(self, reader: SnapshotReader) -> None:
        self._reader = reader
        self.spend = reader.spend

    def sums(self, span: int, first: int, last: int, limit: int) -> tuple[list[int], list[int], bytes]:
        """Some buckets of a span."""
        buckets, counts, sums = self._reader.read(_SUMS, (span, first, last, limit))
        return buckets or [], counts or [], sums or b""

    def ids(self, created: int, item_id: bytes, end: int, limit: int) -> tuple[list[int], bytes]:
        """Some ids from a place on."""
        seconds, ids = self._reader.read(_IDS, (created, item_id, end, limit))
        return seconds or [], ids or b""


class PostgresIdAccess:
    """A `store.engine.id_access.IdAccess`."""

    def __init__(self, reader: PaidReader) -> None:
        self._reader = reader
        self.payer = reader.payer
        self.turn = reader.turn
        self.correct = reader.correct
        self.rows = RowReader(reader)

    def lookups(self) -> PostgresLookups:
        """The statements of a new search."""
        return PostgresLookups(self._reader)

    def rows_named(self, names: Sequence[RowName]) -> RowPlaces:
        """The rows of these names."""
        return RowPlaces.of(cast(Sequence[tuple[int, bytes]], names))

    async def index_goal(self) -> tuple[str | None, int | None, int]:
        """The state of the index, and the last row there is."""
        network_topic, until_seq, goal = await self._reader.run(_GOAL, (), work.STATEMENT)
        return network_topic, until_seq, goal

    async def arrived(self, within: PlaceRange, after: int, rows: int) -> WalkedRows:
        """Look at the next rows in the order of arrival."""
        (end,) = await self._reader.run(_END, (), work.STATEMENT)
        most = work.STATEMENT + rows * work.ROW
        walked, last, seqs, created, hashes, topics = await self._reader.run(
            _ARRIVED, (*bounds(within), after, rows, end), most
        )
        self.correct((walked - rows) * work.ROW)
        return WalkedRows(walked, last, seqs or [], _names(created, hashes), created or [], topics or b"")

    async def of_ids(self, places: Sequence[tuple[int, bytes]]) -> tuple[IndexMark, Mapping[bytes, RowName]]:
        """Which of these ids are indexed, and their rows."""
        asked = [created for created, _ in places], [item for _, item in places]
        most = work.STATEMENT + len(places) * (work.ID + work.PAIR)
        network_topic, until_seq, ids, *rows = await self._reader.search(_OF_IDS, asked, most)
        return (network_topic, until_seq), dict(zip(pieces(ids, ID_BYTES), _names(*rows), strict=True))

    async def walk(
        self, after: tuple[int, bytes], end: int, rows: int
    ) -> tuple[IndexMark, int | None, bytes, Sequence[RowName]]:
        """The next ids behind a place."""
        most = work.STATEMENT + rows * work.ROW
        network_topic, until_seq, packed, created, hashes = await self._reader.search(_WALK, (*after, end, rows), most)
        found = _names(created, hashes)
        self.correct((len(found) - rows) * work.ROW)
        return (network_topic, until_seq), created[-1] if created else None, packed or b"", found

    def state_in(self, reader: SnapshotReader) -> IndexMark:
        """The state of the index at the moment of a snapshot."""
        network_topic, until_seq = reader.read(_STATE_ALONE)
        return network_topic, until_seq

    def tables_in(self, reader: SnapshotReader) -> SnapshotTables:
        """The tables at the moment of a snapshot."""
        return SnapshotTables(reader)


@dataclass(frozen=True)
class PostgresMessageIds(StoredMessageIds):
    """Those of a store in PostgreSQL."""

    readers: ReaderPool

    def access(self, payer: Payer) -> PostgresIdAccess:
        """The statements, as a payer runs them."""
        return PostgresIdAccess(PaidReader(self.readers, payer))
