"""The database of a store as the nightly job uses it: without an event loop, on one connection, in short statements.

The job holds a lock for hours. The server ends it with the connection, when that or the job's machine is lost; and
whoever holds a lock writes its records on the same connection. So a run that has lost its lock can tell nobody that
anything is archived.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import asyncpg

from mailserver.errors import MailserverError, StoreError
from mailserver.handoff.archived import Archived, CompactionRunning
from mailserver.handoff.kinds import ARCHIVED, COMPACTION, UPKEEP
from mailserver.handoff.last_run import Compaction, CompactionState
from mailserver.handoff.last_upkeep import LastUpkeep, Task
from mailserver.store.postgres.connections import (
    CLOSE_TIMEOUT_S,
    SESSION,
    DriverConnection,
    check_primary,
    check_sessions,
    connect,
    give_up_lock,
    hold_lock,
)
from mailserver.store.postgres.failures import ERRORS, LOST, explain
from mailserver.store.postgres.migration import check_known
from mailserver.store.postgres.presence import move_on
from mailserver.store.postgres.records import LOCK_OF, PostgresHandoff, read_value, write_value
from mailserver.store.postgres.schema import SCHEMA_TABLE, Lock
from mailserver.store.postgres.urls import shown_url

STATEMENT_TIMEOUT_S = 300.0
"""How long a statement of the job's may take: some thousand envelopes, from a disk that is busy."""

PRUNING_LIMIT_S = 60.0
"""A batch of deletions that takes longer means that a mailserver hangs."""

# For a connection that says nothing for hours: a router on the way may forget it, or the job's machine may be gone.
_JOB_SESSION = f"""
    {SESSION};
    SET statement_timeout = '{STATEMENT_TIMEOUT_S:.0f}s';
    SET idle_session_timeout = 0;
    SET tcp_keepalives_idle = 60;
    SET tcp_keepalives_interval = 10;
    SET tcp_keepalives_count = 6
"""
_DAYS = """
    SELECT (SELECT id FROM identity),
        (SELECT coalesce(max(topics), 0) FROM (
            SELECT count(*) AS topics FROM day_topics WHERE day IN (SELECT day FROM counts) GROUP BY day
        ) AS of_days),
        array_agg(day), array_agg(envelopes), array_agg(bytes), array_agg(first_seq), array_agg(last_seq)
    FROM (
        SELECT r.day, sum(c.envelopes)::bigint AS envelopes, sum(c.bytes)::bigint AS bytes, r.first_seq, r.last_seq
        FROM counts AS c JOIN reception_days AS r ON r.day = c.reception_day GROUP BY r.day ORDER BY r.day
    ) AS days
"""

T = TypeVar("T")


class StoreContents(NamedTuple):
    """What a store holds at one moment. `days`: of each day of reception, in order, the day (Unix seconds / 86400), how
    many envelopes and bytes there are, and between which `seq` all have been that it ever received."""

    identity: str
    topics_of_a_day: int
    days: list[tuple[int, int, int, int, int]]


