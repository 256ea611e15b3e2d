"""A torrent of a community: its info dictionary, made and read. No I/O.

Version 1 (BEP 3) of a folder with exactly `data` and `index`, in this order. `data` is whole pieces, so the number of a
piece is its offset in `data` by the length of a piece, and the pieces of `index` follow. Nothing in it says who made
it, or when, so the same files give the same torrent everywhere.
Spec: 61/STATUS "Torrents", "Ensuring reproducible data pieces"; the piece length is that of status-go.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property

from mailserver.errors import DecodeError
from mailserver.torrents import bencode
from mailserver.torrents.errors import TorrentRefusal, TorrentRefused

PIECE_BYTES = 102_400
HASH_BYTES = 20

DATA_FILE = "data"
INDEX_FILE = "index"

BLOCK_BYTES = 16 * 1024
"""In what parts peers ask for a piece (BEP 3 "request"). The last one of a piece may be shorter."""

BLOCKS_PER_PIECE = -(-PIECE_BYTES // BLOCK_BYTES)

MAX_INFO_BYTES = 4 * 1024 * 1024
"""The largest metadata of a torrent: 21 GB of history, at 20 bytes for each piece."""

MAX_INDEX_BYTES = 16 * 1024 * 1024
"""An index of ten years with a hundred channels has 4 MB."""

MAX_NAME_BYTES = 255

_KEYS = {b"files", b"name", b"piece length", b"pieces"}
_MORE_KEYS = {b"private", b"source"}
"""What others may say without another meaning of the files."""


@dataclass(frozen=True)
class TorrentInfo:
    """A torrent: what is in its two files, and where.

    Args:
        info: its bencoded info dictionary, the metadata that members fetch.
        name: the name of its folder.
        data_bytes: the size of `data`, whole pieces.
        index_bytes: the size of `index`.
        piece_hashes: 20 bytes for each piece.
    """

    info: bytes
    name: str
    data_bytes: int
    index_bytes: int
    piece_hashes: bytes

    @classmethod
    def of(cls, name: str, data_bytes: int, index_bytes: int, piece_hashes: bytes) -> "TorrentInfo":
        """Make the torrent of two files.

        Raises:
            TorrentRefused: these are no files of a community.
        """
        sizes = [(data_bytes, DATA_FILE), (index_bytes, INDEX_FILE)]
        files: list[bencode.Value] = [{b"length": size, b"path": [path.encode()]} for size, path in sizes]
        return cls.decode(
            bencode.encode(
                {
                    b"files": files,
                    b"name": name.encode(),
                    b"piece length": PIECE_BYTES,
                    b"pieces": piece_hashes,
                }
            )
        )

    @classmethod
    def decode(cls, info: bytes) -> "TorrentInfo":
        """Read an info dictionary, and check all of it.

        Raises:
            TorrentRefused: it is not that of a community.
        """
        if len(info) > MAX_INFO_BYTES:
            raise TorrentRefused(TorrentRefusal.TOO_LARGE)
        try:
            found = bencode.decode(info)
        except DecodeError as error:
            raise TorrentRefused(TorrentRefusal.MALFORMED) from error
        if not isinstance(found, dict) or not _KEYS <= found.keys() <= _KEYS | _MORE_KEYS:
            raise TorrentRefused(TorrentRefusal.MALFORMED)
        data_bytes, index_bytes = _sizes(found[b"files"])
        if found[b"piece length"] != PIECE_BYTES:
            raise TorrentRefused(TorrentRefusal.PIECE_LENGTH)
        hashes = found[b"pieces"]
        if not isinstance(hashes, bytes) or len(hashes) != HASH_BYTES * _pieces(data_bytes + index_bytes):
            raise TorrentRefused(TorrentRefusal.PIECES)
        return cls(info, _name(found[b"name"]), data_bytes, index_bytes, hashes)

    @cached_property
    def info_hash(self) -> bytes:
        """20 bytes, SHA-1 of the info dictionary: by this the torrent is known."""
        return hashlib.sha1(self.info, usedforsecurity=False).digest()

    @property
    def pieces(self) -> range:
        """All pieces."""
        return range(_pieces(self.data_bytes + self.index_bytes))

    @property
    def data_pieces(self) -> range:
        """The pieces of `data`."""
        return range(self.data_bytes // PIECE_BYTES)

    @property
    def index_pieces(self) -> range:
        """The pieces of `index`, which no other file shares."""
        return range(self.data_bytes // PIECE_BYTES, len(self.pieces))

    def pieces_at(self, offset: int, size: int) -> range:
        """The pieces with these bytes of `data`.

        Raises:
            ValueError: they are not all in `data`.
        """
        if offset < 0 or size < 1 or offset + size > self.data_bytes:
            raise ValueError("not in data")
        return range(offset // PIECE_BYTES, _pieces(offset + size))

    def blocks(self, piece: int) -> int:
        """How many blocks a piece has."""
        size = min(PIECE_BYTES, self.data_bytes + self.index_bytes - piece * PIECE_BYTES)
        return -(-size // BLOCK_BYTES)

    def piece_hash(self, piece: int) -> bytes:
        """20 bytes, SHA-1 of a piece."""
        return self.piece_hashes[piece * HASH_BYTES : (piece + 1) * HASH_BYTES]

    def hashes_of(self, pieces: range) -> bytes:
        """The hashes of pieces, joined: what identifies their content, wherever else it may be."""
        return self.piece_hashes[pieces.start * HASH_BYTES : pieces.stop * HASH_BYTES]


def _pieces(size: int) -> int:
    return -(-size // PIECE_BYTES)


def _sizes(files: bencode.Value) -> tuple[int, int]:
    match files:
        case [
            {b"length": int(data_bytes), b"path": [b"data"], **more},
            {b"length": int(index_bytes), b"path": [b"index"], **more_of_index},
        ] if not more and not more_of_index:
            pass
        case _:
            raise TorrentRefused(TorrentRefusal.FILES)
    if data_bytes < PIECE_BYTES or data_bytes % PIECE_BYTES or not 0 < index_bytes <= MAX_INDEX_BYTES:
        raise TorrentRefused(TorrentRefusal.SIZES)
    return data_bytes, index_bytes


def _name(name: bencode.Value) -> str:
    """The name, which never becomes part of a path here."""
    if not isinstance(name, bytes) or not 0 < len(name) <= MAX_NAME_BYTES:
        raise TorrentRefused(TorrentRefusal.NAME)
    try:
        text = name.decode()
    except UnicodeDecodeError as error:
        raise TorrentRefused(TorrentRefusal.NAME) from error
    if not text.isprintable() or "/" in text or text in {".", ".."}:
        raise TorrentRefused(TorrentRefusal.NAME)
    return text
