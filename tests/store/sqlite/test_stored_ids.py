"""mailserver.store.engine.stored_ids: the tables of ids as a set, beside the same set in memory."""

import contextlib
import random
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.reconcile.sides import NOTHING_DIFFERS, Initiator, Responder, run
from mailserver.reconcile.storage import ItemStorage, MemoryStorage
from mailserver.reconcile.wire import INFINITY
from mailserver.store.engine import stored_ids, work
from mailserver.store.engine.index_state import IndexDamaged
from mailserver.store.engine.snapshots import STEP_WORK, SnapshotReader
from mailserver.store.engine.stored_ids import StoredIds
from mailserver.store.sqlite.message_ids import SnapshotTables
from mailserver.store.sqlite.schema import MIGRATIONS
from tests.properties import settings
from tests.reconcile.sets import Item, TimesStorage
from tests.store.samples import DAY, LAST_SECOND, START
from tests.store.sqlite.ids import sums_of

EVER = (0, LAST_SECOND)
SECONDS = (1, 59, 60, 3599, 3600, DAY - 1, DAY, START - 1, START, START + 1, START + 61, LAST_SECOND)


class Tables:
    """The tables that the set is read from, in memory, and what is read of them."""

    def __init__(self, items: Iterable[Item]) -> None:
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        for statement in MIGRATIONS[3]:
            self.connection.execute(statement)
        rows = [(created, item_id, seq) for seq, (created, item_id) in enumerate(sorted(set(items)), 1)]
        self.connection.executemany("INSERT INTO ids VALUES (?, ?, ?)", rows)
        self.connection.executemany("INSERT INTO id_sums VALUES (?, ?, ?, ?)", sums_of(rows))
        self.statements: list[str] = []
        self.work: list[int] = []
        self.reader = SnapshotReader(self.connection, lambda: self.work.append(self.reader.work))
        self.connection.set_trace_callback(self.statements.append)

    def close(self) -> None:
        self.connection.close()

    def stored(self, lower: int = 0, upper: int = LAST_SECOND) -> StoredIds:
        return StoredIds(SnapshotTables(self.reader), lower, upper)

    def change(self, statement: str) -> None:
        self.connection.execute(statement)

    def count(self, ask: Callable[[], object]) -> int:
        """How many statements it takes to ask."""
        self.statements.clear()
        ask()
        return len(self.statements)


MakeTables: TypeAlias = Callable[[Iterable[Item]], Tables]


@pytest.fixture
def tables_of() -> Iterator[MakeTables]:
    """Makes tables of some items, closed when the test is over."""
    with contextlib.ExitStack() as opened:
        yield lambda items: opened.enter_context(contextlib.closing(Tables(items)))


def item(number: int, created: int) -> Item:
    return created, random.Random(number).randbytes(32)


