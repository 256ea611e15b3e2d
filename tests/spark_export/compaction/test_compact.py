"""The nightly run, with stores that the daemon's code has made and a real Spark."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from mailserver.archive.layout import PartitionBy
from mailserver.codec.keccak import keccak256
from mailserver.store.interface import NewEnvelope
from mailserver.store.sqlite.handoff import SqliteHandoff
from mailserver.waku.envelope import Topic, decode_envelope
from tests.spark_export.samples import (
    CHAT,
    COLUMNS,
    DAY,
    DAY_S,
    FIRST,
    MIDNIGHT,
    NEWS,
    NOON,
    SECOND,
    SPORT,
    THIRD,
    TTL,
    archived,
    compact_into,
    envelope,
    envelopes,
    handed_over,
    identity,
    period_of,
    periods,
    prune,
    put,
    records_in,
    rows_of,
    rows_of_file,
    tree,
    visible_files,
)

pytestmark = pytest.mark.spark

ALL_COLUMNS = [*COLUMNS[:-1], "store", "seq", "muid"]


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
    columns = ALL_COLUMNS[1:] if by is PartitionBy.TOPIC else ALL_COLUMNS
    for file in files:
        rows = rows_of_file(file)
        assert in_order(rows)
        assert len(rows) >= 20
        metadata = pq.ParquetFile(file).metadata
        assert metadata.schema.names == columns
        group = metadata.row_group(0)
        chunks = {name: group.column(number) for number, name in enumerate(columns)}
        assert {chunk.compression for chunk in chunks.values()} == {"ZSTD"}
        assert {name for name, chunk in chunks.items() if chunk.is_stats_set} == set(columns) - {"raw", "muid"}
        filtered = duckdb.execute(
            "SELECT path_in_schema FROM parquet_metadata(?) WHERE bloom_filter_offset IS NOT NULL", [str(file)]
        ).fetchall()
        assert {name for (name,) in filtered} == {"hash", "muid", "topic"} & set(columns)


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

    found = records_in(archive)
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


def test_run_with_nothing_to_archive_leaves_nobody_to_miss_an_archive(
    spark: SparkSession, store: Path, archive: Path
) -> None:
    put(store)

    compact_into(spark, archive, store)

    assert not SqliteHandoff(store).was_archived()


def test_record_of_another_archive_ends_before_the_first_day_of_a_new_one(
    spark: SparkSession, store: Path, archive: Path, tmp_path: Path
) -> None:
    compact_into(spark, tmp_path / "another", put(store, envelopes(3)))
    before = handed_over(store)

    compact_into(spark, archive, store, run="run-2", until=0)

    assert before
    assert handed_over(store) == {}


def test_empty_store_leaves_the_layout_open(spark: SparkSession, store: Path, archive: Path) -> None:
    put(store)

    report = compact_into(spark, archive, store)

    assert (report.rows, periods(archive)) == (0, [])
    put(store, envelopes(3))
    compact_into(spark, archive, store, run="run-2", partition_by=PartitionBy.TOPIC_PREFIX)
    assert archived(archive) == rows_of(envelopes(3))
