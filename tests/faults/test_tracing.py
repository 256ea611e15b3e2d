"""What is concluded from a trace, by traces of a few lines."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.faults.tracing import Confirmed, read_trace, unsafe_confirmation, unsafe_entries, unsafe_renames

PEER = "TCP:[127.0.0.1:5000->127.0.0.1:6000]"
RECEIVE = f'7 1.1 read(9<{PEER}>, "..", 65536) = 600'
SEND = f'7 1.5 write(9<{PEER}>, "..", 80) = 80'
WRITE = '8 1.2 pwrite64(14</d/db-wal>, ".. <mark> ..", 4096, 32) = 4096'
SYNC = "8 1.3 fdatasync(14</d/db-wal>) = 0"
SYNC_BEGINS = "8 1.3 fdatasync(14</d/db-wal> <unfinished ...>"
SYNC_ENDS = "8 1.4 <... fdatasync resumed>) = 0"
SYNC_FAILS = "8 1.3 fdatasync(14</d/db-wal>) = -1 EIO (Input/output error)"
PACKET = Confirmed(6000, ("<mark>",), 1.0, 2.0)
UNWRITTEN, UNSYNCED = "<mark> was confirmed before it was written", "<mark> was confirmed before it was synced"


def trace(tmp_path: Path, lines: Sequence[str]) -> Path:
    path = tmp_path / "trace"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([RECEIVE, WRITE, SYNC, SEND], None),
        ([RECEIVE, WRITE, SYNC_BEGINS, SYNC_ENDS, SEND], None),
        ([RECEIVE, WRITE, SEND, SYNC], UNSYNCED),
        ([RECEIVE, WRITE, SYNC_BEGINS, SEND, SYNC_ENDS], UNSYNCED),
        ([RECEIVE, WRITE, SYNC_FAILS, SEND], UNSYNCED),
        ([RECEIVE, SYNC_BEGINS, WRITE, SYNC_ENDS, SEND], UNSYNCED),
        ([RECEIVE, SYNC, WRITE, SEND], UNSYNCED),
        ([RECEIVE, SYNC, SEND], UNWRITTEN),
        ([WRITE, SYNC, RECEIVE, SEND], UNWRITTEN),
        ([RECEIVE, SEND, WRITE, SYNC], UNWRITTEN),
        ([RECEIVE, WRITE, SYNC], "the trace has no packet, or no confirmation"),
    ],
)
def test_confirmation_is_safe_after_the_sync_that_follows_the_write(
    tmp_path: Path, lines: Sequence[str], found: str | None
) -> None:
    calls = read_trace(trace(tmp_path, lines))

    assert unsafe_confirmation(calls, Path("/d/db-wal"), PACKET) == found


def test_entry_is_safe_after_a_sync_of_its_folder(tmp_path: Path) -> None:
    made = ['7 1.0 mkdir("/d", 0777) = 0', '7 1.1 openat(AT_FDCWD</>, "/d/db", O_RDWR|O_CREAT, 0644) = 5</d/db>']
    calls = read_trace(trace(tmp_path, [*made, "7 1.2 fsync(6</d>) = 0", "7 1.3 fsync(6</>) = 0"]))

    assert unsafe_entries(calls, Path("/d"), before=4) == []
    assert unsafe_entries(calls, Path("/d"), before=3) == ["/d"]
    assert unsafe_entries(calls, Path("/d"), before=2) == ["/d", "/d/db"]


def test_rename_is_safe_between_a_sync_of_the_file_and_one_of_the_folder(tmp_path: Path) -> None:
    write, sync = '7 1.0 write(5</d/x.tmp>, "..", 2) = 2', "7 1.1 fsync(5</d/x.tmp>) = 0"
    rename, sync_folder = '7 1.2 rename("/d/x.tmp", "/d/x") = 0', "7 1.3 fsync(6</d>) = 0"

    def found(*lines: str) -> list[str]:
        return unsafe_renames(read_trace(trace(tmp_path, lines)), Path("/d"))

    assert found(write, sync, rename, sync_folder) == []
    assert found(sync, write, rename, sync_folder) == ["/d/x: renamed before it was synced"]
    assert found(write, sync, rename) == ["/d/x: its folder was not synced"]