def spread_items(count: int, seconds: int) -> list[Item]:
    """So many, evenly over so many seconds."""
    return [item(number, START + number * seconds // count) for number in range(count)]


some_items = st.lists(
    st.tuples(
        st.sampled_from(SECONDS) | st.integers(START, START + 200) | st.integers(START, START + 3 * DAY),
        st.integers(0, 2**256 - 1).map(lambda number: number.to_bytes(32, "big"))
        | st.sampled_from([bytes(32), b"\xff" * 32, bytes(31) + b"\1"]),
    ),
    max_size=60,
)
bounds = st.one_of(
    st.just(INFINITY),
    st.builds(
        lambda second, prefix: second.to_bytes(8, "big") + prefix,
        st.sampled_from([0, *SECONDS, START + 60, 2**40]) | st.integers(START, START + 200),
        st.binary(max_size=32) | st.sampled_from([b"", bytes(32), b"\xff" * 32]),
    ),
)


@settings(max_examples=150)
@given(
    some_items,
    st.sampled_from([*SECONDS, 0, START + 30, 2**32]) | st.integers(START, START + DAY),
    st.sampled_from([*SECONDS, 0, -1, START + 90]) | st.integers(START, START + DAY),
    st.sampled_from([(1, 1, 1), (2, 3, 1), (3, 2, 2), (7, 4, 300), (2000, 512, 256)]),
    st.lists(bounds, max_size=8),
    st.data(),
)
def test_set_is_what_it_is_in_memory(
    items: list[Item],
    lower: int,
    upper: int,
    sizes: tuple[int, int, int],
    asked: list[bytes],
    data: st.DataObject,
) -> None:
    expected = TimesStorage([each for each in items if lower <= each[0] <= upper])
    with pytest.MonkeyPatch.context() as patch, contextlib.closing(Tables(items)) as tables:
        for name, size in zip(("ROWS_AT_ONCE", "PIECE_IDS", "KEPT_PARTS"), sizes, strict=True):
            patch.setattr(stored_ids, name, size)
        ids = tables.stored(lower, upper)

        assert len(ids) == len(expected)
        for index in data.draw(st.permutations(range(len(expected)))):
            assert ids.key(index) == expected.key(index)
        for _ in range(5):
            start = data.draw(st.integers(0, len(expected)))
            stop = data.draw(st.integers(start, len(expected)))
            assert ids.ids(start, stop) == expected.ids(start, stop)
            assert ids.fingerprint(start, stop) == expected.fingerprint(start, stop)
            for bound in asked:
                assert ids.find(bound, start, stop) == expected.find(bound, start, stop)
        for index in range(len(expected)):
            for bound in (expected.key(index), expected.key(index) + b"\0", expected.key(index)[:9]):
                assert ids.find(bound, 0, len(expected)) == expected.find(bound, 0, len(expected))
        for index in range(1, len(expected)):
            slack = data.draw(st.integers(0, index - 1))
            assert ids.cut(index, slack) == expected.cut(index, slack)
            assert_divides(expected, index, slack)


def assert_divides(ids: ItemStorage, index: int, slack: int) -> None:
    """The place is one where a set may be divided: before an item, or not far before that."""
    first, bound = ids.cut(index, slack)
    assert 0 < index - slack <= first <= index
    assert ids.key(first - 1) < bound <= ids.key(first)


def test_little_is_read_for_a_fingerprint_however_many_ids_it_is_of(tables_of: MakeTables) -> None:
    tables = tables_of(spread_items(20_000, 30 * DAY))
    ids = tables.stored()

    assert len(tables.statements) == 1
    assert tables.count(lambda: ids.fingerprint(0, len(ids))) == 0
    assert tables.count(lambda: ids.fingerprint(5, 15_000)) <= 6
    assert tables.count(lambda: ids.fingerprint(5, 15_001)) <= 1  # of the same hour
    assert tables.count(lambda: ids.key(7000)) <= 3
    assert tables.count(lambda: ids.find((START + 20 * DAY).to_bytes(8, "big"), 0, len(ids))) == 0


def test_first_message_about_a_month_takes_few_statements_of_either_side(tables_of: MakeTables) -> None:
    items = spread_items(20_000, 30 * DAY)
    tables = tables_of(items)
    messages: list[bytes] = []

    def begin() -> None:
        messages.append(Initiator(tables.stored(START + 70, START + 29 * DAY + 30)).begin())

    def respond() -> None:
        messages.append(run(Responder(tables.stored(START + 70, START + 29 * DAY + 30)).respond(messages[0])))

    assert tables.count(begin) <= 22  # the days; hours, minutes and ids at both ends; the hours of 15 days
    assert tables.count(respond) <= 22
    assert messages[1] == NOTHING_DIFFERS
    assert tables.work == []  # it is one step


def test_minute_of_many_ids_is_read_once_and_in_steps(tables_of: MakeTables) -> None:
    count = 20_000
    tables = tables_of([item(number, START + number % 60) for number in range(count)])
    ids, expected = tables.stored(), MemoryStorage([item(number, START + number % 60) for number in range(count)])

    once = tables.count(lambda: ids.fingerprint(1, count // 2))
    again = tables.count(lambda: ids.fingerprint(count // 3, count - 1))

    assert once <= 2 + count // stored_ids.ROWS_AT_ONCE + 3
    assert again <= 2
    assert ids.fingerprint(1, count // 2) == expected.fingerprint(1, count // 2)
    assert ids.ids(1000, 3000) == expected.ids(1000, 3000)
    assert len(tables.work) >= count * 5 // (STEP_WORK * 2)
    assert max(tables.work) <= 3 * STEP_WORK


def test_what_is_read_is_counted_by_rows(tables_of: MakeTables) -> None:
    tables = tables_of(spread_items(720, 30 * DAY))

    ids = tables.stored()
    days = tables.reader.work
    ids.key(0)

    assert days == work.QUERY + 30 * work.SUM
    assert tables.reader.work - days == 3 * work.QUERY + (24 + 1) * work.SUM + work.ROW


def test_what_was_read_is_kept_up_to_a_bound(tables_of: MakeTables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_ids, "KEPT_PARTS", 2)
    tables = tables_of(spread_items(2000, 10 * DAY))
    ids = tables.stored()

    ids.key(0)
    assert tables.count(lambda: ids.key(0)) == 0
    ids.key(1000)
    ids.key(1999)

    assert tables.count(lambda: ids.key(0)) == 3
    assert tables.count(lambda: ids.key(1999)) == 0
    assert tables.count(lambda: ids.key(1000)) == 3


def test_statements_find_their_rows_by_the_primary_keys(tables_of: MakeTables) -> None:
    tables = tables_of(spread_items(50, DAY))
    tables.stored(START + 5, START + DAY // 2).key(10)

    plans = {
        detail
        for statement in [*tables.statements]
        for *_, detail in tables.connection.execute(f"EXPLAIN QUERY PLAN {statement}")
    }

    assert "SEARCH id_sums USING PRIMARY KEY (span=? AND bucket>? AND bucket<?)" in plans
    assert "SEARCH ids USING PRIMARY KEY ((created,id)>(?,?) AND (created,id)<(?,?))" in plans
    assert not any("SCAN id" in plan or "TEMP B-TREE" in plan for plan in plans)


# Damage


def look_at_all(ids: ItemStorage) -> None:
    for index in range(len(ids)):
        ids.key(index)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE id_sums SET count = count + 1 WHERE span = 86400",
        "UPDATE id_sums SET count = count - 1 WHERE span = 3600",
        "UPDATE id_sums SET count = count + 1 WHERE span = 60",
        "UPDATE id_sums SET count = -5 WHERE span = 86400",
        "UPDATE id_sums SET count = 1 << 62 WHERE span = 86400",
        "UPDATE id_sums SET count = 'seven' WHERE span = 60",
        "UPDATE id_sums SET sum = zeroblob(32) WHERE span = 86400",
        "UPDATE id_sums SET sum = zeroblob(32) WHERE span = 3600",
        "UPDATE id_sums SET sum = zeroblob(32) WHERE span = 60",
        "UPDATE id_sums SET sum = x'00' WHERE span = 60",
        "DELETE FROM id_sums WHERE span = 60",
        "UPDATE ids SET id = x'00' WHERE seq = 7",
        "UPDATE ids SET id = x'' WHERE seq = 7",
        "UPDATE ids SET id = zeroblob(32) WHERE seq = 7",
        "DELETE FROM ids WHERE seq = 7",
        "UPDATE ids SET created = created + 60 WHERE seq = 7",
    ],
)
def test_damage_in_what_is_read_is_noticed(tables_of: MakeTables, damage: str) -> None:
    tables = tables_of([*spread_items(50, 3 * 60), item(100, START + DAY)])
    tables.change(damage)

    with pytest.raises(IndexDamaged):
        look_at_all(tables.stored())


def test_damage_amidst_a_minute_is_noticed_when_it_is_read_again(
    tables_of: MakeTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_ids, "PIECE_IDS", 4)
    monkeypatch.setattr(stored_ids, "KEPT_PARTS", 1)
    tables = tables_of(spread_items(50, 60))
    ids = tables.stored()
    ids.key(49)
    tables.change("DELETE FROM ids WHERE seq = 7")

    with pytest.raises(IndexDamaged):
        ids.key(5)


def test_days_that_cannot_be_read_are_noticed_at_once(tables_of: MakeTables) -> None:
    tables = tables_of(spread_items(50, DAY))
    tables.change("UPDATE id_sums SET sum = x'00' WHERE span = 86400")

    with pytest.raises(IndexDamaged):
        tables.stored()
