"""What is kept with the store beside envelopes, as rows of `records`: the time, and what daemon and nightly job tell
each other. The job writes what it tells on the connection that holds its lock: if that is lost, nothing is written."""

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from mailserver.errors import StoreError
from mailserver.handoff.archived import Archived
from mailserver.handoff.json_records import MAX_RECORD_BYTES
from mailserver.handoff.kinds import ARCHIVED, COMPACTION, UPKEEP, RecordKind
from mailserver.handoff.last_run import ENDS, Compaction, CompactionState
from mailserver.handoff.last_upkeep import LastUpkeep, Task
from mailserver.store.moving import Moved
from mailserver.store.postgres.connections import DriverConnection, is_held
from mailserver.store.postgres.schema import Lock

Run = Callable[[Callable[[DriverConnection], Awaitable[Any]]], Awaitable[Any]]
"""Runs a job on a connection; raises StoreError."""

LOCK_OF = {Task.MERGE: Lock.MERGE, Task.VERIFY: Lock.VERIFY, Task.COMMUNITIES: Lock.COMMUNITIES}
"""The lock that a run of a task holds."""

T = TypeVar("T")

_TIME = "time"
_MOVE = "move"
_READ_BOUNDED = "SELECT left(body, $2) FROM records WHERE name = $1"
_READ = "SELECT body FROM records WHERE name = $1"
_READ_TIME = f"SELECT coalesce(({_READ}), floor(extract(epoch FROM now()))::bigint::text)"
_WRITE = """
    INSERT INTO records VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET body = excluded.body
"""


class PostgresTimeRecord:
    """A `store.interface.TimeRecord`. Of several mailservers on a database, whoever writes last is believed.

    As long as nobody has written, it is the database's clock: if the first mailserver believed its own, and that were
    wrong, it would delete what others store.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    async def read(self) -> int:
        """Read the moment, in Unix seconds."""
        body = await self._run(lambda connection: connection.fetchval(_READ_TIME, _TIME))
        if not body.isdecimal():
            raise StoreError(f"the record of the time is {body[:40]!r}")
        return int(body)

    async def write(self, moment: int) -> None:
        """Store this moment in place of the one before."""
        await self._run(lambda connection: connection.execute(_WRITE, _TIME, str(moment)))


class PostgresMoveRecord:
    """A `store.moving.MoveRecord`."""

    def __init__(self, run: Run) -> None:
        self._run = run

    async def read(self) -> Moved | None:
        """Read it; None if there is none."""
        body = await self._run(lambda connection: connection.fetchval(_READ, _MOVE))
        if body is None:
            return None
        try:
            record = json.loads(body)
            if not isinstance(record, dict):
                raise ValueError("not an object")
            return Moved.from_record(record)
        except (ValueError, RecursionError) as error:
            raise StoreError(f"the record of a move is {body[:40]!r}: {error}") from error

    async def write(self, moved: Moved) -> None:
        """Write it in place of the one before."""
        body = json.dumps(moved.as_record())
        await self._run(lambda connection: connection.execute(_WRITE, _MOVE, body))


class PostgresHandoff:
    """A `store.handoff.Handoff`: rows of `records`, and locks that the nightly job's connections hold."""

    def __init__(self, run: Run, *, was_archived: bool = False) -> None:
        """Read by `run`.

        Args:
            was_archived: whether there was a record of what is archived before.
        """
        self._run = run
        self._was_archived = was_archived

    async def archived(self) -> Archived | None:
        """What is in the archive."""
        archived: Archived | None = await self._run(lambda connection: read_value(connection, ARCHIVED))
        self._was_archived = self._was_archived or archived is not None
        return archived

    def was_archived(self) -> bool:
        """Whether there was a record when it was last looked for: that costs nothing."""
        return self._was_archived

    async def is_being_compacted(self) -> bool:
        """Whether a run of the compaction holds its lock."""
        held: bool = await self._run(lambda connection: is_held(connection, Lock.COMPACTION))
        return held

    @contextlib.asynccontextmanager
    async def pruning_turn(self) -> AsyncIterator[bool]:
        """Whether no run is reading. `deletion.delete_batch` itself keeps one from starting: else it would be free to
        when the connection is lost that has the turn."""
        yield not await self.is_being_compacted()

    async def last_run(self) -> tuple[CompactionState, Compaction | None]:
        """The state of the last run of the compaction, and its record."""
        found: tuple[CompactionState, Compaction | None] = await self._run(_last_run)
        return found

    async def last_upkeep(self, task: Task) -> tuple[CompactionState, LastUpkeep | None]:
        """The state of the last merge, or verification, and its record."""
        found: tuple[CompactionState, LastUpkeep | None] = await self._run(
            lambda connection: _last_upkeep(connection, task)
        )
        return found


async def read_value(connection: DriverConnection, kind: RecordKind[T]) -> T | None:
    """Read a record; None if there is none. Raises the kind's error if it is something else."""
    body = await connection.fetchval(_READ_BOUNDED, kind.name, MAX_RECORD_BYTES + 1)
    return None if body is None else kind.value(body.encode(), f"the record {kind.name!r} of the database")


async def write_value(connection: DriverConnection, kind: RecordKind[T], value: T) -> None:
    """Write a record in place of the one before.

    Raises:
        ValueError: it is too long.
    """
    await connection.execute(_WRITE, kind.name, kind.text(value))


async def _last_run(connection: DriverConnection) -> tuple[CompactionState, Compaction | None]:
    while True:
        compaction = await read_value(connection, COMPACTION)
        if compaction is None:
            return CompactionState.NEVER, None
        if compaction.finished_at is not None:
            return ENDS.get(compaction.exit_code or 0, CompactionState.FAILED), compaction
        if await is_held(connection, Lock.COMPACTION):
            return CompactionState.RUNNING, compaction
        # A run finishes its record before it drops the lock: if it has, the record has changed.
        if await read_value(connection, COMPACTION) == compaction:
            return CompactionState.DIED, compaction


async def _last_upkeep(connection: DriverConnection, task: Task) -> tuple[CompactionState, LastUpkeep | None]:
    while True:
        upkeep = await read_value(connection, UPKEEP[task])
        if upkeep is None or upkeep.started_at is None:
            return CompactionState.NEVER, upkeep
        if upkeep.finished_at is not None:
            return CompactionState.SUCCEEDED if upkeep.exit_code == 0 else CompactionState.FAILED, upkeep
        if await is_held(connection, LOCK_OF[task]):
            return CompactionState.RUNNING, upkeep
        if await read_value(connection, UPKEEP[task]) == upkeep:  # else it has finished since it was read
            return CompactionState.DIED, upkeep
