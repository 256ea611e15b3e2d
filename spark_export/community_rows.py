"""The envelopes that may belong to history archives, from all that we have: the Parquet archive, stores, and holdings.

A row is an envelope of a channel's topic: CANDIDATES. The same envelope may come from several sources. Stores and
holdings (`mailserver.community.owner.holdings`) have the same columns, and are read by the same statements.
"""

import contextlib
import functools
import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from mailserver.archive.archive import Archive
from mailserver.communities.formats import TimeRange
from mailserver.errors import DecodeError
from mailserver.store.sqlite.row_check import decode_and_compare
from mailserver.store.sqlite.schema import HASH_PREFIX_BYTES
from mailserver.units import SECONDS_PER_DAY
from mailserver.waku.envelope import Topic
from spark_export.errors import ExportError
from spark_export.read import read_archive
from spark_export.storage import open_storage
from spark_export.store import connect

KEYS_ONLY = StructType(
    [
        StructField("topic", StringType(), nullable=False),  # 0x and 8 hex digits
        StructField("created", LongType(), nullable=False),  # Unix seconds
        StructField("received", LongType(), nullable=False),  # Unix seconds
        StructField("key", BinaryType(), nullable=False),  # the first 16 bytes of its hash
    ]
)
CANDIDATES = StructType([*KEYS_ONLY.fields, StructField("raw", BinaryType(), nullable=False)])

BATCH_ROWS = 4000
"""Rows of one statement."""

PARTITION_DAYS = 14
"""How many days of creation that have rows a task reads."""

_BUSY_TIMEOUT_S = 30.0
_NEXT_DAY = "SELECT min(created) / 86400 FROM envelopes WHERE created >= ?"
_HASH = f"CASE length(CAST(hash AS BLOB)) WHEN {HASH_PREFIX_BYTES} THEN CAST(hash AS BLOB) END"
_OF_TOPIC = "FROM envelopes WHERE created / 86400 = ? AND topic = ? AND (created, hash) > (?, ?)"
_IN_ORDER = f"{_OF_TOPIC} ORDER BY created, hash LIMIT {BATCH_ROWS}"
_SELECT_KEYS = f"SELECT created, CAST(received AS INTEGER), {_HASH} {_IN_ORDER}"
_SELECT_ENVELOPES = f"SELECT created, CAST(received AS INTEGER), {_HASH}, CAST(raw AS BLOB) {_IN_ORDER}"


@dataclass(frozen=True, slots=True)
class Sources:
    """Where envelopes are: the archive's place, stores, and holdings of communities. What is not there yet is left
    out by `present`."""

    archive: str | None
    stores: tuple[Path, ...]
    holdings: tuple[Path, ...]


def candidates(
    spark: SparkSession, sources: Sources, topics: Sequence[Topic], spans: Sequence[TimeRange], *, keys_only: bool
) -> DataFrame:
    """All envelopes of these topics that were created in these spans: KEYS_ONLY, or CANDIDATES.

    Args:
        spans: not empty, in order, apart from each other.
    Raises:
        ExportError: a store cannot be read.
        ArchiveError: the archive cannot be read.
    """
    schema = KEYS_ONLY if keys_only else CANDIDATES
    spark.dataSource.register(EnvelopeSource)
    names = [f"0x{topic.hex()}" for topic in topics]
    told = {
        "stores": [str(path.absolute()) for path in sources.stores],
        "holdings": [str(path.absolute()) for path in sources.holdings],
        "topics": names,
        "spans": [tuple(each) for each in spans],
    }
    options = {"wanted": json.dumps(told), "schema": schema.json()}
    frame = spark.read.format(EnvelopeSource.name()).options(**options).load()
    if sources.archive is not None and Archive(open_storage(spark, sources.archive)).layout() is not None:
        columns = ("topic", "created", "received", "hash", *(() if keys_only else ("raw",)))
        first, end = spans[0].lower, spans[-1].upper
        archived = read_archive(spark, sources.archive, names, first, end, columns)
        key = F.unhex(F.substring("hash", 3, 2 * HASH_PREFIX_BYTES)).alias("key")
        archived = archived.select(*(key if name == "key" else F.col(name) for name in schema.fieldNames()))
        frame = frame.unionByName(archived)
    if len(spans) == 1:
        return frame.where(F.col("created").between(spans[0].lower, spans[0].upper - 1))
    within = [F.col("created").between(each.lower, each.upper - 1) for each in spans]
    return frame.where(functools.reduce(lambda one, other: one | other, within))


