"""What the daemon keeps with the store beside envelopes, as rows of `records`.

The compaction does not read this engine yet, so nothing is ever archived: see `PostgresHandoff`.
"""

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg

from mailserver.errors import StoreError
from mailserver.handoff.archived import Archived
from mailserver.handoff.last_run import Compaction, CompactionState
from mailserver.handoff.last_upkeep import Task, Upkeep
from mailserver.store.moving import Moved
from mailserver.store.postgres.connections import Connection
from mailserver.store.postgres.failures import explain

Run = Callable[[Callable[[Connection], Awaitable[Any]]], Awaitable[Any]]
"""Runs a job on a connection; raises StoreError."""

_TIME = "time"
_MOVE = "move"
_READ = "SELECT body FROM records WHERE name = $1"
_WRITE = """
    INSERT INTO records VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET body = excluded.body
"""


class PostgresTimeRecord:
    """A `store.interface.TimeRecord`. Of several mailservers on a database, whoever writes last is believed."""

    def __init__(self, run: Run) -> None:
        self._run = run

    async def read(self) -> int | None:
        """Read the moment, in Unix seconds; None if none was written yet."""
        body = await self._run(lambda connection: connection.fetchval(_READ, _TIME))
        if body is None:
            return None
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
    """A `store.handoff.Handoff` of a store that no compaction has ever read."""

    async def archived(self) -> Archived | None:
        """Nothing is in the archive."""
        return None

    def was_archived(self) -> bool:
        """No envelope was."""
        return False

    async def is_being_compacted(self) -> bool:
        """No run reads it."""
        return False

    @contextlib.asynccontextmanager
    async def pruning_turn(self) -> AsyncIterator[bool]:
        """Nothing keeps a batch from being deleted; Lock.UPKEEP lets one mailserver delete at a time."""
        yield True

    async def last_run(self) -> tuple[CompactionState, Compaction | None]:
        """There was none."""
        return CompactionState.NEVER, None

    async def last_upkeep(self, task: Task) -> tuple[CompactionState, Upkeep | None]:
        """There was none."""
        return CompactionState.NEVER, None


async def translated(job: Awaitable[Any], what: str) -> Any:
    """Await what a database does.

    Raises:
        StoreError: it could not do it.
    """
    try:
        return await job
    except asyncpg.PostgresError as error:
        raise StoreError(f"cannot {what} the store: {explain(error)}") from error
