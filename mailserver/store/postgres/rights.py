"""The rights that a mailserver needs in its database, checked as it starts. Some are needed only later, by the first
envelope, or by that of the next day: nobody would be there then.
"""

from mailserver.errors import StoreError
from mailserver.store.postgres.connections import DriverConnection
from mailserver.store.postgres.migration import NAMES
from mailserver.store.postgres.schema import SCHEMA_TABLE

_OURS = [*NAMES, SCHEMA_TABLE, "envelope_seq"]
_PARTITIONED = ["envelopes", "ids"]

# Partitions are made, dropped and truncated, which only an owner may; he may do all else with his tables. Those of
# other programs may be in the schema, too.
_LACKING = """
    SELECT format(
        'may not create tables in the schema %1$I: GRANT CREATE ON SCHEMA %1$I TO %2$I', current_schema(), current_user
    )
    WHERE NOT has_schema_privilege(current_schema(), 'CREATE')
    UNION ALL
    SELECT format(
        'may not create temporary tables in the database %1$I: GRANT TEMPORARY ON DATABASE %1$I TO %2$I',
        current_database(), current_user
    )
    WHERE NOT has_database_privilege(current_database(), 'TEMPORARY')
    UNION ALL
    (
        SELECT format('does not own %1$I: ALTER TABLE %1$I OWNER TO %2$I', relname, current_user) FROM pg_class
        WHERE relnamespace = current_schema()::regnamespace AND NOT pg_has_role(relowner, 'USAGE') AND (
            relname = ANY($1) OR oid IN (
                SELECT inhrelid FROM pg_inherits WHERE inhparent = ANY($2::text[]::regclass[])
            )
        )
        ORDER BY relname LIMIT 1
    )
"""


async def check_rights(connection: DriverConnection) -> None:
    """Check that the user may do with the store in the current schema what a mailserver does.

    Raises:
        StoreError: he may not. It names the first right that is missing, and what grants it.
    """
    lacking = await connection.fetch(_LACKING, _OURS, _PARTITIONED)
    if lacking:
        user = await connection.fetchval("SELECT current_user::text")
        raise StoreError(f"the user {user} {lacking[0][0]}")
