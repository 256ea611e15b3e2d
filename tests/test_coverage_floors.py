"""tests.coverage_floors: each package has a floor, and what falls below one is told."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import coverage_floors
from tests.coverage_floors import FLOORS, Floor, Measured, below, lines, main, measure, packages, read_report

HALF = """
def sign(number):
    if number < 0:
        return -1
    return 1

sign({})
"""
"""Five statements and two branches: a positive number leaves one statement and one branch."""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with two packages, of which one runs whole."""
    for file, number in ("mailserver/net/half.py", 1), ("mailserver/errors.py", 1), ("spark_export/none.py", -1):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(HALF.format(number), encoding="utf-8")
    for package in ("mailserver", "mailserver/net"):
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "run.py").write_text("import mailserver.net.half, mailserver.errors", encoding="utf-8")
    (tmp_path / ".coverage").mkdir()
    measured = ["--branch", "--source=mailserver,spark_export", "--json", "--out=.coverage/main.json"]
    subprocess.run([sys.executable, "-m", "slipcover", *measured, "run.py"], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(coverage_floors, "ROOT", tmp_path)
    return tmp_path


def test_every_package_has_a_floor_and_no_other() -> None:
    assert FLOORS.keys() == packages()


def test_what_is_not_run_has_a_reason() -> None:
    assert [package for package, floor in FLOORS.items() if (floor.percent < 100) != bool(floor.rest)] == []


def test_statements_and_branches_are_added_up_by_package(root: Path) -> None:
    measured = measure(read_report(root / ".coverage"))

    assert measured == {
        "mailserver": Measured(5, 7),
        "mailserver/net": Measured(5, 7),
        "spark_export": Measured(0, 7),
    }
    assert packages(root) == measured.keys()


@pytest.mark.parametrize(("percent", "fallen"), [(71, []), (72, ["mailserver/net"])])
def test_package_below_its_floor_is_told(percent: int, fallen: list[str]) -> None:
    floors = {"mailserver/net": Floor(percent, "")}

    assert below({"mailserver/net": Measured(5, 7)}, floors) == fallen


def test_package_that_was_not_measured_is_below_any_floor() -> None:
    assert below({}, {"mailserver/net": Floor(1, "")}) == ["mailserver/net"]


def test_least_covered_package_comes_first() -> None:
    measured = {"mailserver/net": Measured(7, 7), "spark_export": Measured(5, 7)}

    assert lines(measured, {"mailserver/net": Floor(100, ""), "spark_export": Floor(70, "Spark")}) == [
        "spark_export     71.4 %  floor  70 %  Spark",
        "mailserver/net  100.0 %  floor 100 %",
    ]


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(("percent", "exit_code"), [(71, 0), (72, 1)])
def test_exit_code_says_whether_all_floors_hold(
    percent: int, exit_code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    floors = {"mailserver": Floor(71, ""), "mailserver/net": Floor(percent, ""), "spark_export": Floor(0, "")}
    monkeypatch.setattr(coverage_floors, "FLOORS", floors)

    assert main() == exit_code
    assert ("mailserver/net" in capsys.readouterr().err) == bool(exit_code)


@pytest.mark.slow
def test_processes_that_share_tests_measure_together(tmp_path: Path) -> None:
    for file, text in {
        "mailserver/__init__.py": "",
        "mailserver/net/__init__.py": "",
        "mailserver/net/half.py": HALF.format(1),
        "mailserver/never.py": HALF.format(1),
        "spark_export/__init__.py": "",
        "tests/test_above.py": "def test():\n    import mailserver.net.half",
        "tests/test_below.py": "def test():\n    from mailserver.net.half import sign\n    assert sign(-1) == -1",
        "pytest.ini": "[pytest]\npythonpath = .",
    }.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text, encoding="utf-8")
    for name in "__init__.py", "measuring.py", "coverage_floors.py":
        shutil.copy(Path(__file__).with_name(name), tmp_path / "tests")
    alone = [sys.executable, "-m", "pytest", "-p", "tests.measuring", "-p", "no:cacheprovider", "-n", "2"]

    # This process may itself be one of several that share tests, and have been given options: those are not.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    subprocess.run([*alone, "--dist", "each", "tests"], cwd=tmp_path, env=environment, check=True)

    assert sorted(path.name for path in (tmp_path / ".coverage").iterdir()) == ["gw0.json", "gw1.json", "main.json"]
    assert measure(read_report(tmp_path / ".coverage")) == {
        "mailserver": Measured(0, 7),
        "mailserver/net": Measured(7, 7),
        "spark_export": Measured(0, 0),
    }


def test_nothing_measured_is_no_coverage(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing was measured"):
        read_report(tmp_path)
