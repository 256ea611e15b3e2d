"""The real programs as processes: a daemon for the length of a `with`, and commands that run to their end.

Nothing here sleeps: lines of a daemon's log are waited for with a deadline. Whatever happens, no process is left
behind, and none may have written a traceback.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mailserver.codec.keys import Enode
from mailserver.data_dir.folder import read_enode
from tests.usage import waited_s

PROGRAM = (sys.executable, "-m", "mailserver")

DEADLINE_S = 20.0
"""How long anything may take on a machine that has much else to do."""

STOP_WITHIN_S = 5.0
"""How long a daemon may take to stop on a machine that has nothing else to do."""

_LOOK_S = 0.05
"""How often a daemon that stops is asked how long it has waited for a processor."""


class Daemon:
    """A mailserver process. Made by `running_daemon`; `lines` is what it has logged so far."""

    def __init__(self, process: subprocess.Popen[str], data_dir: Path) -> None:
        self.process = process
        self.data_dir = data_dir
        self.lines: list[str] = []
        self._logged = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read_log)
        self._reader.start()

    @property
    def enode(self) -> Enode:
        """Where it listens; waits until it does, by its log in either format."""
        self.wait_for_line("listening")
        return read_enode(self.data_dir)

    @property
    def log(self) -> str:
        """All lines so far, to look into and to show when a test fails."""
        return "\n".join(self.lines)

    @property
    def told(self) -> list[str]:
        """What it has logged, but for how full the disk of this machine is: no test decides that."""
        return [line for line in self.lines if "check=disk" not in line and '"check": "disk"' not in line]

    def wait_for_line(self, text: str, within_s: float = DEADLINE_S) -> str:
        """Wait until it has logged a line with `text` in it; return the first."""
        with self._logged:
            self._logged.wait_for(lambda: self._ended or any(text in line for line in self.lines), within_s)
        found = next((line for line in self.lines if text in line), None)
        assert found is not None, f"no line with {text!r} in the log:\n{self.log}"
        return found

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal; return the exit code, which must come within STOP_WITHIN_S.

        The time for which its main thread could have run, and others had the processors, does not count.
        """
        began, waited_before_s = time.monotonic(), waited_s(self.process.pid)
        self.process.send_signal(number)
        while True:
            try:
                return self.wait(_LOOK_S)
            except subprocess.TimeoutExpired:
                took_s, waiting_s = time.monotonic() - began, waited_s(self.process.pid) - waited_before_s
            assert took_s - waiting_s < STOP_WITHIN_S, f"{took_s:.1f} s, {waiting_s:.1f} s of it for a processor"

    def wait(self, within_s: float = DEADLINE_S) -> int:
        """Wait until it has ended by itself and all of its log is read; return the exit code."""
        code = self.process.wait(within_s)
        self._reader.join(DEADLINE_S)
        return code

    def end(self) -> None:
        """Kill it, if it still runs, and take its last words."""
        self.process.kill()
        self.wait()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as log:
            for line in log:
                with self._logged:
                    self.lines.append(line.rstrip("\n"))
                    self._logged.notify_all()
        with self._logged:
            self._ended = True
            self._logged.notify_all()


@contextlib.contextmanager
def running_daemon(
    data_dir: Path,
    *flags: str,
    environment: Mapping[str, str] | None = None,
    listening: bool = True,
    program: Sequence[str] = PROGRAM,
) -> Iterator[Daemon]:
    """Run a mailserver on a free port of loopback; kill it at the end, if it still runs.

    Args:
        flags: more of `waku-mailserver run`.
        environment: more variables.
        listening: wait until it listens.
        program: what runs `waku-mailserver`, if not this Python alone.
    """
    arguments = ["run", "--data-dir", str(data_dir), "--listen", "127.0.0.1:0", *flags]
    process = subprocess.Popen(
        [*program, *arguments],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=own_environment(environment),
    )
    daemon = Daemon(process, data_dir)
    try:
        if listening:
            daemon.wait_for_line("listening")
        yield daemon
    finally:
        daemon.end()
    assert_no_traceback(daemon.log)


def run_command(
    *arguments: object,
    program: Sequence[str] = PROGRAM,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    within_s: float = DEADLINE_S,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with nothing to read and pipes to write to."""
    done = subprocess.run(
        [*program, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=within_s,
        env=own_environment(environment),
        cwd=folder,
        check=False,
    )
    assert_no_traceback(done.stderr)
    return done


@contextlib.contextmanager
def started_command(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Start a command with pipes to write to; kill it at the end, if it still runs."""
    with subprocess.Popen(
        [*PROGRAM, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=own_environment(),
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def assert_no_traceback(text: str) -> None:
    """Whatever went wrong, people get a line and not a traceback."""
    assert "Traceback" not in text, text
    assert "Exception ignored" not in text, text
    assert "never retrieved" not in text, text


def own_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Ours, without the settings of whoever runs the tests; warnings of a process are errors as in the tests."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("MAILSERVER_")}
    return {**ours, "PYTHONPATH": os.pathsep.join(sys.path), **(more or {})}
