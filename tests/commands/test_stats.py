"""`waku-mailserver stats` of stores that no daemon uses. Beside a daemon: `tests/integration/test_commands.py`."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from mailserver.commands.cli import main
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from tests.foreign_stores import FOREIGN_STORES, contents
from tests.mailservers import fill, make_envelopes

NAMES = ["envelopes", "bytes", "topics", "oldest", "newest"]

Capture = pytest.CaptureFixture[str]


async def make_store(folder: Path, count: int) -> None:
    async with open_store(folder / STORE_FILE) as store:
        await fill(store, make_envelopes(count))


def test_stats_for_people_are_a_line_for_each(tmp_path: Path, capsys: Capture) -> None:
    uvloop.run(make_store(tmp_path, 1))

    assert main(["stats", "--data-dir", str(tmp_path)]) == 0

    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()] == NAMES
    assert re.search(r"oldest +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\n", out)


def test_stats_of_an_empty_store_have_no_times(tmp_path: Path, capsys: Capture) -> None:
    uvloop.run(make_store(tmp_path, 0))

    assert main(["stats", "--data-dir", str(tmp_path)]) == 0
    assert [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()] == [
        [name, value] for name, value in zip(NAMES, ["0", "0 B", "0", "-", "-"], strict=True)
    ]

    assert main(["stats", "--json", "--data-dir", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "envelopes": 0,
        "bytes": 0,
        "topics": 0,
        "oldest": None,
        "newest": None,
    }


@pytest.mark.parametrize(("make", "message"), FOREIGN_STORES)
def test_store_that_is_not_ours_is_refused_and_left_alone(
    make: Callable[[Path], None], message: str, tmp_path: Path, capsys: Capture
) -> None:
    make(tmp_path / STORE_FILE)
    before = contents(tmp_path)

    assert main(["stats", "--data-dir", str(tmp_path)]) == 1

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"waku-mailserver: {message.format(tmp_path / STORE_FILE)}")
    assert printed.err.count("\n") == 1
    assert contents(tmp_path) == before
