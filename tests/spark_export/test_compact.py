"""The nightly run, with stores that the daemon's code has made and a real Spark."""

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_export.compact as compact_module
import spark_export.plan as plan_module
from mailserver.archive.archive import Archive
from mailserver.archive.errors import ArchiveError
from mailserver.archive.layout import Layout, PartitionBy
from mailserver.archive.manifest import PeriodRecord
from mailserver.codec.keccak import keccak256
from mailserver.store.interface import NewEnvelope
from mailserver.store.sqlite.backup import snapshot
from mailserver.store.sqlite.handoff import archived_file, compaction_lock, read_archived
from mailserver.waku.envelope import Topic, decode_envelope
from spark_export import load
from spark_export.errors import ExportCheckFailed, ExportError
from spark_export.storage import open_storage
from tests.spark_export.samples import (
    CHAT,
    DAY,
    DAY_S,
    MIDNIGHT,
    NEWS,
    NOON,
    SPORT,
    TTL,
    archived,
    compact_into,
    copy_store,
    envelope,
    envelopes,
    identity,
    period_of,
    periods,
    prune,
    put,
    rows_of,
    rows_of_file,
    tree,
    visible_files,
)

pytestmark = pytest.mark.spark

FIRST, SECOND, THIRD = (date.fromordinal(date(1970, 1, 1).toordinal() + DAY + n).isoformat() for n in range(3))
COLUMNS = ["topic", "created", "received", "expiry", "ttl", "hash", "pow", "size", "raw"]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Where the store will be."""
    return tmp_path / "a" / "mailserver.db"


@pytest.fixture
def other_store(tmp_path: Path) -> Path:
    """Where another one will be."""
    return tmp_path / "b" / "mailserver.db"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Where the archive will be."""
    return tmp_path / "archive"


def records(spark: SparkSession, archive: Path) -> dict[str, PeriodRecord]:
    return Archive(open_storage(spark, str(archive))).records()


def handed_over(store: Path) -> dict[int, int]:
    handover = read_archived(store)
    assert handover is not None
    return dict(handover.days)


def change(store: Path, sql: str, *parameters: object) -> None:
    """Change a store behind the daemon's back."""
    connection = sqlite3.connect(store)
    connection.execute(sql, parameters)
    connection.commit()
    connection.close()


def allow_null(store: Path) -> None:
    """Have SQLite take any value for an envelope: the disk asks nobody."""
    connection = sqlite3.connect(store)
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("UPDATE sqlite_schema SET sql = replace(sql, 'raw BLOB NOT NULL', 'raw BLOB')")
    connection.commit()
    connection.close()


