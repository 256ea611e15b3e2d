"""Torrents of communities: what is in them, and which are refused."""

import hashlib

import pytest

from mailserver.torrents import bencode
from mailserver.torrents.errors import TorrentRefusal, TorrentRefused
from mailserver.torrents.info import MAX_INDEX_BYTES, MAX_INFO_BYTES, MAX_NAME_BYTES, PIECE_BYTES, TorrentInfo

HASHES = bytes(range(100))

DATA: dict[bytes, bencode.Value] = {b"length": 3 * PIECE_BYTES, b"path": [b"data"]}
INDEX: dict[bytes, bencode.Value] = {b"length": PIECE_BYTES + 1, b"path": [b"index"]}


def dictionary() -> dict[bytes, bencode.Value]:
    return {b"files": [DATA, INDEX], b"name": b"0x02ab", b"piece length": PIECE_BYTES, b"pieces": HASHES}


def refusal_of(**changes: bencode.Value) -> TorrentRefusal:
    """Why an info dictionary is refused that differs in these keys, whose blanks are underscores."""
    changed = dictionary() | {key.replace("_", " ").encode(): value for key, value in changes.items()}
    with pytest.raises(TorrentRefused) as refused:
        TorrentInfo.decode(bencode.encode(changed))
    assert str(refused.value) == refused.value.refusal.value
    return refused.value.refusal


def test_torrent_says_where_everything_is() -> None:
    info = TorrentInfo.of("0x02ab", 3 * PIECE_BYTES, PIECE_BYTES + 1, HASHES)

    assert info.info == bencode.encode(dictionary())
    assert info.info_hash == hashlib.sha1(info.info).digest()
    assert (info.name, info.data_bytes, info.index_bytes) == ("0x02ab", 3 * PIECE_BYTES, PIECE_BYTES + 1)
    assert (info.pieces, info.data_pieces, info.index_pieces) == (range(5), range(3), range(3, 5))
    assert info.piece_hash(1) == HASHES[20:40]
    assert info.hashes_of(range(1, 3)) == HASHES[20:60]
    assert info.pieces_at(PIECE_BYTES, 2 * PIECE_BYTES) == range(1, 3)
    assert info.pieces_at(PIECE_BYTES - 1, 2) == range(2)


def test_torrent_names_nobody_and_no_time() -> None:
    info = TorrentInfo.of("0x02ab", 3 * PIECE_BYTES, PIECE_BYTES + 1, HASHES)
    decoded = bencode.decode(info.info)

    assert isinstance(decoded, dict)
    assert decoded.keys() == {b"files", b"name", b"piece length", b"pieces"}


@pytest.mark.parametrize(
    ("offset", "size"), [(-1, 2), (0, 0), (3 * PIECE_BYTES, 1), (PIECE_BYTES, 2 * PIECE_BYTES + 1)]
)
def test_bytes_that_are_not_in_data_have_no_pieces(offset: int, size: int) -> None:
    info = TorrentInfo.of("0x02ab", 3 * PIECE_BYTES, PIECE_BYTES + 1, HASHES)

    with pytest.raises(ValueError, match="not in data"):
        info.pieces_at(offset, size)


def test_private_torrents_and_those_with_a_source_are_read() -> None:
    info = bencode.encode(dictionary() | {b"private": 1, b"source": b"x"})

    assert TorrentInfo.decode(info).info == info


def entry(length: bencode.Value, *path: bytes, **more: bencode.Value) -> dict[bytes, bencode.Value]:
    """A file of a torrent; blanks of further keys are underscores."""
    found: dict[bytes, bencode.Value] = {b"length": length, b"path": list(path)}
    return found | {key.replace("_", " ").encode(): more[key] for key in more}


@pytest.mark.parametrize(
    "files",
    [
        [DATA],
        [INDEX, DATA],
        [DATA, INDEX, DATA],
        [DATA, entry(1, b"..", b"index")],
        [DATA, entry(1, b"../index")],
        [DATA, entry(1, b"Index")],
        [DATA, entry(1)],
        [DATA, entry(1, b"index", attr=b"l", symlink_path=[b"x"])],
        [entry(PIECE_BYTES, b"data", attr=b"x"), INDEX],
        [DATA, entry(b"1", b"index")],
        [DATA, b"index"],
        b"files",
        {},
    ],
)
def test_other_files_are_refused(files: bencode.Value) -> None:
    assert refusal_of(files=files) is TorrentRefusal.FILES


@pytest.mark.parametrize(
    ("data_bytes", "index_bytes"),
    [
        (0, 1),
        (-PIECE_BYTES, 1),
        (PIECE_BYTES - 1, 1),
        (PIECE_BYTES + 1, 1),
        (PIECE_BYTES, 0),
        (PIECE_BYTES, -1),
        (PIECE_BYTES, MAX_INDEX_BYTES + 1),
    ],
)
def test_sizes_that_cannot_be_are_refused(data_bytes: int, index_bytes: int) -> None:
    files: bencode.Value = [
        {b"length": data_bytes, b"path": [b"data"]},
        {b"length": index_bytes, b"path": [b"index"]},
    ]

    assert refusal_of(files=files) is TorrentRefusal.SIZES


@pytest.mark.parametrize("piece_length", [0, -1, 16_384, PIECE_BYTES * 2, b"102400"])
def test_other_piece_lengths_are_refused(piece_length: bencode.Value) -> None:
    assert refusal_of(piece_length=piece_length) is TorrentRefusal.PIECE_LENGTH


@pytest.mark.parametrize("pieces", [b"", HASHES[:-1], HASHES + bytes(1), HASHES + bytes(20), HASHES[:-20], 5, []])
def test_another_number_of_hashes_is_refused(pieces: bencode.Value) -> None:
    assert refusal_of(pieces=pieces) is TorrentRefusal.PIECES


@pytest.mark.parametrize(
    "name", [b"", b"..", b".", b"a/b", b"a\0b", b"a\nb", b"\xff", b"x" * (MAX_NAME_BYTES + 1), 3, []]
)
def test_names_that_are_no_folders_are_refused(name: bencode.Value) -> None:
    assert refusal_of(name=name) is TorrentRefusal.NAME


@pytest.mark.parametrize("key", ["meta_version", "name.utf-8", "ssl-cert", "root hash", "md5sum"])
def test_what_gives_files_another_meaning_is_refused(key: str) -> None:
    assert refusal_of(**{key: 2}) is TorrentRefusal.MALFORMED


@pytest.mark.parametrize("info", [b"", b"de", b"le", b"i1e", b"d4:name1:xe", b"x" * 100])
def test_what_is_no_info_dictionary_is_refused(info: bytes) -> None:
    with pytest.raises(TorrentRefused) as refused:
        TorrentInfo.decode(info)

    assert refused.value.refusal is TorrentRefusal.MALFORMED


def test_metadata_that_is_too_large_is_refused_before_it_is_read() -> None:
    with pytest.raises(TorrentRefused) as refused:
        TorrentInfo.decode(bytes(MAX_INFO_BYTES + 1))

    assert refused.value.refusal is TorrentRefusal.TOO_LARGE
