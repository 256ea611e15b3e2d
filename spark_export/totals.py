"""What the columns of stores say of each of their days, summed up in tasks."""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from pyspark.sql import SparkSession

from mailserver.archive.fingerprint import Fingerprint
from spark_export.pieces import Batch
from spark_export.places import address_of
from spark_export.source import StoreRange, ranges_of, read_totals
from spark_export.store import StoreDay, StoreSnapshot
from spark_export.tasks import in_tasks

TASK_ROWS = 250_000
"""About how many rows a task sums up, where there are more than enough for all cores: a second of work."""


class DayTotals(NamedTuple):
    """What one store has of a day of reception. `store`: its number. `batches`: to read its envelopes in, by `seq`."""

    store: int
    day: int
    fingerprint: Fingerprint
    batches: list[Batch]


def totals(spark: SparkSession, stores: Sequence[StoreSnapshot], days: Sequence[Sequence[StoreDay]]) -> list[DayTotals]:
    """Sum up days of stores.

    Args:
        days: of each store, the days to read. Their `last_seq` bounds them.
    Raises:
        ExportError: a store cannot be read.
        PySparkException, Py4JError: Spark has failed.
    """
    addresses = [address_of(store.place) for store in stores]
    ranges = ranges_of([[(day.day, day.first_seq, day.last_seq) for day in of_store] for of_store in days])
    rows = sum(one.last_seq - one.first_seq + 1 for one in ranges)
    tasks = min(len(ranges), max(spark.sparkContext.defaultParallelism, rows // TASK_ROWS))
    parts = in_tasks(spark, ranges, partial(_read, addresses), tasks=tasks)
    found: dict[tuple[int, int], Fingerprint] = {}
    to_read: dict[tuple[int, int], list[Batch]] = defaultdict(list)
    for one, (fingerprint, batches) in zip(ranges, parts, strict=True):
        place = one.store, one.day
        found[place] = found.get(place, Fingerprint()) + fingerprint
        to_read[place] += batches
    return [DayTotals(*place, fingerprint, to_read[place]) for place, fingerprint in found.items()]


def _read(addresses: Sequence[str], one: StoreRange) -> tuple[Fingerprint, list[Batch]]:
    return read_totals(addresses[one.store], one)
