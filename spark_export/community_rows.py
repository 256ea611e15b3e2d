"""The envelopes that may belong to a history archive, as a task reads them: from the Parquet archive, stores, holdings.

The same envelope may come from several sources. Stores and holdings (`mailserver.community.owner.holdings`) have the
same columns and indexes, and are read by the same short statements, or by those for PostgreSQL that say the same. Of
the Parquet archive, only row groups are read that may have what is wanted.
"""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from mailserver.archive.archive import Archive
from mailserver.archive.layout import Layout
from mailserver.archive.manifest import PeriodRecord
from mailserver.archive.paths import directory_of, snapshot_of
from mailserver.archive.selection import may_hold, partitions_of
from mailserver.communities.formats import TimeRange
from mailserver.errors import DecodeError
from mailserver.store.engine.row_check import decode_and_compare
from mailserver.store.sqlite.schema import HASH_PREFIX_BYTES
from mailserver.units import SECONDS_PER_DAY
from mailserver.waku.envelope import Topic
from spark_export.community_encoding import CandidateRow
from spark_export.errors import HoldingsError
from spark_export.places import database_at, is_url
from spark_export.s3_rows import WantedRows, rows_of_file
from spark_export.store import connect, translated
from spark_export.task_files import TaskFiles

KEY_ROWS, ENVELOPE_ROWS = 4000, 250
"""Rows of one statement that reads keys, and of one that reads envelopes. The largest of these have 1 MB each."""

Holds = Callable[[bytes, int], bool]
"""Whether what was created on a topic in a second belongs to the community."""

_BUSY_TIMEOUT_S = 30.0
_KEY_CHARS = slice(2, 2 + 2 * HASH_PREFIX_BYTES)
_HASH = f"CASE length(CAST(hash AS BLOB)) WHEN {HASH_PREFIX_BYTES} THEN CAST(hash AS BLOB) END"
_OF_TOPIC = (
    "FROM envelopes WHERE created / 86400 = ? AND topic = ? AND (created, hash) > (?, ?) AND created BETWEEN ? AND ?"
)
_IN_ORDER = f"{_OF_TOPIC} ORDER BY created, hash LIMIT ?"
_SELECT_KEYS = f"SELECT created, {_HASH}, x'' {_IN_ORDER}"
_SELECT_ENVELOPES = f"SELECT created, {_HASH}, CAST(raw AS BLOB) {_IN_ORDER}"

_HASH_THERE = f"CASE octet_length(hash) WHEN {HASH_PREFIX_BYTES} THEN hash END"
_IN_ORDER_THERE = f"""
    FROM envelopes
    WHERE topic = $2 AND created >= $1::bigint * {SECONDS_PER_DAY} AND created < ($1::bigint + 1) * {SECONDS_PER_DAY}
        AND (created, hash) > ($3, $4) AND created BETWEEN $5 AND $6
    ORDER BY created, hash LIMIT $7
"""
_THERE = {
    _SELECT_KEYS: f"SELECT created, {_HASH_THERE}, ''::bytea {_IN_ORDER_THERE}",
    _SELECT_ENVELOPES: f"SELECT created, {_HASH_THERE}, raw {_IN_ORDER_THERE}",
}
"""For each statement, the same one for PostgreSQL."""

_Select = Callable[[str, Sequence[Any]], Sequence[Any]]
"""Runs one of the statements above; returns its rows."""


@dataclass(frozen=True, slots=True)
class EnvelopeDatabase:
    """A store, or the holdings of a community. `address`: a path, or the URL of a store in PostgreSQL."""

    address: str
    is_store: bool


@dataclass(frozen=True, slots=True)
class RangeFiles:
    """Files of a Parquet archive, by their names there. `url`: of the archive."""

    url: str
    layout: Layout
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RangeSources:
    """Where the envelopes of a range may be."""

    databases: tuple[EnvelopeDatabase, ...]
    files: RangeFiles | None = None


class ArchivedPeriods:
    """The periods of a Parquet archive, and where their files are."""

    def __init__(self, archive: Archive, layout: Layout) -> None:
        """Look them up.

        A period's second names are taken where it has them: they stay when a run replaces the period meanwhile.

        Raises:
            ArchiveError: the archive cannot be read.
        """
        self._url, self._layout = archive.url, layout
        self._periods: list[tuple[PeriodRecord, str | None]] = []
        for record in archive.records().values():
            has_snapshot = record.snapshot and bool(archive.files.names(snapshot_of(record)))
            self._periods.append((record, snapshot_of(record) if has_snapshot else None))

    @property
    def first_day(self) -> int | None:
        """The first day of reception that has rows, in Unix seconds / 86400; None if there is none."""
        days = [day for record, _ in self._periods for day, said in record.days.items() if said.fingerprint.rows]
        return min(days, default=None)

    def files(self, time_range: TimeRange, topics: Sequence[Topic]) -> RangeFiles:
        """The files that may have envelopes of these topics, created in a range."""
        names: list[str] = []
        asked = [f"0x{topic.hex()}" for topic in topics]
        for record, snapshot in self._periods:
            if not may_hold(record, time_range.lower, time_range.upper):
                continue
            partitions = set(partitions_of(record, self._layout, asked))
            paths = [file.path for file in record.files if file.path.partition("/")[0] in partitions]
            names += [
                f"{directory_of(record.period)}/{path}"
                if snapshot is None
                else f"{snapshot}/{path.removesuffix('.parquet')}"
                for path in paths
            ]
        return RangeFiles(self._url, self._layout, tuple(sorted(names)))


