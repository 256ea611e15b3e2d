"""mailserver.store.sqlite.writer: jobs between the commits."""

import asyncio
import contextlib
import sqlite3
import threading
import weakref
from pathlib import Path

import pytest

from mailserver.errors import StoreError
from mailserver.store.engine.put_queue import MAX_GROUP_ROWS
from tests.memory import no_search_for_cycles
from tests.store.samples import (
    new_envelopes,
    stored,
)
from tests.store.sqlite.writing import (
    LIMIT_S,
    connected,
    put_each,
    running,
)
from tests.waiting import turns, until

# Jobs between the commits


def count_rows(connection: sqlite3.Connection) -> int:
    ((count,),) = connection.execute("SELECT count(*) FROM envelopes")
    return int(count)


def fail(connection: sqlite3.Connection) -> None:
    connection.execute("SELECT * FROM nowhere")


async def test_job_has_the_connection_to_itself(path: Path) -> None:
    async with running(path) as (writer, _, statements, *_):
        puts = put_each(writer, new_envelopes(50))

        def job(connection: sqlite3.Connection) -> bool:
            before = len(statements)
            for _ in range(20):
                connection.execute("SELECT 1")
            return statements[before:] == ["SELECT 1"] * 20 and not connection.in_transaction

        answers = await asyncio.gather(*(writer.between_commits(job) for _ in range(5)))
        await asyncio.gather(*puts)

    assert answers == [True] * 5
    assert len(stored(path)) == 50


async def test_jobs_and_commits_take_turns(path: Path) -> None:
    async with running(path) as (writer, *_):
        groups = [new_envelopes(MAX_GROUP_ROWS, first=n * MAX_GROUP_ROWS) for n in range(4)]
        parts = [asyncio.create_task(writer.put(group)) for group in groups]
        counts = await asyncio.gather(*(writer.between_commits(count_rows) for _ in range(4)))
        await asyncio.gather(*parts)

    assert counts == [n * MAX_GROUP_ROWS for n in range(4)]


async def test_job_that_fails_is_the_error_of_whoever_waits_for_it(path: Path) -> None:
    async with running(path) as (writer, *_):
        with pytest.raises(StoreError, match="cannot change the store: no such table: nowhere"):
            await writer.between_commits(fail)
        await writer.put(new_envelopes(1))

    assert len(stored(path)) == 1


async def test_job_that_failed_is_freed_at_once(path: Path) -> None:
    class Job:
        def __call__(self, connection: sqlite3.Connection) -> None:
            fail(connection)

    job = Job()
    freed = weakref.ref(job)

    with no_search_for_cycles():
        async with running(path) as (writer, *_):
            with contextlib.suppress(StoreError):
                await writer.between_commits(job)
            del job

            await until(lambda: freed() is None)


async def test_job_goes_on_to_its_end_when_nobody_waits_any_more(path: Path) -> None:
    events: list[str] = []
    begun, cancelled = threading.Event(), threading.Event()

    def job(connection: sqlite3.Connection) -> None:
        begun.set()
        assert cancelled.wait(LIMIT_S)
        events.append("done")

    async with running(path) as (writer, *_):
        waiting = asyncio.create_task(writer.between_commits(job))
        assert await asyncio.to_thread(begun.wait, LIMIT_S)
        waiting.cancel()
        await turns()
        cancelled.set()
        assert await writer.between_commits(count_rows) == 0

    assert events == ["done"]
    assert waiting.cancelled()


async def test_job_that_nobody_waits_for_any_more_is_not_begun(path: Path) -> None:
    async with connected(path) as opened, asyncio.TaskGroup() as tasks:
        waiting = asyncio.create_task(opened.writer.between_commits(fail))
        await turns()
        waiting.cancel()
        await turns()
        tasks.create_task(opened.writer.run())
        assert await opened.writer.between_commits(count_rows) == 0
        opened.writer.close()

    assert not any("nowhere" in statement for statement in opened.statements)


async def test_no_job_is_begun_once_the_store_closes(path: Path) -> None:
    async with connected(path) as opened:
        waiting = asyncio.create_task(opened.writer.between_commits(count_rows))
        await turns()
        opened.writer.close()
        await opened.writer.run()

        for job in (waiting, opened.writer.between_commits(count_rows)):
            with pytest.raises(StoreError, match="the store is closing"):
                await job

        assert opened.statements == []
