"""mailserver.store.sqlite.worker: a connection in a thread of its own."""

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator
from functools import partial

import pytest

from mailserver.store.sqlite.worker import ConnectionThread
from tests.waiting import until


def connect() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None)


@contextlib.asynccontextmanager
async def started() -> AsyncIterator[ConnectionThread]:
    worker = await ConnectionThread.start(connect)
    try:
        yield worker
    finally:
        await worker.close()


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("store-writer")]


async def test_work_is_done_in_its_order_in_one_thread_that_is_not_the_loop_s() -> None:
    names: list[tuple[int, str]] = []

    def note(number: int, connection: sqlite3.Connection) -> None:
        names.append((number, threading.current_thread().name))

    async with started() as worker:
        await asyncio.gather(*(worker.run(partial(note, number)) for number in range(20)))
        there = threads()

    assert [number for number, _ in names] == list(range(20))
    assert [{name for _, name in names}] == [set(there)]
    assert len(there) == 1
    assert threads() == []


async def test_result_and_error_of_work_are_its_caller_s() -> None:
    async with started() as worker:
        assert (await worker.run(lambda connection: connection.execute("SELECT 1").fetchall())) == [(1,)]
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            await worker.run(lambda connection: connection.execute("SELECT * FROM missing"))
        assert (await worker.run(lambda connection: connection.execute("SELECT 2").fetchall())) == [(2,)]


async def test_work_that_nobody_waits_for_any_more_is_done_before_the_end() -> None:
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def long(connection: sqlite3.Connection) -> None:
        begun.set()
        go_on.wait(10)
        connection.execute("SELECT 1")
        done.set()

    async with started() as worker:
        waiting = asyncio.create_task(worker.run(long))
        await until(begun.is_set)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        go_on.set()

    assert done.is_set()


async def test_what_cannot_be_opened_leaves_no_thread() -> None:
    def fail() -> sqlite3.Connection:
        raise sqlite3.OperationalError("unable to open")

    with pytest.raises(sqlite3.OperationalError, match="unable to open"):
        await ConnectionThread.start(fail)

    await until(lambda: threads() == [])


async def test_connection_is_closed_if_nobody_waits_for_it_any_more() -> None:
    begun, go_on, opened = threading.Event(), threading.Event(), list[sqlite3.Connection]()

    def connect_slowly() -> sqlite3.Connection:
        begun.set()
        go_on.wait()
        opened.append(sqlite3.connect(":memory:", check_same_thread=False))
        return opened[0]

    starting = asyncio.create_task(ConnectionThread.start(connect_slowly))
    await asyncio.to_thread(begun.wait)
    starting.cancel()
    await asyncio.wait([starting])
    go_on.set()

    await until(lambda: not threads())
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[0].execute("SELECT 1")
