"""A store in PostgreSQL that is moved into another. Mailservers may be using it meanwhile.

Rows are read by `seq`, which rises in the order of commits: whoever has read a row has read all below it.
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import asyncpg

from mailserver.errors import StoreError
from mailserver.store.moving import ReadRow, ReadRows, SourcePlace
from mailserver.store.postgres.connections import DatabaseLink, DriverConnection, open_links
from mailserver.store.postgres.failures import StoreFailures, explain
from mailserver.store.postgres.message_ids import PostgresMessageIds
from mailserver.store.postgres.presence import Presence
from mailserver.store.postgres.store import PostgresStore, open_store

# Sizes come first, and by themselves: only the envelopes that are wanted are read.
_ROWS = """
    SELECT seq, received, created, topic, hash, raw FROM (
        SELECT *, sum(size) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) AS total FROM (
            SELECT *, octet_length(raw) AS size FROM envelopes WHERE seq > $1 AND seq <= $4 ORDER BY seq LIMIT $2
        ) AS following
    ) AS summed
    WHERE total - size < $3 ORDER BY seq
"""
_LAST = "SELECT coalesce(max(seq), 0) FROM envelopes"

T = TypeVar("T")


class PostgresMoveSource:
    """A `store.moving.MoveSource`. Made by `open_source`."""

    def __init__(self, store: PostgresStore, link: DatabaseLink) -> None:
        self._store = store
        self._link = link

    @property
    def message_ids(self) -> PostgresMessageIds:
        """The ids of its envelopes."""
        return self._store.message_ids

    async def identity(self) -> str:
        """An identity that no other store has."""
        return await self._store.identity()

    async def envelopes(self) -> int:
        """How many there are."""
        return (await self._store.usage()).envelopes

    async def pruned_until(self) -> int:
        """Nothing that was created later than this was ever pruned."""
        return await self._run(lambda connection: connection.fetchval("SELECT pruned FROM removed"))

    async def after(self, place: SourcePlace, limit: int, max_bytes: int) -> ReadRows:
        """Read the first rows after a place."""

        async def read(connection: DriverConnection) -> ReadRows:
            # First, and nothing behind it is read: see store.postgres.message_ids.
            last = await connection.fetchval(_LAST)
            found = await connection.fetch(_ROWS, int(place), limit, max_bytes, last)
            rows = [ReadRow(SourcePlace(seq), columns) for seq, *columns in found]
            return ReadRows(rows, is_all=not rows or rows[-1].place >= last)

        return await self._run(read)

    async def _run(self, job: Callable[[DriverConnection], Awaitable[T]]) -> T:
        try:
            return await self._link.run(job)
        except asyncpg.PostgresError as error:
            raise StoreError(f"cannot read the store {self._store.location}: {explain(error)}") from error


@contextlib.asynccontextmanager
async def open_source(url: str, network_topic: str) -> AsyncIterator[PostgresMoveSource]:
    """Open the store in the database at `url` to move from; close it at the end.

    Args:
        network_topic: to which the message ids of envelopes belong.
    Raises:
        OtherNetworkTopic: they belong to another.
        NoStore: there is none.
        StoreError: it cannot be opened.
    """
    async with open_store(url, network_topic, must_exist=True) as store:
        failures = StoreFailures()
        async with open_links(url, 1, failures, Presence(await store.identity(), failures).check) as (link,):
            yield PostgresMoveSource(store, link)
