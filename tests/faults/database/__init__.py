"""Two daemons on one PostgreSQL: killed, cut off from it, on a full disk, with wrong clocks, and without power.

Each scenario has a store of its own, on a server that is started for it. The server would confirm commits before they
are on disk, if the daemons did not want it otherwise: what it loses, it loses.
"""

import argparse
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.faults.database import clocks, full, kills, outages, power
from tests.faults.database.pair import Stage, impatient
from tests.faults.report import Figure, Report, Row
from tests.in_memory import keep_in_memory
from tests.store.postgres.server import FORGETFUL, Server, running_server

SUMMARY = "two daemons on one PostgreSQL, which is killed, cut off, full, or without power"

KINDS: Mapping[str, Callable[[Stage, int], None]] = {
    **kills.KINDS,
    **outages.KINDS,
    **full.KINDS,
    **clocks.KINDS,
    **power.KINDS,
}

FULL_ROUNDS: Mapping[str, int] = {
    "kills while both take in": 50,
    "kills while both delete": 40,
    "outages": 5,
    "full disks": 6,
    "clocks": 6,
    "power cuts": 150,
}
QUICK_ROUNDS: Mapping[str, int] = {
    "kills while both take in": 2,
    "kills while both delete": 2,
    "outages": 1,
    "full disks": 2,
    "clocks": 1,
    "power cuts": 5,
}

QUICK = {"rounds": QUICK_ROUNDS, "factor": 0.3}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what may be given."""
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=list(KINDS), action="append", help="this kind; repeat it for several")
    parser.add_argument("--factor", type=float, default=1.0, help="how long daemons wait for it, of what they should")
    parser.set_defaults(rounds=FULL_ROUNDS)


def run(arguments: argparse.Namespace) -> Report:
    """Do it, and say what was not kept."""
    keep_in_memory()
    rows, broken = [], []
    for kind in arguments.only or KINDS:
        with running_server(FORGETFUL) as server:
            row, found = play(kind, server, arguments)
        rows.append(row)
        broken += [f"{text} (seed {arguments.seed})" for text in found]
    return Report("database", tuple(rows), tuple(broken))


def play(kind: str, server: Server, arguments: argparse.Namespace) -> tuple[Row, list[str]]:
    """Do one kind on a server that runs, and still does afterwards; return its figures, and what was not kept."""
    began, rounds, broken = time.monotonic(), arguments.rounds[kind], []
    with tempfile.TemporaryDirectory(prefix="database-") as folder:
        chance = random.Random(f"{arguments.seed} {kind}")
        stage = Stage(server, Path(folder), chance, impatient(arguments.factor))
        try:
            KINDS[kind](stage, rounds)
        except AssertionError as error:  # somebody did not start, say, or left a traceback
            broken.append(f"{kind}: {error}")
    figures: Counter[str] = sum((pair.figures for pair in stage.pairs), Counter())
    times: dict[str, float] = {}
    for pair in stage.pairs:
        times |= {what: max(seconds, times.get(what, 0.0)) for what, seconds in pair.times.items()}
    named: dict[str, Figure] = {"rounds": rounds, **figures, **times}
    row = Row(kind, {**named, "seconds": time.monotonic() - began, "seed": arguments.seed})
    return row, [*broken, *(text for pair in stage.pairs for text in pair.broken)]
