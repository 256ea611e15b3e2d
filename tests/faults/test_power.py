"""The short form of `make faults ARGS=power`: a few cuts of each scenario, and faults that it must find."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.faults.power import QUICK, SCENARIOS, record
from tests.faults.powercut.cuts import cut_power, recorded_all, start_daemon, without_syncs
from tests.faults.powercut.recorder import Kind
from tests.faults.powercut.scenarios import Scenario
from tests.planted import plant

pytestmark = pytest.mark.integration

SEED = "7"
Record = Callable[[str], Scenario]

each_scenario = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.spark] if name == "archive" else []) for name in SCENARIOS]
)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """For recordings, and what is made of them."""
    with TemporaryDirectory(prefix="power-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def recorded(folder: Path) -> Record:
    """Record a scenario, once."""
    scenarios: dict[str, Scenario] = {}

    def get(name: str) -> Scenario:
        if name not in scenarios:
            (folder / name).mkdir()
            scenarios[name] = asyncio.run(record(name, folder / name, SEED))
        return scenarios[name]

    return get


@each_scenario
def test_whatever_a_power_cut_leaves_what_was_promised_is_there(name: str, folder: Path, recorded: Record) -> None:
    scenario = recorded(name)

    cuts, disks = QUICK["cuts"], QUICK["disks"]
    outcome = asyncio.run(cut_power(scenario, folder, cuts=cuts, disks=disks, seed=SEED, name=name))

    assert outcome.shown == []
    assert (outcome.cuts, outcome.disks) == (cuts, cuts * disks)
    assert len(scenario.promises) > 20 or name in ("archive", "communities")


@pytest.mark.parametrize("name", ["first_start", "ingest"])
def test_program_starts_on_what_is_left(name: str, folder: Path, recorded: Record) -> None:
    outcome = asyncio.run(cut_power(recorded(name), folder, cuts=2, disks=2, seed=SEED, start=start_daemon))

    assert outcome.shown == []
    assert outcome.disks == 4


@each_scenario
def test_recorder_misses_nothing(name: str, folder: Path, recorded: Record) -> None:
    assert recorded_all(recorded(name), folder) == []


def test_flood_has_the_log_started_anew_and_files_cut_back(recorded: Record) -> None:
    """Else the moments that matter most would not be among those at which the power is cut."""
    assert recorded("ingest").log_restarts() > 5
    kinds = {entry.kind for entry in recorded("pruning").entries}
    assert {Kind.TRUNCATE, Kind.UNLINK, Kind.RENAME, Kind.SYNC_END, Kind.SEND} <= kinds


@pytest.mark.parametrize(
    ("endings", "promise"),
    [
        pytest.param(["-wal"], "confirmed envelopes are missing", id="log"),
        pytest.param(["mailserver.db.new"], "not a mailserver store", id="new store"),
        pytest.param([".tmp"], "node key", id="small files"),
        # With the names go store and key; which of them is missed depends on when the cut comes.
        pytest.param(["data"], "there is none|the node key is another one", id="names in the data folder"),
        pytest.param(["."], "there is none|the node key is another one", id="name of the data folder"),
    ],
)
def test_sync_that_is_left_out_is_found(endings: list[str], promise: str, folder: Path, recorded: Record) -> None:
    """Where the recording has fewer moments than cuts, the power is cut at each of them."""
    careless = without_syncs(recorded("first_start"), *endings)

    outcome = asyncio.run(cut_power(careless, folder, cuts=400, disks=2, seed=SEED, until=promise))

    assert any(re.search(promise, text) for text in outcome.broken), outcome.shown


@pytest.mark.spark
@pytest.mark.parametrize(
    "endings",
    [[".parquet"], [".index"], ["_records"], ["main"], ["."], ["data"]],
    ids=["files", "indexes", "records", "archive", "above", "store"],
)
def test_sync_that_the_archive_leaves_out_is_found(endings: list[str], folder: Path, recorded: Record) -> None:
    careless = without_syncs(recorded("archive"), *endings)

    outcome = asyncio.run(cut_power(careless, folder, cuts=200, disks=2, seed=SEED, until=""))

    assert outcome.broken


@pytest.mark.parametrize(
    ("endings", "promise"),
    [
        pytest.param(["data"], "published envelopes are gone|is damaged|were published", id="history archives"),
        pytest.param(["index.next.tmp"], "damaged|are gone", id="index"),
        pytest.param([".part"], "has changed|cannot be read", id="downloads"),
        pytest.param(["history.db-wal"], "imported messages are gone|is malformed", id="history"),
    ],
)
def test_sync_that_a_community_leaves_out_is_found(
    endings: list[str], promise: str, folder: Path, recorded: Record
) -> None:
    careless = without_syncs(recorded("communities"), *endings)

    outcome = asyncio.run(cut_power(careless, folder, cuts=400, disks=2, seed=SEED, until=promise))

    assert any(re.search(promise, text) for text in outcome.broken), outcome.shown


def test_mailserver_whose_commits_are_not_synced_is_found(tmp_path: Path) -> None:
    """The whole harness, on a mailserver whose one fault is in its own code: the harness syncs nothing for it.

    With NORMAL, its checkpoints are synced still; with OFF, nothing would be.
    """
    root = plant(tmp_path, "store/sqlite/connections.py", "PRAGMA synchronous = FULL", "PRAGMA synchronous = NORMAL")

    command = [sys.executable, "-m", "tests.faults", "--quick", "power", "--scenario", "ingest", "--seed", SEED]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)

    assert done.returncode == 1, done.stdout + done.stderr
    assert "confirmed envelopes are missing" in done.stdout
