"""docs/architecture.md: the files that it names are there, and its walks are as long as it says."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
FILE = re.compile(r"`([a-z_/0-9]+\.py)`")
FOLDERS = (ROOT, ROOT / "mailserver", ROOT / "spark_export")
"""Where names of files begin."""


def section(title: str) -> str:
    """The text under a heading."""
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_every_file_that_is_named_is_there() -> None:
    names = set(FILE.findall(TEXT))
    assert names

    assert [name for name in names if not any((folder / name).is_file() for folder in FOLDERS)] == []


@pytest.mark.parametrize(
    ("walk", "fewer_than"),
    [("an envelope", 28), ("a request", 27), ("a message", 28), ("a query", 20), ("a night", 30)],
)
def test_walk_has_as_many_files_as_it_says(walk: str, fewer_than: int) -> None:
    text = section(f"The walk of {walk}")
    stated = re.search(r"^(\d+) files", text, re.MULTILINE)
    assert stated is not None

    assert int(stated[1]) == len(set(FILE.findall(text))) < fewer_than


def test_every_room_has_its_line() -> None:
    """Rooms inside of rooms are those of the store."""
    rooms = {path.parent.name for path in (ROOT / "mailserver").glob("*/__init__.py")}

    drawn = re.findall(r"\b([a-z_0-9]+)/", section("The rooms").partition("```")[2].partition("```")[0])
    assert rooms - set(drawn) == set()
