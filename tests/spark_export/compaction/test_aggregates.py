import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from mailserver.archive.fingerprint import Fingerprint
from spark_export.aggregates import aggregates, fingerprint_of
from tests.archive.fingerprints import hashes, model


def computed(spark: SparkSession, names: list[str], size: int = 10) -> Fingerprint:
    frame = spark.createDataFrame([(name,) for name in names], "hash string").repartition(3)
    (row,) = frame.agg(*aggregates(F.lit(size))).collect()
    return fingerprint_of(row)


@pytest.mark.spark
def test_spark_computes_the_sum_of_hashes(spark: SparkSession) -> None:
    names = [*hashes(50), bytes(32), b"\xff" * 32, b"\xff" * 32]

    assert computed(spark, ["0x" + name.hex() for name in names]) == model(names, 10)


@pytest.mark.spark
def test_prefixes_of_hashes_have_the_same_fingerprint(spark: SparkSession) -> None:
    names = hashes(20)

    assert computed(spark, ["0x" + name[:16].hex() for name in names]) == model(names, 10)


@pytest.mark.spark
def test_nothing_has_the_empty_fingerprint(spark: SparkSession) -> None:
    assert computed(spark, []) == Fingerprint()


@pytest.mark.spark
def test_row_that_stands_twice_is_counted(spark: SparkSession) -> None:
    (name,) = hashes(1)

    assert computed(spark, ["0x" + name.hex()] * 2) == model([name, name], 10)


def test_halves_that_overflow_are_taken_modulo_eight_bytes() -> None:
    assert fingerprint_of({"rows": 2**31, "bytes": 0, "checksum_high": 2**31 * (2**32 - 1), "checksum_low": 0}) == (
        Fingerprint(2**31, 0, (2**31 * (2**32 - 1) << 32) % 2**64)
    )
