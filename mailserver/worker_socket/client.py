"""The side of a worker that does not write the store: it has the one that does store for it.

What it is told is stored is on disk. While the writer cannot be reached, nothing is stored, and nobody is confirmed
anything; it is connected to again as soon as it is back.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from pathlib import Path

from mailserver.errors import DecodeError, StoreError
from mailserver.feed_socket.frames import Envelopes, FrameReader, Missed, Stored
from mailserver.net.pipe import Pipe
from mailserver.net.unix_socket import short_path
from mailserver.store.interface import NewEnvelope
from mailserver.worker_socket.frames import OF_WRITER, WORKERS_FILE, Index, NotStored, OfWorker, Put, cut_puts
from mailserver.worker_socket.live_queue import LiveQueue

log = logging.getLogger(__name__)

RETRY_S = 0.05
"""How long to wait before connecting again. A writer that was killed is back within a second."""

CONNECT_LIMIT_S = 10.0
"""How long a start waits for the writer. Then peers are served, and not confirmed."""

_GONE = "the worker that stores for all is not there"
_FIRST_PEER = 1


class RemoteWriter:
    """A `store.sqlite.followed.WriterElsewhere`. `run` has to run."""

    def __init__(self, data_dir: Path) -> None:
        self.others = LiveQueue()
        self._path = data_dir / WORKERS_FILE
        self._pipe: Pipe | None = None
        self._request_ids = itertools.count()
        self._asked: dict[int, asyncio.Future[str]] = {}  # the answer: why it was not done
        self._envelopes = self._bytes = 0
        self._connected = asyncio.Event()
        self._lost: Callable[[str], None] = lambda _: None
        self._found: Callable[[], None] = lambda: None

    def watch(self, *, lost: Callable[[str], None], found: Callable[[], None]) -> None:
        """Call these when the writer has gone, and why, and when it is back."""
        self._lost, self._found = lost, found

    async def run(self) -> None:
        """Stay connected until cancelled."""
        try:
            while True:
                await self._connect()
                self._lost(_GONE)
                await asyncio.sleep(RETRY_S)
        finally:
            self._end()

    async def until_connected(self) -> None:
        """Wait until the writer is there, CONNECT_LIMIT_S at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONNECT_LIMIT_S):
                await self._connected.wait()

    @property
    def queued(self) -> tuple[int, int]:
        """How many envelopes wait for the writer, and their bytes."""
        return self._envelopes, self._bytes

    async def put(self, envelopes: Sequence[NewEnvelope], source: Hashable, *, is_live: bool) -> None:
        """Store envelopes; return once they are on disk.

        Args:
            source: the number of a peer, or None.
        Raises:
            StoreError: some or all of them are not stored, as far as is known.
        """
        number = source + _FIRST_PEER if isinstance(source, int) else 0
        size = sum(len(envelope.raw) for envelope in envelopes)
        self._envelopes += len(envelopes)
        self._bytes += size
        try:
            asked = (self._ask(Put(next(self._request_ids), number, is_live, part)) for part in cut_puts(envelopes))
            for failure in await asyncio.gather(*asked, return_exceptions=True):
                if failure is not None:
                    raise failure
        finally:
            self._envelopes -= len(envelopes)
            self._bytes -= size

    async def touch(self) -> None:
        """Commit a change without content.

        Raises:
            StoreError: nothing can be stored now.
        """
        await self._ask(Put(next(self._request_ids), 0, is_live=False, envelopes=()))

    async def index_moves(self) -> None:
        """Wait until more message ids may be indexed.

        Raises:
            StoreError: the writer has gone.
        """
        await self._ask(Index(next(self._request_ids)))

    async def index_anew(self, until_seq: int) -> None:
        """Have all message ids indexed anew.

        Raises:
            StoreError: it could not be written.
        """
        await self._ask(Index(next(self._request_ids), until_seq))

    async def _ask(self, frame: OfWorker) -> None:
        pipe = self._pipe
        if pipe is None:
            raise StoreError(_GONE)
        answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._asked[frame.request_id] = answered
        try:
            pipe.write([frame.encode()])
            if pipe.is_full:
                await pipe.drain()
            cause = await answered
        finally:
            del self._asked[frame.request_id]
        if cause:
            raise StoreError(cause)

    async def _connect(self) -> None:
        """Connect, and take what comes until the writer has gone."""
        try:
            with short_path(self._path) as path:
                _, pipe = await asyncio.get_running_loop().create_unix_connection(Pipe, path)
        except OSError:
            return
        try:
            self._pipe = pipe
            if self._connected.is_set():
                self.others.note_outage()  # what was put meanwhile is not told any more
            self._connected.set()
            self._found()
            await self._read(pipe)
        except DecodeError as error:
            log.error("writer of the store not understood error=%r", str(error))
        finally:
            pipe.abort()
            self._end()

    async def _read(self, pipe: Pipe) -> None:
        reader = FrameReader(OF_WRITER)
        while data := await pipe.read():
            for frame in reader.receive_data(data):
                match frame:
                    case Envelopes(envelopes=envelopes):
                        self.others.add(envelopes)
                    case Missed(count=count):
                        self.others.missed += count
                    case Stored(request_id=request_id):
                        self._answer(request_id, "")
                    case NotStored(request_id=request_id, cause=cause):
                        self._answer(request_id, cause or "it was not stored")

    def _answer(self, request_id: int, cause: str) -> None:
        """Tell whoever has asked, if he still waits."""
        answered = self._asked.get(request_id)
        if answered is not None and not answered.done():
            answered.set_result(cause)

    def _end(self) -> None:
        """Forget the connection. What is not answered may be stored or not: nobody is confirmed it."""
        self._pipe = None
        for request_id in self._asked:
            self._answer(request_id, _GONE)


@contextlib.asynccontextmanager
async def open_remote_writer(data_dir: Path) -> AsyncIterator[RemoteWriter]:
    """Have the worker that writes the store of a data directory store for this one while the context is entered."""
    writer = RemoteWriter(data_dir)
    running = asyncio.create_task(writer.run(), name="store writer")
    try:
        await writer.until_connected()
        yield writer
    finally:
        running.cancel()
        await asyncio.wait([running])
