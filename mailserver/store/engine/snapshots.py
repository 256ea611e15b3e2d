"""Reading the store as it was at one moment, whatever is written meanwhile, in steps between which others are served.

There are few connections for this, each with a thread, and whoever wants one waits for its turn. Its thread opens a
transaction, and reads in steps of some milliseconds. Each step waits for a turn of the readers
(`store.sqlite.reader_pool`), and is paid for as a statement is. Between two of them the thread waits.

As long as a transaction is open, the WAL cannot be started anew. So none lasts longer than SNAPSHOT_S. If the WAL must
be started anew and cannot, no other begins until it was: several of them, one after the other, could leave no gap.
"""

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from mailserver.errors import StoreError
from mailserver.store.engine import work as costs
from mailserver.store.engine.fair_pool import FairPool
from mailserver.store.interface import Payer
from mailserver.store.message_ids import StoreBusy

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


class StatementResult(Protocol):
    """What a statement has found."""

    def fetchone(self) -> Any: ...


class SnapshotConnection(Protocol):
    """A connection that only reads, in the thread that it is for."""

    def execute(self, sql: str, parameters: Sequence[Any] = (), /) -> StatementResult:
        """Run a statement; "BEGIN" begins to see the store as it is at one moment, and "ROLLBACK" ends that."""


class SnapshotWorker(Protocol):
    """A connection, and its thread."""

    async def run(self, work: Callable[[Any], R]) -> R:
        """Do some work with the connection, in its thread. Once begun it runs to its end."""


class ReadFailures(Protocol):
    """What is remembered of what goes wrong."""

    @property
    def read_errors(self) -> tuple[type[Exception], ...]:
        """What a connection raises if it cannot read."""

    def not_read(self, error: Any) -> str:
        """Something could not be read; return why."""


class ReaderTurns(Protocol):
    """The readers of a store, as one payer uses them: work of his waits for its turn."""

    @property
    def payer(self) -> Payer: ...

    def turn(self, work: int) -> contextlib.AbstractAsyncContextManager[None]:
        """A turn for so much work at most."""

    def correct(self, work: int) -> None:
        """Charge so much more; less if below 0."""


class _Stopped(Exception):
    """Nobody waits for the thread's work any more."""


class SnapshotReader:
    """What reads on a snapshot's thread: statements, and when to pause."""

    def __init__(self, connection: SnapshotConnection, pause: Callable[[], None]) -> None:
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

    def __init__(self, worker: SnapshotWorker, work: Work[R]) -> None:
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

    def _run(self, work: Work[R], connection: SnapshotConnection) -> R:
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

    def __init__(self, worker: SnapshotWorker, readers: ReaderTurns, failures: ReadFailures) -> None:
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
        except self._failures.read_errors as error:
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
    """The connections, and who waits for one. An engine makes them."""

    def __init__(self, workers: Sequence[SnapshotWorker], failures: ReadFailures) -> None:
        self._pool = FairPool(workers)
        self._failures = failures
        self._waiting: Counter[Hashable] = Counter()
        self._seats: set[Seat] = set()
        self._closing = False
        self._may_begin = asyncio.Event()
        self._may_begin.set()
        self._way_made: asyncio.TimerHandle | None = None

    @contextlib.asynccontextmanager
    async def seat(self, readers: ReaderTurns) -> AsyncIterator[Seat]:
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

    async def _take(self, payer: Payer) -> SnapshotWorker:
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

    async def _turn(self, payer: Payer) -> SnapshotWorker:
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
