"""Making the tables of a store, and bringing those of an earlier version up to date: one mailserver at a time."""

import logging
import secrets

import asyncpg

from mailserver.errors import EarlierVersion, StoreError
from mailserver.store.postgres.connections import DriverConnection, take_lock
from mailserver.store.postgres.schema import IDENTITY_BYTES, MIGRATIONS, SCHEMA_TABLE, SCHEMA_VERSION, Lock

log = logging.getLogger(__name__)

NAMES = (
    "envelopes",
    "counts",
    "day_topics",
    "identity",
    "removed",
    "records",
    "ids",
    "id_sums",
    "id_index",
    "reception_days",
)
"""The tables of a store, beside SCHEMA_TABLE and the partitions of these."""
_FOREIGN = """
    SELECT relname::text FROM pg_class
    WHERE relnamespace = current_schema()::regnamespace AND relname = ANY($1) ORDER BY relname LIMIT 1
"""


class NoStore(StoreError):
    """There is no store in the database."""

    def __str__(self) -> str:
        return "there is no store in the database"


async def make_or_migrate(connection: DriverConnection, *, must_exist: bool) -> str:
    """Have a store of this version in the current schema; return its identity. All is done, or nothing.

    Args:
        must_exist: whether to make none.
    Raises:
        NoStore: there is none, and none is to be made.
        StoreError: the tables there are another program's, or a later version's.
    """
    async with connection.transaction():
        await take_lock(connection, Lock.SCHEMA)
        version = await _version(connection)
        if must_exist and not version:
            raise NoStore
        if version > SCHEMA_VERSION:
            raise StoreError(f"the store has schema version {version}, this program knows {SCHEMA_VERSION}")
        for migration in MIGRATIONS[version:]:
            for statement in migration:
                await connection.execute(statement)
        if version < SCHEMA_VERSION:
            if version:
                log.info("store migrated from=%d to=%d", version, SCHEMA_VERSION)
            await connection.execute(f"UPDATE {SCHEMA_TABLE} SET version = $1", SCHEMA_VERSION)
        if not await connection.fetchval("SELECT count(*) FROM identity"):
            await connection.execute("INSERT INTO identity VALUES ($1)", secrets.token_hex(IDENTITY_BYTES))
        identity: str = await connection.fetchval("SELECT id FROM identity")
    return identity


def check_known(version: int, where: str) -> None:
    """Check that a store is of this version, for whoever does not migrate it.

    Args:
        where: it is.
    Raises:
        EarlierVersion: it is of an earlier one.
        StoreError: it is of a later one.
    """
    if version > SCHEMA_VERSION:
        raise StoreError(f"{where} has schema version {version}, this program knows {SCHEMA_VERSION}: use a newer one")
    if version < SCHEMA_VERSION:
        raise EarlierVersion(
            f"{where} has schema version {version}, this program reads {SCHEMA_VERSION}: "
            "start this version of the mailserver on it once, which migrates it"
        )


async def _version(connection: DriverConnection) -> int:
    try:
        async with connection.transaction():
            version = await connection.fetchval(f"SELECT version FROM {SCHEMA_TABLE}")
            return int(version)
    except asyncpg.UndefinedTableError:
        pass
    foreign = await connection.fetchval(_FOREIGN, NAMES)
    if foreign is not None:
        raise StoreError(f"there is a table {foreign} of another program: name a schema by ?search_path=")
    await connection.execute(f"CREATE TABLE {SCHEMA_TABLE} (version integer NOT NULL)")
    await connection.execute(f"INSERT INTO {SCHEMA_TABLE} VALUES (0)")
    return 0
