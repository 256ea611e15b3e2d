"""A store for each input, in memory and without a thread: thousands a second."""

import contextlib
import sqlite3
import tempfile
from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.store.interface import OURSELVES, NewEnvelope, Payer
from mailserver.store.sqlite.failures import StoreFailures
from mailserver.store.sqlite.index_state import IndexState
from mailserver.store.sqlite.message_ids import SqliteMessageIds
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.snapshots import Snapshots
from mailserver.store.sqlite.store import SqliteStore
from tests.store.samples import make_store


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

    async def put(self, envelopes: Sequence[NewEnvelope], source: Hashable = None) -> None:
        pass


async def _nothing(*_: object) -> None:
    """Nothing is ever indexed."""


def image_of(envelopes: Sequence[NewEnvelope]) -> bytes:
    """The bytes of a store's file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, STORE_FILE)
        make_store(path, envelopes)
        return path.read_bytes()


@contextlib.contextmanager
def store_in_memory(image: bytes) -> Iterator[SqliteStore]:
    """The store of this image: reads are real, writes go nowhere."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.deserialize(image)
        failures, reader = StoreFailures(Path(STORE_FILE)), cast(Any, _Reader(connection))
        index = IndexState(DEFAULT_NETWORK_TOPIC, _nothing, _nothing)
        message_ids = SqliteMessageIds(reader, Snapshots([], failures), index)
        yield SqliteStore(Path(STORE_FILE), cast(Any, _Writer()), reader, message_ids, failures, removed=(0, -1))
