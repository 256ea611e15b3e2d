"""Recording what processes write below a folder: builds `recorder.c`, says how to load it, and reads its log."""

import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

SOURCE = Path(__file__).with_name("recorder.c")
FLAGS = ("-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden")

_HEADER = struct.Struct("<IIqqIIII")  # as `struct header` of recorder.c


class Kind(IntEnum):
    """What has happened; as `enum kind` of recorder.c."""

    CREATE = 1
    MKDIR = 2
    WRITE = 3
    TRUNCATE = 4
    ALLOCATE = 5
    SYNC_BEGIN = 6
    SYNC_END = 7
    RENAME = 8
    EXCHANGE = 9
    LINK = 10
    UNLINK = 11
    CHMOD = 12
    SEND = 13
    OUT = 14
    UNKNOWN = 15


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log. Paths are relative to the folder, "" is the folder itself.

    | kind | a | b | path, other, data |
    | --- | --- | --- | --- |
    | CREATE, MKDIR | inode | permissions | path of what is new |
    | WRITE | inode | offset | data |
    | TRUNCATE, ALLOCATE | inode | size in bytes; ALLOCATE never shortens | |
    | SYNC_BEGIN, SYNC_END | number of this sync | inode | |
    | RENAME, EXCHANGE, LINK | | | path from, other to |
    | UNLINK | | | path of a file, or of an empty folder |
    | CHMOD | inode | permissions | |
    | SEND | TCP port of the peer | bytes | |
    | OUT | 1 or 2, standard output or error | bytes | data: the first 4,096 of them |
    | UNKNOWN | | | path, other: the call that the replay has no model of |
    """

    kind: Kind
    a: int
    b: int
    path: str
    other: str
    data: bytes
    pid: int


@dataclass(frozen=True, slots=True)
class Recorder:
    """Where to record: `folder` and everything below; `log` lies outside of it."""

    library: Path
    folder: Path
    log: Path

    @property
    def environment(self) -> dict[str, str]:
        """What makes a process, and every child of it, record."""
        assert not set(" :") & set(str(self.library)), "LD_PRELOAD is a list"
        return {
            "LD_PRELOAD": str(self.library),
            "RECORDER_ROOT": str(self.folder.resolve()),
            "RECORDER_LOG": str(self.log.resolve()),
        }

    def entries(self) -> list[Entry]:
        """What was recorded so far."""
        return list(_decode(self.log.read_bytes()))


def build(folder: Path) -> Path:
    """Build the library in a folder.

    Raises:
        subprocess.CalledProcessError: the compiler says why, on standard error.
    """
    compiler = os.environ.get("CC") or shutil.which("cc") or "gcc"
    library = folder / "recorder.so"
    subprocess.run([compiler, *FLAGS, "-o", str(library), str(SOURCE), "-ldl", "-pthread"], check=True)
    return library


def _decode(log: bytes) -> Iterator[Entry]:
    view, at = memoryview(log), 0
    while at < len(log):
        size, kind, a, b, path_bytes, other_bytes, data_bytes, pid = _HEADER.unpack_from(log, at)
        path = at + _HEADER.size
        other = path + path_bytes
        data = other + other_bytes
        assert data + data_bytes == at + size, "an entry of the log is cut off"
        yield Entry(
            Kind(kind),
            a,
            b,
            os.path.normpath(os.fsdecode(view[path:other].tobytes())) if path_bytes else "",
            os.path.normpath(os.fsdecode(view[other:data].tobytes())) if other_bytes else "",
            view[data : data + data_bytes].tobytes(),
            pid,
        )
        at += size
