"""Folders of communities, with bytes that are the same in every run."""

import random
from pathlib import Path

from mailserver.torrents.info import PIECE_BYTES, TorrentInfo
from mailserver.torrents.making import make_torrent

NAME = "0x02" + "ab" * 32


def content(size: int, seed: int = 1) -> bytes:
    """Bytes that are not compressible."""
    return random.Random(seed).randbytes(size)


def write_folder(folder: Path, pieces: int = 12, index_bytes: int = 150_000, seed: int = 1) -> Path:
    """A folder with `data` of so many pieces, and an index of two."""
    folder.mkdir(exist_ok=True)
    (folder / "data").write_bytes(content(pieces * PIECE_BYTES, seed))
    (folder / "index").write_bytes(content(index_bytes, seed + 1000))
    return folder


def publish(folder: Path, pieces: int = 12, index_bytes: int = 150_000, seed: int = 1) -> TorrentInfo:
    """Write such a folder; return its torrent."""
    return make_torrent(write_folder(folder, pieces, index_bytes, seed), NAME)


def grow(folder: Path, pieces: int, seed: int = 2) -> None:
    """Append pieces to `data`, as the next weeks do."""
    with (folder / "data").open("ab") as data:
        data.write(content(pieces * PIECE_BYTES, seed))