def quarantined(archive: Path) -> list[dict[str, Any]]:
    files = sorted((archive / "_quarantine").rglob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def in_order(rows: Sequence[dict[str, Any]]) -> bool:
    places = [(row["topic"], row["created"], row["hash"]) for row in rows]
    return places == sorted(places)


def awkward() -> list[NewEnvelope]:
    """Envelopes of all sizes, in no order, with the times that a forged one may claim."""
    numbers = [*range(40, 0, -3), *range(1, 40, 7)]
    usual = [
        envelope(number, received=MIDNIGHT + 97 * number, created=NOON - 13 * number % 900, size=17 ** (number % 4))
        for number in dict.fromkeys(numbers)
    ]
    return [
        *usual,
        envelope(100, topic=SPORT, size=0),
        envelope(101, topic=SPORT, size=70_000),
        envelope(102, topic=CHAT, created=-TTL),
        envelope(103, topic=Topic(bytes(4)), created=2**32 - 1 - TTL),
        envelope(104, topic=Topic(b"\xff" * 4), received=MIDNIGHT + DAY_S - 1),
    ]


# What is in the archive


@pytest.mark.parametrize("by", PartitionBy)
def test_rows_of_archive_are_what_was_put(spark: SparkSession, store: Path, archive: Path, by: PartitionBy) -> None:
    put(store, awkward(), envelopes(30, day=DAY + 1, first=200))

    report = compact_into(spark, archive, store, partition_by=by)

    assert archived(archive, FIRST) == rows_of(awkward())
    assert archived(archive, SECOND) == rows_of(envelopes(30, day=DAY + 1, first=200))
    assert periods(archive) == [FIRST, SECOND]
    assert report.rows == len(awkward()) + 30
    for row in archived(archive):
        sealed = decode_envelope(row["raw"])
        assert row["hash"] == "0x" + keccak256(row["raw"]).hex()
        assert (row["expiry"], row["ttl"]) == (sealed.expiry, sealed.ttl)
        assert (row["created"], row["size"]) == (sealed.expiry - sealed.ttl, len(row["raw"]))
        assert (row["topic"], row["pow"]) == ("0x" + sealed.topic.hex(), sealed.pow())


@pytest.mark.parametrize(
    ("by", "folders"),
    [
        (PartitionBy.TOPIC, {"topic=0x9a000001", "topic=0x9acb0442", "topic=0xf0c5341e"}),
        (PartitionBy.TOPIC_PREFIX, {"topic_prefix=9", "topic_prefix=f"}),
    ],
)
def test_files_are_sorted_zstd_with_bloom_filters_and_statistics(
    spark: SparkSession, store: Path, archive: Path, by: PartitionBy, folders: set[str]
) -> None:
    put(store, list(reversed(envelopes(60))))

    compact_into(spark, archive, store, partition_by=by)

    files = visible_files(archive)
    assert {file.parent.name for file in files} == folders
    assert len(files) == len(folders)  # as few as can be
    columns = COLUMNS[1:] if by is PartitionBy.TOPIC else COLUMNS
    for file in files:
        rows = rows_of_file(file)
        assert in_order(rows)
        assert len(rows) >= 20
        metadata = pq.ParquetFile(file).metadata
        assert metadata.schema.names == columns
        group = metadata.row_group(0)
        chunks = {name: group.column(number) for number, name in enumerate(columns)}
        assert {chunk.compression for chunk in chunks.values()} == {"ZSTD"}
        assert {name for name, chunk in chunks.items() if chunk.is_stats_set} == set(columns) - {"raw"}
        filtered = duckdb.execute(
            "SELECT path_in_schema FROM parquet_metadata(?) WHERE bloom_filter_offset IS NOT NULL", [str(file)]
        ).fetchall()
        assert {name for (name,) in filtered} == {"hash", "topic"} & set(columns)


@pytest.mark.parametrize("by", PartitionBy)
def test_duckdb_reads_the_archive(spark: SparkSession, store: Path, archive: Path, by: PartitionBy) -> None:
    put(store, envelopes(30), envelopes(9, day=DAY + 1, first=50))
    compact_into(spark, archive, store, partition_by=by)

    found = duckdb.execute(
        f"SELECT {', '.join(COLUMNS)} FROM read_parquet(?, hive_partitioning = true, hive_types_autocast = false)"
        " WHERE date = ? AND topic = '0x9acb0442' ORDER BY topic, created, hash",
        [f"{archive}/date=*/*/*.parquet", FIRST],
    ).fetchall()

    news = [put_in for put_in in envelopes(30) if put_in.topic == NEWS]
    assert found == [tuple(row[name] for name in COLUMNS) for row in rows_of(news)]


def test_topic_prefix_takes_as_many_digits_as_asked(spark: SparkSession, store: Path, archive: Path) -> None:
    put(store, envelopes(9))

    compact_into(spark, archive, store, prefix_digits=2)

    folders = {file.parent.name for file in visible_files(archive)}
    assert folders == {"topic_prefix=9a", "topic_prefix=f0"}


def test_many_topics_choose_prefixes(spark: SparkSession, store: Path, archive: Path) -> None:
    topics = [Topic(number.to_bytes(4, "big")) for number in range(301)]
    put(store, [envelope(number, topic=topic) for number, topic in enumerate(topics)])

    compact_into(spark, archive, store)

    assert {file.parent.name for file in visible_files(archive)} == {"topic_prefix=0"}
    assert len(archived(archive)) == 301


def test_records_and_report_say_what_is_there(spark: SparkSession, store: Path, archive: Path) -> None:
    put(store, envelopes(30), envelopes(9, day=DAY + 1, first=50))

    report = compact_into(spark, archive, store, run="first")

    found = records(spark, archive)
    assert sorted(found) == [FIRST, SECOND]
    assert found[FIRST].fingerprint.rows == 30
    assert found[FIRST].fingerprint.bytes == sum(len(put_in.raw) for put_in in envelopes(30))
    checksum = sum(int.from_bytes(put_in.hash[:8], "big") for put_in in envelopes(30)) % 2**64
    assert found[FIRST].fingerprint.checksum == checksum
    assert found[FIRST].days[DAY].stores == {identity(store): 30}
    assert found[SECOND].days[DAY + 1].stores == {identity(store): 39}
    recorded = {(period, file.path, file.bytes, file.rows) for period in found for file in found[period].files}
    assert recorded == {
        (
            period_of(archive, file),
            str(file.relative_to(archive / f"date={period_of(archive, file)}")),
            file.stat().st_size,
            len(rows_of_file(file)),
        )
        for file in visible_files(archive)
    }
    stored = json.loads((archive / "_runs" / "first.json").read_text())
    shown = report.as_json(0)
    assert {**stored, "seconds": 0, "rows_per_second": 0} == {**shown, "seconds": 0, "rows_per_second": 0}
    assert (stored["rows"], stored["files"], stored["quarantined"]) == (39, 6, 0)
    assert stored["bytes"] == sum(file.stat().st_size for file in visible_files(archive))
    assert [(day["period"], day["new_rows"], day["rows"]) for day in stored["days"]] == [
        (FIRST, 30, 30),
        (SECOND, 9, 9),
    ]


# Which days


def test_only_days_that_are_over_are_archived(spark: SparkSession, store: Path, archive: Path) -> None:
    put(store, *(envelopes(3, day=DAY + day, first=10 * day) for day in range(3)))

    compact_into(spark, archive, store, now=MIDNIGHT + 2 * DAY_S - 1)
    assert periods(archive) == [FIRST]
    assert handed_over(store) == {DAY: 3}

    compact_into(spark, archive, store, now=MIDNIGHT + 2 * DAY_S, run="run-2")
    assert periods(archive) == [FIRST, SECOND]
    assert handed_over(store) == {DAY: 3, DAY + 1: 6}


def test_until_names_the_last_day(spark: SparkSession, store: Path, archive: Path) -> None:
    put(store, *(envelopes(3, day=DAY + day, first=10 * day) for day in range(3)))

    compact_into(spark, archive, store, until=DAY + 1)
    assert periods(archive) == [FIRST, SECOND]

    compact_into(spark, archive, store, until=DAY + 9, now=MIDNIGHT + 2 * DAY_S, run="run-2")
    assert periods(archive) == [FIRST, SECOND]  # the third is not over


def test_open_day_is_archived_if_asked_and_completed_later(spark: SparkSession, store: Path, archive: Path) -> None:
    put(store, envelopes(5))
    compact_into(spark, archive, store, now=NOON, keep_open_day=True)
    assert archived(archive, FIRST) == rows_of(envelopes(5))

    put(store, envelopes(5, first=50))
    compact_into(spark, archive, store, now=NOON, run="run-2")
    assert archived(archive, FIRST) == rows_of(envelopes(5))  # not asked for

    compact_into(spark, archive, store, now=MIDNIGHT + DAY_S, run="run-3")
    assert archived(archive, FIRST) == rows_of(envelopes(5) + envelopes(5, first=50))


# Again


def test_second_run_changes_nothing(spark: SparkSession, store: Path, archive: Path) -> None:
    put(store, envelopes(30), envelopes(9, day=DAY + 1, first=50))
    compact_into(spark, archive, store)
    before = tree(archive)

    report = compact_into(spark, archive, store, run="run-2")

    assert tree(archive) == before
    assert (report.rows, report.periods) == (0, [])
    assert sorted(file.name for file in (archive / "_runs").iterdir()) == ["run-1.json", "run-2.json"]


@pytest.mark.parametrize("by", PartitionBy)
def test_late_rows_are_added_to_their_day_alone(
    spark: SparkSession, store: Path, archive: Path, by: PartitionBy
) -> None:
    put(store, envelopes(30), envelopes(9, day=DAY + 1, first=50))
    compact_into(spark, archive, store, partition_by=by)
    before = tree(archive)

    put(store, envelopes(8, first=70))
    report = compact_into(spark, archive, store, run="run-2")

    assert archived(archive, FIRST) == rows_of(envelopes(30) + envelopes(8, first=70))
    assert report.rows == 8
    after = tree(archive)
    second = [name for name in before if SECOND in name]
    assert {name: after[name] for name in second} == {name: before[name] for name in second}
    assert handed_over(store) == {DAY: 47, DAY + 1: 39}
    again = tree(archive)
    compact_into(spark, archive, store, run="run-3")
    assert tree(archive) == again


def test_clock_that_was_stepped_puts_each_row_on_its_day_once(spark: SparkSession, store: Path, archive: Path) -> None:
    back, forth = envelopes(4, first=40), envelopes(4, day=DAY + 2, first=60)
    put(store, envelopes(4), envelopes(4, day=DAY + 1, first=20), back, forth, envelopes(4, day=DAY + 1, first=80))

    compact_into(spark, archive, store)
    assert archived(archive, FIRST) == rows_of(envelopes(4) + back)
    assert archived(archive, SECOND) == rows_of(
        envelopes(4, day=DAY + 1, first=20) + envelopes(4, day=DAY + 1, first=80)
    )
    assert archived(archive, THIRD) == rows_of(forth)
    assert handed_over(store) == {DAY: 12, DAY + 1: 20, DAY + 2: 16}

    put(store, envelopes(2, first=90))
    compact_into(spark, archive, store, run="run-2")
    assert archived(archive, FIRST) == rows_of(envelopes(4) + back + envelopes(2, first=90))
    assert handed_over(store) == {DAY: 22, DAY + 1: 20, DAY + 2: 16}


def test_rows_of_a_day_that_was_pruned_stay_when_late_ones_come(
    spark: SparkSession, store: Path, archive: Path
) -> None:
    put(store, envelopes(10), envelopes(3, day=DAY + 1, first=50))
    compact_into(spark, archive, store)
    assert prune(store, before=MIDNIGHT + DAY_S, archived=handed_over(store)) == 10

    put(store, envelopes(4, first=70))
    compact_into(spark, archive, store, run="run-2")

    assert archived(archive, FIRST) == rows_of(envelopes(10) + envelopes(4, first=70))
    assert handed_over(store) == {DAY: 17, DAY + 1: 13}


def test_envelope_that_was_pruned_and_received_again_is_archived_once(
    spark: SparkSession, store: Path, archive: Path
) -> None:
    put(store, envelopes(3))
    compact_into(spark, archive, store)
    prune(store, before=MIDNIGHT + DAY_S)
    before = archived(archive)

    again = [put_in._replace(received=put_in.received + DAY_S) for put_in in envelopes(3)]
    put(store, again)
    report = compact_into(spark, archive, store, run="run-2")

    assert archived(archive) == before
    assert report.rows == 0
    assert handed_over(store) == {DAY + 1: 6}


def test_store_whose_rows_were_all_archived_and_pruned(spark: SparkSession, store: Path, archive: Path) -> None:
    put(store, envelopes(3))
    compact_into(spark, archive, store)
    prune(store, before=MIDNIGHT + DAY_S)
    before = tree(archive)

    compact_into(spark, archive, store, run="run-2")

    assert tree(archive) == before
    assert handed_over(store) == {}


def test_empty_store_leaves_the_layout_open(spark: SparkSession, store: Path, archive: Path) -> None:
    put(store)

    report = compact_into(spark, archive, store)

    assert (report.rows, periods(archive), handed_over(store)) == (0, [], {})
    put(store, envelopes(3))
    compact_into(spark, archive, store, run="run-2", partition_by=PartitionBy.TOPIC_PREFIX)
    assert archived(archive) == rows_of(envelopes(3))


# Several stores


def test_two_stores_are_merged_and_deduplicated(
    spark: SparkSession, store: Path, other_store: Path, archive: Path
) -> None:
    put(store, envelopes(20))
    put(other_store, [put_in._replace(received=put_in.received + 1) for put_in in envelopes(30)])

    report = compact_into(spark, archive, store, other_store)

    late = [put_in._replace(received=put_in.received + 1) for put_in in envelopes(30)[20:]]
    assert archived(archive) == rows_of(envelopes(20) + late)
    assert report.rows == 30
    assert handed_over(store) == {DAY: 20}
    assert handed_over(other_store) == {DAY: 30}


def test_envelope_received_on_both_sides_of_midnight_is_archived_once(
    spark: SparkSession, store: Path, other_store: Path, archive: Path
) -> None:
    before = envelope(1, received=MIDNIGHT + DAY_S - 1)
    after = before._replace(received=MIDNIGHT + DAY_S)
    put(store, [after])
    put(other_store, [before])

    compact_into(spark, archive, store, other_store)

    assert archived(archive) == rows_of([before])
    assert periods(archive) == [FIRST]
    assert handed_over(store) == {DAY + 1: 1}
    assert handed_over(other_store) == {DAY: 1}
    before_again = tree(archive)
    compact_into(spark, archive, other_store, store, run="run-2")
    assert tree(archive) == before_again


def test_envelope_received_on_both_sides_of_midnight_in_two_runs_is_archived_once(
    spark: SparkSession, store: Path, other_store: Path, archive: Path
) -> None:
    before = envelope(1, received=MIDNIGHT + DAY_S - 1)
    after = before._replace(received=MIDNIGHT + DAY_S)
    put(store, [after])
    put(other_store, [before, envelope(2)])
    compact_into(spark, archive, store)
    assert archived(archive) == rows_of([after])

    compact_into(spark, archive, store, other_store, run="run-2")

    assert archived(archive) == rows_of([after, envelope(2)])
    assert handed_over(other_store) == {DAY: 2}


def test_stores_archived_one_after_the_other_are_deduplicated(
    spark: SparkSession, store: Path, other_store: Path, archive: Path
) -> None:
    put(store, envelopes(20))
    put(other_store, envelopes(30))
    compact_into(spark, archive, store)

    report = compact_into(spark, archive, other_store, run="run-2")

    assert archived(archive) == rows_of(envelopes(30))
    assert report.rows == 10
    assert records(spark, archive)[FIRST].days[DAY].stores == {identity(store): 20, identity(other_store): 30}


def test_copy_of_a_store_is_refused(spark: SparkSession, store: Path, other_store: Path, archive: Path) -> None:
    put(store, envelopes(3))
    copy_store(store, other_store)

    with pytest.raises(ExportError, match="are the same store, or copies of one"):
        compact_into(spark, archive, store, other_store)

    assert periods(archive) == []


def test_store_put_back_from_a_backup_loses_nothing_to_numbers_that_the_archive_knows(
    spark: SparkSession, store: Path, archive: Path, tmp_path: Path
) -> None:
    before, lost, after = envelopes(4), envelopes(3, first=100), envelopes(3, first=200)
    put(store, before)
    with snapshot(store) as moment:
        moment.copy(tmp_path / "backup.db", lambda done, total: None)
    put(store, lost)
    compact_into(spark, archive, store)  # knows rows 5 to 7, which the backup has not
    with pytest.raises(ExportError, match="is a backup: start the mailserver on it once"):
        compact_into(spark, archive, tmp_path / "backup.db", run="run-2")

    store.unlink()
    archived_file(store).unlink()
    put(copy_store(tmp_path / "backup.db", store), after)  # as rows 5 to 7
    compact_into(spark, archive, store, run="run-3")

    assert archived(archive) == rows_of([*before, *lost, *after])
    said = read_archived(store)
    assert said is not None
    assert said.store_id == identity(store)
    assert said.days == {DAY: 7}


def test_store_named_twice_is_refused(spark: SparkSession, store: Path, archive: Path) -> None:
    put(store, envelopes(3))

    with pytest.raises(ExportError, match="is named twice"):
        compact_into(spark, archive, store, store.parent / ".." / "a" / "mailserver.db")

    assert periods(archive) == []


# Refusals


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"partition_by": PartitionBy.TOPIC}, {"partition_by": PartitionBy.TOPIC_PREFIX}),
        ({"partition_by": PartitionBy.TOPIC_PREFIX}, {"partition_by": PartitionBy.TOPIC}),
        ({"prefix_digits": 1}, {"prefix_digits": 2}),
        ({"partition_by": PartitionBy.TOPIC}, {"prefix_digits": 1}),
    ],
)
def test_another_layout_is_refused(
    spark: SparkSession, store: Path, archive: Path, first: dict[str, Any], second: dict[str, Any]
) -> None:
    put(store, envelopes(3))
    compact_into(spark, archive, store, **first)
    put(store, envelopes(3, first=50))
    before = tree(archive)

    with pytest.raises(ExportError, match=r"is partitioned by .* stays"):
        compact_into(spark, archive, store, run="run-2", **second)

    assert tree(archive) == before


