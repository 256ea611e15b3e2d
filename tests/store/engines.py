"""The engines on which tests of the store's behaviour run: whatever holds of `store.interface.Store` holds of each.

A new engine is added to ENGINES, and nowhere else. What only one engine does is tested in its own folder.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import pytest

from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.store.arrivals import ArrivalLog
from mailserver.store.interface import Query, Store
from mailserver.store.message_ids import StoreWithIds
from mailserver.store.postgres.arrivals import open_arrivals as open_postgres_arrivals
from mailserver.store.postgres.store import open_store as open_postgres_store
from mailserver.store.sqlite.arrivals import open_arrivals
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.waku.bloom import Interest
from tests.store.postgres.looking import assert_sound
from tests.store.postgres.server import Server, new_schema, shared_server
from tests.store.samples import EVER, EVERY_BYTE, FULL, NEWS, assert_counts_are_right, change

EVERYTHING = Query(*EVER, FULL)
NEWS_ONLY = Query(*EVER, Interest(topics=frozenset({NEWS})))


class Engine(Protocol):
    """One engine, and one store that it keeps."""

    def open(self, network_topic: str = DEFAULT_NETWORK_TOPIC) -> AbstractAsyncContextManager[StoreWithIds]:
        """Open the store; make it first if there is none."""

    def follow(self, network_topic: str = DEFAULT_NETWORK_TOPIC) -> AbstractAsyncContextManager[ArrivalLog]:
        """Follow the store, as another process does."""

    def change(self, statement: str) -> None:
        """Change what is there behind the store's back, by a statement that all engines know."""

    def assert_sound(self) -> None:
        """What the engine keeps beside envelopes, such as counts, fits them."""


class SqliteEngine:
    """A store in one file of a folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / STORE_FILE

    def open(self, network_topic: str = DEFAULT_NETWORK_TOPIC) -> AbstractAsyncContextManager[StoreWithIds]:
        return open_store(self._path, network_topic)

    def follow(self, network_topic: str = DEFAULT_NETWORK_TOPIC) -> AbstractAsyncContextManager[ArrivalLog]:
        return open_arrivals(self._path, network_topic)

    def change(self, statement: str) -> None:
        change(self._path, statement)

    def assert_sound(self) -> None:
        assert_counts_are_right(self._path)


class PostgresEngine:
    """A store in a schema of its own, on the server that all of these tests share, or on another."""

    def __init__(self, _: Path, server: Server | None = None) -> None:
        self._server = server or shared_server()
        self.schema = new_schema(self._server)
        self.url = self._server.url(self.schema)

    def open(self, network_topic: str = DEFAULT_NETWORK_TOPIC) -> AbstractAsyncContextManager[StoreWithIds]:
        return open_postgres_store(self.url, network_topic)

    def follow(self, network_topic: str = DEFAULT_NETWORK_TOPIC) -> AbstractAsyncContextManager[ArrivalLog]:
        return open_postgres_arrivals(self.url, network_topic)

    def change(self, statement: str) -> None:
        self._server.sql(statement, self.schema)

    def assert_sound(self) -> None:
        assert_sound(self._server, self.schema)


ENGINES: dict[str, Callable[[Path], Engine]] = {"sqlite": SqliteEngine, "postgres": PostgresEngine}
"""By name, how to make one whose store lies in an empty folder."""

EACH_ENGINE = tuple(pytest.param(name, marks=() if name == "sqlite" else pytest.mark.integration) for name in ENGINES)
"""Their names, as parameters of tests. One that has a server is no matter for unit tests."""

each_engine = pytest.mark.parametrize("name", EACH_ENGINE)


async def found(store: Store, query: Query = EVERYTHING, limit: int = 1000) -> list[bytes]:
    """The envelopes of one page."""
    page = await store.find(query, limit)
    return (await page.read(page.left, EVERY_BYTE)).split()
