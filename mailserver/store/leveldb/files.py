"""Reading the files of a LevelDB: what is damaged is passed on with the rest, for whoever lists it.

That includes what a disk cannot read any more.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from mailserver.errors import DecodeError, StoreError
from mailserver.leveldb.entries import Entry, EntryOrder, UnreadablePiece
from mailserver.leveldb.journal import BLOCK_BYTES, JournalGap, JournalRecord, read_journal
from mailserver.leveldb.table import (
    FOOTER_BYTES,
    TRAILER_BYTES,
    Handle,
    IndexRow,
    decode_entries,
    decode_footer,
    decode_index,
    open_block,
)

MAX_KEPT_BYTES = 1024 * 1024
"""Of a longer piece that cannot be read, only the place is told."""


class TableGone(StoreError):
    """A table was replaced by others, which the manifest names by now."""


class TableFile:
    """A table. It is open, and closed by `close`."""

    def __init__(self, path: Path, number: int) -> None:
        """Open it.

        Raises:
            TableGone: it is not there any more.
            OSError: it cannot be opened.
        """
        try:
            self._file = path.open("rb", buffering=0)
        except FileNotFoundError as error:
            raise TableGone(f"{path} is not there any more") from error
        self._name, self._number = path.name, number
        self._size = os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Close it."""
        self._file.close()

    def index(self) -> list[IndexRow] | UnreadablePiece:
        """Its blocks, in their order."""
        try:
            footer = self._read(self._size - FOOTER_BYTES, FOOTER_BYTES)
            return decode_index(open_block(self._stored(decode_footer(footer))))
        except DecodeError as error:
            return self._unreadable(0, b"", f"none of the table: {error}")

    def block(self, above: EntryOrder | None, row: IndexRow) -> list[Entry] | UnreadablePiece:
        """The entries of a block.

        Args:
            above: a place that all of them are behind, if one is known.
        """
        stored = b""
        try:
            stored = self._stored(row.handle)
            return decode_entries(open_block(stored), above, row.upper)
        except DecodeError as error:
            return self._unreadable(row.handle.at, stored, str(error))

    def _stored(self, handle: Handle) -> bytes:
        return self._read(handle.at, handle.size + TRAILER_BYTES)

    def _read(self, at: int, size: int) -> bytes:
        if not 0 <= at <= self._size - size:
            raise DecodeError("it lies outside of the file", got=at, limit=self._size)
        try:
            return os.pread(self._file.fileno(), size, at)
        except OSError as error:
            raise DecodeError(f"the disk cannot read it: {error.strerror}") from error

    def _unreadable(self, at: int, content: bytes, why: str) -> UnreadablePiece:
        return UnreadablePiece(self._name, self._number, at, content if len(content) <= MAX_KEPT_BYTES else b"", why)


def read_records(path: Path, number: int, *, may_be_torn: bool) -> Iterator[JournalRecord | UnreadablePiece]:
    """The records of a journal or manifest, and what cannot be read, as far as it is written at the moment.

    Args:
        may_be_torn: whether it is sound if its last record is not all there.
    Raises:
        FileNotFoundError: it is not there.
        OSError: it cannot be opened.
    """
    for piece in read_journal(_blocks(path), may_be_torn=may_be_torn):
        if isinstance(piece, JournalGap):
            yield UnreadablePiece(path.name, number, piece.at, piece.content[:MAX_KEPT_BYTES], piece.why)
        else:
            yield piece


def _blocks(path: Path) -> Iterator[bytes | JournalGap]:
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        for at in range(0, size, BLOCK_BYTES):
            try:
                yield os.pread(file.fileno(), min(BLOCK_BYTES, size - at), at)
            except OSError as error:
                yield JournalGap(at, b"", f"the disk cannot read it: {error.strerror}")
