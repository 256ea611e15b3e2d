"""From rows of stores to rows of the archive: DataFrame in, DataFrame out, no session, paths or clock."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from mailserver.archive.layout import PERIOD, Layout, PartitionBy
from spark_export.schema import ENVELOPES

PLACE = ["store", "seq"]
"""What tells a stored row from every other of a run."""

_TASK = "_task"


def first_received(keys: DataFrame) -> DataFrame:
    """Of rows with the same hash, the one received first: KEYS in, KEYS out."""
    others = [name for name in keys.columns if name not in ("received", *PLACE, "hash")]
    earliest = F.min(F.struct("received", *PLACE, *others)).alias("earliest")
    return keys.groupBy("hash").agg(earliest).select("hash", "earliest.*").select(*keys.columns)


def without(rows: DataFrame, others: DataFrame, *columns: str) -> DataFrame:
    """The rows that have no counterpart in `others`, by these columns."""
    return rows.join(others, on=list(columns), how="left_anti")


def sound(stored: DataFrame) -> DataFrame:
    """STORED_ENVELOPES -> ENVELOPES with `day`, but for rows with a fault."""
    return stored.where(F.col("fault").isNull()).select("day", *ENVELOPES.fieldNames())


def faulty(stored: DataFrame) -> DataFrame:
    """The rows of STORED_ENVELOPES that are to be set aside."""
    return stored.where(F.col("fault").isNotNull()).select("store", "seq", "day", "received", "fault", "raw")


def with_period(envelopes: DataFrame) -> DataFrame:
    """Add the period that is one day: `day` becomes the partition column."""
    return envelopes.withColumn(PERIOD, F.date_from_unix_date("day").cast("string")).drop("day")


def arranged(envelopes: DataFrame, layout: Layout, tasks: int) -> DataFrame:
    """Bring each directory's rows together into one of so many tasks, sorted by (topic, created, hash).

    `envelopes` is ENVELOPES with the period column; so is the result, with the layout's column. Periods take turns
    among the tasks, so that each task gets about as much as any other.
    """
    group = F.hash(PERIOD, layout.column)
    if layout.prefix_digits:  # few groups: hashed, several would meet in one task while others have none
        prefixes = 16**layout.prefix_digits
        prefix = F.conv(F.col(layout.column), 16, 10).cast("int")
        group = F.crc32(F.col(PERIOD).cast("binary")) * prefixes + prefix
    placed = envelopes.withColumn(layout.column, partition_of(layout)).withColumn(
        _TASK, F.pmod(group, F.lit(tasks)).cast("int")
    )
    order = dict.fromkeys([PERIOD, layout.column, "topic", "created", "hash"])
    return placed.repartitionById(tasks, _TASK).drop(_TASK).sortWithinPartitions(*order)


def partition_of(layout: Layout) -> Column:
    """`Layout.value` of column `topic`."""
    return F.col("topic") if layout.by is PartitionBy.TOPIC else F.substring("topic", 3, layout.prefix_digits)
