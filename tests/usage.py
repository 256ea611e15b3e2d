"""How long processes and threads have waited for a processor, as the kernel counts it."""

import os
from pathlib import Path


def waited_s(pid: int) -> float:
    """How long the main thread of a process could have run, and waited for a processor that others had.

    Attackers have machines of their own; here they share two processors with whoever they attack, and with whatever
    else runs. What was waited for a processor is the test's doing, and not the mailserver's.
    """
    _, waited_ns, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text(encoding="ascii").split()
    return int(waited_ns) / 1e9


class ThreadWaits:
    """How long the thread that has made this has waited for a processor so far, in seconds; it keeps one file open."""

    def __init__(self) -> None:
        self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

    def __call__(self) -> float:
        _, waited_ns, _ = os.pread(self._file, 128, 0).split()
        return int(waited_ns) / 1e9

    def __enter__(self) -> "ThreadWaits":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)
