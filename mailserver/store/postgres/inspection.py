"""What a database says of itself, for whoever checks whether it is suitable. Nothing is changed."""

from dataclasses import dataclass

import asyncpg

from mailserver.errors import StoreError
from mailserver.store.postgres.connections import MIN_SERVER_VERSION, DriverConnection, check_sessions, open_links
from mailserver.store.postgres.failures import StoreFailures, explain
from mailserver.store.postgres.presence import DatabaseState, read_state
from mailserver.store.postgres.schema import SCHEMA_TABLE

# Who may see little of other users' sessions is told by pg_stat_database how many there are all the same.
_FACTS = f"""
    SELECT current_setting('server_version'), current_setting('server_version_num')::int >= {MIN_SERVER_VERSION},
        pg_is_in_recovery(), current_setting('fsync')::bool AND current_setting('full_page_writes')::bool,
        current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
            - (SELECT sum(numbackends)::int FROM pg_stat_database),
        current_schema()::text, to_regclass('{SCHEMA_TABLE}') IS NOT NULL
"""


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """`version`: in words. `is_durable`: whether it keeps what it confirms through a power cut. `free_connections`: how
    many more it takes, those of this look not counted. `schema`: where a store is or would be, None if it is not there.
    `state`: what is in it, if there is a store.
    """

    version: str
    is_new_enough: bool
    is_standby: bool
    is_durable: bool
    free_connections: int
    schema: str | None
    has_store: bool
    state: DatabaseState


async def inspect(url: str) -> DatabaseFacts:
    """Ask the database at a URL.

    Raises:
        StoreError: it cannot be reached, or refuses.
    """

    async def ask(connection: DriverConnection) -> DatabaseFacts:
        await check_sessions(url, connection)
        version, is_new_enough, is_standby, is_durable, free, schema, has_store = await connection.fetchrow(_FACTS)
        state = await read_state(connection)
        return DatabaseFacts(version, is_new_enough, is_standby, is_durable, free + 1, schema, has_store, state)

    async with open_links(url, 1, StoreFailures()) as (link,):
        try:
            return await link.run(ask)
        except asyncpg.PostgresError as error:
            raise StoreError(explain(error)) from error
