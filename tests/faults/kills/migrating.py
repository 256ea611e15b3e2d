"""Kills while a store is made for the first time, and while one of version 1 is migrated."""

import contextlib
import random
import shutil
import sqlite3
import time
from pathlib import Path

from bench.data import Distribution, Topics, history
from mailserver.store.interface import NewEnvelope
from mailserver.store.sqlite.schema import APPLICATION_ID, HASH_PREFIX_BYTES, MIGRATIONS, PAGE_BYTES, STORE_FILE
from tests.faults.kills.moments import after, changed_at, drawn, killing, then
from tests.faults.kills.promises import Promises
from tests.faults.kills.subject import Subject
from tests.faults.tracing import counting, killed_at, most_calls, stop_traced
from tests.integration.daemons import running_daemon

OLD_ENVELOPES = 20_000
OLD_TOPICS = 50
OLD_SPAN_S = 5 * 86_400

KILLS_OF_A_MIGRATION = 3
"""Of one store, at most. One more follows, under a flood, when it is migrated."""

CALLS = ("pwrite64", "fdatasync")
FIRST_WRITE = 9
"""Before it, SQLite writes a byte into each part of the log's index."""

FIRST_START_S = 0.6
"""A first start takes no longer, from the folder to the first log line."""


def run(subjects: list[Subject], folder: Path, rng: random.Random, rounds: int) -> None:
    """A fifth of the rounds on first starts; the others on stores of version 1."""
    _first_starts(subjects, folder, rng, rounds // 5)
    template = folder / "version-1"
    promises = _make_old(template, rng)
    measured = _measure(template, folder)
    kills = sum(subject.figures["kills"] for subject in subjects)
    while kills < rounds:
        name = f"migrating, store {len(subjects)}"
        subject = Subject(folder / f"migrating-{len(subjects)}", rng, name)
        subjects.append(subject)
        shutil.copytree(template, subject.data_dir)
        subject.promises = promises.copy()
        for _ in range(KILLS_OF_A_MIGRATION):
            if not _kill_migration(subject, *measured):
                break
        _go_on(subject)
        shutil.rmtree(subject.data_dir)
        kills += subject.figures["kills"]


def _first_starts(subjects: list[Subject], folder: Path, rng: random.Random, rounds: int) -> None:
    for number in range(rounds):
        subject = Subject(folder / f"first-{number}", rng, f"first start {number}")
        subjects.append(subject)
        moment = then(subject.data_dir.exists, lambda: after(rng.uniform(0, FIRST_START_S) ** 2))
        with subject.starting() as daemon:
            with killing(daemon.process.pid, moment):
                pass
            daemon.wait()
        subject.figures["kills"] += 1
        subject.figures["first_starts"] += 1
        subject.figures["in_first_migration"] += subject.examine().version < len(MIGRATIONS)
        _go_on(subject)


def _make_old(data_dir: Path, rng: random.Random) -> Promises:
    """A store as version 1 of the schema made it, whose daemon was killed: half of it stands in the log only."""
    data_dir.mkdir()
    promises = Promises()
    topics = Topics(OLD_TOPICS, Distribution.UNIFORM)
    with contextlib.closing(sqlite3.connect(data_dir / "made.db", isolation_level=None)) as connection:
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        for statement in MIGRATIONS[0]:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 1")
        batches = list(history(OLD_ENVELOPES, topics, end=int(time.time()), span_s=OLD_SPAN_S, rng=rng))
        for number, batch in enumerate(batches):
            _put_old(connection, batch)
            for new in batch:
                promises.send({new.hash: new.raw}, new.received)
                promises.confirm([new.hash], new.received)
            if number == len(batches) // 2:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for suffix in ("", "-wal"):
            shutil.copyfile(data_dir / f"made.db{suffix}", data_dir / f"{STORE_FILE}{suffix}")
    for left in data_dir.glob("made.db*"):
        left.unlink()
    return promises


def _put_old(connection: sqlite3.Connection, batch: list[NewEnvelope]) -> None:
    connection.execute("BEGIN")
    rows = [(new.received, new.created, new.topic, new.hash[:HASH_PREFIX_BYTES], new.raw) for new in batch]
    connection.executemany("INSERT INTO envelopes (received, created, topic, hash, raw) VALUES (?, ?, ?, ?, ?)", rows)
    connection.executemany(
        "INSERT INTO days VALUES (?, 1, ?) ON CONFLICT (day) DO UPDATE"
        " SET envelopes = envelopes + 1, bytes = bytes + excluded.bytes",
        [(new.created // 86_400, len(new.raw)) for new in batch],
    )
    connection.executemany(
        "INSERT OR IGNORE INTO day_topics VALUES (?, ?)", [(new.created // 86_400, new.topic) for new in batch]
    )
    connection.execute("COMMIT")


def _measure(template: Path, folder: Path) -> tuple[float, int, int]:
    """Of an undisturbed migration: how long it takes from opening the store on, and how many writes and syncs."""
    copy = folder / "measured"
    shutil.copytree(template, copy)
    index = copy / f"{STORE_FILE}-shm"
    began: list[float] = []
    with running_daemon(copy, listening=False) as daemon:
        while "store migrated" not in daemon.log:
            if not began and changed_at(index):
                began.append(time.monotonic())
            time.sleep(0.001)
        seconds = time.monotonic() - began[0]
    counts = []
    for call in CALLS:
        shutil.rmtree(copy)
        shutil.copytree(template, copy)
        with running_daemon(copy, program=counting(call, folder / call)) as daemon:
            stop_traced(daemon)
        counts.append(most_calls(folder / call))
    shutil.rmtree(copy)
    return seconds, counts[0], counts[1]


def _kill_migration(subject: Subject, seconds: float, writes: int, syncs: int) -> bool:
    """Start the daemon on a store of version 1 and kill it; return whether the store is still of version 1.

    In its middle by time; or, exactly, at one of the writes or syncs of its commit.
    """
    rng, index = subject.rng, subject.data_dir / f"{STORE_FILE}-shm"
    index.unlink(missing_ok=True)  # so that it shows when the store is opened; it is made anew after a kill in any case
    call = rng.choice((None, *CALLS))
    if call is None:
        moment = then(lambda: changed_at(index) > 0, lambda: after(rng.uniform(0, seconds)))
        with subject.starting() as daemon:
            with killing(daemon.process.pid, moment):
                pass
            daemon.wait()
    else:
        number = rng.randint(FIRST_WRITE, writes) if call == CALLS[0] else rng.randint(1, syncs)
        with subject.starting(killed_at(call, number)) as daemon:
            with contextlib.suppress(AssertionError):  # it is killed before it listens
                daemon.wait_for_line("listening")
            stop_traced(daemon)
    wreck = subject.examine()
    subject.figures["kills"] += 1
    subject.figures["in_migration"] += wreck.version == 1
    subject.figures["in_migration_commit"] += wreck.version == 1 and wreck.in_commit
    if wreck.rows != OLD_ENVELOPES:
        subject.blame([f"{wreck.rows} envelopes are left of {OLD_ENVELOPES} when the migration was killed"])
    return wreck.version == 1


def _go_on(subject: Subject) -> None:
    """The next start completes it; then it is used, and killed once more."""
    with subject.running() as daemon:
        subject.verify(daemon, checks=False)
        _, moment = drawn(subject.rng, subject.store, subject.promises, most=40)
        subject.flood_and_kill(daemon, moment, limit=200)
    with subject.running() as daemon:
        subject.verify(daemon)
