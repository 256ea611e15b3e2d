"""A store in an SQLite file that is moved into another.

Rows are read in short statements, so a daemon that writes the file is not kept from cutting its log back. Message ids
are indexed by whoever writes the store. If no daemon does, it is opened for writing here; else only for reading.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from mailserver.errors import StoreError
from mailserver.store.engine.index_state import IndexState
from mailserver.store.message_ids import MessageIds
from mailserver.store.moving import ReadRow, ReadRows, SourcePlace
from mailserver.store.sqlite.connections import connect_follower
from mailserver.store.sqlite.damage import explain
from mailserver.store.sqlite.failures import StoreFailures
from mailserver.store.sqlite.message_ids import SqliteMessageIds
from mailserver.store.sqlite.presence import Presence
from mailserver.store.sqlite.read_only import check_header
from mailserver.store.sqlite.reader_pool import open_readers
from mailserver.store.sqlite.snapshots import open_snapshots
from mailserver.store.sqlite.store import open_store
from mailserver.store.sqlite.worker import ConnectionThread

INDEX_POLL_S = 0.2
"""How often to look whether the daemon has indexed more."""

INDEX_LONGER_S = 20.0
"""The daemon indexes what it has stored INDEX_DELAY_S later (`store.engine.index_wait`), or later if it is busy: it
does not know that somebody waits."""

_ROWS = """
    SELECT seq, received, created, topic, hash, raw, coalesce(length(raw), 0) FROM envelopes
    WHERE seq > ? ORDER BY seq LIMIT ?
"""
T = TypeVar("T")


class SqliteMoveSource:
    """A `store.moving.MoveSource`. Made by `open_source`."""

    def __init__(self, path: Path, worker: ConnectionThread, presence: Presence, message_ids: MessageIds) -> None:
        self._path = path
        self._worker = worker
        self._presence = presence
        self._message_ids = message_ids

    @property
    def message_ids(self) -> MessageIds:
        """The ids of its envelopes."""
        return self._message_ids

    async def identity(self) -> str:
        """An identity that no other store has."""
        identity: bytes = await self._value("SELECT id FROM identity")
        return identity.decode()

    async def envelopes(self) -> int:
        """How many there are."""
        return int(await self._value("SELECT coalesce(sum(envelopes), 0) FROM reception_days"))

    async def pruned_until(self) -> int:
        """Nothing that was created later than this was ever pruned."""
        return int(await self._value("SELECT pruned FROM removed"))

    async def after(self, place: SourcePlace, limit: int, max_bytes: int) -> ReadRows:
        """Read the first rows after a place."""
        return await self._run(partial(_read, after=int(place), limit=limit, max_bytes=max_bytes))

    async def _value(self, sql: str) -> Any:
        def read(connection: sqlite3.Connection) -> Any:
            ((value,),) = connection.execute(sql).fetchall()
            return value

        return await self._run(read)

    async def _run(self, read: Callable[[sqlite3.Connection], T]) -> T:
        def while_present(connection: sqlite3.Connection) -> T:
            self._presence.check()
            return read(connection)

        try:
            return await self._worker.run(while_present)
        except sqlite3.Error as error:
            raise StoreError(f"cannot read the store {self._path}: {explain(error, self._path)}") from error


def _read(connection: sqlite3.Connection, after: int, limit: int, max_bytes: int) -> ReadRows:
    rows: list[ReadRow] = []
    total = 0
    # SQLite reads a row when it is fetched: no more than are wanted.
    with contextlib.closing(connection.execute(_ROWS, (after, limit))) as cursor:
        for seq, *columns, size in cursor:
            rows.append(ReadRow(SourcePlace(seq), columns))
            total += size
            if total >= max_bytes:
                return ReadRows(rows, is_all=False)
    return ReadRows(rows, is_all=len(rows) < limit)


@contextlib.asynccontextmanager
async def open_source(path: Path, network_topic: str, *, is_alone: bool) -> AsyncIterator[SqliteMoveSource]:
    """Open the store at `path` to move from; close it at the end.

    Args:
        network_topic: to which the message ids of envelopes belong.
        is_alone: whether no daemon writes it, nor begins to: then it is migrated if need be, and its ids are indexed.
    Raises:
        OtherNetworkTopic: they belong to another.
        StoreError: there is no store, or it cannot be opened.
    """
    await asyncio.to_thread(check_header, path)  # where there is none, none is made
    async with contextlib.AsyncExitStack() as stack:
        if is_alone:
            message_ids: MessageIds = (await stack.enter_async_context(open_store(path, network_topic))).message_ids
        else:
            message_ids = await stack.enter_async_context(_open_ids(path, network_topic))
        presence = Presence(path)
        worker = await ConnectionThread.start(partial(_connect, path), "store-move")
        stack.push_async_callback(worker.close)
        yield SqliteMoveSource(path, worker, presence, message_ids)


def _connect(path: Path) -> sqlite3.Connection:
    connection = connect_follower(path)
    connection.text_factory = bytes  # of a damaged row: it need not be UTF-8
    return connection


@contextlib.asynccontextmanager
async def _open_ids(path: Path, network_topic: str) -> AsyncIterator[SqliteMessageIds]:
    """The message ids of a store that another process writes."""
    failures = StoreFailures(path)

    async def look_again() -> None:
        await asyncio.sleep(INDEX_POLL_S)

    async def cannot(_: int) -> None:
        raise StoreError(f"the index of message ids in {path} is damaged: stop its mailserver, and try again")

    async with (
        open_snapshots(path, 1, failures) as snapshots,
        open_readers(path, 1, failures) as readers,
    ):
        state = IndexState(network_topic, look_again, cannot, INDEX_LONGER_S)
        ((identity,),) = await readers.run("SELECT id FROM identity", ())
        yield SqliteMessageIds(str(identity), snapshots, state, readers)
