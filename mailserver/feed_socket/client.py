"""The gateway's side of the feed socket: batches of what is live, and posts; it connects again and again.

What is not taken waits in the daemon, which says when it had to leave something out. Whoever reads the batches is told
of every place where something may be missing, and goes on from the store there.
"""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mailserver.errors import ConnectionLost, DecodeError, MailserverError
from mailserver.feed_socket.frames import (
    FEED_FILE,
    MAX_POSTS_AT_ONCE,
    OF_DAEMON,
    Envelopes,
    FeedEnvelope,
    Frame,
    FrameReader,
    Hello,
    Join,
    Missed,
    Post,
    PostRefusal,
    Refused,
    Role,
    Stored,
    Terms,
)
from mailserver.net.pipe import Pipe
from mailserver.net.unix_socket import short_path
from mailserver.waku.acceptance import MAX_ENVELOPE_BYTES

log = logging.getLogger(__name__)

HELLO_TIMEOUT_S = 10.0
"""How long the daemon may take to accept and to say HELLO."""

FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 5.0
"""How long to wait before connecting again. The wait doubles with each attempt, from the first after a HELLO. A daemon
takes about a second to restart."""

MAX_QUEUED_BYTES = 512 * 1024
"""With so much waiting to be taken, nothing more is read from the socket. It is a few batches: the rest waits in the
daemon's ring, which all gateways share."""

POST_TIMEOUT_S = 10.0
"""How long a post may take, with the wait for others before it."""


class PostUnanswered(MailserverError):
    """No answer to a post came in time. Whether it is stored is not known; to post it again does no harm."""


@dataclass(frozen=True, slots=True)
class FeedGap:
    """Here something may be missing: what was accepted before this, and did not come. Go on from the store.

    All that is accepted after this comes, or there is another FeedGap. What was accepted just before this may not be in
    the store yet: it takes some milliseconds to get there, and longer while the disk is slow.

    `missed`: how many were left out; None if that is not known, because the connection is new.
    """

    missed: int | None

    def and_then(self, other: "FeedGap") -> "FeedGap":
        """Both in one, if nothing came between them."""
        return FeedGap(None if self.missed is None or other.missed is None else self.missed + other.missed)


_Answer = PostRefusal | ConnectionLost | None


