"""Reading the store as it was at one moment, whatever is written meanwhile, in steps between which others are served.

There are few connections for this, each with a thread, and whoever wants one waits for its turn. Its thread opens a
transaction, and reads in steps of some milliseconds. Each step waits for a turn of the readers
(`store.sqlite.reader_pool`), and is paid for as a statement is. Between two of them the thread waits.

As long as a transaction is open, the WAL cannot be started anew. So none lasts longer than SNAPSHOT_S. If the WAL must
be started anew and cannot, no other begins until it was: several of them, one after the other, could leave no gap.
"""

import asyncio
import contextlib
import sqlite3
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from mailserver.errors import StoreError
from mailserver.store.engine import work as costs
from mailserver.store.engine.fair_pool import FairPool
from mailserver.store.interface import Payer
from mailserver.store.message_ids import StoreBusy
from mailserver.store.sqlite.connections import connect_reader
from mailserver.store.sqlite.failures import StoreFailures
from mailserver.store.sqlite.reader_pool import PaidReader
from mailserver.store.sqlite.worker import Worker

SNAPSHOT_S = 10.0
"""How long a seat is held, and so a transaction is open, at most. In this time a flood adds 100 MB to the WAL."""

MAKE_WAY_S = 15.0
"""For how long none begins then, at most: those that are open end, and the writer tries again as the WAL grows."""

WAIT_S = 10.0
"""How long to wait for a seat."""

MAX_WAITING = 16
"""How many of one group wait for a seat at a time."""

STEP_WORK = 10_000
"""How much work a step is: 3 ms. It ends with the statement that reaches this."""

_CLOSING = "the store is closing"

R = TypeVar("R")


class _Stopped(Exception):
    """Nobody waits for the thread's work any more."""


class SnapshotReader:
    """What reads on a snapshot's thread: statements, and when to pause."""

    def __init__(self, connection: sqlite3.Connection, pause: Callable[[], None]) -> None:
        """Read on a connection.

        Args:
            pause: ends a step, and returns when the next one begins.
        """
        self._connection = connection
        self._pause = pause
        self.work = 0
        """What was done in this step."""

    def read(self, sql: str, parameters: Sequence[object] = ()) -> tuple[Any, ...]:
        """Run a statement; return its one row."""
        if self.work >= STEP_WORK:
            self.pause()
        self.work += costs.QUERY
        row: tuple[Any, ...] = self._connection.execute(sql, parameters).fetchone()
        return row

    def spend(self, work: int) -> None:
        """Say how much work there was beside running statements."""
        self.work += work

    def pause(self) -> None:
        """End the step."""
        self._pause()
        self.work = 0


Work = Callable[[SnapshotReader], R]
"""What is done on a snapshot, in its thread."""


class _Steps(Generic[R]):
    """Work on a worker's thread that goes on one step at a time. The event loop calls all but what says otherwise."""

    def __init__(self, worker: Worker, work: Work[R]) -> None:
        self._loop = asyncio.get_running_loop()
        self._go_on = threading.Semaphore(0)
        self._is_stopped = False
        self._ended: asyncio.Future[None] | None = None
        self._spent = 0
        self.result = asyncio.ensure_future(worker.run(partial(self._run, work)))
        self.result.add_done_callback(self._end)

    async def step(self) -> int:
        """Let the thread do a step; return how much work it was."""
        self._ended = self._loop.create_future()
        self._go_on.release()
        await self._ended
        return self._spent

    def stop(self) -> None:
        """Let the thread end as soon as its step does."""
        self._is_stopped = True
        self._go_on.release()

    def _end(self, _: object = None) -> None:
        """A step has ended, or all has."""
        if self.result.done() and not self.result.cancelled():
            self.result.exception()  # perhaps nobody wants to know it any more
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def _run(self, work: Work[R], connection: sqlite3.Connection) -> R:
        """In the thread: do the work in one transaction, which its first statement begins."""
        reader = SnapshotReader(connection, lambda: self._pause(reader))
        self._wait()
        connection.execute("BEGIN")
        try:
            return work(reader)
        finally:
            self._spent = reader.work
            connection.execute("ROLLBACK")

    def _pause(self, reader: SnapshotReader) -> None:
        """In the thread: end a step, and wait for the next."""
        self._spent = reader.work
        self._loop.call_soon_threadsafe(self._end)
        self._wait()

    def _wait(self) -> None:
        self._go_on.acquire()
        if self._is_stopped:
            raise _Stopped


