"""A Go mailserver's table in PostgreSQL is moved into a file: whoever moves over keeps the history."""

import asyncio
import json
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mailserver.commands.cli import main
from mailserver.errors import ConfigError
from mailserver.moving import move as moving
from mailserver.store.postgres import go_history
from mailserver.waku.envelope import Envelope, decode_envelope
from tests.data import load
from tests.mailservers import make_envelope
from tests.moving.ends import End, columns, database, file_in, move_between, show_nothing, some
from tests.moving.go_keys import EARLY_BYTES, by_key, key_of
from tests.store.indexing import ids_indexed_at_once

# As the migrations of status-go make it (mailserver/migrations).
COLUMNS = "id BYTEA NOT NULL UNIQUE, data BYTEA NOT NULL, topic BYTEA NOT NULL, bloom BIT(512) NOT NULL"
TABLE = (
    f"CREATE TABLE envelopes ({COLUMNS})",
    "CREATE INDEX id_bloom_idx ON envelopes (id DESC, bloom)",
    "CREATE INDEX id_topic_idx ON envelopes (id DESC, topic)",
)


@pytest.fixture(scope="module", autouse=True)
def _indexed_at_once() -> Iterator[None]:
    with ids_indexed_at_once():
        yield


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "MAX_GROUP_ROWS", 16)


@pytest.fixture
async def go() -> End:
    """A Go mailserver's database, still without envelopes."""
    end = database()
    await end.change(*TABLE)
    return end


def inserting(envelopes: Sequence[Envelope], *, early: bool = False) -> str:
    """How the Go mailserver saves envelopes; `early`: as one of its early versions did."""
    rows = [
        f"('\\x{(key_of(each)[:EARLY_BYTES] if early else key_of(each)).hex()}', '\\x{each.raw.hex()}', "
        f"'\\x{each.topic.hex()}', 0::bit(512))"
        for each in envelopes
    ]
    return f"INSERT INTO envelopes (id, data, topic, bloom) VALUES {', '.join(rows)} ON CONFLICT (id) DO NOTHING"


async def save(go: End, envelopes: Sequence[Envelope], *, early: bool = False) -> None:
    """Save envelopes."""
    await go.change(inserting(envelopes, early=early))


async def test_all_that_a_go_mailserver_has_kept_is_there(go: End, tmp_path: Path) -> None:
    target = file_in(tmp_path / "data")
    recorded = [decode_envelope(bytes.fromhex(each["raw"])) for each in load("envelopes.json")["envelopes"]]
    envelopes = [*(decode_envelope(each.raw) for each in some(50)), *recorded]
    await save(go, envelopes[:40])
    await save(go, envelopes[40:], early=True)

    report = await move_between(go, target)

    assert await target.rows() == columns(by_key(envelopes))
    assert (report.moved, report.there, report.compared) == (len(envelopes), 0, len(envelopes))
    assert report.is_whole
    assert report.more is None


async def test_what_claims_to_be_of_the_future_was_received_now(go: End, tmp_path: Path) -> None:
    target = file_in(tmp_path / "data")
    ahead = make_envelope(1, created=int(time.time()) + 10**6)
    await save(go, [ahead])
    before = int(time.time())

    await move_between(go, target)

    ((received, created, *_),) = await target.rows()
    assert before <= received <= time.time()
    assert created == ahead.created


