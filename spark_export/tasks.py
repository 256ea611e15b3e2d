"""Work that Spark hands out as tasks of Python. Workers are kept from one call to the next."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from pyspark.sql import SparkSession

from spark_export.session import tasks_failures_told

Part = TypeVar("Part")
Result = TypeVar("Result")


def in_tasks(
    spark: SparkSession, parts: Sequence[Part], work: Callable[[Part], Result], *, tasks: int | None = None
) -> list[Result]:
    """Do the work of each part; return the results in the order of the parts.

    Args:
        work: a function of a module, or a `partial` of one. Tasks import it; a lambda's code would be copied to them.
        tasks: how many tasks share the parts, one after the other; None: each part is a task of its own.
    Raises:
        ArchiveError, ExportError: a task has raised one of these.
        PySparkException, Py4JError: Spark has failed.
    """
    if not parts:
        return []
    with tasks_failures_told():
        return spark.sparkContext.parallelize(parts, tasks or len(parts)).map(work).collect()


@contextmanager
def without_collector() -> Iterator[None]:
    """Hold off Python's collector of what refers to itself, as the rows of a piece never do.

    It begins whenever some hundred objects are new, and each statement brings thousands: looking through them, and
    through all that Spark and Arrow have imported, is a twentieth of a task's work.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
