"""The nightly run: it archives what stores received on closed UTC days.

For each group of days, it reads what the stores' columns say (the keys), and finds what another store or the archive
already has. It cuts the rest into pieces; a task writes each piece and reads it back (`spark_export.writing`). Then the
run compares, and publishes. What it compares comes by two ways that have nothing in common but SQLite: the counts,
sizes and hashes that the daemon wrote down; and the envelopes, decoded, hashed anew, sorted, written as Parquet and
read again.
"""

import contextlib
import functools
import logging
import time
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mailserver.archive.days import day_name
from mailserver.archive.fingerprint import Fingerprint
from mailserver.archive.layout import Layout, choose_layout
from mailserver.archive.manifest import (
    DayRecord,
    IndexRecord,
    PeriodRecord,
    lost_of,
    quarantined_rows,
    seq_before,
)
from mailserver.archive.paths import staged_data
from mailserver.units import SECONDS_PER_DAY
from spark_export.aggregates import aggregates, fingerprint_of
from spark_export.archived_record import (
    NONE_PUT_BACK,
    check_archive_is_there,
    hand_over,
    has_record,
    keep_numbers_apart,
    last_found,
)
from spark_export.config import CompactConfig
from spark_export.copies import COPY, archived_copies, days_elsewhere
from spark_export.errors import ExportCheckFailed, ExportError
from spark_export.found_again import found_by_day, without_found
from spark_export.full_disk import full_disk_told
from spark_export.keys import read_keys
from spark_export.mending import Mending
from spark_export.own_files import read_incidents, read_layout
from spark_export.pieces import piece_counts, pieces_of_day
from spark_export.plan import Group, last_day, new_layout, plan_groups
from spark_export.publishing import WritableArchive
from spark_export.quarantine import quarantine
from spark_export.reindexing import make_missing_indexes
from spark_export.run_report import RunReport, archived_days
from spark_export.source import END_OF_TIME, Faulty
from spark_export.storage import open_storage
from spark_export.store import StoreSnapshot, check_network_topic, describe
from spark_export.totals import DayTotals, totals
from spark_export.transform import PLACE, first_received, seqs_by_store, without
from spark_export.writing import PieceWritten, WritingJob, by_period, write_indexes, write_pieces
from spark_export.written import Written

log = logging.getLogger(__name__)


def compact(spark: SparkSession, config: CompactConfig, *, now: float, run: str) -> RunReport:
    """Bring an archive up to date with its stores, whose locks the caller holds (`spark_export.recording`).

    Args:
        now: Unix seconds: days that are over by then are closed.
        run: name of this run, unlike any other's.
    Raises:
        ExportCheckFailed: a day was written wrongly; it is not published, nor are the days that went with it.
        ArchiveGone: there was an archive, and there is none any more.
        ExportError: a store cannot be read, another run reads it, or its message ids belong to another network topic.
        ArchiveError: the archive cannot be read or written, or another run is at work on it.
    """
    archive = WritableArchive(open_storage(spark, config.archive))
    report = RunReport("compact", run, archive.url, now, [str(path) for path in config.stores])
    check_network_topic(config.stores, config.network_topic)
    stores = _describe(config)
    check_archive_is_there(archive, stores, now)
    with archive.storage.locked():
        layout = _layout(archive, config)
        incidents = read_incidents(archive, now)
        records: dict[str, PeriodRecord] = {}
        put_back: Mapping[str, int] = NONE_PUT_BACK
        mending_of = functools.partial(
            Mending, spark, archive, run=run, now=now, incidents=incidents, network_topic=config.network_topic
        )
        mending = None
        if layout is not None:
            mending = mending_of(layout)
            mending.set_damaged_records_aside()
            archive.repair()
            records = mending.name_days_gone(archive.records(), last_found(archive, stores))
            records = mending.find(records, read_within_s=config.verify_within_days * SECONDS_PER_DAY)
            put_back = keep_numbers_apart(stores, records)
            # Before anything else: it no longer covers what may be gone.
            hand_over(stores, records, archive.url, now, put_back)
            records = mending.mend(records)
            records = make_missing_indexes(spark, archive, layout, records, run)
            report.went_back = [str(store.place) for store in stores if store.id in put_back]
        groups = plan_groups(stores, records, last_day(config, now), put_back)
        # Where there is no archive yet, a record would say that there is one, and who reads it would miss it.
        known = stores if layout is not None else [store for store in stores if has_record(store.place)]
        hand_over(known, records, archive.url, now, put_back)
        for number, group in enumerate(groups):
            if layout is None:
                layout = new_layout(config, stores, groups)
                archive.begin(layout)
            log.info("compacting days=%d rows=%d bytes=%d", len(group.days), group.rows, group.bytes)
            job = WritingJob(archive.url, layout, f"{run}-{number}", config.network_topic)
            compaction = _Compaction(spark, archive, stores, job, now, put_back)
            with full_disk_told(spark, config.archive, group.bytes):
                published = compaction.run(group, records, report)
            records |= {record.period: record for record in published}
            if any(map(archive.faults_of, published)):  # since they were verified: they cover nothing
                mending = mending or mending_of(layout)
                mending.look(records)
            hand_over(stores, records, archive.url, time.time(), put_back)
        report.faults = [*archive.damage, *(mending.faults if mending is not None else [])]
        report.archived = archived_days(records)
        # A record that is lost takes its count of these with it.
        report.quarantined_in_all = max(0, quarantined_rows(records) - incidents.quarantined_acknowledged)
        report.losses = incidents.losses(records.values())
        archive.write_report(run, report.as_json(time.time()))
    return report


