"""A writer on a real file, for its tests: running or not, and with a disk that is full."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple

from mailserver.store.engine.snapshots import Snapshots
from mailserver.store.interface import NewEnvelope
from mailserver.store.sqlite.connections import open_writer, pragma
from mailserver.store.sqlite.failures import StoreFailures
from mailserver.store.sqlite.presence import Presence
from mailserver.store.sqlite.worker import ConnectionThread
from mailserver.store.sqlite.writer import StoreWriter
from tests.waiting import turns

FOREVER = 3600.0


LIMIT_S = 15.0


class Running(NamedTuple):
    """A writer that runs, and its worker; `statements` are those that it has begun, as SQLite says them.

    `begun` is set whenever a transaction begins. It goes on while `may_go_on` is set, which it is by default.
    """

    writer: StoreWriter
    worker: ConnectionThread
    statements: list[str]
    begun: asyncio.Event
    may_go_on: threading.Event

    def commits(self) -> int:
        return self.statements.count("COMMIT")


@contextlib.asynccontextmanager
async def connected(path: Path) -> AsyncIterator[Running]:
    """A writer that does not run yet."""
    worker = await open_writer(path)
    loop = asyncio.get_running_loop()
    statements: list[str] = []
    begun, may_go_on = asyncio.Event(), threading.Event()
    may_go_on.set()

    def trace(statement: str) -> None:  # in the worker's thread
        statements.append(statement)
        if statement == "BEGIN IMMEDIATE":
            loop.call_soon_threadsafe(begun.set)
            may_go_on.wait(LIMIT_S)

    await worker.run(lambda connection: connection.set_trace_callback(trace))
    try:
        failures = StoreFailures(path)
        writer = StoreWriter(worker, path, Presence(path), failures, Snapshots([], failures))
        yield Running(writer, worker, statements, begun, may_go_on)
    finally:
        await worker.close()


@contextlib.asynccontextmanager
async def running(path: Path) -> AsyncIterator[Running]:
    async with connected(path) as opened, asyncio.TaskGroup() as tasks:
        tasks.create_task(opened.writer.run())
        try:
            yield opened
        finally:
            opened.writer.close()


async def work_is_done(worker: ConnectionThread) -> None:
    """Wait until the worker has done what was begun, and whoever waited for it has gone on."""
    await worker.run(lambda connection: None)
    await turns()


def put_each(writer: StoreWriter, envelopes: Sequence[NewEnvelope]) -> list[asyncio.Task[None]]:
    """A put for each envelope."""
    return [asyncio.create_task(writer.put([envelope])) for envelope in envelopes]


# Disks that fail


async def fill(worker: ConnectionThread) -> None:
    """Let the file grow no more: SQLite answers as it does on a full disk."""
    await set_max_pages(worker, await worker.run(lambda connection: pragma(connection, "page_count")))


async def make_room(worker: ConnectionThread) -> None:
    await set_max_pages(worker, 1_000_000)


async def set_max_pages(worker: ConnectionThread, pages: int) -> None:
    await worker.run(lambda connection: connection.execute(f"PRAGMA max_page_count = {pages}"))
