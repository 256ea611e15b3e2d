"""Kills while the compaction runs beside the daemon: of the daemon, of the compaction, and between both of pruning.

Retention keeps little, so each run hands over rows that go with the daemon's next round of pruning. Whatever was
confirmed is served, or it is in the archive, byte for byte. The compaction's own steps have their kills in
`tests/spark_export/compaction/test_compact_killed.py`.
"""

import contextlib
import os
import queue
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

from mailserver.archive.paths import STAGING
from mailserver.store.sqlite.handoff import archived_file
from tests.faults.kills.moments import Moment, after, killing, then, wait_for, written
from tests.faults.kills.subject import Subject
from tests.faults.kills.wreck import rows_of
from tests.integration.daemons import Daemon
from tests.spark_export.samples import archived

KEPT = 1000
RUN_LIMIT_S = 300.0
"""Spark takes ten seconds to start, and minutes on a machine that does ten other things."""

USUAL_RUN_S = 2.0
LONGEST_AFTER_START_S = 0.5
KILLED_EVERY = 6
"""In each so many rounds the compaction is killed, and not the daemon: a new JVM has to be started."""


class Compactor:
    """A process that runs compactions as it is told (`compactor`)."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._said: queue.Queue[str] = queue.Queue()
        self._listener = threading.Thread()

    @property
    def pid(self) -> int:
        """Of the leader of its process group."""
        assert self._process is not None
        return self._process.pid

    def start(self, store: Path, archive: Path, run: str) -> None:
        """Begin a run; the JVM is started if there is none."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.kills.compactor"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                start_new_session=True,
            )
            self._said = queue.Queue()
            self._listener = threading.Thread(target=_listen, args=(self._process, self._said))
            self._listener.start()
            said = self._said.get(timeout=RUN_LIMIT_S)
            assert said == "ready", f"the compaction does not start: {said}"
        assert self._process.stdin is not None
        self._process.stdin.write(f"{store} {archive} {run}\n")
        self._process.stdin.flush()

    def result(self) -> str:
        """Wait for the end of a run; "" if it was killed."""
        return self._said.get(timeout=RUN_LIMIT_S)

    def kill(self) -> None:
        """Kill it with its JVM."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._listener.join()
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # of what it was told last
                self._process.stdin.close()
            self._process = None


def _listen(process: subprocess.Popen[str], said: queue.Queue[str]) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            said.put(line.strip())
    said.put("")


def run(subjects: list[Subject], folder: Path, rng: random.Random, rounds: int) -> None:
    """Flood and compact, kill one of both, prune what was handed over, and be killed in that, too."""
    archive = folder / "archive"
    flags = ("--retention-days", "0", "--retention-envelopes", str(KEPT), "--archive", str(archive))
    subject = Subject(folder / "compacting", rng, "compacting", *flags)
    subjects.append(subject)
    compactor = Compactor()
    with contextlib.ExitStack() as stack:
        stack.callback(compactor.kill)
        with subject.running() as daemon:
            subject.flood_and_kill(daemon, after(USUAL_RUN_S))
        for number in range(rounds):
            if number % KILLED_EVERY == KILLED_EVERY - 1:
                _kill_compaction(subject, compactor, archive, number)
            elif number % 2:
                _kill_in_pruning(subject, compactor, archive, number)
            else:
                _kill_daemon(subject, compactor, archive, number)
        compactor.start(subject.store, archive, "last")
        _take_result(subject, compactor.result())
        is_too_much = len(rows_of(subject.store)) > KEPT
        with subject.running() as daemon:
            if is_too_much:
                daemon.wait_for_line("pruned envelopes=")
            _verify(subject, daemon, archive)


def _kill_daemon(subject: Subject, compactor: Compactor, archive: Path, number: int) -> None:
    """The daemon is killed in a flood while a run reads, or has just handed over; the run goes on."""
    with subject.running() as daemon:
        _verify(subject, daemon, archive)
        compactor.start(subject.store, archive, f"run-{number}")
        handed_over = written(archived_file(subject.store), 1)
        rng = subject.rng
        moment: Moment = after(rng.uniform(0, USUAL_RUN_S)) if rng.random() < 0.7 else handed_over
        subject.flood_and_kill(daemon, moment)
        subject.figures["daemon_killed_beside_compaction"] += 1
    _take_result(subject, compactor.result())


def _kill_in_pruning(subject: Subject, compactor: Compactor, archive: Path, number: int) -> None:
    """A run begins while the daemon deletes what was handed over; the daemon is killed in that moment."""
    with subject.running() as daemon:
        _verify(subject, daemon, archive)
        wait_for(written(subject.log, subject.rng.randint(1, 8)))
        compactor.start(subject.store, archive, f"run-{number}")
        with killing(daemon.process.pid, after(subject.rng.uniform(0, LONGEST_AFTER_START_S))):
            pass
        daemon.wait()
        wreck = subject.examine()
        subject.figures["kills"] += 1
        subject.figures["killed_in_pruning"] += wreck.rows > KEPT
    _take_result(subject, compactor.result())


def _kill_compaction(subject: Subject, compactor: Compactor, archive: Path, number: int) -> None:
    """The compaction is killed while it writes or publishes, beside a flooded daemon that is killed a little later."""
    staged = f"run-{number}-*/*"  # of this run; the one before may have left some, too
    with subject.running() as daemon:  # so that there is something to archive
        subject.flood_and_kill(daemon, after(USUAL_RUN_S))
    with subject.running() as daemon:
        _verify(subject, daemon, archive)
        compactor.start(subject.store, archive, f"run-{number}")
        seconds = subject.rng.uniform(0, LONGEST_AFTER_START_S)
        moment = then(lambda: any((archive / STAGING).glob(staged)), lambda: after(seconds))
        with killing(compactor.pid, moment, limit_s=RUN_LIMIT_S, is_group=True):
            subject.flood_and_kill(daemon, after(USUAL_RUN_S))
    compactor.kill()
    subject.figures["compaction_killed"] += compactor.result() == ""
    subject.figures["compaction_killed_writing"] += any((archive / STAGING).glob(staged))


def _verify(subject: Subject, daemon: Daemon, archive: Path) -> None:
    """What was confirmed is served, or archived; and archived once, as it was sent. No run is under way."""
    if not subject.promises.sent:
        return
    rows = archived(archive)
    hashes = Counter(bytes.fromhex(row["hash"].removeprefix("0x")) for row in rows)
    twice = [each for each, count in hashes.items() if count > 1]
    if twice:
        subject.blame([f"archived twice: {len(twice)}, {twice[0].hex()}"])
    sent = subject.promises.sent
    other = [row["hash"] for row in rows if sent[bytes.fromhex(row["hash"].removeprefix("0x"))].raw != row["raw"]]
    if other:
        subject.blame([f"archived otherwise than sent: {len(other)}, {other[0]}"])
    subject.figures["archived_compared"] += len(rows)
    subject.verify(daemon, keeps=KEPT, archived=hashes.keys())


def _take_result(subject: Subject, said: str) -> None:
    if not said.startswith("done"):
        subject.blame([f"the compaction beside a killed daemon: {said}"])
    else:
        subject.figures["compactions"] += 1
        subject.figures["archived"] += int(said.split()[1])