class Seat:
    """The use of one connection, for one payer and one piece of work."""

    def __init__(self, worker: Worker, readers: PaidReader, failures: StoreFailures) -> None:
        self._worker = worker
        self._readers = readers
        self._failures = failures
        self._steps: _Steps[Any] | None = None
        self._is_stopped = False
        self.work = 0
        """What was done so far."""

    async def run(self, work: Work[R], after_step: Callable[[], None]) -> R:
        """Do the work on a snapshot of this moment, or of a moment soon after.

        Args:
            after_step: called on the event loop whenever a step has ended.
        Raises:
            StoreError: the store cannot be read, or is closing.
        """
        if self._is_stopped:
            raise StoreError(_CLOSING)
        steps = self._steps = _Steps(self._worker, work)
        most = costs.STATEMENT + STEP_WORK
        while not steps.result.done():
            async with self._readers.turn(most):
                spent = costs.STATEMENT + await steps.step()
            self._readers.correct(spent - most)
            self.work += spent
            after_step()
        try:
            result: R = steps.result.result()
        except sqlite3.Error as error:
            raise StoreError(f"cannot read the store: {self._failures.not_read(error)}") from error
        except _Stopped:
            raise StoreError(_CLOSING) from None
        return result

    def stop(self) -> None:
        """End the work with the step that it is at."""
        self._is_stopped = True
        if self._steps is not None:
            self._steps.stop()

    def when_free(self, done: Callable[[], None]) -> None:
        """Call this as soon as nothing is done any more."""
        if self._steps is None:
            done()
        else:
            self._steps.result.add_done_callback(lambda _: done())


class Snapshots:
    """The connections, and who waits for one. Made by `open_snapshots`."""

    def __init__(self, workers: Sequence[Worker], failures: StoreFailures) -> None:
        self._pool = FairPool(workers)
        self._failures = failures
        self._waiting: Counter[Hashable] = Counter()
        self._seats: set[Seat] = set()
        self._closing = False
        self._may_begin = asyncio.Event()
        self._may_begin.set()
        self._way_made: asyncio.TimerHandle | None = None

    @contextlib.asynccontextmanager
    async def seat(self, readers: PaidReader) -> AsyncIterator[Seat]:
        """Have one connection for at most SNAPSHOT_S.

        Args:
            readers: as those use them who pay for it.
        Raises:
            StoreBusy: too many wait, or no turn comes in time; or the time is over.
            StoreError: the store is closing.
        """
        payer = readers.payer
        worker = await self._take(payer)
        seat = Seat(worker, readers, self._failures)
        self._seats.add(seat)
        bound = asyncio.timeout(SNAPSHOT_S)
        try:
            async with bound:
                yield seat
        except TimeoutError as error:
            if not bound.expired():
                raise
            raise StoreBusy(f"reading the store at one moment took longer than {SNAPSHOT_S:g} s") from error
        finally:
            self._seats.remove(seat)
            self._pool.correct(seat.work - STEP_WORK, payer)
            seat.stop()
            seat.when_free(partial(self._pool.give_back, worker))

    async def _take(self, payer: Payer) -> Worker:
        group = payer.group
        if self._waiting[group] >= MAX_WAITING:
            raise StoreBusy(f"{MAX_WAITING} of the same address wait to read the store at one moment")
        self._waiting[group] += 1
        try:
            async with asyncio.timeout(WAIT_S):
                worker = await self._turn(payer)
        except TimeoutError as error:
            raise StoreBusy(f"no turn to read the store at one moment came within {WAIT_S:g} s") from error
        finally:
            self._waiting[group] -= 1
            if not self._waiting[group]:
                del self._waiting[group]
        if self._closing:
            self._pool.give_back(worker)
            raise StoreError(_CLOSING)
        return worker

    async def _turn(self, payer: Payer) -> Worker:
        while True:
            await self._may_begin.wait()
            worker = await self._pool.take(payer, STEP_WORK)
            if self._may_begin.is_set():
                return worker
            self._pool.correct(-STEP_WORK, payer)
            self._pool.give_back(worker)

    def make_way(self) -> None:
        """The WAL must be started anew, and readers are in the way: begin none for a while."""
        self.go_on()
        if self._seats:
            self._may_begin.clear()
            self._way_made = asyncio.get_running_loop().call_later(MAKE_WAY_S, self._may_begin.set)

    def go_on(self) -> None:
        """Nothing is in the way any more."""
        self._may_begin.set()
        if self._way_made is not None:
            self._way_made.cancel()
            self._way_made = None

    def close(self) -> None:
        """End all work with the step that it is at, and begin none."""
        self._closing = True
        self.go_on()  # whoever waits is told
        for seat in self._seats:
            seat.stop()


@contextlib.asynccontextmanager
async def open_snapshots(path: Path, count: int, failures: StoreFailures) -> AsyncIterator[Snapshots]:
    """Open `count` connections to the store at `path`; close them at the end.

    Raises:
        StoreError: there is no such store, or it cannot be read.
    """
    async with contextlib.AsyncExitStack() as stack:
        workers = []
        for _ in range(count):
            worker = await Worker.start(partial(connect_reader, path), "store-snapshot")
            stack.push_async_callback(worker.close)
            workers.append(worker)
        snapshots = Snapshots(workers, failures)
        stack.callback(snapshots.close)
        yield snapshots