async def test_move_that_ended_skips_what_is_there(go: End, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = file_in(tmp_path / "data")
    envelopes = [decode_envelope(each.raw) for each in some(50)]
    await save(go, envelopes)
    monkeypatch.setattr(moving, "RECORD_INTERVAL_S", 0.0)

    def end(step: str, done: int, total: int | None) -> None:
        raise KeyError("ended")

    with pytest.raises(KeyError):
        await move_between(go, target, end)
    report = await move_between(go, target)

    assert (report.moved, report.there) == (34, 16)
    assert await target.rows() == columns(by_key(envelopes))


async def test_what_the_go_mailserver_saves_meanwhile_is_there_too(go: End, tmp_path: Path) -> None:
    target = file_in(tmp_path / "data")
    envelopes = [decode_envelope(each.raw) for each in some(40)]
    late = make_envelope(999, created=1)  # before all others in the order in which they are read
    await save(go, envelopes)
    saved: list[Envelope] = []

    def save_one(step: str, done: int, total: int | None) -> None:
        if not saved:
            saved.append(late)
            assert go.server is not None
            go.server.sql(inserting([late]), go.schema)

    report = await move_between(go, target, save_one)

    assert report.moved == 41
    assert sorted(await target.rows()) == sorted(columns(by_key([*envelopes, late])))


async def test_rows_that_are_not_as_their_keys_say_are_set_aside_once(go: End, tmp_path: Path) -> None:
    target = file_in(tmp_path / "data")
    envelopes = [decode_envelope(each.raw) for each in some(30)]
    await save(go, envelopes)
    first, second, third = sorted(map(key_of, envelopes))[:3]
    await go.change(
        f"UPDATE envelopes SET data = '\\x00' WHERE id = '\\x{first.hex()}'",
        f"UPDATE envelopes SET id = id || '\\x00' WHERE id = '\\x{second.hex()}'",
        f"UPDATE envelopes SET topic = '\\x00000000' WHERE id = '\\x{third.hex()}'",
    )

    report = await move_between(go, target)
    await move_between(go, target)

    assert (report.moved, report.set_aside, report.is_whole) == (27, 3, False)
    lines = (tmp_path / "data" / "mailserver.db-set-aside.jsonl").read_text().splitlines()
    assert [json.loads(line)["row"][0] for line in lines[1:]] == [second.hex() + "00", third.hex()]
    assert len(lines) == 3


async def test_rows_with_nulls_are_set_aside_and_end_nothing(go: End, tmp_path: Path) -> None:
    """A whole batch of them, too."""
    target = file_in(tmp_path / "data")
    await go.change(*(f"ALTER TABLE envelopes ALTER COLUMN {column} DROP NOT NULL" for column in ("data", "topic")))
    envelopes = sorted((decode_envelope(each.raw) for each in some(50)), key=key_of)
    await save(go, envelopes)
    keys = [f"'\\x{key_of(each).hex()}'" for each in envelopes]
    await go.change(
        f"UPDATE envelopes SET data = NULL WHERE id IN ({', '.join(keys[:20])})",
        f"UPDATE envelopes SET topic = NULL WHERE id = {keys[30]}",
    )

    report = await move_between(go, target)

    assert (report.moved, report.set_aside, report.is_whole) == (29, 21, False)
    assert await target.rows() == columns(by_key([*envelopes[20:30], *envelopes[31:]]))
    lines = (tmp_path / "data" / "mailserver.db-set-aside.jsonl").read_text().splitlines()
    assert [json.loads(line)["why"] for line in lines] == ["it has no envelope, or no topic"] * 21


def test_nothing_is_set_on_a_go_mailservers_server_that_an_old_one_does_not_know() -> None:
    known_to_9_6 = {"default_transaction_read_only", "statement_timeout", "lock_timeout", "timezone"}

    assert set(re.findall("SET ([a-z_]+)", go_history.SESSION)) == known_to_9_6


async def test_history_of_a_go_mailserver_cannot_be_moved_to(go: End, tmp_path: Path) -> None:
    source = file_in(tmp_path / "data")
    await source.fill(some(3))

    with pytest.raises(Exception, match="there is a table envelopes of another program"):
        await move_between(source, go, show_nothing)

    with pytest.raises(ConfigError, match="both are databases"):
        await move_between(go, database())


def test_command_says_that_it_was_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    end, target = database(), file_in(tmp_path / "data")
    envelopes = [decode_envelope(each.raw) for each in some(5)]

    async def prepare() -> None:
        await end.change(*TABLE)
        await save(end, envelopes)

    asyncio.run(prepare())

    assert main(["migrate", "--from", str(end.place), "--to", str(target.place)]) == 0

    assert capsys.readouterr().out.splitlines() == [
        "5 envelopes moved, 0 were there before",
        "read again: all of 5 envelopes are there",
    ]
