"""Reads the records: which periods the archive has, and which files belong to each.

A run of the compaction may replace a period's files and its record while the daemon reads. The old record can be used
for another day: the files of a replaced period keep second names below `_snapshots` (`mailserver.archive.paths`), and
the daemon opens those first. In an archive without second names, a missing file means that the period has a new record.
The reader then looks at the records again.

A record that is not whole, or cannot be read, keeps to itself: nobody knows what its period holds, but nothing of it
was created after the period had ended. So what was created later is answered, and whatever needs that period fails. The
settings of the archive say nothing that a reader needs, only that no later version has made it.

Everything here waits for the disk, so it runs in a thread.
"""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from reprlib import repr as shown

from mailserver.archive.days import end_of_period
from mailserver.archive.errors import ArchiveError, ArchiveFault, ArchiveFileUnreadable, RecordDamaged
from mailserver.archive.files import FileVersion, ReadableFiles
from mailserver.archive.layout import TOPIC_PREFIX
from mailserver.archive.manifest import FileRecord, PeriodRecord, decode_record, decode_settings
from mailserver.archive.paths import RECORDS, SETTINGS_FILE, directory_of, index_of, record_of, snapshot_of
from mailserver.archive.reading.indexed import IndexFile
from mailserver.archive.reading.row_groups import DataFile, FileGone
from mailserver.units import SECONDS_PER_DAY
from mailserver.waku.envelope import TOPIC_BYTES, Topic

_SETTLED_S = 2.0
"""A folder's time of change tells two changes apart only if they are at least this far apart."""

_CLOCKS_DIFFER_S = 3600.0
"""A folder that is older than this by our clock was not changed just now, by the clock of any server that has it."""

ATTEMPTS = 10
"""How often the records are listed again because a run is publishing."""

RETRY_S = 10.0
"""How soon a record that could not be read is tried again though it has not changed. A disk may take long to fail."""

MAX_AHEAD_S = SECONDS_PER_DAY
"""No envelope was created this long after it was received. The mailserver takes in what is seconds ahead of its clock;
a day leaves room for a clock that was wrong."""

_TOPIC = "topic"
_DIGITS = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class Period:
    """A period as its record describes it.

    `created`: when its first and its last envelope were created, Unix seconds, inclusive. `record`: the version of the
    record; the same version means the same files. `files`: how many it has. `damage`: why its record cannot be read; ""
    if it can. Else nobody knows which run has written it, and `created` is when envelopes of such a period may have
    been created.
    """

    name: str
    run: str
    created: tuple[int, int]
    record: FileVersion
    files: int = 0
    damage: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """What an archive has.

    `periods`: those that have envelopes; the one with the newest envelope comes first. `damage`: what is wrong with its
    settings, and with records. `looked_at`: how many records had to be looked at to see that.
    """

    periods: tuple[Period, ...] = ()
    damage: tuple[str, ...] = ()
    looked_at: int = 0


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
    """The parts of a record that the catalog needs: its period, the periods that it replaces, and why it cannot be
    read; "" if it can.

    `again_at`: when it is read again though it has not changed, by `time.monotonic`; None if that would be in vain.
    """

    period: Period | None
    key: tuple[str, str]
    replaces: frozenset[tuple[str, str]]
    damage: str = ""
    again_at: float | None = None