def test_layout_stays_when_topics_become_many(spark: SparkSession, store: Path, archive: Path) -> None:
    put(store, envelopes(3))
    compact_into(spark, archive, store)
    topics = [Topic(number.to_bytes(4, "big")) for number in range(301)]
    put(store, [envelope(number, received=NOON + DAY_S, topic=topic) for number, topic in enumerate(topics)])

    compact_into(spark, archive, store, run="run-2")

    assert {file.parent.name.partition("=")[0] for file in visible_files(archive)} == {"topic"}


def test_second_run_at_once_on_an_archive_is_refused(spark: SparkSession, store: Path, archive: Path) -> None:
    put(store, envelopes(3))

    with (
        open_storage(spark, str(archive)).locked(),
        pytest.raises(ArchiveError, match=r"another run \(pid \d+\) is at work"),
    ):
        compact_into(spark, archive, store)

    assert periods(archive) == []
    compact_into(spark, archive, store)
    assert archived(archive) == rows_of(envelopes(3))


def test_second_run_at_once_on_a_store_is_refused(spark: SparkSession, store: Path, archive: Path) -> None:
    put(store, envelopes(3))

    with compaction_lock(store), pytest.raises(ExportError, match=r"another compaction \(pid \d+\) reads this store"):
        compact_into(spark, archive, store)

    assert periods(archive) == []
    compact_into(spark, archive, store)
    assert archived(archive) == rows_of(envelopes(3))


