"""Archives to damage, and what a run says of them."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from mailserver.archive.faults import FaultKind
from mailserver.archive.manifest import PeriodRecord
from mailserver.handoff.last_run import ArchiveFigures
from mailserver.store.sqlite.handoff import read_archived
from spark_export.recording import recorded
from spark_export.run_report import RunReport, archived_days
from spark_export.storage import LocalStorage
from tests.spark_export.moments import copy_folder
from tests.spark_export.samples import (
    DAY,
    DAY_S,
    NEWS,
    compact_into,
    envelopes,
    records_in,
    visible_files,
)

NOW = (DAY + 10) * DAY_S
A_WEEK = 8 * DAY_S
ONE, TWO, THREE = envelopes(30), envelopes(30, day=DAY + 1, first=100), envelopes(30, day=DAY + 2, first=200)


class Killed(BaseException):
    """The end of a run."""


class Place:
    """A store of three days, and their archive."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "mailserver.db"
        self.archive = folder / "archive"

    def copy(self, to: Path) -> "Place":
        return Place(copy_folder(self.store.parent, to))

    def run(self, spark: SparkSession, name: str, now: float = NOW) -> RunReport:
        return compact_into(spark, self.archive, self.store, now=now, run=name)

    def files(self, period: str) -> list[Path]:
        return [file for file in visible_files(self.archive) if file.parts[-3] == f"date={period}"]

    def file(self, period: str) -> Path:
        """The file that holds topic NEWS."""
        (file,) = (self.archive / f"date={period}").glob(f"topic*={NEWS.hex()[0]}/*")
        return file

    def forget_second_names(self) -> None:
        shutil.rmtree(self.archive / "_snapshots")

    def records(self) -> dict[str, PeriodRecord]:
        return records_in(self.archive)

    def covered(self) -> set[int]:
        """The days of which the mailserver may delete rows, relative to DAY."""
        handover = read_archived(self.store)
        assert handover is not None
        return {day - DAY for day in handover.days}

    def set_aside(self) -> list[Path]:
        return sorted(file for file in (self.archive / "_damaged").rglob("*") if file.is_file())


def flip(file: Path, offset: int | None = None) -> None:
    """Turn one bit, by default in the middle of the file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2 if offset is None else offset] ^= 0x10
    with file.open("r+b") as same:  # second names lead to the same bytes
        same.write(content)


def named(report: RunReport) -> list[tuple[str, FaultKind]]:
    return [(fault.period, fault.kind) for fault in report.faults]


def lost(report: RunReport) -> dict[str, int]:
    return {loss.as_json()["day"]: loss.rows for loss in report.losses}


def forget(place: Place, period: str) -> None:
    """Delete what a period has, and all that is said of it, but for second names."""
    shutil.rmtree(place.archive / f"date={period}")
    (place.archive / "_records" / f"{period}.json").unlink()


def write_last_run(place: Place) -> None:
    """As the command does at its end."""
    with recorded([place.store], lambda error: (1, str(error))) as recording:
        report: Mapping[str, Any] = {"archive": LocalStorage(place.archive).url, "rows": 0, "bytes": 0, "days": []}
        recording.succeeded(report, archived_days(place.records()), ArchiveFigures())


def make_old(folder: Path) -> None:
    """So old that what is not needed any more would be deleted."""
    for name in folder.glob("date=*/run=*"):
        os.utime(name, (0, 0))
