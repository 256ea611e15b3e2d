"""Connections to one database, each made when it is needed, and made anew after it was lost.

Whatever is asked of a database ends in time: with an answer, or with a StoreError. Of a transaction whose commit was
not answered, nothing is known: it is as if it had failed, and what it stored is found to be there later.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

import asyncpg

from mailserver.errors import StoreError
from mailserver.store.postgres.failures import ERRORS, LOST, REFUSALS, Refusing, StoreFailures, Unreachable, unreachable
from mailserver.store.postgres.schema import LOCK_CLASS, Lock
from mailserver.store.postgres.urls import check_url

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
"""How long to wait for a connection."""

STATEMENT_TIMEOUT_S = 10.0
"""How long a statement may take, and wait for a lock. All of ours take milliseconds."""

CLOSE_TIMEOUT_S = 2.0
"""How long to wait for the goodbye of a database."""

RETRY_S = 0.5
"""After a connection could not be made, or was not fit for use, nobody tries again for so long: whoever waits is
refused at once."""

READERS = 3
"""Connections of a mailserver that read. Each is a process of the server; one of ours waits for the event loop, not for
them."""

SNAPSHOTS = 2
"""Connections for comparisons of ids: so one that takes seconds does not hold up all others."""

CONNECTIONS = READERS + SNAPSHOTS + 4
"""All of a mailserver: besides those, one to store, one to delete, one to index ids, and one to hear of the others."""

MIN_SERVER_VERSION = 150_000
"""PostgreSQL 15, with which it was tested."""

HOLD_WAIT_S = 1.0
"""Whoever waits for a lock of the nightly job's asks so often whether another run has it by now."""

STANDBY = "the database is a standby, which takes no writes: name its primary"

_POOLER_TRIES = 10
"""How often to look which process serves two connections: in between, another client may have taken one."""

_IDLE_S = 10
"""The server ends a transaction of ours that does nothing for so long: it may hold a lock that others wait for."""

# Plans do not depend on what the server knows of the tables, which is nothing of a new day: each statement goes through
# an index, in nested loops in the order in which it says so. With `enable_*` off, such a step is taken only where there
# is no other way.
SESSION = f"""
    SET synchronous_commit = on;
    SET statement_timeout = '{STATEMENT_TIMEOUT_S:.0f}s';
    SET lock_timeout = '{STATEMENT_TIMEOUT_S:.0f}s';
    SET idle_in_transaction_session_timeout = '{_IDLE_S}s';
    SET timezone = 'UTC';
    SET jit = off;
    SET max_parallel_workers_per_gather = 0;
    SET plan_cache_mode = force_generic_plan;
    SET enable_seqscan = off;
    SET enable_bitmapscan = off;
    SET enable_hashjoin = off;
    SET enable_mergejoin = off;
    SET enable_hashagg = off;
    SET enable_material = off
"""
_KEY = f"{LOCK_CLASS} + $1::int, current_schema()::regnamespace::oid::int"
_LOCK = f"SELECT pg_advisory_xact_lock({_KEY})"
_TRY_SHARED = f"SELECT pg_try_advisory_xact_lock_shared({_KEY})"
_HOLD = f"SELECT pg_advisory_lock({_KEY})"
_GIVE_UP = f"SELECT pg_advisory_unlock({_KEY})"
_HOLDER = f"""
    SELECT pid FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND mode = 'ExclusiveLock' AND objsubid = 2
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND classid::bigint = {LOCK_CLASS} + $1::int AND objid = current_schema()::regnamespace::oid
"""

T = TypeVar("T")


class DriverConnection(Protocol):
    """What is used of a connection of the driver's, which has no types. Its rows are tuples."""

    async def execute(self, query: str, *args: object) -> str: ...

    async def fetch(self, query: str, *args: object) -> list[Any]: ...

    async def fetchrow(self, query: str, *args: object) -> Any: ...

    async def fetchval(self, query: str, *args: object) -> Any: ...

    async def copy_records_to_table(
        self, table_name: str, *, records: Sequence[tuple[object, ...]], columns: Sequence[str]
    ) -> str: ...

    def transaction(self) -> contextlib.AbstractAsyncContextManager[object]: ...

    def is_in_transaction(self) -> bool: ...

    def get_server_pid(self) -> int: ...

    def is_closed(self) -> bool: ...

    async def add_listener(
        self, channel: str, callback: Callable[["DriverConnection", int, str, object], None]
    ) -> None: ...

    def add_termination_listener(self, callback: Callable[["DriverConnection"], None]) -> None: ...

    def terminate(self) -> None: ...

    async def close(self) -> None: ...


