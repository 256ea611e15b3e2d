"""What a process has of the machine, as the kernel counts it: memory, open files, CPU, and waiting for that."""

import os
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one process at one moment. `peak_bytes` is its highest memory so far (VmHWM); `cpu_s` is of all threads."""

    memory_bytes: int
    peak_bytes: int
    open_files: int
    threads: int
    cpu_s: float


def usage(pid: int) -> Usage:
    """Ask for all of it.

    Raises:
        OSError: there is no such process.
    """
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    if "VmHWM" not in fields:  # it has ended, and nobody has asked how
        raise ProcessLookupError(f"process {pid} has no memory any more")
    return Usage(
        memory_bytes=int(fields["VmRSS"].split()[0]) * 1024,
        peak_bytes=int(fields["VmHWM"].split()[0]) * 1024,
        open_files=sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
        threads=int(fields["Threads"]),
        cpu_s=cpu_s(pid),
    )


def cpu_s(pid: int) -> float:
    """Seconds of CPU of all threads of a process: see clock_getcpuclockid(3)."""
    return time.clock_gettime(~pid << 3 | 2)


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