def test_foreign_directories_are_refused(spark: SparkSession, store: Path, archive: Path) -> None:
    put(store, envelopes(3))
    (archive / f"date={FIRST}").mkdir(parents=True)

    with pytest.raises(ArchiveError, match="is not an archive of ours"):
        compact_into(spark, archive, store)


def test_archive_of_a_later_version_is_left_alone(spark: SparkSession, store: Path, archive: Path) -> None:
    put(store, envelopes(3))
    compact_into(spark, archive, store)
    settings = archive / "_archive.json"
    settings.write_text(settings.read_text().replace('"version": 1', '"version": 2'))
    put(store, envelopes(3, first=50))
    before = tree(archive)

    with pytest.raises(ArchiveError, match="has version 2, this program knows 1"):
        compact_into(spark, archive, store, run="run-2")

    assert tree(archive) == before


def test_missing_store_is_named(spark: SparkSession, store: Path, archive: Path) -> None:
    with pytest.raises(ExportError, match=r"cannot open the store .*mailserver\.db: there is none"):
        compact_into(spark, archive, store)

    assert not store.exists()


def test_handover_that_cannot_be_written_is_named(spark: SparkSession, store: Path, archive: Path) -> None:
    put(store, envelopes(3))
    archived_file(store).mkdir()

    with pytest.raises(ExportError, match="cannot read "):
        compact_into(spark, archive, store)


