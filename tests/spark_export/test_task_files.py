"""spark_export.task_files: files in a folder. An object store is in the tests of S3."""

import ctypes
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from mailserver.archive.errors import ArchiveError
from spark_export.task_files import TaskFiles

DATA = pa.py_buffer(b"data")

CACHESTAT = 451
"""The number of this system call, on every machine that has it."""


def test_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    files = TaskFiles(f"file://{tmp_path}/an archive%20")

    files.write("a/b/part", DATA, "ways/part-1")
    files.write("a/b/part", pa.py_buffer(b"again"), "ways/part-2")

    assert files.read("a/b/part") == pa.py_buffer(b"again")
    with files.opened("a/b/part") as file:
        file.seek(2)
        assert file.read() == b"ain"
    assert [file.name for file in (tmp_path / "an archive%20").rglob("part*")] == ["part"]


def test_file_that_cannot_be_finished_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "full").touch()

    with pytest.raises(ArchiveError, match=rf"^cannot write file://{tmp_path}/part: ") as caught:
        TaskFiles(f"file://{tmp_path}").write("part", DATA, "ways/part")

    assert "\n" not in str(caught.value)


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A folder that is not in memory, as those for tests may be."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


def test_flushed_file_is_on_its_way_to_the_disk(on_disk: Path) -> None:
    files = TaskFiles(f"file://{on_disk}")
    files.write("a/part", pa.py_buffer(bytes(1_000_000)), "ways/part")
    before = dirty_pages(on_disk / "a/part")
    if not before:
        pytest.skip("the kernel does not tell, or has written it by itself")

    files.flush("a/part")

    assert dirty_pages(on_disk / "a/part") < before
    assert files.read("a/part") == pa.py_buffer(bytes(1_000_000))


def dirty_pages(path: Path) -> int:
    """How many pages of a file only the kernel has; 0 if it does not tell."""
    found = (ctypes.c_uint64 * 5)()  # struct cachestat: cached, dirty, ...
    with path.open("rb") as file:
        failed = ctypes.CDLL(None).syscall(CACHESTAT, file.fileno(), (ctypes.c_uint64 * 2)(), found, 0)
    return 0 if failed else found[1]


def test_full_disk_is_told_as_every_program_tells_it(tmp_path: Path) -> None:
    name = f"{tmp_path}/part"

    with pytest.raises(ArchiveError, match=r"^cannot write file://.*/part: No space left on device$"):
        TaskFiles("file:///").write(name, DATA, "dev/full")


def test_missing_file_is_named(tmp_path: Path) -> None:
    files = TaskFiles(f"file://{tmp_path}")

    for attempt in (files.read, files.opened, files.flush):
        with pytest.raises(ArchiveError, match=rf"^cannot (read|write) file://{tmp_path}/none: {os.strerror(2)}$"):
            attempt("none")


def test_unknown_scheme_is_an_archive_error() -> None:
    with pytest.raises(ArchiveError, match="cannot open moon://there/archive: "):
        TaskFiles("moon://there/archive")
