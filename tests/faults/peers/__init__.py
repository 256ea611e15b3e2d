"""Hostile peers: what strangers can do to a mailserver with bytes, and what an honest client notices of it.

Each scenario is one attack on a daemon of its own; `harness` says what must hold meanwhile and afterwards. The
attackers live in a process beside it, and come from many addresses of loopback, where all limits hold as for strangers.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.faults.peers import bombs, connections, frames, messages, questions, searches
from tests.faults.peers.harness import QUICK_SECONDS, Scenario, Stage, play
from tests.faults.report import Report, Row, row_as_text

SUMMARY = "hostile peers: attacks on connections and messages beside an honest client"
QUICK: Mapping[str, object] = {"seconds": QUICK_SECONDS, "is_quick": True}


SCENARIOS: tuple[Scenario, ...] = (
    *connections.SCENARIOS,
    *frames.SCENARIOS,
    *bombs.SCENARIOS,
    *messages.SCENARIOS,
    *searches.SCENARIOS,
    *questions.SCENARIOS,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what may be given; the defaults are the full size."""
    parser.add_argument("--seconds", type=float, default=30.0, help="how long each attack goes on (30)")
    parser.add_argument("--seed", type=int, default=1, help="of every random choice (1)")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="scenarios whose names have one of these")
    parser.set_defaults(is_quick=False)


def run(arguments: argparse.Namespace) -> Report:
    """Play the scenarios, one after the other."""
    rows: list[Row] = []
    broken: list[str] = []
    with tempfile.TemporaryDirectory(prefix="hostile-peers-") as folder:
        stage = Stage.fill(Path(folder), seed=arguments.seed)
        for scenario in SCENARIOS:
            if arguments.only and not any(name in scenario.name for name in arguments.only):
                continue
            outcome = asyncio.run(
                play(scenario, stage, seconds=arguments.seconds, seed=arguments.seed, is_quick=arguments.is_quick)
            )
            rows.append(outcome.row)
            broken += outcome.broken
            lines = [row_as_text(outcome.row), *(f"  BROKEN {text}" for text in outcome.broken)]
            print("\n".join(lines), flush=True)  # noqa: T201 - the whole takes an hour
    return Report("peers", tuple(rows), tuple(broken))
