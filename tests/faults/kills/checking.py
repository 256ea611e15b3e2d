"""Kills while `check` reads: of the daemon, which is started again meanwhile, or of the check.

The store is sound all the time, so `check` must say so whatever happens beside it; and it must change nothing.
"""

import asyncio
import contextlib
import random
import time
from pathlib import Path

from bench.data import Distribution, Topics, history
from mailserver.store.sqlite.store import open_store
from tests.faults.kills.moments import after, drawn, killing
from tests.faults.kills.promises import Promises
from tests.faults.kills.subject import Subject
from tests.integration.daemons import DEADLINE_S, started_command

ENVELOPES = 20_000
"""So that a check reads for half a second."""

ROUNDS_OF_A_STORE = 10
START_S = 0.3
"""So long a command takes until it begins to do something."""

LONGEST_S = 0.7


def run(subjects: list[Subject], folder: Path, rng: random.Random, rounds: int) -> None:
    """In turn: the daemon is killed and started again; the check is killed; the daemon is started beside a check."""
    for number in range(rounds):
        if number % ROUNDS_OF_A_STORE == 0:
            subjects.append(_filled(folder, rng, len(subjects)))
        (_kill_and_start, _kill_check, _start_beside)[number % 3](subjects[-1])
    for subject in subjects:
        with subject.running() as daemon:
            subject.verify(daemon)


def _filled(folder: Path, rng: random.Random, number: int) -> Subject:
    subject = Subject(folder / f"checking-{number}", rng, f"checking, store {number}")
    subject.data_dir.mkdir()

    async def fill(promises: Promises) -> None:
        topics = Topics(50, Distribution.UNIFORM)
        async with open_store(subject.store) as store:
            for batch in history(ENVELOPES, topics, end=int(time.time()), span_s=86_400, rng=rng):
                await store.put(batch)
                for new in batch:
                    promises.send({new.hash: new.raw}, new.received)
                    promises.confirm([new.hash], new.received)

    asyncio.run(fill(subject.promises))
    return subject


def _kill_and_start(subject: Subject) -> None:
    """The daemon is killed while a check reads, and the next one writes beside the same check."""
    with contextlib.ExitStack() as stack:
        with subject.running() as daemon:
            check = stack.enter_context(started_command("check", "--data-dir", subject.data_dir, "--json"))
            subject.flood_and_kill(daemon, after(START_S + subject.rng.uniform(0, LONGEST_S)), limit=300)
            subject.figures["daemon_killed_in_check"] += check.poll() is None
        with subject.running() as daemon:
            _, moment = drawn(subject.rng, subject.store, subject.promises, most=100)
            subject.flood_and_kill(daemon, moment, limit=300)
        out, errors = check.communicate(timeout=DEADLINE_S)
        _judge(subject, check.returncode, out, errors)


def _kill_check(subject: Subject) -> None:
    """The check is killed, and the daemon goes on."""
    with subject.running() as daemon:
        with started_command("check", "--data-dir", subject.data_dir, "--json") as check:
            with killing(check.pid, after(START_S + subject.rng.uniform(0, LONGEST_S / 2))):
                pass
            subject.figures["check_killed"] += check.wait(DEADLINE_S) != 0
        subject.verify(daemon)
        _, moment = drawn(subject.rng, subject.store, subject.promises, most=100)
        subject.flood_and_kill(daemon, moment, limit=300)


def _start_beside(subject: Subject) -> None:
    """A check of what a killed daemon has left is under way when the next one begins to write."""
    with started_command("check", "--data-dir", subject.data_dir, "--json") as check:
        time.sleep(subject.rng.uniform(0, START_S))
        with subject.running() as daemon:
            _, moment = drawn(subject.rng, subject.store, subject.promises, most=200)
            subject.flood_and_kill(daemon, moment)
        subject.figures["daemon_started_beside_check"] += 1
        out, errors = check.communicate(timeout=DEADLINE_S)
        _judge(subject, check.returncode, out, errors)


def _judge(subject: Subject, code: int, out: str, errors: str) -> None:
    """A check says that the store is sound; or that a daemon has begun to write meanwhile, and to try again."""
    if code == 0:
        subject.figures["checks"] += 1
    elif "meanwhile: try again" in errors:
        subject.figures["checks_to_try_again"] += 1
        subject.check(subject.data_dir)
    else:
        subject.blame([f"check beside kills ended with {code}: {out.strip()[:500]} {errors.strip()}"])
