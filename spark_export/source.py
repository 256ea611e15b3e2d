"""Reading a store, in ranges of `seq`: envelopes for the task that writes them; their keys as a Spark data source.

    spark.dataSource.register(StoreSource)
    spark.read.format("mailserver_store").options(**options_of(...)).load()

Each statement reads some thousand rows and ends: a reader that stays open makes the daemon's WAL grow, or keeps
PostgreSQL from tidying up. The rows of a
range never change, so all statements together see what one would have seen.
"""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from mailserver.archive.fingerprint import MODULUS, Fingerprint
from mailserver.store.sqlite.schema import HASH_PREFIX_BYTES
from mailserver.units import SECONDS_PER_DAY
from spark_export.decode import StoredRows, decode_rows, hex_strings, sound_rows
from spark_export.pieces import Batch, StoreRows
from spark_export.places import address_of, database_at, is_url
from spark_export.schema import KEYS
from spark_export.store import StoreDay, StoreSnapshot, connect, translated
from spark_export.usual_form import Bytes

BATCH_ROWS = 4000
"""Rows of one statement and one Arrow batch, at most: 2 MB of usual envelopes, read in some milliseconds."""

BATCH_BYTES = 16 * 1024 * 1024
"""Bytes of envelopes of one batch, unless one alone has more. BATCH_ROWS of the largest would have 4 GB."""

PARTITION_ROWS = 50_000
"""About how many rows a Spark task reads the keys of."""

END_OF_TIME = 2**62
"""Later than anything was created."""
# The casts cost nothing and keep a damaged row, whose values may be of any type, from ending the run.
_RECEIVED, _CREATED = "CAST(received AS INTEGER)", "CAST(created AS INTEGER)"
_HASH, _RAW = "CAST(hash AS BLOB)", "coalesce(CAST(raw AS BLOB), x'')"
# Columns are made of values of one length: a hash of another length is damaged, and zeros stand for it.
_KEY_HASH = f"CASE length({_HASH}) WHEN {HASH_PREFIX_BYTES} THEN {_HASH} ELSE zeroblob({HASH_PREFIX_BYTES}) END"
_OF_DAY = f"FROM envelopes WHERE seq BETWEEN ? AND ? AND {_RECEIVED} BETWEEN ? AND ? AND {_CREATED} <= ?"
_SELECT_ENVELOPES = f"SELECT seq, {_RECEIVED}, {_CREATED}, topic, {_HASH}, {_RAW} {_OF_DAY} ORDER BY seq"
_SELECT_KEYS = f"SELECT seq, {_RECEIVED}, {_CREATED}, {_KEY_HASH}, length({_RAW}) {_OF_DAY} ORDER BY seq"
# All hashes as one value: to fetch each would take longer than all that SQLite does for it.
_SELECT_TOTALS = f"SELECT count(*), sum(length({_RAW})), CAST(group_concat({_KEY_HASH}, '') AS BLOB) {_OF_DAY}"

# The same of a database, which keeps values of another type or none from ever being there.
_KEY_HASH_THERE = (
    f"CASE octet_length(hash) WHEN {HASH_PREFIX_BYTES} THEN hash ELSE '\\x{'00' * HASH_PREFIX_BYTES}'::bytea END"
)
# `+ 0` keeps the server from the index of (received, seq): by that, each statement would walk through all of the day.
# By the index of seq, it looks only at the rows that it returns.
_OF_DAY_THERE = "FROM envelopes WHERE seq BETWEEN $1 AND $2 AND received + 0 BETWEEN $3 AND $4 AND created <= $5"
_THERE = {
    _SELECT_ENVELOPES: f"SELECT seq, received, created, topic, hash, raw {_OF_DAY_THERE} ORDER BY seq",
    _SELECT_KEYS: (f"SELECT seq, received, created, {_KEY_HASH_THERE}, octet_length(raw) {_OF_DAY_THERE} ORDER BY seq"),
    _SELECT_TOTALS: (
        "SELECT count(*), sum(octet_length(raw))::bigint,"
        f" coalesce(string_agg({_KEY_HASH_THERE}, ''), '') {_OF_DAY_THERE}"
    ),
}
"""For each statement, the same one for PostgreSQL."""

