"""A wall clock that tests move under unchanged daemons and commands. Timeouts still take real time.

A small library (`moved_clock.c`) does it: it is compiled here, and loaded before all others.
"""

import mmap
import os
import struct
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

_SOURCE = Path(__file__).with_name("moved_clock.c")
_SECONDS = struct.Struct("q")


class MovedClock:
    """A clock, and what processes need to follow it. It starts at the real time."""

    def __init__(self, folder: Path, *, machine_sleeps: bool = False) -> None:
        """Compile the library and make the clock's file in `folder`.

        Args:
            machine_sleeps: each step is a sleep of the machine: CLOCK_BOOTTIME goes with the wall clock.
        """
        self._library = folder / "moved_clock.so"
        self._file = folder / "moved_clock"
        self._machine_sleeps = machine_sleeps
        compiler = os.environ.get("CC", "cc")
        command = [compiler, "-O2", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(self._library), str(_SOURCE)]
        subprocess.run(command, check=True)
        self._file.write_bytes(_SECONDS.pack(0))
        with self._file.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _SECONDS.size)

    @property
    def moved_by(self) -> int:
        """Seconds by which it differs from the real time."""
        seconds: int = _SECONDS.unpack(self._memory)[0]
        return seconds

    def now(self) -> float:
        """What it shows, in Unix seconds."""
        return time.time() + self.moved_by

    def step(self, seconds: int) -> None:
        """Move it for all processes at once: forward, or back if below zero."""
        self._memory[:] = _SECONDS.pack(self.moved_by + seconds)

    def set(self, unix_seconds: int) -> None:
        """Move it to a moment, to the second."""
        self.step(unix_seconds - int(self.now()))

    def environment(self) -> dict[str, str]:
        """Variables of a process that goes by this clock, and follows its steps."""
        return self._environment(self._file)

    def standing(self) -> Mapping[str, str]:
        """The same for a process that goes by the clock as it is now, whatever its later steps."""
        name = self._file.with_name(f"{self._file.name}-{self.moved_by}")
        name.write_bytes(_SECONDS.pack(self.moved_by))
        return self._environment(name)

    def _environment(self, file: Path) -> dict[str, str]:
        variables = {"LD_PRELOAD": str(self._library), "MOVED_CLOCK": str(file)}
        return {**variables, "MOVED_CLOCK_SLEEPS": "1"} if self._machine_sleeps else variables
