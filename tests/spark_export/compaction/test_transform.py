import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_export.schema import KEYS
from spark_export.transform import first_received, without

pytestmark = pytest.mark.spark


def keys(spark: SparkSession, *rows: tuple[int, int, int, str]) -> DataFrame:
    """KEYS of rows (store, seq, received, hash)."""
    full = [(store, seq, received // 86_400, received, received - 5, name, 10) for store, seq, received, name in rows]
    return spark.createDataFrame(full, KEYS)


def places(frame: DataFrame) -> list[tuple[int, int]]:
    return sorted((row["store"], row["seq"]) for row in frame.collect())


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
