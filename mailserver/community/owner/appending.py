"""Appending history archives to a community's `data`, so that a kill at any moment loses nothing and changes nothing.

`data` is appended to and synced first, then the ids are written, then `index.next`: by that the archives are there.
What stands in `data` beyond it was never published, and the next run cuts it off. Only the job appends, under its lock;
the service makes `index` of `index.next` at any time, which changes nothing here.
"""

import contextlib
import hashlib
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mailserver.communities.checking import HistoryFinding, check_index
from mailserver.communities.formats import EncodedArchive, Format, TimeRange
from mailserver.communities.index import HistoryIndex, IndexEntry, IndexRoom, decode_index, encode_index, entry_of
from mailserver.community.owner.folders import CommunityFolder
from mailserver.community.owner.published_ids import ArchiveIds, encode_ids, load_ids
from mailserver.community.owner.record import CommunityError
from mailserver.errors import DecodeError
from mailserver.files import PRIVATE_FILE, open_descriptor, write_whole

log = logging.getLogger(__name__)

DAMAGED = ".damaged"
"""What is added to the name of a file that is set aside."""


@dataclass(frozen=True, slots=True)
class NewArchive:
    """A history archive to be appended, and the keys of its envelopes (`published_ids`)."""

    encoded: EncodedArchive
    keys: bytes


@dataclass(frozen=True, slots=True)
class Made:
    """What is there of a community: the entries of its history archives, and the ids of each."""

    entries: tuple[IndexEntry, ...] = ()
    ids: tuple[ArchiveIds, ...] = ()

    @property
    def end(self) -> int:
        """How long `data` is."""
        return self.entries[-1].end if self.entries else 0

    @property
    def ranges(self) -> frozenset[TimeRange]:
        """The ranges that have an archive."""
        return frozenset(entry.time_range for entry in self.entries)


def read_made(folder: CommunityFolder, form: Format) -> Made:
    """Look at what is there, and cut off what a killed run has left at the end of `data`.

    Raises:
        CommunityError: the index or `data` cannot be read, or is damaged.
    """
    with _explained(folder):
        entries = _entries(folder, form)
        end = entries[-1].end if entries else 0
        with _data(folder) as data:
            length = os.fstat(data.fileno()).st_size
            if length < end:
                raise CommunityError(f"{folder.data} has {length} bytes, and {end} of them were published")
            if length > end:
                log.info("unpublished end cut off community=%s bytes=%d", folder.path.name, length - end)
                os.ftruncate(data.fileno(), end)
                os.fsync(data.fileno())
            ids, made = load_ids(folder.ids, form, entries, lambda entry: _read(data, entry))
        if made:
            log.info("published ids made again community=%s archives=%d", folder.path.name, made)
    return Made(entries, tuple(ids))


def append(folder: CommunityFolder, form: Format, made: Made, archives: Iterable[NewArchive]) -> Made:
    """Append archives, in this order. All of them are there when this returns, or none of them after a kill.

    Those for which the index has no room are left out: members would refuse all of it.

    Args:
        made: what `read_made` has found, or the last call of this has returned.
    Raises:
        CommunityError: a file cannot be written.
    """
    entries, ids = [*made.entries], [*made.ids]
    room, ranges = IndexRoom(form, entries), made.ranges
    with _explained(folder):
        with _data(folder) as data:
            data.seek(made.end)
            for archive in archives:
                content = archive.encoded.data
                entry = entry_of(form, archive.encoded, data.tell())
                if not room.add(entry, is_late=entry.time_range in ranges):
                    continue
                data.write(content)
                entries.append(entry)
                ids.append(ArchiveIds(entry.offset, entry.size, hashlib.sha256(content).digest(), archive.keys))
            data.flush()
            os.fsync(data.fileno())
        after = Made(tuple(entries), tuple(ids))
        if after.end > made.end:
            write_whole(folder.ids, encode_ids(ids))
            write_whole(folder.next_index, encode_index(form, entries))
    return after


def read_index(path: Path) -> HistoryIndex | None:
    """Read an index; None if there is none.

    Raises:
        OSError: it cannot be read.
        DecodeError: it is damaged.
    """
    try:
        return decode_index(path.read_bytes())
    except FileNotFoundError:
        return None


def read_next_index(folder: CommunityFolder) -> HistoryIndex | None:
    """Read what is to be published next; None if there is nothing. A damaged file is set aside: it can be made again.

    Raises:
        OSError: it cannot be read.
    """
    path = folder.next_index
    try:
        index = read_index(path)
        if index is None or not (findings := _findings(index)):
            return index
        cause = findings[0].detail
    except DecodeError as error:
        cause = str(error)
    log.error("damaged index set aside file=%s cause=%s", path, cause)
    with contextlib.suppress(FileNotFoundError):  # somebody else has done it
        path.rename(path.with_name(path.name + DAMAGED))
    return None


def read_published_index(folder: CommunityFolder) -> HistoryIndex | None:
    """Read what is published; None if nothing is.

    Raises:
        CommunityError: it is damaged.
        DecodeError: so it is.
        OSError: it cannot be read.
    """
    index = read_index(folder.index)
    if index is not None and (findings := _findings(index)):
        raise CommunityError(f"{folder.index} is damaged: {findings[0].detail}")
    return index


def _findings(index: HistoryIndex) -> list[HistoryFinding]:
    return check_index(index, index.entries[-1].end if index.entries else 0)


def _entries(folder: CommunityFolder, form: Format) -> tuple[IndexEntry, ...]:
    """The newest entries. The service may rename the one index to the other between the two looks."""
    index = read_next_index(folder) or read_published_index(folder)
    if index is None:
        return ()
    if index.entries and index.format_name != form.name:
        raise CommunityError(f"{folder.path} has the format {index.format_name}, and the community {form.name}")
    return index.entries


@contextlib.contextmanager
def _data(folder: CommunityFolder) -> Iterator[BinaryIO]:
    with (
        open_descriptor(folder.data, os.O_RDWR | os.O_CREAT, PRIVATE_FILE) as descriptor,
        os.fdopen(descriptor, "r+b", closefd=False) as file,
    ):
        yield file


def _read(data: BinaryIO, entry: IndexEntry) -> bytes:
    data.seek(entry.offset)
    return data.read(entry.size)


@contextlib.contextmanager
def _explained(folder: CommunityFolder) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CommunityError(f"cannot use {error.filename or folder.path}: {error.strerror or error}") from error
    except DecodeError as error:
        raise CommunityError(f"{folder.path} is damaged: {error}") from error
