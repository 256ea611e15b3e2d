"""Reads from the kernel how long processes and threads have waited for a processor."""

import os
from pathlib import Path


def waited_s(pid: int) -> float:
    """How long the main thread of a process was ready to run, but waited for a processor.

    Real attackers have machines of their own. Here they share two processors with the mailserver and with whatever else
    runs, so time spent waiting for a processor is the test's fault, not the mailserver's.
    """
    _, waited_ns, _ = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text(encoding="ascii").split()
    return int(waited_ns) / 1e9


class ThreadWaits:
    """Tells how long the thread that made it has waited for a processor so far, in seconds. Keeps one file open."""

    def __init__(self) -> None:
        self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

    def __call__(self) -> float:
        _, waited_ns, _ = os.pread(self._file, 128, 0).split()
        return int(waited_ns) / 1e9

    def __enter__(self) -> "ThreadWaits":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)
