"""tests.sharing: patient processes get what judges no times, and the others the rest."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sharing import JUDGES_NO_TIMES, NICENESS, TAKEN_TOGETHER, is_patient, next_unit

ROOT = Path(__file__).parents[1]
OURS, SPARK = "tests/live/test_feed.py", "tests/spark_export/archives/"
RAN = re.compile(r"^\[(gw\d+)\] .* PASSED (\S+?)::", re.MULTILINE)


def test_patient_process_takes_what_judges_no_times_and_ends_when_there_is_none() -> None:
    assert next_unit([OURS, SPARK], patient=True) == SPARK
    assert next_unit([OURS], patient=True) is None


def test_others_take_it_only_when_there_is_nothing_else() -> None:
    assert next_unit([SPARK, OURS], patient=False) == OURS
    assert next_unit([SPARK], patient=False) == SPARK


def test_last_ones_are_patient_and_those_that_replace_them_are_not() -> None:
    assert [is_patient(f"gw{number}", 2, 4) for number in range(6)] == [False, False, True, True, False, False]
    assert not any(is_patient(f"gw{number}", 0, 4) for number in range(6))


def test_containers_are_for_no_patient_process() -> None:
    assert "tests/docker/" in TAKEN_TOGETHER
    assert not "tests/docker/".startswith(JUDGES_NO_TIMES)


@pytest.mark.parametrize("path", JUDGES_NO_TIMES)
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
