"""tests.fuzz.properties: which properties there are, and that one that does not hold is found, and again."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.properties import property_targets, try_properties
from tests.fuzz.runner import ROOT, place_of

HOLDS = """
from hypothesis import given, strategies as st

@given(st.integers())
def test_numbers_are_themselves(number: int) -> None:
    assert number == number

def test_of_no_property() -> None:
    assert False
"""
BREAKS = """
from hypothesis import given, strategies as st

@given(st.integers(0, 2000))
def test_no_number_is_1234(number: int) -> None:
    assert number != 1234
"""
IMPORTED = re.compile(r"^from tests\.([\w.]+) import", re.MULTILINE)
"""What tests/conftest.py imports of the other files there. These import none."""


def root_with(tmp_path: Path, **tests: str) -> Path:
    """A repository whose tests in the folder `some` are these."""
    folder = tmp_path / "root" / "tests" / "some"
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "pyproject.toml", tmp_path / "root")
    for name in ("__init__", "conftest", *IMPORTED.findall((ROOT / "tests" / "conftest.py").read_text())):
        file = Path(*name.split(".")).with_suffix(".py")
        (folder.parent / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "tests" / file, folder.parent / file)
    for name, code in tests.items():
        (folder / f"test_{name}.py").write_text(code)
    return tmp_path / "root"


@pytest.mark.slow
def test_every_folder_with_properties_is_a_target() -> None:
    targets = property_targets()

    assert {"properties-mail", "properties-waku", "properties-store", "properties-store.sqlite"} <= set(targets)
    assert "properties-docker" not in targets
    assert "properties-fuzz" not in targets  # this file: it only writes such tests


@pytest.mark.fuzz
def test_no_property_is_left_out() -> None:
    """Of the files that pytest may find one in: it takes four seconds of CPU for these, and eleven for all."""
    naming = {file: file.read_text() for file in (ROOT / "tests").rglob("*.py") if "hypothesis" in file.read_text()}
    tests = [str(file) for file in naming if file.name.startswith("test_")]
    options = ["-m", "hypothesis", "-q", "--collect-only", "-p", "no:cacheprovider"]

    marked = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    folders = {Path(line.partition("::")[0]).parent for line in marked.splitlines() if "::" in line}

    assert {f"properties-{'.'.join(folder.parts[1:])}" for folder in folders} == set(property_targets())
    assert [file for file, text in naming.items() if "@given" in text and str(file) not in tests] == []


def test_what_broke_is_recorded_by_its_place_in_the_project(tmp_path: Path) -> None:
    assert place_of(tmp_path / ".fuzz" / "waku", tmp_path) == Path(".fuzz/waku")
    assert place_of(tmp_path / "elsewhere", tmp_path / "project") == tmp_path / "elsewhere"


@pytest.mark.fuzz
def test_properties_that_hold_are_run_and_nothing_else(tmp_path: Path) -> None:
    root = root_with(tmp_path, holds=HOLDS)

    row, problem = try_properties("properties-some", tmp_path, seconds=0, seed=7, root=root)

    assert problem is None
    assert row.figures == {"runs": 1000, "rounds": 1, "seed": 7}


@pytest.mark.fuzz
def test_property_that_does_not_hold_is_told_with_its_seed(tmp_path: Path) -> None:
    root = root_with(tmp_path, breaks=BREAKS)

    row, problem = try_properties("properties-some", tmp_path, seconds=120, seed=7, root=root)

    assert problem is not None
    last = 7 + int(row.figures["rounds"]) - 1
    assert f"--hypothesis-seed={last} tests/some/test_breaks.py::test_no_number_is_1234" in problem
    assert "number=1234" in (tmp_path / "properties-some" / f"log-{last}").read_text()

    _, again = try_properties("properties-some", tmp_path, seconds=0, seed=last, root=root)
    assert again == problem
