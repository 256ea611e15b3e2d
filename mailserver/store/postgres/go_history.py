"""The history of a Go mailserver in its PostgreSQL, to be moved into a store of ours. Nothing is changed.

status-go (`mailserver/mailserver_db_postgres.go`, `mailserver/db_key.go`) has one table, `envelopes`:

    id      created (4 bytes, big-endian), hash (32), topic (4); in early versions without the topic
    data    the envelope's RLP
    topic   4 bytes
    bloom   of the topic

What its rows are here: `store.engine.go_rows`. Its server may be older than one that can keep a store of ours.
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import asyncpg

from mailserver.errors import StoreError
from mailserver.store.engine.go_rows import key_at, row_of
from mailserver.store.moving import NEVER, ReadRows, SourcePlace
from mailserver.store.postgres.connections import STATEMENT_TIMEOUT_S, DatabaseLink, DriverConnection, open_links
from mailserver.store.postgres.failures import StoreFailures, explain
from mailserver.store.postgres.schema import SCHEMA_TABLE
from mailserver.store.postgres.urls import shown_url

SESSION = f"""
    SET default_transaction_read_only = on;
    SET statement_timeout = '{STATEMENT_TIMEOUT_S:.0f}s';
    SET lock_timeout = '{STATEMENT_TIMEOUT_S:.0f}s';
    SET timezone = 'UTC'
"""
"""Nothing that PostgreSQL 9.6 does not know."""

_IS_GO_HISTORY = f"""
    SELECT to_regclass('{SCHEMA_TABLE}') IS NULL AND (
        SELECT count(*) FROM pg_attribute
        WHERE attrelid = to_regclass('envelopes') AND attnum > 0 AND NOT attisdropped
            AND attname IN ('id', 'data', 'topic', 'bloom')
    ) = 4
"""
_ABOUT = "SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = 'envelopes'::regclass"
_NOW = "SELECT floor(extract(epoch FROM now()))::bigint"
# Sizes come first, and by themselves, as in store.postgres.moving.
_ROWS = """
    SELECT id, topic, data FROM (
        SELECT *, sum(size) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) AS total FROM (
            SELECT id, topic, data, coalesce(octet_length(data), 0) AS size FROM envelopes
            WHERE id > $1 ORDER BY id LIMIT $2
        ) AS following
    ) AS summed
    WHERE total - size < $3 ORDER BY id
"""

T = TypeVar("T")


class GoHistory:
    """A `store.moving.MoveSource`. Made by `open_go_history`."""

    message_ids = None
    """It keeps none."""

    def __init__(self, url: str, link: DatabaseLink) -> None:
        self._location = shown_url(url)
        self._link = link

    async def identity(self) -> str:
        """Where it is: it has no identity of its own."""
        return self._location

    async def envelopes(self) -> int:
        """About how many there are: what the server has last counted."""
        return await _run(self._link, lambda connection: connection.fetchval(_ABOUT))

    async def pruned_until(self) -> int:
        """It does not say."""
        return NEVER

    async def after(self, place: SourcePlace, limit: int, max_bytes: int) -> ReadRows:
        """Read the first rows after a place, in the order of their keys."""

        async def read(connection: DriverConnection) -> ReadRows:
            now = await connection.fetchval(_NOW)
            found = await connection.fetch(_ROWS, key_at(place), limit, max_bytes)
            return ReadRows([row_of(key, topic, raw, now) for key, topic, raw in found], is_all=not found)

        return await _run(self._link, read)


async def has_go_history(url: str) -> bool:
    """Whether a Go mailserver's table is at a URL, and no store of ours.

    Raises:
        StoreError: the database cannot be reached, or refuses.
    """
    async with open_links(url, 1, StoreFailures(), session=SESSION) as (link,):
        return await _run(link, lambda connection: connection.fetchval(_IS_GO_HISTORY))


@contextlib.asynccontextmanager
async def open_go_history(url: str) -> AsyncIterator[GoHistory]:
    """Read the Go mailserver's table at a URL."""
    async with open_links(url, 1, StoreFailures(), session=SESSION) as (link,):
        yield GoHistory(url, link)


async def _run(link: DatabaseLink, job: Callable[[DriverConnection], Awaitable[T]]) -> T:
    try:
        return await link.run(job)
    except asyncpg.PostgresError as error:
        raise StoreError(f"cannot read the database: {explain(error)}") from error
