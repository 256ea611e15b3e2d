"""Reading an archive: by `read_archive`, and by whatever else reads Parquet."""

import json
import re
import shutil
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertSchemaEqual

from mailserver.archive.errors import ArchiveError
from mailserver.archive.layout import PartitionBy
from mailserver.archive.paths import SETTINGS_FILE, SNAPSHOTS
from spark_export.merge import merge
from spark_export.read import read_archive
from spark_export.schema import ENVELOPES
from tests.spark_export.samples import (
    CHAT,
    COLUMNS,
    DAY,
    DAY_S,
    NEWS,
    NOON,
    SPORT,
    compact_into,
    envelope,
    envelopes,
    put,
    row_of,
    rows_of,
)

pytestmark = pytest.mark.spark

NEXT_MONTH = DAY + 28
"""2024-11-01."""

PUT_IN = [
    *envelopes(12),
    *envelopes(12, day=DAY + 1, first=100),
    *envelopes(12, day=NEXT_MONTH, first=200),
    envelope(300, received=NOON + 2 * DAY_S, created=NOON - 40 * DAY_S, topic=SPORT),  # the sender's clock is wrong
]
BY_TOPIC = (PartitionBy.TOPIC, None)
BY_PREFIX = (PartitionBy.TOPIC_PREFIX, 1)
AS_NAMES = "hive_partitioning = true, hive_types_autocast = false"
"""DuckDB takes `topic=0x9acb0442` for a number, and days, where there are no months, for dates."""


@pytest.fixture(scope="module", params=[BY_TOPIC, BY_PREFIX], ids=["topic", "topic-prefix"])
def unmerged(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Days of two months, in either layout."""
    folder = tmp_path_factory.mktemp("read")
    store = put(folder / "store" / "mailserver.db", PUT_IN)
    by, digits = request.param
    now = (NEXT_MONTH + 1) * DAY_S
    compact_into(spark, folder / "days", store, now=now, partition_by=by, prefix_digits=digits)
    return folder / "days"


@pytest.fixture(scope="module")
def merged(unmerged: Path, spark: SparkSession) -> Path:
    """The same, the first month's days merged: `date=2024-10` beside `date=2024-11-01`."""
    archive = unmerged.with_name("months")
    shutil.copytree(unmerged, archive)
    merge(spark, str(archive), now=(NEXT_MONTH + 1) * DAY_S, run="merge-1")
    return archive


@pytest.fixture(params=["days", "months"])
def archive(request: pytest.FixtureRequest, unmerged: Path, merged: Path) -> Path:
    """Before a merge, and after."""
    return unmerged if request.param == "days" else merged


@pytest.fixture
def default_spark(spark: SparkSession) -> SparkSession:
    """A session as others have it, which guesses the types of partition columns."""
    session = spark.newSession()
    session.conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", "true")
    return session


def collected(frame: DataFrame) -> list[dict[str, Any]]:
    """The rows of the archive's columns, in the order of `rows_of`."""
    rows = [row.asDict() for row in frame.select(*COLUMNS).collect()]
    return ordered({**row, "raw": bytes(row["raw"]), "muid": bytes(row["muid"])} for row in rows)


def ordered(rows: Any) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["topic"], row["created"], row["hash"]))


def history(topic: bytes) -> list[dict[str, Any]]:
    """A topic's rows as the store has them."""
    return rows_of(put_in for put_in in PUT_IN if put_in.topic == topic)


def created_in(wanted: Callable[[int], bool]) -> list[dict[str, Any]]:
    return rows_of(put_in for put_in in PUT_IN if wanted(put_in.created))


def files_of(frame: DataFrame) -> list[str]:
    """The directories of the files that a query reads, below the archive."""
    return sorted({name.rpartition("/")[0].partition("date=")[2] for name in frame.inputFiles()})


def test_whole_archive_is_what_the_store_had(spark: SparkSession, archive: Path) -> None:
    frame = read_archive(spark, str(archive))

    assert collected(frame) == rows_of(PUT_IN)


