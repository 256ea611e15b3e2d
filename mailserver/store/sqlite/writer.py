"""The one writer: it commits what has arrived in groups, and answers when a group is on disk."""

import asyncio
import contextlib
import itertools
import sqlite3
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from mailserver.errors import StoreError
from mailserver.store.engine.index_wait import INDEX_INTERVAL_S, INDEX_RETRY_S, IndexWait
from mailserver.store.engine.put_queue import CLOSING, ENDED, GROUP_INTERVAL_S, PutQueue, QueuedPut, fail
from mailserver.store.engine.snapshots import Snapshots
from mailserver.store.interface import NewEnvelope
from mailserver.store.sqlite.failures import StoreFailures
from mailserver.store.sqlite.insertion import insert_group
from mailserver.store.sqlite.log_bound import LogBound, restart_log
from mailserver.store.sqlite.presence import Presence, StoreLost
from mailserver.store.sqlite.wal import wal_file
from mailserver.store.sqlite.worker import ConnectionThread

T = TypeVar("T")
WriterJob = Callable[[sqlite3.Connection], T]
"""Work on the writer's connection, in its thread, that leaves no transaction open."""


class StoreWriter:
    """Queues envelopes, commits them in groups on a connection of its own, and runs jobs in between.

    Message ids are indexed some seconds later, when nothing waits for the disk and no flood lasts, in batches with
    pauses between them (`store.engine.index_wait`).
    """

    def __init__(
        self,
        worker: ConnectionThread,
        path: Path,
        presence: Presence,
        failures: StoreFailures,
        snapshots: Snapshots,
        index: WriterJob[int] = lambda _: 0,
        newest: int = 0,
    ) -> None:
        """Write the store at `path`.

        Args:
            snapshots: those that make way for a WAL that has to be started anew.
            index: indexes a batch of what is stored; returns how many rows are not indexed yet, at most.
            newest: the newest number of a row so far.
        """
        self._worker = worker
        self._presence = presence
        self._log_bound = LogBound(wal_file(path))
        self._failures = failures
        self._snapshots = snapshots
        self._index = index
        self._unindexed = 1  # so that the index is looked at
        self._next_index = 0.0
        self._index_wait = IndexWait()
        self._jobs: deque[tuple[WriterJob[Any], asyncio.Future[Any]]] = deque()
        self._arrived = asyncio.Event()
        self._queue = PutQueue(self._arrived.set)
        self.newest = newest
        """The newest number of a row that is on disk."""
        self.tell: Callable[[Sequence[NewEnvelope], Hashable], None] = lambda envelopes, source: None
        """Called with live envelopes, and who sent them, once they are on disk, whether or not anybody still waits for
        that."""

    async def put(self, envelopes: Sequence[NewEnvelope], source: Hashable = None, *, is_live: bool = False) -> None:
        """Store envelopes; return once they are on disk. Those that are there already are left as they are.

        Args:
            source: who sent them. Those of one source are stored in their order; sources take turns.
        Raises:
            StoreError: some or all of them are not stored, because of the disk, or a hold, or the store is closing.
        """
        await self._queue.put(envelopes, source, is_live=is_live)

    async def between_commits(self, job: WriterJob[T]) -> T:
        """Run a job before the next group is committed. Once begun it runs to its end, even if its caller is cancelled.

        Raises:
            StoreError: SQLite could not do it, or the store is closing.
        """
        if self._queue.closing:
            raise StoreError(CLOSING)
        return await self._queue_job(job)

    def _queue_job(self, job: WriterJob[T]) -> asyncio.Future[T]:
        # Whoever awaits the future must not keep it in a variable: its error would refer to itself by the traceback.
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.append((job, future))
        self._arrived.set()
        return future

    async def check_presence(self) -> None:
        """Check that the store's file was not removed or replaced. If it was, nothing is stored any more.

        Raises:
            StoreError: it was, or the store is closing.
        """
        await self.between_commits(lambda connection: None)

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

    @property
    def unindexed(self) -> int:
        """How many rows are not indexed yet, at most."""
        return self._unindexed

    async def index_moves(self) -> None:
        """Wait until a batch was indexed, or could not be; return at once if all is. Meanwhile no batch is put off.

        Raises:
            StoreError: the store is closing.
        """
        if self._unindexed and not self._queue.closing:
            self._arrived.set()  # it may wait for more envelopes
            await self._index_wait.next_move()
        if self._queue.closing:
            raise StoreError(CLOSING)

    def close(self) -> None:
        """Refuse everything from now on; `run` commits what is queued, and returns."""
        self._queue.close()
        self._arrived.set()
        self._index_wait.moved()

    async def run(self) -> None:
        """Commit groups until the writer is closed and nothing is queued."""
        try:
            await self._run()
        finally:
            self.close()
            self._queue.end()
            for _, future in self._jobs:
                fail(future, StoreError(CLOSING))
            self._jobs.clear()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        next_start = loop.time()
        self._index_wait.put_off(next_start)
        while True:
            await self._index_until_arrival()
            if self._jobs and not self._queue.closing:
                await self._do(*self._jobs.popleft())
            if self._queue.is_empty:
                if self._queue.closing:
                    return
                if not self._jobs:
                    self._arrived.clear()
                continue
            await self._queue.until_full(next_start)
            next_start = loop.time() + GROUP_INTERVAL_S
            await self._commit_group(self._queue.take_group())
            await self._bound_wal()
            now = loop.time()
            if self._unindexed > self._index_wait.may_wait(now) and now >= self._next_index:
                await self._index_batch()

    async def _index_until_arrival(self) -> None:
        """Wait until there is something to do; index batches meanwhile."""
        while self._unindexed and not self._arrived.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(max(self._next_index, self._index_wait.due)):
                    await self._arrived.wait()
            if not self._arrived.is_set():
                await self._index_batch()
        await self._arrived.wait()

    def _count_unindexed(self, rows: int) -> None:
        now = asyncio.get_running_loop().time()
        if not self._unindexed:
            self._index_wait.put_off(now)
        self._index_wait.stored(rows, now)
        self._unindexed += rows

    async def _index_batch(self) -> None:
        """Index a batch. If more is left, the pause is as long as it took: the event loop needs Python's lock, too."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        pause = INDEX_RETRY_S
        try:
            self._unindexed = await self._write(self._index)
            self._failures.indexed(None)
            pause = loop.time() - began if self._unindexed else INDEX_INTERVAL_S
        except sqlite3.Error as error:
            self._failures.indexed(error)
        except StoreLost:  # those who wait for the next transaction are told
            pass
        self._next_index = loop.time() + pause
        self._index_wait.moved()
        await self._bound_wal()

    async def _bound_wal(self) -> None:
        """If the WAL has grown too long, let the next transaction begin at its start."""
        if self._log_bound.is_passed():
            try:
                if await self._write(restart_log):
                    self._snapshots.go_on()
                else:
                    self._snapshots.make_way()
                self._failures.checkpointed(None)
            except sqlite3.Error as error:  # what is committed stays committed; the next transaction says more
                self._failures.checkpointed(error)
            except StoreLost:  # those who wait for the next transaction are told
                pass

    async def _write(self, work: WriterJob[T]) -> T:
        """Do some work on the connection, and check before and after it that the store's file is still there.

        Raises:
            StoreLost: it is not; what was written is lost.
            sqlite3.Error: SQLite could not do it.
        """
        try:
            return await self._worker.run(partial(_while_present, self._presence, work))
        except StoreLost as error:
            self._failures.lost(str(error))
            raise

    async def _do(self, job: WriterJob[T], future: asyncio.Future[T]) -> None:
        if future.done():  # its caller is gone
            return
        failure: StoreError | None = StoreError(ENDED)  # in case this is cancelled, or fails by a bug of ours
        try:
            result = await self._write(job)
            failure = None
            self._count_unindexed(1)  # it may have changed what the index is of
            if not future.done():
                future.set_result(result)
        except sqlite3.Error as error:
            failure = StoreError(f"cannot change the store: {error}")
            failure.__cause__ = error.with_traceback(None)  # as in `_commit_group`
        except StoreLost as error:
            failure = error.with_traceback(None)
        finally:
            if failure is not None:
                fail(future, failure)

    async def _commit_group(self, group: Sequence[QueuedPut]) -> None:
        envelopes = list(itertools.chain.from_iterable(part.envelopes for part in group))
        failure: StoreError | None = StoreError(ENDED)  # in case this is cancelled, or fails by a bug of ours
        try:
            newest = await self._write(lambda connection: insert_group(connection, envelopes))
            failure = None
            if newest is not None:
                self.newest = newest
            self._count_unindexed(len(envelopes))
            self._failures.stored()
        except sqlite3.Error as error:
            cause = self._failures.not_stored(len(envelopes), error)
            failure = StoreError(f"cannot store {len(envelopes)} envelopes: {cause}")
            # The frames of its traceback refer to the group, and the group to this failure: together they would stay in
            # memory until Python looks for cycles.
            failure.__cause__ = error.with_traceback(None)
        except StoreLost as error:
            failure = error.with_traceback(None)
        finally:
            self._queue.settle(group, failure)
        if failure is None:
            for part in group:
                if part.is_live:
                    self.tell(part.envelopes, part.source)


def _while_present(presence: Presence, work: WriterJob[T], connection: sqlite3.Connection) -> T:
    presence.check()  # before any write: an operator who rescues the files that are still open gets whole ones
    result = work(connection)
    presence.check()
    return result
