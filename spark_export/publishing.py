"""How a period of an archive changes.

A run writes and verifies in `_staging`, then writes `publish.json`. From then on the change will be made, by the next
run if this one is killed: for each period, the staged directory replaces the old one, and then the new record does.
The index of a period is in its place before that: it has a name of its own for each run.

S3 cannot replace a directory. There, the new files are put beside the old ones, whose names no two runs share. Then the
new record replaces the old one, and the old files are deleted, each by its name: what another run may have put there
stays. `replaced.json` has these names, for the run that completes a killed one. So whoever goes by records finds every
file that they name, and whoever goes by directories finds rows twice for a while.

Before a run deletes files that were replaced, it checks that each of the files that replaced them is there, with its
size. If not, the old files are kept, and `spark_export.mending` takes their rows in. While any period is not as
recorded, files that were replaced earlier are not deleted either.

A journal that a disk has damaged is set aside: what the run had not published yet is written once more, from the stores
or from the files that it was made of, which are all still there.
"""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mailserver.archive.archive import Archive
from mailserver.archive.errors import RecordDamaged
from mailserver.archive.faults import Fault, FaultKind
from mailserver.archive.layout import Layout
from mailserver.archive.manifest import (
    FileRecord,
    PeriodRecord,
    decode_records,
    encode_record,
    encode_records,
    encode_settings,
    visible,
)
from mailserver.archive.paths import (
    DAMAGED,
    INDEXES,
    JOURNAL_FILE,
    REPLACED,
    REPLACED_FILE,
    RUNS,
    SETTINGS_FILE,
    SNAPSHOTS,
    STAGING,
    damaged_of,
    directory_of,
    index_of,
    record_of,
    snapshot_of,
    staged_data,
)
from spark_export.errors import ExportCheckFailed
from spark_export.storage import WritableFiles

log = logging.getLogger(__name__)

SNAPSHOT_LIFE_S = 24 * 3600
"""How long a query that began before a period was replaced may go on reading it."""


