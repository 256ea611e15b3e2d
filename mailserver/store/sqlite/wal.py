"""The log of a store (`-wal`), read without SQLite: where its pages are, and whether something committed is lost.

SQLite uses a log up to the first frame that does not match its checksum, and silently drops the rest. After a power cut
the rest is the end of a transaction that was never confirmed. But it may be damage. Then it is followed by frames that
were only written once the transaction was on disk; or the log's index (`-shm`), which a killed daemon leaves, lists
more frames.

Format: SQLite, "Database File Format", 4; "WAL-mode File Format", 2.1.
"""

import contextlib
import os
import struct
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

from mailserver.files import open_descriptor

_HEADER = struct.Struct(">8I")  # magic, format, page size, sequence, salt 1 and 2, checksum 1 and 2
_FRAME = struct.Struct(">6I")  # page, size of the database in pages after a commit, else 0; salts; checksums
_MAGICS = {0x377F0682: "little", 0x377F0683: "big"}
"""The byte order in which checksums are made."""
_FORMAT = 3_007_000
_INDEX_BYTES = 48
PAGE_SIZES = {2**n for n in range(9, 17)}

_SECTOR_BYTES = 512
"""What a disk writes whole, at least."""

_LOOKS = 3
_REWRITE_BYTES = 1024 * 1024


class _Frame(NamedTuple):
    """A frame of the file. `commit`: if it ends a transaction, the database's size in pages after it, else 0."""

    number: int
    page: int
    commit: int
    is_right: bool
    """It belongs to the log's header, and its checksum continues that of the frame before."""


@dataclass(slots=True)
class Log:
    """What a log holds.

    `frames`: how many frames SQLite uses; `offsets`: for each page in them, where in the file its latest image begins;
    `firsts`: its image of the first transaction that has it; `page_count`: the database's size in pages after them.
    `damage`: why committed transactions after these are lost, in words; "" if none are. `left`: like `offsets`, for
    frames that SQLite does not use although each is whole.
    """

    page_bytes: int
    frames: int = 0
    page_count: int = 0
    offsets: dict[int, int] = field(default_factory=dict)
    firsts: dict[int, int] = field(default_factory=dict)
    damage: str = ""
    left: dict[int, int] = field(default_factory=dict)


def wal_file(store: Path) -> Path:
    """Where SQLite keeps the log of a store: beside the file, or, if the store's name is a link, beside its target."""
    return _beside(store, "-wal")


def index_file(store: Path) -> Path:
    """Where SQLite keeps the index of a store's log: beside the log."""
    return _beside(store, "-shm")


def _beside(store: Path, ending: str) -> Path:
    if store.is_symlink():
        store = store.resolve()
    return store.with_name(f"{store.name}{ending}")


def has_content(log: Path) -> bool:
    """Whether there is a log that is not empty: then the file alone is not the store."""
    return log.exists() and log.stat().st_size > 0


def has_commit(store: Path) -> bool:
    """Whether there is a log with a whole transaction in it: then the file alone is not the store.

    SQLite tries for ten seconds, and fails, if it may not write an index and the log has nothing to read.

    Raises:
        OSError: it cannot be read.
    """
    with contextlib.suppress(FileNotFoundError), wal_file(store).open("rb") as file:
        header = file.read(_HEADER.size)
        is_right, order, page_bytes, sums = _read_header(header)
        if is_right:
            size = os.fstat(file.fileno()).st_size
            for frame in _frames(file, size, page_bytes, order, header[16:24], sums):
                if frame.commit or not frame.is_right:
                    return frame.is_right
    return False


def read_log(store: Path, default_page_bytes: int) -> Log | None:
    """Read the log of a store; None if there is none, or it is empty.

    A daemon may write it meanwhile: damage that is gone at a second look was none.

    Args:
        default_page_bytes: the page size to assume if the log's header is damaged.
    Raises:
        OSError: it cannot be read.
    """
    log = None
    for _ in range(_LOOKS):
        try:
            with wal_file(store).open("rb") as file:
                log = _read(file, store, default_page_bytes)
        except FileNotFoundError:
            return None
        if log is None or not log.damage:
            break
    return log


def write_again(store: Path) -> None:
    """Write all of a log again, unchanged, and sync it. Nobody else may write it meanwhile.

    What a killed process has left may never have been synced, or its sync has failed. Then Linux keeps it in memory but
    believes it to be written: after a power cut it would be gone, with everything that is confirmed after it.

    Raises:
        OSError: it cannot be written.
    """
    try:
        with open_descriptor(wal_file(store), os.O_RDWR) as descriptor:
            at = 0
            while part := os.pread(descriptor, _REWRITE_BYTES, at):
                at += os.pwrite(descriptor, part, at)
            os.fsync(descriptor)
    except FileNotFoundError:
        pass


def _read(file: BinaryIO, store: Path, default_page_bytes: int) -> Log | None:
    index = _salted_index(store)  # read first: a daemon that writes meanwhile only adds to the log
    size = os.fstat(file.fileno()).st_size
    header = file.read(_HEADER.size)
    if not header:
        return None
    is_right, order, page_bytes, sums = _read_header(header)
    log = Log(page_bytes if is_right else default_page_bytes)
    salts, reading = header[16:24], is_right
    pending: dict[int, int] = {}
    lost = Log(log.page_bytes)  # what SQLite does not use, as far as it was committed
    commits_left, after_commit = 0, False
    if not is_right:  # then the first frame says which frames belong together
        salts = os.pread(file.fileno(), 8, _HEADER.size + 8)
    for frame in _frames(file, size, log.page_bytes, order, salts, sums):
        offset = _HEADER.size + (frame.number - 1) * (_FRAME.size + log.page_bytes) + _FRAME.size
        if reading and frame.is_right and frame.page:
            pending[frame.page] = offset
            if frame.commit:
                log.frames, log.page_count = frame.number, frame.commit
                log.offsets.update(pending)
                for page, at in pending.items():
                    log.firsts.setdefault(page, at)
                pending.clear()
            continue
        if reading:
            reading = False
            pending.clear()
        if frame.is_right and frame.page:
            log.left[frame.page] = offset
            commits_left += after_commit  # a frame after a commit was written when that was on disk
        # The first frame's checksum continues that of the header, and says nothing if that is damaged.
        if frame.page and (frame.is_right or frame.number == 1):
            pending[frame.page] = offset
            if frame.commit:
                lost.page_count = frame.commit
                lost.offsets.update(pending)
                pending.clear()
        # Of a header in two sectors, a power cut may have written the commit beside the checksum of an older frame that
        # was never committed, and which older frames follow.
        after_commit = frame.commit > 0 and (frame.is_right or not _is_in_two_sectors(offset - _FRAME.size))
    if not is_right and log.left:  # else it is not a log at all
        if not _is_in_file(store, file, lost):
            log.damage = "its beginning is damaged: SQLite takes nothing of it"
    elif commits_left:
        log.damage = f"it is damaged at frame {log.frames + 1}, and committed transactions follow"
    elif index is not None and index[0] == salts and index[1] > log.frames:
        log.damage = f"it is cut off or damaged: {index[1]} frames were committed, {log.frames} are left"
    return log


def _is_in_two_sectors(header_offset: int) -> bool:
    """Whether a power cut may tear the header of a frame. Frames are not aligned, and every 32nd one's is cut so."""
    return header_offset % _SECTOR_BYTES > _SECTOR_BYTES - _FRAME.size


def _is_in_file(store: Path, file: BinaryIO, log: Log) -> bool:
    """Whether the store's file has all pages of a log as the log has them: then nothing is lost with the log.

    This is so after a power cut while SQLite started the log anew: its beginning is torn, and the rest is older and was
    in the file before.
    """
    try:
        with store.open("rb") as pages:
            return all(
                os.pread(pages.fileno(), log.page_bytes, (page - 1) * log.page_bytes)
                == os.pread(file.fileno(), log.page_bytes, offset)
                for page, offset in log.offsets.items()
                if page <= log.page_count
            )
    except FileNotFoundError:
        return False


def _read_header(header: bytes) -> tuple[bool, str, int, tuple[int, int]]:
    """Whether a header is as SQLite writes it; its byte order of checksums, its page size, and its checksums."""
    if len(header) < _HEADER.size:
        return False, "big", 0, (0, 0)
    magic, form, page_bytes, _, _, _, *stored = _HEADER.unpack(header)
    order = _MAGICS.get(magic, "little")
    sums = _checksum(header[:24], order, (0, 0))
    is_right = magic in _MAGICS and form == _FORMAT and page_bytes in PAGE_SIZES and sums == tuple(stored)
    return is_right, order, page_bytes, sums


def _frames(
    file: BinaryIO, size: int, page_bytes: int, order: str, salts: bytes, sums: tuple[int, int]
) -> Iterator[_Frame]:
    for number in range(1, (size - _HEADER.size) // (_FRAME.size + page_bytes) + 1):
        content = file.read(_FRAME.size + page_bytes)
        if len(content) < _FRAME.size + page_bytes:  # the file has become shorter
            return
        page, commit, _, _, *stored = _FRAME.unpack_from(content)
        before, sums = sums, (stored[0], stored[1])
        is_right = content[8:16] == salts and sums == _checksum(
            content[_FRAME.size :], order, _checksum(content[:8], order, before)
        )
        yield _Frame(number, page, commit, is_right)


def _checksum(data: bytes, order: str, sums: tuple[int, int]) -> tuple[int, int]:
    """SQLite's checksum over pairs of 32-bit words, continued from an earlier one."""
    words = array("I", data)
    if order != sys.byteorder:
        words.byteswap()
    first, second = sums
    pairs = iter(words)
    for one, other in zip(pairs, pairs, strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return first, second


def _salted_index(store: Path) -> tuple[bytes, int] | None:
    """The salts of the log that an index belongs to, and how many frames were committed; None if unknown."""
    try:
        with index_file(store).open("rb") as file:
            header = file.read(2 * _INDEX_BYTES)
    except OSError:
        return None
    one = header[:_INDEX_BYTES]
    if len(header) < 2 * _INDEX_BYTES or one != header[_INDEX_BYTES:] or not one[12]:
        return None
    version, sums = struct.unpack_from("=I", one), struct.unpack_from("=2I", one, 40)
    if version != (_FORMAT,) or sums != _checksum(one[:40], sys.byteorder, (0, 0)):  # torn by a power cut
        return None
    (frames,) = struct.unpack_from("=I", one, 16)
    return one[32:40], frames
