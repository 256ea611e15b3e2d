"""The archive as the daemon sees it: whether a day of reception is there, before its rows are deleted here.

Names and sizes are compared with the archive's own records (`_records/PERIOD.json`, which the compaction writes); no
data file is opened. A day may lie in a period of its own, in a month, or, if rows came late, in both. Standard library
only, read-only.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mailserver.archive.errors import ArchiveBusy, ArchiveFault
from mailserver.files import open_descriptor, try_lock
from mailserver.handoff.json_records import Record, count_of, day_text, field_of, read_record

_VERSION = 1
_MAX_RECORD_BYTES = 64 * 1024 * 1024
"""A month with a directory for each of its topics may have a hundred thousand files."""

_LOCK_FILE = "_lock"
_RECORDS = "_records"


@dataclass(frozen=True, slots=True)
class _Period:
    """What a record says: `stores`, of the day in question, up to which `seq` it has a store's rows."""

    name: str
    run: str
    replaces: frozenset[tuple[str, str]]
    stores: Mapping[str, int]
    files: tuple[tuple[str, int], ...]


def local_folder(archive: str) -> Path | None:
    """The folder that the setting `archive` names; None where it names nothing that can be looked at from here."""
    parts = urlsplit(archive)
    if not archive or parts.scheme not in ("", "file") or parts.netloc:
        return None
    return Path(unquote(parts.path) if parts.scheme else archive)


def check_day(archive: Path, store_id: str, day: int, seq: int) -> None:
    """Look whether the archive holds a store's rows of a day of reception, up to a `seq`.

    Args:
        day: Unix seconds / 86400.
    Raises:
        ArchiveFault: it does not, or not every file is there with its size.
        ArchiveBusy: that cannot be told now.
    """
    try:
        with _left_alone(archive):
            name = day_text(day)
            found = [period for period in (_read(archive, name, day), _read(archive, name[:7], day)) if period]
            replaced = {pair for period in found for pair in period.replaces}
            found = [period for period in found if (period.name, period.run) not in replaced]
            held = next((period.stores[store_id] for period in found if store_id in period.stores), None)
            if held is None or held < seq:
                raise ArchiveFault(f"no record in {archive} says that it holds {name} of this store up to row {seq}")
            for period in found:
                _check_files(archive / f"date={period.name}", period)
    except OSError as error:
        raise ArchiveFault(f"cannot look at {error.filename or archive}: {error.strerror or error}") from error


@contextlib.contextmanager
def _left_alone(archive: Path) -> Iterator[None]:
    """Keep runs from changing the archive; a copy of one may have no lock."""
    if not archive.is_dir():
        raise ArchiveFault(f"{archive} is not there: is its disk mounted?")
    with contextlib.ExitStack() as stack:
        try:
            descriptor = stack.enter_context(open_descriptor(archive / _LOCK_FILE, os.O_RDONLY))
        except FileNotFoundError:
            yield
            return
        if not try_lock(descriptor, shared=True):
            raise ArchiveBusy("a run is at work on the archive")
        yield


def _read(archive: Path, name: str, day: int) -> _Period | None:
    def decode(record: Record) -> _Period:
        try:
            said = field_of(record, "days", dict).get(day_text(day))
            stores = {} if said is None else dict(said["stores"])
            files = tuple((str(path), count_of("bytes", size)) for path, size, *_ in record["files"])  # type: ignore[attr-defined]
            replaces = frozenset((str(period), str(run)) for period, run in record["replaces"])  # type: ignore[attr-defined]
        except (KeyError, TypeError) as error:
            raise ValueError(repr(error)) from error
        return _Period(
            name=field_of(record, "period", str),
            run=field_of(record, "run", str),
            replaces=replaces,
            stores={str(store): count_of("seq", seq) for store, seq in stores.items()},
            # A month without that day says nothing of it.
            files=() if said is None else files,
        )

    return read_record(
        archive / _RECORDS / f"{name}.json",
        decode,
        version=_VERSION,
        what="record of the archive",
        error=ArchiveFault,
        max_bytes=_MAX_RECORD_BYTES,
    )


def _check_files(folder: Path, period: _Period) -> None:
    for path, size in period.files:
        file = folder / path
        try:
            there = file.stat().st_size
        except FileNotFoundError:
            raise ArchiveFault(f"{file} is missing") from None
        if there != size:
            raise ArchiveFault(f"{file} has {there} bytes instead of {size}")
