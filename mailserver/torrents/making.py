"""Making the torrent of a community's folder, which holds `data` and `index`."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from mailserver.torrents.errors import Refusal, TorrentRefused
from mailserver.torrents.info import DATA_FILE, INDEX_FILE, PIECE_BYTES, TorrentInfo


def make_torrent(folder: Path, name: str, before: TorrentInfo | None = None) -> TorrentInfo:
    """Read the two files, and make their torrent. Blocks for as long as reading `data` takes.

    Args:
        name: of the folder, for those who fetch it: the community's id.
        before: the torrent that was published last, whose `data` is the beginning of this one. Only what follows is
            read then; if the file has changed before that, whoever fetches such a piece finds it to be wrong.

    Raises:
        OSError: a file cannot be read.
        TorrentRefused: these are no files of a community, or `data` is shorter than it was.
    """
    known = b"" if before is None else before.hashes_of(before.data_pieces)
    with (folder / DATA_FILE).open("rb") as data, (folder / INDEX_FILE).open("rb") as index:
        if before is not None and data.seek(0, os.SEEK_END) < before.data_bytes:
            raise TorrentRefused(Refusal.SIZES)
        data.seek(0 if before is None else before.data_bytes)
        hashes = [known, *_hashes(data), *_hashes(index)]
        return TorrentInfo.of(name, data.tell(), index.tell(), b"".join(hashes))


def _hashes(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(PIECE_BYTES):
        yield hashlib.sha1(piece, usedforsecurity=False).digest()
