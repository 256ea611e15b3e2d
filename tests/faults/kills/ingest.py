"""Kills while envelopes come in: packets of 1, 10 and 100 by several connections."""

import random
from pathlib import Path

from tests.faults.kills.moments import drawn
from tests.faults.kills.subject import Subject

MOST_PACKETS = 200

ROUNDS_OF_A_STORE = 25
"""Then a new one begins: all of a store is read after each kill."""


def run(subjects: list[Subject], folder: Path, rng: random.Random, rounds: int) -> None:
    """Flood, kill, start again and compare, so many times."""
    for number in range(rounds):
        if number % ROUNDS_OF_A_STORE == 0:
            subjects.append(Subject(folder / f"ingest-{len(subjects)}", rng, f"ingest, store {len(subjects)}"))
        subject = subjects[-1]
        with subject.running() as daemon:
            if number % ROUNDS_OF_A_STORE:
                subject.verify(daemon)
            name, moment = drawn(rng, subject.store, subject.promises, most=MOST_PACKETS)
            subject.flood_and_kill(daemon, moment)
            subject.figures[f"by_{name}"] += 1
        if number % 2:  # a store that nobody has put in order yet
            subject.check(subject.data_dir)
        if number + 1 in (rounds, len(subjects) * ROUNDS_OF_A_STORE):
            with subject.running() as daemon:
                subject.verify(daemon)
