"""The daemon's side of the feed socket: sends gateways what is live, takes what they and the communities post.

Whatever a gateway does, it costs itself. It reads the feed at its own pace, and is told what it missed. One that reads
nothing is dropped. One that posts too much is not read from for a while. When it dies, the daemon goes on.
"""

import asyncio
import logging
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mailserver.errors import DecodeError, MailserverError, StoreError
from mailserver.feed_socket.frames import (
    FEED_FILE,
    MAX_POSTED_BYTES_AT_ONCE,
    MAX_POSTS_AT_ONCE,
    OF_GATEWAY,
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
    cut_batches,
)
from mailserver.limits.buckets import TokenBucket
from mailserver.live.feed import Feed
from mailserver.live.intake import EnvelopeRefused, Intake
from mailserver.metrics.labels import PostResult
from mailserver.metrics.registry import Metrics
from mailserver.net.pipe import Pipe
from mailserver.net.unix_socket import bind_private
from mailserver.waku.envelope import decode_envelope

log = logging.getLogger(__name__)

MAX_GATEWAYS = 4
"""Maximum number of gateways at the same time, the service for communities among them: one serves thousands."""

READ_AT_ONCE = 256
"""How many envelopes a gateway takes from the feed at once. What it has not taken is held by the ring alone."""

WRITE_TIMEOUT_S = 20.0
"""How long a full write buffer may take to shrink, as for peers."""

POSTS_PER_SECOND = 500.0
POSTED_BYTES_PER_SECOND = 2.0 * 1024 * 1024
"""How much a gateway may post: as much as a peer by default. Judging a megabyte takes 10 ms."""

BURST_S = 2.0
"""It may post this many seconds' worth at once."""

TERMS_INTERVAL_S = 1.0
"""How often is looked whether the terms have changed. Envelopes that meet the former ones are taken for 10 s."""

STOP_TIMEOUT_S = 2.0
"""How long gateways have to receive the answers to what they have posted."""

_CREDENTIALS = struct.Struct("iII")
"""The kernel's `struct ucred`: pid, uid, gid."""


class _Gone(MailserverError):
    """A gateway has gone, or is dropped for a fault of its own."""

    def __init__(self, cause: str, level: int = logging.WARNING) -> None:
        super().__init__(cause, level)
        self.cause = cause
        self.level = level


@dataclass(frozen=True, slots=True)
class FeedServices:
    """What serves gateways. `terms`: reads what an envelope needs at present to be accepted."""

    feed: Feed
    intake: Intake
    terms: Callable[[], Terms]
    metrics: Metrics


class FeedServer:
    """Serves gateways while it is open."""

    def __init__(self, services: FeedServices) -> None:
        self._services = services
        self._server: asyncio.Server | None = None
        self._serving: dict[asyncio.Task[None], _Gateway] = {}
        self._stopped = False
        self._has_refused = False

    async def start(self, data_dir: Path) -> None:
        """Listen in the data directory.

        Raises:
            StartupError: the socket cannot be created.
        """
        loop = asyncio.get_running_loop()
        bound = bind_private(data_dir / FEED_FILE)
        self._server = await loop.create_unix_server(lambda: Pipe(self._on_connected), sock=bound)

    async def stop(self) -> None:
        """Take no more gateways and no more posts, answer those under way, and hang up."""
        self._stopped = True
        if self._server is not None:
            self._server.close()
        for gateway in self._serving.values():
            gateway.stop()
        if self._serving:
            _, late = await asyncio.wait(self._serving, timeout=STOP_TIMEOUT_S)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    def _on_connected(self, pipe: Pipe) -> None:
        if self._stopped:  # it was accepted just before
            pipe.abort()
        elif len(self._serving) >= MAX_GATEWAYS:
            if not self._has_refused:  # it will try again and again
                self._has_refused = True
                log.warning("gateway refused pid=%d gateways=%d", _pid_of(pipe), len(self._serving))
            pipe.abort()
        else:
            gateway = _Gateway(pipe, self._services, self._on_joined)
            task = asyncio.create_task(self._serve(gateway), name="gateway")
            self._serving[task] = gateway
            task.add_done_callback(self._on_served)

    def _on_joined(self, gateway: "_Gateway") -> None:
        count = self._count()
        if gateway.role is Role.GATEWAY:
            log.info("gateway connected pid=%d gateways=%d", gateway.pid, count)
        else:
            log.info("communities connected pid=%d", gateway.pid)

    def _count(self) -> int:
        """Say how many of each are connected; return how many gateways."""
        roles = [each.role for each in self._serving.values()]
        self._services.metrics.gateways.set(roles.count(Role.GATEWAY))
        self._services.metrics.communities.set(roles.count(Role.COMMUNITIES))
        return roles.count(Role.GATEWAY)

    def _on_served(self, task: asyncio.Task[None]) -> None:
        gateway = self._serving.pop(task)
        self._has_refused = False
        self._count()
        if not task.cancelled() and task.exception() is not None:  # a fault of ours: it ends no more than this
            log.error("internal error gateway=%d", gateway.pid, exc_info=task.exception())

    async def _serve(self, gateway: "_Gateway") -> None:
        try:
            await gateway.run()
        except* _Gone as group:
            gone = group.exceptions[0]
            assert isinstance(gone, _Gone)  # its tasks are in one TaskGroup
            if gateway.role is Role.COMMUNITIES:
                log.log(gone.level, "communities gone pid=%d cause=%s", gateway.pid, gone.cause)
            else:
                log.log(gone.level, "gateway gone pid=%d cause=%s", gateway.pid, gone.cause)
        finally:
            gateway.abort()


