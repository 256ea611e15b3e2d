"""mailserver.store.engine.index_wait and the writer: a flood of envelopes does not wait for the index of their ids."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.store.engine import index_state, index_wait
from mailserver.store.engine.index_wait import (
    FLOOD_ROWS,
    FLOOD_S,
    INDEX_DELAY_S,
    MAX_PUT_OFF_ROWS,
    MAX_UNINDEXED_ROWS,
    WANTED_S,
    IndexWait,
)
from mailserver.store.interface import NewEnvelope
from mailserver.store.message_ids import NotIndexedYet
from mailserver.store.sqlite.store import SqliteStore, open_store
from tests.reconcile.sets import ids
from tests.store.samples import START, copy_as_on_disk, rows
from tests.store.sqlite.ids import assert_all_is_indexed, assert_ids_are_right, row
from tests.store.sqlite.test_comparison import compare_all, items_in
from tests.store.sqlite.test_message_ids import muid, read_all
from tests.waiting import turns, until

FOR_EVER = 3600.0


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A few envelopes are a flood, and none of these tests lasts until it is over."""
    monkeypatch.setattr(index_wait, "FLOOD_ROWS", 5)
    monkeypatch.setattr(index_wait, "FLOOD_S", FOR_EVER)
    return monkeypatch


@pytest.fixture
def as_deployed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the times that hold outside of tests."""
    monkeypatch.setattr(index_wait, "INDEX_DELAY_S", INDEX_DELAY_S)
    monkeypatch.setattr(index_wait, "FLOOD_S", FLOOD_S)


@contextlib.asynccontextmanager
async def flood(store: SqliteStore) -> AsyncIterator[None]:
    """Meanwhile, envelopes are put without an end."""
    is_over = False

    async def put() -> None:
        number = 1000
        while not is_over:
            await store.put(some_rows(10, first=number))
            number += 10

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(put())
        try:
            yield
        finally:
            is_over = True


def some_rows(count: int, *, first: int = 0) -> list[NewEnvelope]:
    return [row(number, created=START + 20 * number) for number in range(first, first + count)]


def indexed_rows(path: Path) -> int:
    ((count,),) = rows(path, "SELECT count(*) FROM ids")
    return int(count)


# By the clock


@pytest.mark.usefixtures("as_deployed")
def test_few_envelopes_are_due_when_the_first_has_waited() -> None:
    wait = IndexWait()
    wait.put_off(100.0)

    for second in range(60):
        wait.stored(FLOOD_ROWS - 1, 100.0 + second * FLOOD_S)

    assert wait.due == 100.0 + INDEX_DELAY_S


@pytest.mark.usefixtures("as_deployed")
def test_nothing_is_due_before_a_flood_is_over() -> None:
    wait = IndexWait()
    wait.put_off(100.0)

    for tenth in range(300):
        wait.stored(FLOOD_ROWS // 5, 100.0 + tenth * FLOOD_S / 10)

    last = 100.0 + 29.9 * FLOOD_S
    assert last < wait.due <= last + FLOOD_S
    assert wait.may_wait(last) == MAX_PUT_OFF_ROWS


@pytest.mark.usefixtures("as_deployed")
async def test_flood_puts_nothing_off_while_ids_are_looked_for() -> None:
    now = asyncio.get_running_loop().time()
    wait = IndexWait()
    wait.put_off(now - INDEX_DELAY_S)
    wait.stored(FLOOD_ROWS, now)
    assert wait.due == now + FLOOD_S

    moved = asyncio.create_task(wait.next_move())
    await turns()
    assert (wait.due, wait.may_wait(now)) == (0.0, 0)
    wait.moved()
    await moved
    wait.stored(FLOOD_ROWS, now)

    assert wait.due == now
    assert wait.may_wait(now) == MAX_UNINDEXED_ROWS
    later = asyncio.get_running_loop().time() + WANTED_S
    wait.stored(FLOOD_ROWS, later)
    assert wait.due == later + FLOOD_S
    assert wait.may_wait(later) == MAX_PUT_OFF_ROWS


# On real files


async def test_flood_is_stored_before_it_is_indexed(path: Path, endless: pytest.MonkeyPatch) -> None:
    async with open_store(path) as store:
        for number in range(0, 200, 10):
            await store.put(some_rows(10, first=number))
            await turns()  # nothing waits for the disk, either

        assert store.unindexed >= 200
    assert indexed_rows(path) == 0

    endless.undo()
    async with open_store(path) as store:  # a restart amid it
        await until(lambda: not store.unindexed)
    assert_all_is_indexed(path, DEFAULT_NETWORK_TOPIC)


async def test_flood_that_is_over_is_indexed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_wait, "FLOOD_ROWS", 5)
    monkeypatch.setattr(index_wait, "FLOOD_S", 0.2)
    async with open_store(path) as store:
        await store.put(some_rows(50))
        await until(lambda: not store.unindexed)

    assert_all_is_indexed(path, DEFAULT_NETWORK_TOPIC)


async def test_flood_beyond_the_bound_is_indexed_meanwhile(path: Path, endless: pytest.MonkeyPatch) -> None:
    endless.setattr(index_wait, "MAX_PUT_OFF_ROWS", 50)
    async with open_store(path) as store, flood(store):
        await until(lambda: indexed_rows(path) > 0)

    assert_ids_are_right(path)


@pytest.mark.usefixtures("endless")
async def test_comparison_amid_a_flood_has_all_that_was_stored_before(path: Path) -> None:
    before = some_rows(100)
    async with open_store(path) as store:
        await store.put(before)
        expected = ids(items_in(path))
        async with flood(store):
            assert await compare_all(store) >= expected
            assert await read_all(store.message_ids, before) == [each.raw for each in before]

        assert await compare_all(store) == ids(items_in(path))


async def test_whoever_is_refused_amid_a_flood_finds_ids_when_asking_again(
    path: Path, endless: pytest.MonkeyPatch
) -> None:
    endless.setattr(index_state, "MAX_UNINDEXED_ROWS", 20)
    endless.setattr(index_wait, "MAX_UNINDEXED_ROWS", 20)
    before = some_rows(100)
    async with open_store(path) as store:
        await store.put(before)
        async with flood(store):
            with pytest.raises(NotIndexedYet):
                await store.message_ids.find([muid(before[0])])
            await until(lambda: indexed_rows(path) >= len(before))

            endless.setattr(index_state, "MAX_UNINDEXED_ROWS", 10**9)
            assert await read_all(store.message_ids, before) == [each.raw for each in before]


async def test_kill_amid_a_flood_leaves_ids_of_the_rows_up_to_one(
    path: Path, tmp_path: Path, endless: pytest.MonkeyPatch
) -> None:
    endless.setattr(index_wait, "WANTED_S", 0.0)
    async with open_store(path) as store:
        await store.put(some_rows(100))
        await compare_all(store)
        await store.put(some_rows(100, first=100))
        killed = copy_as_on_disk(path, tmp_path / "killed")

    _, until_seq = assert_ids_are_right(killed)
    assert 100 <= until_seq < 200
    endless.undo()
    async with open_store(killed) as store:
        assert await compare_all(store) == ids(items_in(killed))
