"""The folder of a LevelDB: which files its database is in at one moment. Nothing is changed there.

Whoever has the database open may write it meanwhile: the lock in the folder is left alone. Tables are never changed,
journals and manifests only grow. What is in tables is deleted only after the manifest says where it is now. So what is
found is whole if the manifest is the same afterwards, and if a table has gone, it was replaced: look again.

If the manifest is damaged, all files count, as when LevelDB repairs a database: what was deleted may be there again.
"""

import contextlib
import os
import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from mailserver.errors import DecodeError, StoreError
from mailserver.leveldb.batch import TooManyEntries, decode_batch
from mailserver.leveldb.entries import BEFORE_ALL, Entry, EntryOrder, UnreadablePiece
from mailserver.leveldb.manifest import COMPARATOR, Version
from mailserver.leveldb.merge import Items, SortedRun, newest
from mailserver.store.leveldb.files import MAX_KEPT_BYTES, TableFile, read_records

MAX_JOURNALS_BYTES = 256 * 1024 * 1024
"""Their entries are held in memory. A Go mailserver begins a new one after 4 MiB, and writes those before to tables."""

MAX_JOURNAL_ENTRIES = 1_000_000
"""How many they may have: each takes some 200 bytes of memory beside its value. Those 4 MiB have 110,000 at most."""

MAX_LOOKS = 20
"""How often the folder is looked at until it does not change meanwhile."""

_CURRENT = "CURRENT"
_MAX_CURRENT_BYTES = 64
_NAMES_MANIFEST = re.compile(rb"(MANIFEST-(\d{1,18}))\n")
_JOURNAL = re.compile(r"(\d{1,18})\.log")
_TABLE = re.compile(r"(\d{1,18})\.(?:ldb|sst)")


class _Files(NamedTuple):
    """The files in a folder, by their numbers."""

    journals: dict[int, Path]
    tables: dict[int, Path]


class _Table(NamedTuple):
    """A table. `first`: the place of its first entry, if it is known. `path`: None: it is not there."""

    number: int
    first: EntryOrder | None
    path: Path | None


@dataclass(slots=True)
class _Found:
    """What was found out about a database, without what is in its tables."""

    unreadable: list[UnreadablePiece] = field(default_factory=list)
    tables: list[_Table] = field(default_factory=list)
    written: list[Entry] = field(default_factory=list)
    """The entries of journals, in the order of entries."""
    total_bytes: int = 0


class LevelDbContents:
    """What a database has at one moment, without what is written later. Made by `look_into`."""

    def __init__(self, found: _Found) -> None:
        self._found = found
        self.total_bytes = found.total_bytes
        """How long its files are."""
        self.read_bytes = 0
        """How much of that has been read."""

    def entries(self, after: bytes | None) -> Items:
        """The entries behind a key, or all, in the order of their keys; and what cannot be read.

        Raises:
            TableGone: look into the folder again.
            OSError: a file cannot be opened.
        """
        yield from self._found.unreadable
        runs = [SortedRun(BEFORE_ALL, partial(iter, self._found.written))]
        for table in self._found.tables:
            if table.path is None:
                yield UnreadablePiece(f"{table.number:06}.ldb", table.number, 0, b"", "it is not there")
            else:
                first = _first_of(table.path, table.number) if table.first is None else table.first
                runs.append(SortedRun(first, partial(self._read, table.path, table.number, first, after)))
        for item in newest(runs):
            if isinstance(item, UnreadablePiece) or after is None or item.key > after:
                yield item

    def _read(self, path: Path, number: int, first: EntryOrder, after: bytes | None) -> Items:
        with contextlib.closing(TableFile(path, number)) as file:
            index = file.index()
            if isinstance(index, UnreadablePiece):
                yield index
                return
            above = first[0], first[1] - 1
            for row in index:
                if after is None or row.upper[0] > after:
                    found = file.block(above, row)
                    if isinstance(found, UnreadablePiece):
                        yield found
                    else:
                        yield from found
                self.read_bytes += row.handle.size
                above = row.upper


def _first_of(path: Path, number: int) -> EntryOrder:
    """The place of a table's first entry; that before all, if it cannot be read."""
    with contextlib.closing(TableFile(path, number)) as file:
        index = file.index()
        if isinstance(index, list) and index:
            entries = file.block(None, index[0])
            if isinstance(entries, list) and entries:
                return entries[0].key, -entries[0].sequence
    return BEFORE_ALL


def look_into(folder: Path) -> LevelDbContents:
    """Find out what the database in a folder is in.

    Raises:
        StoreError: there is none, or not a Go mailserver's; or it cannot be read, or changes all the time.
    """
    try:
        for _ in range(MAX_LOOKS):
            before = _manifest_now(folder)
            found = _look(folder)
            if found is not None and _manifest_now(folder) == before:
                return LevelDbContents(found)
    except OSError as error:
        raise StoreError(f"cannot read the LevelDB in {folder}: {error.strerror or error}") from error
    raise StoreError(f"the LevelDB in {folder} changes all the time: stop its mailserver, and try again")


