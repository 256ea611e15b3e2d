"""Reads the records: which periods the archive has, and which files belong to each.

A run of the compaction may replace a period's files and its record while the daemon reads. The old record can be used
for another day: the files of a replaced period keep second names below `_snapshots` (`mailserver.archive.paths`), and
the daemon opens those first. In an archive without second names, a missing file means that the period has a new record.
The reader then looks at the records again.

Everything here waits for the disk, so it runs in a thread.
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shown

from mailserver.archive.archive import MAX_RECORD_BYTES
from mailserver.archive.errors import ArchiveFault
from mailserver.archive.layout import TOPIC_PREFIX
from mailserver.archive.manifest import FileRecord, PeriodRecord, decode_record, decode_settings
from mailserver.archive.paths import RECORDS, SETTINGS_FILE, directory_of, index_of, record_of, snapshot_of
from mailserver.archive.reading.indexed import IndexFile
from mailserver.archive.reading.row_groups import DataFile, FileGone
from mailserver.waku.envelope import TOPIC_BYTES, Topic

_SETTLED_NS = 2 * 10**9
"""A folder's time of change tells two changes apart only if they are at least this far apart."""

ATTEMPTS = 10
"""How often the records are listed again because a run is publishing."""

_TOPIC = "topic"
_DIGITS = frozenset("0123456789abcdef")

Signature = tuple[int, int, int]
"""Identifies one version of a file that is only ever replaced as a whole: inode, time of change, size."""


@dataclass(frozen=True, slots=True)
class Period:
    """A period as its record describes it.

    `created`: when its first and its last envelope were created, Unix seconds, inclusive. `record`: the version of the
    record; the same version means the same files.
    """

    name: str
    run: str
    created: tuple[int, int]
    record: Signature


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A data file. `prefix`: its topics begin with these hex digits. `path`: its path in the period's record."""

    file: DataFile
    prefix: str
    path: str


@dataclass(frozen=True, slots=True)
class PeriodFiles:
    """The files of a period. `index`: None if the record names none."""

    files: tuple[PlacedFile, ...]
    index: IndexFile | None


@dataclass(frozen=True, slots=True)
class _Read:
    """The parts of a record that the catalog needs: its period, and the periods that it replaces."""

    period: Period | None
    key: tuple[str, str]
    replaces: frozenset[tuple[str, str]]


