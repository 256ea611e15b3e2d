"""Making tomorrow's partitions today, when nobody waits for them, and dropping those of which nothing came.

While a partition is made, the server looks through the last one, and nobody can read that. So whoever has to make one
with the first envelope of a day keeps everybody from storing for as long. Ahead of time nobody who stores waits, and it
can be tried again all day if somebody, `pg_dump` say, reads everything in one transaction.
"""

import logging
import time

import asyncpg

from mailserver.errors import StoreError
from mailserver.store.postgres.connections import DriverConnection, open_links, take_lock
from mailserver.store.postgres.failures import StoreFailures, explain
from mailserver.store.postgres.partitions import (
    DAYS_AHEAD,
    DAYS_BACK,
    MAKING_S,
    NOT_MADE,
    WAIT_S,
    drop,
    make_partition,
    partition,
    partitioned_days,
    take_no_longer,
)
from mailserver.store.postgres.schema import Lock
from mailserver.store.postgres.urls import shown_url

log = logging.getLogger(__name__)

AHEAD_S = 5.0
"""How long it may take: whoever reads waits, and gives up after STATEMENT_TIMEOUT_S. That is enough for several
million envelopes in the last partition."""

AHEAD_AGAIN_S = 6 * 3600.0
"""When to try again if that was too short: it will not be much shorter then, and everybody waits for it."""

_TABLES = ("envelopes", "ids")
_HAS_DAY = "SELECT EXISTS (SELECT 1 FROM counts WHERE day = $1)"
_EMPTY = """
    SELECT day FROM unnest($1::bigint[]) AS day
    WHERE day < $2 AND NOT EXISTS (SELECT 1 FROM counts WHERE counts.day = day.day)
"""


class PartitionsAhead:
    """What one mailserver does about partitions from time to time."""

    def __init__(self) -> None:
        self._not_before = 0.0  # of time.monotonic()

    async def keep(self, connection: DriverConnection) -> None:
        """Make tomorrow's partitions if anything of today has come, and drop old ones that are empty; what cannot be
        done now is for a later call."""
        for table in _TABLES:
            await self._make(connection, table)
        there, today = await partitioned_days(connection)
        for (day,) in await connection.fetch(_EMPTY, [*there], today - DAYS_BACK):
            if not await _drop_if_empty(connection, day):
                break  # whoever is in the way is so for the other days, too, and nobody can store while we wait

    async def _make(self, connection: DriverConnection, table: str) -> None:
        if time.monotonic() < self._not_before:
            return
        there, today = await partitioned_days(connection, table)
        if today + 1 in there or not await connection.fetchval(_HAS_DAY, today):
            return
        try:
            await _make_ahead(connection, table, today + 1)
        except asyncpg.QueryCanceledError:
            self._not_before = time.monotonic() + AHEAD_AGAIN_S
            log.warning(
                "partition not made, its day goes into the shared one partition=%s limit_s=%g again_in_s=%g",
                partition(table, today + 1),
                AHEAD_S,
                AHEAD_AGAIN_S,
            )
        except NOT_MADE:
            pass


async def make_all_days(url: str) -> None:
    """Make the partitions of all days that get one in the store at a URL, as far as that is possible now. It is for
    whoever brings a long history: what is older fills the last partition, and soon none could be made in time.

    Raises:
        StoreError: the database cannot be reached, or refuses.
    """

    async def make(connection: DriverConnection) -> None:
        for table in _TABLES:
            there, today = await partitioned_days(connection, table)
            for day in sorted({*range(today - DAYS_BACK, today + DAYS_AHEAD + 1)} - there):
                try:
                    await _make_ahead(connection, table, day)
                except NOT_MADE:  # nor would the next ones be
                    break

    async with open_links(url, 1, StoreFailures()) as (link,):
        try:
            await link.run(make)
        except asyncpg.PostgresError as error:
            raise StoreError(f"cannot make the partitions of {shown_url(url)}: {explain(error)}") from error


async def _make_ahead(connection: DriverConnection, table: str, day: int) -> None:
    """Make a day's partition, unless it is there, or some of the day is in the last one. Raises NOT_MADE."""
    async with connection.transaction():
        await take_no_longer(connection, WAIT_S, AHEAD_S)
        await take_lock(connection, Lock.UPKEEP)  # one mailserver at a time
        if day not in (await partitioned_days(connection, table))[0]:
            await make_partition(connection, table, day)


async def _drop_if_empty(connection: DriverConnection, day: int) -> bool:
    """Drop a day of which nothing has come, or nothing is left. It is too old to get a partition again. Return whether
    nobody was in the way."""
    try:
        async with connection.transaction():
            await take_no_longer(connection, WAIT_S, MAKING_S)
            await take_lock(connection, Lock.UPKEEP)
            await take_lock(connection, Lock.COMMIT)
            is_there = f"SELECT EXISTS (SELECT 1 FROM {partition('envelopes', day)})"
            if not await connection.fetchval(_HAS_DAY, day) and not await connection.fetchval(is_there):
                for table in _TABLES:
                    await drop(connection, table, day)
    # Somebody reads, or another mailserver has dropped it: a later call looks again.
    except (asyncpg.LockNotAvailableError, asyncpg.QueryCanceledError, asyncpg.UndefinedTableError):
        return False
    return True
