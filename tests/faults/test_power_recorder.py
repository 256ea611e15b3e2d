"""tests.faults.powercut.recorder: what a process does to its files is in the log, whichever way it does it."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.powercut.recorder import Entry, Kind, Recorder, build
from tests.faults.powercut.replay import Disk, Loss

EVERY_WAY = """
import ctypes, os, shutil, sys
from pathlib import Path

top = Path(sys.argv[1])
(top / "a" / "b").mkdir(parents=True)
os.chdir(top / "a")
Path("relative").write_text("one")
with open("relative", "a") as file:
    file.write(" and another")
descriptor = os.open("b/direct", os.O_RDWR | os.O_CREAT, 0o600)
copy = os.dup(descriptor)
os.write(copy, b"0123456789")
os.pwrite(descriptor, b"AB", 3)
os.writev(descriptor, [b"xy", b"z"])
os.pwritev(descriptor, [b"!", b"?"], 20)
os.ftruncate(descriptor, 21)
os.fchmod(descriptor, 0o640)
os.fsync(descriptor)
os.posix_fallocate(descriptor, 0, 30)
Path("relative").rename("b/moved")
os.link("b/moved", "second")
(top / "gone").write_text("soon")
folder = os.open(top, os.O_RDONLY)
os.unlink("gone", dir_fd=folder)
os.mkdir("made", dir_fd=folder)
os.fsync(folder)
(top / "tree" / "deep").mkdir(parents=True)
(top / "tree" / "deep" / "leaf").touch()
shutil.rmtree(top / "tree")
(top / "made" / "one").touch()
ctypes.CDLL(None).renameat2(-100, os.fsencode(top / "made"), -100, os.fsencode(top / "a" / "b"), 2)
os.truncate(top / "a" / "second", 4)
with open(top / "a" / "second", "wb") as file:
    file.write(b"anew")
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
for mode in (b"w", b"a", b"r+"):
    stream = ctypes.c_void_p(libc.fopen(b"stream", mode))
    libc.fputs(b"one" if mode == b"w" else b"more" if mode == b"a" else b"O", stream)
    libc.fclose(stream)
if os.fork() == 0:
    (top / "child").write_text("of a child")
    os._exit(0)
os.wait()
os.write(1, b"done\\n")
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("recorder"))


@pytest.fixture
def recorder(library: Path, tmp_path: Path) -> Recorder:
    (tmp_path / "disk").mkdir()
    return Recorder(library, tmp_path / "disk", tmp_path / "log")


def run(recorder: Recorder, script: str) -> list[Entry]:
    command = [sys.executable, "-c", script, str(recorder.folder)]
    subprocess.run(command, env={**os.environ, **recorder.environment}, check=True, timeout=60, stdout=subprocess.PIPE)
    return recorder.entries()


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(file.relative_to(folder)): (file.read_bytes(), file.stat().st_mode & 0o777) for file in files}


def test_log_has_all_that_was_done(recorder: Recorder, tmp_path: Path) -> None:
    disk = Disk(recorder.folder)

    for entry in run(recorder, EVERY_WAY):
        disk.play(entry)
    disk.cut(Loss.NOTHING, random.Random(0)).write_to(tmp_path / "played")

    assert contents(tmp_path / "played") == contents(recorder.folder)
    assert sorted(path.name for path in recorder.folder.iterdir()) == ["a", "child", "made"]


def test_what_is_told_is_logged_before_it_is_told(recorder: Recorder) -> None:
    entries = run(recorder, EVERY_WAY)

    told = next(at for at, entry in enumerate(entries) if entry.kind is Kind.OUT)
    assert entries[told].data == b"done\n"
    assert told == len(entries) - 1


def test_sync_has_a_beginning_and_an_end(recorder: Recorder) -> None:
    entries = [entry for entry in run(recorder, EVERY_WAY) if entry.kind in (Kind.SYNC_BEGIN, Kind.SYNC_END)]

    assert [entry.kind for entry in entries] == [Kind.SYNC_BEGIN, Kind.SYNC_END] * 2
    assert entries[0].b == entries[1].b == (recorder.folder / "made" / "direct").stat().st_ino
    assert entries[2].b == recorder.folder.stat().st_ino


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("os.sendfile(new, old, 0, 4)", "sendfile"),
        ("os.copy_file_range(old, new, 4)", "copy_file_range"),
        ("import mmap; os.ftruncate(new, 4096); mmap.mmap(new, 4096)", "mmap"),
    ],
)
def test_what_the_replay_has_no_model_of_is_named(call: str, name: str, recorder: Recorder) -> None:
    (recorder.folder / "old").write_text("text")
    script = f"""
import os, sys
old = os.open(sys.argv[1] + "/old", os.O_RDONLY)
new = os.open(sys.argv[1] + "/new", os.O_RDWR | os.O_CREAT)
{call}
"""

    entries = run(recorder, script)

    assert [(entry.path, entry.other) for entry in entries if entry.kind is Kind.UNKNOWN] == [("new", name)]


def test_nothing_is_logged_of_what_lies_elsewhere(recorder: Recorder, tmp_path: Path) -> None:
    entries = run(recorder, f"open({str(tmp_path / 'diskette')!r}, 'w').write('text')")

    assert entries == []


def test_processes_have_one_order(recorder: Recorder) -> None:
    script = """
import os, sys
descriptor = os.open(sys.argv[1] + "/shared", os.O_RDWR | os.O_CREAT)
children = []
for child in range(4):
    pid = os.fork()
    if pid == 0:
        for number in range(100):
            os.pwrite(descriptor, b"%d %d    " % (child, number), 0)
        os._exit(0)
    children.append(pid)
for pid in children:
    os.waitpid(pid, 0)
"""

    entries = run(recorder, script)

    writes = [entry for entry in entries if entry.kind is Kind.WRITE]
    assert len(writes) == 400
    assert (recorder.folder / "shared").read_bytes().startswith(writes[-1].data)
