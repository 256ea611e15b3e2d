"""Rows of stores that are left out of the archive, because their envelopes are in it already: where these are.

A row is left out if the archive has its envelope, or if another store received it first, on whatever day that was. What
is left out of a day is as safe as the days that have it, so the day's record names them (`DayRecord.elsewhere`).
"""

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mailserver.archive.archive import Archive
from mailserver.archive.layout import Layout
from mailserver.archive.manifest import PeriodRecord, near_periods
from mailserver.archive.paths import directory_of
from mailserver.units import SECONDS_PER_DAY
from spark_export.frames import read_periods
from spark_export.s3_rows import WantedRows
from spark_export.schema import KEY_HASH_CHARS

COPY = "copy_day"
"""The day of reception of the archived row that has the same envelope."""


def archived_copies(
    spark: SparkSession, archive: Archive, layout: Layout, keys: DataFrame, records: Mapping[str, PeriodRecord]
) -> DataFrame | None:
    """Hashes, cut to the length that KEYS has, and COPY, of all archived rows that were created in the time range of
    the keys; None if there are none."""
    ((first, last),) = keys.agg(F.min("created"), F.max("created")).collect()
    near = near_periods(records, first, last)
    if not near:
        return None
    directories = [directory_of(period) for period in near]
    wanted, columns = WantedRows(first=first, end=last + 1), ("received", "created", "hash")
    rows = read_periods(spark, archive, layout, directories, columns=columns, wanted=wanted)
    return rows.where(F.col("created").between(first, last)).select(
        F.substring("hash", 1, KEY_HASH_CHARS).alias("hash"),
        F.floor(F.col("received") / SECONDS_PER_DAY).cast("int").alias(COPY),
    )


def days_elsewhere(
    found: DataFrame | None, later: DataFrame | None, first: DataFrame
) -> dict[tuple[int, int], tuple[int, ...]]:
    """By store and day, on which other days the envelopes of rows are that were left out.

    Args:
        found: KEYS and COPY of rows that the archive has; None if it has none.
        later: KEYS of rows that another store received first; None if there is only one store.
        first: KEYS of those that were received first. The archive has them, or will have them.
    """
    there = []
    if found is not None:
        there.append(found.select("store", "day", COPY))
    if later is not None:
        of_first = first.select("hash", F.col("day").alias("first_day"))
        rows = later.select("hash", "store", "day").join(of_first, on="hash")
        if found is None:
            rows = rows.withColumn(COPY, F.col("first_day"))
        else:
            rows = rows.join(found.select("hash", COPY), on="hash", how="left")
            rows = rows.withColumn(COPY, F.coalesce(COPY, "first_day"))
        there.append(rows.select("store", "day", COPY))
    days: dict[tuple[int, int], set[int]] = {}
    for frame in there:
        for store, day, copy in frame.where(F.col("day") != F.col(COPY)).distinct().collect():
            days.setdefault((store, day), set()).add(copy)
    return {place: tuple(sorted(found_on)) for place, found_on in days.items()}
