from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mailserver.archive.layout import Layout, PartitionBy
from spark_export.schema import ENVELOPES, KEYS, STORED_ENVELOPES
from spark_export.transform import arranged, faulty, first_received, partition_of, sound, with_period, without
from tests.spark_export.samples import CHAT, DAY, MIDNIGHT, NEWS, SPORT, TOPICS, envelope, envelopes, row_of

pytestmark = pytest.mark.spark


def keys(spark: SparkSession, *rows: tuple[int, int, int, str]) -> DataFrame:
    """KEYS of rows (store, seq, received, hash)."""
    full = [(store, seq, received // 86_400, received, received - 5, name, 10) for store, seq, received, name in rows]
    return spark.createDataFrame(full, KEYS)


def places(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted((row["store"], row["seq"]) for row in frame.collect())


def stored(spark: SparkSession) -> DataFrame:
    """STORED_ENVELOPES: the second of three rows is damaged."""
    hits = [row_of(hit) for hit in envelopes(3)]
    hits[1] = {**dict.fromkeys(hits[1]), "received": MIDNIGHT, "raw": b"bad"}
    rows = [
        {"store": 4, "seq": at, "day": DAY, "fault": "it is bad" if at == 1 else None, **hit}
        for at, hit in enumerate(hits)
    ]
    return spark.createDataFrame(rows, STORED_ENVELOPES)


def test_of_several_the_one_received_first_stays(spark: SparkSession) -> None:
    found = first_received(keys(spark, (0, 9, 200, "a"), (1, 3, 100, "a"), (2, 1, 300, "a"), (0, 8, 500, "b")))

    assert places(found) == [(0, 8), (1, 3)]
    assert found.columns == KEYS.fieldNames()
    (row,) = found.where(F.col("hash") == "a").collect()
    assert row.asDict() == {
        "store": 1,
        "seq": 3,
        "day": 0,
        "received": 100,
        "created": 95,
        "hash": "a",
        "size": 10,
    }


def test_of_those_received_at_once_the_first_store_counts(spark: SparkSession) -> None:
    found = first_received(keys(spark, (1, 1, 100, "a"), (0, 9, 100, "a"), (0, 7, 100, "a")))

    assert places(found) == [(0, 7)]


def test_without_leaves_out_by_all_columns(spark: SparkSession) -> None:
    rows = keys(spark, (0, 1, 1, "a"), (0, 2, 1, "b"), (1, 1, 1, "c"))
    others = keys(spark, (0, 1, 1, "c"), (0, 1, 1, "c"), (5, 2, 1, "x"))

    assert places(without(rows, others, "store", "seq")) == [(0, 2), (1, 1)]
    assert places(without(rows, others, "hash")) == [(0, 1), (0, 2)]
    assert set(without(rows, others, "hash").columns) == set(KEYS.fieldNames())


def test_sound_rows_are_envelopes_with_their_day(spark: SparkSession) -> None:
    found = sound(stored(spark))

    assert found.columns == ["day", *ENVELOPES.fieldNames()]
    first, _, third = (row_of(hit) for hit in envelopes(3))
    assert [row.asDict() for row in found.collect()] == [{"day": DAY, **first}, {"day": DAY, **third}]


def test_faulty_rows_keep_place_and_bytes(spark: SparkSession) -> None:
    (row,) = faulty(stored(spark)).collect()

    assert row.asDict() == {
        "store": 4,
        "seq": 1,
        "day": DAY,
        "received": MIDNIGHT,
        "fault": "it is bad",
        "raw": b"bad",
    }


def test_period_is_the_name_of_the_day(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(DAY, 1), (0, 2), (DAY - 1, 3)], "day int, other int")

    found = with_period(frame)

    assert found.columns == ["other", "date"]
    assert found.schema["date"].dataType.simpleString() == "string"
    assert [row["date"] for row in found.collect()] == ["2024-10-04", "1970-01-01", "2024-10-03"]


@pytest.mark.parametrize("tasks", [1, 4, 7])
@pytest.mark.parametrize("layout", [Layout(PartitionBy.TOPIC, 0), Layout(PartitionBy.TOPIC_PREFIX, 1)])
def test_rows_of_a_directory_meet_in_one_task_sorted(spark: SparkSession, layout: Layout, tasks: int) -> None:
    hits = [
        envelope(number, received=MIDNIGHT + 86_400 * (number % 3), created=MIDNIGHT - number % 5, topic=topic)
        for number, topic in enumerate([NEWS, SPORT, CHAT, *TOPICS] * 8)
    ]
    rows = [{**row_of(hit), "day": hit.received // 86_400} for hit in hits]
    frame = with_period(spark.createDataFrame(rows, "day int, " + ", ".join(_ddl())))

    found = arranged(frame, layout, tasks)

    assert set(found.columns) == {*ENVELOPES.fieldNames(), "date", layout.column}
    assert found.rdd.getNumPartitions() == tasks
    collected = [row.asDict() for row in found.withColumn("task", F.spark_partition_id()).collect()]
    assert sorted(row["hash"] for row in collected) == sorted(row["hash"] for row in rows)
    directories: dict[tuple[str, str], set[int]] = {}
    for row in collected:
        assert row[layout.column] == layout.value(row["topic"])
        directories.setdefault((row["date"], row[layout.column]), set()).add(row["task"])
    assert all(len(where) == 1 for where in directories.values())
    for task in range(tasks):
        order = [_place(row, layout) for row in collected if row["task"] == task]
        assert order == sorted(order)


def _ddl() -> list[str]:
    return [f"{field.name} {field.dataType.simpleString()}" for field in ENVELOPES.fields]


def _place(row: dict[str, Any], layout: Layout) -> tuple[object, ...]:
    return row["date"], row[layout.column], row["topic"], row["created"], row["hash"]


def test_prefixes_of_a_day_take_turns_among_the_tasks(spark: SparkSession) -> None:
    topics = [f"0x{digit:x}0000000" for digit in range(16)]
    rows = [{**row_of(envelope(1)), "topic": topic, "day": DAY} for topic in topics]
    frame = with_period(spark.createDataFrame(rows, "day int, " + ", ".join(_ddl())))

    found = arranged(frame, Layout(PartitionBy.TOPIC_PREFIX, 1), 4).withColumn("task", F.spark_partition_id())

    counts = {row["task"]: row["count"] for row in found.groupBy("task").count().collect()}
    assert counts == {0: 4, 1: 4, 2: 4, 3: 4}


@pytest.mark.parametrize(
    "layout", [Layout(PartitionBy.TOPIC, 0), *(Layout(PartitionBy.TOPIC_PREFIX, digits) for digits in (1, 3))]
)
def test_partition_of_a_topic_column_is_the_layouts_value(spark: SparkSession, layout: Layout) -> None:
    topics = ["0x9acb0442", "0x00000000", "0xffffffff"]

    frame = spark.createDataFrame([(topic,) for topic in topics], "topic string")

    assert [row[0] for row in frame.select(partition_of(layout)).collect()] == [layout.value(topic) for topic in topics]
