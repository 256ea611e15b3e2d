"""The side of the worker that writes the store: it takes what the others put, and tells each what is live.

A worker is confirmed what is on disk. What it puts is told to all others, and what is put here, once it is stored, even
if it has gone by then: it was not confirmed, but whoever stores it again finds it known, and relays it to nobody.
Whatever a worker does, it costs itself: not more of it waits than the bounds say.
"""

import asyncio
import logging
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from mailserver.errors import DecodeError, MailserverError, StoreError
from mailserver.feed_socket.frames import FeedEnvelope, FrameReader, Missed, Stored, cut_batches
from mailserver.net.pipe import Pipe
from mailserver.net.unix_socket import bind_private
from mailserver.store.interface import NewEnvelope
from mailserver.worker_socket.frames import OF_WORKER, WORKERS_FILE, Index, NotStored, OfWorker, Put
from mailserver.worker_socket.live_queue import LiveQueue

log = logging.getLogger(__name__)

MAX_ASKED_AT_ONCE = 4096
MAX_PUT_BYTES_AT_ONCE = 16 * 1024 * 1024
"""How much of one worker may wait for the disk: what all of its peers may have waiting. With the request that reaches
this, no more are read."""

WRITE_TIMEOUT_S = 20.0
"""How long a full write buffer may take to shrink, as for peers."""


class WrittenStore(Protocol):
    """The store, as this process writes it."""

    async def put(self, envelopes: Sequence[NewEnvelope], source: Hashable = None, *, is_live: bool = False) -> None:
        """Store envelopes; return once they are on disk. Live ones are told, too (`WriterServer.tell`)."""

    async def touch(self) -> None:
        """Commit a change without content."""

    async def index_moves(self) -> None:
        """Wait until more message ids may be indexed."""

    async def index_anew(self, until_seq: int) -> None:
        """Have all message ids indexed anew."""


class PutSource(NamedTuple):
    """Who has put envelopes, as the store takes turns: a worker, and one of its peers."""

    worker: object
    peer: int


class _Gone(MailserverError):
    """A worker has gone."""


class WriterServer:
    """Takes what other workers put, while it is open. `others` hears of their live envelopes."""

    def __init__(self, store: WrittenStore) -> None:
        self.others = LiveQueue()
        self._store = store
        self._server: asyncio.Server | None = None
        self._serving: dict[asyncio.Task[None], _Worker] = {}
        self._stopped = False

    async def start(self, data_dir: Path) -> None:
        """Listen in the data directory.

        Raises:
            StartupError: the socket cannot be created.
        """
        bound = bind_private(data_dir / WORKERS_FILE)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: Pipe(self._on_connected), sock=bound)

    async def stop(self) -> None:
        """Take nothing more, and hang up. What is not confirmed may be stored or not."""
        self._stopped = True
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)

    def tell(self, envelopes: Sequence[NewEnvelope], source: Hashable = None) -> None:
        """Tell all others of live envelopes that are on disk. `source`: a `PutSource`, or somebody of this process."""
        origin = source.worker if isinstance(source, PutSource) else None
        told = [FeedEnvelope(envelope.hash, envelope.raw) for envelope in envelopes]
        for worker in self._serving.values():
            if worker is not origin:
                worker.live.add(told)
        if origin is not None:
            self.others.add(told)

    def _on_connected(self, pipe: Pipe) -> None:
        if self._stopped:  # it was accepted just before
            pipe.abort()
            return
        worker = _Worker(pipe, self._store)
        task = asyncio.create_task(self._serve(worker), name="worker")
        self._serving[task] = worker
        task.add_done_callback(self._on_served)

    def _on_served(self, task: asyncio.Task[None]) -> None:
        del self._serving[task]
        if not task.cancelled() and task.exception() is not None:  # a fault of ours: it ends no more than this
            log.error("internal error in serving a worker", exc_info=task.exception())

    async def _serve(self, worker: "_Worker") -> None:
        try:
            await worker.run()
        except* _Gone as group:
            log.debug("worker hung up cause=%r", str(group.exceptions[0]))
        finally:
            worker.pipe.abort()


class _Worker:
    """One connected worker. `live`: what it is still to be told."""

    def __init__(self, pipe: Pipe, store: WrittenStore) -> None:
        self.pipe = pipe
        self.live = LiveQueue()
        self._store = store
        self._asked = self._asked_bytes = 0
        self._answered = asyncio.Event()

    async def run(self) -> None:
        """Serve it until it goes.

        Raises:
            ExceptionGroup: of _Gone.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send_live())
            tasks.create_task(self._notice_end())
            await self._take(tasks)

    async def _send_live(self) -> None:
        told = 0
        while True:
            envelopes = await self.live.take()
            if self.live.missed > told:
                self.pipe.write([Missed(self.live.missed - told).encode()])
                told = self.live.missed
            for batch in cut_batches(envelopes):
                self.pipe.write([batch.encode()])
                await self._drain()

    async def _notice_end(self) -> None:
        await self.pipe.closed()
        raise _Gone("it has ended")

    async def _take(self, tasks: asyncio.TaskGroup) -> None:
        """Take what it asks, as much at once as the bounds allow."""
        reader: FrameReader[OfWorker] = FrameReader(OF_WORKER)
        while data := await self.pipe.read():
            try:
                frames = reader.receive_data(data)
            except DecodeError as error:
                raise _Gone(str(error)) from error
            for frame in frames:
                while self._asked >= MAX_ASKED_AT_ONCE or self._asked_bytes >= MAX_PUT_BYTES_AT_ONCE:
                    self._answered.clear()
                    await self._answered.wait()
                size = _size(frame)
                self._asked += 1
                self._asked_bytes += size
                tasks.create_task(self._answer(frame, size))
        raise _Gone("it hung up")

    async def _answer(self, frame: OfWorker, size: int) -> None:
        try:
            answer: Stored | NotStored = Stored(frame.request_id)
            try:
                await self._do(frame)
            except StoreError as error:
                answer = NotStored(frame.request_id, str(error))
            self.pipe.write([answer.encode()])
            await self._drain()
        finally:
            self._asked -= 1
            self._asked_bytes -= size
            self._answered.set()

    async def _do(self, frame: OfWorker) -> None:
        if isinstance(frame, Index):
            if frame.anew_until:
                await self._store.index_anew(frame.anew_until)
            await self._store.index_moves()
        elif not frame.envelopes:
            await self._store.touch()
        else:
            await self._store.put(frame.envelopes, PutSource(self, frame.source), is_live=frame.is_live)

    async def _drain(self) -> None:
        """If the write buffer is full, wait until the worker has read enough of it."""
        if self.pipe.is_full:
            try:
                async with asyncio.timeout(WRITE_TIMEOUT_S):
                    await self.pipe.drain()
            except TimeoutError as error:
                raise _Gone(f"it read nothing for {WRITE_TIMEOUT_S:g} s") from error


def _size(frame: OfWorker) -> int:
    return sum(len(envelope.raw) for envelope in frame.envelopes) if isinstance(frame, Put) else 0
