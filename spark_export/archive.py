"""The archive's directories, and how a period changes in them.

    date=2026-11-20/topic_prefix=9/part-...parquet    what every Parquet reader sees
    _archive.json, _records/                          what is in it (`spark_export.records`)
    _staging/RUN/data/date=...                        what a run is writing; RUN/publish.json once it is verified
    _snapshots/date=.../run=.../topic_prefix=9/part-..   second names of the same files, for `read_archive`
    _quarantine/, _runs/                              rows set aside; a report of each run
    _damaged/, _incidents.json                        files set aside; what was found (`spark_export.mending`)

A run writes and verifies in `_staging`, then writes `publish.json`: from here on the change is made, by the next run if
this one is killed. For each period, the staged directory takes the place of the old one, and then the record does. A
reader of directories sees the old files or the new; one that has listed the old and not yet opened them is told that
they are gone, except through `_snapshots`, where names stay for a day after they were replaced.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from spark_export.errors import ExportError, RecordDamaged
from spark_export.layout import Layout
from spark_export.records import (
    PeriodRecord,
    decode_record,
    decode_records,
    decode_settings,
    encode_record,
    encode_records,
    encode_settings,
    visible,
)
from spark_export.schema import PERIOD
from spark_export.storage import Storage

SETTINGS_FILE = "_archive.json"
RECORDS = "_records"
STAGING = "_staging"
SNAPSHOTS = "_snapshots"
QUARANTINE = "_quarantine"
DAMAGED = "_damaged"
RUNS = "_runs"
JOURNAL_FILE = "publish.json"

SNAPSHOT_LIFE_S = 24 * 3600
"""How long a query that began before a period was replaced may go on reading it."""


def directory_of(period: str) -> str:
    """Where every reader finds a period."""
    return f"{PERIOD}={period}"


def snapshot_of(record: PeriodRecord) -> str:
    """Where a period's files have their second names."""
    return f"{SNAPSHOTS}/{PERIOD}={record.period}/run={record.run}"


def staged_data(run: str) -> str:
    """Where a run writes the directories of its periods."""
    return f"{STAGING}/{run}/data"


def existing_layout(archive: "Archive") -> Layout:
    """What an archive is partitioned by.

    Raises:
        ExportError: there is none.
    """
    layout = archive.layout()
    if layout is None:
        raise ExportError(f"there is no archive at {archive.url}")
    return layout