class WritableArchive(Archive):
    """An archive that a run changes while it holds the storage's lock."""

    def __init__(self, storage: WritableFiles) -> None:
        super().__init__(storage)
        self.storage = storage
        self.damage: list[Fault] = []
        """The small files that say what the archive is and what happens to it, which were damaged and set aside."""

    def begin(self, layout: Layout) -> None:
        """Begin an archive with this layout."""
        self.storage.write(SETTINGS_FILE, encode_settings(layout))

    def publish(self, run: str, records: Sequence[PeriodRecord], before: Iterable[PeriodRecord]) -> list[PeriodRecord]:
        """Put what a run has staged and verified in its place; return the records, with digests of the files.

        If the run is killed, the next `repair` completes it.

        Args:
            before: the records that the run has read, and whose rows are in the new files.
        Raises:
            ExportCheckFailed: a file is not what it was when it was verified, or a period is not what the run has read;
                nothing is published.
        """
        read = {record.period: record for record in before}
        self._check_unchanged(records, read)
        self.storage.sync(staged_data(run))
        for record in records:
            self.sync_index(record)
            if faults := self._faults_of_staged(run, record):
                raise ExportCheckFailed(record.period, str(faults[0]))
        records = [self.digested(f"{staged_data(run)}/{directory_of(record.period)}", record) for record in records]
        if not self.storage.replaces_whole:
            old = [read[record.period] for record in records if record.period in read]
            self.storage.write(f"{STAGING}/{run}/{REPLACED_FILE}", encode_records(old))
        self.storage.write(f"{STAGING}/{run}/{JOURNAL_FILE}", encode_records(records))
        published = self._publish(run, records)
        if left := {record.period for record in records} - {record.period for record in published}:
            raise ExportCheckFailed(", ".join(sorted(left)), "files that were verified are gone")
        return published

    def digested(self, directory: str, record: PeriodRecord) -> PeriodRecord:
        """The record, with a digest for each file that has none. The files were just read and found sound."""
        if all(file.sha256 for file in record.files):
            return record
        files = (replace(file, sha256=self.storage.digest(f"{directory}/{file.path}")) for file in record.files)
        return replace(record, files=tuple(files))

    def sync_index(self, record: PeriodRecord) -> None:
        """Make sure that the index of a period is on disk, before its record mentions it."""
        self.storage.sync(index_of(record.period, record.run).rpartition("/")[0])

    def replace_record(self, record: PeriodRecord) -> None:
        """Replace the record of a period whose files stay as they are."""
        self.storage.write(record_of(record.period), encode_record(record))

    def repair(self) -> None:
        """Complete what a killed run had verified; remove what it had not verified, and what was replaced long ago.

        Nothing is removed while a period is not as recorded.
        """
        for run in self.storage.names(STAGING):
            journal = self._journal(run, JOURNAL_FILE)
            if journal is not None:
                self._publish(run, journal)
        records, there = self.records(), self.sizes_of_periods()
        if any(self.faults_of(record, there=there.get(record.period, {})) for record in records.values()):
            self._put_back_replaced()
        else:
            for run in self.storage.names(STAGING):
                self._remove_staged(run)
            self._remove_old_snapshots()
            self._remove_old_indexes()
        self._remove_replaced()

    def set_aside(self, name: str, target: str) -> None:
        """Move a file. A file that was set aside under the same name before is kept."""
        number, free = 1, target
        while self.storage.size(free) is not None:
            number += 1
            free = f"{target}.{number}"
        self.storage.put(name, free)
        log.warning("file set aside file=%s to=%s", name, free)

    def set_damaged_aside(self, name: str, error: RecordDamaged) -> None:
        """Set aside a small file that nobody can read, and name it in `damage`."""
        cause = str(error).removeprefix(f"{self.url}/{name} ")
        fault = Fault(name, name, FaultKind.DAMAGED, 0, cause)
        log.error("fault in the archive period=%s file=%s cause=%r", fault.period, fault.file, fault.cause)
        self.set_aside(name, f"{DAMAGED}/{name}")
        self.damage.append(fault)

    def write_report(self, run: str, report: dict[str, Any]) -> None:
        """Keep the report of a run."""
        self.storage.write(f"{RUNS}/{run}.json", json.dumps(report, indent=1) + "\n")

    def _check_unchanged(self, records: Iterable[PeriodRecord], read: Mapping[str, PeriodRecord]) -> None:
        """Make sure that no other run has written a period since this one has read it."""
        now = self.records()
        for period in sorted({*read, *(record.period for record in records)}):
            runs = [None if found is None else found.run for found in (read.get(period), now.get(period))]
            if runs[0] != runs[1]:
                raise ExportCheckFailed(period, f"run {runs[1]} has written it meanwhile, in place of run {runs[0]}")

    def _publish(self, run: str, records: Sequence[PeriodRecord]) -> list[PeriodRecord]:
        before = self.records()
        beside = {old.period: old for old in self._journal(run, REPLACED_FILE) or ()}
        published = []
        for record in records:
            staged, target = f"{staged_data(run)}/{directory_of(record.period)}", directory_of(record.period)
            in_place = self._in_place(record)
            if not in_place and (faults := self._faults_of_staged(run, record)):  # since a run was killed
                log.error("period not published, its new files are damaged fault=%r", str(faults[0]))
                current = before.get(record.period)
                if current is not None and self.faults_of(current):
                    self._keep_staged(run, current)
                continue
            snapshot = self.storage.link(target if in_place else staged, snapshot_of(record))
            if not in_place:
                self.storage.put(staged, target)
            if self.faults_of(record):
                self._keep_staged(run, record)
            previous = before.get(record.period)
            if previous is not None and previous.run == record.run:  # before that run was killed
                published.append(previous)  # `verify` may have written down what is wrong since
            else:
                if previous is not None:
                    self.storage.touch(snapshot_of(previous))  # before the record: they stay a day in any case
                published.append(replace(record, snapshot=snapshot))
                self.replace_record(published[-1])
            if record.period in beside:
                self._remove_beside(record, beside[record.period])
        self._remove_replaced()
        self._remove_staged(run)
        return published

    def _remove_staged(self, run: str) -> None:
        """Remove what a run has staged, the journal first: if this run is killed here, nobody takes what is left for
        what is still to be published."""
        self.storage.remove(f"{STAGING}/{run}/{JOURNAL_FILE}")
        self.storage.remove(f"{STAGING}/{run}")

    def _journal(self, run: str, file: str) -> list[PeriodRecord] | None:
        """The records that a run has written down, None if it has not, or if they were damaged since."""
        name = f"{STAGING}/{run}/{file}"
        try:
            text = self.storage.read(name)
            return None if text is None else decode_records(text, f"{self.url}/{name}")
        except RecordDamaged as error:
            self.set_damaged_aside(name, error)
            return None

    def _remove_beside(self, record: PeriodRecord, old: PeriodRecord) -> None:
        """Remove the files that a record has replaced and that are still beside its own, if its own are as they should
        be."""
        kept = {file.path for file in record.files}
        if not self.faults_of(record):
            self._remove_files(record.period, [file for file in old.files if file.path not in kept])

    def _remove_files(self, period: str, files: Iterable[FileRecord]) -> None:
        directory = directory_of(period)
        self.storage.remove(*(f"{directory}/{file.path}" for file in files))
        if not self.storage.sizes(directory):
            self.storage.remove(directory)

    def _faults_of_staged(self, run: str, record: PeriodRecord) -> list[Fault]:
        return self.faults_of(record, f"{staged_data(run)}/{directory_of(record.period)}")

    def _in_place(self, record: PeriodRecord) -> bool:
        """Whether the record's files are in the period's directory already. Each run gives its files unique names."""
        there = self.storage.sizes(directory_of(record.period))
        found = (file.path in there for file in record.files)
        return any(found) if self.storage.replaces_whole else all(found)

    def _keep_staged(self, run: str, record: PeriodRecord) -> None:
        """Set aside the other files of a period that is not as recorded: their rows are taken in again with it."""
        staged, aside = f"{staged_data(run)}/{directory_of(record.period)}", damaged_of(record.period, record.run)
        for directory in (staged, f"{staged}.old"):
            for path in self.storage.sizes(directory):
                self.set_aside(f"{directory}/{path}", f"{aside}/{path}")

    def _remove_replaced(self) -> None:
        """Remove the directories and records of periods that were merged into others, if the others are as recorded."""
        found = self.every_record()
        current = visible(found)
        shown = {(record.period, record.run) for record in current}
        hidden = [record for record in found if (record.period, record.run) not in shown]
        merged = [record for record in current if record.replaces] if hidden else []
        doubtful = {pair for record in merged if self.faults_of(record) for pair in record.replaces}
        replaced = []
        for record in hidden:
            if (record.period, record.run) in doubtful:
                log.error("merged files kept, the month they were merged into is damaged period=%s", record.period)
            else:
                replaced.append(record)
        if self.storage.replaces_whole:
            # Renamed first, all at once: a reader of directories should not meet both for long.
            for record in replaced:
                if self.storage.names(directory_of(record.period)):
                    self.storage.put(directory_of(record.period), _aside(record))
        if replaced and any(map(self.faults_of, merged)):  # since they were checked
            self._put_back_replaced()
            return
        for record in replaced:
            self.storage.touch(snapshot_of(record))
            if self.storage.replaces_whole:
                self.storage.remove(_aside(record))
            else:
                self._remove_files(record.period, record.files)
            self.storage.remove(record_of(record.period))
        if not self.storage.sizes(REPLACED):
            self.storage.remove(REPLACED)

    def _put_back_replaced(self) -> None:
        """Put back what a killed run was about to delete: no record mentions it, so its rows are taken in."""
        for directory in self.storage.names(REPLACED):
            for run in self.storage.names(f"{REPLACED}/{directory}"):
                if not self.storage.names(directory):
                    self.storage.put(f"{REPLACED}/{directory}/{run}", directory)

    def _remove_old_indexes(self) -> None:
        """Remove indexes that nobody reads any more, and those of runs that did not finish."""
        current = {index_of(record.period, record.run) for record in self.records().values()}
        kept = set()
        for path in self.storage.sizes(INDEXES):
            is_current = f"{INDEXES}/{path}" in current
            if is_current or self.storage.names(f"{SNAPSHOTS}/{path.removesuffix('.index')}"):  # somebody reads it
                kept.add(path.partition("/")[0])
            else:
                self.storage.remove(f"{INDEXES}/{path}")
        for directory in self.storage.names(INDEXES):
            if directory not in kept:
                self.storage.remove(f"{INDEXES}/{directory}")

    def _remove_old_snapshots(self) -> None:
        last_copies = tuple(f"{SNAPSHOTS}/{directory_of(period)}/" for period in self.forgotten(self.records()))
        for name in self.older_snapshots():
            if not name.startswith(last_copies) and self.storage.age(name) > SNAPSHOT_LIFE_S:
                self.storage.remove(name)
        for period in self.storage.names(SNAPSHOTS):
            if not self.storage.names(f"{SNAPSHOTS}/{period}"):
                self.storage.remove(f"{SNAPSHOTS}/{period}")


def _aside(record: PeriodRecord) -> str:
    """Where the directory of a period is that was merged into another, until it is deleted."""
    return f"{REPLACED}/{directory_of(record.period)}/run={record.run}"
