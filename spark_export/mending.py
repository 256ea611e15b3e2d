"""Mending a damaged archive. Nothing is deleted, and the next run continues the work of one that was killed.

    _damaged/date=2026-11-20/run=.../topic_prefix=9/part-...parquet     files that were set aside

First, for all faulty periods, an incident that names the files is written down. The periods' records, and the records
beside the stores (`archived_record`), no longer say that any store's rows are archived. From then on, none of these
rows is pruned. Then each period is mended: missing files get their names back from their second names (`_snapshots`),
everything that is left is read, and what is not as recorded is set aside. The record then says what is there and how
much is lost. Last, every whole row of the files that were set aside is taken in as if it came late (`salvage`). The run
continues with the stores, and archives again what they still have; so it sets aside again what is missing of rows that
were no envelopes (`mailserver.archive.set_aside`).
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from pyspark.sql import SparkSession

from mailserver.archive.days import day_name, month_name, month_of
from mailserver.archive.faults import Fault, FaultKind
from mailserver.archive.fingerprint import Fingerprint
from mailserver.archive.layout import Layout
from mailserver.archive.manifest import DayRecord, FileRecord, PeriodRecord, checksums_together, lost_of
from mailserver.archive.paths import (
    DAMAGED,
    QUARANTINE,
    RECORDS,
    SNAPSHOTS,
    damaged_of,
    directory_of,
    record_of,
    snapshot_of,
)
from mailserver.archive.set_aside import faults_of_set_aside
from mailserver.handoff.last_run import ArchivedDay
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from spark_export.archived_record import LastFound
from spark_export.incidents import Incident, Incidents
from spark_export.inspection import Contents, days_gone, months_gone, names_and_sizes, periods_to_read, read_contents
from spark_export.publishing import WritableArchive
from spark_export.reindexing import make_indexes, remove_damaged_indexes
from spark_export.salvage import ArchiveSalvage

log = logging.getLogger(__name__)

NO_RECORD = "unrecorded"
"""Stands for the run's name where no record mentioned a period."""


