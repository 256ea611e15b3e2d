"""Stores made by the daemon's own code, and archives read without the code under test."""

import asyncio
import contextlib
import json
import random
import shutil
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from mailserver.archive.archive import Archive
from mailserver.archive.days import day_name
from mailserver.archive.files import LocalFiles
from mailserver.archive.layout import PartitionBy
from mailserver.archive.manifest import PeriodRecord
from mailserver.ids.envelopes import envelope_muid
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.store.interface import NewEnvelope
from mailserver.store.retention import Surplus
from mailserver.store.sqlite.handoff import read_archived
from mailserver.store.sqlite.store import open_store
from mailserver.waku.envelope import Topic, decode_envelope, encode_envelope
from spark_export.compact import compact
from spark_export.config import CompactConfig
from spark_export.places import StorePlace
from spark_export.recording import locked_stores
from spark_export.run_report import RunReport

DAY_S = 86_400
DAY = 20_000
"""2024-10-04. `day_name(DAY)` is "2024-10-04", days of a month that is over for every test's `now`."""

FIRST, SECOND, THIRD = (day_name(DAY + number) for number in range(3))

MIDNIGHT = DAY * DAY_S
NOON = MIDNIGHT + DAY_S // 2

NEWS = Topic(b"\x9a\xcb\x04\x42")
SPORT = Topic(b"\xf0\xc5\x34\x1e")
CHAT = Topic(b"\x9a\x00\x00\x01")
TOPICS = (NEWS, SPORT, CHAT)

TTL = 50


def envelope(
    number: int, *, received: int = NOON, created: int | None = None, topic: Topic = NEWS, size: int = 60
) -> NewEnvelope:
    """A true envelope; another number, time or topic gives another. `size` is of its data; created on reception."""
    created = received if created is None else created
    data = random.Random(number).randbytes(size)
    sealed = encode_envelope(created + TTL, TTL, topic, data, number)
    return NewEnvelope(received, created, topic, sealed.hash(), sealed.raw)


def envelopes(count: int, *, day: int = DAY, first: int = 0, topics: Sequence[Topic] = TOPICS) -> list[NewEnvelope]:
    """Envelopes numbered from `first`, received one a minute on one day; topics take turns."""
    return [
        envelope(number, received=day * DAY_S + 60 * (number - first), topic=topics[number % len(topics)])
        for number in range(first, first + count)
    ]


def put(path: Path, *groups: Iterable[NewEnvelope]) -> Path:
    """Put envelopes into a store, made if need be, each group in a transaction of its own."""

    async def run() -> None:
        async with open_store(path) as store:
            for group in groups:
                await store.put(list(group))

    path.parent.mkdir(parents=True, exist_ok=True)
    asyncio.run(run())
    return path


def prune(path: Path, *, before: int, archived: Mapping[int, int] | None = None) -> int:
    """Delete what was received before that; return how many."""

    async def run() -> int:
        deleted = 0
        async with open_store(path) as store:
            while batch := (await store.prune(Surplus(before, 1_000_000), archived)).envelopes:
                deleted += batch
        return deleted

    return asyncio.run(run())


def identity(path: Path) -> str:
    """The id of a store, as it is in the file."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        ((found,),) = connection.execute("SELECT id FROM identity")
    return str(found)


def copy_store(path: Path, to: Path) -> Path:
    """Copy a store that is closed."""
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, to)
    return to


def row_of(put_in: NewEnvelope) -> dict[str, Any]:
    """The archive's row of an envelope."""
    sealed = decode_envelope(put_in.raw)
    return {
        "topic": "0x" + put_in.topic.hex(),
        "created": put_in.created,
        "received": put_in.received,
        "expiry": sealed.expiry,
        "ttl": sealed.ttl,
        "hash": "0x" + put_in.hash.hex(),
        "pow": sealed.pow(),
        "size": len(put_in.raw),
        "raw": put_in.raw,
        "muid": envelope_muid(DEFAULT_NETWORK_TOPIC, sealed) if put_in.created > 0 else None,
    }


COLUMNS = tuple(row_of(envelope(0)))
"""What an envelope itself tells: all columns but those of its place in the order of arrival."""


def rows_of(put_in: Iterable[NewEnvelope]) -> list[dict[str, Any]]:
    """The archive's rows of envelopes, as `archived` gives them."""
    return sorted(map(row_of, put_in), key=_place)


def compact_into(
    spark: SparkSession,
    archive: Path | str,
    *stores: StorePlace,
    now: float = (DAY + 10) * DAY_S,
    run: str = "run-1",
    until: int | None = None,
    keep_open_day: bool = False,
    partition_by: PartitionBy | None = None,
    prefix_digits: int | None = None,
    network_topic: str = DEFAULT_NETWORK_TOPIC,
) -> RunReport:
    """One nightly run."""
    config = CompactConfig(
        stores, str(archive), until, keep_open_day, partition_by, prefix_digits, network_topic=network_topic
    )
    with locked_stores(stores):
        return compact(spark, config, now=now, run=run)


def visible_files(archive: Path) -> list[Path]:
    """The data files that every Parquet reader sees, sorted."""
    return sorted(file for period in archive.glob("date=*") for file in period.rglob("*") if file.is_file())


def rows_of_file(file: Path) -> list[dict[str, Any]]:
    """The rows of a file in their order there, of COLUMNS; with its topic, where that is a directory."""
    rows: list[dict[str, Any]] = pq.ParquetFile(file).read([*COLUMNS]).to_pylist()
    column, _, value = file.parent.name.partition("=")
    return [{column: value, **row} for row in rows] if column == "topic" else rows


def archived(archive: Path, period: str | None = None) -> list[dict[str, Any]]:
    """Every row that readers see, or those of a period, sorted."""
    files = [file for file in visible_files(archive) if period in (None, period_of(archive, file))]
    return sorted((row for file in files for row in rows_of_file(file)), key=_place)


def period_of(archive: Path, file: Path) -> str:
    """The period in whose directory a file lies."""
    return file.relative_to(archive).parts[0].partition("=")[2]


def periods(archive: Path) -> list[str]:
    """The periods that readers see."""
    return sorted(folder.name.partition("=")[2] for folder in archive.glob("date=*"))


def tree(archive: Path, *, without: Sequence[str] = ("_runs", "_lock")) -> dict[str, bytes]:
    """Every file of an archive with its content, but for some at the top."""
    return {
        str(file.relative_to(archive)): file.read_bytes()
        for file in sorted(archive.rglob("*"))
        if file.is_file() and file.relative_to(archive).parts[0] not in without
    }


def handed_over(store: Path) -> dict[int, int]:
    """The rows up to which the mailserver may delete, by day of reception; none if nothing says so."""
    handover = read_archived(store)
    return {} if handover is None else dict(handover.days)


def change(store: Path, sql: str, *parameters: object) -> None:
    """Change a store behind the daemon's back."""
    connection = sqlite3.connect(store)
    connection.execute(sql, parameters)
    connection.commit()
    connection.close()


def quarantined(archive: Path) -> list[dict[str, Any]]:
    """What was set aside, a line each."""
    files = sorted((archive / "_quarantine").rglob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def records_in(archive: Path) -> dict[str, PeriodRecord]:
    """What the archive's records say, by period."""
    return Archive(LocalFiles(archive)).records()


def _place(row: Mapping[str, Any]) -> tuple[str, int, str]:
    return row["topic"], row["created"], row["hash"]