# The check


@contextlib.contextmanager
def spoiled(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[DataFrame], DataFrame]) -> Iterator[None]:
    """Let something else be written than what is meant to."""
    write = load.write_staged

    def write_staged(frame: DataFrame, layout: Layout, path: str, *, rows: int, size: int) -> None:
        write(spoil(frame), layout, path, rows=rows, size=size)

    with monkeypatch.context() as patch:
        patch.setattr(compact_module, "write_staged", write_staged)
        yield


SPOILS: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "a row is lost": (lambda frame: frame.where(F.col("created") != NOON), SECOND),
    "a row stands twice": (lambda frame: frame.unionByName(frame.where(F.col("created") == NOON)), SECOND),
    "a day is lost": (lambda frame: frame.where(F.col("date") != SECOND), SECOND),
    "a row is another": (
        lambda frame: frame.withColumn(
            "hash", F.when(F.col("created") == NOON, F.regexp_replace("hash", "^0x.", "0xg")).otherwise(F.col("hash"))
        ),
        SECOND,
    ),
    "a row is shorter": (
        lambda frame: frame.withColumn(
            "raw", F.when(F.col("created") == NOON, F.lit(b"short")).otherwise(F.col("raw"))
        ),
        SECOND,
    ),
    "a row is on another day": (
        lambda frame: frame.withColumn("date", F.when(F.col("created") == NOON, F.lit(FIRST)).otherwise(F.col("date"))),
        FIRST,
    ),
}