class Catalog:
    """The periods of one archive. Several threads may use it at the same time."""

    def __init__(self, archive: Path, is_expected: Callable[[], bool]) -> None:
        """Describe the archive in a folder.

        Args:
            is_expected: tells whether other evidence shows that the archive exists. If not, an empty or missing folder
                counts as an empty archive: the compaction has not run yet.
        """
        self._archive = archive
        self._is_expected = is_expected
        self._lock = threading.Lock()
        self._has_been_seen = False
        self._settled: tuple[Signature, tuple[Period, ...]] | None = None
        self._records: dict[str, tuple[Signature, _Read]] = {}

    def periods(self) -> tuple[Period, ...]:
        """Return the periods that have envelopes. The one with the newest envelope comes first.

        Raises:
            ArchiveError: the archive is missing, or cannot be read.
        """
        with self._lock:
            try:
                return self._periods()
            except OSError as error:
                cause = f"cannot read {error.filename or self._archive}: {error.strerror or error}"
                raise ArchiveFault(cause) from error

    def files(self, period: Period) -> PeriodFiles:
        """Return the files of a period.

        Raises:
            FileGone: the period has a newer record.
            ArchiveError: the record cannot be read.
        """
        path = self._archive / record_of(period.name)
        try:
            record = _read_record(path)
        except OSError as error:
            raise ArchiveFault(f"cannot read {path}: {error.strerror or error}") from error
        if record is None or record.run != period.run:
            raise FileGone(f"{path} has been replaced")
        index = None
        if record.index is not None:
            index = IndexFile(self._archive / index_of(record.period, record.run), record.index)
        return PeriodFiles(tuple(self._placed(record, file) for file in record.files), index)

    def _periods(self) -> tuple[Period, ...]:
        folder = self._archive / RECORDS
        now = time.time_ns()
        try:
            before = _signature(folder.stat())
        except FileNotFoundError:
            return self._nothing()
        if self._settled is not None and self._settled[0] == before:
            return self._settled[1]
        settings = _read_text(self._archive / SETTINGS_FILE)
        if settings is None:
            return self._nothing()
        decode_settings(settings, str(self._archive / SETTINGS_FILE))
        for _ in range(ATTEMPTS):
            found = self._all_records(folder)
            if _names(folder) == found.keys():
                break
        else:  # a period that moves from one record to another could be missed
            raise ArchiveFault(f"{folder} changes all the time")
        self._records = found
        replaced = {pair for _, read in found.values() for pair in read.replaces}
        periods = [read.period for _, read in found.values() if read.key not in replaced and read.period is not None]
        if not found:
            return self._nothing()
        self._has_been_seen = True
        current = tuple(sorted(periods, key=lambda period: (period.created[1], period.name), reverse=True))
        is_settled = before == _signature(folder.stat()) and now - before[1] > _SETTLED_NS
        self._settled = (before, current) if is_settled else None
        return current

    def _nothing(self) -> tuple[Period, ...]:
        self._settled = None
        if self._has_been_seen or self._is_expected():
            raise ArchiveFault(f"there is no archive at {self._archive}: is its disk mounted?")
        return ()

    def _all_records(self, folder: Path) -> dict[str, tuple[Signature, _Read]]:
        """Read all records. Those that have not changed are not read again."""
        found = {}
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.endswith(".json"):
                    continue
                try:
                    signature = _signature(entry.stat())
                    known = self._records.get(entry.name)
                    if known is None or known[0] != signature:
                        record = _read_record(Path(entry.path))
                        if record is None:
                            continue
                        known = signature, _summary(record, signature)
                except FileNotFoundError:  # a run has merged its period into another
                    continue
                found[entry.name] = known
        return found

    def _placed(self, record: PeriodRecord, file: FileRecord) -> PlacedFile:
        column, _, value = file.path.partition("/")[0].partition("=")
        digits = value.removeprefix("0x")
        is_topic = column == _TOPIC
        if column not in (_TOPIC, TOPIC_PREFIX) or not set(digits) <= _DIGITS or ".." in file.path.split("/"):
            raise ArchiveFault(f"the record of {record.period} has {shown(file.path)}, which is no file of an archive")
        if is_topic and len(digits) != 2 * TOPIC_BYTES:
            raise ArchiveFault(f"the record of {record.period} has {shown(file.path)}, which is of no topic")
        topic = Topic(bytes.fromhex(digits)) if is_topic else None
        names = [self._archive / directory_of(record.period) / file.path]
        if record.snapshot:
            second = self._archive / snapshot_of(record) / file.path
            names.insert(0, second.with_suffix(""))
        return PlacedFile(DataFile(tuple(names), file.bytes, file.rows, file.sha256, topic), digits, file.path)


def _read_record(path: Path) -> PeriodRecord | None:
    """Read a period's record; None if it is gone.

    Raises:
        ArchiveError: it is damaged, or a later version made it.
        OSError: it cannot be read.
    """
    text = _read_text(path)
    return None if text is None else decode_record(text, str(path))


def _read_text(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_RECORD_BYTES + 1)
    except FileNotFoundError:
        return None
    if len(data) > MAX_RECORD_BYTES:
        raise ArchiveFault(f"{path} has more than {MAX_RECORD_BYTES} bytes")
    return data.decode(errors="replace")


def _summary(record: PeriodRecord, signature: Signature) -> _Read:
    if "/" in record.period or "/" in record.run:
        raise ArchiveFault(f"the record of {shown(record.period)} is of run {shown(record.run)}")
    held = [day for day in record.days.values() if day.fingerprint.rows]
    period = None
    if held and record.files:
        created = min(day.created_min for day in held), max(day.created_max for day in held)
        period = Period(record.period, record.run, created, signature)
    return _Read(period, (record.period, record.run), frozenset(record.replaces))


def _signature(status: os.stat_result) -> Signature:
    return status.st_ino, status.st_mtime_ns, status.st_size


def _names(folder: Path) -> set[str]:
    return {name for name in os.listdir(folder) if name.endswith(".json")}  # noqa: PTH208 - names are all that is wanted