class EnvelopeSource(DataSource):
    """Reads what `candidates` tells it from stores and holdings."""

    @classmethod
    def name(cls) -> str:
        """How `spark.read.format` calls it."""
        return "mailserver_envelopes"

    def schema(self) -> StructType:
        """KEYS_ONLY or CANDIDATES."""
        return StructType.fromJson(json.loads(self.options["schema"]))

    def reader(self, schema: StructType) -> "EnvelopeReader":
        """A reader of the columns in `schema`."""
        return EnvelopeReader(schema, json.loads(self.options["wanted"]))


@dataclass(frozen=True, slots=True)
class EnvelopeDays(InputPartition):
    """Days of creation of one database, in Unix seconds / 86400."""

    path: str
    is_store: bool
    days: tuple[int, ...]


class EnvelopeReader(DataSourceReader):
    """Reads some days of one database in each task, on whatever worker."""

    def __init__(self, schema: StructType, wanted: dict[str, Any]) -> None:
        self._schema = schema
        self._wanted = wanted

    def partitions(self) -> Sequence[InputPartition]:
        """Days that have rows, some of them together."""
        parts = []
        for kind in ("stores", "holdings"):
            for path in self._wanted[kind]:
                with _connect(path, is_store=kind == "stores") as connection:
                    days = [*dict.fromkeys(self._days(connection))]
                parts += [
                    EnvelopeDays(path, kind == "stores", tuple(days[at : at + PARTITION_DAYS]))
                    for at in range(0, len(days), PARTITION_DAYS)
                ]
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the days, batch by batch."""
        assert isinstance(partition, EnvelopeDays)
        schema = to_arrow_schema(self._schema)
        with_raw = "raw" in schema.names
        statement = _SELECT_ENVELOPES if with_raw else _SELECT_KEYS
        with _connect(partition.path, is_store=partition.is_store) as connection:
            for day in partition.days:
                for topic in self._wanted["topics"]:
                    for rows in _pages(connection, statement, day, bytes.fromhex(topic[2:])):
                        yield _batch(schema, topic, rows, with_raw=with_raw)

    def _days(self, connection: sqlite3.Connection) -> Iterator[int]:
        for lower, upper in self._wanted["spans"]:
            after = lower
            while True:
                ((day,),) = connection.execute(_NEXT_DAY, (after,))
                if day is None or day * SECONDS_PER_DAY >= upper:
                    break
                yield day
                after = (day + 1) * SECONDS_PER_DAY


def _pages(connection: sqlite3.Connection, statement: str, day: int, topic: bytes) -> Iterator[list[Any]]:
    after: tuple[int, bytes] = (-1, b"")
    while rows := connection.execute(statement, (day, topic, *after)).fetchall():
        yield rows
        if len(rows) < BATCH_ROWS:
            return
        after = rows[-1][0], rows[-1][2] or b"\xff" * (HASH_PREFIX_BYTES + 1)


def _batch(schema: pa.Schema, topic: str, rows: list[Any], *, with_raw: bool) -> pa.RecordBatch:
    """Rows as they are, but for those that are damaged."""
    rows = [row for row in rows if row[2] is not None]
    if with_raw:
        rows = [row for row in rows if _is_sound(topic, row)]
    created, received, keys, raws = zip(*rows, strict=True) if rows else ((), (), (), ())
    columns = [[topic] * len(rows), created, received, keys, *([raws] if with_raw else [])]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _is_sound(topic: str, row: tuple[int, int, bytes, bytes | None]) -> bool:
    created, _, key, raw = row
    try:
        decode_and_compare(created, bytes.fromhex(topic[2:]), key, raw or b"")
    except DecodeError:
        return False
    return True


@contextlib.contextmanager
def _connect(path: str, *, is_store: bool) -> Iterator[sqlite3.Connection]:
    """Open a store, or holdings, to read.

    Raises:
        ExportError: it cannot be read.
    """
    if is_store:
        with connect(Path(path)) as connection:
            yield connection
        return
    try:
        with contextlib.closing(
            sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=_BUSY_TIMEOUT_S)
        ) as connection:
            yield connection
    except sqlite3.Error as error:
        raise ExportError(f"cannot read the holdings {path}: {error}") from error