@pytest.mark.parametrize("spoil", SPOILS)
def test_what_is_written_wrongly_is_not_published(
    spark: SparkSession, store: Path, archive: Path, monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    day_two = [*envelopes(6, day=DAY + 1, first=50), envelope(90, received=NOON + DAY_S, created=NOON)]
    put(store, envelopes(6), day_two)
    change_frame, day = SPOILS[spoil]

    with spoiled(monkeypatch, change_frame), pytest.raises(ExportCheckFailed) as caught:
        compact_into(spark, archive, store)

    assert caught.value.day == day
    assert day in str(caught.value)
    assert periods(archive) == []
    assert handed_over(store) == {}

    if spoil == "a day is lost":  # it costs seconds, and nothing differs
        compact_into(spark, archive, store, run="run-2")
        assert archived(archive) == rows_of(envelopes(6) + day_two)
        assert list((archive / "_staging").iterdir()) == []


def test_day_whose_new_rows_fail_the_check_stays_as_it_was(
    spark: SparkSession, store: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, envelopes(6))
    compact_into(spark, archive, store)
    put(store, envelopes(6, first=50))
    before = {name: content for name, content in tree(archive).items() if not name.startswith("_staging")}

    kept = F.col("hash") != "0x" + envelope(0, received=MIDNIGHT).hash.hex()
    with spoiled(monkeypatch, lambda frame: frame.where(kept)), pytest.raises(ExportCheckFailed, match=FIRST):
        compact_into(spark, archive, store, run="run-2")

    after = {name: content for name, content in tree(archive).items() if not name.startswith("_staging")}
    assert after == before
    assert handed_over(store) == {DAY: 6}


# Rows that are damaged


DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes | str | int | None], str]] = {
    "garbage in raw": ("raw", lambda raw: b"\xff garbage \x00" + raw[:5], "undecodable"),
    "nothing in raw": ("raw", lambda raw: b"", "undecodable"),
    "no raw at all": ("raw", lambda raw: None, "undecodable"),
    "text in raw": ("raw", lambda raw: "text", "undecodable"),
    "a bit of raw": ("raw", lambda raw: raw[:-20] + bytes([raw[-20] ^ 1]) + raw[-19:], "its hash is another"),
    "a bit of hash": ("hash", lambda raw: bytes([keccak256(raw)[0] ^ 1]) + keccak256(raw)[1:16], "its hash is another"),
    "text in hash": ("hash", lambda raw: "what", "its hash is another"),
    "another topic": ("topic", lambda raw: bytes(SPORT), "its topic or time is another"),
    "text in topic": ("topic", lambda raw: "abcd", "its topic or time is another"),
    "another time": ("created", lambda raw: NOON - 7, "its topic or time is another"),
    "text in created": ("created", lambda raw: "then", "its topic or time is another"),
}


