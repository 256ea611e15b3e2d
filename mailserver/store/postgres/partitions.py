"""The partitions of days: each day of late has its own as soon as anything of it comes, if nothing of it is elsewhere.

A partition is made by whoever stores the first envelope of its day; that of `ids` by whoever indexes the first. Its
rows are its day's, all of them, for as long as it is there. Days outside the window, and those of which rows came
before there was a partition, stay in the last partition, which takes everything.

To make one, nobody may be reading the last partition, and to drop one, nobody may be reading the table. Envelopes are
read in short statements. Ids are compared in transactions that last for seconds: whoever has to wait for these gives up
soon, because others would wait behind him, and tries again. `pg_dump` reads everything in one transaction, for hours
maybe: meanwhile the rows of a day that has no partition yet go into the last one.
"""

import re
import time

import asyncpg

from mailserver.store.postgres.connections import STATEMENT_TIMEOUT_S, DriverConnection, take_lock
from mailserver.store.postgres.schema import Lock
from mailserver.units import SECONDS_PER_DAY

DAYS_BACK = 62
"""How old a day may be to get a partition. The longest that mailservers are asked for is a month."""

DAYS_AHEAD = 1
"""How far in the future it may be: clocks differ."""

WAIT_S = 1.5
"""How long to wait for those who compare ids, or vacuum: longer than the server's `deadlock_timeout`, 1 s if nobody has
changed it. Only after that does it end an autovacuum that is in the way, which may take an hour."""

MAKING_WAIT_S = 0.3
"""How long to wait for those who read the last partition while nobody can store, on any mailserver: longer than our own
statements take. Whoever wants to read it waits behind us. It is too short to end an autovacuum, as WAIT_S does: what is
made ahead waits for as long as that."""

MAKING_S = 2.0
"""How long that may take, with the server's look through the last partition: 0.3 s for 600,000 envelopes there."""

MAKING_AGAIN_S = 10.0
"""After it was not possible, nobody has to wait for another attempt for so long."""

PATIENCE_S = 60.0
"""For how long ids wait to be indexed until those who read let their partition be made. Comparisons end within seconds;
a backup may last for hours, and meanwhile no gateway would find anything new."""

NOT_MADE = (
    asyncpg.LockNotAvailableError,  # somebody reads, for longer than we wait
    asyncpg.QueryCanceledError,  # there is too much to look through
    asyncpg.CheckViolationError,  # a row of the day has come elsewhere
    asyncpg.DuplicateTableError,  # another mailserver has just made it, or is making it
    asyncpg.UniqueViolationError,
)
"""Why a partition was not made, though nothing is wrong."""

_NAME = re.compile("[a-z]+_d([0-9]+)")
_DAYS = """
    SELECT array_agg(child.relname::text), extract(epoch FROM now())::bigint / 86400
    FROM pg_inherits JOIN pg_class AS child ON child.oid = inhrelid WHERE inhparent = $1::text::regclass
"""


def partition(table: str, day: int) -> str:
    """The name of a day's partition."""
    return f"{table}_d{day}"


async def partitioned_days(connection: DriverConnection, table: str = "envelopes") -> tuple[set[int], int]:
    """The days that have partitions, and which day it is, by the database's clock."""
    names, today = await connection.fetchrow(_DAYS, table)
    return {int(found[1]) for name in names or () if (found := _NAME.fullmatch(name))}, int(today)


