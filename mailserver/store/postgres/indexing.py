"""When message ids are indexed: some seconds after they were stored, or at once if anybody waits for it."""

import asyncio
import contextlib

import asyncpg

from mailserver.errors import StoreError
from mailserver.store.engine.index_wait import INDEX_INTERVAL_S, INDEX_RETRY_S, IndexWait
from mailserver.store.engine.put_queue import CLOSING
from mailserver.store.postgres.connections import DatabaseLink
from mailserver.store.postgres.failures import StoreFailures, explain
from mailserver.store.postgres.id_index import advance, give_up
from mailserver.store.postgres.partitions import Partitions

LOOK_INTERVAL_S = 30.0
"""How often to look whether another mailserver has stored anything and not indexed it."""


class Indexing:
    """Indexes batches on a connection of its own."""

    def __init__(self, link: DatabaseLink, failures: StoreFailures, network_topic: str) -> None:
        self._link = link
        self._failures = failures
        self._network_topic = network_topic
        self._partitions = Partitions("ids")
        self._wait = IndexWait()
        self._stirred = asyncio.Event()
        self._closing = False
        self.unindexed = 1  # so that the index is looked at
        """How many envelopes may not be indexed yet."""

    def on_stored(self, envelopes: int) -> None:
        """So many envelopes were stored."""
        if not self.unindexed:
            self._wait.put_off(asyncio.get_running_loop().time())
        self.unindexed += envelopes
        self._stirred.set()

    async def moves(self) -> None:
        """Wait until a batch was indexed, or could not be. Meanwhile no batch is put off.

        Raises:
            StoreError: the store is closing.
        """
        if not self._closing:
            self._stirred.set()
            await self._wait.next_move()
        if self._closing:
            raise StoreError(CLOSING)

    async def give_up(self, goal: int) -> None:
        """Have the store indexed anew, if the rows up to this one are said to be.

        Raises:
            StoreError: the database could not.
        """
        try:
            await self._link.run(lambda connection: give_up(connection, goal))
        except asyncpg.PostgresError as error:
            raise StoreError(f"cannot write the store: {explain(error)}") from error
        self.on_stored(1)

    async def run(self) -> None:
        """Index what there is until this is cancelled."""
        try:
            while True:
                pause = await self._batch()
                self._wait.moved()
                await asyncio.sleep(pause)
                await self._until_due()
        finally:
            self._closing = True
            self._wait.moved()

    async def _batch(self) -> float:
        """Index a batch; return for how long to leave the event loop and the database to others."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            self.unindexed = await self._link.run(
                lambda connection: advance(connection, self._network_topic, self._partitions)
            )
        except asyncpg.LockNotAvailableError:  # somebody compares ids, and is let through
            return INDEX_INTERVAL_S
        except asyncpg.PostgresError as error:
            self._failures.indexed_or(explain(error))
        except StoreError:  # it is unreachable, or another: everybody is told
            pass
        else:
            self._failures.indexed_or("")
            return loop.time() - began if self.unindexed else INDEX_INTERVAL_S
        return INDEX_RETRY_S

    async def _until_due(self) -> None:
        """Wait until the next batch is due: when what waits has waited long enough, or somebody waits for it."""
        loop = asyncio.get_running_loop()
        next_look = loop.time() + LOOK_INTERVAL_S
        while loop.time() < (due := self._wait.due if self._wait.is_awaited or self.unindexed else next_look):
            self._stirred.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._stirred.wait()