def test_damaged_rows_are_set_aside_whole(spark: SparkSession, store: Path, archive: Path) -> None:
    hit = [envelope(99 + number) for number in range(len(DAMAGES))]
    put(store, hit, envelopes(5))
    allow_null(store)
    for seq, (column, damaged, _) in enumerate(DAMAGES.values(), 1):
        change(store, f"UPDATE envelopes SET {column} = ? WHERE seq = ?", damaged(hit[seq - 1].raw), seq)

    report = compact_into(spark, archive, store)

    assert archived(archive) == rows_of(envelopes(5))
    assert (report.rows, report.quarantined) == (5, len(DAMAGES))
    for line, (column, damaged, fault), was in zip(quarantined(archive), DAMAGES.values(), hit, strict=True):
        raw = damaged(was.raw) if column == "raw" else was.raw
        assert bytes.fromhex(line["raw"]) == (raw.encode() if isinstance(raw, str) else raw or b"")
        assert line["fault"].startswith(fault)
        assert (line["store"], line["seq"], line["received"]) == (identity(store), hit.index(was) + 1, NOON)
    assert records(spark, archive)[FIRST].days[DAY].quarantined == len(DAMAGES)
    assert handed_over(store) == {DAY: len(DAMAGES) + 5}


def test_damaged_row_is_counted_once_over_all_runs(spark: SparkSession, store: Path, archive: Path) -> None:
    put(store, envelopes(5))
    change(store, "UPDATE envelopes SET raw = x'00' WHERE seq = 2")
    compact_into(spark, archive, store)
    before = tree(archive)

    report = compact_into(spark, archive, store, run="run-2")
    assert report.quarantined == 0
    assert tree(archive) == before

    put(store, envelopes(5, first=50))
    report = compact_into(spark, archive, store, run="run-3")
    assert (report.rows, report.quarantined) == (5, 0)
    assert records(spark, archive)[FIRST].days[DAY].quarantined == 1
    assert len(quarantined(archive)) == 1
    sound = [*envelopes(5)[:1], *envelopes(5)[2:], *envelopes(5, first=50)]
    assert archived(archive) == rows_of(sound)

    put(store, envelopes(5, first=70))
    change(store, "UPDATE envelopes SET raw = x'01' WHERE seq = 13")
    report = compact_into(spark, archive, store, run="run-4")
    assert (report.rows, report.quarantined) == (4, 1)
    assert [line["seq"] for line in quarantined(archive)] == [2, 13]
    assert records(spark, archive)[FIRST].days[DAY].quarantined == 2


