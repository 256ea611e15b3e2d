"""Whether an archive is what its records say: every file, every envelope, period by period."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from mailserver.archive.archive import existing_layout
from mailserver.archive.faults import Fault
from spark_export.archived_record import withdraw
from spark_export.incidents import Loss
from spark_export.mending import Mending
from spark_export.own_files import read_incidents
from spark_export.places import StorePlace
from spark_export.publishing import WritableArchive
from spark_export.storage import open_storage


@dataclass(frozen=True, slots=True)
class Verification:
    """How much was looked at, what is wrong with it, and what was lost before."""

    periods: int
    rows: int
    faults: tuple[Fault, ...]
    losses: tuple[Loss, ...]

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "periods": self.periods,
            "rows": self.rows,
            "faults": [fault.as_json() for fault in self.faults],
            "lost": [loss.as_json() for loss in self.losses],
        }

    def as_words(self) -> list[str]:
        """For people: the totals, then each fault with its file, its cause, and what to do."""
        counts = f"faults={len(self.faults)} lost={sum(loss.rows for loss in self.losses)}"
        return [
            f"verified periods={self.periods} rows={self.rows} {counts}",
            *(f"{fault}; {fault.advice}" for fault in self.faults),
            *map(str, self.losses),
        ]


def verify(
    spark: SparkSession, path: str, *, now: float | None = None, stores: Sequence[StorePlace] = ()
) -> Verification:
    """Read every file of an archive and compare it with its record.

    What is wrong is written down: then no store deletes what may be gone, and the next compaction mends it. No file of
    envelopes is changed.

    Args:
        stores: those of the archive. The records beside them no longer cover what may be gone.
    Raises:
        ArchiveError: there is no archive, its records cannot be read or written, or a run is at work on it.
    """
    now = time.time() if now is None else now
    archive = WritableArchive(open_storage(spark, path))
    layout = existing_layout(archive)
    with archive.storage.locked():
        incidents = read_incidents(archive, now)
        mending = Mending(spark, archive, layout, "verify", now=now, incidents=incidents)
        found = archive.records(without=mending.name_damaged_records())
        periods, rows = len(found), sum(record.fingerprint.rows for record in found.values())
        records = mending.find(found, read_within_s=0, decode=True)
        withdraw(stores, records, archive.url)
        return Verification(periods, rows, (*archive.damage, *mending.faults), incidents.losses(records.values()))
