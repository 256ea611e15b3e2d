"""spark_export.quarantine: files of rows that were set aside, some of whose lines a disk has damaged."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mailserver.archive import files as files_module
from mailserver.archive.days import day_name
from spark_export import quarantine as quarantine_module
from spark_export.quarantine import quarantine
from spark_export.source import Faulty
from spark_export.storage import LocalStorage
from spark_export.store import StoreSnapshot

DAY = 20_780
STORE = "ab" * 16


def faulty(seq: int, raw: bytes = b"\xff\x00", fault: str = "undecodable") -> Faulty:
    return Faulty(0, seq, DAY, DAY * 86_400, fault, raw)


def set_aside(archive: Path, *rows: Faulty) -> Counter[int]:
    stores = [cast(StoreSnapshot, SimpleNamespace(id=STORE))]  # nothing else of a store is asked for
    return quarantine(LocalStorage(archive), stores, rows)


def file_in(archive: Path) -> Path:
    return archive / "_quarantine" / f"date={day_name(DAY)}" / f"{STORE}.jsonl"


def lines_in(archive: Path) -> list[str]:
    return file_in(archive).read_text().splitlines()


def seqs_in(archive: Path) -> list[Any]:
    return [json.loads(line)["seq"] for line in lines_in(archive)]


def test_each_row_is_there_once_however_often_it_is_set_aside(tmp_path: Path) -> None:
    assert set_aside(tmp_path, faulty(3), faulty(1)) == {DAY: 2}
    before = lines_in(tmp_path)
    assert set_aside(tmp_path, faulty(3, fault="in other words"), faulty(2)) == {DAY: 3}

    assert seqs_in(tmp_path) == [1, 2, 3]
    assert json.loads(before[0]) == json.loads(lines_in(tmp_path)[0])
    assert json.loads(before[0])["raw"] == "ff00"


DAMAGES: dict[str, Callable[[str], str]] = {
    "a bit of a quote": lambda line: line.replace('"', " ", 1),
    "cut short": lambda line: line[:20],
    "garbage": lambda _: "\x0b\x1c\x85\xff what?",
    "no row": lambda _: "[7]",
    "no seq": lambda line: line.replace("seq", "sea"),
    "a seq of another kind": lambda line: line.replace(": 1,", ': "1",'),
    "truth": lambda line: line.replace(": 1,", ": true,"),
    "nested": lambda _: "[" * 100_000,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_file_with_a_damaged_line_is_kept_and_goes_on_counting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    set_aside(tmp_path, faulty(1), faulty(2))
    first, second = lines_in(tmp_path)
    damaged = f"{DAMAGES[damage](first)}\n{second}\n".encode("latin-1")
    file_in(tmp_path).write_bytes(damaged)

    assert set_aside(tmp_path, faulty(3), faulty(2)) == {DAY: 3}
    assert set_aside(tmp_path, faulty(3), faulty(4)) == {DAY: 4}

    beside = file_in(tmp_path).with_name(f"{STORE}.damaged-1.jsonl")
    assert beside.read_bytes() == damaged
    assert seqs_in(tmp_path) == [3, 4]
    names = [path.relative_to(tmp_path) for path in (file_in(tmp_path), beside)]
    assert caplog.messages == [f"file set aside file={names[0]} to={names[1]}"]


def test_each_file_that_was_damaged_is_kept(tmp_path: Path) -> None:
    for number in (1, 2):
        set_aside(tmp_path, faulty(number))
        file_in(tmp_path).write_text("what?\n")

    assert set_aside(tmp_path, faulty(3)) == {DAY: 3}
    assert sorted(path.name for path in file_in(tmp_path).parent.iterdir()) == [
        f"{STORE}.damaged-1.jsonl",
        f"{STORE}.damaged-2.jsonl",
        f"{STORE}.jsonl",
    ]


def test_run_that_was_killed_with_the_damaged_file_beside_loses_nothing(tmp_path: Path) -> None:
    set_aside(tmp_path, faulty(1), faulty(2))
    text = file_in(tmp_path).read_text().replace("seq", "sea", 1)
    file_in(tmp_path).with_name(f"{STORE}.damaged-1.jsonl").write_text(text)
    file_in(tmp_path).unlink()

    assert set_aside(tmp_path, faulty(2)) == {DAY: 2}
    assert not file_in(tmp_path).exists()
    assert set_aside(tmp_path, faulty(1)) == {DAY: 3}  # nobody knows that the damaged line is this row


def test_line_that_says_something_else_of_the_same_row_is_kept(tmp_path: Path) -> None:
    set_aside(tmp_path, faulty(1, b"\x01"), faulty(3, b"\x03"))
    file_in(tmp_path).write_text(file_in(tmp_path).read_text().replace('"seq": 3', '"seq": 1'))  # as a disk may

    for _ in range(2):
        assert set_aside(tmp_path, faulty(1, b"\x02"), faulty(3, b"\x03")) == {DAY: 4}

    assert [json.loads(line)["raw"] for line in lines_in(tmp_path)] == ["01", "02", "03", "03"]


def test_many_rows_are_split_over_files_of_a_limited_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine_module, "FILE_BYTES", 700)
    large = faulty(9, bytes(1000))

    for first in (1, 3, 5):
        rows = [faulty(seq) for seq in range(first, first + 4)]
        set_aside(tmp_path, *rows, large)
    files = sorted(file_in(tmp_path).parent.iterdir())

    assert [path.name for path in files] == [f"{STORE}.2.jsonl", f"{STORE}.3.jsonl", f"{STORE}.jsonl"]
    lines = [line for path in files for line in path.read_text().splitlines()]
    assert sorted(json.loads(line)["seq"] for line in lines) == [*range(1, 10)]
    assert sorted(path.stat().st_size < 700 for path in files) == [False, True, True]  # one line alone is longer
    assert set_aside(tmp_path, faulty(8), large) == {DAY: 9}
    assert sorted(file_in(tmp_path).parent.iterdir()) == files


def test_damaged_file_of_several_is_kept_beside_and_its_name_is_free_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine_module, "FILE_BYTES", 300)
    set_aside(tmp_path, *map(faulty, range(1, 5)))
    second = file_in(tmp_path).with_name(f"{STORE}.2.jsonl")
    damaged = second.read_text().replace("seq", "sea", 1)
    second.write_text(damaged)

    assert set_aside(tmp_path, faulty(3), faulty(5)) == {DAY: 6}  # nobody knows that the damaged line is a row of these

    assert file_in(tmp_path).with_name(f"{STORE}.damaged-1.jsonl").read_text() == damaged
    assert [json.loads(line)["seq"] for line in second.read_text().splitlines()] == [3, 5]


def test_lines_longer_than_what_is_read_at_once_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "_CHUNK_BYTES", 7)

    for _ in range(2):
        assert set_aside(tmp_path, faulty(1), faulty(2, bytes(50))) == {DAY: 2}

    assert seqs_in(tmp_path) == [1, 2]
    file_in(tmp_path).write_text(file_in(tmp_path).read_text().strip())  # the last line is not ended
    assert set_aside(tmp_path, faulty(1), faulty(2, bytes(50)), faulty(3)) == {DAY: 3}
    assert seqs_in(tmp_path) == [1, 2, 3]
