"""When a store's compaction is due, and since when it is: from its record and its days, without Spark."""

from pathlib import Path

from mailserver.handoff.last_run import Compaction
from mailserver.units import SECONDS_PER_DAY
from spark_export.store import oldest_day


def waiting_since(store: Path, last: Compaction | None) -> float | None:
    """Since when what a store has received waits for a run, in Unix seconds; None if it has received nothing.

    That is since the last run that succeeded. Before the first one, it is since the oldest day of reception was over:
    so a fresh store waits for nothing until its first night, and an old one has missed a run.

    Raises:
        ExportError: the store cannot be read.
    """
    oldest = oldest_day(store)  # asked in any case: a store that is not there is no store in order
    if last is not None and last.succeeded_at is not None:
        return last.succeeded_at
    return None if oldest is None else float((oldest + 1) * SECONDS_PER_DAY)