class Partitions:
    """What one mailserver knows of the partitions of a table."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._settled: set[int] = set()  # days that have one, or have none and get none
        self._today = 0
        self._not_before = 0.0  # of time.monotonic(), as the next
        self._kept_since: float | None = None

    async def make_if_free(self, connection: DriverConnection, days: set[int]) -> None:
        """Make partitions for days, as far as they get one, if that can be done at once. Else the rows of these days
        belong into the last partition. The transaction must hold the lock of those who insert.

        Args:
            days: of creation, Unix seconds / 86400.
        """
        if self._need_nothing(days):
            return
        try:
            async with connection.transaction():
                await take_no_longer(connection, MAKING_WAIT_S, MAKING_S)
                await self._make_for(connection, days)
        except NOT_MADE:
            self._put_off()
        else:
            await take_no_longer(connection, STATEMENT_TIMEOUT_S, STATEMENT_TIMEOUT_S)

    async def make_patiently(self, connection: DriverConnection, days: set[int]) -> None:
        """Make partitions for days, as far as they get one, in a transaction that holds nothing else while it waits. If
        somebody reads for too long, or there is too much to look through, rows of these days belong into the last
        partition.

        Args:
            days: of creation, Unix seconds / 86400.

        Raises:
            asyncpg.LockNotAvailableError: somebody reads, and is to be waited for.
        """
        if self._need_nothing(days):
            return
        is_done = False
        try:
            async with connection.transaction():
                await take_lock(connection, Lock.UPKEEP)
                await take_no_longer(connection, WAIT_S, MAKING_S)
                await self._make_for(connection, days)
            is_done = True
        except asyncpg.LockNotAvailableError:
            if self._is_patient():
                raise
            self._put_off()
        except NOT_MADE:
            self._put_off()
        finally:
            if not is_done:
                self.forget()

    async def _make_for(self, connection: DriverConnection, days: set[int]) -> None:
        there, today = await partitioned_days(connection, self._table)
        if today != self._today:
            self._settled, self._today = set(), today
        new = {day for day in days - there if today - DAYS_BACK <= day <= today + DAYS_AHEAD}
        for day in sorted(new):
            await make_partition(connection, self._table, day)
        self._settled |= there | new
        self._kept_since = None
        if len(days) <= DAYS_BACK:  # else they are old ones, which only take room here
            self._settled |= days

    def _is_patient(self) -> bool:
        """Somebody reads. Whether to wait for him; else the rows of these days belong into the last partition."""
        now = time.monotonic()
        if self._kept_since is None:
            self._kept_since = now
        return now < self._kept_since + PATIENCE_S

    def _put_off(self) -> None:
        self._not_before = time.monotonic() + MAKING_AGAIN_S

    def _need_nothing(self, days: set[int]) -> bool:
        """Whether all these days have partitions, or get none, or are not to be tried again yet."""
        return days <= self._settled or time.monotonic() < self._not_before

    def forget(self) -> None:
        """A transaction was undone, or another database answers."""
        self._settled = set()


async def make_partition(connection: DriverConnection, table: str, day: int) -> None:
    """Make a day's partition, unless some of the day is in the last one.

    Raises:
        NOT_MADE: it cannot be made now. The transaction, or the savepoint, must then be rolled back.
    """
    start, end = day * SECONDS_PER_DAY, (day + 1) * SECONDS_PER_DAY
    is_elsewhere = f"SELECT EXISTS (SELECT 1 FROM {table}_rest WHERE created >= $1 AND created < $2)"
    if await connection.fetchval(is_elsewhere, start, end):
        return
    # Other than CREATE TABLE ... PARTITION OF, this does not keep readers from the other days. The server reads through
    # the last partition, to see that nothing there belongs into this one.
    name = partition(table, day)
    await connection.execute(
        f"CREATE TABLE {name} (LIKE {table} INCLUDING DEFAULTS INCLUDING STORAGE); "
        f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ({start}) TO ({end})"
    )


async def wait_no_longer(connection: DriverConnection) -> None:
    """In the rest of this transaction, do not wait for a lock for longer than WAIT_S."""
    await connection.execute(f"SET LOCAL lock_timeout = '{WAIT_S * 1000:.0f}ms'")


async def take_no_longer(connection: DriverConnection, wait_s: float, statement_s: float) -> None:
    """In the rest of this transaction, or until it is said again, wait for a lock no longer than `wait_s`, and let a
    statement take no longer than `statement_s`. A savepoint that is rolled back takes it back."""
    await connection.execute(
        f"SET LOCAL lock_timeout = '{wait_s * 1000:.0f}ms'; SET LOCAL statement_timeout = '{statement_s * 1000:.0f}ms'"
    )


async def drop(connection: DriverConnection, table: str, day: int) -> None:
    """Drop a day's partition, if it has one. The transaction must hold the lock of those who insert.

    Raises:
        asyncpg.LockNotAvailableError: somebody reads for too long.
    """
    await connection.execute(f"DROP TABLE IF EXISTS {partition(table, day)}")