async def connect(url: str, statement_s: float) -> DriverConnection:
    """Connect to the database at a URL.

    Args:
        statement_s: how long a statement may take; the server is to end it, and if it does not, the driver does.
    Raises:
        StoreError: the URL is none.
        ERRORS, ValueError: the database cannot be reached, or refuses.
    """
    check_url(url)
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        connection: DriverConnection = await asyncpg.connect(url, command_timeout=statement_s + 1)
    return connection


Setup = Callable[[DriverConnection], Awaitable[None]]
"""What is done with a new connection before it is used."""


async def _nothing(_: DriverConnection) -> None:
    pass


class DatabaseLink:
    """One connection to a database. One task at a time uses it."""

    def __init__(
        self, url: str, failures: StoreFailures, setup: Setup = _nothing, *, session: str | None = None
    ) -> None:
        """Connect later.

        Args:
            session: the settings of every new connection, as SQL; None: SESSION.
            setup: what is done with every new connection; it raises StoreError if that is not to be used.
        """
        self._url = url
        self._failures = failures
        self._setup = setup
        self._session = SESSION if session is None else session
        self._connection: DriverConnection | None = None
        self._turn = asyncio.Lock()
        self._failed: tuple[float, StoreError] | None = None

    async def run(self, job: Callable[[DriverConnection], Awaitable[T]]) -> T:
        """Do something with the connection.

        Raises:
            Unreachable: there is no connection, or it was lost, or the database did not answer in time.
            asyncpg.PostgresError: the database refuses it.
            StoreError: the job says so, or what sets up the connection.
        """
        task = asyncio.current_task()
        assert task is not None
        async with self._turn:
            before = task.cancelling()
            try:
                return await self._run(job)
            except Exception as error:
                # The driver rolls a transaction back as it is left. If the connection is lost meanwhile, that error
                # takes the place of the cancellation: whoever asked for it would wait for ever.
                if task.cancelling() > before:
                    raise asyncio.CancelledError from error
                raise

    async def _run(self, job: Callable[[DriverConnection], Awaitable[T]]) -> T:
        connection = await self._connected()
        is_done = False
        try:
            result = await job(connection)
            is_done = not connection.is_in_transaction()
            return result
        except (*LOST, *REFUSALS, asyncpg.PostgresConnectionError, asyncpg.OperatorInterventionError) as error:
            raise unreachable(error) from error
        except (asyncpg.PostgresError, StoreError):
            is_done = not connection.is_in_transaction()
            raise
        finally:
            if not is_done:  # whatever it was amidst is undone by the server
                self._drop()

    async def _connected(self) -> DriverConnection:
        if self._connection is not None and not self._connection.is_closed():
            return self._connection
        self._drop()
        if self._failed is not None and time.monotonic() < self._failed[0]:
            raise _again(self._failed[1])
        try:
            self._connection = await self._connect()
        except StoreError as error:
            self._failed = time.monotonic() + RETRY_S, _again(error)  # its traceback would refer to this
            raise
        self._failed = None
        self._failures.reached()
        return self._connection

    async def _connect(self) -> DriverConnection:
        """Make a connection, and set it up.

        Raises:
            Unreachable: the database cannot be reached, or refuses.
            StoreError: the connection is not to be used.
        """
        try:
            connection = await connect(self._url, STATEMENT_TIMEOUT_S)
        except (*ERRORS, ValueError) as error:
            failure = unreachable(error)
            # If there are too many, others may have one: it would be said and taken back by turns.
            if not isinstance(failure, Refusing):
                self._failures.reached(str(failure))
            raise failure from error
        is_set_up = False
        try:
            await connection.execute(self._session)
            await self._setup(connection)
            is_set_up = True
        except ERRORS as error:
            raise unreachable(error) from error
        finally:
            if not is_set_up:
                connection.terminate()
        return connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            connection.terminate()

    async def close(self) -> None:
        """Close the connection, after what it is used for. If that takes too long, or the database cannot be reached,
        it is cut: a transaction that is left would wait for the database to say that it is rolled back."""
        if self._failures.is_unreachable:
            self._drop()
        with contextlib.suppress(*ERRORS):
            async with asyncio.timeout(CLOSE_TIMEOUT_S), self._turn:
                if self._connection is not None:
                    await self._connection.close()
        self._drop()


def _again(error: StoreError) -> StoreError:
    return type(error)(*error.args)


async def take_lock(connection: DriverConnection, lock: Lock) -> None:
    """Wait for a lock, which the transaction then holds to its end.

    Raises:
        asyncpg.LockNotAvailableError: it is held for too long.
    """
    await connection.fetchval(_LOCK, int(lock))


