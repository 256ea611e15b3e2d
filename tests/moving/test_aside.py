"""mailserver.moving.aside: each wrong row is in the file once, whatever ended the move before."""

import json
import stat
from pathlib import Path

import pytest

from mailserver.errors import StoreError
from mailserver.moving.aside import SetAside, WrongRow
from mailserver.store.moving import ReadRow, SourcePlace


def wrong(seq: int) -> WrongRow:
    return WrongRow(ReadRow(SourcePlace(seq), [1, None, "text", b"\x01", b"\x02\x03"]), "because")


def places_in(path: Path) -> list[tuple[str, int]]:
    return [(line["store"], line["place"]) for line in map(json.loads, path.read_text().splitlines())]


def test_rows_are_json_lines_that_only_their_owner_reads(tmp_path: Path) -> None:
    path = tmp_path / "aside"

    SetAside(path, "one").add([wrong(7)])

    expected = {"store": "one", "place": 7, "why": "because", "row": [1, None, "text", "01", "0203"]}
    assert [json.loads(line) for line in path.read_text().splitlines()] == [expected]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_without_wrong_rows_there_is_no_file(tmp_path: Path) -> None:
    SetAside(tmp_path / "aside", "one").add([])

    assert not (tmp_path / "aside").exists()


def test_row_that_is_there_already_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "aside"
    first = SetAside(path, "one")
    first.add([wrong(1), wrong(2)])
    first.add([wrong(2), wrong(3)])

    SetAside(path, "one").add([wrong(3), wrong(4)])
    SetAside(path, "other").add([wrong(1)])

    assert places_in(path) == [("one", 1), ("one", 2), ("one", 3), ("one", 4), ("other", 1)]


def test_row_whose_line_a_kill_has_cut_off_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "aside"
    SetAside(path, "one").add([wrong(1), wrong(2)])
    whole = path.read_text()
    path.write_text(whole[:-10])

    SetAside(path, "one").add([wrong(2), wrong(3)])

    first, cut, *rest = path.read_text().splitlines()
    assert (json.loads(first)["place"], cut) == (1, whole.splitlines()[1][:-9])
    assert [json.loads(line)["place"] for line in rest] == [2, 3]


def test_file_that_cannot_be_written_ends_the_move(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot write .*No such file"):
        SetAside(tmp_path / "gone" / "aside", "one").add([wrong(1)])
