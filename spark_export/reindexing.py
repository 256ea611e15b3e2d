"""Finds indexes that are not what they should be, and makes them anew from the files. Where the two differ, the files
are right."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession

from mailserver.archive.errors import ArchiveError, ArchiveFault
from mailserver.archive.index.check import check_index
from mailserver.archive.layout import Layout
from mailserver.archive.manifest import PeriodRecord
from mailserver.archive.paths import STAGING, directory_of, index_of
from spark_export.pieces import pieces_of_files
from spark_export.publishing import WritableArchive
from spark_export.task_files import TaskFiles
from spark_export.writing import WritingJob, index_pieces, write_period_index

log = logging.getLogger(__name__)


SUMS_AT_ONCE = 31
"""How many periods of an earlier version get the sums of their ids in a run, the newest first: it reads all of each."""


def remove_damaged_indexes(
    spark: SparkSession, archive: WritableArchive, layout: Layout, records: Sequence[PeriodRecord]
) -> None:
    """Compare indexes with every row of the files, which were just read and found sound; remove those that differ.

    Raises:
        ArchiveError: the archive cannot be read or written.
    """
    present = [record for record in records if record.index is not None and not _is_missing(archive, record)]
    if not present:
        return
    job = WritingJob(archive.url, layout, "")
    tasks = spark.sparkContext.parallelize(present, len(present))
    for record, cause in zip(present, tasks.map(partial(_fault, job)).collect(), strict=True):
        if cause:
            log.warning("damaged index removed period=%s cause=%r", record.period, cause)
            archive.storage.remove(index_of(record.period, record.run))


def make_missing_indexes(
    spark: SparkSession, archive: WritableArchive, layout: Layout, records: Mapping[str, PeriodRecord], run: str
) -> dict[str, PeriodRecord]:
    """Make each index that a record names and that is missing or has another size, and some that lack the sums of ids;
    return all records as they are then.

    Periods of earlier versions may have no index, or rows without MUIDs, of which there are no sums; a merge gives them
    both.
    """
    present = [record for record in records.values() if record.index is not None]
    missing = [record for record in present if _is_missing(archive, record)]
    without_sums = [record for record in present if _lacks_sums(record) and record not in missing]
    newest = sorted(without_sums, key=lambda record: record.period, reverse=True)[:SUMS_AT_ONCE]
    return {**records, **make_indexes(spark, archive, layout, [*missing, *newest], run)}


def make_indexes(
    spark: SparkSession, archive: WritableArchive, layout: Layout, records: Iterable[PeriodRecord], run: str
) -> dict[str, PeriodRecord]:
    """Make the indexes of these periods from their files; return the new records of those for which it succeeded."""
    of_any = WritingJob(archive.url, layout, f"{run}-index")
    files = TaskFiles(of_any.url)
    made = {}
    for record in records:
        has_muids = record.network_topic is not None
        job = replace(of_any, network_topic=record.network_topic or "")
        try:
            fragments = index_pieces(spark, job, pieces_of_files(record), has_muids=has_muids)
            index = write_period_index(files, job, record.period, record.run, fragments)
            archive.sync_index(record)
        except ArchiveError as error:
            log.warning("index not made period=%s cause=%r", record.period, str(error))
            continue
        made[record.period] = replace(record, index=index)
        archive.replace_record(made[record.period])
        log.info("index made period=%s bytes=%d", record.period, index.bytes)
    archive.storage.remove(f"{STAGING}/{of_any.run}")
    return made


def _is_missing(archive: WritableArchive, record: PeriodRecord) -> bool:
    size = None if record.index is None else record.index.bytes
    return archive.storage.size(index_of(record.period, record.run)) != size


def _lacks_sums(record: PeriodRecord) -> bool:
    return record.network_topic is not None and record.index is not None and record.index.sums is None


def _fault(job: WritingJob, record: PeriodRecord) -> str:
    """What is wrong with an index, "" if nothing is."""
    files = TaskFiles(job.url)
    try:
        with files.opened(index_of(record.period, record.run)) as index:
            check_index(index, record, lambda path: files.opened(f"{directory_of(record.period)}/{path}"))
    except ArchiveFault as error:
        return str(error)
    return ""