async def hold_lock(connection: DriverConnection, lock: Lock, within_s: float) -> int | None:
    """Take a lock of the nightly job's, which the connection then holds to its end; return None. If another has it,
    return the process of the server that serves its holder. Who holds it shared is waited for.

    Raises:
        StoreError: they do not give it up.
    """
    deadline = time.monotonic() + within_s
    while True:
        holder: int | None = await connection.fetchval(_HOLDER, int(lock))
        if holder is not None:
            return holder
        try:
            async with connection.transaction():
                await connection.execute(f"SET LOCAL lock_timeout = '{HOLD_WAIT_S:.0f}s'")
                await connection.fetchval(_HOLD, int(lock))
            return None
        except asyncpg.LockNotAvailableError as error:
            if time.monotonic() > deadline:
                raise StoreError(f"a mailserver has been deleting one batch for {within_s:.0f} s") from error


async def give_up_lock(connection: DriverConnection, lock: Lock) -> None:
    """Give up a lock that the connection holds."""
    await connection.fetchval(_GIVE_UP, int(lock))


async def is_held(connection: DriverConnection, lock: Lock) -> bool:
    """Whether a run of the nightly job holds a lock."""
    return await connection.fetchval(_HOLDER, int(lock)) is not None


async def keep_compaction_away(connection: DriverConnection) -> bool:
    """Keep the compaction from beginning to read until the end of the transaction; False if it has begun."""
    is_ours: bool = await connection.fetchval(_TRY_SHARED, int(Lock.COMPACTION))
    return is_ours


@contextlib.asynccontextmanager
async def open_links(
    url: str, count: int, failures: StoreFailures, setup: Setup = _nothing, *, session: str | None = None
) -> AsyncIterator[Sequence[DatabaseLink]]:
    """Have so many links; close them at the end."""
    links = [DatabaseLink(url, failures, setup, session=session) for _ in range(count)]
    try:
        yield links
    finally:
        await asyncio.gather(*(link.close() for link in links))


async def check_sessions(url: str, connection: DriverConnection) -> None:
    """Check that a new connection to `url` stays with one process of the server. Our locks, the table for what is to be
    stored and the statements that are prepared are that process's.

    Raises:
        StoreError: a pooler has it served by any, from transaction to transaction.
    """
    try:
        is_shared = await _changes_processes(url, connection)
    except asyncpg.DuplicatePreparedStatementError:  # another client has prepared it at the same process
        is_shared = True
    if is_shared:
        raise StoreError(
            "a pooler before the database shares its connections between transactions: have it pool sessions "
            "(PgBouncer: pool_mode = session)"
        )


async def _changes_processes(url: str, connection: DriverConnection) -> bool:
    """Whether a pooler serves two connections that are idle by the same process, or one by several."""
    ours = {await connection.fetchval("SELECT pg_backend_pid()")}
    if ours == {connection.get_server_pid()}:  # as the server itself said: there is no pooler
        return False
    other = await connect(url, STATEMENT_TIMEOUT_S)
    theirs = set()
    try:
        for number in range(_POOLER_TRIES):
            # A statement of its own each time: one that was prepared at another process would be unknown.
            theirs.add(await other.fetchval(f"SELECT pg_backend_pid() + 0 * {number}"))
            ours.add(await connection.fetchval(f"SELECT pg_backend_pid() + 0 * {number}"))
    finally:
        other.terminate()
    return len(ours) > 1 or len(theirs) > 1 or bool(ours & theirs)


async def check_primary(connection: DriverConnection) -> None:
    """Check that a connection does not lead to a standby: it lacks what came last, and a lock there is nobody else's
    business. One may have taken the primary's place by now, or it may be one of the hosts that the URL names.

    Raises:
        Unreachable: it does.
    """
    if await connection.fetchval("SELECT pg_is_in_recovery()"):
        raise Unreachable(STANDBY)


async def check_server(connection: DriverConnection) -> None:
    """Check that a database can keep a store; say so if it would not keep what it confirms.

    Raises:
        StoreError: it cannot.
    """
    row = await connection.fetchrow(
        "SELECT current_setting('server_version_num')::int, current_schema(), current_setting('fsync') = 'on' "
        "AND current_setting('full_page_writes') = 'on', pg_is_in_recovery(), current_setting('server_version')"
    )
    assert row is not None
    number, schema, is_durable, is_standby, version = row
    if number < MIN_SERVER_VERSION:
        raise StoreError(f"the database is PostgreSQL {version}: at least {MIN_SERVER_VERSION // 10_000} is needed")
    if is_standby:
        raise StoreError(STANDBY)
    if schema is None:
        raise StoreError("the database has no schema of that name: create it, or leave search_path out")
    if not is_durable:
        log.warning("database forgets what it confirms in a power cut")
