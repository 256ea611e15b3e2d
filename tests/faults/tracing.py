"""What the mailserver asks of the kernel, in order: the daemon under strace, and what may be concluded from that.

A line stands where strace saw the call end; where other threads' calls came between its begin and its end, it is in two
lines, and an event has both places. So "a sync was over before a send began" is a comparison of line numbers.
"""

import contextlib
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mailserver.data_dir.folder import LOCK_FILE
from tests.integration.daemons import Daemon, running_daemon

STRACE = (
    "strace",
    "--follow-forks",
    "--decode-fds=all",
    "--absolute-timestamps=format:unix,precision:us",
    "--string-limit=16500",  # a page, so that what is in it can be found
    "--signal=none",
    "--quiet=all",
)
CALLS = (
    *("openat", "mkdir", "rename", "fsync", "fdatasync", "pwrite64", "write"),
    *("read", "recvfrom", "recvmsg", "sendto", "sendmsg", "writev"),
)
CAREFUL = (sys.executable, "-m", "mailserver")
CARELESS = (sys.executable, "-m", "tests.faults.careless")

_CALL = re.compile(r"^(\d+) +(\d+\.\d+) (\w+)\((.*)$")
_RESUMED = re.compile(r"^(\d+) +(\d+\.\d+) <\.\.\. (\w+) resumed>(.*)$")
_RESULT = re.compile(r"\) += (-?\d+)[^=]*$")
_DESCRIPTOR = re.compile(r"^\d+<(TCP:\[[^]]*\]|[^>]*)>")
_QUOTED = re.compile(r'"([^"]*)"')
_UNFINISHED = " <unfinished ...>"


@dataclass(slots=True)
class Call:
    """One system call. `began` and `ended` are places in the trace, `time` is that of its begin, Unix seconds.

    `on` is the path or socket of its first argument's descriptor, "" if that is none; `result` is None if it never came
    back.
    """

    name: str
    time: float
    began: int
    on: str
    arguments: str
    ended: int = sys.maxsize
    result: int | None = None

    @property
    def paths(self) -> list[str]:
        """The paths among its arguments."""
        return _QUOTED.findall(self.arguments)

    @property
    def is_sync(self) -> bool:
        """Whether it had a file, or a folder, on disk when it ended."""
        return self.name in ("fsync", "fdatasync") and self.result == 0

    @property
    def is_send(self) -> bool:
        """Whether it sends something to a peer."""
        return self.name in ("write", "writev", "sendto", "sendmsg") and self.on.startswith("TCP:")

    @property
    def is_receive(self) -> bool:
        """Whether something came from a peer with it."""
        is_read = self.name in ("read", "recvfrom", "recvmsg")
        return is_read and self.on.startswith("TCP:") and self.result is not None and self.result > 0

    @property
    def peer_port(self) -> int:
        """The port of the peer whose socket it is about."""
        return int(self.on.rpartition(":")[2].rstrip("]"))


@contextlib.contextmanager
def traced_daemon(data_dir: Path, trace: Path, *, program: Sequence[str] = CAREFUL) -> Iterator[Daemon]:
    """Run the daemon under strace, whose output goes to `trace`; both are gone at the end."""
    # With seccomp-bpf, other calls are not even stopped at.
    command = (*STRACE, "--seccomp-bpf", f"--trace={','.join(CALLS)}", f"--output={trace}", *program)
    with running_daemon(data_dir, program=command, listening=False) as daemon:
        try:
            daemon.wait_for_line("listening")
            yield daemon
        finally:
            stop_traced(daemon)


def killed_at(call: str, number: int) -> tuple[str, ...]:
    """The daemon as a program that is killed when one of its threads is about to make a call for so many times."""
    return (*STRACE, f"--trace={call}", f"--inject={call}:signal=SIGKILL:when={number}", "--output=/dev/null", *CAREFUL)


def counting(call: str, trace: Path) -> tuple[str, ...]:
    """The daemon as a program whose calls of one kind go to `trace`."""
    return (*STRACE, f"--trace={call}", f"--output={trace}", *CAREFUL)


def most_calls(trace: Path) -> int:
    """How many of the calls in a trace were made by the thread that has made most."""
    threads = Counter(match.group(1) for line in trace.read_text().splitlines() if (match := _CALL.match(line)))
    return max(threads.values(), default=0)


