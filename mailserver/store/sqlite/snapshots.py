"""Snapshots of a store in SQLite: read-only connections, each with a thread."""

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

from mailserver.store.engine.snapshots import Snapshots
from mailserver.store.sqlite.connections import connect_reader
from mailserver.store.sqlite.failures import StoreFailures
from mailserver.store.sqlite.worker import ConnectionThread


@contextlib.asynccontextmanager
async def open_snapshots(path: Path, count: int, failures: StoreFailures) -> AsyncIterator[Snapshots]:
    """Open `count` connections to the store at `path`; close them at the end.

    Raises:
        StoreError: there is no such store, or it cannot be read.
    """
    async with contextlib.AsyncExitStack() as stack:
        workers = []
        for _ in range(count):
            worker = await ConnectionThread.start(partial(connect_reader, path), "store-snapshot")
            stack.push_async_callback(worker.close)
            workers.append(worker)
        snapshots = Snapshots(workers, failures)
        stack.callback(snapshots.close)
        yield snapshots
