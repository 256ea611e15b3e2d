"""tests.sharing: what each kind of process takes, and that patient ones run while others wait."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sharing import JUDGES_NO_TIMES, NICENESS, WAITS, Kind, Processes

ROOT = Path(__file__).parents[1]
OURS, DOCKER, SPARK = "tests/live/test_feed.py", "tests/docker/", "tests/spark_export/archives/"
ALL = Processes(5, waiting=1, patient=2)
RAN = re.compile(r"^\[(gw\d+)\] .* PASSED (\S+?)::", re.MULTILINE)


def test_patient_process_takes_what_judges_no_times_and_ends_when_there_is_none() -> None:
    assert ALL.next_unit("gw4", [OURS, DOCKER, SPARK]) == SPARK
    assert ALL.next_unit("gw4", [OURS, DOCKER]) is None


def test_waiting_process_takes_containers_and_ends() -> None:
    assert ALL.next_unit("gw2", [OURS, SPARK, DOCKER]) == DOCKER
    assert ALL.next_unit("gw2", [OURS, SPARK]) is None


def test_usual_ones_take_that_only_when_there_is_nothing_else() -> None:
    assert ALL.next_unit("gw0", [DOCKER, SPARK, OURS]) == OURS
    assert ALL.next_unit("gw0", [SPARK]) == SPARK
    assert ALL.next_unit("gw0", []) is None


@pytest.mark.parametrize(
    ("processes", "first"),
    [(Processes(3), DOCKER), (Processes(3, waiting=1), SPARK), (Processes(3, patient=1), DOCKER)],
    ids=["all alike", "one waits", "one is patient"],
)
def test_usual_ones_take_in_order_what_no_other_kind_takes(processes: Processes, first: str) -> None:
    assert processes.next_unit("gw0", [DOCKER, SPARK, OURS]) == first


def test_last_ones_are_patient_and_those_that_replace_them_are_not() -> None:
    kinds = [ALL.kind_of(f"gw{number}") for number in range(7)]

    assert kinds == [Kind.USUAL] * 2 + [Kind.WAITING] + [Kind.PATIENT] * 2 + [Kind.USUAL] * 2
    assert {Processes(3).kind_of(f"gw{number}") for number in range(5)} == {Kind.USUAL}


@pytest.mark.parametrize("path", [*JUDGES_NO_TIMES, *WAITS])
def test_each_path_is_there(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.slow
def test_processes_share_tests_by_that_and_patient_ones_run_while_others_wait(tmp_path: Path) -> None:
    plugin = tmp_path / "priorities.py"
    plugin.write_text(
        "import os, pathlib\n"
        "def pytest_sessionfinish():\n"
        "    priority = str(os.getpriority(os.PRIO_PROCESS, 0))\n"
        f"    pathlib.Path({str(tmp_path)!r}, os.environ.get('PYTEST_XDIST_WORKER', 'all')).write_text(priority)\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    chosen = ("tests/spark_export/archives/test_inspection.py", "tests/waku/test_topics.py", "tests/test_units.py")
    options = ("--dist", "loadscope", "--no-loadscope-reorder", "-v", "-p", "priorities", "-p", "no:cacheprovider")

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "--patient", "1", "-m", "not spark", *options, *chosen],
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert set(RAN.findall(done.stdout)) == {("gw1", chosen[0]), ("gw0", chosen[1]), ("gw0", chosen[2])}
    priorities = {name: int((tmp_path / name).read_text()) for name in ("all", "gw0", "gw1")}
    assert priorities["gw0"] == priorities["all"] == os.getpriority(os.PRIO_PROCESS, 0)
    assert priorities["gw1"] == min(19, priorities["all"] + NICENESS)
