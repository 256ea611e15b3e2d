"""An archive as its records and its directories describe it; no data file is opened here."""

import time
from collections.abc import Collection, Iterator, Mapping

from mailserver.archive.days import day_name, month_of
from mailserver.archive.errors import ArchiveBusy, ArchiveError, NoArchive, RecordDamaged
from mailserver.archive.faults import Fault, FaultKind
from mailserver.archive.files import ArchiveFiles
from mailserver.archive.layout import PERIOD, Layout
from mailserver.archive.manifest import PeriodRecord, decode_record, decode_settings, visible
from mailserver.archive.paths import RECORDS, SETTINGS_FILE, SNAPSHOTS, directory_of, record_of, snapshot_of

MISSING_RECORD_TIMEOUT_S = 10.0
"""How long a record may be listed and yet be missing. Whoever replaces or removes it takes a moment."""

CHANGES_TIMEOUT_S = 60.0
"""How long records may come and go with each look at them. A run that merges years removes hundreds, one by one."""

_POLL_S = 0.05


class Archive:
    """An archive, to read."""

    def __init__(self, files: ArchiveFiles) -> None:
        self.files = files

    @property
    def url(self) -> str:
        """The archive, as a URL."""
        return self.files.url

    def layout(self) -> Layout | None:
        """What the archive is partitioned by; None if it is new.

        Raises:
            RecordDamaged: what says so is not whole.
            ArchiveError: a later version made it, or something else is there.
        """
        text = self.files.read(SETTINGS_FILE)
        if text is not None:
            return decode_settings(text, f"{self.url}/{SETTINGS_FILE}")
        foreign = [name for name in self.files.names("") if name.startswith(f"{PERIOD}=")]
        if foreign:
            raise ArchiveError(f"{self.url} is not an archive of ours: it has {foreign[0]}, but no {SETTINGS_FILE}")
        return None

    def records(self, *, without: Collection[str] = ()) -> dict[str, PeriodRecord]:
        """What is in the archive, by period.

        Args:
            without: periods whose records are not read.
        Raises:
            ArchiveError: a record cannot be read.
        """
        return {record.period: record for record in visible(self.every_record(without))}

    def records_of(self, *days: int) -> dict[str, PeriodRecord]:
        """The periods that hold rows of days of reception: of each the day's own, its month, or both.

        Raises:
            ArchiveError: a record cannot be read, or is too large for one.
        """
        names = sorted({record_of(period) for day in days for period in (day_name(day), month_of(day))})
        texts = self._texts(names)
        found = [decode_record(text, f"{self.url}/{name}") for name, text in texts if text is not None]
        return {record.period: record for record in visible(found) if not record.days.keys().isdisjoint(days)}

    def is_empty(self) -> bool:
        """Whether there is neither a period nor a record of one."""
        return not self._record_names() and not any(name.startswith(f"{PERIOD}=") for name in self.files.names(""))

    def damaged_records(self) -> dict[str, str]:
        """The names of records that are not whole, and what is wrong with each.

        Raises:
            ArchiveError: a later version made one.
        """
        found = {}
        for name, text in self._texts(self._record_names()):
            try:
                decode_record(text or "", f"{self.url}/{name}")
            except RecordDamaged as error:
                found[name.removeprefix(f"{RECORDS}/")] = str(error)
        return found

    def faults_of(
        self, record: PeriodRecord, directory: str | None = None, there: Mapping[str, int] | None = None
    ) -> list[Fault]:
        """Compare names and sizes of a period's files with its record: no file is opened.

        Args:
            directory: where they are; by default where every reader finds them.
            there: the sizes of the files in that directory, if they are known already.
        """
        directory = directory_of(record.period) if directory is None else directory
        there = self.files.sizes(directory) if there is None else there
        faults = []
        for file in record.files:
            size, name = there.get(file.path), f"{directory}/{file.path}"
            if size is None:
                faults.append(Fault(record.period, name, FaultKind.MISSING, file.rows, "is missing"))
            elif size != file.bytes:
                cause = f"has {size} bytes instead of {file.bytes}"
                faults.append(Fault(record.period, name, FaultKind.DAMAGED, file.rows, cause))
        return faults

    def sizes_of_periods(self) -> dict[str, dict[str, int]]:
        """The size of each data file by its path in the directory of its period, by period.

        All of them are in one listing. On S3, one for each period would take as many round trips as there are periods.
        """
        found: dict[str, dict[str, int]] = {}
        for path, size in self.files.sizes("").items():
            directory, _, below = path.partition("/")
            period = directory.removeprefix(f"{PERIOD}=")
            if below and period != directory:
                found.setdefault(period, {})[below] = size
        return found

    def older_snapshots(self) -> list[str]:
        """Directories of second names of periods that another run has written since."""
        current = {snapshot_of(record) for record in self.records().values()}
        names = [
            f"{SNAPSHOTS}/{period}/{run}"
            for period in self.files.names(SNAPSHOTS)
            for run in self.files.names(f"{SNAPSHOTS}/{period}")
        ]
        return [name for name in names if name not in current]

    def forgotten(self, records: Mapping[str, PeriodRecord]) -> set[str]:
        """Periods that have second names, but that no record mentions, neither as a period nor as part of one."""
        known = {*records, *(day_name(day) for record in records.values() for day in record.days)}
        return {name.removeprefix(f"{PERIOD}=") for name in self.files.names(SNAPSHOTS)} - known

    def every_record(self, without: Collection[str] = ()) -> list[PeriodRecord]:
        """The records that `records` has, and those of periods that are part of others by now.

        Raises:
            ArchiveBusy: records have come and gone for CHANGES_TIMEOUT_S.
            ArchiveError: a record cannot be read, or is listed and yet missing for MISSING_RECORD_TIMEOUT_S.
        """
        give_up_at = time.monotonic() + CHANGES_TIMEOUT_S
        left_out = set(map(record_of, without))
        missing_since: dict[str, float] = {}
        names = self._record_names(left_out)
        while True:
            found = dict(self._texts(names))
            before, names = names, self._record_names(left_out)
            texts = {name: text for name, text in found.items() if text is not None}
            missing = (found.keys() - texts.keys()).intersection(names)
            if names == before and not missing:  # else a run publishes: its record may be missing here
                return [decode_record(text, f"{self.url}/{name}") for name, text in texts.items()]
            if time.monotonic() > give_up_at:
                raise ArchiveBusy(f"{self.url}/{RECORDS} changes all the time")
            missing_since = self._still_missing(missing, missing_since)
            if missing_since:
                time.sleep(_POLL_S)

    def _still_missing(self, missing: Collection[str], since: Mapping[str, float]) -> dict[str, float]:
        """Since when records that are listed have been missing, by `time.monotonic`."""
        now = time.monotonic()
        for name in sorted(missing):
            if now - since.get(name, now) > MISSING_RECORD_TIMEOUT_S:
                raise ArchiveError(f"{self.url}/{name} is listed, but missing: is it a link to what is gone?")
        return {name: since.get(name, now) for name in missing}

    def _texts(self, names: Collection[str]) -> Iterator[tuple[str, str | None]]:
        """Yield small files by name, each with its text; None if there is none.

        Raises:
            ArchiveError: one of them cannot be read.
        """
        for name, text in self.files.read_each(names):
            if isinstance(text, ArchiveError):
                raise text
            yield name, text

    def _record_names(self, left_out: Collection[str] = ()) -> list[str]:
        names = [f"{RECORDS}/{name}" for name in self.files.names(RECORDS) if name.endswith(".json")]
        return [name for name in names if name not in left_out]


def existing_layout(archive: Archive) -> Layout:
    """What an archive is partitioned by.

    Raises:
        NoArchive: there is none.
        ArchiveError: what says so cannot be read.
    """
    layout = archive.layout()
    if layout is None:
        raise NoArchive(f"there is no archive at {archive.url}")
    return layout
