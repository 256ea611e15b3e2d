"""Since when a store has been waiting for a compaction, by its record and its days. No Spark is imported."""

from mailserver.handoff.last_run import Compaction
from mailserver.units import SECONDS_PER_DAY
from spark_export.places import StorePlace
from spark_export.store import oldest_day


def waiting_since(store: StorePlace, last: Compaction | None) -> float | None:
    """Since when rows of a store have been waiting for a run, in Unix seconds; None if it has received nothing.

    That is since the last run that succeeded, or, before the first one, since the end of the oldest day of reception.
    So a new store waits for nothing until its first night, and an old one has missed a run.

    Raises:
        ExportError: the store cannot be read.
    """
    oldest = oldest_day(store)  # in any case: a store that is missing is a fault
    if last is not None and last.succeeded_at is not None:
        return last.succeeded_at
    return None if oldest is None else float((oldest + 1) * SECONDS_PER_DAY)
