"""Where tests put files that need no disk: in memory, as a real one would sync each of them."""

import shutil
from pathlib import Path

MIN_FREE_BYTES = 1 << 30
"""What any test takes there at most is a tenth of that."""


def fast_folder() -> Path | None:
    """Memory, if there is enough that is a file system. None: the usual folder."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and shutil.disk_usage(memory).free >= MIN_FREE_BYTES else None
