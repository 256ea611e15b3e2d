"""Stores in PostgreSQL for what only this engine does."""

from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest

from mailserver.store.postgres.store import PostgresStore, open_store
from tests.store.postgres.server import Server, new_schema, shared_server


class Place(NamedTuple):
    """Where a store is to be: a schema of its own."""

    server: Server
    schema: str

    @property
    def url(self) -> str:
        return self.server.url(self.schema)

    def rows(self, statement: str) -> list[str]:
        """What psql prints of a statement, line by line."""
        return self.server.sql(statement, self.schema).splitlines()


@pytest.fixture
def place() -> Place:
    """A schema that nothing is in yet, on the server that these tests share."""
    return Place(shared_server(), new_schema(shared_server()))


@pytest.fixture
async def store(place: Place) -> AsyncIterator[PostgresStore]:
    """An open store."""
    async with open_store(place.url) as opened:
        yield opened


@pytest.fixture
async def other(place: Place, store: PostgresStore) -> AsyncIterator[PostgresStore]:
    """Another mailserver's access to the same store."""
    async with open_store(place.url) as opened:
        assert await opened.identity() == await store.identity()
        yield opened
