"""mailserver.handoff.communities: the record that `community serve` writes for the daemon."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mailserver.communities.progress import Week
from mailserver.handoff.communities import (
    MAX_PROBLEM_CHARACTERS,
    MAX_SHOWN,
    MAX_WEEKS,
    SERVED_FILE,
    STALE_S,
    Served,
    ServedError,
    read_served,
    write_served,
)
from mailserver.handoff.json_records import MAX_RECORD_BYTES
from tests.communities.progress import JOINED, OWNED

AT = 1_790_000_000.25


def test_record_says_what_was_written(tmp_path: Path) -> None:
    assert read_served(tmp_path) is None

    write_served(tmp_path, [OWNED, JOINED], AT)

    assert read_served(tmp_path) == Served(AT, (OWNED, JOINED))


def test_record_is_current_until_the_service_should_have_written_it_again() -> None:
    served = Served(AT, ())

    assert served.is_current(AT + STALE_S)
    assert not served.is_current(AT + STALE_S + 1)
    assert not served.is_current(AT - STALE_S - 1)


def test_record_can_be_read_whatever_is_served(tmp_path: Path) -> None:
    weeks = tuple(Week(number * 10**9, 2**40, 20_000, False, False, False, 2**32, 2**32) for number in range(500))
    largest = replace(JOINED, weeks=weeks, uploaded=2**62, downloaded=2**62, problem="\N{SNOWMAN}" * 10_000)

    write_served(tmp_path, [largest] * 1000, AT)

    assert (tmp_path / SERVED_FILE).stat().st_size <= MAX_RECORD_BYTES
    served = read_served(tmp_path)
    assert served is not None
    assert len(served.communities) == MAX_SHOWN
    assert served.communities[-1].weeks == weeks[-MAX_WEEKS:]
    assert served.communities[-1].problem == "\N{SNOWMAN}" * MAX_PROBLEM_CHARACTERS


def _set(name: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda record: record["communities"][0].update({name: value})


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "no list of communities": lambda record: record.update(communities={}),
    "too many communities": lambda record: record.update(communities=record["communities"] * (MAX_SHOWN + 1)),
    "no moment": lambda record: record.pop("at"),
    "another version": lambda record: record.update(version=1),
    "no object": lambda record: record.update(communities=[1]),
    "id": _set("id", 5),
    "role": _set("role", "guest"),
    "weeks": _set("weeks", None),
    "too many weeks": _set("weeks", [[0, 1, 1, True, True, True, None, None]] * (MAX_WEEKS + 1)),
    "short week": _set("weeks", [[0, 1, 1, True, True, True]]),
    "week of no flag": _set("weeks", [[0, 1, 1, 1, True, True, None, None]]),
    "week before 1970": _set("weeks", [[-1, 1, 1, True, True, True, None, None]]),
    "week fetched by half": _set("weeks", [[0, 1, 1, True, True, 0.5, None, None]]),
    "week fetched never and a half": _set("weeks", [[0, 1, 1, True, True, True, -1, None]]),
    "week fetched at no time": _set("weeks", [[0, 1, 1, True, True, True, 1, "today"]]),
    "archives": _set("archives", {"missing": "1"}),
    "late weeks": _set("late_weeks", -1),
    "seeding": _set("is_seeding", 1),
    "announced": _set("announced_at", "today"),
    "peers": _set("peers", 1.5),
    "uploaded": _set("uploaded", -1),
    "downloaded": _set("downloaded", None),
    "problem": _set("problem", None),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_is_no_record_is_refused_as_a_whole(change: Callable[[dict[str, Any]], object], tmp_path: Path) -> None:
    write_served(tmp_path, [OWNED], AT)
    record = json.loads((tmp_path / SERVED_FILE).read_text())
    change(record)
    (tmp_path / SERVED_FILE).write_text(json.dumps(record))

    with pytest.raises(ServedError, match="is no record of served communities"):
        read_served(tmp_path)