class StoreDatabase:
    """The database at a URL. `str()` is for people: the URL without its password.

    Every method raises StoreError if the database cannot be reached, or refuses.
    """

    def __init__(self, url: str) -> None:
        """Connect when it is needed."""
        self.url = url
        self._runner: asyncio.Runner | None = None
        self._connection: DriverConnection | None = None
        self._is_lost = False

    def __str__(self) -> str:
        return shown_url(self.url)

    @contextlib.contextmanager
    def connected(self) -> Iterator[None]:
        """Keep one connection for all that is asked meanwhile."""
        if self._runner is not None:
            yield
            return
        with asyncio.Runner() as runner:
            self._connection = runner.run(self._connect())
            self._runner, self._is_lost = runner, False
            try:
                yield
            finally:
                runner.run(self._close())
                self._runner = self._connection = None

    def ask(self, job: Callable[[DriverConnection], Awaitable[T]]) -> T:
        """Wait for the answer to something. Once the connection is lost, nothing is asked on another in its place."""
        with self.connected():
            assert self._runner is not None
            if self._is_lost:
                raise StoreError(f"the connection to the store {self} was lost, and the lock on it")
            return self._runner.run(self._answered(job))

    def select(self, sql: str, *parameters: object) -> list[Any]:
        """The rows that a statement finds, as tuples."""
        return self.ask(lambda connection: connection.fetch(sql, *parameters))

    def exists(self) -> bool:
        """Whether there is a store in the database."""
        ((exists,),) = self.select(f"SELECT to_regclass('{SCHEMA_TABLE}') IS NOT NULL")
        return bool(exists)

    def check_version(self) -> None:
        """Check that there is a store of this version.

        Raises:
            StoreError: there is another, or none.
        """
        if not self.exists():
            raise StoreError(f"cannot open the store {self}: there is none")
        ((version,),) = self.select(f"SELECT version FROM {SCHEMA_TABLE}")
        check_known(version, str(self))

    def held(self) -> StoreContents:
        """What is in the store."""
        with self.connected():
            self.check_version()
            ((identity, topics, *columns),) = self.select(_DAYS)
        return StoreContents(identity, topics, [*zip(*columns, strict=True)] if columns[0] else [])

    def network_topic(self) -> str:
        """To which its message ids belong; "" if it has none yet."""
        with self.connected():
            self.check_version()
            ((topic,),) = self.select("SELECT network_topic FROM id_index")
        return str(topic)

    def oldest_day(self) -> int | None:
        """The oldest UTC day of reception that it has envelopes of."""
        with self.connected():
            self.check_version()
            ((day,),) = self.select("SELECT min(reception_day) FROM counts")
        return None if day is None else int(day)

    def last_reception(self) -> int | None:
        """When it received its last envelope, in Unix seconds."""
        with self.connected():
            self.check_version()
            ((last,),) = self.select("SELECT max(received) FROM envelopes")
        return None if last is None else int(last)

    @contextlib.contextmanager
    def compaction_lock(self) -> Iterator[None]:
        """Be the one run that reads the store; nothing is pruned meanwhile.

        Raises:
            CompactionRunning: another run holds the lock.
            StoreError: a batch of deletions does not end.
        """
        with self._holding(Lock.COMPACTION, PRUNING_LIMIT_S) as holder:
            if holder is not None:
                raise CompactionRunning(f"{holder} of the database")
            yield

    @contextlib.contextmanager
    def upkeep_lock(self, task: Task) -> Iterator[int | None]:
        """Be the one run of a task; yield the process of the server that serves another one, if there is one."""
        with self._holding(LOCK_OF[task], 0.0) as holder:
            yield holder

    @contextlib.contextmanager
    def _holding(self, lock: Lock, within_s: float) -> Iterator[int | None]:
        with self.connected():
            holder = self.ask(lambda connection: hold_lock(connection, lock, within_s))
            try:
                yield holder
            finally:
                if holder is None and not self._is_lost:
                    self.ask(lambda connection: give_up_lock(connection, lock))

    def keep_beyond(self, seq: int) -> None:
        """Have no row get a number up to `seq`, which the archive knows: the database may have been put back to an
        earlier moment. (The lock of numbering is taken although that of a run is held: nobody who numbers or deletes
        waits for that.)"""
        self.ask(lambda connection: move_on(connection, seq))

    def read_archived(self) -> Archived | None:
        """What is in the archive, as the last run has said.

        Raises:
            ArchivedError: the record is something else.
        """
        return self.ask(lambda connection: read_value(connection, ARCHIVED))

    def write_archived(self, archived: Archived) -> None:
        """Say what is in the archive."""
        self.ask(lambda connection: write_value(connection, ARCHIVED, archived))

    def read_compaction(self) -> Compaction | None:
        """The record of the last run.

        Raises:
            CompactionRecordError: it is something else.
        """
        return self.ask(lambda connection: read_value(connection, COMPACTION))

    def write_compaction(self, compaction: Compaction) -> None:
        """Write the record of a run.

        Raises:
            ValueError: it is too long.
        """
        self.ask(lambda connection: write_value(connection, COMPACTION, compaction))

    def read_upkeep(self, task: Task) -> LastUpkeep | None:
        """The record of a task.

        Raises:
            UpkeepRecordError: it is something else.
        """
        return self.ask(lambda connection: read_value(connection, UPKEEP[task]))

    def write_upkeep(self, task: Task, upkeep: LastUpkeep) -> None:
        """Write the record of a task."""
        self.ask(lambda connection: write_value(connection, UPKEEP[task], upkeep))

    def last_run(self) -> tuple[CompactionState, Compaction | None]:
        """The state of the last run of the compaction, and its record."""
        return self.ask(lambda connection: _handoff(connection).last_run())

    def last_upkeep(self, task: Task) -> tuple[CompactionState, LastUpkeep | None]:
        """The state of the last run of a task, and its record."""
        return self.ask(lambda connection: _handoff(connection).last_upkeep(task))

    async def _connect(self) -> DriverConnection:
        try:
            connection = await connect(self.url, STATEMENT_TIMEOUT_S)
        except (*ERRORS, ValueError) as error:
            raise StoreError(f"cannot open the store {self}: {explain(error)}") from error
        is_set_up = False
        try:
            await connection.execute(_JOB_SESSION)
            await check_primary(connection)
            await check_sessions(self.url, connection)
            is_set_up = True
        except ERRORS as error:
            raise StoreError(f"cannot open the store {self}: {explain(error)}") from error
        except StoreError as error:
            raise StoreError(f"cannot open the store {self}: {error}") from error
        finally:
            if not is_set_up:
                connection.terminate()
        return connection

    async def _close(self) -> None:
        assert self._connection is not None
        with contextlib.suppress(*ERRORS):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._connection.close()

    async def _answered(self, job: Callable[[DriverConnection], Awaitable[T]]) -> T:
        assert self._connection is not None
        is_answered = False
        try:
            result = await job(self._connection)
            is_answered = True
            return result
        except (MailserverError, ValueError):  # what the job makes of an answer
            is_answered = True
            raise
        except asyncpg.PostgresError as error:
            is_answered = not self._connection.is_closed()
            raise StoreError(f"cannot use the store {self}: {explain(error)}") from error
        except LOST as error:
            raise StoreError(f"cannot use the store {self}: {explain(error)}") from error
        finally:
            if not is_answered:
                self._is_lost = True
                self._connection.terminate()


def _handoff(connection: DriverConnection) -> PostgresHandoff:
    async def run(job: Callable[[DriverConnection], Awaitable[Any]]) -> Any:
        return await job(connection)

    return PostgresHandoff(run)
