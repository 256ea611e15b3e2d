"""Two daemons on one PostgreSQL, in short: kills, outages, full disks, wrong clocks, power cuts; and faults that these
must find.
"""

import argparse
import asyncio
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import database
from tests.faults.database import power
from tests.faults.database.pair import CARELESS
from tests.faults.powercut.cuts import cut_power, recorded_all, without_syncs
from tests.faults.powercut.recorder import Kind
from tests.faults.powercut.scenarios import Scenario
from tests.store.postgres.server import FORGETFUL, Server, running_server

pytestmark = pytest.mark.integration

SEED = 7
CUTS = 5
MISSING = "confirmed envelopes are missing"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that keeps nothing that it is not asked to keep."""
    with running_server(FORGETFUL) as server:
        yield server


@pytest.mark.parametrize("kind", [kind for kind in database.KINDS if kind not in power.KINDS])
def test_nothing_confirmed_is_lost_or_served_twice(kind: str, server: Server) -> None:
    try:
        row, broken = database.play(kind, server, argparse.Namespace(seed=SEED, **database.QUICK))
    except subprocess.CalledProcessError as error:
        if error.cmd[0] != "mount":
            raise
        pytest.skip(f"needs the right to mount a tmpfs: {error}")

    assert broken == []
    assert row.figures["envelopes_compared"]


# Power cuts


@pytest.fixture(scope="module")
def folder(server: Server) -> Path:
    return power.new_folder(server)


@pytest.fixture(scope="module")
def recorded(folder: Path) -> Scenario:
    return asyncio.run(power.record(folder, random.Random(SEED)))


def test_whatever_a_power_cut_leaves_of_a_database_what_was_confirmed_is_there(
    recorded: Scenario, folder: Path
) -> None:
    outcome = asyncio.run(cut_power(recorded, folder, cuts=CUTS, disks=power.DISKS, seed=str(SEED)))

    assert outcome.shown == []
    assert outcome.disks == CUTS * power.DISKS
    assert len(recorded.promises) > 100


def test_recorder_misses_nothing_of_a_database(recorded: Scenario, folder: Path) -> None:
    assert recorded_all(recorded, folder) == []


def test_recording_has_checkpoints_after_which_files_of_the_log_are_used_again(recorded: Scenario) -> None:
    """Else the moments that matter most would not be among those at which the power is cut."""
    renamed = [entry for entry in recorded.entries if entry.kind is Kind.RENAME and entry.path.startswith("pg_wal/")]
    assert len(renamed) > 5


def test_database_that_does_not_sync_is_found(recorded: Scenario, folder: Path) -> None:
    careless = without_syncs(recorded, "")

    outcome = asyncio.run(cut_power(careless, folder, cuts=20, disks=1, seed=str(SEED), until=""))

    assert outcome.broken


def test_daemon_that_leaves_it_to_the_server_what_is_on_disk_is_found_out(server: Server) -> None:
    folder = power.new_folder(server, "careless")
    recorded = asyncio.run(power.record(folder, random.Random(SEED), packets={1: 3}, program=CARELESS))

    outcome = asyncio.run(cut_power(recorded, folder, cuts=20, disks=1, seed=str(SEED), until=MISSING))

    assert any(re.search(MISSING, text) for text in outcome.broken), outcome.shown
