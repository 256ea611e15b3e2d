"""Making torrents: the same for the same files, and what libtorrent makes of them."""

import hashlib
from pathlib import Path

import libtorrent
import pytest

from mailserver.torrents.errors import TorrentRefusal, TorrentRefused
from mailserver.torrents.info import PIECE_BYTES
from mailserver.torrents.making import make_torrent
from tests.torrents.folders import NAME, content, grow, publish, write_folder


def test_torrent_has_the_hashes_of_the_pieces_of_both_files(tmp_path: Path) -> None:
    info = publish(tmp_path, pieces=3, index_bytes=150_000)

    data, index = (tmp_path / "data").read_bytes(), (tmp_path / "index").read_bytes()
    chunks = [each[at : at + PIECE_BYTES] for each in (data, index) for at in range(0, len(each), PIECE_BYTES)]
    assert info.piece_hashes == b"".join(hashlib.sha1(chunk).digest() for chunk in chunks)
    assert (info.name, info.data_bytes, info.index_bytes) == (NAME, 3 * PIECE_BYTES, 150_000)


def test_same_files_give_the_same_torrent(tmp_path: Path) -> None:
    assert publish(tmp_path / "here") == publish(tmp_path / "there")


def test_libtorrent_reads_the_same_of_it(tmp_path: Path) -> None:
    info = publish(tmp_path)

    read = libtorrent.load_torrent_buffer(b"d4:info%se" % info.info).ti

    assert read is not None
    files = read.layout()
    assert read.info_hashes().v1.to_bytes() == info.info_hash
    assert [files.file_path(each) for each in range(files.num_files())] == [f"{NAME}/data", f"{NAME}/index"]
    assert [files.file_size(each) for each in range(files.num_files())] == [info.data_bytes, info.index_bytes]
    assert [read.hash_for_piece(piece) for piece in info.pieces] == [info.piece_hash(piece) for piece in info.pieces]
    assert not read.priv()


def test_torrent_of_a_grown_folder_begins_with_the_pieces_before(tmp_path: Path) -> None:
    before = publish(tmp_path)
    grow(tmp_path, 3)
    (tmp_path / "index").write_bytes(content(160_000))

    after = make_torrent(tmp_path, NAME, before)

    assert after == make_torrent(tmp_path, NAME)
    assert after.hashes_of(before.data_pieces) == before.hashes_of(before.data_pieces)
    assert len(after.data_pieces) == len(before.data_pieces) + 3


def test_data_that_was_published_is_not_read_again(tmp_path: Path) -> None:
    before = publish(tmp_path)
    with (tmp_path / "data").open("r+b") as data:
        data.write(b"damaged")

    assert make_torrent(tmp_path, NAME, before) == before


def test_data_that_has_become_shorter_is_refused(tmp_path: Path) -> None:
    before = publish(tmp_path, pieces=4)
    write_folder(tmp_path, pieces=3)

    with pytest.raises(TorrentRefused) as refused:
        make_torrent(tmp_path, NAME, before)

    assert refused.value.refusal is TorrentRefusal.SIZES


def test_data_that_is_not_whole_pieces_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path)
    with (tmp_path / "data").open("ab") as data:
        data.write(b"x")

    with pytest.raises(TorrentRefused) as refused:
        make_torrent(tmp_path, NAME)

    assert refused.value.refusal is TorrentRefusal.SIZES


def test_folder_without_an_index_has_no_torrent(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "index").unlink()

    with pytest.raises(FileNotFoundError):
        make_torrent(tmp_path, NAME)
