"""Which pieces a folder has: remembered, taken over by the next torrent, and found on disk."""

import os
from pathlib import Path

import pytest

from mailserver.torrents.held import HELD_FILE, HeldPieces
from mailserver.torrents.info import PIECE_BYTES, TorrentInfo
from mailserver.torrents.making import make_torrent
from tests.torrents.folders import NAME, content, grow, publish


def put(folder: Path, source: Path, pieces: list[int]) -> None:
    """Write some pieces of `data`, and leave holes for the others."""
    whole = (source / "data").read_bytes()
    with (folder / "data").open("wb") as data:
        data.truncate(len(whole))
        for piece in pieces:
            data.seek(piece * PIECE_BYTES)
            data.write(whole[piece * PIECE_BYTES : (piece + 1) * PIECE_BYTES])


def loaded(info: TorrentInfo, folder: Path) -> HeldPieces:
    held = HeldPieces(info, folder)
    held.load()
    return held


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    publish(folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder


def test_new_folder_holds_nothing(source: Path, folder: Path) -> None:
    held = loaded(make_torrent(source, NAME), folder)
    held.save()

    assert held.known == set()
    assert list(folder.iterdir()) == []


def test_pieces_are_found_on_disk(source: Path, folder: Path) -> None:
    info = make_torrent(source, NAME)
    put(folder, source, [1, 4, 5])
    (folder / "index").write_bytes((source / "index").read_bytes()[:PIECE_BYTES])

    held = loaded(info, folder)

    assert held.known == {1, 4, 5, info.index_pieces.start} == held.checked


def test_what_was_saved_is_not_read_again(source: Path, folder: Path) -> None:
    info = make_torrent(source, NAME)
    put(folder, source, [1, 4, 5])
    loaded(info, folder).save()

    held = loaded(info, folder)

    assert held.known == {1, 4, 5}
    assert held.checked == set()
    assert held.verify([1, 2, 4]) == {2}
    assert held.checked == {1, 4}


def test_what_was_saved_is_not_saved_again(source: Path, folder: Path) -> None:
    info = make_torrent(source, NAME)
    put(folder, source, [1])
    loaded(info, folder).save()
    before = (folder / HELD_FILE).stat()

    loaded(info, folder).save()

    assert (folder / HELD_FILE).stat() == before


def test_file_belongs_to_its_owner_alone(source: Path, folder: Path) -> None:
    put(folder, source, [1])
    loaded(make_torrent(source, NAME), folder).save()

    assert (folder / HELD_FILE).stat().st_mode & 0o777 == 0o600


def test_next_torrent_takes_over_the_same_pieces(source: Path, folder: Path) -> None:
    put(folder, source, [1, 4, 5])
    loaded(make_torrent(source, NAME), folder).save()
    grow(source, 3)

    held = loaded(make_torrent(source, NAME), folder)

    assert held.known == {1, 4, 5}
    assert held.checked == set()


def test_torrent_with_other_pieces_takes_over_none(tmp_path: Path, source: Path, folder: Path) -> None:
    put(folder, source, [1, 4, 5])
    loaded(make_torrent(source, NAME), folder).save()

    held = loaded(publish(tmp_path / "other", pieces=3, seed=7), folder)

    assert held.known == set()


def test_index_that_is_longer_is_cut_and_a_shorter_one_is_not(source: Path, folder: Path) -> None:
    info = make_torrent(source, NAME)
    (folder / "index").write_bytes((source / "index").read_bytes() + b"more")

    assert loaded(info, folder).known == set(info.index_pieces)
    assert (folder / "index").stat().st_size == info.index_bytes

    (folder / "index").write_bytes(b"less")
    assert loaded(info, folder).known == set()
    assert (folder / "index").stat().st_size == 4


def test_pieces_whose_place_is_a_hole_are_not_held(source: Path, folder: Path) -> None:
    info = make_torrent(source, NAME)
    put(folder, source, [1, 4, 5])
    loaded(info, folder).save()
    put(folder, source, [5])

    assert loaded(info, folder).known == {5}


def test_pieces_of_a_file_that_is_gone_are_not_held(source: Path, folder: Path) -> None:
    info = make_torrent(source, NAME)
    put(folder, source, [1, 4, 5])
    held = loaded(info, folder)
    held.save()
    (folder / "data").unlink()

    assert held.verify([1]) == {1}
    assert held.known == {4, 5}
    assert loaded(info, folder).known == set()


@pytest.mark.parametrize("damage", [b"", b"\xff\n\xff\n", b"another file\n", b"waku-mailserver held 1\n-\nxyz\n"])
def test_record_that_is_damaged_is_made_anew(source: Path, folder: Path, damage: bytes) -> None:
    info = make_torrent(source, NAME)
    put(folder, source, [1, 4, 5])
    (folder / HELD_FILE).write_bytes(damage)

    held = loaded(info, folder)
    held.save()

    assert held.known == {1, 4, 5} == held.checked
    assert loaded(info, folder).checked == set()


def test_holes_are_not_read(source: Path, folder: Path) -> None:
    info = TorrentInfo.of(NAME, 10_000 * PIECE_BYTES, 1, bytes(20 * 10_001))
    with (folder / "data").open("wb") as data:
        data.truncate(info.data_bytes)
        os.pwrite(data.fileno(), b"x", 5_000 * PIECE_BYTES)
    held = HeldPieces(info, folder)
    before = _read_bytes()

    held.load()

    assert held.known == set()
    assert _read_bytes() - before < 10 * PIECE_BYTES


def _read_bytes() -> int:
    """What this process has read by system calls."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_link_in_place_of_a_file_is_not_followed(source: Path, folder: Path) -> None:
    (folder / "data").symlink_to(source / "data")

    with pytest.raises(OSError, match=r"symbolic|loop|Too many"):
        loaded(make_torrent(source, NAME), folder)


def test_content_of_the_index_is_checked_by_its_own_offsets(source: Path, folder: Path) -> None:
    info = make_torrent(source, NAME)
    (folder / "index").write_bytes(content(150_000, 1001)[:PIECE_BYTES] + bytes(150_000 - PIECE_BYTES))

    assert loaded(info, folder).known == {info.index_pieces[0]}
