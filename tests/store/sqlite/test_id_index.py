"""mailserver.store.sqlite.id_index on real files: whatever befalls a store, its ids are those of its rows."""

import contextlib
import logging
import random
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.store.engine import index_wait
from mailserver.store.engine.id_sums import BATCH_ROWS
from mailserver.store.engine.put_queue import MAX_GROUP_ROWS
from mailserver.store.interface import NewEnvelope
from mailserver.store.retention import END_OF_TIME, Surplus
from mailserver.store.sqlite import id_index, writer
from mailserver.store.sqlite.connections import connect_writer
from mailserver.store.sqlite.deletion import delete_batch
from mailserver.store.sqlite.id_index import EMPTIED_ROWS, advance, give_up
from mailserver.store.sqlite.insertion import insert_group
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from tests.properties import settings
from tests.store.samples import (
    DAY,
    START,
    UNSHRUNK,
    change,
    copy_as_on_disk,
    make_store,
    make_version_1,
    new_envelopes,
    plain,
    rows,
    stored,
)
from tests.store.sqlite.ids import assert_all_is_indexed, assert_ids_are_right, row
from tests.waiting import until

OURS, OTHER = DEFAULT_NETWORK_TOPIC, "/waku/2/rs/1/5"
ALL = Surplus(END_OF_TIME, 10**9)

rows_to_put = st.lists(
    st.builds(
        lambda number, created: row(number, created=created, received=START),
        st.integers(0, 60),
        st.sampled_from([0, 1, 59, 60, 3600, START - 1, START, START + 61, START + DAY, 2**32 - 51]),
    ),
    max_size=12,
)


def some_rows(count: int, *, first: int = 0) -> list[NewEnvelope]:
    """Rows of which each was created 20 seconds after the one before."""
    return [row(number, created=START + 20 * number) for number in range(first, first + count)]


@contextlib.contextmanager
def writing(path: Path) -> Iterator[sqlite3.Connection]:
    """The connection that writes, without a writer: whatever is indexed is indexed by the test."""
    with contextlib.closing(connect_writer(path)) as connection:
        yield connection


def advance_to_the_end(connection: sqlite3.Connection, network_topic: str = OURS) -> int:
    """Index until nothing is left; return how many batches that took."""
    batches = 1
    while advance(connection, network_topic):
        batches += 1
    return batches


