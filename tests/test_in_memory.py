"""tests.in_memory: temporary files are in memory only where nothing speaks against it."""

import tempfile
from pathlib import Path

import pytest

from tests.in_memory import keep_in_memory


@pytest.fixture(autouse=True)
def _nowhere_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "")  # so that it is put back
    monkeypatch.delenv("TMPDIR")
    monkeypatch.setattr(tempfile, "tempdir", tempfile.gettempdir())


def test_files_are_there_if_there_is_room(tmp_path: Path) -> None:
    assert keep_in_memory(tmp_path, room_bytes=1)
    assert tempfile.gettempdir() == str(tmp_path)


def test_without_room_they_are_where_they_were(tmp_path: Path) -> None:
    before = tempfile.gettempdir()

    assert not keep_in_memory(tmp_path, room_bytes=2**60)
    assert not keep_in_memory(tmp_path / "missing", room_bytes=1)
    assert tempfile.gettempdir() == before


def test_who_runs_the_tests_has_the_last_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/elsewhere")

    assert not keep_in_memory(tmp_path, room_bytes=1)
