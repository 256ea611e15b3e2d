"""Power cuts: what is written is recorded, and replayed up to any moment, with what was not synced lost or torn."""

import argparse
import asyncio
import random
import tempfile
from collections import Counter
from pathlib import Path

from tests.faults.powercut.archive import archive
from tests.faults.powercut.communities import communities
from tests.faults.powercut.cuts import Outcome, cut_power, recorded_all, start_daemon
from tests.faults.powercut.recorder import Kind, Recorder, build
from tests.faults.powercut.scenarios import STORE_SCENARIOS, Scenario
from tests.faults.report import Report, Row
from tests.in_memory import keep_in_memory

SUMMARY = "power cuts: the recorded write order, with unsynced writes lost or torn"
QUICK = {"cuts": 20, "disks": 2, "starts": 1}
SCENARIOS = {**STORE_SCENARIOS, "archive": archive, "communities": communities}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See `tests.faults`."""
    parser.add_argument("--cuts", type=int, default=300, help="moments of each scenario at which power is cut")
    parser.add_argument("--disks", type=int, default=4, help="different disks that each of them leaves")
    parser.add_argument("--starts", type=int, default=10, help="more of them, on which the real program is started")
    parser.add_argument("--seed", type=int, help="repeats a run's choices; what processes write differs a little")
    parser.add_argument("--scenario", choices=[*SCENARIOS], help="only this one")


def run(arguments: argparse.Namespace) -> Report:
    """See `tests.faults`."""
    keep_in_memory()  # the disks are made of recorded calls
    seed = random.randrange(1 << 30) if arguments.seed is None else arguments.seed
    rows, broken = [], []
    for name in [arguments.scenario] if arguments.scenario else SCENARIOS:
        with tempfile.TemporaryDirectory(prefix="power-") as folder:
            row, lines = asyncio.run(_run(name, Path(folder), f"{seed}", arguments))
        rows.append(row)
        broken += lines
    return Report("power", tuple(rows), tuple(broken))


async def _run(name: str, folder: Path, seed: str, arguments: argparse.Namespace) -> tuple[Row, list[str]]:
    scenario = await record(name, folder, seed)
    missed = recorded_all(scenario, folder)
    outcome = await cut_power(scenario, folder, cuts=arguments.cuts, disks=arguments.disks, seed=seed, name=name)
    started = await cut_power(
        scenario, folder, cuts=arguments.starts, disks=1, seed=f"{seed} starts", name=name, start=start_daemon
    )
    figures = {**figures_of(scenario), **_figures(outcome), "starts": started.disks, "seed": seed}
    return Row(name, figures), [
        *outcome.shown,
        *started.shown,
        *(f"{name}: not recorded: {file}" for file in missed),
    ]


async def record(name: str, folder: Path, seed: str) -> Scenario:
    """Record a scenario in a folder of its own."""
    (folder / "disk").mkdir()
    recorder = Recorder(build(folder), folder / "disk", folder / "log")
    return await SCENARIOS[name](recorder, random.Random(f"{seed} {name}"))


def figures_of(scenario: Scenario) -> dict[str, int]:
    """What was recorded."""
    kinds = Counter(entry.kind for entry in scenario.entries)
    return {
        "entries": len(scenario.entries),
        "writes": kinds[Kind.WRITE],
        "syncs": kinds[Kind.SYNC_END],
        "log_restarts": scenario.log_restarts(),
        "confirmations": len(scenario.promises),
    }


def _figures(outcome: Outcome) -> dict[str, int | float]:
    return {
        "cuts": outcome.cuts,
        "disks": outcome.disks,
        "broken": outcome.broken.total(),
        "cpu_ms_per_disk": 1000 * outcome.cpu_s / max(1, outcome.disks),
    }
