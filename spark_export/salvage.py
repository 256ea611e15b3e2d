"""Takes every whole row of files that were set aside into the archive, as if it came late.

A row is whole if its columns are what its envelope says (`spark_export.decode`). Spark leaves out what it cannot read.
"""

import contextlib
import functools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from mailserver.archive.archive import Archive
from mailserver.archive.days import day_name, month_of
from mailserver.archive.fingerprint import Fingerprint
from mailserver.archive.layout import PERIOD, Layout
from mailserver.archive.manifest import DayRecord, PeriodRecord, lost_of, near_periods, seq_before
from mailserver.archive.paths import (
    DAMAGED,
    SNAPSHOTS,
    damaged_of,
    directory_of,
)
from mailserver.store.sqlite.schema import HASH_PREFIX_BYTES
from mailserver.units import SECONDS_PER_DAY
from spark_export.aggregates import aggregates, fingerprint_of
from spark_export.decode import StoredRows, decode_rows, sound_rows
from spark_export.errors import ExportCheckFailed
from spark_export.found_again import found_by_day, without_found
from spark_export.frames import read_periods
from spark_export.incidents import Incident
from spark_export.parquet_file import ROW_GROUP_BYTES
from spark_export.pieces import PIECE_BYTES
from spark_export.publishing import WritableArchive
from spark_export.schema import ARRIVAL, ENVELOPES
from spark_export.source import batched
from spark_export.writing import PIECE, WritingJob, by_period, write_frame, write_indexes

log = logging.getLogger(__name__)

_TOPIC, _HASH = "^0x[0-9a-f]{8}$", "^0x[0-9a-f]{64}$"


