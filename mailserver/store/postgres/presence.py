"""Whether the database still has the store that was opened: each new connection is checked before it is used."""

import asyncpg

from mailserver.errors import StoreError
from mailserver.store.postgres.connections import Connection, Setup
from mailserver.store.postgres.failures import StoreFailures
from mailserver.store.postgres.insertion import MAKE_STAGING


def checking(identity: str, failures: StoreFailures) -> Setup:
    """A setup that checks that a new connection leads to the same store."""

    async def check(connection: Connection) -> None:
        try:
            found = await connection.fetchval("SELECT id FROM identity")
        except asyncpg.UndefinedTableError:
            found = None
        if found != identity:
            failures.lost(other_store(found))
        if failures.is_lost:
            raise StoreError(failures.writing)

    return check


def with_staging(setup: Setup) -> Setup:
    """A setup that has a table for what is to be stored, too."""

    async def set_up(connection: Connection) -> None:
        await setup(connection)
        await connection.execute(MAKE_STAGING)

    return set_up


def other_store(identity: str | None) -> str:
    """What to say of a store of another identity, or of none, in the place of the one that was opened."""
    what = "no store" if identity is None else f"another store, {identity},"
    return f"there is {what} in the database"
