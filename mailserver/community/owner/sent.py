"""How often peers have got what is published from us, piece by piece, over restarts: `DIR/communities/<id>/sent`.

`data` only ever grows, so a piece is the same one in every torrent of the community.

    magic(8)  then for each piece of `data`:
    blocks(4) at(4)

big-endian; `blocks`: how many blocks of it were sent, `at`: when one was last, Unix seconds. What was sent between the
last look and a kill is not in it: it says how often at least.
"""

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from mailserver.errors import DecodeError
from mailserver.files import write_whole
from mailserver.torrents.info import BLOCKS_PER_PIECE
from mailserver.waku.envelope import MAX_U32

MAGIC = b"wakusent"

_PIECE = struct.Struct(">II")


class SentTimes(NamedTuple):
    """`often`: how often each of some pieces was sent at least. `last`: when one was, Unix seconds; None if never."""

    often: int
    last: int | None


class SentPieces:
    """The pieces of one community. `read` and `write` block."""

    def __init__(self, pieces: Iterable[tuple[int, int]] = ()) -> None:
        self._pieces = [*pieces]

    @classmethod
    def read(cls, path: Path) -> "SentPieces":
        """What is known; nothing, if nothing was sent yet.

        Raises:
            DecodeError: the file is another one, or cut off.
            OSError: it cannot be read.
        """
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return cls()
        if not data.startswith(MAGIC) or (len(data) - len(MAGIC)) % _PIECE.size:
            raise DecodeError("file of what was sent begins with something else, or is cut off", got=len(data))
        return cls(_PIECE.iter_unpack(data[len(MAGIC) :]))

    def write(self, path: Path) -> None:
        """Have it on disk.

        Raises:
            OSError: it cannot be written; what was there is still there.
        """
        write_whole(path, MAGIC + b"".join(_PIECE.pack(*piece) for piece in self._pieces))

    def add(self, blocks: Mapping[int, int], now: int, pieces: int) -> None:
        """Count what was sent until now.

        Args:
            blocks: how many of each piece; of the index, too, which is not counted.
            now: Unix seconds.
            pieces: how many `data` has.
        """
        self._pieces += [(0, 0)] * (pieces - len(self._pieces))
        for piece, count in blocks.items():
            if piece < pieces:
                self._pieces[piece] = min(self._pieces[piece][0] + count, MAX_U32), now

    def times(self, pieces: Iterable[int]) -> SentTimes:
        """How often these pieces were sent."""
        known = [self._pieces[piece] if piece < len(self._pieces) else (0, 0) for piece in pieces]
        counts, moments = [blocks // BLOCKS_PER_PIECE for blocks, _ in known], [at for _, at in known]
        return SentTimes(min(counts, default=0), max(moments, default=0) or None)