class ArchiveSalvage:
    """Takes in what is left of damaged periods of an archive, whose lock the caller holds."""

    def __init__(
        self, spark: SparkSession, archive: WritableArchive, layout: Layout, now: float, network_topic: str
    ) -> None:
        self._spark = spark
        self._archive = archive
        self._layout = layout
        self._now = now
        self._network_topic = network_topic
        self._read_again: set[str] = set()  # second names: several incidents may be of one month

    def take_in(self, incident: Incident, records: Mapping[str, PeriodRecord], run: str) -> dict[str, PeriodRecord]:
        """Add to their days the whole rows of the files that were set aside and that the archive lacks.

        Return the records of these days.

        Raises:
            ExportCheckFailed: what was written is not what was read.
        """
        base = damaged_of(incident.period, incident.run)
        aside = [f"{base}/{path}" for path in self._archive.storage.sizes(base)]
        older = [path for path in self._second_names(incident) if path not in self._read_again]
        self._read_again.update(older)
        if not aside and not older:
            return {}
        with _each_row_group_by_itself(self._spark):
            rows = self._new_rows({DAMAGED: aside, SNAPSHOTS: older}, records).persist()
            try:
                return self._publish(rows, records, run)
            finally:
                rows.unpersist()

    def _second_names(self, incident: Incident) -> list[str]:
        """The files of an incident's days that were replaced, as far as they are still there."""
        periods = {incident.period, *map(day_name, incident.days), *map(month_of, incident.days)}
        wanted = tuple(f"{SNAPSHOTS}/{directory_of(period)}/" for period in sorted(periods))
        return [
            f"{name}/{path}"
            for name in self._archive.older_snapshots()
            if name.startswith(wanted)
            for path in self._archive.storage.sizes(name)
        ]

    def _new_rows(self, paths: Mapping[str, Sequence[str]], records: Mapping[str, PeriodRecord]) -> DataFrame:
        """ENVELOPES of these files, without rows that are not whole, duplicates, and rows that the archive has.

        Args:
            paths: of files, by the directory of the archive that they are below.
        """
        parts = [
            _whole_rows(self._spark, self._archive, self._layout, top, below) for top, below in paths.items() if below
        ]
        rows = functools.reduce(DataFrame.unionByName, parts).dropDuplicates(["hash"])
        ((first, last),) = rows.agg(F.min("created"), F.max("created")).collect()
        near = [directory_of(period) for period in near_periods(records, first, last)]
        if not near:
            return rows
        archived = read_periods(self._spark, self._archive, self._layout, near, columns=("hash",))
        return rows.join(archived, on="hash", how="left_anti").select(*ENVELOPES.fieldNames())

    def _publish(self, rows: DataFrame, records: Mapping[str, PeriodRecord], run: str) -> dict[str, PeriodRecord]:
        day = F.floor(F.col("received") / SECONDS_PER_DAY).cast("int")
        by_day = rows.withColumn("day", day)
        new = {
            row["day"]: fingerprint_of(row) for row in by_day.groupBy("day").agg(*aggregates(F.col("size"))).collect()
        }
        if not new:
            return {}
        lost = {number: one for number, one in lost_of(records.values()).items() if number in new}
        found = found_by_day(by_day, F.col("size"), _was_archived(records, lost), lost) if lost else {}
        periods = {day_name(number): number for number in new}
        before = {period: records[period] for period in periods if period in records and records[period].files}
        envelopes = rows.withColumn(PERIOD, F.date_from_unix_date(day).cast("string"))
        if before:
            directories = [directory_of(period) for period in before]
            columns = *ENVELOPES.fieldNames(), PERIOD
            there = read_periods(self._spark, self._archive, self._layout, directories, columns=columns)
            envelopes = envelopes.unionByName(there)
        should = {
            number: fingerprint
            + (before[period].fingerprint if (period := day_name(number)) in before else Fingerprint())
            for number, fingerprint in new.items()
        }
        job = WritingJob(self._archive.url, self._layout, run, self._network_topic)
        counts = {period: max(1, should[number].bytes // PIECE_BYTES) for period, number in periods.items()}
        pieces = write_frame(_in_pieces(envelopes, counts), job, sum(counts.values()))
        written, indexes = by_period(pieces), write_indexes(job, pieces)
        published = []
        for period, number in periods.items():
            if written[period].days != {number: should[number]}:
                raise ExportCheckFailed(
                    period, f"{should[number]} should have been taken in, {written[period].days} were"
                )
            old = records[period].days[number] if period in records else DayRecord(Fingerprint(), 0, 0, {}, 0)
            first, last = written[period].created[number]
            said = replace(
                without_found(old, found.get(number, Fingerprint())),
                fingerprint=should[number],
                created_min=first,
                created_max=last,
            )
            of_period = written[period]
            published.append(
                PeriodRecord(
                    period,
                    run,
                    {number: said},
                    of_period.files,
                    verified_at=int(self._now),
                    index=indexes[period],
                    network_topic=job.network_topic,
                )
            )
            log.info("rows taken in period=%s rows=%d", period, new[number].rows)
        read = [records[period] for period in periods if period in records]
        published = self._archive.publish(run, published, read)
        for record in published:
            if faults := self._archive.faults_of(record):  # what was set aside has to be taken in once more
                raise ExportCheckFailed(record.period, str(faults[0]))
        return {record.period: record for record in published}


@contextlib.contextmanager
def _each_row_group_by_itself(spark: SparkSession) -> Iterator[None]:
    """Have Spark read each row group in a task of its own: after a fault, it leaves out the rest of what the task
    reads."""
    limit = "spark.sql.files.maxPartitionBytes"
    before = spark.conf.get(limit)
    spark.conf.set(limit, str(ROW_GROUP_BYTES // 2))
    try:
        yield
    finally:
        spark.conf.set(limit, str(before))


def _was_archived(records: Mapping[str, PeriodRecord], days: Iterable[int]) -> Column:
    """Whether a row's number says that the archive had it on its day: that of a store up to which it was read, or none,
    as in files of earlier versions."""
    known = F.col("store").isNull()
    for day in days:
        of_day = [record.days[day] for record in records.values() if day in record.days]
        for store in sorted({store for said in of_day for store in (*said.stores, *said.stores_before)}):
            if (until := seq_before(records, day, store)) is not None:
                known |= (F.col("day") == day) & (F.col("store") == store) & (F.col("seq") <= until)
    return known


def _whole_rows(spark: SparkSession, archive: Archive, layout: Layout, base: str, names: Sequence[str]) -> DataFrame:
    """ENVELOPES of whatever can be read of these files, below `base`: rows that are what their envelope says."""
    columns = ENVELOPES.fieldNames()
    rows = read_periods(spark, archive, layout, names, base=base, columns=columns, ignore_damage=True)
    known = [F.col(name).isNotNull() for name in ("received", "created", "raw")]
    readable = [F.col("topic").rlike(_TOPIC), F.col("hash").rlike(_HASH)]
    for condition in (*known, *readable):
        rows = rows.where(condition)
    arrival = [field.name for field in ARRIVAL]
    whole = rows.select("received", "created", "topic", "hash", "raw", *arrival).rdd.mapPartitions(_whole)
    return spark.createDataFrame(whole, ENVELOPES, verifySchema=False)


def _in_pieces(envelopes: DataFrame, counts: Mapping[str, int]) -> DataFrame:
    """Add PIECE: the rows of each period are spread over so many pieces."""
    told: list[Column] = []
    start = 0
    for period, count in counts.items():
        told += [F.lit(period), F.array(F.lit(start), F.lit(count))]
        start += count
    of_period = F.create_map(*told)[F.col(PERIOD)]
    number = of_period[0] + F.pmod(F.xxhash64("hash"), of_period[1])
    return envelopes.withColumn(PIECE, number.cast("int"))


def _whole(rows: Iterable[Row]) -> Iterable[tuple[Any, ...]]:
    for batch in batched(rows, lambda row: len(row["raw"])):
        told = StoredRows(
            [row["received"] for row in batch],
            [row["created"] for row in batch],
            [bytes.fromhex(row["topic"][2:]) for row in batch],
            [_key(row["hash"]) for row in batch],
            [bytes(row["raw"]) for row in batch],
        )
        stores, seqs = pa.array([row["store"] for row in batch], pa.string()), [row["seq"] for row in batch]
        sound = sound_rows(decode_rows(told, None), stores, pa.array(seqs, pa.int64()))
        yield from zip(*(column.to_pylist() for column in sound.columns), strict=True)


def _key(whole: str) -> bytes:
    """As much of a hash as a store has."""
    return bytes.fromhex(whole[2:])[:HASH_PREFIX_BYTES]