def read_rows(
    sources: RangeSources, time_range: TimeRange, topics: Sequence[Topic], holds: Holds, *, keys_only: bool
) -> Iterator[CandidateRow]:
    """All envelopes of a range that belong to a community, in no order; without their bytes if `keys_only`.

    Raises:
        HoldingsError: the holdings cannot be read.
        ExportError: a store cannot be read.
        ArchiveError: the archive cannot be read.
    """
    for database in sources.databases:
        with _selecting(database) as select:
            yield from _of_database(select, time_range, topics, holds, keys_only=keys_only)
    if sources.files is not None:
        yield from _of_archive(sources.files, time_range, topics, holds, keys_only=keys_only)


def oldest_held(holdings: Path) -> int | None:
    """When the first of the holdings was received, in Unix seconds; None if there are none.

    Raises:
        HoldingsError: they cannot be read.
    """
    with _connect_holdings(holdings) as connection:
        ((received,),) = connection.execute("SELECT min(received) FROM envelopes")
    return None if received is None else int(received)


def _of_database(
    select: _Select, time_range: TimeRange, topics: Sequence[Topic], holds: Holds, *, keys_only: bool
) -> Iterator[CandidateRow]:
    statement, most = (_SELECT_KEYS, KEY_ROWS) if keys_only else (_SELECT_ENVELOPES, ENVELOPE_ROWS)
    between = time_range.lower, time_range.upper - 1
    for day in range(between[0] // SECONDS_PER_DAY, between[1] // SECONDS_PER_DAY + 1):
        for topic in topics:
            for created, key, raw in _rows_of_day(select, statement, most, (day, bytes(topic)), between):
                if key is not None and holds(topic, created) and (keys_only or _is_sound(created, topic, key, raw)):
                    yield CandidateRow(created, key, raw)


def _rows_of_day(
    select: _Select, statement: str, most: int, day_and_topic: tuple[int, bytes], between: tuple[int, int]
) -> Iterator[Any]:
    after: tuple[int, bytes] = (-1, b"")
    while rows := select(statement, (*day_and_topic, *after, *between, most)):
        yield from rows
        if len(rows) < most:
            return
        created, key, _ = rows[-1]
        after = created, b"\xff" * (HASH_PREFIX_BYTES + 1) if key is None else key


def _is_sound(created: int, topic: Topic, key: bytes, raw: bytes | None) -> bool:
    """Whether a row of a database is the envelope that its columns say."""
    try:
        decode_and_compare(created, topic, key, raw or b"")
    except DecodeError:
        return False
    return True


def _of_archive(
    files: RangeFiles, time_range: TimeRange, topics: Sequence[Topic], holds: Holds, *, keys_only: bool
) -> Iterator[CandidateRow]:
    names = ["topic", "created", "hash", *(() if keys_only else ("raw",))]
    kinds = {"topic": pa.string(), "created": pa.int64(), "hash": pa.string(), "raw": pa.binary()}
    schema = pa.schema([(name, kinds[name]) for name in names])
    by_name = {f"0x{topic.hex()}": topic for topic in topics}
    wanted = WantedRows(sorted(by_name), time_range.lower, time_range.upper)
    asked = pa.array(sorted(by_name), pa.string())
    for name in files.names:
        for batch in rows_of_file(TaskFiles(files.url), name, files.layout, schema, wanted):
            of_range = pc.and_(
                pc.greater_equal(batch.column("created"), time_range.lower),
                pc.less(batch.column("created"), time_range.upper),
            )
            found = batch.filter(pc.and_(of_range, pc.is_in(batch.column("topic"), value_set=asked)))
            columns = [column.to_pylist() for column in found.columns]
            for topic, created, digest, *raw in zip(*columns, strict=True):
                if holds(by_name[topic], created):
                    yield CandidateRow(created, bytes.fromhex(digest[_KEY_CHARS]), raw[0] if raw else b"")


@contextlib.contextmanager
def _selecting(database: EnvelopeDatabase) -> Iterator[_Select]:
    """Read a store, or holdings.

    Raises:
        ExportError: it cannot be read; HoldingsError if it is holdings.
    """
    if is_url(database.address):
        place = database_at(database.address)
        with translated(), place.connected():
            place.check_version()
            yield lambda sql, parameters: place.select(_THERE[sql], *parameters)
        return
    path = Path(database.address)
    with connect(path) if database.is_store else _connect_holdings(path) as connection:
        yield lambda sql, parameters: connection.execute(sql, parameters).fetchall()


@contextlib.contextmanager
def _connect_holdings(path: Path) -> Iterator[sqlite3.Connection]:
    """Open holdings to read.

    Raises:
        HoldingsError: they cannot be read.
    """
    uri = f"file:{quote(str(path.absolute()))}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=_BUSY_TIMEOUT_S)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise HoldingsError(f"cannot read the holdings {path}: {error}") from error