_SIZE = itemgetter(4)
"""The size of the envelope, of a row of _SELECT_KEYS."""

Select = Callable[[str, Sequence[int]], Sequence[Any]]
"""Runs one of the statements above; returns its rows."""

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Faulty:
    """A row of a store that is not an envelope, or not the one that its columns say. `store`: its number; `received`:
    Unix seconds."""

    store: int
    seq: int
    day: int
    received: int
    fault: str
    raw: bytes


_TOLD_OF_FAULTY = ("received", "fault", "raw")


@dataclass(frozen=True, slots=True)
class StoreRange(InputPartition):
    """Rows with `first_seq <= seq <= last_seq` that one store received on one day."""

    store: int
    day: int
    first_seq: int
    last_seq: int


class StoreSource(DataSource):
    """Reads days of reception from stores. Its options are made by `options_of`."""

    @classmethod
    def name(cls) -> str:
        """How `spark.read.format` calls it."""
        return "mailserver_store"

    def schema(self) -> StructType:
        """KEYS."""
        return KEYS

    def reader(self, schema: StructType) -> "StoreReader":
        """A reader of all columns: KEYS."""
        del schema
        return reader_of(self.options)


def options_of(
    stores: Sequence[StoreSnapshot], days: Sequence[Sequence[StoreDay]], created_until: int = END_OF_TIME
) -> dict[str, str]:
    """What tells the source which rows to read.

    Args:
        stores: column `store` numbers them from 0.
        days: of each store, the days of reception to read. Their `last_seq` bounds them.
        created_until: leave out what was created later, Unix seconds.
    """
    tables = [
        {"address": address_of(store.place), "days": [(day.day, day.first_seq, day.last_seq) for day in wanted]}
        for store, wanted in zip(stores, days, strict=True)
    ]
    return {"stores": json.dumps(tables), "created_until": str(created_until)}


def reader_of(options: Mapping[str, str]) -> "StoreReader":
    """What reads KEYS of what `options_of` names."""
    return StoreReader(json.loads(options["stores"]), int(options["created_until"]))


