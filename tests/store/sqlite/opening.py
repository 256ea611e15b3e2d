"""What the tests of opening a store share: both ways to open it, and what became of the file."""

import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiosqlite
import pytest

from mailserver.errors import StoreError
from mailserver.store.sqlite.connections import (
    open_reader,
    open_writer,
)
from mailserver.store.sqlite.worker import ConnectionThread
from tests.store.samples import (
    rows,
)

THREADS = ("connection_worker", "store-writer")
"""Of aiosqlite, and ours."""


TABLES = ("envelopes", "days", "day_topics", "identity", "removed", "reception_days", "ids", "id_sums", "id_index")


Open = Callable[[Path], Awaitable[aiosqlite.Connection | ConnectionThread]]


each_open = pytest.mark.parametrize("open_it", [open_writer, open_reader], ids=["writer", "reader"])


async def make(path: Path) -> None:
    worker = await open_writer(path)
    await worker.close()


async def refusal(open_it: Open, path: Path) -> str:
    """Why the file is not opened. A connection left open would keep its thread, and the tests from ending."""
    try:
        connection = await open_it(path)
    except StoreError as error:
        return str(error)
    await connection.close()
    pytest.fail(f"{path} was opened")


def schema_of(path: Path) -> list[Any]:
    return rows(path, "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name")


def watch(monkeypatch: pytest.MonkeyPatch, prepare: Callable[[sqlite3.Connection], None]) -> None:
    """Let `prepare` put a callback on every connection that is opened from now on."""
    connect = sqlite3.connect

    def connect_watched(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        prepare(connection)
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_watched)
