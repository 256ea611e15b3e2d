"""The keys of rows of stores, as a DataFrame: all that is told of them without a look into their envelopes.

Spark's own way to a data source starts processes of Python of its own. For few keys, that takes much longer than to
read them. So where few are expected, those that may be archived already, because they were created no later than
anything in the archive, the tasks that read envelopes read them, whose processes are there.
"""

from collections.abc import Sequence
from functools import partial
from itertools import chain

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from spark_export.schema import KEYS
from spark_export.source import END_OF_TIME, StoreRange, StoreReader, StoreSource, options_of, reader_of
from spark_export.store import StoreDay, StoreSnapshot
from spark_export.tasks import in_tasks

FEW_KEYS = 50_000
"""Up to so many rows are few: the driver has them in its memory, a few megabytes, and no more than so many of each task
before it is known whether all together are."""


def read_keys(
    spark: SparkSession,
    stores: Sequence[StoreSnapshot],
    days: Sequence[Sequence[StoreDay]],
    created_until: int = END_OF_TIME,
    *,
    few: int = FEW_KEYS,
) -> DataFrame:
    """KEYS of days of stores.

    Args:
        days: of each store, the days of reception to read. Their `last_seq` bounds them.
        created_until: leave out what was created later, Unix seconds; few rows are left then.
        few: how many rows are few.
    Raises:
        ExportError: a store cannot be read.
        PySparkException, Py4JError: Spark has failed.
    """
    options = options_of(stores, days, created_until)
    if created_until < END_OF_TIME:
        reader = reader_of(options)
        ranges = reader.partitions()
        tasks = min(len(ranges), spark.sparkContext.defaultParallelism)
        of_tasks = [ranges[number::tasks] for number in range(tasks)]
        parts = in_tasks(spark, of_tasks, partial(_read_few, reader, few))
        batches = [batch for part in parts if part is not None for batch in part]
        if None not in parts and sum(batch.num_rows for batch in batches) <= few:
            return spark.createDataFrame(pa.Table.from_batches(batches, to_arrow_schema(KEYS)), KEYS)
    return spark.read.format(StoreSource.name()).options(**options).load()


def _read_few(reader: StoreReader, few: int, ranges: Sequence[StoreRange]) -> list[pa.RecordBatch] | None:
    """The rows of some ranges; None if they are more than a few."""
    batches, rows = [], 0
    for batch in chain.from_iterable(map(reader.read, ranges)):
        batches.append(batch)
        rows += batch.num_rows
        if rows > few:
            return None
    return batches
