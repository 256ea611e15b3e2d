"""Acknowledging what an archive has lost: from then on, that is history and no longer a fault."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import SparkSession

from mailserver.archive.faults import Fault
from mailserver.archive.manifest import PeriodRecord, lost_of, quarantined_rows
from mailserver.archive.set_aside import faults_of_set_aside, rows_set_aside
from spark_export.errors import ExportError
from spark_export.incidents import Loss
from spark_export.own_files import read_incidents
from spark_export.publishing import WritableArchive
from spark_export.storage import open_storage

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What was acknowledged, and had not been before: lost rows by day, damaged records, how many rows were set aside,
    and where such rows are gone."""

    losses: tuple[Loss, ...]
    damaged_records: tuple[Fault, ...]
    quarantined: int
    whole_archive: bool
    set_aside_gone: tuple[Fault, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "lost": [loss.as_json() for loss in self.losses],
            "damaged_records": [fault.as_json() for fault in self.damaged_records],
            "quarantined": self.quarantined,
            "quarantined_gone": [fault.as_json() for fault in self.set_aside_gone],
            "whole_archive": self.whole_archive,
        }

    def as_words(self) -> list[str]:
        """For people: the totals, then each loss."""
        lost = sum(loss.rows for loss in self.losses)
        whole = " the whole archive" if self.whole_archive else ""
        return [
            f"acknowledged{whole} lost={lost} quarantined={self.quarantined}",
            *map(str, self.losses),
            *map(str, self.damaged_records),
            *map(str, self.set_aside_gone),
            "`last`, /ready and the alerts learn of it from the next `spark-export compact`",
        ]


def acknowledge(spark: SparkSession, path: str, *, now: float, all_is_lost: bool = False) -> Acknowledged:
    """Record in an archive that its losses are known at `now` (Unix seconds); return what they were.

    Args:
        all_is_lost: the archive itself is gone, and a new one may begin in its place.
    Raises:
        ExportError: there is no archive, or there is one where all should be lost.
        ArchiveError: the archive cannot be read or written, or a run is at work on it.
    """
    archive = WritableArchive(open_storage(spark, path))
    if all_is_lost != archive.is_empty():
        raise ExportError(
            f"there still is an archive at {archive.url}" if all_is_lost else f"there is no archive at {archive.url}"
        )
    with archive.storage.locked():
        incidents = read_incidents(archive, now)
        if all_is_lost:
            incidents.all_is_lost(now)
            log.warning("loss of the whole archive acknowledged archive=%s", archive.url)
            return Acknowledged((), (), 0, whole_archive=True)
        archive.repair()
        records = archive.records()
        losses = incidents.losses(records.values())
        quarantined = quarantined_rows(records)
        set_aside = max(0, quarantined - incidents.quarantined_acknowledged)
        damaged = incidents.damaged_records()
        # A run has looked for them in the stores: what was not set aside again is lost.
        gone = {
            day: fault
            for day, fault in faults_of_set_aside(archive.storage, records.values()).items()
            if fault.file in incidents.files_taken_in()
        }
        changed = _cleared(records.values(), {day: rows_set_aside(archive.storage, day) for day in gone})
        quarantined = quarantined_rows({**records, **changed})
        # First note that the losses are known, then clear them: if we are killed in between, the next call repeats it.
        incidents.acknowledge(lost_of(records.values()), quarantined, now)
        for record in changed.values():
            archive.replace_record(record)
        log.info("losses acknowledged rows=%d", sum(loss.rows for loss in losses))
        known = tuple(fault for fault in damaged if fault not in incidents.damaged_records())
        return Acknowledged(losses, known, set_aside, whole_archive=False, set_aside_gone=tuple(gone.values()))


def _cleared(records: Iterable[PeriodRecord], left: Mapping[int, int]) -> dict[str, PeriodRecord]:
    """The records that change, by period: nothing is lost any more, and of some days there are only so many rows that
    were set aside."""
    left, changed = dict(left), {}
    for record in records:
        days = {}
        for day, said in record.days.items():
            kept = min(said.quarantined, left.get(day, said.quarantined))
            if day in left:
                left[day] -= kept
            days[day] = replace(said, lost_rows=0, lost_bytes=0, lost_checksum=0, quarantined=kept)
        if days != record.days:
            changed[record.period] = replace(record, days=days)
    return changed
