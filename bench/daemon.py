"""The mailserver under test and its gateway, each a process of its own: what it has used, how long it took to start."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from mailserver.codec.keys import Enode
from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.data_dir.folder import ENODE_FILE
from mailserver.data_dir.gateway_files import ADDRESSES_FILE
from mailserver.handoff.communities import SERVED_FILE

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
_POLL_S = 0.002


class DaemonFailed(Exception):
    """The daemon did not start, or did not stop by itself."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process has used since it started: seconds of CPU of all its threads, and its highest memory (VmHWM).

    The others are of this moment. `memory_bytes` (VmRSS) is not its proportional share: what it has in common with the
    benchmark, whose interpreter is the same one, would count for less the more processes that has.
    """

    cpu_s: float
    memory_bytes: int
    peak_bytes: int
    open_files: int
    threads: int


def usage(pid: int) -> Usage:
    """Ask the kernel what a process has used.

    Raises:
        OSError: there is no such process.
    """
    used_s = cpu_s(pid)
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    if "VmHWM" not in fields:  # it has ended, and nobody has asked how
        raise ProcessLookupError(f"process {pid} has no memory any more")
    memory_bytes, peak_bytes = (int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    open_files = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return Usage(used_s, memory_bytes, peak_bytes, open_files, int(fields["Threads"]))


def cpu_s(pid: int) -> float:
    """Seconds of CPU of all threads of a process, as `usage`."""
    # The CPU clock of another process: see clock_getcpuclockid(3). It is utime + stime of /proc/PID/stat, but in
    # nanoseconds where that counts hundredths of a second, longer than most answers take.
    return time.clock_gettime(~pid << 3 | 2)


class _Server:
    """A process of ours that says in a file that it listens, as long as the context is entered."""

    def __init__(self, name: str, command: Sequence[str], told_in: Path, flags: Sequence[str]) -> None:
        """Prepare to start `waku-mailserver COMMAND`; it writes the file `told_in` once it listens."""
        self._name = name
        self._command = [sys.executable, "-m", "mailserver", *command, *flags]
        self._told_in = told_in
        self._log_file = told_in.parent / f"{name}.log"
        self._process: subprocess.Popen[bytes]
        self.start_s = 0.0
        self.start_cpu_s = 0.0
        """From making the process until it listens, and what CPU it has used by then."""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def usage(self) -> Usage:
        """What it has used."""
        return usage(self.pid)

    def _start(self) -> str:
        """Start it; return what it has written."""
        self._told_in.parent.mkdir(parents=True, exist_ok=True)
        self._told_in.unlink(missing_ok=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MAILSERVER_")}
        began = time.perf_counter()
        with self._log_file.open("wb") as log:
            self._process = subprocess.Popen(self._command, env=environment, stderr=log)
        while not self._told_in.exists():
            if self._process.poll() is not None:
                raise DaemonFailed(f"the {self._name} ended with {self._process.returncode}: {self._log()}")
            if time.perf_counter() - began > START_TIMEOUT_S:
                self._process.kill()
                raise DaemonFailed(f"the {self._name} did not listen within {START_TIMEOUT_S:g} s: {self._log()}")
            time.sleep(_POLL_S)
        self.start_s, self.start_cpu_s = time.perf_counter() - began, usage(self.pid).cpu_s
        return self._told_in.read_text(encoding="ascii")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as expired:
            self._process.kill()
            self._process.wait()
            raise DaemonFailed(f"the {self._name} did not stop within {STOP_TIMEOUT_S:g} s: {self._log()}") from expired
        if self._process.returncode != 0:
            raise DaemonFailed(f"the {self._name} ended with {self._process.returncode}: {self._log()}")

    def _log(self) -> str:
        return self._log_file.read_text(encoding="utf-8", errors="replace")[-2000:]


class Daemon(_Server):
    """Our mailserver on a free port of loopback, as long as the context is entered. Its log is DIR/daemon.log."""

    def __init__(self, data_dir: Path, password: str, flags: Sequence[str] = ()) -> None:
        """Prepare to start it; `flags` are added to those that every daemon here gets."""
        command = ["run", "--data-dir", str(data_dir), "--listen", "127.0.0.1:0", "--password", password]
        super().__init__("daemon", command, data_dir / ENODE_FILE, flags)
        self.enode: Enode

    def __enter__(self) -> "Daemon":
        self.enode = Enode.parse(self._start())
        return self


class CommunitiesService(_Server):
    """`community serve` of a data directory, in the same manner. Its log is DIR/communities/communities.log."""

    def __init__(self, data_dir: Path) -> None:
        """Prepare to start it on a free port of loopback."""
        command = ["community", "serve", "--data-dir", str(data_dir), "--torrent-listen", "127.0.0.1:0"]
        super().__init__("communities", command, data_dir / COMMUNITIES_FOLDER / SERVED_FILE, ())

    def __enter__(self) -> "CommunitiesService":
        self._start()
        return self

    def child_pid(self) -> int:
        """Of the torrent process."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        (child,) = (int(pid) for task in tasks for pid in (task / "children").read_text(encoding="ascii").split())
        return child


class Gateway(_Server):
    """The gateway of a data directory on a free port of loopback, in the same manner. Its log is DIR/gateway.log."""

    def __init__(self, data_dir: Path, flags: Sequence[str] = ()) -> None:
        """Prepare to start it, without limits for clients of loopback; `flags` are added."""
        command = ["gateway", "--data-dir", str(data_dir), "--listen", "127.0.0.1:0", "--websocket", ""]
        command += ["--allowed-addresses", "127.0.0.0/8", "--connections-per-second", "0"]
        super().__init__("gateway", command, data_dir / ADDRESSES_FILE, flags)
        self.address = ""

    def __enter__(self) -> "Gateway":
        self.address = self._start().split()[0]
        return self
