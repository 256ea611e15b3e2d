"""What several mailservers on one database tell each other: which live envelopes each has stored.

After a group is committed, whoever stored it sends a notification with the numbers of its live rows (NOTIFY). These
follow each other, as they are assigned under Lock.COMMIT. The others read these rows. Nobody is told of what is not
live: what was fetched from other mailservers, or moved.

The notification is a transaction of its own. In that of the rows, it would hold a lock of the whole server's, which all
that notify wait for, until the rows are on disk; and a full queue of notifications, which a session of another program
can cause, would have nothing stored any more. So it may be lost, if the mailserver dies in between.

Each says every few seconds that it is there. Who is alone tells nobody anything: it would cost 0.2 ms of CPU a group.
"""

import asyncio
import contextlib
import logging
import math
import re
import secrets
from collections import deque
from collections.abc import AsyncIterator
from typing import NamedTuple

import asyncpg

from mailserver.errors import StoreError
from mailserver.metrics.figures import DatabaseFigures
from mailserver.store.engine.put_queue import MAX_GROUP_ROWS
from mailserver.store.interface import Raws
from mailserver.store.postgres.connections import RETRY_S, DatabaseLink, DriverConnection, Setup
from mailserver.store.postgres.failures import StoreFailures, explain
from mailserver.store.postgres.schema import LOCK_CLASS, Lock

log = logging.getLogger(__name__)

MAX_BEHIND = 16_384
"""How many envelopes of others may wait to be read: as many as the feed holds. Beyond this, the oldest are left out."""

READ_ROWS = 256
READ_BYTES = 256 * 1024
"""How much is read at once: what is judged at once. One envelope may be longer."""

HELLO_INTERVAL_S = 10.0
"""How often each says that it is there; so it also notices that its connection is not."""

ALONE_AFTER_S = 30.0
"""Who has heard nothing for so long is alone. Whoever has just begun to listen waits for as long to know."""

_TOKEN_BYTES = 8
_SAID = re.compile("([0-9a-f]{16})(?: ([0-9]{1,18}) ([0-9]{1,18}))?")
"""The token of whoever says it: by itself, or with the numbers of the first row and the last."""

_SAY = "SELECT pg_notify($1, $2)"
_READ = f"""
    SELECT max(seq), string_agg(raw, ''::bytea ORDER BY seq), array_agg(size ORDER BY seq) FROM (
        SELECT *, sum(size) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) AS total FROM (
            SELECT seq, raw, octet_length(raw) AS size FROM envelopes
            WHERE seq >= $1 AND seq <= $2 ORDER BY seq LIMIT {READ_ROWS}
        ) AS following
    ) AS summed
    WHERE total - size < {READ_BYTES}
"""


_FIGURES = f"""
    SELECT (SELECT sum(numbackends)::int FROM pg_stat_database),
        current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
        (
            SELECT count(*)::int FROM pg_locks
            WHERE locktype = 'advisory' AND NOT granted AND objsubid = 2
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                AND classid::bigint BETWEEN {LOCK_CLASS} + {min(Lock)} AND {LOCK_CLASS} + {max(Lock)}
                AND objid = current_schema()::regnamespace::oid
        ),
        pg_notification_queue_usage(),
        (SELECT count(*)::int FROM pg_inherits WHERE inhparent = 'envelopes'::regclass) - 1
"""


class Rows(NamedTuple):
    """The rows from one number to another, both inclusive; some numbers in between may have none."""

    first: int
    last: int

    @property
    def size(self) -> int:
        """How many there are at most; 0 or less if there are none."""
        return self.last - self.first + 1