class StoreReader(DataSourceReader):
    """Splits the wanted days into ranges, and reads one range at a time, on whatever worker."""

    def __init__(self, stores: Sequence[Mapping[str, Any]], created_until: int) -> None:
        self._stores = stores
        self._created_until = created_until

    def partitions(self) -> Sequence[StoreRange]:
        """Ranges that cover the wanted days, each row once."""
        return ranges_of([store["days"] for store in self._stores])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a range, batch by batch."""
        assert isinstance(partition, StoreRange)
        schema = to_arrow_schema(KEYS)
        with selecting(self._stores[partition.store]["address"]) as select:
            for of_part in _parts(partition, self._created_until):
                if rows := select(_SELECT_KEYS, of_part):
                    columns = _keys(partition, rows)
                    arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def ranges_of(days: Sequence[Sequence[tuple[int, int, int]]]) -> list[StoreRange]:
    """Ranges that cover days, each row once. Where the clock was set back, those of several days overlap: each row says
    itself which day it belongs to.

    Args:
        days: of each store, numbers of days with their first and last `seq`.
    """
    return [
        StoreRange(number, day, first, min(first + PARTITION_ROWS - 1, end))
        for number, of_store in enumerate(days)
        for day, start, end in of_store
        for first in range(start, end + 1, PARTITION_ROWS)
    ]


def read_totals(address: str, wanted: StoreRange) -> tuple[Fingerprint, list[Batch]]:
    """What the columns of the rows in a range add up to, and the batches to read their envelopes in.

    Raises:
        ExportError: the store cannot be read.
    """
    total = Fingerprint()
    batches: list[Batch] = []
    with selecting(address) as select:
        for of_part in _parts(wanted):
            ((count, size, key_hashes),) = select(_SELECT_TOTALS, of_part)
            if not count:
                continue
            words = _joined(key_hashes).view(">u4")
            high, low = (int(words[:, at].sum(dtype=np.int64)) for at in range(2))
            total += Fingerprint(count, size, ((high << 32) + low) % MODULUS)
            if size <= BATCH_BYTES:
                batches.append(Batch(of_part[0], of_part[1], count, size))
            else:
                batches += [
                    Batch(rows[0][0], rows[-1][0], len(rows), sum(map(_SIZE, rows)))
                    for rows in batched(select(_SELECT_KEYS, of_part), _SIZE)
                ]
    return total, batches


def batched(rows: Iterable[Row], size: Callable[[Row], int]) -> Iterator[list[Row]]:
    """Some rows at a time: at most BATCH_ROWS, with BATCH_BYTES of envelopes, unless one alone has more.

    Args:
        size: of the envelope of a row, in bytes.
    """
    some: list[Row] = []
    room = BATCH_BYTES
    for row in rows:
        if some and (size(row) > room or len(some) == BATCH_ROWS):
            yield some
            some, room = [], BATCH_BYTES
        some.append(row)
        room -= size(row)
    if some:
        yield some


def _parts(wanted: StoreRange, created_until: int = END_OF_TIME) -> Iterator[tuple[int, ...]]:
    """The parameters of statements that read a range, a part after the other."""
    midnight = wanted.day * SECONDS_PER_DAY
    for first in range(wanted.first_seq, wanted.last_seq + 1, BATCH_ROWS):
        last = min(first + BATCH_ROWS - 1, wanted.last_seq)
        yield first, last, midnight, midnight + SECONDS_PER_DAY - 1, created_until


@contextlib.contextmanager
def selecting(address: str) -> Iterator[Select]:
    """Read the store at an address.

    Raises:
        ExportError: it cannot be read.
    """
    if not is_url(address):
        with connect(Path(address)) as connection:
            yield lambda sql, parameters: connection.execute(sql, parameters).fetchall()
        return
    database = database_at(address)
    with translated(), database.connected():
        yield lambda sql, parameters: database.select(_THERE[sql], *parameters)


def read_envelopes(wanted: StoreRows, network_topic: str) -> Iterator[tuple[pa.RecordBatch, list[Faulty]]]:
    """Read rows, batch by batch: ROWS, and the rows that are no envelopes.

    Args:
        network_topic: to which the MUIDs belong.
    """
    left_out = set(wanted.left_out.tolist())
    midnight = wanted.day * SECONDS_PER_DAY
    of_day = midnight, midnight + SECONDS_PER_DAY - 1, END_OF_TIME
    with selecting(wanted.address) as select:
        for batch in wanted.batches:
            rows = select(_SELECT_ENVELOPES, (batch.first_seq, batch.last_seq, *of_day))
            if left_out:
                rows = [row for row in rows if row[0] not in left_out]
            if rows:
                seqs, *columns = zip(*rows, strict=True)
                yield _judged(wanted, seqs, decode_rows(StoredRows(*columns), network_topic))


def _judged(wanted: StoreRows, seqs: Sequence[int], decoded: pa.RecordBatch) -> tuple[pa.RecordBatch, list[Faulty]]:
    is_sound = decoded.column("fault").is_null()
    faulty = [
        Faulty(wanted.store, seqs[at], wanted.day, *(decoded.column(name)[at].as_py() for name in _TOLD_OF_FAULTY))
        for at in np.flatnonzero(~is_sound.to_numpy(zero_copy_only=False)).tolist()
    ]
    stores = pa.repeat(pa.scalar(wanted.store_id, pa.string()), len(seqs))
    return sound_rows(decoded, stores, pa.array(seqs, pa.int64())), faulty


def _keys(partition: StoreRange, rows: Sequence[Any]) -> list[Any]:
    _, received, created, key_hashes, sizes = zip(*rows, strict=True)
    return [*_place(partition, rows), received, created, hex_strings(_joined(b"".join(key_hashes))), sizes]


def _place(partition: StoreRange, rows: Sequence[Any]) -> list[Any]:
    """Columns store, seq, day."""
    return [np.full(len(rows), partition.store), [row[0] for row in rows], np.full(len(rows), partition.day)]


def _joined(key_hashes: bytes) -> Bytes:
    """Hashes that are one after another, as an array with a row for each."""
    return np.frombuffer(key_hashes, np.uint8).reshape(-1, HASH_PREFIX_BYTES)
