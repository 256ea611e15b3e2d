import random

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_export.aggregates import aggregates, fingerprint_of
from spark_export.fingerprint import Fingerprint

FULL_WORD = 2**64 - 1


def hashes(count: int) -> list[bytes]:
    return [random.Random(number).randbytes(32) for number in range(count)]


def model(names: list[bytes], size: int) -> Fingerprint:
    """The definition in the module's words."""
    checksum = sum(int.from_bytes(name[:8], "big") for name in names) % 2**64
    return Fingerprint(len(names), size * len(names), checksum)


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


def test_sum_of_two_sets_is_the_set_of_both() -> None:
    names = hashes(30)

    assert model(names[:10], 5) + model(names[10:], 5) == model(names, 5)
    assert Fingerprint.sum([model(names[:10], 5), Fingerprint(), model(names[10:], 5)]) == model(names, 5)
    assert model(names, 5) - model(names[10:], 5) == model(names[:10], 5)
    assert Fingerprint.sum([]) == Fingerprint()


def test_checksum_stays_within_eight_bytes() -> None:
    assert Fingerprint(1, 1, FULL_WORD) + Fingerprint(1, 1, 2) == Fingerprint(2, 2, 1)
    assert Fingerprint(2, 2, 1) - Fingerprint(1, 1, 2) == Fingerprint(1, 1, FULL_WORD)
    assert fingerprint_of({"rows": 2**31, "bytes": 0, "checksum_high": 2**31 * (2**32 - 1), "checksum_low": 0}) == (
        Fingerprint(2**31, 0, (2**31 * (2**32 - 1) << 32) % 2**64)
    )


def test_text_is_one_line_of_fixed_width_hex() -> None:
    assert str(Fingerprint(3, 900, 255)) == "rows=3 bytes=900 checksum=00000000000000ff"
