"""A daemon's feed socket with all that is behind it, and gateways by hand."""

import asyncio
import contextlib
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mailserver.feed_socket.client import FeedClient
from mailserver.feed_socket.frames import (
    FEED_FILE,
    OF_DAEMON,
    Envelopes,
    Frame,
    FrameReader,
    Hello,
    Join,
    Post,
    Role,
    Terms,
)
from mailserver.feed_socket.server import FeedServer, FeedServices
from mailserver.limits.packet_rates import RateLimiter
from mailserver.live.feed import Feed, LiveEnvelope
from mailserver.live.intake import Intake
from mailserver.metrics.registry import Metrics
from mailserver.net.unix_socket import short_path
from mailserver.store.interface import Store
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.waku.acceptance import Acceptance, Requirements
from mailserver.waku.envelope import Envelope
from tests.mailservers import NO_LIMITS, Clock, make_envelope
from tests.store.engines import Engine, SqliteEngine
from tests.waiting import DEADLINE_S

NETWORK_TOPIC = "/waku/2/rs/16/32"


class RawGateway:
    """A gateway that writes and reads frames by hand."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.frames = FrameReader(OF_DAEMON)
        self.heard: list[Frame] = []

    async def write(self, data: bytes) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.get_running_loop().sock_sendall(self.end, data)

    async def say(self, *frames: Post | Join) -> None:
        await self.write(b"".join(frame.encode() for frame in frames))

    async def hear(self) -> Frame | None:
        """The next frame; None at the end."""
        while not self.heard:
            try:
                async with asyncio.timeout(DEADLINE_S):
                    data = await asyncio.get_running_loop().sock_recv(self.end, 65_536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self.heard += self.frames.receive_data(data)
        return self.heard.pop(0)

    async def hear_all(self) -> list[Frame]:
        """All frames until the end."""
        frames = []
        while (frame := await self.hear()) is not None:
            frames.append(frame)
        return frames

    async def hear_envelopes(self, count: int) -> list[bytes]:
        """So many envelopes, in as many batches as it takes."""
        raws: list[bytes] = []
        while len(raws) < count:
            batch = await self.hear()
            assert isinstance(batch, Envelopes)
            raws += [envelope.raw for envelope in batch.envelopes]
        return raws

    def hears_nothing(self) -> bool:
        """Whether nothing has come."""
        with contextlib.suppress(BlockingIOError):
            return not self.heard and not self.end.recv(1, socket.MSG_PEEK)
        return not self.heard


@dataclass
class World:
    """What runs. `server` may be stopped and another one started in its place."""

    folder: Path
    feed: Feed
    intake: Intake
    acceptance: Acceptance
    metrics: Metrics
    store: Store
    engine: Engine
    network_topic: str = NETWORK_TOPIC
    server: FeedServer = field(init=False)
    fault: Exception | None = None
    looks: int = 0
    gateways: list[RawGateway] = field(default_factory=list)
    running: list[asyncio.Task[None]] = field(default_factory=list)

    def terms(self) -> Terms:
        """What the daemon demands at present, or a fault of ours."""
        self.looks += 1
        if self.fault is not None:
            raise self.fault
        requirements = self.acceptance.requirements
        topics = requirements.interest.topics
        return Terms(
            self.network_topic,
            requirements.min_pow,
            requirements.max_envelope_bytes,
            None if topics is None else frozenset(topics),
        )

    def publish(self, count: int, *, first: int = 0, data_bytes: int = 100, is_p2p: bool = False) -> list[bytes]:
        """Publish envelopes that are not stored; return them."""
        envelopes = [make_envelope(number, data_bytes=data_bytes) for number in range(first, first + count)]
        for envelope in envelopes:
            self.feed.publish(LiveEnvelope(envelope, envelope.hash(), is_p2p=is_p2p))
        return [envelope.raw for envelope in envelopes]

    async def connect(self) -> RawGateway:
        """Connect by hand."""
        end = socket.socket(socket.AF_UNIX)
        with short_path(self.folder / FEED_FILE) as path:
            end.connect(path)
        end.setblocking(False)
        self.gateways.append(RawGateway(end))
        return self.gateways[-1]

    async def join(self, role: Role = Role.GATEWAY) -> RawGateway:
        """Connect, hear HELLO, and say what we are."""
        gateway = await self.connect()
        assert isinstance(await gateway.hear(), Hello)
        await gateway.say(Join(role))
        return gateway

    def client(self, client: FeedClient | None = None) -> FeedClient:
        """A client that runs."""
        client = client or FeedClient(self.folder)
        self.running.append(asyncio.create_task(client.run()))
        return client

    async def restart(self) -> None:
        """Stop the server, and start another one, as a daemon that restarts."""
        await self.stop()
        await self.start()

    async def start(self) -> None:
        """Start a server."""
        self.server = FeedServer(FeedServices(self.feed, self.intake, self.terms, self.metrics))
        await self.server.start(self.folder)

    async def stop(self) -> None:
        """Stop the server."""
        await asyncio.wait_for(self.server.stop(), DEADLINE_S)

    def is_stored(self, envelope: Envelope) -> bool:
        """Whether an envelope is committed: another connection sees it."""
        with contextlib.closing(sqlite3.connect(self.folder / STORE_FILE)) as other:
            found = other.execute("SELECT count(*) FROM envelopes WHERE raw = ?", (envelope.raw,)).fetchone()
        return bool(found[0])

    @contextlib.contextmanager
    def disk_busy(self) -> Iterator[None]:
        """Let nothing be committed meanwhile."""
        with contextlib.closing(sqlite3.connect(self.folder / STORE_FILE, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield

    @contextlib.contextmanager
    def disk_full(self) -> Iterator[None]:
        """Let every write fail."""
        with contextlib.closing(sqlite3.connect(self.folder / STORE_FILE, isolation_level=None)) as other:
            other.execute("CREATE TRIGGER full BEFORE INSERT ON envelopes BEGIN SELECT raise(ABORT, 'disk full'); END")
            yield
            other.execute("DROP TRIGGER full")


@contextlib.asynccontextmanager
async def running_world(
    folder: Path,
    *,
    requirements: Requirements | None = None,
    feed: Feed | None = None,
    wall_clock: Callable[[], float] | None = None,
    network_topic: str = NETWORK_TOPIC,
    engine: Engine | None = None,
) -> AsyncIterator[World]:
    """Serve gateways on a store that an engine keeps, or in `folder`."""
    acceptance, feed, metrics = Acceptance(requirements or Requirements(0.0)), feed or Feed(), Metrics()
    engine = engine or SqliteEngine(folder)
    async with engine.open() as store:
        intake = Intake(
            store, acceptance, wall_clock or Clock(), feed=feed, limiter=RateLimiter(NO_LIMITS), metrics=metrics
        )
        world = World(folder, feed, intake, acceptance, metrics, store, engine, network_topic=network_topic)
        await world.start()
        try:
            yield world
        finally:
            for task in world.running:
                task.cancel()
            await asyncio.gather(*world.running, return_exceptions=True)
            for gateway in world.gateways:
                gateway.end.close()
            await world.stop()