class Catalog:
    """The periods of one archive. Several threads may use it at the same time, but only one lists them."""

    def __init__(self, files: ReadableFiles, is_expected: Callable[[], bool]) -> None:
        """Describe an archive.

        Args:
            is_expected: tells whether other evidence shows that the archive exists. If not, one that is empty or
                missing counts as an empty archive: the compaction has not run yet.
        """
        self._files = files
        self._is_expected = is_expected
        self._lock = threading.Lock()
        self._has_been_seen = False
        self._settled: FileVersion | None = None
        self._first_seen: tuple[FileVersion | None, float] = None, 0.0
        self._listed: dict[str, FileVersion] = {}
        self._current = Listing()
        self._records: dict[str, tuple[FileVersion, _Read]] = {}

    def listing(self) -> Listing:
        """Look what there is. Records that have not changed are not read again.

        Raises:
            ArchiveError: the archive is missing, cannot be read, or a later version made it; or a listing that was
                given up still waits for the disk.
        """
        if not self._lock.acquire(blocking=False):  # the threads are for those who can be answered
            raise ArchiveFault(f"{self._files.where(RECORDS)} is still being listed")
        try:
            return self._listing()
        finally:
            self._lock.release()

    def files(self, period: Period) -> PeriodFiles:
        """Return the files of a period.

        Raises:
            FileGone: the period has a newer record.
            ArchiveError: the record cannot be read.
        """
        if period.damage:
            raise ArchiveFault(period.damage)
        name = record_of(period.name)
        text = self._files.read(name)
        record = None if text is None else decode_record(text, self._files.where(name))
        if record is None or record.run != period.run:
            self._settled = None  # it may have been written in its place, as by `cp`: no name in the folder has changed
            raise FileGone(f"{self._files.where(name)} has been replaced")
        index = None
        if record.index is not None:
            index = IndexFile(self._files, index_of(record.period, record.run), record.index)
        return PeriodFiles(tuple(self._placed(record, file) for file in record.files), index)

    def _listing(self) -> Listing:
        now, wall = time.monotonic(), time.time()
        before = self._files.state(RECORDS)
        if before is not None and before == self._settled:
            return self._current
        self._settled = None
        if before != self._first_seen[0]:
            self._first_seen = before, now
        listed = self._versions()
        is_known = listed == self._listed and not self._current.damage  # what is damaged may be put back in its place
        if not listed or (not is_known and not self._read_all(listed)):
            if self._has_been_seen or self._is_expected():
                raise ArchiveFault(f"there is no archive at {self._files.where('')}: {self._files.absence}")
            return Listing()
        self._has_been_seen = True
        if self._is_at_rest(before, now, wall) and not self._current.damage:
            self._settled = before
        return replace(self._current, looked_at=len(listed))

    def _is_at_rest(self, state: FileVersion | None, now: float, wall: float) -> bool:
        """Whether the folder is as it was at these times, and any later change has made, or will make, another state.
        Our clock does not tell that alone: it may be seconds ahead of the clock of whoever keeps the folder."""
        if state is None or state != self._files.state(RECORDS):
            return False
        return now - self._first_seen[1] > _SETTLED_S or wall - state[1] / 1e9 > _CLOCKS_DIFFER_S

    def _read_all(self, listed: dict[str, FileVersion]) -> bool:
        """Read all records that are `listed`; return whether there is an archive."""
        where, damage = self._files.where(SETTINGS_FILE), []
        try:
            settings = self._files.read(SETTINGS_FILE)
            if settings is None:  # a run makes it anew, if there are records
                damage.append(f"{where} is missing")
            else:
                decode_settings(settings, where)
        except (RecordDamaged, ArchiveFileUnreadable) as error:
            damage.append(str(error))
        for _ in range(ATTEMPTS):
            found = self._all_records(listed)
            before, listed = listed, self._versions()
            found |= self._missing(before, listed, found)
            if found.keys() == listed.keys():
                break
        else:  # a period that moves from one record to another could be missed
            raise ArchiveFault(f"{self._files.where(RECORDS)} changes all the time")
        replaced = {pair for _, read in found.values() for pair in read.replaces}
        periods = [read.period for _, read in found.values() if read.key not in replaced and read.period is not None]
        periods.sort(key=lambda period: (period.created[1], period.name), reverse=True)
        damage += sorted(read.damage for _, read in found.values() if read.damage)
        self._current = Listing(tuple(periods), tuple(damage))
        self._records = found
        self._listed = {name: version for name, (version, _) in found.items()}
        return bool(found)

    def _all_records(self, listed: dict[str, FileVersion]) -> dict[str, tuple[FileVersion, _Read]]:
        """Read records. Those that have not changed are not read again."""
        now = time.monotonic()
        found = {
            name: (version, read)
            for name, (version, read) in self._records.items()
            if listed.get(name) == version and (read.again_at is None or now < read.again_at)
        }
        for path, text in self._files.read_each([f"{RECORDS}/{name}" for name in listed if name not in found]):
            if text is None:  # a run has merged its period into another, or it is a link: see `_missing`
                continue
            name = path.removeprefix(f"{RECORDS}/")
            version = listed[name]
            try:
                if isinstance(text, ArchiveError):
                    raise text
                read = _summary(decode_record(text, self._files.where(path)), name, self._files.where(path), version)
            except ArchiveError as error:
                again_at = time.monotonic() + RETRY_S if isinstance(error, ArchiveFileUnreadable) else None
                read = _unknown(name, version, str(error), again_at)
            found[name] = self._records[name] = version, read  # kept even if a later one cannot be read
        return found

    def _missing(
        self, before: Mapping[str, FileVersion], now: Mapping[str, FileVersion], found: Mapping[str, object]
    ) -> dict[str, tuple[FileVersion, _Read]]:
        """Records that were listed alike before and after they were read, and yet were not there. What a run removes is
        not listed any more, and what it replaces is listed as another version."""
        missing = {}
        for name, version in before.items():
            if name not in found and now.get(name) == version:
                cause = (
                    f"{self._files.where(f'{RECORDS}/{name}')} is listed, but missing: is it a link to what is gone?"
                )
                missing[name] = version, _unknown(name, version, cause, time.monotonic())
        self._records |= missing
        return missing

    def _versions(self) -> dict[str, FileVersion]:
        return {name: version for name, version in self._files.versions(RECORDS).items() if name.endswith(".json")}

    def _placed(self, record: PeriodRecord, file: FileRecord) -> PlacedFile:
        column, _, value = file.path.partition("/")[0].partition("=")
        digits = value.removeprefix("0x")
        is_topic = column == _TOPIC
        if column not in (_TOPIC, TOPIC_PREFIX) or not set(digits) <= _DIGITS or ".." in file.path.split("/"):
            raise ArchiveFault(f"the record of {record.period} has {shown(file.path)}, which is no file of an archive")
        if is_topic and len(digits) != 2 * TOPIC_BYTES:
            raise ArchiveFault(f"the record of {record.period} has {shown(file.path)}, which is of no topic")
        topic = Topic(bytes.fromhex(digits)) if is_topic else None
        names = [f"{directory_of(record.period)}/{file.path}"]
        if record.snapshot:
            names.insert(0, f"{snapshot_of(record)}/{file.path.removesuffix('.parquet')}")
        return PlacedFile(
            DataFile(self._files, tuple(names), file.bytes, file.rows, file.sha256, topic), digits, file.path
        )


def _summary(record: PeriodRecord, name: str, where: str, version: FileVersion) -> _Read:
    if f"{record.period}.json" != name or "/" in record.run:
        raise ArchiveFault(f"{where} is the record of {shown(record.period)} by run {shown(record.run)}")
    held = [day for day in record.days.values() if day.fingerprint.rows]
    period = None
    if held and record.files:
        created = min(day.created_min for day in held), max(day.created_max for day in held)
        period = Period(record.period, record.run, created, version, len(record.files))
    return _Read(period, (record.period, record.run), frozenset(record.replaces))


def _unknown(file: str, version: FileVersion, damage: str, again_at: float | None) -> _Read:
    """What is known of a record that cannot be read: when its period ended, by its name. No run gives other names."""
    name, period = file.removesuffix(".json"), None
    with suppress(ValueError):
        period = Period(name, "", (0, end_of_period(name) - 1 + MAX_AHEAD_S), version, damage=damage)
    return _Read(period, (name, ""), frozenset(), damage, again_at)