def test_date_is_the_day_of_reception_even_of_merged_days(spark: SparkSession, archive: Path) -> None:
    frame = read_archive(spark, str(archive))

    found = {row["hash"]: row["date"] for row in frame.select("hash", "date").collect()}
    assert found == {
        row_of(put_in)["hash"]: date(1970, 1, 1) + timedelta(put_in.received // DAY_S) for put_in in PUT_IN
    }


def test_topics_are_bytes_or_hex(spark: SparkSession, archive: Path) -> None:
    by_bytes = read_archive(spark, str(archive), topics=[NEWS])
    by_hex = read_archive(spark, str(archive), topics=["0x" + NEWS.hex().upper()])
    two = read_archive(spark, str(archive), topics={bytes(NEWS), "0x" + SPORT.hex()})

    assert collected(by_bytes) == collected(by_hex) == history(NEWS)
    assert collected(two) == ordered(history(NEWS) + history(SPORT))


def test_one_topic_needs_no_list(spark: SparkSession, archive: Path) -> None:
    by_hex = read_archive(spark, archive, topics="0x" + NEWS.hex())
    by_bytes = read_archive(spark, archive, topics=bytes(NEWS))

    assert collected(by_hex) == collected(by_bytes) == history(NEWS)


@pytest.mark.parametrize("topic", ["0x9acb04", "status", "0x9acb044g", b"abc", "", 4])
def test_what_is_no_topic_is_refused(spark: SparkSession, unmerged: Path, topic: Any) -> None:
    for topics in ([topic], topic) if isinstance(topic, (str, bytes)) else ([topic],):
        with pytest.raises(
            ValueError, match=rf"^{re.escape(repr(topic))} is not a topic: 4 bytes, or 0x and 8 hex digits$"
        ):
            read_archive(spark, str(unmerged), topics=topics)


def test_date_is_its_midnight_and_seconds_may_have_a_fraction(spark: SparkSession, archive: Path) -> None:
    midnight = (DAY + 1) * DAY_S

    by_date = read_archive(spark, archive, start=date(2024, 10, 5))
    by_seconds = read_archive(spark, archive, start=midnight - 0.5)

    assert collected(by_date) == collected(by_seconds) == created_in(lambda created: created >= midnight)


@pytest.mark.parametrize("moment", ["2024-10-05", True, float("nan"), timedelta(1)])
def test_what_is_no_time_is_refused(spark: SparkSession, unmerged: Path, moment: Any) -> None:
    with pytest.raises(TypeError, match="is not a time: Unix seconds, a datetime, or a date"):
        read_archive(spark, unmerged, start=moment)


def test_start_is_included_and_end_is_not(spark: SparkSession, archive: Path) -> None:
    start, end = DAY * DAY_S + 60, (DAY + 1) * DAY_S + 120

    frame = read_archive(spark, str(archive), start=start, end=end)

    assert {row["created"] for row in collected(frame)} >= {start, end - 60}
    assert collected(frame) == created_in(lambda created: start <= created < end)


def test_start_and_end_may_be_datetimes(spark: SparkSession, archive: Path) -> None:
    start = datetime(2024, 10, 4, 0, 1)  # noqa: DTZ001 - of UTC
    end = datetime(2024, 10, 5, 2, 2, tzinfo=timezone(timedelta(hours=2)))

    frame = read_archive(spark, str(archive), start=start, end=end)

    bounds = DAY * DAY_S + 60, (DAY + 1) * DAY_S + 120
    assert collected(frame) == created_in(lambda created: bounds[0] <= created < bounds[1])


def test_fractions_of_a_second_are_no_whole_second(spark: SparkSession, archive: Path) -> None:
    between = datetime.fromtimestamp(DAY * DAY_S + 60.5, UTC)

    after = read_archive(spark, str(archive), start=between)
    before = read_archive(spark, str(archive), end=between)

    assert collected(after) == created_in(lambda created: created > DAY * DAY_S + 60)
    assert collected(before) == created_in(lambda created: created <= DAY * DAY_S + 60)


def test_nothing_found_is_an_empty_frame_of_the_same_columns(spark: SparkSession, archive: Path) -> None:
    whole = read_archive(spark, str(archive))
    nothing = [
        read_archive(spark, str(archive), topics=[]),
        read_archive(spark, str(archive), topics=["0x00000000"]),
        read_archive(spark, str(archive), start=2**32),
        read_archive(spark, str(archive), end=0),
        read_archive(spark, str(archive), topics=[NEWS], start=NOON, end=NOON),
    ]

    for frame in nothing:
        assert frame.collect() == []
        assertSchemaEqual(frame.schema, whole.schema, ignoreNullable=True)
    assert whole.columns == [*ENVELOPES.fieldNames(), "date"]


def test_only_directories_that_may_hold_the_answer_are_read(spark: SparkSession, unmerged: Path) -> None:
    by_topic = (unmerged / "date=2024-10-04" / f"topic=0x{NEWS.hex()}").exists()
    column = f"topic=0x{NEWS.hex()}" if by_topic else "topic_prefix=9"

    one = read_archive(spark, str(unmerged), topics=[NEWS], start=NOON - DAY_S, end=NOON)
    late = read_archive(spark, str(unmerged), topics=[NEWS], start=NEXT_MONTH * DAY_S)
    early = read_archive(spark, str(unmerged), topics=[SPORT], end=NOON - 30 * DAY_S)

    assert files_of(one) == [f"2024-10-04/run=run-1-0/{column}"]
    assert files_of(late) == [f"2024-11-01/run=run-1-0/{column}"]
    assert [name.partition("/")[0] for name in files_of(early)] == ["2024-10-06"]
    assert collected(early) == [row_of(PUT_IN[-1])]


def test_only_the_merged_month_is_read(spark: SparkSession, merged: Path) -> None:
    frame = read_archive(spark, str(merged), topics=[NEWS], end=NOON)

    assert [name.partition("/")[0] for name in files_of(frame)] == ["2024-10"]


def test_filter_of_topics_reaches_the_files(spark: SparkSession, merged: Path) -> None:
    frame = read_archive(spark, str(merged), topics=[NEWS], start=NOON)

    plan = frame._jdf.queryExecution().executedPlan().toString()  # noqa: SLF001 - there is no other way to it
    assert "GreaterThanOrEqual(created" in plan.partition("PushedFilters")[2]
    assert "topic" in plan.partition("Filters")[2]


def test_copy_without_second_names_is_read(spark: SparkSession, archive: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(archive, copy, ignore=shutil.ignore_patterns("_snapshots"))

    frame = read_archive(spark, str(copy), topics=[NEWS, CHAT])

    assert not (copy / SNAPSHOTS).exists()
    assert collected(frame) == ordered(history(NEWS) + history(CHAT))


def test_copy_with_some_second_names_is_read(spark: SparkSession, merged: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(merged, copy, ignore=shutil.ignore_patterns("run=merge-1-0"))

    frame = read_archive(spark, str(copy))

    assert collected(frame) == rows_of(PUT_IN)


def test_url_of_an_archive_is_read(spark: SparkSession, merged: Path) -> None:
    frame = read_archive(spark, merged.as_uri(), topics=[SPORT])

    assert collected(frame) == history(SPORT)


def test_session_that_guesses_types_reads_the_same(default_spark: SparkSession, archive: Path) -> None:
    frame = read_archive(default_spark, str(archive))

    assert collected(frame) == rows_of(PUT_IN)


@pytest.mark.parametrize("name", ["with space", "per%cent", "an#chor?", "ünï"])
def test_archive_in_a_directory_of_any_name(spark: SparkSession, tmp_path: Path, name: str) -> None:
    store = put(tmp_path / "mailserver.db", envelopes(3))

    compact_into(spark, tmp_path / name, store)

    assert collected(read_archive(spark, str(tmp_path / name))) == rows_of(envelopes(3))
    assert collected(read_archive(spark, (tmp_path / name).as_uri())) == rows_of(envelopes(3))
    assert {entry.name for entry in tmp_path.iterdir() if entry.is_dir()} == {name}


def test_archive_of_a_later_version_is_refused(spark: SparkSession, unmerged: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(unmerged, tmp_path / "copy")
    settings = json.loads((copy / SETTINGS_FILE).read_text())
    (copy / SETTINGS_FILE).write_text(json.dumps(settings | {"version": 2}))

    with pytest.raises(ArchiveError, match=r"_archive\.json has version 2, this program knows 1"):
        read_archive(spark, str(copy))


def test_record_of_a_later_version_is_refused(spark: SparkSession, unmerged: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(unmerged, tmp_path / "copy")
    record = copy / "_records" / "2024-10-04.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"version": 2}))

    with pytest.raises(ArchiveError, match=r"2024-10-04\.json has version 2"):
        read_archive(spark, str(copy))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"version": 1}', '{"version": 1, "partition_by": "moon"}'])
def test_damaged_settings_are_an_archive_error(spark: SparkSession, tmp_path: Path, text: str) -> None:
    (tmp_path / SETTINGS_FILE).write_text(text)

    with pytest.raises(ArchiveError, match=r"_archive\.json is damaged"):
        read_archive(spark, str(tmp_path))


def test_what_is_no_archive_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "foreign" / "date=2024-10-04").mkdir(parents=True)
    (tmp_path / "empty").mkdir()

    with pytest.raises(ArchiveError, match=r"foreign is not an archive of ours: it has date=2024-10-04"):
        read_archive(spark, str(tmp_path / "foreign"))
    for name in ("empty", "nothing"):
        with pytest.raises(ArchiveError, match=f"there is no archive at .*{name}"):
            read_archive(spark, str(tmp_path / name))


def test_duckdb_reads_a_topic(archive: Path) -> None:
    query = f"""
        SELECT topic, created, received, expiry, ttl, hash, pow, size, raw, muid
        FROM read_parquet('{archive}/date=*/*/*.parquet', {AS_NAMES})
        WHERE topic = '0x{NEWS.hex()}' ORDER BY created, hash
    """

    found = duckdb.connect().execute(query).fetchall()

    assert found == [tuple(row.values()) for row in history(NEWS)]


def test_duckdb_reads_all_but_topics_without_any_option(archive: Path) -> None:
    query = f"SELECT hash FROM read_parquet('{archive}/date=*/*/*.parquet') ORDER BY hash"

    found = duckdb.connect().execute(query).fetchall()

    assert found == sorted((row["hash"],) for row in rows_of(PUT_IN))


def test_duckdb_reads_dates_and_prefixes_as_names(archive: Path) -> None:
    column = "topic" if list(archive.glob("date=*/topic=*")) else "topic_prefix"
    query = f"SELECT DISTINCT date, {column} FROM read_parquet('{archive}/date=*/*/*.parquet', {AS_NAMES})"

    found = set(duckdb.connect().execute(query).fetchall())

    directories = (entry.relative_to(archive).parts for entry in archive.glob("date=*/*"))
    assert found == {(day.partition("=")[2], below.partition("=")[2]) for day, below in directories}


def test_pyarrow_reads_a_topic(archive: Path) -> None:
    column = "topic" if list(archive.glob("date=*/topic=*")) else "topic_prefix"
    names = pa.schema([("date", pa.string()), (column, pa.string())])

    dataset = ds.dataset(archive, partitioning=ds.partitioning(names, flavor="hive"))

    wanted = (ds.field("topic") == f"0x{NEWS.hex()}") & (ds.field("date") < "2025")
    assert ordered(dataset.to_table(filter=wanted, columns=[*COLUMNS]).to_pylist()) == history(NEWS)


@pytest.mark.parametrize("session", ["spark", "default_spark"])
def test_spark_sql_reads_a_topic(request: pytest.FixtureRequest, archive: Path, session: str) -> None:
    spark: SparkSession = request.getfixturevalue(session)

    frame = spark.read.parquet(str(archive))
    by_sql = spark.sql(f"SELECT * FROM parquet.`{archive}` WHERE topic = '0x{NEWS.hex()}'")
    below = spark.read.option("basePath", str(archive)).parquet(f"{archive}/date=2024-1*")

    assert collected(frame) == collected(below) == rows_of(PUT_IN)
    assert collected(by_sql) == history(NEWS)


def test_spark_sql_has_dates_as_names_in_our_session(spark: SparkSession, archive: Path) -> None:
    frame = spark.read.parquet(str(archive))

    types = dict(frame.dtypes)
    assert types["date"] == "string"
    assert types.get("topic_prefix", "string") == "string"
    found = {row["date"] for row in frame.select("date").distinct().collect()}
    assert found == {entry.name.partition("=")[2] for entry in archive.glob("date=*")}
