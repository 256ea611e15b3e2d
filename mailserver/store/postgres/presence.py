"""Whether the database still has the store that was opened, and all that it had: each new connection is checked before
it is used.

A database that was restored to an earlier moment, or has failed over to a standby that lacked something, has lost rows.
It would give their numbers (`seq`) to others: to envelopes that the archive, and whoever follows the order of arrival,
would take for those. So whoever has seen a higher number than there is moves the numbers on, beyond all that can have
been used, before anything is stored; and all say that the database went back.
"""

import json
import logging
import time
from typing import NamedTuple

import asyncpg

from mailserver.errors import StoreError
from mailserver.handoff.json_records import count_of
from mailserver.store.postgres.connections import DriverConnection, Setup, check_primary, take_lock
from mailserver.store.postgres.failures import StoreFailures
from mailserver.store.postgres.insertion import MAKE_STAGING
from mailserver.store.postgres.schema import MISSED_MARGIN_S, Lock

log = logging.getLogger(__name__)

MARGIN = 10_000_000
"""How far numbers are moved on beyond what was seen, since more may have been used that nobody has noted: what several
mailservers store in a minute, several times."""

_RECORD = "moved_on"
STATE = f"""
    SELECT (SELECT id FROM identity), (SELECT coalesce(max(last_seq), 0) FROM reception_days),
        (SELECT body FROM records WHERE name = '{_RECORD}')
"""
"""SQL: what `DatabaseState.of` takes. Rows are counted there when they are committed; the sequence runs ahead."""

_MOVE = "SELECT setval('envelope_seq', greatest(last_value, $1)) FROM envelope_seq"
_NOTE = f"""
    INSERT INTO records VALUES ('{_RECORD}', $1) ON CONFLICT (name) DO UPDATE SET body = excluded.body
"""
# What was received since that moment may be in the archive, and is not here.
_MISSED = f"UPDATE removed SET until = greatest(until, extract(epoch FROM now())::bigint + {MISSED_MARGIN_S})"


class DatabaseState(NamedTuple):
    """What a database has: the store's identity, None if there is none; the highest number that was ever committed; and
    up to which, and when (Unix seconds), numbers were last moved on, 0 if they never were."""

    identity: str | None
    newest: int
    moved_to: int = 0
    moved_at: int = 0

    @classmethod
    def of(cls, identity: str | None, last_seq: int, moved_on: str | None) -> "DatabaseState":
        """What STATE has found.

        Raises:
            StoreError: the record of the move is none.
        """
        if moved_on is None:
            return cls(identity, last_seq)
        try:
            record = json.loads(moved_on)
            to, at = (count_of(name, record.get(name)) for name in ("to", "at"))
        except (ValueError, AttributeError, RecursionError) as error:
            raise StoreError(f"the record of numbers that were moved on is {moved_on[:40]!r}: {error}") from error
        return cls(identity, max(last_seq, to), to, at)


async def read_state(connection: DriverConnection) -> DatabaseState:
    """What the database has.

    Raises:
        StoreError: the record of the move is none.
    """
    try:
        return DatabaseState.of(*await connection.fetchrow(STATE))
    except asyncpg.UndefinedTableError:
        return DatabaseState(None, 0)


async def move_on(connection: DriverConnection, seen: int) -> DatabaseState | None:
    """Have numbers go on beyond those that were seen, if the database does not have these; return the new state, None
    if it has them."""
    async with connection.transaction():
        await take_lock(connection, Lock.COMMIT)  # nothing is numbered meanwhile
        before = await read_state(connection)
        if before.newest >= seen:
            return None
        to, now = seen + MARGIN, int(time.time())
        await connection.fetchval(_MOVE, to)
        await connection.execute(_NOTE, json.dumps({"to": to, "at": now}))
        await connection.execute(_MISSED)
    log.error("database went back in time seen=%d found=%d moved_to=%d", seen, before.newest, to)
    return DatabaseState(before.identity, to, to, now)


class Presence:
    """What one mailserver knows of the store that it has opened."""

    def __init__(self, identity: str, failures: StoreFailures, seen: int = 0) -> None:
        """Begin.

        Args:
            seen: the highest number that was ever seen in this store.
        """
        self._identity = identity
        self._failures = failures
        self._moved_to: int | None = None
        self.seen = seen
        """The highest number that was ever seen."""
        self.generation = 0
        """Rises whenever the database is known to have gone back, and whenever the connection that stores is lost: only
        the next one shows whether it has. What was stored before, it may lack."""

    async def check(self, connection: DriverConnection) -> None:
        """Check a connection; a `connections.Setup`.

        Raises:
            Unreachable: it leads to a standby.
            StoreError: it does not lead to the store.
        """
        await check_primary(connection)
        state = await read_state(connection)
        self.take(state)
        if self.is_behind(state) and (moved := await move_on(connection, self.seen)) is not None:
            self._moved_to = moved.moved_to
            self.seen = moved.newest
            self._went_back()

    async def check_writing(self, connection: DriverConnection) -> None:
        """Check the connection that stores; a `connections.Setup`.

        Raises:
            StoreError: it does not lead to the store.
        """
        connection.add_termination_listener(self._on_lost)
        await self.check(connection)

    def take(self, state: DatabaseState) -> None:
        """Take what the database has by now.

        Raises:
            StoreError: it is not the store that was opened.
        """
        if state.identity != self._identity:
            self._failures.lost(_other(state.identity))
        if self._failures.is_lost:
            raise StoreError(self._failures.writing)
        if self._moved_to is not None and state.moved_to > self._moved_to:
            log.error("database went back in time, as another mailserver has noticed moved_to=%d", state.moved_to)
            self._went_back()
        self._moved_to = state.moved_to
        self.seen = max(self.seen, state.newest)

    def is_behind(self, state: DatabaseState) -> bool:
        """Whether the database lacks what was seen."""
        return state.newest < self.seen

    def _on_lost(self, _: DriverConnection) -> None:
        self.generation += 1

    def _went_back(self) -> None:
        self.generation += 1
        self._failures.went_back("database")


def with_staging(setup: Setup) -> Setup:
    """A setup that has a table for what is to be stored, too."""

    async def set_up(connection: DriverConnection) -> None:
        await setup(connection)
        await connection.execute(MAKE_STAGING)

    return set_up


def _other(identity: str | None) -> str:
    what = "no store" if identity is None else f"another store, {identity},"
    return f"there is {what} in the database"