class Indexed(RuleBasedStateMachine):
    """A store whose rows come and go while they are indexed in batches of 5, and which is killed between any two."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = contextlib.ExitStack()
        self.folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.stack.enter_context(patch.object(id_index, "BATCH_ROWS", 5))
        self.stack.enter_context(patch.object(id_index, "EMPTIED_ROWS", 4))
        self.path = self.folder / STORE_FILE
        self.generation = 0
        self.network_topic = OURS
        self.connection = connect_writer(self.path)

    def teardown(self) -> None:
        advance_to_the_end(self.connection, self.network_topic)
        self.connection.close()
        assert_all_is_indexed(self.path, self.network_topic)
        self.stack.close()

    @rule(batch=rows_to_put)
    def put(self, batch: list[NewEnvelope]) -> None:
        insert_group(self.connection, batch)

    @rule(most=st.integers(1, 20))
    def prune(self, most: int) -> None:
        before = assert_ids_are_right(self.path)
        delete_batch(self.connection, Surplus(END_OF_TIME, most), None, removing=lambda *_: None)
        assert assert_ids_are_right(self.path) == before  # it fitted, and was not built anew

    @rule(batches=st.integers(1, 5))
    def index(self, batches: int) -> None:
        for _ in range(batches):
            left = advance(self.connection, self.network_topic)
            if not left:
                assert_all_is_indexed(self.path, self.network_topic)

    @rule(network_topic=st.sampled_from([OURS, OTHER]))
    def change_network_topic(self, network_topic: str) -> None:
        self.network_topic = network_topic

    @rule()
    def kill(self) -> None:
        self.generation += 1
        left = copy_as_on_disk(self.path, self.folder / str(self.generation))
        self.connection.close()
        self.path = left
        self.connection = connect_writer(left)

    @invariant()
    def ids_are_those_of_the_rows(self) -> None:
        assert_ids_are_right(self.path)


TestIndexed = Indexed.TestCase
TestIndexed.settings = settings(max_examples=12, stateful_step_count=25, phases=UNSHRUNK)


# Batches


def test_rows_are_indexed_in_batches(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_index, "BATCH_ROWS", 10)
    with writing(path) as connection:
        insert_group(connection, some_rows(25))

        left = [advance(connection, OURS) for _ in range(5)]

    assert left == [25, 15, 5, 0, 0]  # the first one learns of the network topic
    assert_all_is_indexed(path, OURS)


def test_batch_ends_with_the_envelope_that_reaches_its_bytes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_index, "BATCH_BYTES", 2500)
    with writing(path) as connection:
        insert_group(connection, [row(number, created=START, data_bytes=1000) for number in range(7)])

        left = [advance(connection, OURS) for _ in range(4)]

    assert left == [7, 4, 1, 0]
    assert_all_is_indexed(path, OURS)


def test_no_flood_outruns_the_index() -> None:
    assert BATCH_ROWS >= MAX_GROUP_ROWS


@pytest.mark.parametrize("count", [1, 9, 11, 101, 250])
def test_any_number_of_rows_is_indexed_and_forgotten(path: Path, count: int) -> None:
    scattered = [row(number, created=START + 7001 * number, received=START) for number in range(count)]
    with writing(path) as connection:
        insert_group(connection, scattered)
        advance_to_the_end(connection)
        assert_all_is_indexed(path, OURS)

        assert delete_batch(connection, ALL, None, removing=lambda *_: None).envelopes == count

    assert rows(path, "SELECT * FROM ids") == rows(path, "SELECT * FROM id_sums") == []
    assert rows(path, "SELECT until_seq FROM id_index") == [(count,)]


def test_rows_without_ids_are_in_no_index(path: Path) -> None:
    with writing(path) as connection:
        insert_group(connection, [row(1, created=0), *new_envelopes(2), row(2, created=START)])

        advance_to_the_end(connection)

    assert rows(path, "SELECT seq FROM ids") == [(4,)]
    assert rows(path, "SELECT until_seq FROM id_index") == [(4,)]


def test_statements_read_and_delete_by_the_primary_keys(path: Path) -> None:
    plans: list[str] = []
    with writing(path) as connection:
        insert_group(connection, some_rows(150))
        statements: list[str] = []
        connection.set_trace_callback(statements.append)
        advance_to_the_end(connection)
        delete_batch(connection, ALL, None, removing=lambda *_: None)
        connection.set_trace_callback(None)
        for statement in statements:
            if ("ids" in statement or "id_sums" in statement) and str(EMPTIED_ROWS) not in statement:
                plans += [detail for *_, detail in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]

    assert not [plan for plan in plans if plan.startswith(("SCAN ids", "SCAN id_sums", "SCAN i ", "SCAN s "))]
    assert any("SEARCH i USING PRIMARY KEY (created=? AND id=?)" in plan for plan in plans)


# What does not fit


def test_transaction_that_is_killed_leaves_all_of_it_or_nothing(path: Path, tmp_path: Path) -> None:
    copies: list[Path] = []

    def copy(_: str) -> None:
        copies.append(copy_as_on_disk(path, tmp_path / f"killed at {len(copies)}"))

    with writing(path) as connection:
        insert_group(connection, some_rows(30))
        connection.set_trace_callback(copy)
        advance_to_the_end(connection)
        delete_batch(connection, Surplus(END_OF_TIME, 10), None, removing=lambda *_: None)
        connection.set_trace_callback(None)

    assert len(copies) > 10
    for copied in copies:
        assert_ids_are_right(copied)
        with writing(copied) as connection:
            advance_to_the_end(connection)
        assert_all_is_indexed(copied, OURS)


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM id_sums WHERE span = 60",
        "UPDATE id_sums SET sum = x'00' WHERE span = 60",
        "UPDATE id_sums SET count = count - 1 WHERE span = 86400",
        "UPDATE id_sums SET sum = zeroblob(32)",
        "DELETE FROM id_index",
    ],
)
def test_index_that_does_not_fit_is_built_anew(path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with writing(path) as connection:
        insert_group(connection, some_rows(3))
        advance_to_the_end(connection)
        connection.execute(damage)

        delete_batch(connection, ALL, None, removing=lambda *_: None)
        insert_group(connection, some_rows(3, first=10))
        advance_to_the_end(connection)

    assert_all_is_indexed(path, OURS)
    assert ("indexing it anew" in caplog.text) == ("id_index" not in damage)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE envelopes SET raw = x'00' WHERE seq = 3",
        "UPDATE envelopes SET raw = CAST(substr(raw, 1, 30) || x'99' || substr(raw, 32) AS BLOB) WHERE seq = 3",
        "UPDATE envelopes SET created = created - 90000 WHERE seq = 3",
        "DELETE FROM ids WHERE seq = 3",
        "UPDATE ids SET id = zeroblob(32) WHERE seq = 3",
        "UPDATE ids SET created = created + 90000 WHERE seq = 3",
    ],
)
def test_damaged_row_costs_no_other_its_place_in_the_index(
    path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with writing(path) as connection:
        insert_group(connection, some_rows(60))
        advance_to_the_end(connection)
        before = rows(path, "SELECT * FROM ids WHERE seq > 5")
        connection.execute(damage)

        delete_batch(connection, Surplus(END_OF_TIME, 5), None, removing=lambda *_: None)

    assert_all_is_indexed(path, OURS)
    assert rows(path, "SELECT * FROM ids") == before
    assert caplog.messages == ["message ids of damaged envelopes removed deleted=4 expected=5"]


def test_row_that_was_damaged_before_it_was_indexed_is_no_fault_of_the_index(path: Path) -> None:
    with writing(path) as connection:
        insert_group(connection, some_rows(60))
        connection.execute("UPDATE envelopes SET raw = x'00' WHERE seq = 3")
        advance_to_the_end(connection)

        delete_batch(connection, Surplus(END_OF_TIME, 5), None, removing=lambda *_: None)

    assert_all_is_indexed(path, OURS)
    assert rows(path, "SELECT count(*), max(seq) FROM ids") == [(55, 60)]


def test_damaged_row_of_too_many_of_a_minute_has_the_store_indexed_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(id_index, "MENDED_IDS", 20)
    with writing(path) as connection:
        insert_group(connection, [row(number, created=START) for number in range(30)])
        advance_to_the_end(connection)
        connection.execute("UPDATE envelopes SET raw = x'00' WHERE seq = 3")

        delete_batch(connection, Surplus(END_OF_TIME, 5), None, removing=lambda *_: None)
        assert "indexing it anew" in caplog.text
        advance_to_the_end(connection)

    assert_all_is_indexed(path, OURS)


def test_index_that_readers_find_damaged_is_made_anew_once(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(id_index, "BATCH_ROWS", 20)
    with writing(path) as connection:
        insert_group(connection, some_rows(45))
        advance_to_the_end(connection)
        change(path, "UPDATE id_sums SET count = 7")

        for steps in range(5):  # of 45 rows, none are indexed, none, 20, 40
            give_up(connection, 45)
            if steps < 4:
                assert advance(connection, OURS)
        advance_to_the_end(connection)

    assert_all_is_indexed(path, OURS)
    assert caplog.text.count("index of message ids is damaged, indexing the store anew until_seq=") == 1


def test_row_that_has_the_id_of_a_damaged_one_does_not_stop_the_index(path: Path) -> None:
    """A row whose hash was damaged is not known any more: the same envelope is stored again."""
    with writing(path) as connection:
        insert_group(connection, some_rows(3))
        advance_to_the_end(connection)
        connection.execute("UPDATE envelopes SET hash = zeroblob(16) WHERE seq = 2")
        insert_group(connection, some_rows(5))

        advance_to_the_end(connection)
        assert [seq for (seq,) in rows(path, "SELECT seq FROM envelopes WHERE seq NOT IN (SELECT seq FROM ids)")] == [5]
        for _ in range(2):
            delete_batch(connection, Surplus(END_OF_TIME, 1), None, removing=lambda *_: None)
        advance_to_the_end(connection)
        delete_batch(connection, Surplus(END_OF_TIME, 2), None, removing=lambda *_: None)
        advance_to_the_end(connection)

    assert_all_is_indexed(path, OURS)


@pytest.mark.parametrize(("column", "kind"), [("created", "INTEGER"), ("raw", "BLOB")])
def test_row_without_a_value_is_passed_over(path: Path, column: str, kind: str) -> None:
    """Damage can leave one out, although the schema does not allow it."""
    make_store(path, some_rows(30))
    with plain(path, write=True) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            f"UPDATE sqlite_master SET sql = replace(sql, '{column} {kind} NOT NULL', '{column} {kind}')"
        )
    with plain(path, write=True) as connection:
        connection.execute(f"UPDATE envelopes SET {column} = NULL WHERE seq IN (2, 9)")

    with contextlib.closing(connect_writer(path)) as connection:
        advance_to_the_end(connection)
        assert connection.execute("SELECT count(*) FROM ids").fetchone() == (28,)
        with contextlib.suppress(sqlite3.IntegrityError):  # the day of a row without a time cannot be counted
            delete_batch(connection, Surplus(END_OF_TIME, 20), None, removing=lambda *_: None)


# Behind the writer


async def test_what_is_put_is_indexed_soon(path: Path) -> None:
    async with open_store(path) as store:
        await store.put(some_rows(30))
        await until(lambda: not store.unindexed)

        assert_all_is_indexed(path, OURS)
        await store.prune(Surplus(END_OF_TIME, 10))
        assert_all_is_indexed(path, OURS)


async def test_a_few_envelopes_wait_for_more_and_then_are_indexed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_wait, "INDEX_DELAY_S", 3600.0)
    async with open_store(path) as store:
        for number in range(3):
            await store.put(some_rows(1, first=number))
            await store.touch()

        assert store.unindexed >= 3
    assert rows(path, "SELECT * FROM ids") == []

    monkeypatch.setattr(index_wait, "INDEX_DELAY_S", 0.1)
    async with open_store(path) as store:
        await until(lambda: not store.unindexed)
        await store.put(some_rows(1, first=3))
        assert store.unindexed
        await until(lambda: not store.unindexed)

    assert_all_is_indexed(path, OURS)


async def test_another_network_topic_makes_other_ids(path: Path) -> None:
    async with open_store(path) as store:
        await store.put(some_rows(30))
        await until(lambda: not store.unindexed)

    async with open_store(path, OTHER, reindex=True) as store:
        await until(lambda: not store.unindexed)

    assert_all_is_indexed(path, OTHER)


@pytest.mark.parametrize("make", [make_store, make_version_1])
async def test_old_store_is_indexed_while_it_is_used(
    path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path, list[NewEnvelope]], None]
) -> None:
    monkeypatch.setattr(id_index, "BATCH_ROWS", 10)
    make(path, some_rows(100))
    before = stored(path)

    async with open_store(path) as store:
        await store.put(some_rows(3, first=200))
        assert store.unindexed  # this did not wait for it
        await until(lambda: not store.unindexed)

    assert [one.raw for one in stored(path)[:100]] == [one.raw for one in before]
    assert_all_is_indexed(path, OURS)


async def test_flood_is_indexed_although_something_always_waits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_wait, "MAX_PUT_OFF_ROWS", 0)
    monkeypatch.setattr(writer.StoreWriter, "_index_until_arrival", lambda self: self._arrived.wait())
    async with open_store(path) as store:
        for number in range(5):
            await store.put([row(number, created=START + number)])
            await store.touch()

    _, until_seq = assert_ids_are_right(path)
    assert until_seq > 0


async def test_ids_that_cannot_be_indexed_are_told_and_cost_no_envelope(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "INDEX_RETRY_S", 0.01)
    rng = random.Random(1)
    async with open_store(path) as store:
        change(path, "ALTER TABLE ids RENAME TO elsewhere")
        await store.put(some_rows(3, first=rng.randrange(100)))
        await until(lambda: "message ids cannot be indexed: " in store.damage)
        assert len(stored(path)) == 3
        assert not store.problem

        change(path, "ALTER TABLE elsewhere RENAME TO ids")
        await until(lambda: not store.damage and not store.unindexed)

    assert_all_is_indexed(path, OURS)
