"""Temporary files of tests are kept in memory, where there is room.

The tests sync files some hundred thousand times, and to wait for a disk took a third of their time. None of them judges
the disk: those of durability look at the order of the system calls, or cut the power of a disk of their own.
"""

import os
import tempfile
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
"""A file system in memory, on Linux."""

ROOM_BYTES = 6 * 2**30
"""What must be free there, and of the memory. A whole run has had 1.0 GiB in use at most."""


def keep_in_memory(folder: Path = SHARED_MEMORY, room_bytes: int = ROOM_BYTES) -> bool:
    """Have temporary files of this process, and of those it starts, in `folder`, unless TMPDIR says where they go."""
    if "TMPDIR" in os.environ or not folder.is_dir() or not os.access(folder, os.W_OK):
        return False
    system = os.statvfs(folder)
    if system.f_flag & os.ST_NOEXEC or min(system.f_bavail * system.f_frsize, _free_memory()) < room_bytes:
        return False  # tests load libraries that they have compiled
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None
    return True


def _free_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.removesuffix("kB")) * 1024
    return 0
