"""A store for each input, in memory and without a thread: thousands a second."""

import contextlib
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.store.engine.index_state import IndexState
from mailserver.store.engine.snapshots import STEP_WORK, SnapshotReader, Work
from mailserver.store.interface import OURSELVES, NewEnvelope, Payer
from mailserver.store.sqlite.failures import StoreFailures
from mailserver.store.sqlite.id_index import advance
from mailserver.store.sqlite.message_ids import SqliteMessageIds
from mailserver.store.sqlite.reader_pool import PaidReader
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import SqliteStore
from tests.store.samples import make_store

R = TypeVar("R")


class _Reader:
    """What the store reads by: SQLite in memory, at once."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def run(
        self,
        sql: str,
        parameters: Sequence[object],
        work: int = 0,
        payer: Payer = OURSELVES,
        *,
        likely: int | None = None,
    ) -> Iterable[sqlite3.Row]:
        return self._connection.execute(sql, parameters).fetchall()

    def correct(self, work: int, payer: Payer = OURSELVES) -> None:
        payer.charge(work)


class _Writer:
    """What the store writes by: taken, and kept nowhere. What is on disk is other tests' business."""

    async def put(self, envelopes: Sequence[NewEnvelope], source: Hashable = None, *, is_live: bool = False) -> None:
        pass


class _Seat:
    """What is compared on: the same SQLite, all steps at once."""

    def __init__(self, connection: sqlite3.Connection, payer: Payer) -> None:
        self._connection = connection
        self._payer = payer

    async def run(self, work: Work[R], after_step: Callable[[], None]) -> R:
        def pause() -> None:
            self._payer.charge(STEP_WORK)
            after_step()

        result = work(SnapshotReader(self._connection, pause))
        pause()
        return result


class _Snapshots:
    """A seat is always free."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @contextlib.asynccontextmanager
    async def seat(self, readers: PaidReader) -> AsyncIterator[_Seat]:
        yield _Seat(self._connection, readers.payer)


async def _nothing(*_: object) -> None:
    """All is indexed, and stays so."""


def image_of(envelopes: Sequence[NewEnvelope]) -> bytes:
    """The bytes of a store's file, whose ids are indexed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, STORE_FILE)
        make_store(path, envelopes)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            while advance(connection, DEFAULT_NETWORK_TOPIC):
                pass
        return path.read_bytes()


@contextlib.contextmanager
def store_in_memory(image: bytes) -> Iterator[SqliteStore]:
    """The store of this image: reads are real, writes go nowhere."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.deserialize(image)
        failures, reader = StoreFailures(Path(STORE_FILE)), cast(Any, _Reader(connection))
        index = IndexState(DEFAULT_NETWORK_TOPIC, _nothing, _nothing)
        ((identity,),) = connection.execute("SELECT id FROM identity")
        message_ids = SqliteMessageIds(identity, cast(Any, _Snapshots(connection)), index, reader)
        yield SqliteStore(Path(STORE_FILE), cast(Any, _Writer()), reader, message_ids, failures, removed=(0, -1))
