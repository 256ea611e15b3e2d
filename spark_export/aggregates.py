"""Fingerprints as Spark computes them."""

from typing import Any

from pyspark.sql import Column, Row
from pyspark.sql import functions as F

from mailserver.archive.fingerprint import MODULUS, Fingerprint


def aggregates(size: Column) -> list[Column]:
    """The aggregates to select; `size` is the bytes of an envelope, column `hash` begins with 0x.

    The halves of the eight bytes are summed separately: a long holds the sum of 2**31 of them.
    """
    return [
        F.count("*").alias("rows"),
        F.sum(size).alias("bytes"),
        F.sum(_word(3)).alias("checksum_high"),
        F.sum(_word(11)).alias("checksum_low"),
    ]


def _word(position: int) -> Column:
    return F.conv(F.substring("hash", position, 8), 16, 10).cast("long")


def fingerprint_of(row: Row | Any) -> Fingerprint:
    """From a row that has the columns of `aggregates`."""
    checksum = ((row["checksum_high"] or 0) << 32) + (row["checksum_low"] or 0)
    return Fingerprint(row["rows"], row["bytes"] or 0, checksum % MODULUS)