def stop_traced(daemon: Daemon) -> None:
    """Stop the daemon, and not strace, which ends with it: killed itself, it would leave the daemon behind."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(int((daemon.data_dir / LOCK_FILE).read_text(encoding="ascii")), signal.SIGTERM)
    daemon.wait()


def read_trace(path: Path) -> list[Call]:
    """Read what strace has written, calls by their begin."""
    calls: list[Call] = []
    unfinished: dict[tuple[str, str], Call] = {}
    with path.open(encoding="utf-8", errors="replace") as lines:
        for place, line in enumerate(lines):
            if match := _CALL.match(line):
                process, time, name, rest = match.groups()
                on = _DESCRIPTOR.match(rest)
                call = Call(name, float(time), place, on.group(1) if on else "", rest)
                calls.append(call)
                if rest.rstrip().endswith(_UNFINISHED):
                    unfinished[process, name] = call
                else:
                    _end(call, place, rest)
            elif match := _RESUMED.match(line):
                process, _, name, rest = match.groups()
                call = unfinished.pop((process, name))
                call.arguments += rest
                _end(call, place, rest)
    return calls


def _end(call: Call, place: int, rest: str) -> None:
    result = _RESULT.search(rest)
    if result:
        call.ended, call.result = place, int(result.group(1))


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A packet that was confirmed: its connection, by the client's port, a text in each of its envelopes, and from when
    to when the client waited, Unix seconds."""

    port: int
    marks: tuple[str, ...]
    sent_at: float
    confirmed_at: float


def unsafe_confirmation(calls: Sequence[Call], log: Path, packet: Confirmed) -> str | None:
    """Why the confirmation of a packet may have been sent too early; None if all was as it should be.

    It came by the socket; each of its envelopes was written to the log of SQLite after that; a sync of the log began
    after those writes, and was over before anything was sent on that socket.
    """
    window = [call for call in calls if packet.sent_at <= call.time <= packet.confirmed_at]
    ours = [call for call in window if call.on.startswith("TCP:") and call.peer_port == packet.port]
    received = [call.ended for call in ours if call.is_receive]
    sent = [call.began for call in ours if call.is_send]
    if not received or not sent:
        return "the trace has no packet, or no confirmation"
    writes = [call for call in calls if call.on == str(log) and call.name == "pwrite64" and call.began > received[0]]
    for mark in packet.marks:
        at = [call.ended for call in writes if mark in call.arguments]
        if not at or at[0] > sent[0]:
            return f"{mark} was confirmed before it was written"
        if not any(
            call.is_sync and call.on == str(log) and at[0] < call.began <= call.ended < sent[0] for call in calls
        ):
            return f"{mark} was confirmed before it was synced"
    return None


def unsafe_entries(calls: Sequence[Call], folder: Path, before: int) -> list[str]:
    """What was made in a folder, and the folders above that were made, whose entries were not on disk at some place.

    Args:
        before: the place in the trace by which all that was made must be on disk.
    """
    unsafe = []
    for call in calls:
        made = _made_by(call)
        if made is None or call.ended > before or not (made.is_relative_to(folder) or folder.is_relative_to(made)):
            continue
        if not _synced(calls, made.parent, call.ended, before):
            unsafe.append(str(made))
    return unsafe


def unsafe_renames(calls: Sequence[Call], folder: Path) -> list[str]:
    """Which files in a folder took their place with content that was not on disk, or without a sync of the folder."""
    unsafe = []
    for call in calls:
        if call.name != "rename" or call.result != 0 or not Path(call.paths[1]).is_relative_to(folder):
            continue
        temporary, final = map(Path, call.paths)
        written = [each.ended for each in calls if each.on == str(temporary) and each.name == "write"]
        last_write = max((place for place in written if place < call.began), default=-1)
        if not _synced(calls, temporary, last_write, call.began):
            unsafe.append(f"{final}: renamed before it was synced")
        if not _synced(calls, final.parent, call.ended, sys.maxsize):
            unsafe.append(f"{final}: its folder was not synced")
    return unsafe


def _made_by(call: Call) -> Path | None:
    if call.result is None or call.result < 0:
        return None
    if call.name == "mkdir":
        return Path(call.paths[0])
    if call.name == "rename":
        return Path(call.paths[1])
    return Path(call.paths[0]) if call.name == "openat" and "O_CREAT" in call.arguments else None


def _synced(calls: Sequence[Call], path: Path, after: int, before: int) -> bool:
    return any(call.is_sync and call.on == str(path) and after < call.began and call.ended < before for call in calls)
