"""What stores envelopes: it commits what has arrived in groups, and answers when a group is on the database's disk."""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Hashable, Sequence

import asyncpg

from mailserver.errors import StoreError
from mailserver.store.engine.put_queue import ENDED, GROUP_INTERVAL_S, PutQueue, QueuedPut
from mailserver.store.interface import NewEnvelope
from mailserver.store.postgres.connections import DatabaseLink
from mailserver.store.postgres.failures import Refusing, StoreFailures, Unreachable, explain
from mailserver.store.postgres.insertion import insert_group
from mailserver.store.postgres.others import PostgresOthers, Rows
from mailserver.store.postgres.partitions import Partitions
from mailserver.store.postgres.presence import Presence

GROUP_TIMEOUT_S = 15.0
"""How long a group may take, with all that it waits for; then whoever waits is told that it is not stored."""

TELL_TIMEOUT_S = 1.0
"""How long it may take to tell the others of a group: meanwhile nothing is stored."""


class PostgresWriter:
    """Queues envelopes, and commits them in groups on a connection of its own."""

    def __init__(
        self,
        link: DatabaseLink,
        failures: StoreFailures,
        presence: Presence,
        others: PostgresOthers,
        on_stored: Callable[[int], None],
    ) -> None:
        """Write to a database.

        Args:
            presence: is told which rows there are.
            others: who is told of live envelopes that were stored.
            on_stored: called with how many envelopes were in a group that was stored.
        """
        self._link = link
        self._presence = presence
        self._others = others
        self._on_stored = on_stored
        self._failures = failures
        self._partitions = Partitions("envelopes")
        self._arrived = asyncio.Event()
        self._queue = PutQueue(self._arrived.set)

    async def put(self, envelopes: Sequence[NewEnvelope], source: Hashable = None, *, is_live: bool = False) -> None:
        """Store envelopes; return once they are on disk.

        Raises:
            StoreError: some or all of them are not stored, or perhaps are not; or there is a hold; or it is closing.
        """
        await self._queue.put(envelopes, source, is_live=is_live)

    def hold(self, why: str) -> None:
        """Refuse every `put` from now on, for this reason; "": take envelopes again."""
        self._queue.held = why

    @property
    def held(self) -> str:
        """Why every `put` is refused; "" if none is."""
        return self._queue.held

    @property
    def queued(self) -> tuple[int, int]:
        """How many envelopes wait to be committed or are being committed, and their bytes."""
        return self._queue.queued

    def close(self) -> None:
        """Refuse everything from now on; `run` commits what is queued, and returns."""
        self._queue.close()
        self._arrived.set()

    async def run(self) -> None:
        """Commit groups until the writer is closed and nothing is queued."""
        loop = asyncio.get_running_loop()
        next_start = loop.time()
        try:
            while True:
                await self._arrived.wait()
                if self._queue.is_empty:
                    if self._queue.closing:
                        return
                    self._arrived.clear()
                    continue
                await self._queue.until_full(next_start)
                next_start = loop.time() + GROUP_INTERVAL_S
                live = await self._commit_group(self._queue.take_group())
                if live is not None:
                    await self._tell(live)
        finally:
            self.close()
            self._queue.end()

    async def _commit_group(self, group: Sequence[QueuedPut]) -> Rows | None:
        """Commit a group, and say so to those who wait for it; return the rows of what is live and new."""
        parts = sorted(group, key=lambda part: not part.is_live)  # live ones first, else in their order
        envelopes = [*itertools.chain.from_iterable(part.envelopes for part in parts)]
        live = sum(len(part.envelopes) for part in parts if part.is_live)
        rows = None
        failure: StoreError | None = StoreError(ENDED)  # in case this is cancelled, or fails by a bug of ours
        try:
            if self._failures.is_lost or (self._queue.closing and self._failures.is_unreachable):
                raise StoreError(self._failures.writing)  # whoever stops does not wait for a database
            async with asyncio.timeout(GROUP_TIMEOUT_S):
                inserted = await self._link.run(
                    lambda connection: insert_group(connection, envelopes, self._partitions, live)
                )
            failure, rows = None, inserted.live
            self._presence.seen = max(self._presence.seen, inserted.last)
            self._failures.stored()
            self._on_stored(len(envelopes))
        except (asyncpg.PostgresError, TimeoutError) as error:
            self._failures.failed_to_store(len(envelopes), explain(error))
            failure = _failure(len(envelopes), explain(error), error)
        except Refusing as error:  # others may reach it: only what is stored shows that this is over
            self._failures.failed_to_store(len(envelopes), str(error))
            failure = _failure(len(envelopes), str(error), error)
        except Unreachable as error:
            self._failures.reached(str(error))
            failure = _failure(len(envelopes), str(error), error)
        except StoreError as error:
            failure = error.with_traceback(None)
        finally:
            self._queue.settle(group, failure)
        return rows

    async def _tell(self, rows: Rows) -> None:
        """Tell the others. If the connection is lost, or slow, they miss it."""
        if not self._others.are_there:
            return
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(TELL_TIMEOUT_S):
                await self._link.run(lambda connection: self._others.tell(connection, rows))


def _failure(envelopes: int, cause: str, error: BaseException) -> StoreError:
    failure = StoreError(f"cannot store {envelopes} envelopes: {cause}")
    # Its traceback refers to the group, and the group to this failure: see store.sqlite.writer.
    failure.__cause__ = error.with_traceback(None)
    return failure
