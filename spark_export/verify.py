"""Whether an archive is what its records say: every file, every envelope, period by period."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_export.archive import Archive, directory_of, existing_layout
from spark_export.days import day_name
from spark_export.layout import Layout
from spark_export.load import read_back
from spark_export.records import PeriodRecord
from spark_export.session import root_cause
from spark_export.storage import open_storage

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Verification:
    """How much was looked at, and what is wrong: pairs of a period and one line."""

    periods: int
    rows: int
    faults: tuple[tuple[str, str], ...]


def verify(spark: SparkSession, path: str) -> Verification:
    """Read every file of an archive and compare it with its record. Nothing is changed.

    Raises:
        ExportError: there is no archive, its records cannot be read, or a run is at work on it.
    """
    archive = Archive(open_storage(spark, path))
    layout = existing_layout(archive)
    with archive.storage.locked():
        return _verify(spark, archive, layout)


def _verify(spark: SparkSession, archive: Archive, layout: Layout) -> Verification:
    records = archive.records()
    faults = []
    for record in records.values():
        for fault in _faults(spark, archive, layout, record):
            log.error("fault in the archive period=%s cause=%r", record.period, fault)
            faults.append((record.period, fault))
    known = {directory_of(period) for period, record in records.items() if record.files}
    faults += [
        (name.partition("=")[2], "is in no record")
        for name in archive.storage.names("")
        if name.startswith("date=") and name not in known
    ]
    return Verification(len(records), sum(record.fingerprint.rows for record in records.values()), tuple(faults))


def _faults(spark: SparkSession, archive: Archive, layout: Layout, record: PeriodRecord) -> Iterator[str]:
    there = set(_files(archive, directory_of(record.period)))
    recorded = {file.path for file in record.files}
    yield from (f"{path} is missing" for path in sorted(recorded - there))
    yield from (f"{path} is in no record" for path in sorted(there - recorded))
    if there != recorded or not recorded:
        return
    try:
        written = read_back(spark, layout, archive.url, [record.period])[record.period]
    except (PySparkException, Py4JError) as error:
        yield f"cannot be read: {root_cause(error)}"
        return
    found = {file.path: file for file in written.files}  # but for files without rows
    for was in sorted(record.files, key=lambda file: file.path):
        file = found.get(was.path)
        if file is None:
            yield f"{was.path} has no rows instead of {was.rows}"
        elif file != was:
            yield f"{was.path} has {file.bytes} bytes and {file.rows} rows instead of {was.bytes} and {was.rows}"
    for day, recorded_day in record.days.items():
        fingerprint = written.days.pop(day, None)
        if recorded_day.fingerprint.rows and fingerprint != recorded_day.fingerprint:
            yield f"{day_name(day)} has {fingerprint} instead of {recorded_day.fingerprint}"
    yield from (f"{day_name(day)} is in no record" for day in sorted(written.days))


def _files(archive: Archive, directory: str) -> Iterator[str]:
    for partition in archive.storage.names(directory):
        for name in archive.storage.names(f"{directory}/{partition}"):
            if not name.startswith((".", "_")):
                yield f"{partition}/{name}"
