"""Making the torrent of a community's folder, which holds `data` and `index`."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from mailserver.torrents.errors import TorrentRefusal, TorrentRefused
from mailserver.torrents.info import DATA_FILE, INDEX_FILE, PIECE_BYTES, TorrentInfo


def make_torrent(
    folder: Path, name: str, before: TorrentInfo | None = None, data_bytes: int | None = None
) -> TorrentInfo:
    """Read the two files, and make their torrent. Blocks for as long as reading `data` takes.

    Args:
        name: of the folder, for those who fetch it: the community's id.
        before: the torrent that was published last, whose `data` is the beginning of this one. Only what follows is
            read then; if the file has changed before that, whoever fetches such a piece finds it to be wrong.
        data_bytes: how much of `data` belongs to the torrent, whole pieces; None for all. Somebody may append to it.

    Raises:
        OSError: a file cannot be read.
        TorrentRefused: these are no files of a community, or `data` is shorter than it was, or than `data_bytes`.
    """
    known = b"" if before is None else before.hashes_of(before.data_pieces)
    with (folder / DATA_FILE).open("rb") as data, (folder / INDEX_FILE).open("rb") as index:
        begin = 0 if before is None else before.data_bytes
        length = data.seek(0, os.SEEK_END)
        end = length if data_bytes is None else data_bytes
        if not begin <= end <= length:
            raise TorrentRefused(TorrentRefusal.SIZES)
        data.seek(begin)
        hashes = [known, *_hashes(data, end), *_hashes(index)]
        return TorrentInfo.of(name, data.tell(), index.tell(), b"".join(hashes))


def _hashes(file: BinaryIO, end: int | None = None) -> Iterator[bytes]:
    while piece := file.read(PIECE_BYTES if end is None else min(PIECE_BYTES, end - file.tell())):
        yield hashlib.sha1(piece, usedforsecurity=False).digest()