class PostgresOthers:
    """A `store.others.Others`. Made by `open_others`."""

    def __init__(self, url: str, identity: str, failures: StoreFailures, setup: Setup) -> None:
        self._setup = setup
        self._link = DatabaseLink(url, failures, self._listen)
        self._channel = f"waku_mailserver_{identity}"
        self._token = secrets.token_hex(_TOKEN_BYTES)
        self._heard_at = -math.inf
        self._rows: deque[Rows] = deque()
        self._behind = 0
        self._has_rows = asyncio.Event()
        self._lost = asyncio.Event()
        self._lost_at: float | None = None
        self._has_begun = False
        self.missed = self.outages = 0

    async def begin(self) -> None:
        """Listen, if that is possible at the moment."""
        await self._say_hello()
        self._has_begun = True

    async def run(self) -> None:
        """Keep listening: whenever the connection is lost, make another, and go on with what comes then."""
        while True:
            if not await self._say_hello():
                await asyncio.sleep(RETRY_S)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HELLO_INTERVAL_S):
                    await self._lost.wait()

    async def read(self) -> list[bytes]:
        """Wait for live envelopes of others, and read some; none if there was an outage and nothing has come since."""
        await self._has_rows.wait()
        if not self._rows:
            self._has_rows.clear()
            return []
        rows = self._take()
        try:
            last, raws, sizes = await self._link.run(lambda connection: connection.fetchrow(_READ, *rows))
        except (asyncpg.PostgresError, StoreError):  # then go on with what comes when it can be read again
            self.missed += rows.size
            while self._rows:
                self.missed += self._take().size
            return []
        if last is not None and last < rows.last:
            self._put_back(Rows(last + 1, rows.last))
        return Raws(raws or b"", sizes or ()).split()

    @property
    def are_there(self) -> bool:
        """Whether anybody else may be on the database."""
        return asyncio.get_running_loop().time() < self._heard_at + ALONE_AFTER_S

    async def figures(self) -> DatabaseFigures:
        """How the database is."""
        try:
            row = await self._link.run(lambda connection: connection.fetchrow(_FIGURES))
        except asyncpg.PostgresError as error:
            raise StoreError(explain(error)) from error
        connections, most, lock_waits, queue, partitions = row
        return DatabaseFigures(connections, most, lock_waits, queue, partitions, self._behind)

    async def tell(self, connection: DriverConnection, rows: Rows) -> None:
        """Tell the others of live rows of ours, which are committed. Nobody is told if that is not possible."""
        try:
            await connection.execute(_SAY, self._channel, f"{self._token} {rows.first} {rows.last}")
        except asyncpg.PostgresError as error:
            log.warning("other mailservers not told of live envelopes error=%r", explain(error))

    async def close(self) -> None:
        """Close the connection."""
        await self._link.close()

    async def _say_hello(self) -> bool:
        """Say that we are there, by a new connection if need be; return whether it could be said."""
        self._lost.clear()
        try:
            await self._link.run(lambda connection: connection.execute(_SAY, self._channel, self._token))
        except (asyncpg.PostgresError, StoreError):  # it is unreachable, or another: everybody is told
            return False
        return True

    async def _listen(self, connection: DriverConnection) -> None:
        await self._setup(connection)
        await connection.add_listener(self._channel, self._on_said)
        connection.add_termination_listener(self._on_lost)
        now = self._heard_at = asyncio.get_running_loop().time()
        if self._has_begun:
            self.outages += 1
            self._has_rows.set()  # so that whoever reads sees it
        if self._lost_at is not None:
            seconds, self._lost_at = now - self._lost_at, None
            log.warning("live envelopes of other mailservers may have been missed seconds=%.1f", seconds)

    def _on_lost(self, _: DriverConnection) -> None:
        if self.are_there:
            self._lost_at = asyncio.get_running_loop().time()
        self._lost.set()

    def _on_said(self, _: DriverConnection, __: int, ___: str, said: object) -> None:
        """Take a notification. Whoever may connect to the database can send one: it is believed only in its form."""
        found = _SAID.fullmatch(said) if isinstance(said, str) else None
        if found is None or found[1] == self._token:
            return
        self._heard_at = asyncio.get_running_loop().time()
        if found[2] is None:
            return
        rows = Rows(int(found[2]), int(found[3]))
        if not 0 < rows.size <= MAX_GROUP_ROWS:
            return
        self._rows.append(rows)
        self._behind += rows.size
        self._has_rows.set()
        while self._behind > MAX_BEHIND:
            self.missed += self._take().size

    def _take(self) -> Rows:
        rows = self._rows.popleft()
        self._behind -= rows.size
        if not self._rows:
            self._has_rows.clear()
        return rows

    def _put_back(self, rows: Rows) -> None:
        self._rows.appendleft(rows)
        self._behind += rows.size
        self._has_rows.set()


@contextlib.asynccontextmanager
async def open_others(url: str, identity: str, failures: StoreFailures, setup: Setup) -> AsyncIterator[PostgresOthers]:
    """Have what hears of the others, and is heard by them; close its connection at the end."""
    others = PostgresOthers(url, identity, failures, setup)
    try:
        yield others
    finally:
        await others.close()