def _look(folder: Path) -> _Found | None:
    """What the database is in; None if a file of it has gone meanwhile."""
    found = _Found()
    version = _read_manifest(folder, found.unreadable)
    files = _files_in(folder)
    if version is None and not files.journals and not files.tables:
        raise StoreError(f"there is no LevelDB in {folder}")
    if version is not None and version.comparator != COMPARATOR:
        raise StoreError(f"the LevelDB in {folder} is not a Go mailserver's: its keys are in another order")
    journals = sorted(
        (number, path) for number, path in files.journals.items() if version is None or version.has_journal(number)
    )
    if version is None:
        found.tables = [_Table(number, None, path) for number, path in files.tables.items()]
    else:
        if version.journal and version.journal not in files.journals:
            found.unreadable.append(
                UnreadablePiece(f"{version.journal:06}.log", version.journal, 0, b"", "it is not there")
            )
        found.tables = [_Table(each.number, each.first, files.tables.get(each.number)) for each in version.tables]
    try:
        journal_bytes = sum(path.stat().st_size for _, path in journals)
        if journal_bytes > MAX_JOURNALS_BYTES:
            raise StoreError(
                f"the LevelDB in {folder} has {journal_bytes} bytes of journals: start its mailserver once, "
                "which writes them to tables"
            )
        found.total_bytes = sum(table.path.stat().st_size for table in found.tables if table.path) + journal_bytes
        for number, path in journals:
            _read_written(path, number, found)
    except FileNotFoundError:
        return None
    except TooManyEntries as error:
        raise StoreError(
            f"the LevelDB in {folder} has more than {MAX_JOURNAL_ENTRIES} entries in journals: start its mailserver "
            "once, which writes them to tables"
        ) from error
    found.written.sort(key=lambda entry: (entry.key, -entry.sequence))
    return found


def _read_written(path: Path, number: int, found: _Found) -> None:
    """Add what a journal has.

    Raises:
        FileNotFoundError: it is not there.
        TooManyEntries: all of them have more than MAX_JOURNAL_ENTRIES, what cannot be read included.
    """
    for record in read_records(path, number, may_be_torn=True):
        left = MAX_JOURNAL_ENTRIES - len(found.written) - len(found.unreadable)
        if left <= 0:
            raise TooManyEntries
        if isinstance(record, UnreadablePiece):
            found.unreadable.append(record)
            continue
        try:
            found.written += decode_batch(record.content, left)
        except DecodeError as error:
            kept = record.content[:MAX_KEPT_BYTES]
            found.unreadable.append(UnreadablePiece(path.name, number, record.at, kept, str(error)))


def _files_in(folder: Path) -> _Files:
    files = _Files({}, {})
    for path in folder.iterdir():
        if match := _JOURNAL.fullmatch(path.name):
            files.journals[int(match[1])] = path
        elif match := _TABLE.fullmatch(path.name):
            files.tables[int(match[1])] = path
    return files


def _read_current(folder: Path) -> bytes:
    """What says which manifest is in use. Raises FileNotFoundError: there is none."""
    with (folder / _CURRENT).open("rb") as file:
        return file.read(_MAX_CURRENT_BYTES)


def _manifest_now(folder: Path) -> tuple[bytes, int] | None:
    """Which manifest is in use, and how long it is; None if that is not known."""
    with contextlib.suppress(FileNotFoundError):
        said = _read_current(folder)
        if match := _NAMES_MANIFEST.fullmatch(said):
            return said, (folder / os.fsdecode(match[1])).stat().st_size
    return None


def _read_manifest(folder: Path, unreadable: list[UnreadablePiece]) -> Version | None:
    """What the manifest says; None if anything of it is damaged."""
    try:
        said = _read_current(folder)
    except FileNotFoundError:
        unreadable.append(UnreadablePiece(_CURRENT, 0, 0, b"", "it is not there"))
        return None
    match = _NAMES_MANIFEST.fullmatch(said)
    if match is None:
        unreadable.append(UnreadablePiece(_CURRENT, 0, 0, said, "it names no manifest"))
        return None
    name, number = os.fsdecode(match[1]), int(match[2])
    version, before = Version(), len(unreadable)
    try:
        for record in read_records(folder / name, number, may_be_torn=False):
            if isinstance(record, UnreadablePiece):
                unreadable.append(record)
                continue
            try:
                version.apply(record.content)
            except DecodeError as error:
                unreadable.append(UnreadablePiece(name, number, record.at, record.content[:MAX_KEPT_BYTES], str(error)))
    except FileNotFoundError:
        unreadable.append(UnreadablePiece(name, number, 0, b"", "it is not there"))
    if len(unreadable) == before and not version.comparator:
        unreadable.append(UnreadablePiece(name, number, 0, b"", "it does not say in which order keys are"))
    return version if len(unreadable) == before else None
