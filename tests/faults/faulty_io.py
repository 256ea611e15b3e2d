"""Errors of the disk, on demand: a process runs with `faulty_io.c` before the C library, and fails where it is told to.

The switch is a file that both have mapped: what a test sets holds from the process' next call on.
"""

import contextlib
import errno
import mmap
import shutil
import struct
import subprocess
from collections.abc import Iterator, Mapping
from enum import IntFlag
from pathlib import Path

_SOURCE = Path(__file__).with_name("faulty_io.c")
_LAYOUT = struct.Struct("@iiiiii100s")  # struct control


class Calls(IntFlag):
    """Calls that may fail; OPEN is of files that are to be written."""

    WRITE = 1
    SYNC = 2
    TRUNCATE = 4
    OPEN = 8
    READ = 16
    RENAME = 32


WRITING = Calls.WRITE | Calls.SYNC | Calls.TRUNCATE | Calls.OPEN | Calls.RENAME
"""All that changes a disk."""


class FaultyIO:
    """The switch for processes that are started with `environment`. Made by `faulty_io`."""

    def __init__(self, control: mmap.mmap, environment: Mapping[str, str]) -> None:
        self._control = control
        self.environment = environment

    def fail(
        self,
        error: int,
        calls: Calls,
        name: str = "",
        *,
        passes: int = 0,
        failures: int = -1,
        dies: bool = False,
    ) -> None:
        """Have calls fail from now on.

        Args:
            error: as in `errno`.
            name: only files whose path has this in it.
            passes: so many of these calls pass first.
            failures: so many fail then; -1: all.
            dies: the process ends there, instead.
        """
        self._set(0, 0, 0, 0, False, "")  # never half of the one and half of the other
        self._set(error, calls, passes, failures, dies, name)

    def mend(self) -> int:
        """Let nothing fail any more; return how often something did."""
        hits = self.hits
        self._set(0, 0, 0, 0, False, "")
        return hits

    @property
    def hits(self) -> int:
        """How many calls have failed since `fail`."""
        return int(_LAYOUT.unpack_from(self._control)[5])

    def _set(self, error: int, calls: int, passes: int, failures: int, dies: bool, name: str) -> None:
        packed = _LAYOUT.pack(0, calls, passes, failures, dies, 0, name.encode())
        self._control[: len(packed)] = packed
        self._control[:4] = struct.pack("@i", error)  # this turns it on


@contextlib.contextmanager
def faulty_io(scratch: Path, folder: Path, *, shadow: Path | None = None) -> Iterator[FaultyIO]:
    """Build the library, and have it ready for processes that work on `folder`.

    Args:
        scratch: a folder for library and switch.
        shadow: a folder that shall have what would be on the disk if the power failed; made as a copy of `folder`.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    library, control = scratch / "faulty_io.so", scratch / "control"
    build(library)
    control.write_bytes(bytes(_LAYOUT.size))
    environment = {
        "LD_PRELOAD": str(library),
        "FAULTY_IO_CONTROL": str(control),
        "FAULTY_IO_FOLDER": str(folder.resolve()),
    }
    if shadow is not None:
        shutil.copytree(folder, shadow, ignore=shutil.ignore_patterns("*-shm", "control"))
        environment["FAULTY_IO_SHADOW"] = str(shadow.resolve())
    with control.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        yield FaultyIO(mapped, environment)


def build(library: Path) -> None:
    """Compile it, unless that is done."""
    if not library.exists():
        command = [
            "cc",
            "-O1",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-shared",
            "-fPIC",
            "-o",
            str(library),
            str(_SOURCE),
            "-ldl",
        ]
        subprocess.run(command, check=True, timeout=60)


def error_text(error: int) -> str:
    """The name of an `errno`."""
    return errno.errorcode[error]
