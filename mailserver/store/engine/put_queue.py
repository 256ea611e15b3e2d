"""What waits to be stored: envelopes in parts that are stored whole, whose turn it is, and who is told.

A writer takes a group of parts, commits it in one transaction, and settles it. Sources take turns, so that none waits
for all that the others have queued.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from mailserver.errors import StoreError
from mailserver.limits.fair_queue import FairQueue
from mailserver.store.interface import NewEnvelope

MAX_GROUP_ROWS = 2000
"""Most rows in one transaction. Every transaction writes most pages of the current day's indexes again, so smaller ones
cost more. Larger ones would delay confirmations by more than 50 ms."""

GROUP_INTERVAL_S = 0.005
"""Least time from the start of one transaction to the next, unless MAX_GROUP_ROWS are waiting. A lone packet does not
wait; in a stream of packets, the disk syncs at most 200 times a second."""

ROW_BYTES = 512
"""What a row costs besides its envelope's bytes. Storing 16 bytes takes nearly as long as storing 500."""

MAX_QUEUED_BYTES = 16 * 1024 * 1024
"""Beyond this, `put` waits for room, unless its source has nothing queued."""

ANSWERED_AT_ONCE = 64
"""How many packets are answered in one turn of the event loop. Each answer seals two frames, and a transaction may hold
2,000 packets."""

CLOSING = "the store is closing"
ENDED = "the store writer has ended"


class QueuedPut(NamedTuple):
    """Envelopes that are stored in one transaction, who sent them, whether they are live, and who waits for that."""

    envelopes: Sequence[NewEnvelope]
    source: Hashable
    is_live: bool
    done: asyncio.Future[None]


class PutQueue:
    """The queue of one writer. It must be closed, and settled to the end."""

    def __init__(self, on_arrival: Callable[[], None]) -> None:
        """Make an empty queue.

        Args:
            on_arrival: called whenever something was queued.
        """
        self._on_arrival = on_arrival
        self._queue: FairQueue[QueuedPut] = FairQueue()
        self._rows = 0
        self._bytes = 0
        self._answers: deque[tuple[asyncio.Future[None], StoreError | None]] = deque()
        self._full = asyncio.Event()
        self._room = asyncio.Event()
        self.closing = False
        self.held = ""
        """Why every `put` is refused; "" if none is."""

    @property
    def queued(self) -> tuple[int, int]:
        """How many envelopes wait to be committed or are being committed, and their bytes."""
        return self._rows, self._bytes

    @property
    def is_empty(self) -> bool:
        """Whether there is no group to take."""
        return self._queue.peek() is None

    async def put(self, envelopes: Sequence[NewEnvelope], source: Hashable, *, is_live: bool = False) -> None:
        """Queue envelopes; return once they are stored. Those of one source are stored in their order.

        Raises:
            StoreError: some or all of them are not stored, because of the store, or a hold, or the writer is closing.
        """
        if self.held:
            raise StoreError(self.held)
        while self._bytes >= MAX_QUEUED_BYTES and source in self._queue and not self.closing:
            self._room.clear()
            await self._room.wait()
        if self.closing:
            raise StoreError(CLOSING)
        if not envelopes:
            return
        if len(envelopes) <= MAX_GROUP_ROWS:
            await self._add(envelopes, source, is_live)
            return
        # A larger packet goes into several transactions, one after the other.
        parts = [envelopes[at : at + MAX_GROUP_ROWS] for at in range(0, len(envelopes), MAX_GROUP_ROWS)]
        await asyncio.gather(*(self._add(part, source, is_live) for part in parts))

    async def until_full(self, deadline: float) -> None:
        """Wait until a whole group is there, or until this moment of the event loop's clock."""
        if self._rows < MAX_GROUP_ROWS and asyncio.get_running_loop().time() < deadline and not self.closing:
            self._full.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._full.wait()

    def take_group(self) -> list[QueuedPut]:
        """Take the next group, which has at least one part; it must be settled."""
        group = [self._queue.take()]
        rows = len(group[0].envelopes)
        while (part := self._queue.peek()) is not None and rows + len(part.envelopes) <= MAX_GROUP_ROWS:
            group.append(self._queue.take())
            rows += len(part.envelopes)
        return group

    def settle(self, group: Iterable[QueuedPut], failure: StoreError | None) -> None:
        """Tell those who wait for a group that it is stored, or why it is not: some of them now, the others soon."""
        is_answering = bool(self._answers)
        for part in group:
            self._rows -= len(part.envelopes)
            self._bytes -= _size(part.envelopes)
            self._answers.append((part.done, failure))
        if self._bytes < MAX_QUEUED_BYTES:
            self._room.set()
        if not is_answering:
            self._answer_some()

    def close(self) -> None:
        """Take nothing from now on; what is queued can still be taken."""
        self.closing = True
        self._full.set()
        self._room.set()

    def end(self) -> None:
        """Refuse what is still queued, which is nothing unless a bug of ours has ended the writer; answer all."""
        self.close()
        self.settle(self._queue, StoreError(ENDED))
        self._queue.clear()
        while self._answers:
            self._answer_some()

    def _add(self, part: Sequence[NewEnvelope], source: Hashable, is_live: bool) -> asyncio.Future[None]:
        # Whoever awaits the future must not keep it in a variable: its error would refer to itself by the traceback.
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        size = _size(part)
        self._queue.add(source, QueuedPut(part, source, is_live, future), size + ROW_BYTES * len(part))
        self._rows += len(part)
        self._bytes += size
        self._on_arrival()
        if self._rows >= MAX_GROUP_ROWS:
            self._full.set()
        return future

    def _answer_some(self) -> None:
        for _ in range(min(ANSWERED_AT_ONCE, len(self._answers))):
            future, failure = self._answers.popleft()
            if failure is not None:
                fail(future, failure)
            elif not future.done():  # else its caller is gone; the envelopes are stored all the same
                future.set_result(None)
        if self._answers:
            asyncio.get_running_loop().call_soon(self._answer_some)


def fail(future: asyncio.Future[Any], failure: StoreError) -> None:
    """Tell whoever waits, if anybody still does."""
    if not future.done():
        future.set_exception(failure)


def _size(envelopes: Sequence[NewEnvelope]) -> int:
    return sum(len(envelope.raw) for envelope in envelopes)
