"""The envelopes that may belong to history archives, from all that we have: the Parquet archive, stores, and holdings.

A row is an envelope of a channel's topic: CANDIDATES. The same envelope may come from several sources. Stores and
holdings (`mailserver.community.owner.holdings`) have the same columns, and are read by the same statements.
"""

import contextlib
import functools
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
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
"""How many days of creation a task reads."""

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
    names = [f"0x{topic.hex()}" for topic in topics]
    parts = _parts(sources, spans)

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in (number for batch in numbers for number in batch.column(0).to_pylist()):
            yield from _read(parts[number], names, keys_only=keys_only)

    frame = spark.range(0, len(parts), 1, max(1, len(parts))).mapInArrow(read, schema)
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


@dataclass(frozen=True, slots=True)
class EnvelopeDays:
    """Days of creation of one database that have rows, in Unix seconds / 86400: what one task reads."""

    path: Path
    is_store: bool
    days: tuple[int, ...]


def _parts(sources: Sources, spans: Sequence[TimeRange]) -> list[EnvelopeDays]:
    parts = []
    for paths, is_store in ((sources.stores, True), (sources.holdings, False)):
        for path in paths:
            with _connect(path, is_store=is_store) as connection:
                days = sorted({day for span in spans for day in _days(connection, span)})
            parts += [
                EnvelopeDays(path, is_store, tuple(days[at : at + PARTITION_DAYS]))
                for at in range(0, len(days), PARTITION_DAYS)
            ]
    return parts


def _days(connection: sqlite3.Connection, span: TimeRange) -> Iterator[int]:
    after = span.lower
    while True:
        ((day,),) = connection.execute(_NEXT_DAY, (after,))
        if day is None or day * SECONDS_PER_DAY >= span.upper:
            return
        yield day
        after = (day + 1) * SECONDS_PER_DAY


def _read(part: EnvelopeDays, topics: Sequence[str], *, keys_only: bool) -> Iterator[pa.RecordBatch]:
    """Read some days, batch by batch: what a task does."""
    schema = to_arrow_schema(KEYS_ONLY if keys_only else CANDIDATES)
    statement = _SELECT_KEYS if keys_only else _SELECT_ENVELOPES
    with _connect(part.path, is_store=part.is_store) as connection:
        for day in part.days:
            for topic in topics:
                for rows in _pages(connection, statement, day, bytes.fromhex(topic[2:])):
                    yield _batch(schema, topic, rows)


def _pages(connection: sqlite3.Connection, statement: str, day: int, topic: bytes) -> Iterator[list[Any]]:
    after: tuple[int, bytes] = (-1, b"")
    while rows := connection.execute(statement, (day, topic, *after)).fetchall():
        yield rows
        if len(rows) < BATCH_ROWS:
            return
        after = rows[-1][0], rows[-1][2] or b"\xff" * (HASH_PREFIX_BYTES + 1)


def _batch(schema: pa.Schema, topic: str, rows: list[Any]) -> pa.RecordBatch:
    """Rows as they are, but for those that are damaged."""
    with_raw = "raw" in schema.names
    sound = [row for row in rows if row[2] is not None and (not with_raw or _is_sound(topic, row))]
    columns = zip(*sound, strict=True) if sound else ((),) * (len(schema) - 1)
    arrays = [
        pa.array(column, kind) for column, kind in zip([[topic] * len(sound), *columns], schema.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _is_sound(topic: str, row: tuple[int, int, bytes, bytes | None]) -> bool:
    created, _, key, raw = row
    try:
        decode_and_compare(created, bytes.fromhex(topic[2:]), key, raw or b"")
    except DecodeError:
        return False
    return True


@contextlib.contextmanager
def _connect(path: Path, *, is_store: bool) -> Iterator[sqlite3.Connection]:
    """Open a store, or holdings, to read.

    Raises:
        ExportError: it cannot be read.
    """
    if is_store:
        with connect(path) as connection:
            yield connection
        return
    try:
        with contextlib.closing(
            sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, timeout=_BUSY_TIMEOUT_S)
        ) as connection:
            yield connection
    except sqlite3.Error as error:
        raise ExportError(f"cannot read the holdings {path}: {error}") from error