class _Gateway:
    """One connected gateway, or the service for communities.

    `pid`: its process; 0 if that is in another container. `role`: as what it has joined; None before that.
    """

    def __init__(self, pipe: Pipe, services: FeedServices, on_joined: "Callable[[_Gateway], None]") -> None:
        self.role: Role | None = None
        self._on_joined = on_joined
        self.pid = _pid_of(pipe)
        self._pipe = pipe
        self._services = services
        self._reader = services.feed.reader()  # before HELLO is said: what comes after it is sent, or told as missed
        self._left_out = services.feed.left_out
        self._told = (self._left_out.times, self._left_out.envelopes)
        self._announced = services.terms()
        self._stopped = False
        self._feeding: list[asyncio.Task[None]] = []
        self._posts = self._posted_bytes = 0  # that wait for their answers
        self._answered = asyncio.Event()
        now = asyncio.get_running_loop().time()
        self._rates = (
            TokenBucket(POSTS_PER_SECOND, POSTS_PER_SECOND * BURST_S, now),
            TokenBucket(POSTED_BYTES_PER_SECOND, POSTED_BYTES_PER_SECOND * BURST_S, now),
        )

    def stop(self) -> None:
        """Have `run` return once what was posted is answered."""
        self._stopped = True
        self._pipe.wake()
        self._answered.set()

    def abort(self) -> None:
        """Hang up."""
        self._pipe.abort()

    async def run(self) -> None:
        """Serve the gateway until `stop` is called.

        Raises:
            ExceptionGroup: of _Gone.
        """
        self._send(Hello(self._announced))
        async with asyncio.TaskGroup() as tasks:
            others = [tasks.create_task(work) for work in (self._announce(), self._notice_end())]
            await self._take_frames(tasks)
            for task in (*others, *self._feeding):
                task.cancel()
            # Those that store what was posted end by themselves.
        await self._pipe.finish()

    async def _send_feed(self) -> None:
        """Send what is live. History that somebody has asked for is in the feed, too, and not for everybody."""
        reader, metrics = self._reader, self._services.metrics
        told = 0
        while True:
            published = await reader.read(READ_AT_ONCE)
            if reader.missed > told:
                self._send(Missed(reader.missed - told))
                metrics.gateway_missed.inc(reader.missed - told)
                told = reader.missed
            live = [FeedEnvelope(each.hash, each.envelope.raw) for each in published if not each.is_p2p]
            for batch in cut_batches(live):
                self._send(batch)
                metrics.gateway_envelopes.inc(len(batch.envelopes))
                await self._drain()
            await asyncio.sleep(0)  # let other tasks run

    async def _tell_left_out(self) -> None:
        """Say so when something that other mailservers on the database have stored was not heard of here: it is in the
        store by then."""
        while True:
            times, envelopes = self._told
            await self._left_out.wait(times)
            self._told = (self._left_out.times, self._left_out.envelopes)
            self._send(Missed(self._left_out.envelopes - envelopes))
            await self._drain()

    async def _announce(self) -> None:
        """Say so when the terms change."""
        while True:
            await asyncio.sleep(TERMS_INTERVAL_S)
            terms = self._services.terms()
            if terms != self._announced:
                self._announced = terms
                self._send(Hello(terms))
                await self._drain()

    async def _notice_end(self) -> None:
        """Notice that the gateway has gone while nothing is read from it."""
        await self._pipe.closed()
        raise _Gone("it hung up", logging.INFO)

    def _join(self, role: Role, tasks: asyncio.TaskGroup) -> None:
        if self.role is not None:
            raise _Gone("it has joined twice")
        self.role = role
        if role is Role.GATEWAY:
            self._feeding = [tasks.create_task(work) for work in (self._send_feed(), self._tell_left_out())]
        self._on_joined(self)

    async def _take_frames(self, tasks: asyncio.TaskGroup) -> None:
        """Take what the other side says until `stop` is called: as what it joins, and then what it posts."""
        frames = FrameReader(OF_GATEWAY)
        while not self._stopped:
            data = await self._pipe.read()
            if data is None:  # woken
                continue
            if not data:
                raise _Gone("it hung up", logging.INFO)
            try:
                said = frames.receive_data(data)
            except DecodeError as error:
                raise _Gone(str(error)) from error
            for frame in said:
                if isinstance(frame, Join):
                    self._join(frame.role, tasks)
                    continue
                assert isinstance(frame, Post)
                if self.role is None:
                    raise _Gone("it has not said what it is")
                if not await self._may_take(len(frame.raw)):
                    return
                self._posts += 1
                self._posted_bytes += len(frame.raw)
                tasks.create_task(self._take(frame))

    async def _may_take(self, size: int) -> bool:
        """Wait until an envelope of this length may be taken; return False after `stop`."""
        now = asyncio.get_running_loop().time()
        wait_s = max(bucket.take(cost, now) for bucket, cost in zip(self._rates, (1, size), strict=True))
        if wait_s:
            await asyncio.sleep(wait_s)
        while not self._stopped and (
            self._posts >= MAX_POSTS_AT_ONCE or self._posted_bytes >= MAX_POSTED_BYTES_AT_ONCE
        ):
            await self._next_answer()
        return not self._stopped

    async def _next_answer(self) -> None:
        """Wait until an answer has gone out, or `stop` is called."""
        self._answered.clear()
        await self._answered.wait()

    async def _take(self, post: Post) -> None:
        """Store an envelope, and answer. It counts as under way until the answer has gone out."""
        try:
            refusal = await self._store(post.raw)
            self._send(Stored(post.request_id) if refusal is None else Refused(post.request_id, refusal))
            await self._drain()
        finally:
            self._posts -= 1
            self._posted_bytes -= len(post.raw)
            self._answered.set()

    async def _store(self, raw: bytes) -> PostRefusal | None:
        results = self._services.metrics.gateway_posts
        try:
            await self._services.intake.take_own(decode_envelope(raw))
        except DecodeError:
            results[PostResult.MALFORMED].inc()
            return PostRefusal.MALFORMED
        except EnvelopeRefused as error:
            results[PostResult.REFUSED].inc()
            return PostRefusal.of(error.verdict)
        except StoreError:
            results[PostResult.FAILED].inc()
            return PostRefusal.STORE_UNAVAILABLE
        results[PostResult.STORED].inc()
        return None

    def _send(self, frame: Frame) -> None:
        self._pipe.write([frame.encode()])

    async def _drain(self) -> None:
        """If the write buffer is full, wait until the gateway has read enough of it."""
        if self._pipe.is_full:
            try:
                async with asyncio.timeout(WRITE_TIMEOUT_S):
                    await self._pipe.drain()
            except TimeoutError as error:
                raise _Gone(f"it read nothing for {WRITE_TIMEOUT_S:g} s") from error


def _pid_of(pipe: Pipe) -> int:
    """The process at the other end (unix(7) "SO_PEERCRED")."""
    end: socket.socket = pipe.transport.get_extra_info("socket")
    pid: int
    pid, _, _ = _CREDENTIALS.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid
