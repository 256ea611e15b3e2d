"""Rows of a store read from its pages without SQLite, even from pages to which nothing leads any more.

Every row of `envelopes` is in a leaf of its table, and a page says whether it is a leaf. So all pages are read, each as
it is in the log, or else in the file. The rows found are not trusted: `salvage` verifies them.

Format: SQLite, "Database File Format", 1.5 (freelist), 1.6 (B-tree pages, overflow), 2.1 (records).
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from mailserver.store.sqlite.damage import HEADER_BYTES, SQLITE_MAGIC
from mailserver.store.sqlite.leaves import BadRow, cells, column_bytes, column_value, varint
from mailserver.store.sqlite.schema import PAGE_BYTES
from mailserver.store.sqlite.wal import PAGE_SIZES, Log

_LOCKS_AT = 2**30  # bytes from the beginning
_COLUMNS = 6

MAX_ROW_BYTES = 4 * 1024 * 1024
"""No row is longer, because an envelope fits into a packet of 1.5 MiB."""

MAX_SHOWN_BYTES = 1024
"""How much is kept of something that is not a row: its length is not known."""


class RecoveredRow(NamedTuple):
    """A row as it was read. Its values are of any type that the file says."""

    seq: int
    values: tuple[object, ...]


class UnreadableRow(NamedTuple):
    """Something that should have been a row: its page, why it is not a row, and its bytes as far as they are there."""

    page: int
    why: str
    content: bytes


@dataclass(slots=True)
class Pages:
    """All pages of a store, by number, from 1.

    `count`: how many there are; `missing`: how many more there should be. `free`: the pages on the freelist.
    `overflow`: for each page, whether a row continues there.
    """

    file: BinaryIO
    log_file: BinaryIO | None
    log: Log
    page_bytes: int
    count: int
    missing: int
    free: set[int]
    overflow: bytearray

    def read(self, page: int) -> bytes:
        """A page as it is now; less of it, or nothing, if the file is cut off.

        Raises:
            OSError: the disk cannot read it.
        """
        return next(self.images(page))

    def images(self, page: int) -> Iterator[bytes]:
        """A page as it is now; if the log is damaged, also as it was earlier, because rows may have moved since.

        Raises:
            OSError: the disk cannot read it.
        """
        if self.log_file is not None:
            for offsets in (self.log.left, self.log.offsets) if self.log.damage else (self.log.offsets,):
                if page in offsets:
                    yield os.pread(self.log_file.fileno(), self.page_bytes, offsets[page])
                    if not self.log.damage:
                        return
        yield os.pread(self.file.fileno(), self.page_bytes, (page - 1) * self.page_bytes)

    def is_spare(self, page: int) -> bool:
        """Whether SQLite uses a page for something else: for its map of pages, or, where its locks are, for nothing."""
        return (page - 2) % (self.page_bytes // 5 + 1) == 0 or page == _LOCKS_AT // self.page_bytes + 1


def open_pages(file: BinaryIO, log_file: BinaryIO | None, log: Log | None) -> Pages:
    """Find out how large pages are, how many there are, and which are free, without trusting the header."""
    log = log or Log(PAGE_BYTES)
    size = os.fstat(file.fileno()).st_size
    header = os.pread(file.fileno(), HEADER_BYTES, 0).ljust(HEADER_BYTES, b"\x00")
    said = int.from_bytes(header[16:18], "big")
    page_bytes = 65536 if said == 1 else said
    is_right = header[: len(SQLITE_MAGIC)] == SQLITE_MAGIC and page_bytes in PAGE_SIZES
    page_bytes = page_bytes if is_right else log.page_bytes
    # Pages beyond the last committed end are included: that end may be wrong, and extra rows do no harm.
    count = max([-(-size // page_bytes), *log.offsets, *(log.left if log.damage else ())])
    should = log.page_count or (int.from_bytes(header[28:32], "big") if is_right else 0)
    pages = Pages(file, log_file, log, page_bytes, count, max(should - count, 0), set(), bytearray(count + 1))
    _find_free(pages)
    return pages


def _find_free(pages: Pages) -> None:
    """Find the pages on the freelist, which hold deleted rows. A damaged freelist is followed as far as it goes."""
    try:
        page = int.from_bytes(pages.read(1)[32:36], "big")
        while 1 < page <= pages.count and page not in pages.free:
            trunk = pages.read(page)
            count = int.from_bytes(trunk[4:8], "big")
            leaves = [int.from_bytes(trunk[at : at + 4], "big") for at in range(8, min(8 + 4 * count, len(trunk)), 4)]
            if len(leaves) != count or any(not 1 < leaf <= pages.count for leaf in leaves):
                return
            pages.free.update([page, *leaves])
            page = int.from_bytes(trunk[:4], "big")
    except OSError:
        return


def is_known(page: int, content: bytes) -> bool:
    """Whether a page may be one of a tree."""
    kind = content[HEADER_BYTES : HEADER_BYTES + 1] if page == 1 else content[:1]
    return kind in (b"\x02", b"\x05", b"\x0a", b"\x0d") and (page > 1 or content.startswith(SQLITE_MAGIC))


def first_seq(content: bytes) -> int:
    """The lowest row number in a leaf, by which leaves are ordered; 0 if it has no row."""
    for at in cells(content):
        try:
            _, start = varint(content, at)
            return varint(content, start)[0]
        except BadRow:
            continue
    return 0


def rows_of(pages: Pages, page: int, content: bytes) -> list[RecoveredRow | UnreadableRow]:
    """The rows of a leaf, if it is one of `envelopes`, else nothing. Also notes where they overflow."""
    found: list[RecoveredRow | UnreadableRow] = []
    others = []
    for at in cells(content):
        piece = content[at : at + MAX_SHOWN_BYTES]
        try:
            row = _row(pages, content, at)
        except BadRow as error:
            found.append(UnreadableRow(page, str(error), piece))
            continue
        if row is None:
            others.append(UnreadableRow(page, "it has other columns", piece))
        else:
            found.append(row)
    if any(isinstance(row, RecoveredRow) for row in found):
        return found + others
    return [] if others else found


def _row(pages: Pages, content: bytes, at: int) -> RecoveredRow | None:
    """One row; None if it belongs to another table."""
    length, at = varint(content, at)
    seq, at = varint(content, at)
    if length > MAX_ROW_BYTES:
        raise BadRow(f"a row of {length} bytes")
    header_bytes, _ = varint(content, at)
    if header_bytes > length or at + header_bytes > len(content):
        raise BadRow("its header is longer than the row")
    kinds, place = [], varint(content, at)[1]
    while place < at + header_bytes:
        kind, place = varint(content, place)
        kinds.append(kind)
    if len(kinds) != _COLUMNS or kinds[0] != 0:
        return None
    payload = _payload(pages, content, at, length)
    values, start = [], header_bytes
    for kind in kinds:
        size = column_bytes(kind)
        if start + size > length:
            raise BadRow("its columns are longer than the row")
        values.append(column_value(kind, payload[start : start + size]))
        start += size
    return RecoveredRow(seq, tuple(values[1:]))


def _payload(pages: Pages, content: bytes, at: int, length: int) -> bytes:
    """The whole of a row: what is in the leaf, and what overflows."""
    usable = pages.page_bytes  # our files reserve no part of a page
    most = usable - 35
    if length <= most:
        if at + length > len(content):
            raise BadRow("it does not end in its page")
        return content[at : at + length]
    least = (usable - 12) * 32 // 255 - 23
    local = least + (length - least) % (usable - 4)
    local = local if local <= most else least
    parts, left = [content[at : at + local]], length - local
    page = int.from_bytes(content[at + local : at + local + 4], "big")
    while left:
        if not 1 < page <= pages.count:
            raise BadRow(f"it goes on in page {page}, which is not there")
        try:
            more = pages.read(page)
        except OSError as error:
            raise BadRow(f"page {page}: {error.strerror}") from error
        pages.overflow[page] = 1
        parts.append(more[4 : 4 + min(left, usable - 4)])
        if not parts[-1]:
            raise BadRow(f"page {page} is cut off")
        left -= len(parts[-1])
        page = int.from_bytes(more[:4], "big")
    return b"".join(parts)