class Mending:
    """Finds what is wrong with an archive, whose lock the caller holds, and mends it."""

    def __init__(
        self,
        spark: SparkSession,
        archive: WritableArchive,
        layout: Layout,
        run: str,
        *,
        now: float,
        incidents: Incidents,
        network_topic: str = DEFAULT_NETWORK_TOPIC,
    ) -> None:
        self._spark = spark
        self._archive = archive
        self._layout = layout
        self._run = run
        self._now = now
        self._incidents = incidents
        self._damaged: set[str] = set()
        self._without_record: set[str] = set()  # periods whose damaged records this run has set aside
        self._short: Collection[int] = ()  # days that lack rows which were set aside
        self._salvage = ArchiveSalvage(spark, archive, layout, now, network_topic)
        self.faults = list(incidents.damaged_records())
        """All that was found in this run, and records that an earlier one found damaged."""

    def set_damaged_records_aside(self) -> None:
        """Set aside damaged records. From then on, no record mentions their periods' files."""
        for name, cause in self._archive.damaged_records().items():
            period = name.removesuffix(".json")
            fault = Fault(period, record_of(period), FaultKind.RECORD, 0, cause)
            self._found([fault])
            self._without_record.add(period)
            self._incidents.add(period, NO_RECORD, [], [fault], self._now)
            self._archive.set_aside(record_of(period), f"{DAMAGED}/{record_of(period)}")

    def name_damaged_records(self) -> set[str]:
        """Name damaged records, and leave them there; return their periods, which are not judged."""
        damaged = self._archive.damaged_records()
        self._damaged = {name.removesuffix(".json") for name in damaged}
        self._found(
            [
                Fault(name.removesuffix(".json"), f"{RECORDS}/{name}", FaultKind.RECORD, 0, cause)
                for name, cause in damaged.items()
            ]
        )
        return self._damaged

    def name_days_gone(self, records: dict[str, PeriodRecord], last: Sequence[LastFound]) -> dict[str, PeriodRecord]:
        """Name days that the archive once had, as is written beside the stores, and that no record mentions any more.

        Their records then say what is lost. Return all records as they are then.
        """
        known: dict[int, ArchivedDay] = {}
        for found in last:
            for day, archived in days_gone(records.values(), found.days).items():
                if archived.rows > self._incidents.acknowledged_rows(day, int(found.at)):
                    known[day] = max(archived, known.get(day, archived), key=lambda one: one.rows)
        for day, gone in known.items():
            of_day, of_month = records.get(day_name(day)), records.get(month_of(day))
            record = of_day or (of_month if of_month is not None and day in of_month.days else None)
            is_new = record is None
            if record is None:
                record = PeriodRecord(day_name(day), f"{self._run}-gone", {}, (), verified_at=int(self._now))
            cause = f"lacks {gone.rows} rows of {day_name(day)} that the last run found in the archive"
            fault = Fault(record.period, record_of(record.period), FaultKind.MISSING, gone.rows, cause)
            self._found([fault])
            self._incidents.add(record.period, record.run, {*record.days, day}, [fault], self._now)
            if is_new:
                self._set_second_names_aside(record.period, record.run)
            said = record.days.get(day, DayRecord(Fingerprint(), 0, 0, {}, 0))
            before = {one.store_id: one.seqs[day] for one in last if day in one.seqs}
            said = replace(
                said,
                lost_rows=said.lost_rows + gone.rows,
                lost_bytes=said.lost_bytes + gone.bytes,
                lost_checksum=None,
                stores_before={**said.stores_before, **before},
            )
            records[record.period] = replace(record, days={**record.days, day: said})
            self._archive.replace_record(records[record.period])
        self._name_months_gone(records, last)
        return records

    def _name_months_gone(self, records: Mapping[str, PeriodRecord], last: Sequence[LastFound]) -> None:
        """Name months that lack rows beyond those of the latest days. Nobody knows of which days these were."""
        gone: dict[str, int] = {}
        for found in last:
            for month, rows in months_gone(records.values(), found.months).items():
                if not self._incidents.is_acknowledged(month, int(found.at)):
                    gone[month] = max(rows, gone.get(month, 0))
        for month, rows in gone.items():
            cause = f"lacks {rows} rows of {month} that the last run found in the archive"
            fault = Fault(month, record_of(month), FaultKind.RECORD, rows, cause)
            if fault not in self.faults:  # else an earlier run found it, and failed
                self._found([fault])
            record = records.get(month)
            run, days = (NO_RECORD, list[int]()) if record is None else (record.run, list(record.days))
            self._incidents.add(month, run, days, [fault], self._now)

    def find(
        self, records: dict[str, PeriodRecord], *, read_within_s: float, decode: bool = False
    ) -> dict[str, PeriodRecord]:
        """Compare names and sizes of all files, and the contents of those whose turn it is; return the records as they
        are then.

        Faults are written down, and records of faulty periods no longer cover any store's rows. An index that differs
        from the files is removed.
        """
        faults = self._look(records)
        spoken_of = {fault.file for fault in faults}
        sound = []
        for record in periods_to_read(records, read_within_s, self._now):
            directory = directory_of(record.period)
            files = [file for file in record.files if f"{directory}/{file.path}" not in spoken_of]
            found = read_contents(self._spark, self._archive, self._layout, record, files, decode=decode).faults
            self._found(found)
            faults += found
            if not found and len(files) == len(record.files):
                whole = replace(record, verified_at=int(self._now))
                records[record.period] = self._archive.digested(directory, whole)
                self._archive.replace_record(records[record.period])
                sound.append(records[record.period])
        remove_damaged_indexes(self._spark, self._archive, self._layout, sound)
        self._write_down(records, faults)
        return records

    def look(self, records: dict[str, PeriodRecord]) -> None:
        """Compare names and sizes alone, and write down what is faulty."""
        self._write_down(records, self._look(records))

    def _look(self, records: Mapping[str, PeriodRecord]) -> list[Fault]:
        # Files of a damaged record's period may be as they should; so may what is left of days that it has merged.
        faults = [
            fault
            for fault in names_and_sizes(self._archive, records)
            if fault.period in records or not self._damaged & {fault.period, month_name(fault.period)}
        ]
        self._found([fault for fault in faults if fault not in self.faults])
        return faults

    def _write_down(self, records: dict[str, PeriodRecord], faults: Sequence[Fault]) -> None:
        """Write the faults into the archive, and have its records no longer cover what may be gone."""
        by_period: dict[str, list[Fault]] = defaultdict(list)
        for fault in faults:
            by_period[fault.period].append(fault)
        for period, found in by_period.items():
            record = records.get(period)
            run, days = (NO_RECORD, list[int]()) if record is None else (record.run, list(record.days))
            self._incidents.add(period, run, days, found, self._now)
        doubtful, gone = set[int](), self._days_without_record(records)
        for period, found in by_period.items():
            kinds = {fault.kind for fault in found if not fault.file.startswith(f"{QUARANTINE}/")}
            if period in records and any(fault.kind is not FaultKind.UNRECORDED for fault in found):
                doubtful |= records[period].days.keys()
                if kinds - {FaultKind.UNRECORDED}:  # of its files
                    gone |= records[period].days.keys()
        for record in list(records.values()):
            said = {
                day: _forget(one) if day in doubtful or _leans_on(one, gone) else one
                for day, one in record.days.items()
            }
            if said != record.days or doubtful & record.days.keys():
                verified_at = 0 if record.period in by_period else record.verified_at
                records[record.period] = replace(record, days=said, verified_at=verified_at)
                self._archive.replace_record(records[record.period])

    def _days_without_record(self, records: Mapping[str, PeriodRecord]) -> set[int]:
        """Days that have rows of other days, as these say, and that no record mentions, or whose record is damaged."""
        known = {day for record in records.values() for day in record.days}
        named = {
            day
            for record in records.values()
            for said in record.days.values()
            for days in said.elsewhere.values()
            for day in days
        }
        damaged = self._damaged | self._without_record
        return {day for day in named if day not in known or not damaged.isdisjoint((day_name(day), month_of(day)))}

    def mend(self, records: dict[str, PeriodRecord]) -> dict[str, PeriodRecord]:
        """Mend every period of an open incident; return the records as they are then.

        All faulty files are set aside before any rows are taken in, because taking in reads and replaces directories.
        """
        mended = set()
        self._short = faults_of_set_aside(self._archive.storage, records.values()).keys()
        waiting = [(number, one) for number, one in enumerate(self._incidents.all) if one.period and not one.taken_in]
        for number, incident in waiting:
            record = records.get(incident.period)
            if record is not None and record.run == incident.run:
                records[record.period] = self._mend_period(record, f"{self._run}-mended-{number}")
                if record.index is not None:
                    mended.add(record.period)
            elif record is None and incident.run == NO_RECORD:
                self._set_aside_all(incident)
        indexless = [record for period in sorted(mended) if not (record := records[period]).index and record.files]
        records |= make_indexes(self._spark, self._archive, self._layout, indexless, self._run)
        for number, incident in waiting:
            records |= self._salvage.take_in(incident, records, f"{self._run}-taken-in-{number}")
        if waiting and (lost_of(records.values()) or self._without_record):
            self._forget_stores(records)
        for _, incident in waiting:
            self._incidents.take_in(incident)
        return records

    def _forget_stores(self, records: dict[str, PeriodRecord]) -> None:
        """Have this run look again at all that the stores still have. A lost row may be there on another day: it came
        again from another mailserver, and was left out because the archive had it. Nobody knows what is lost with a
        damaged record."""
        for record in list(records.values()):
            if any(said.stores for said in record.days.values()):
                days = {day: _forget(said) for day, said in record.days.items()}
                records[record.period] = replace(record, days=days)
                self._archive.replace_record(records[record.period])

    def _found(self, faults: Sequence[Fault]) -> None:
        for fault in faults:
            log.error("fault in the archive period=%s file=%s cause=%r", fault.period, fault.file, fault.cause)
        self.faults += faults

    def _mend_period(self, record: PeriodRecord, run: str) -> PeriodRecord:
        """Set aside the files of a period that are not as recorded, and have its record say what is left."""
        directory = directory_of(record.period)
        there = self._archive.storage.sizes(directory)
        aside = damaged_of(record.period, record.run)
        for file in record.files:
            if there.get(file.path) != file.bytes and self._restore(record, file, there, aside):
                there[file.path] = file.bytes
        present = [file for file in record.files if there.get(file.path) == file.bytes]
        contents = read_contents(self._spark, self._archive, self._layout, record, present)
        # The second name of a damaged file may lead to another file, which is sound.
        faulty = {fault.file for fault in contents.faults}
        suspects = [file for file in present if f"{directory}/{file.path}" in faulty]
        restored = [self._restore(record, file, there, aside) for file in suspects]
        if any(restored):
            contents = read_contents(self._spark, self._archive, self._layout, record, present)
        good = {file.path for file in contents.good}
        for path in sorted(self._archive.storage.sizes(directory).keys() - good):
            self._archive.set_aside(f"{directory}/{path}", f"{aside}/{path}")
        mended = self._mended(record, contents, run)
        if mended.run != record.run and mended.files:
            mended = replace(mended, snapshot=self._archive.storage.link(directory, snapshot_of(mended)))
        self._archive.replace_record(mended)
        if mended.run != record.run:
            self._archive.storage.touch(snapshot_of(record))
        if not mended.files:
            self._archive.storage.remove(directory)  # it has no file
        log.info("period mended period=%s files=%d rows=%d", mended.period, len(mended.files), mended.fingerprint.rows)
        return mended

    def _restore(self, record: PeriodRecord, file: FileRecord, there: Mapping[str, int], aside: str) -> bool:
        """Put the file that a second name leads to in its place, unless the file there is the same one; return whether
        that was done."""
        storage, name = self._archive.storage, f"{directory_of(record.period)}/{file.path}"
        second = f"{snapshot_of(record)}/{file.path.removesuffix('.parquet')}"
        if not record.snapshot or storage.is_same(second, name) or storage.size(second) != file.bytes:
            return False
        if file.path in there:
            self._archive.set_aside(name, f"{aside}/{file.path}")
        log.info("file restored by its second name file=%s", name)
        return storage.restore(second, name)

    def _mended(self, record: PeriodRecord, contents: Contents, run: str) -> PeriodRecord:
        days = {}
        for day, said in record.days.items():
            found = contents.written.days.get(day, Fingerprint())
            # A day that lacks rows which were set aside covers no store until the stores have been read again.
            if found == said.fingerprint and not said.lost_rows and day not in self._short:
                stores = {**said.stores_before, **said.stores}
                days[day] = replace(said, stores=stores)
                continue
            first, last = contents.written.created.get(day, (0, 0))
            lost = said.fingerprint - found
            days[day] = replace(
                said,
                fingerprint=found,
                created_min=first,
                created_max=last,
                lost_rows=said.lost_rows + lost.rows,
                lost_bytes=said.lost_bytes + lost.bytes,
                lost_checksum=checksums_together(said.lost_checksum, lost.checksum),
            )
        if len(contents.good) == len(record.files):
            return replace(record, days=days, verified_at=int(self._now))
        if not contents.good:
            return PeriodRecord(record.period, f"{run}-empty", days, (), record.replaces, verified_at=int(self._now))
        return PeriodRecord(
            record.period,
            run,
            days,
            contents.good,
            record.replaces,
            verified_at=int(self._now),
            network_topic=record.network_topic,
        )

    def _set_aside_all(self, incident: Incident) -> None:
        directory = directory_of(incident.period)
        for path in self._archive.storage.sizes(directory):
            self._archive.set_aside(f"{directory}/{path}", f"{damaged_of(incident.period, NO_RECORD)}/{path}")
        self._archive.storage.remove(directory)  # it has no file
        self._set_second_names_aside(incident.period, NO_RECORD)

    def _set_second_names_aside(self, period: str, run: str) -> None:
        """Keep what may be the last copy of a period that no record mentions; its rows are taken in from there."""
        second = f"{SNAPSHOTS}/{directory_of(period)}"
        for name in self._archive.storage.names(second):
            for path in self._archive.storage.sizes(f"{second}/{name}"):
                self._archive.set_aside(f"{second}/{name}/{path}", f"{damaged_of(period, run)}/{path}")
        self._archive.storage.remove(second)  # it has no file


def _leans_on(said: DayRecord, gone: AbstractSet[int]) -> bool:
    """Whether rows of a day may be gone with other days. An earlier version did not write down which days have them."""
    return bool(gone) and any(not gone.isdisjoint(said.elsewhere.get(store, gone)) for store in said.stores)


def _forget(said: DayRecord) -> DayRecord:
    before = dict(said.stores_before)
    for store, seq in said.stores.items():
        before[store] = max(seq, before.get(store, seq))
    return replace(said, stores={}, stores_before=before)
