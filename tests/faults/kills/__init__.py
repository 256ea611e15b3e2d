"""Kills: the daemon, and what runs beside it, are killed (SIGKILL) at moments that matter, again and again, on the
same data directories. After each kill: what was confirmed is served byte for byte, once; the store is sound; node key,
enode, sync.json and status are right. Of a community, what was published is there, and the member holds all of it.
"""

import argparse
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.faults.kills import backing_up, checking, communities, compacting, ingest, migrating, pruning
from tests.faults.kills.judged import Judged
from tests.faults.report import Figure, Report, Row

SUMMARY = "the daemon killed in the middle of everything, hundreds of times"

KINDS: dict[str, Callable[[list[Any], Path, random.Random, int], None]] = {
    "ingest": ingest.run,
    "pruning": pruning.run,
    "migrating": migrating.run,
    "backing up": backing_up.run,
    "checking": checking.run,
    "compacting": compacting.run,
    "communities": communities.run,
}

FULL_ROUNDS: Mapping[str, int] = {
    "ingest": 60,
    "pruning": 50,
    "migrating": 50,
    "backing up": 30,
    "checking": 24,
    "compacting": 18,
    "communities": 30,
}
QUICK_ROUNDS: Mapping[str, int] = {
    "ingest": 3,
    "pruning": 4,
    "migrating": 4,
    "backing up": 2,
    "checking": 3,
    "compacting": 3,
    "communities": 2,
}

QUICK = {"rounds": QUICK_ROUNDS}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what may be given."""
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=list(KINDS), action="append", help="this kind; repeat it for several")
    parser.set_defaults(rounds=FULL_ROUNDS)


def run(arguments: argparse.Namespace) -> Report:
    """Kill, and say what was not kept."""
    rows, broken = [], []
    for kind in arguments.only or KINDS:
        began = time.monotonic()
        subjects: list[Judged] = []
        rounds = arguments.rounds[kind]
        with tempfile.TemporaryDirectory(prefix="kills-") as folder:
            try:
                KINDS[kind](subjects, Path(folder), random.Random(f"{arguments.seed} {kind}"), rounds)
            except AssertionError as error:  # it did not start, say, or left a traceback
                broken.append(f"{kind}, seed {arguments.seed}: {error}")
        figures: Counter[str] = sum((subject.figures for subject in subjects), Counter())
        named: dict[str, Figure] = {"rounds": rounds, **figures}
        rows.append(Row(kind, {**named, "seconds": time.monotonic() - began, "seed": arguments.seed}))
        broken += [f"{text} (seed {arguments.seed})" for subject in subjects for text in subject.broken]
    return Report("kills", tuple(rows), tuple(broken))
