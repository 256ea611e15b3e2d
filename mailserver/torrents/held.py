"""Which pieces of a torrent are on disk: remembered over restarts, found again after a kill.

The file `held` beside `data` has a line for each piece of `data`: its hash, if it is there. What it says was synced.
A newer torrent whose `data` begins with the same pieces takes them over. What it does not say, because the process was
killed first, is found by hashing what `data` has there. Holes are not read.
"""

import contextlib
import errno
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from mailserver import files
from mailserver.torrents.info import DATA_FILE, INDEX_FILE, PIECE_BYTES, TorrentInfo

HELD_FILE = "held"

_FIRST_LINE = "waku-mailserver held 1"
_NOT_HELD = "-"


class HeldPieces:
    """The pieces of one torrent that a folder has. All methods block.

    Args:
        folder: with `data`, `index` and `held`; it exists.
    """

    def __init__(self, info: TorrentInfo, folder: Path) -> None:
        self.known: set[int] = set()
        """The pieces that `held` says are there, and those that have been found right since."""
        self.checked: set[int] = set()
        """Those that this process has read from disk."""
        self._info = info
        self._folder = folder
        self._saved: set[int] = set()

    def load(self) -> None:
        """Find out what is there. An `index` that is longer, of a torrent before, is cut.

        Raises:
            OSError: a file cannot be read, or cut.
        """
        index = self._folder / INDEX_FILE
        with contextlib.suppress(FileNotFoundError):
            if index.stat().st_size > self._info.index_bytes:
                os.truncate(index, self._info.index_bytes)
        on_disk = self._written(DATA_FILE, self._info.data_pieces) | self._written(INDEX_FILE, self._info.index_pieces)
        self._saved = self.recorded() & on_disk
        self.known = set(self._saved)
        self.verify(on_disk - self.known)

    def verify(self, pieces: Iterable[int]) -> set[int]:
        """Read pieces from disk; return those that are wrong, or not there.

        Raises:
            OSError: a file cannot be read.
        """
        wrong = set()
        with contextlib.ExitStack() as stack:
            opened: dict[str, int] = {}
            for piece in sorted(pieces):
                name, offset, size = self._place(piece)
                if name not in opened:
                    opened[name] = stack.enter_context(_opened(self._folder / name))
                content = b"" if opened[name] < 0 else os.pread(opened[name], size, offset)
                if hashlib.sha1(content, usedforsecurity=False).digest() == self._info.piece_hash(piece):
                    self.known.add(piece)
                    self.checked.add(piece)
                else:
                    self.known.discard(piece)
                    self.checked.discard(piece)
                    wrong.add(piece)
        return wrong

    def save(self) -> None:
        """Sync the files, and say in `held` what is known to be there.

        Raises:
            OSError: it cannot be written.
        """
        if self.known == self._saved:
            return
        known = set(self.known)
        for name in (DATA_FILE, INDEX_FILE):
            with _opened(self._folder / name) as descriptor:
                if descriptor >= 0:
                    os.fsync(descriptor)
        files.sync_folder(self._folder)
        lines = (
            self._info.piece_hash(piece).hex() if piece in known else _NOT_HELD for piece in self._info.data_pieces
        )
        files.write_atomically(self._folder / HELD_FILE, "\n".join([_FIRST_LINE, *lines, ""]))
        self._saved = known

    def recorded(self) -> set[int]:
        """Which pieces of `data` are held by the file `held`, whichever torrent it was written for.

        Raises:
            OSError: it cannot be read.
        """
        try:
            first, *lines = (self._folder / HELD_FILE).read_text("ascii", errors="replace").splitlines()
        except (FileNotFoundError, ValueError):  # it is not there, or empty
            return set()
        if first != _FIRST_LINE:
            return set()
        pairs = zip(self._info.data_pieces, lines, strict=False)  # another torrent may have been longer or shorter
        return {piece for piece, line in pairs if line == self._info.piece_hash(piece).hex()}

    def _place(self, piece: int) -> tuple[str, int, int]:
        """File, offset and size of a piece."""
        if piece in self._info.data_pieces:
            return DATA_FILE, piece * PIECE_BYTES, PIECE_BYTES
        offset = (piece - self._info.index_pieces.start) * PIECE_BYTES
        return INDEX_FILE, offset, min(PIECE_BYTES, self._info.index_bytes - offset)

    def _written(self, name: str, pieces: range) -> set[int]:
        """The pieces of a file of which any byte was ever written."""
        written: set[int] = set()
        with _opened(self._folder / name) as descriptor:
            for extent in [] if descriptor < 0 else _data_extents(descriptor):
                first, stop = extent.start // PIECE_BYTES, -(-extent.stop // PIECE_BYTES)
                written.update(pieces[first:stop])
        return written


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open a file to read; -1 if there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield -1
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _data_extents(descriptor: int) -> Iterator[range]:
    """Where a file has data: between them are holes."""
    at = 0
    while True:
        try:
            start = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole follows
                return
            raise
        at = os.lseek(descriptor, start, os.SEEK_HOLE)
        yield range(start, at)