def test_day_of_damaged_rows_alone_is_noted(spark: SparkSession, store: Path, archive: Path) -> None:
    put(store, envelopes(2))
    change(store, "UPDATE envelopes SET raw = x'00'")

    report = compact_into(spark, archive, store)
    assert (report.rows, report.quarantined, periods(archive)) == (0, 2, [])
    assert handed_over(store) == {DAY: 2}

    put(store, envelopes(2, first=50))
    compact_into(spark, archive, store, run="run-2")
    assert archived(archive) == rows_of(envelopes(2, first=50))
    assert records(spark, archive)[FIRST].days[DAY].quarantined == 2


@pytest.mark.parametrize("damaged_first", [True, False])
def test_sound_copy_in_another_store_is_archived(
    spark: SparkSession, store: Path, other_store: Path, archive: Path, *, damaged_first: bool
) -> None:
    put(store, envelopes(5))
    put(
        other_store,
        [put_in._replace(received=put_in.received + (1 if damaged_first else -1)) for put_in in envelopes(5)][1:],
    )
    change(store, "UPDATE envelopes SET raw = x'00' WHERE seq = 2")

    report = compact_into(spark, archive, store, other_store)

    assert [row["raw"] for row in archived(archive)] == [row["raw"] for row in rows_of(envelopes(5))]
    # Where its copy was received first, that one is archived, and nobody looks into the damaged one.
    assert (report.rows, report.quarantined) == (5, int(damaged_first))


def test_sound_copy_that_comes_in_a_later_run_is_archived(
    spark: SparkSession, store: Path, other_store: Path, archive: Path
) -> None:
    put(store, envelopes(5))
    put(other_store, envelopes(5))
    change(store, "UPDATE envelopes SET raw = x'00' WHERE seq = 2")
    compact_into(spark, archive, store)

    report = compact_into(spark, archive, store, other_store, run="run-2")

    assert archived(archive) == rows_of(envelopes(5))
    assert (report.rows, report.quarantined) == (1, 0)


@pytest.mark.parametrize("damage", ["received + 86400 * 5", "'yesterday'"])
def test_row_whose_time_of_reception_is_damaged_stays_in_its_store(
    spark: SparkSession, store: Path, archive: Path, damage: str
) -> None:
    put(store, envelopes(5), envelopes(3, day=DAY + 1, first=50))
    change(store, f"UPDATE envelopes SET received = {damage} WHERE seq = 3")

    for _ in range(2):
        report = compact_into(spark, archive, store)

        assert len(archived(archive)) == 7
        assert report.miscounted == [{"store": str(store), "day": FIRST, "rows": -1}]
        handover = read_archived(store)
        assert handover is not None
        assert handover.days == {DAY + 1: 8}


# Groups


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each day is a group of its own."""
    monkeypatch.setattr(plan_module, "GROUP_BYTES", 1)
    return iter(())


@pytest.mark.usefixtures("small_groups")
def test_days_in_groups_of_their_own_are_deduplicated_too(
    spark: SparkSession, store: Path, other_store: Path, archive: Path
) -> None:
    twice = envelope(1, received=MIDNIGHT + DAY_S - 1)
    put(store, envelopes(4), [twice._replace(received=MIDNIGHT + DAY_S)])
    put(other_store, envelopes(4, first=2), [twice], envelopes(3, day=DAY + 1, first=50))

    report = compact_into(spark, archive, store, other_store)

    hashes = [row["hash"] for row in archived(archive)]
    assert len(hashes) == len(set(hashes)) == report.rows
    assert twice.received in {row["received"] for row in archived(archive, FIRST)}
    assert handed_over(store) == {DAY: 4, DAY + 1: 5}
    assert handed_over(other_store) == {DAY: 5, DAY + 1: 8}


@pytest.mark.usefixtures("small_groups")
def test_groups_before_the_one_that_fails_are_published(
    spark: SparkSession, store: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, envelopes(6), envelopes(6, day=DAY + 1, first=50))

    kept = (F.col("date") == FIRST) | (F.col("topic") != "0x" + NEWS.hex())
    with spoiled(monkeypatch, lambda frame: frame.where(kept)), pytest.raises(ExportCheckFailed, match=SECOND):
        compact_into(spark, archive, store)

    assert periods(archive) == [FIRST]
    assert handed_over(store) == {DAY: 6}
