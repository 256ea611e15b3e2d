"""To which network topic the MUIDs of an archive belong; and archives of earlier versions, which have none."""

import asyncio
import shutil
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from mailserver.archive.manifest import encode_record
from mailserver.archive.paths import directory_of, record_of
from mailserver.ids.envelopes import envelope_muid
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.store.sqlite.store import open_store
from mailserver.waku.envelope import decode_envelope
from spark_export.errors import ExportError
from spark_export.merge import merge
from spark_export.read import read_archive
from spark_export.verify import verify
from tests.spark_export.damage import NOW, ONE, THREE, TWO, Place
from tests.spark_export.samples import (
    DAY,
    DAY_S,
    FIRST,
    SECOND,
    THIRD,
    archived,
    compact_into,
    envelopes,
    put,
    records_in,
    rows_of,
)

pytestmark = pytest.mark.spark

OTHER = "/waku/2/rs/1/5"
MONTH = FIRST[:7]
NEXT_MONTH = (DAY + 40) * DAY_S
LATE = envelopes(4, day=DAY + 1, first=900)
LATER = ("muid", "store", "seq")


def as_before(archive: Path) -> None:
    """Make an archive what version 0.2 would have written: files without the later columns, and without indexes."""
    for record in records_in(archive).values():
        files = []
        for file in record.files:
            path = archive / directory_of(record.period) / file.path
            rows = pq.ParquetFile(path).read()
            path.unlink()  # it has a second name
            pq.write_table(rows.drop_columns([*LATER]), path, store_schema=False)
            files.append(replace(file, bytes=path.stat().st_size, sha256=sha256(path.read_bytes()).hexdigest()))
        before = replace(record, files=tuple(files), snapshot=False, index=None, network_topic=None)
        (archive / record_of(record.period)).write_text(encode_record(before))
    shutil.rmtree(archive / "_snapshots")
    shutil.rmtree(archive / "_index")


def reindex(store: Path, network_topic: str) -> None:
    """Have the message ids of a store belong to another network topic."""

    async def run() -> None:
        async with open_store(store, network_topic, reindex=True) as opened:
            await opened.message_ids.find([])  # which waits for that

    asyncio.run(run())


def network_topics(place: Place) -> dict[str, str | None]:
    return {period: record.network_topic for period, record in place.records().items()}


def belong_to(place: Place, period: str) -> set[str]:
    """The network topics to which the MUIDs of a period's rows belong."""
    names = {
        (topic, envelope_muid(topic, decode_envelope(row["raw"])))
        for row in archived(place.archive, period)
        for topic in (DEFAULT_NETWORK_TOPIC, OTHER)
    }
    topic_of = {name: topic for topic, name in names}
    return {topic_of[row["muid"]] for row in archived(place.archive, period)}


def test_archive_of_before_is_read_and_gets_message_ids_with_late_rows_and_when_it_is_merged(
    spark: SparkSession, place: Place
) -> None:
    as_before(place.archive)

    rows = read_archive(spark, str(place.archive)).select("hash", *LATER).collect()
    assert sorted(row["hash"] for row in rows) == sorted(row["hash"] for row in rows_of([*ONE, *TWO, *THREE]))
    assert {row[name] for row in rows for name in LATER} == {None}
    assert not verify(spark, str(place.archive), now=NOW).faults

    put(place.store, LATE)
    report = place.run(spark, "run-2")

    assert (report.damage, report.rows) == ("", len(LATE))
    assert archived(place.archive, SECOND) == rows_of([*TWO, *LATE])
    assert network_topics(place) == {FIRST: None, SECOND: DEFAULT_NETWORK_TOPIC, THIRD: None}

    merge(spark, str(place.archive), now=NEXT_MONTH, run="merge-1")

    assert archived(place.archive) == rows_of([*ONE, *TWO, *THREE, *LATE])
    assert network_topics(place) == {MONTH: DEFAULT_NETWORK_TOPIC}
    assert not verify(spark, str(place.archive), now=NOW).faults


def test_each_period_says_to_which_network_topic_its_message_ids_belong(spark: SparkSession, place: Place) -> None:
    put(place.store, LATE)
    reindex(place.store, OTHER)

    compact_into(spark, place.archive, place.store, now=NOW, run="run-2", network_topic=OTHER)

    assert network_topics(place) == {FIRST: DEFAULT_NETWORK_TOPIC, SECOND: OTHER, THIRD: DEFAULT_NETWORK_TOPIC}
    assert {period: belong_to(place, period) for period in (FIRST, SECOND)} == {
        FIRST: {DEFAULT_NETWORK_TOPIC},
        SECOND: {OTHER},  # those that were archived before, too
    }


def test_merge_makes_the_message_ids_of_a_month_anew_for_another_network_topic(
    spark: SparkSession, place: Place
) -> None:
    for topic in (DEFAULT_NETWORK_TOPIC, OTHER):
        report = merge(spark, str(place.archive), now=NEXT_MONTH, run=f"merge-{topic[-1]}", network_topic=topic)
        assert [period["period"] for period in report.periods] == [MONTH]
        assert network_topics(place) == {MONTH: topic}
        assert belong_to(place, MONTH) == {topic}

    again = merge(spark, str(place.archive), now=NEXT_MONTH, run="merge-again", network_topic=OTHER)
    assert not again.periods


def test_store_of_another_network_topic_is_refused(spark: SparkSession, place: Place) -> None:
    reindex(place.store, OTHER)
    before = place.records()

    refused = pytest.raises(ExportError, match=f"belong to {OTHER}, .* give --network-topic")
    with refused:
        compact_into(spark, place.archive, place.store, now=NOW, run="run-2")
    with refused:
        merge(spark, str(place.archive), now=NEXT_MONTH, run="merge-1", stores=[place.store])
    assert place.records() == before
