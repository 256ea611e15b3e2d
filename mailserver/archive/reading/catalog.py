"""Which periods the archive has, and which files are theirs, by its records alone.

A run of the compaction replaces a period's files and its record while the daemon reads. What was read of a record
stays right for a day: the files of a replaced period keep second names below `_snapshots` (`spark_export.archive`),
and those are opened first. Where the archive has no such names, a file that is gone means that its record is another
by now: whoever meets that looks again.

Everything here waits for the disk: it runs in a thread.
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from reprlib import repr as shown
from typing import Any, TypeVar

from mailserver.archive.holdings import ArchiveFault
from mailserver.archive.reading.row_groups import DataFile, FileGone
from mailserver.handoff.json_records import Record, count_of, field_of, read_record
from mailserver.waku.envelope import TOPIC_BYTES, Topic

VERSION = 1
SETTINGS_FILE = "_archive.json"
RECORDS = "_records"
SNAPSHOTS = "_snapshots"

MAX_RECORD_BYTES = 64 * 1024 * 1024
"""A month with a directory for each of its topics may have a hundred thousand files."""

_SETTLED_NS = 2 * 10**9
"""A folder's time of change tells two changes apart only if so much lies between them."""

_TOPIC = "topic"
_PREFIX = "topic_prefix"
_DIGITS = frozenset("0123456789abcdef")

T = TypeVar("T")

Signature = tuple[int, int, int]
"""Of a file that is only ever replaced: its number, when it was written, how long it is."""


@dataclass(frozen=True, slots=True)
class Period:
    """A period as its record has it. `created`: from when to when its envelopes were created, inclusive, Unix seconds.

    `record`: which one it was; the same again is the same files.
    """

    name: str
    run: str
    created: tuple[int, int]
    record: Signature


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A data file, and which topics it can have: those that begin with these hex digits."""

    file: DataFile
    prefix: str


@dataclass(frozen=True, slots=True)
class _Read:
    """What a record says: of which period it is, and which others it has taken the place of."""

    period: Period | None
    key: tuple[str, str]
    replaces: frozenset[tuple[str, str]]


class Catalog:
    """The periods of one archive. Several threads may look at once."""

    def __init__(self, archive: Path, is_expected: Callable[[], bool]) -> None:
        """Take where the archive is.

        Args:
            is_expected: whether there has ever been one, by other evidence. Else an empty folder, or none, is an
                archive of nothing: the first run of the compaction is yet to come.
        """
        self._archive = archive
        self._is_expected = is_expected
        self._lock = threading.Lock()
        self._has_been_seen = False
        self._settled: tuple[Signature, tuple[Period, ...]] | None = None
        self._records: dict[str, tuple[Signature, _Read]] = {}

    def periods(self) -> tuple[Period, ...]:
        """The periods that have envelopes, the last created first.

        Raises:
            ArchiveFault: the archive is gone, or cannot be read.
        """
        with self._lock:
            try:
                return self._periods()
            except OSError as error:
                cause = f"cannot read {error.filename or self._archive}: {error.strerror or error}"
                raise ArchiveFault(cause) from error

    def files(self, period: Period) -> tuple[PlacedFile, ...]:
        """The files of a period.

        Raises:
            FileGone: it has another record by now.
            ArchiveFault: the record cannot be read.
        """
        path = self._archive / RECORDS / f"{period.name}.json"

        def decode(record: Record) -> tuple[PlacedFile, ...]:
            if field_of(record, "run", str) != period.run:
                raise FileGone(f"{path} is another by now")
            has_snapshot = bool(record.get("snapshot"))
            files: Any = record.get("files")
            try:
                return tuple(self._placed(period, file, has_snapshot=has_snapshot) for file in files)
            except (TypeError, IndexError, KeyError) as error:
                raise ValueError(repr(error)) from error

        files = _read(path, decode)
        if files is None:
            raise FileGone(f"{path} is missing")
        return files

    def _periods(self) -> tuple[Period, ...]:
        folder = self._archive / RECORDS
        now = time.time_ns()
        try:
            before = _signature(folder.stat())
        except FileNotFoundError:
            return self._nothing()
        if self._settled is not None and self._settled[0] == before:
            return self._settled[1]
        if _read(self._archive / SETTINGS_FILE, lambda record: record) is None:
            return self._nothing()
        while True:  # a run may publish meanwhile: then a period could be missed that goes from one record to another
            found = self._all_records(folder)
            if _names(folder) == found.keys():
                break
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
        """All records; those that are as they were are not read again."""
        found = {}
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.name.endswith(".json"):
                    continue
                try:
                    signature = _signature(entry.stat())
                    known = self._records.get(entry.name)
                    if known is None or known[0] != signature:
                        read = _read(Path(entry.path), partial(_decode, signature))
                        if read is None:
                            continue
                        known = signature, read
                except FileNotFoundError:  # its period has become a part of another
                    continue
                found[entry.name] = known
        return found

    def _placed(self, period: Period, file: Any, *, has_snapshot: bool) -> PlacedFile:
        path, size, rows = str(file[0]), count_of("bytes", file[1]), count_of("rows", file[2])
        column, _, value = path.partition("/")[0].partition("=")
        digits = value.removeprefix("0x")
        if column not in (_TOPIC, _PREFIX) or not set(digits) <= _DIGITS or ".." in path.split("/"):
            raise ValueError(f"{shown(path)} is no file of an archive")
        topic = Topic(bytes.fromhex(digits)) if column == _TOPIC else None
        if topic is not None and len(topic) != TOPIC_BYTES:
            raise ValueError(f"{shown(path)} is no file of an archive")
        directory = f"date={period.name}"
        names = [self._archive / directory / path]
        if has_snapshot:
            second = self._archive / SNAPSHOTS / directory / f"run={period.run}" / path
            names.insert(0, second.with_suffix(""))
        return PlacedFile(DataFile(tuple(names), size, rows, topic), digits)


def _read(path: Path, decode: Callable[[Record], T]) -> T | None:
    return read_record(
        path,
        decode,
        version=VERSION,
        what="record of the archive",
        error=ArchiveFault,
        max_bytes=MAX_RECORD_BYTES,
    )


def _decode(signature: Signature, record: Record) -> _Read:
    name, run = field_of(record, "period", str), field_of(record, "run", str)
    try:
        days: Any = field_of(record, "days", dict).values()
        spans = [(_time(day["created_min"]), _time(day["created_max"])) for day in days if day["rows"]]
        replaces: Any = record["replaces"]
        pairs = frozenset((str(other), str(run)) for other, run in replaces)
    except (KeyError, TypeError) as error:
        raise ValueError(repr(error)) from error
    if "/" in name or "/" in run:
        raise ValueError(f"period {shown(name)} of run {shown(run)}")
    created = min((first for first, _ in spans), default=0), max((last for _, last in spans), default=0)
    period = Period(name, run, created, signature) if spans and record.get("files") else None
    return _Read(period, (name, run), pairs)


def _time(value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"a time is {shown(value)}")
    return value


def _signature(status: os.stat_result) -> Signature:
    return status.st_ino, status.st_mtime_ns, status.st_size


def _names(folder: Path) -> set[str]:
    return {name for name in os.listdir(folder) if name.endswith(".json")}  # noqa: PTH208 - names are all that is wanted