class Archive:
    """An archive in some storage. Only what a run that holds the storage's lock calls changes it."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    @property
    def url(self) -> str:
        """The archive, as Spark takes it."""
        return self.storage.url

    def layout(self) -> Layout | None:
        """What the archive is partitioned by; None if it is new.

        Raises:
            ExportError: a later version made it, or something else is there.
        """
        text = self.storage.read(SETTINGS_FILE)
        if text is not None:
            return decode_settings(text, f"{self.url}/{SETTINGS_FILE}")
        foreign = [name for name in self.storage.names("") if name.startswith(f"{PERIOD}=")]
        if foreign:
            raise ExportError(f"{self.url} is not an archive of ours: it has {foreign[0]}, but no {SETTINGS_FILE}")
        return None

    def begin(self, layout: Layout) -> None:
        """Make this an archive of that layout."""
        self.storage.write(SETTINGS_FILE, encode_settings(layout))

    def records(self) -> dict[str, PeriodRecord]:
        """What is in the archive, by period.

        Raises:
            ExportError: a record cannot be read.
        """
        return {record.period: record for record in visible(self._all_records())}

    def is_empty(self) -> bool:
        """Whether there is neither a period nor a record of one."""
        return not self._record_names() and not any(name.startswith(f"{PERIOD}=") for name in self.storage.names(""))

    def unreadable_records(self) -> dict[str, str]:
        """The names of records that are not whole, and what is wrong with each.

        Raises:
            ExportError: a later version made one.
        """
        found = {}
        for name in self._record_names():
            try:
                decode_record(self.storage.read(name) or "", f"{self.url}/{name}")
            except RecordDamaged as error:
                found[name.removeprefix(f"{RECORDS}/")] = str(error)
        return found

    def publish(self, run: str, records: Sequence[PeriodRecord]) -> list[PeriodRecord]:
        """Put what a run has staged and verified in its place; return the records, with digests of the files.

        Killed anywhere, it is done by the next `repair`.
        """
        self.storage.sync(staged_data(run))
        records = [self.digested(f"{staged_data(run)}/{directory_of(record.period)}", record) for record in records]
        self.storage.write(f"{STAGING}/{run}/{JOURNAL_FILE}", encode_records(records))
        return self._publish(run, records)

    def digested(self, directory: str, record: PeriodRecord) -> PeriodRecord:
        """The record, with the digest of each file in a directory that has none: of what was just read as sound."""
        if all(file.sha256 for file in record.files):
            return record
        files = (replace(file, sha256=self.storage.digest(f"{directory}/{file.path}")) for file in record.files)
        return replace(record, files=tuple(files))

    def replace_record(self, record: PeriodRecord) -> None:
        """Say something else of a period whose files stay as they are."""
        self.storage.write(f"{RECORDS}/{record.period}.json", encode_record(record))

    def repair(self) -> None:
        """Complete what a killed run had verified, remove what it had not, and what has been replaced for long."""
        for run in self.storage.names(STAGING):
            name = f"{STAGING}/{run}/{JOURNAL_FILE}"
            journal = self.storage.read(name)
            if journal is None:
                self.storage.remove(f"{STAGING}/{run}")
            else:
                self._publish(run, decode_records(journal, f"{self.url}/{name}"))
        self._remove_replaced()
        self._remove_old_snapshots()

    def write_report(self, run: str, report: dict[str, Any]) -> None:
        """Keep the report of a run."""
        self.storage.write(f"{RUNS}/{run}.json", json.dumps(report, indent=1) + "\n")

    def _all_records(self) -> list[PeriodRecord]:
        names = self._record_names()
        while True:
            found = {name: self.storage.read(name) for name in names}
            before, names = names, self._record_names()
            if names == before and None not in found.values():  # else a run publishes: its record may be missing here
                return [decode_record(text, f"{self.url}/{name}") for name, text in found.items() if text is not None]

    def _record_names(self) -> list[str]:
        return [f"{RECORDS}/{name}" for name in self.storage.names(RECORDS) if name.endswith(".json")]

    def _publish(self, run: str, records: Sequence[PeriodRecord]) -> list[PeriodRecord]:
        before = self.records()
        published = []
        for record in records:
            staged, target = f"{staged_data(run)}/{directory_of(record.period)}", directory_of(record.period)
            in_place = self._in_place(record)
            snapshot = self.storage.link(target if in_place else staged, snapshot_of(record))
            if not in_place:
                self.storage.put(staged, target)
            previous = before.get(record.period)
            if previous is not None and previous.run != record.run:
                self.storage.touch(snapshot_of(previous))  # before the record: of a killed run, too, they stay a day
            published.append(replace(record, snapshot=snapshot))
            self.replace_record(published[-1])
        self._remove_replaced()
        self.storage.remove(f"{STAGING}/{run}")
        return published

    def _in_place(self, record: PeriodRecord) -> bool:
        """Whether a period's directory holds the record's files: each run gives its files names of their own."""
        folder, _, name = record.files[0].path.rpartition("/")
        return name in self.storage.names(f"{directory_of(record.period)}/{folder}")

    def _remove_replaced(self) -> None:
        """Take away the directories and records of periods that are part of others now."""
        found = self._all_records()
        current = {(record.period, record.run) for record in visible(found)}
        replaced = [record for record in found if (record.period, record.run) not in current]
        # Renamed first, all at once: a reader of directories should not meet both for long.
        for record in replaced:
            if self.storage.names(directory_of(record.period)):
                self.storage.put(directory_of(record.period), f"{STAGING}/replaced/{directory_of(record.period)}")
        for record in replaced:
            self.storage.touch(snapshot_of(record))
            self.storage.remove(f"{RECORDS}/{record.period}.json")
        self.storage.remove(f"{STAGING}/replaced")

    def _remove_old_snapshots(self) -> None:
        current = {snapshot_of(record) for record in self.records().values()}
        for period in self.storage.names(SNAPSHOTS):
            runs = self.storage.names(f"{SNAPSHOTS}/{period}")
            for run in runs:
                name = f"{SNAPSHOTS}/{period}/{run}"
                if name not in current and self.storage.age(name) > SNAPSHOT_LIFE_S:
                    self.storage.remove(name)
                    runs = [other for other in runs if other != run]
            if not runs:
                self.storage.remove(f"{SNAPSHOTS}/{period}")
