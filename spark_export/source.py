"""The store as a Spark data source: read-only, in ranges of `seq`, moving Arrow batches.

    spark.dataSource.register(StoreSource)
    spark.read.format("mailserver_store").options(**options_of(...)).load()

Each statement reads some thousand rows and ends: a reader that stays open makes the daemon's WAL grow. The rows of a
range never change, so all statements together see what one would have seen.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from mailserver.errors import DecodeError
from mailserver.store.rows import decode_and_compare
from mailserver.store.schema import HASH_PREFIX_BYTES, SECONDS_PER_DAY
from spark_export.schema import KEYS, STORED_ENVELOPES, TOTALS
from spark_export.store import Store, StoreDay, connect

BATCH_ROWS = 4000
"""Rows of one statement and one Arrow batch: 2 MB of usual envelopes, read in some milliseconds."""

PARTITION_ROWS = 50_000
"""About how many rows a Spark task reads."""

_DATASETS = {"envelopes": STORED_ENVELOPES, "keys": KEYS, "totals": TOTALS}
END_OF_TIME = 2**62
"""Later than anything was created."""
# The casts cost nothing and keep a damaged row, whose values may be of any type, from ending the run.
_RECEIVED, _CREATED = "CAST(received AS INTEGER)", "CAST(created AS INTEGER)"
_HASH, _RAW = "CAST(hash AS BLOB)", "CAST(raw AS BLOB)"
_RANGE = f"FROM envelopes WHERE seq BETWEEN ? AND ? AND {_CREATED} <= ? ORDER BY seq"
_SELECT_ENVELOPES = f"SELECT seq, {_RECEIVED}, {_CREATED}, topic, {_HASH}, {_RAW} {_RANGE}"
_SELECT_KEYS = f"SELECT seq, {_RECEIVED}, {_CREATED}, {_HASH}, length({_RAW}) {_RANGE}"
_SELECT_TOTALS = f"SELECT seq, {_RECEIVED}, {_HASH}, length({_RAW}) {_RANGE}"


@dataclass(frozen=True, slots=True)
class StoreRange(InputPartition):
    """Rows with `first_seq <= seq <= last_seq` of one store."""

    store: int
    first_seq: int
    last_seq: int


class StoreSource(DataSource):
    """Reads days of reception from stores. Its options are made by `options_of`."""

    @classmethod
    def name(cls) -> str:
        """How `spark.read.format` calls it."""
        return "mailserver_store"

    def schema(self) -> StructType:
        """STORED_ENVELOPES, KEYS or TOTALS."""
        return _DATASETS[self.options["dataset"]]

    def reader(self, schema: StructType) -> "StoreReader":
        """A reader of the columns in `schema`."""
        until = int(self.options["created_until"])
        return StoreReader(schema, json.loads(self.options["stores"]), self.options["dataset"], until)


def options_of(
    stores: Sequence[Store], days: Sequence[Sequence[StoreDay]], dataset: str, created_until: int = END_OF_TIME
) -> dict[str, str]:
    """What tells the source which rows to read.

    Args:
        stores: column `store` numbers them from 0.
        days: of each store, the days of reception to read. Their `last_seq` bounds them.
        dataset: "envelopes", "keys" or "totals".
        created_until: leave out what was created later, Unix seconds.
    """
    tables = [
        {"path": str(store.path.absolute()), "days": [(day.day, day.first_seq, day.last_seq) for day in wanted]}
        for store, wanted in zip(stores, days, strict=True)
    ]
    return {"stores": json.dumps(tables), "dataset": dataset, "created_until": str(created_until)}


class StoreReader(DataSourceReader):
    """Splits the wanted days into ranges, and reads one range at a time, on whatever worker."""

    def __init__(
        self, schema: StructType, stores: Sequence[Mapping[str, Any]], dataset: str, created_until: int
    ) -> None:
        self._schema = schema
        self._paths = [Path(store["path"]) for store in stores]
        self._days = [{day: (first, last) for day, first, last in store["days"]} for store in stores]
        self._dataset = dataset
        self._created_until = created_until

    def partitions(self) -> Sequence[InputPartition]:
        """Ranges that cover the wanted days, each row once."""
        return [
            StoreRange(store, first, min(first + PARTITION_ROWS - 1, end))
            for store, days in enumerate(self._days)
            for start, end in _merged(days.values())
            for first in range(start, end + 1, PARTITION_ROWS)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a range, batch by batch, but for rows of days that are not wanted."""
        assert isinstance(partition, StoreRange)
        schema = to_arrow_schema(self._schema)
        select, columns = {
            "envelopes": (_SELECT_ENVELOPES, self._envelopes),
            "keys": (_SELECT_KEYS, self._keys),
            "totals": (_SELECT_TOTALS, self._totals),
        }[self._dataset]
        with connect(self._paths[partition.store]) as connection:
            for first in range(partition.first_seq, partition.last_seq + 1, BATCH_ROWS):
                last = min(first + BATCH_ROWS - 1, partition.last_seq)
                stored = connection.execute(select, (first, last, self._created_until))
                rows = list(columns(partition.store, stored))
                if rows:
                    arrays = map(pa.array, zip(*rows, strict=True), schema.types)
                    yield pa.RecordBatch.from_arrays(list(arrays), schema=schema)

    def _wanted(self, store: int, seq: int, received: int) -> int | None:
        """The day of reception, if it is wanted."""
        day = received // SECONDS_PER_DAY
        bounds = self._days[store].get(day)
        return day if bounds is not None and bounds[0] <= seq <= bounds[1] else None

    def _keys(self, store: int, rows: Iterator[Any]) -> Iterator[tuple[object, ...]]:
        for seq, received, created, key_hash, size in rows:
            day = self._wanted(store, seq, received)
            if day is not None:
                yield store, seq, day, received, created, "0x" + _whole(key_hash).hex(), size

    def _totals(self, store: int, rows: Iterator[Any]) -> Iterator[tuple[object, ...]]:
        totals: dict[int, tuple[int, int, int]] = {}
        for seq, received, key_hash, size in rows:
            day = self._wanted(store, seq, received)
            if day is not None:
                count, size_sum, checksum = totals.get(day, (0, 0, 0))
                totals[day] = (count + 1, size_sum + size, checksum + int.from_bytes(_whole(key_hash)[:8], "big"))
        for day, (count, size_sum, checksum) in totals.items():
            yield store, day, count, size_sum, checksum >> 32, checksum & 0xFFFF_FFFF

    def _envelopes(self, store: int, rows: Iterator[Any]) -> Iterator[tuple[object, ...]]:
        for seq, received, created, topic, key_hash, raw in rows:
            day = self._wanted(store, seq, received)
            if day is not None:
                yield (store, seq, day, *decode_row(received, created, topic, key_hash, raw))


def decode_row(received: int, created: int, topic: bytes, key_hash: bytes, raw: bytes) -> tuple[object, ...]:
    """Decode a row of a store into the columns from `fault` on of STORED_ENVELOPES.

    What does not decode, or is not what the row's other columns say (a bit turned on the disk, say), gets a fault.
    """
    try:
        envelope, full_hash = decode_and_compare(created, topic, key_hash, raw)
    except DecodeError as error:
        return _faulty(str(error), received, raw)
    return (
        None,
        "0x" + topic.hex(),
        created,
        received,
        envelope.expiry,
        envelope.ttl,
        "0x" + full_hash.hex(),
        envelope.pow(),
        len(raw),
        raw,
    )


def _faulty(fault: str, received: int, raw: bytes) -> tuple[object, ...]:
    return (fault, None, None, received, None, None, None, None, None, raw)


def _whole(key_hash: bytes) -> bytes:
    """A stored hash, which a damaged row may have at any length."""
    return key_hash[:HASH_PREFIX_BYTES].ljust(HASH_PREFIX_BYTES, b"\0")


def _merged(ranges: Any) -> list[tuple[int, int]]:
    """Ranges that overlap, joined: days do where the clock was set back."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return joined