class FeedClient:
    """A connection to the daemon that is made again whenever it is lost. `run` has to run.

    `terms`: what the daemon demands of an envelope; None while it cannot be reached.
    """

    def __init__(
        self, data_dir: Path, *, role: Role = Role.GATEWAY, on_change: Callable[[], None] = lambda: None
    ) -> None:
        """Connect to the daemon of a data directory.

        Args:
            role: what we are. Only a gateway is sent what is live.
            on_change: called when `terms` has changed.
        """
        self.terms: Terms | None = None
        self._path = data_dir / FEED_FILE
        self._role = role
        self._on_change = on_change
        self._pipe: Pipe | None = None  # once it has said HELLO
        self._problem = ""  # that was logged last
        self._queue: deque[tuple[FeedEnvelope, ...] | FeedGap] = deque()
        self._queued_bytes = 0
        self._arrived = asyncio.Event()
        self._taken = asyncio.Event()
        self._request_ids = itertools.count()
        self._posts: dict[int, asyncio.Future[_Answer]] = {}
        self._turns = asyncio.Semaphore(MAX_POSTS_AT_ONCE)

    async def run(self) -> None:
        """Stay connected until cancelled."""
        backoff_s = FIRST_BACKOFF_S
        try:
            while True:
                lost = await self._connect()
                if self.terms is not None:
                    backoff_s = FIRST_BACKOFF_S
                    log.warning("feed lost cause=%s", lost)
                elif lost.cause != self._problem:
                    log.warning("feed not reached cause=%s", lost)
                self._problem = lost.cause
                self._end(lost)
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)
        finally:
            self._end(ConnectionLost(None, "the gateway is stopping"))

    async def next(self) -> tuple[FeedEnvelope, ...] | FeedGap:
        """Wait for what comes next: some envelopes, in the order in which they were accepted, or a FeedGap.

        The first is a FeedGap. What is not taken in time is left out, with a FeedGap in its place. Nobody may wait for
        `post` between two calls of this: answers come behind what waits to be taken.
        """
        while not self._queue:
            self._arrived.clear()
            await self._arrived.wait()
        return self._take()

    def next_envelopes(self) -> tuple[FeedEnvelope, ...]:
        """What `next` would return at once, if these are envelopes; nothing otherwise."""
        if not self._queue or isinstance(self._queue[0], FeedGap):
            return ()
        taken = self._take()
        assert not isinstance(taken, FeedGap), "it was looked at"
        return taken

    def _take(self) -> tuple[FeedEnvelope, ...] | FeedGap:
        taken = self._queue.popleft()
        self._queued_bytes -= _size(taken)
        self._taken.set()
        return taken

    async def post(self, raw: bytes) -> PostRefusal | None:
        """Have an envelope stored and relayed; return None once it is on disk, or why it is not stored.

        Raises:
            ConnectionLost: the daemon cannot be reached, or has gone before it answered: post it again later.
            PostUnanswered: it did not answer within POST_TIMEOUT_S.
        """
        if len(raw) > MAX_ENVELOPE_BYTES:  # it would not fit into a frame
            return PostRefusal.OVERSIZE
        try:
            async with asyncio.timeout(POST_TIMEOUT_S), self._turns:
                return await self._ask(raw)
        except TimeoutError as error:
            raise PostUnanswered from error

    async def _ask(self, raw: bytes) -> PostRefusal | None:
        pipe = self._pipe
        if pipe is None:
            raise ConnectionLost(None, "the mailserver cannot be reached")
        request_id = next(self._request_ids)
        answered: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._posts[request_id] = answered
        try:
            pipe.write([Post(request_id, raw).encode()])
            await pipe.drain()
            answer = await answered
        finally:
            del self._posts[request_id]
        if isinstance(answer, ConnectionLost):
            raise ConnectionLost(None, answer.cause) from answer
        return answer

    async def _connect(self) -> ConnectionLost:
        """Connect, and take what comes; return why that ended."""
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S) as until_hello:
                with short_path(self._path) as path:
                    _, pipe = await asyncio.get_running_loop().create_unix_connection(Pipe, path)
                try:
                    await self._read(pipe, until_hello)
                finally:
                    pipe.abort()
        except TimeoutError:
            return ConnectionLost(None, f"the mailserver said nothing for {HELLO_TIMEOUT_S:g} s")
        except OSError as error:
            return ConnectionLost(None, f"no mailserver answers at {self._path}: {error.strerror or error}")
        except DecodeError as error:
            return ConnectionLost(None, f"the mailserver said what is not understood: {error}")
        return ConnectionLost(None, "the mailserver hung up")

    async def _read(self, pipe: Pipe, until_hello: asyncio.Timeout) -> None:
        """Take what comes until the daemon hangs up."""
        frames = FrameReader(OF_DAEMON)
        while data := await pipe.read():
            for frame in frames.receive_data(data):
                if isinstance(frame, Hello) and self.terms is None:
                    until_hello.reschedule(None)
                    self._on_connected(pipe)
                self._on_frame(frame)
            while self._queued_bytes >= MAX_QUEUED_BYTES:
                self._taken.clear()
                await self._taken.wait()

    def _on_connected(self, pipe: Pipe) -> None:
        pipe.write([Join(self._role).encode()])
        self._pipe = pipe
        self._problem = ""
        log.info("feed connected socket=%s", self._path)
        self._put(FeedGap(None))

    def _on_frame(self, frame: Frame) -> None:
        match frame:
            case Hello(terms=terms):
                self.terms = terms
                self._on_change()
            case _ if self.terms is None:
                raise DecodeError("first frame is not HELLO")
            case Envelopes(envelopes=envelopes):
                self._put(envelopes)
            case Missed(count=count):
                self._put(FeedGap(count))
            case Stored(request_id=request_id):
                self._answer(request_id, None)
            case Refused(request_id=request_id, refusal=refusal):
                self._answer(request_id, refusal)

    def _put(self, item: tuple[FeedEnvelope, ...] | FeedGap) -> None:
        if isinstance(item, FeedGap) and self._queue and isinstance(last := self._queue[-1], FeedGap):
            self._queue[-1] = last.and_then(item)
            return
        self._queue.append(item)
        self._queued_bytes += _size(item)
        self._arrived.set()

    def _answer(self, request_id: int, answer: _Answer) -> None:
        """Tell whoever has posted, if he still waits."""
        answered = self._posts.get(request_id)
        if answered is not None and not answered.done():
            answered.set_result(answer)

    def _end(self, lost: ConnectionLost) -> None:
        """Forget the connection. Whoever waits for an answer is told that it is lost."""
        self._pipe = None
        for request_id in self._posts:
            self._answer(request_id, lost)
        if self.terms is not None:
            self.terms = None
            self._on_change()


def _size(item: tuple[FeedEnvelope, ...] | FeedGap) -> int:
    """How many bytes of envelopes there are."""
    return 0 if isinstance(item, FeedGap) else sum(len(envelope.raw) for envelope in item)
