"""Merges the files of many days into those of a month: `date=2026-11` replaces `date=2026-11-01` to
`date=2026-11-30`."""

import logging
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

from pyspark.sql import SparkSession

from mailserver.archive.archive import existing_layout
from mailserver.archive.days import day_of, month_name, month_of
from mailserver.archive.faults import FaultKind
from mailserver.archive.fingerprint import Fingerprint
from mailserver.archive.manifest import DayRecord, PeriodRecord, checksums_together
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from spark_export.archived_record import withdraw
from spark_export.errors import ExportCheckFailed
from spark_export.full_disk import full_disk_told
from spark_export.mending import Mending
from spark_export.own_files import read_incidents
from spark_export.pieces import large_partitions, pieces_of_month
from spark_export.places import StorePlace
from spark_export.publishing import WritableArchive
from spark_export.run_report import RunReport
from spark_export.storage import open_storage
from spark_export.store import check_network_topic
from spark_export.writing import WritingJob, by_period, look_into, write_indexes, write_pieces
from spark_export.written import Written

log = logging.getLogger(__name__)


def merge(
    spark: SparkSession,
    path: str,
    *,
    now: float,
    run: str,
    stores: Sequence[StorePlace] = (),
    network_topic: str = DEFAULT_NETWORK_TOPIC,
) -> RunReport:
    """Merge the days of each month that is over, days that came late included.

    Args:
        stores: those of the archive. The records beside them no longer cover what may be gone.
        network_topic: to which the MUIDs are to belong. Months without MUIDs, or with those of another network topic,
            are written anew.
    Raises:
        ExportCheckFailed: a month was written wrongly; it is not published.
        ExportError: a store cannot be read, or its message ids belong to another network topic.
        ArchiveError: there is no archive, it cannot be read or written, or another run is at work.
    """
    check_network_topic(stores, network_topic)
    archive = WritableArchive(open_storage(spark, path))
    report = RunReport("merge", run, archive.url, now)
    layout = existing_layout(archive)
    with archive.storage.locked():
        incidents = read_incidents(archive, now)
        mending = Mending(spark, archive, layout, run, now=now, incidents=incidents)
        damaged = mending.name_damaged_records()

        def look() -> dict[str, PeriodRecord]:
            records = archive.records(without=damaged)
            mending.look(records)
            withdraw(stores, records, archive.url)
            report.faults = [*archive.damage, *mending.faults]
            report.losses = incidents.losses(records.values())
            return records

        if damaged:  # their periods may overlap with any other
            look()
            return report
        archive.repair()
        records = look()
        faulty = {fault.period for fault in report.faults if fault.kind is not FaultKind.RECORD}  # those are mended
        for number, (month, parts) in enumerate(_months(records, now, network_topic)):
            if faulty & {month, *(part.period for part in parts)}:
                log.warning("month not merged, it is damaged month=%s", month)
                continue
            log.info("merging month=%s periods=%d files=%d", month, len(parts), sum(len(part.files) for part in parts))
            with full_disk_told(spark, path, sum(part.fingerprint.bytes for part in parts)):
                job = WritingJob(archive.url, layout, f"{run}-{number}", network_topic)
                record = _merge_month(spark, archive, job, month, parts, now)
            report.add(record, 0)
        look()  # if a month's files are no longer as written, its days are kept
        archive.write_report(run, report.as_json(time.time()))
    return report


def _months(
    records: Mapping[str, PeriodRecord], now: float, network_topic: str
) -> list[tuple[str, list[PeriodRecord]]]:
    """The months that are over and have something to merge, with their pieces, oldest first: those that are in several
    pieces or in days, those without an index or MUIDs, as earlier versions wrote them, and those of another network
    topic."""
    present = month_of(day_of(int(now)))
    pieces: dict[str, list[PeriodRecord]] = defaultdict(list)
    for record in records.values():
        pieces[month_name(record.period)].append(record)
    return sorted(
        (month, parts)
        for month, parts in pieces.items()
        if month < present
        and any(part.files for part in parts)
        and any(_is_to_be_merged(part, network_topic) for part in parts)
    )


def _is_to_be_merged(part: PeriodRecord, network_topic: str) -> bool:
    return part.period != month_name(part.period) or part.index is None or part.network_topic != network_topic


def _merge_month(
    spark: SparkSession,
    archive: WritableArchive,
    job: WritingJob,
    month: str,
    parts: Sequence[PeriodRecord],
    now: float,
) -> PeriodRecord:
    """Write, verify and publish one month."""
    groups = {partition: look_into(spark, job, files) for partition, files in large_partitions(parts).items()}
    pieces = write_pieces(spark, job, pieces_of_month(month, parts, groups))
    written = by_period(pieces)[month]
    days = _merged_days(parts)
    _check(month, days, written)
    replaces = tuple((part.period, part.run) for part in parts if part.period != month)
    index = write_indexes(job, pieces)[month]
    record = PeriodRecord(
        month,
        job.run,
        days,
        written.files,
        replaces,
        verified_at=int(now),
        index=index,
        network_topic=job.network_topic,
    )
    (record,) = archive.publish(job.run, [record], parts)
    return record


def _check(month: str, days: Mapping[int, DayRecord], written: Written) -> None:
    should = {day: record.fingerprint for day, record in days.items() if record.fingerprint.rows}
    if written.days != should:
        total = Fingerprint.sum(should.values())
        found = Fingerprint.sum(written.days.values())
        raise ExportCheckFailed(month, f"its days have {total}, merged they would have {found}")


def _merged_days(parts: Sequence[PeriodRecord]) -> dict[int, DayRecord]:
    """What a month's pieces say of each day. If a day's rows came late, both the month and the day itself speak of
    it."""
    days: dict[int, DayRecord] = {}
    for part in sorted(parts, key=lambda part: part.period):  # the month first: what a day says of stores is newer
        for day, record in part.days.items():
            days[day] = _together(days[day], record) if day in days else record
    return days


def _together(one: DayRecord, other: DayRecord) -> DayRecord:
    spans = [(part.created_min, part.created_max) for part in (one, other) if part.fingerprint.rows]
    return DayRecord(
        fingerprint=one.fingerprint + other.fingerprint,
        created_min=min((first for first, _ in spans), default=0),
        created_max=max((last for _, last in spans), default=0),
        stores={**one.stores, **other.stores},
        quarantined=one.quarantined + other.quarantined,
        lost_rows=one.lost_rows + other.lost_rows,
        lost_bytes=one.lost_bytes + other.lost_bytes,
        lost_checksum=checksums_together(one.lost_checksum, other.lost_checksum),
        stores_before={**one.stores_before, **other.stores_before},
        elsewhere={  # as `stores`: of each store, what was said with its `last_seq`
            **one.elsewhere,
            **{
                store: days
                for store, days in other.elsewhere.items()
                if store in other.stores or store not in one.stores
            },
        },
    )
