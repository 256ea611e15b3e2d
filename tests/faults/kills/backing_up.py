"""Kills while a backup is made beside a flooded daemon: of the backup, or of the daemon.

A backup is there, whole, or not there; whoever is killed, the other one goes on.
"""

import random
import shutil
import sqlite3
import subprocess
from collections.abc import Set as AbstractSet
from pathlib import Path

from mailserver.codec.keccak import keccak256
from mailserver.data_dir.folder import KEY_FILE
from mailserver.store.sqlite.schema import STORE_FILE
from tests.faults.kills.moments import Moment, after, at_packets, grown, killing, size_of, then
from tests.faults.kills.subject import Subject
from tests.faults.kills.wreck import rows_of
from tests.integration.daemons import DEADLINE_S, Daemon, run_command, started_command

ROUNDS_OF_A_STORE = 20
MOST_PACKETS = 60
SERVED_EVERY = 5
"""How often a daemon is started on a backup; the others are read."""


def run(subjects: list[Subject], folder: Path, rng: random.Random, rounds: int) -> None:
    """In even rounds the backup is killed, in odd ones the daemon."""
    for number in range(rounds):
        if number % ROUNDS_OF_A_STORE == 0:
            subjects.append(_filled(folder / f"backing-up-{len(subjects)}", rng, f"backing up, store {len(subjects)}"))
        subject, copy = subjects[-1], folder / f"copy-{number}"
        owed = subject.promises.owed()
        with (
            subject.running() as daemon,
            started_command("backup", copy, "--data-dir", subject.data_dir, "--json") as backup,
        ):
            (_kill_daemon if number % 2 else _kill_backup)(subject, daemon, backup, copy)
        if not copy.exists():  # what the killed one has left is no hindrance
            done = run_command("backup", copy, "--data-dir", subject.data_dir)
            if done.returncode != 0:
                subject.blame([f"the next backup ended with {done.returncode}: {done.stderr}"])
                continue
        _verify_copy(subject, copy, owed, is_served=number % SERVED_EVERY == 0)
        shutil.rmtree(copy)
    for subject in subjects:
        with subject.running() as daemon:
            subject.verify(daemon)


def _filled(data_dir: Path, rng: random.Random, name: str) -> Subject:
    """A store of some thousand envelopes, so that a backup takes a while."""
    subject = Subject(data_dir, rng, name)
    with subject.running() as daemon:
        subject.flood_and_kill(daemon, after(2.0), per_packet=(100,) * 4, limit=2000)
    return subject


def _kill_daemon(subject: Subject, daemon: Daemon, backup: subprocess.Popen[str], copy: Path) -> None:
    """Kill the daemon at some size of the copy: the backup goes on to its end."""
    subject.flood_and_kill(daemon, _half_way(subject, copy), limit=300)
    subject.figures["daemon_killed_in_backup"] += backup.poll() is None
    _, errors = backup.communicate(timeout=DEADLINE_S)
    if backup.returncode != 0:
        subject.blame([f"the daemon was killed, and the backup ended with {backup.returncode}: {errors}"])


def _kill_backup(subject: Subject, daemon: Daemon, backup: subprocess.Popen[str], copy: Path) -> None:
    """Kill the backup at some size of its copy; the daemon goes on, and is killed later."""
    partial, owed = _partial(copy), subject.promises.owed()
    with killing(backup.pid, _half_way(subject, copy)):
        pass
    backup.communicate(timeout=DEADLINE_S)
    subject.figures["backup_killed"] += partial.exists()
    subject.verify(daemon, checks=False)
    if partial.exists():
        is_sound = run_command("check", "--data-dir", partial, "--json").returncode == 0
        subject.figures["half_backups_found_damaged"] += not is_sound
        if is_sound and not _held(partial) >= owed:
            subject.blame(["half of a backup was found to be sound"])
    enough = subject.promises.packets + subject.rng.randint(0, MOST_PACKETS)
    subject.flood_and_kill(daemon, at_packets(subject.promises, enough), limit=300)


def _half_way(subject: Subject, copy: Path) -> Moment:
    """At some size of the copy, or when it is done."""
    size = subject.rng.randint(0, size_of(subject.store))
    enough, done = grown(_partial(copy) / STORE_FILE, size), grown(copy / STORE_FILE, size)
    return then(lambda: _partial(copy).exists() or copy.exists(), lambda: lambda: enough() or done())


def _verify_copy(subject: Subject, copy: Path, owed: AbstractSet[bytes], *, is_served: bool) -> None:
    """A backup has all that was confirmed before it was begun, and is sound."""
    subject.figures["backups"] += 1
    subject.check(copy)
    names = {path.name for path in copy.iterdir()}
    if not names >= {STORE_FILE, KEY_FILE, "sync.json"}:
        subject.blame([f"the backup has only {sorted(names)}"])
    elif (copy / KEY_FILE).read_bytes() != (subject.data_dir / KEY_FILE).read_bytes():
        subject.blame(["the backup has another node key"])
    lacking = owed - _held(copy)
    if lacking:
        subject.blame([f"the backup lacks {len(lacking)} envelopes that were confirmed before it was begun"])
    if is_served:
        restored = Subject(copy, subject.rng, f"a backup of {subject.data_dir.name}")
        restored.promises = subject.promises.copy(owed)
        with restored.running() as daemon:
            restored.verify(daemon)
        subject.blame(restored.broken)
        subject.figures["backups_served"] += 1


def _held(data_dir: Path) -> set[bytes]:
    """The hashes of what is in a store that no process has open; none, if it cannot be read."""
    try:
        return {keccak256(row.raw) for row in rows_of(data_dir / STORE_FILE)}
    except sqlite3.Error:
        return set()


def _partial(copy: Path) -> Path:
    return copy.with_name(f".{copy.name}.partial")