class _Compaction:
    """One group of days on its way into the archive."""

    def __init__(
        self,
        spark: SparkSession,
        archive: WritableArchive,
        stores: Sequence[StoreSnapshot],
        job: WritingJob,
        now: float,
        put_back: Container[str],
    ) -> None:
        self._spark = spark
        self._archive = archive
        self._stores = stores
        self._job = job
        self._run = job.run
        self._now = now
        self._put_back = put_back
        self._recovered: dict[int, Fingerprint] = {}  # by day, what the archive lost and a store still has
        self._faulty: list[tuple[int, int]] = []  # PLACE
        self._quarantined: Counter[int] = Counter()  # by day
        self._elsewhere: dict[tuple[int, int], tuple[int, ...]] = {}  # store, day -> other days that have its rows
        self._miscounted: dict[tuple[int, int], int] = {}  # store, day -> rows found beyond those that it counted

    def run(self, group: Group, records: Mapping[str, PeriodRecord], report: RunReport) -> list[PeriodRecord]:
        """Write, verify and publish; return the new record of each day."""
        expected, pieces = self._write(group, records)
        if faulty := [row for piece in pieces for row in piece.faulty]:
            # All must be written again: a sound copy of such a row, in another store, may have been left out.
            self._set_aside(faulty, records)
            expected, pieces = self._write(group, records)
        written = self._verified(records, expected, by_period(pieces))
        indexes = write_indexes(self._job, pieces)
        said = {
            day: self._record(day, group, records, written.get(day), indexes.get(day_name(day))) for day in group.days
        }
        if written:
            days = sorted(written)
            before = [records[period] for day in days if (period := day_name(day)) in records]
            published = self._archive.publish(self._run, [said[day] for day in days], before)
            said |= zip(days, published, strict=True)
        for day, record in said.items():
            if day in written:
                report.add(record, expected[day].rows)
            else:
                self._archive.replace_record(record)
        report.quarantined += self._quarantined.total()
        # A row whose time of reception is damaged, for example, belongs to no day. It stays in its store: what is not
        # handed over is not pruned, and each run looks at it again.
        for (store, day), rows in self._miscounted.items():
            report.miscounted.append({"store": str(self._stores[store].place), "day": day_name(day), "rows": rows})
            log.warning("store differs from its counts store=%s day=%s", self._stores[store].place, day_name(day))
        return list(said.values())

    def _write(
        self, group: Group, records: Mapping[str, PeriodRecord]
    ) -> tuple[dict[int, Fingerprint], list[PieceWritten]]:
        """Stage each day that has new rows, together with what the archive has of that day; return what is new, and
        what is staged."""
        self._elsewhere = {}
        with self._surplus(group, records) as surplus:
            found = totals(self._spark, self._stores, group.wanted)
            expected = self._expected(group, found, surplus)
            self._recovered = self._lost_and_found(group, records, surplus)
            left_out = seqs_by_store(surplus)
        before = {day: records.get(day_name(day)) for day in expected}
        sizes = {
            day: new.bytes + (old.fingerprint.bytes if (old := before[day]) else 0) for day, new in expected.items()
        }
        pieces = []
        for day, count in piece_counts(sizes).items():
            batches = {one.store: one.batches for one in found if one.day == day}
            pieces += pieces_of_day(day, count, self._stores, batches, left_out, before[day])
        return expected, write_pieces(self._spark, self._job, pieces)

    @contextlib.contextmanager
    def _surplus(self, group: Group, records: Mapping[str, PeriodRecord]) -> Iterator[DataFrame | None]:
        """KEYS of the rows that the archive has already, or that another store received first; None if there are none.
        Faulty rows count as surplus, too."""
        several = sum(1 for days in group.wanted if days) > 1
        latest = max((day.created_max for record in records.values() for day in record.days.values()), default=None)
        if not (several or latest is not None or self._faulty):
            yield None
            return
        until = END_OF_TIME if several or self._faulty or latest is None else latest
        with contextlib.ExitStack() as stack:

            def held(frame: DataFrame) -> DataFrame:
                stack.callback(frame.persist().unpersist)
                return frame

            keys = held(read_keys(self._spark, self._stores, group.wanted, until))
            surplus = keys.where(F.lit(False))
            candidates, later, found = keys, None, None
            if self._faulty:
                surplus = surplus.unionByName(keys.join(self._faulty_places(), on=PLACE, how="left_semi"))
                candidates = without(candidates, self._faulty_places(), *PLACE)
            if several:
                first = held(first_received(candidates))
                later = held(without(candidates, first, *PLACE))
                surplus = surplus.unionByName(later)
                candidates = first
            archived = archived_copies(self._spark, self._archive, self._job.layout, candidates, records)
            if archived is not None:
                found = held(candidates.join(archived, on="hash"))
                surplus = surplus.unionByName(found.dropDuplicates(PLACE).drop(COPY))
            surplus = held(surplus)
            if surplus.isEmpty():
                yield None
                return
            self._elsewhere = days_elsewhere(found, later, candidates)
            yield surplus

    def _expected(self, group: Group, found: Sequence[DayTotals], surplus: DataFrame | None) -> dict[int, Fingerprint]:
        """What is new on each day, as the stores' columns say."""
        expected: dict[int, Fingerprint] = {}
        counted: Counter[tuple[int, int]] = Counter()
        for store, day, fingerprint, _ in found:
            expected[day] = expected.get(day, Fingerprint()) + fingerprint
            counted[store, day] += fingerprint.rows
        for store, days in enumerate(group.wanted):
            for one in days:
                if counted[store, one.day] != one.envelopes:
                    self._miscounted[store, one.day] = counted[store, one.day] - one.envelopes
        if surplus is not None:
            for row in surplus.groupBy("day").agg(*aggregates(F.col("size"))).collect():
                expected[row["day"]] -= fingerprint_of(row)
        return {day: fingerprint for day, fingerprint in expected.items() if fingerprint.rows}

    def _lost_and_found(
        self, group: Group, records: Mapping[str, PeriodRecord], surplus: DataFrame | None
    ) -> dict[int, Fingerprint]:
        """What the archive once had and has lost, and a store still has, by day of reception."""
        days = set(group.days)
        lost = {day: one for day, one in lost_of(records.values()).items() if day in days}
        if not lost:
            return {}
        was_archived = F.lit(False)
        for number, store in enumerate(self._stores):
            for day in () if store.id in self._put_back else lost:
                if (seq := seq_before(records, day, store.id)) is not None:
                    of_day = (F.col("store") == number) & (F.col("day") == day)
                    was_archived |= of_day & (F.col("seq") <= seq)
        wanted = [[day for day in of_store if day.day in lost] for of_store in group.wanted]
        keys = read_keys(self._spark, self._stores, wanted)
        if surplus is not None:
            keys = without(keys, surplus, *PLACE)
        return found_by_day(keys, F.col("size"), was_archived, lost)

    def _set_aside(self, rows: Sequence[Faulty], records: Mapping[str, PeriodRecord]) -> None:
        """Set aside rows that are not envelopes."""
        there = quarantine(self._archive.storage, self._stores, rows)
        for record in records.values():  # what remains is new, or was set aside by a run that was killed
            there.subtract({day: said.quarantined for day, said in record.days.items() if day in there})
        self._quarantined = +there  # if some are gone, the record goes on saying how many there were
        self._faulty = [(row.store, row.seq) for row in rows]
        log.warning("rows set aside rows=%d first=%r", len(rows), rows[0].fault)
        self._archive.storage.remove(staged_data(self._run))

    def _verified(
        self,
        records: Mapping[str, PeriodRecord],
        expected: Mapping[int, Fingerprint],
        written: Mapping[str, Written],
    ) -> dict[int, Written]:
        """Compare what was read back with what should have been written."""
        wanted = {day_name(day): day for day in expected}
        staged = {name.partition("=")[2] for name in self._archive.storage.names(staged_data(self._run))}
        for periods in (staged, written.keys()):
            if periods != wanted.keys():
                raise ExportCheckFailed(
                    ", ".join(sorted(periods ^ wanted.keys())), "the days written are not the days expected"
                )
        for period, day in wanted.items():
            should = expected[day]
            if period in records:
                should += records[period].fingerprint  # none, where it has no files
            found = written[period].days
            if found != {day: should}:
                shown = ", ".join(f"{day_name(found_day)} {part}" for found_day, part in sorted(found.items()))
                raise ExportCheckFailed(period, f"the store has {should}, the archive would have {shown or 'nothing'}")
        return {day: written[period] for period, day in wanted.items()}

    def _record(
        self,
        day: int,
        group: Group,
        records: Mapping[str, PeriodRecord],
        written: Written | None,
        index: IndexRecord | None,
    ) -> PeriodRecord:
        """The new record of a day; if nothing in the day is new, the old one, which now says that its stores have been
        read."""
        period = day_name(day)
        old = records.get(period)
        known = old.days[day] if old is not None else DayRecord(Fingerprint(), 0, 0, {}, 0)
        read, elsewhere = dict[str, int](), dict[str, tuple[int, ...]]()
        for store, days in enumerate(group.wanted):
            for wanted in days:
                if wanted.day == day and (store, day) not in self._miscounted:
                    read[self._stores[store].id] = wanted.last_seq
                    elsewhere[self._stores[store].id] = self._elsewhere.get((store, day), ())
        known = replace(
            known,
            stores={**known.stores, **read},
            elsewhere={**known.elsewhere, **elsewhere},
            quarantined=known.quarantined + self._quarantined[day],
        )
        if written is None:
            if old is not None:
                return replace(old, days={day: known})
            # A name of its own: a merge names the records that it has taken in.
            return PeriodRecord(period, f"{self._run}-empty", {day: known}, (), verified_at=int(self._now))
        first, last = written.created[day]
        found = self._recovered.get(day, Fingerprint())
        known = replace(
            without_found(known, found),
            fingerprint=written.days[day],
            created_min=first,
            created_max=last,
        )
        return PeriodRecord(
            period,
            self._run,
            {day: known},
            written.files,
            verified_at=int(self._now),
            index=index,
            network_topic=self._job.network_topic,
        )

    def _faulty_places(self) -> DataFrame:
        return self._spark.createDataFrame(self._faulty, "store int, seq long")


def _layout(archive: WritableArchive, config: CompactConfig) -> Layout | None:
    """What the archive is partitioned by, None if it is new."""
    otherwise = choose_layout(config.partition_by, config.prefix_digits, topics=0, day_bytes=0)
    layout = read_layout(archive, otherwise)
    if layout is not None and (
        config.partition_by not in (None, layout.by) or config.prefix_digits not in (None, layout.prefix_digits)
    ):
        raise ExportError(f"{archive.url} is partitioned by {layout}, which cannot be changed: use another archive")
    return layout


def _describe(config: CompactConfig) -> list[StoreSnapshot]:
    stores = [describe(place) for place in config.stores]
    by_id: dict[str, StoreSnapshot] = {}
    for store in stores:
        other = by_id.setdefault(store.id, store)
        if other is not store:
            raise ExportError(f"{store.place} and {other.place} are the same store, or copies of one")
    return stores
