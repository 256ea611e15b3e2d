"""`waku-mailserver migrate` as an operator types it. `tests/integration/test_migrate.py` has daemons beside it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from mailserver.commands.migrate import MAX_SHOWN
from mailserver.moving import difference
from tests.integration.commands import assert_fails, call
from tests.moving.ends import End, columns, database, file_in, muids, some
from tests.store.indexing import ids_indexed_at_once


@pytest.fixture(scope="module", autouse=True)
def _indexed_at_once() -> Iterator[None]:
    with ids_indexed_at_once():
        yield


@pytest.fixture
def ends(tmp_path: Path) -> tuple[End, End]:
    source, target = file_in(tmp_path / "data"), database()
    uvloop.run(source.fill(some(30)))
    return source, target


def test_it_says_what_was_moved_and_that_all_is_there(ends: tuple[End, End]) -> None:
    source, target = ends

    done = call("migrate", "--from", source.place, "--to", target.place)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "30 envelopes moved, 0 were there before",
        "message ids compared: all of 30 envelopes are there",
    ]
    assert uvloop.run(target.rows()) == columns(some(30))


def test_what_only_the_target_has_is_named(ends: tuple[End, End], monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = ends
    uvloop.run(target.fill(some(MAX_SHOWN + 2, first=500)))

    done = call("migrate", "--from", source.place, "--to", target.place)
    monkeypatch.setattr(difference, "MAX_DIFFERENCES", 5)
    bounded = call("migrate", "--from", source.place, "--to", target.place)
    as_json = json.loads(call("migrate", "--from", source.place, "--to", target.place, "--json").stdout)

    assert (done.returncode, bounded.returncode) == (0, 0)
    lines = done.stdout.splitlines()
    assert lines[1] == f"{MAX_SHOWN + 2} envelopes only there:"
    assert lines[-2] == "  .. and 2 more, which --json names"
    assert len(lines) == MAX_SHOWN + 4
    assert "at least 5 envelopes only there:" in bounded.stdout
    assert (as_json["more"]["count"], as_json["more"]["is_all"]) == (5, False)
    extra = {muid.hex() for muid in muids(some(MAX_SHOWN + 2, first=500))}
    assert {line.strip() for line in lines[2:-2]} < extra
    assert len(set(as_json["more"]["ids"]) & extra) == 5


def test_damage_is_told_and_the_exit_code_says_so(ends: tuple[End, End], tmp_path: Path) -> None:
    source, target = ends
    uvloop.run(source.change("UPDATE envelopes SET topic = x'00' WHERE seq = 3"))

    done = call("migrate", "--from", source.place, "--to", target.place)
    as_json = json.loads(call("migrate", "--from", source.place, "--to", target.place, "--json").stdout)

    aside = tmp_path / "data" / "mailserver.db-set-aside.jsonl"
    assert done.returncode == 1
    assert done.stdout.splitlines()[:3] == [
        "29 envelopes moved, 0 were there before",
        f"1 damaged piece set aside in {aside}",
        "1 envelope missing there:",
    ]
    assert len(aside.read_text().splitlines()) == 1
    assert (as_json["set_aside"], as_json["set_aside_file"], as_json["missing"]["count"]) == (1, str(aside), 1)


@pytest.mark.parametrize(
    ("source", "target", "code", "message"),
    [
        (__file__, "two/mailserver.db", 2, "both are files: waku-mailserver backup copies a store"),
        ("gone/waku", "two/mailserver.db", 1, "there is nothing at gone/waku"),
        ("w" * 300, "two/mailserver.db", 1, "cannot look at www"),
        ("postgresql:///one", "postgres:///two", 2, "both are databases: pg_dump copies one"),
        ("gone/mailserver.db", "postgresql:///one?host=/gone", 1, "cannot open the store gone/mailserver.db"),
    ],
    ids=["files", "no folder", "out of reach", "databases", "gone"],
)
def test_what_cannot_be_moved_is_refused_in_a_line(source: str, target: str, code: int, message: str) -> None:
    assert_fails(call("migrate", "--from", source, "--to", target), code, message)


def test_password_of_a_database_is_not_shown(tmp_path: Path) -> None:
    file = file_in(tmp_path / "data")
    uvloop.run(file.fill(some(1)))

    done = call("migrate", "--from", file.place, "--to", "postgresql://me:verysecret@/mail?host=/gone")

    assert done.returncode == 1
    assert "postgresql://me@" in done.stderr
    assert "verysecret" not in done.stderr
