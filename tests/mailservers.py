"""A whole mailserver in this process, as `mailserver.app.daemon` wires it, but with a clock and sockets of the test's.

`running_mailserver` has no port: `dial` joins a RawPeer to it by a socket pair, `join` another mailserver. For a
mailserver with a port, run the daemon.
"""

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mailserver.codec import rlp
from mailserver.codec.keys import Enode, NodeId, PrivateKey
from mailserver.errors import ConnectionLost
from mailserver.history.delivery import Delivery, DeliverySettings
from mailserver.history.id_answers import IdServices, IdSettings
from mailserver.history.id_lists import IdLists
from mailserver.limits.admission import EMPTY_ALLOWLIST
from mailserver.limits.intake_bounds import IntakeBounds
from mailserver.limits.loop_scheduler import LoopScheduler
from mailserver.limits.packet_rates import RateLimiter, RateLimitSettings
from mailserver.limits.request_quotas import RequestLimiter, RequestLimits
from mailserver.live.feed import Feed
from mailserver.live.intake import Intake
from mailserver.live.relay import Relay
from mailserver.mail.request import Cursor
from mailserver.metrics.registry import Metrics
from mailserver.net.connection import Connection
from mailserver.net.dialer import StaticPeers
from mailserver.net.pipe import Pipe
from mailserver.net.sessions import session_config
from mailserver.peers.completions import Completions
from mailserver.peers.connected import Peers
from mailserver.peers.node import Node
from mailserver.peers.served_peer import ServedPeer, Services
from mailserver.store.interface import NewEnvelope, Store
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import SqliteStore, open_store
from mailserver.waku.acceptance import Acceptance, Requirements
from mailserver.waku.bloom import FULL_BLOOM, FULL_INTEREST, Interest
from mailserver.waku.envelope import Envelope, Topic, encode_envelope
from mailserver.waku.packets import NO_RATE_LIMITS, RateLimits, StatusOptions
from mailserver.waku.payload import MAX_PADDING_BYTES, seal_symmetric
from tests.data import load
from tests.pairs import digest, private_key
from tests.raw_peer import DEPLOYED_STATUS, RawPeer, stream_pair
from tests.waiting import DEADLINE_S

PACKETS = load("packets.json")
PASSWORD = PACKETS["mailserver_password"]
PASSWORD_KEY = bytes.fromhex(PACKETS["mailserver_symmetric_key"])

CLIENT_ID = "mailserver/test"
PORT = 30303
"""What is said of the port; there is none."""

NOW = 1_795_236_010
"""The present of most tests: seconds after the deployed client's sessions were recorded."""

NEWS = Topic(b"\x9a\xcb\x04\x42")
SPORT = Topic(b"\xf0\xc5\x34\x1e")
"""The two topics of the recorded sessions."""

STATUS = StatusOptions(
    pow_requirement=0.0,
    bloom=FULL_BLOOM,
    light_node=False,
    confirmations=True,
    packet_rate_limits=RateLimits(0, 0, 0),
    byte_rate_limits=RateLimits(0, 0, 0),
)


NO_LIMITS = RateLimitSettings(NO_RATE_LIMITS, NO_RATE_LIMITS)
NO_REQUEST_LIMITS = RequestLimits()


@dataclass
class Clock:
    """The present, in Unix seconds."""

    now: float = NOW

    def __call__(self) -> float:
        return self.now


def make_envelope(
    number: int, *, created: int = NOW, ttl: int = 50, topic: Topic = NEWS, data_bytes: int = 100
) -> Envelope:
    """An envelope whose bytes depend on the arguments alone; no two numbers give the same."""
    seed = digest(f"envelope {number}")
    data = (seed * (data_bytes // len(seed) + 1))[:data_bytes]
    return encode_envelope(created + ttl, ttl, topic, data, number)


def make_large_envelopes(count: int, data_bytes: int) -> list[Envelope]:
    """So many envelopes, newest first, that compression makes no shorter."""
    return [
        encode_envelope(NOW - number + 50, 50, NEWS, random.randbytes(data_bytes), number) for number in range(count)
    ]


def make_envelopes(count: int, *, first: int = 0, topic: Topic = NEWS, data_bytes: int = 100) -> list[Envelope]:
    """So many envelopes, newest first: each was created a second before the one ahead of it."""
    numbers = range(first, first + count)
    return [make_envelope(number, created=NOW - number, topic=topic, data_bytes=data_bytes) for number in numbers]


def stored(envelope: Envelope, received: int = NOW) -> NewEnvelope:
    """The row of an envelope."""
    return NewEnvelope(received, envelope.created, envelope.topic, envelope.hash(), envelope.raw)


async def fill(store: Store, envelopes: Sequence[Envelope]) -> None:
    """Put envelopes into a store."""
    await store.put([stored(envelope) for envelope in envelopes])


def in_order(envelopes: Sequence[Envelope]) -> list[Envelope]:
    """As a mailserver answers: newest first, of one second the highest hash first."""
    return sorted(envelopes, key=lambda envelope: (envelope.created, envelope.hash()), reverse=True)


def sealed_request(plaintext: bytes, *, key: bytes = PASSWORD_KEY, number: int = 0, ttl: int = 0) -> Envelope:
    """An envelope with a request, or whatever, inside; no proof of work, as the Nim client sends it."""
    seed = digest(f"request {number}")
    data = seal_symmetric(plaintext, key, nonce=seed[:12], padding=bytes(MAX_PADDING_BYTES))
    return encode_envelope(ttl and NOW + ttl, ttl, bytes(4), data, 0)


def deployed_fields(
    *,
    lower: int = 0,
    upper: int = 0,
    bloom: bytes = b"",
    topics: Sequence[bytes] = (NEWS,),
    limit: int = 0,
    cursor: Cursor | bytes | None = None,
    batch: int = 1,
) -> bytes:
    """A request in the form of the deployed Go client, to go into an envelope."""
    return rlp.encode(
        [
            rlp.encode_uint(lower),
            rlp.encode_uint(upper),
            bloom,
            list(topics),
            rlp.encode_uint(limit),
            cursor.encode() if isinstance(cursor, Cursor) else cursor or b"",
            rlp.encode_uint(batch),
        ]
    )


@dataclass
class Mailserver:
    """What runs. `peers`, `connections` and `tasks` are of everyone who was ever served, in that order."""

    node: Node
    store: SqliteStore
    path: Path
    clock: Clock
    services: Services
    connected: Peers
    peers: list[ServedPeer] = field(default_factory=list)
    connections: list[Connection] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    raw_peers: list[RawPeer] = field(default_factory=list)
    neighbours: dict[NodeId, "Mailserver"] = field(default_factory=dict)
    """Whom it reaches when it dials."""

    @property
    def key(self) -> PrivateKey:
        """Its key."""
        return self.node.key

    @property
    def status(self) -> StatusOptions:
        """What it announces."""
        return self.node.status()

    async def take(self, end: socket.socket) -> None:
        """Serve who is at the other end of a socket."""
        self.start(await self.connection(end))

    async def dial(self, *, status: bytes = DEPLOYED_STATUS, name: str | None = None) -> RawPeer:
        """Join a peer that has exchanged Hello and Status; its key is that of the name."""
        raw = await self.dial_silent(name=name)
        return await raw.greet(status=status)

    async def dial_silent(self, *, name: str | None = None) -> RawPeer:
        """Join a peer that has exchanged keys and said nothing yet."""
        ours, theirs = stream_pair()
        await self.take(ours)
        raw = await RawPeer.dial(theirs, self.key.public_key, name=name or f"client {len(self.peers)}")
        self.raw_peers.append(raw)
        return raw

    async def join(self, other: "Mailserver") -> None:
        """Dial another mailserver; wait until each has the other's Status."""
        self.start(await self._dial(other))
        await asyncio.gather(self.connections[-1].ready(), other.connections[-1].ready())

    async def dial_neighbour(self, enode: Enode) -> Connection:
        """Connect to a neighbour.

        Raises:
            ConnectionLost: there is no such neighbour.
        """
        if enode.node_id not in self.neighbours:
            raise ConnectionLost(None, "nobody is there")
        return await self._dial(self.neighbours[enode.node_id])

    async def serve(self, connection: Connection) -> None:
        """Serve a connection until it ends."""
        peer = ServedPeer(connection, self.services, self.connected.next_number())
        self.peers.append(peer)
        self.connected.add(peer)
        try:
            await peer.run()
        finally:
            self.connected.discard(peer)

    async def _dial(self, other: "Mailserver") -> Connection:
        ours, theirs = stream_pair()
        with contextlib.ExitStack() as unless_taken:
            unless_taken.callback(ours.close)  # who dials may be cancelled meanwhile
            await other.take(theirs)
            unless_taken.pop_all()
        return await self.connection(ours, other.key.public_key)

    async def connection(self, end: socket.socket, remote_id: NodeId | None = None) -> Connection:
        """Our side of a socket; `remote_id` is whom we dialled, if we did."""
        _, pipe = await asyncio.get_running_loop().create_connection(Pipe, sock=end)
        config = session_config(
            self.key, self.node.client_id, refuse=self.connected.refuse, is_named=self.connected.is_named
        )
        return Connection(pipe, config, self.status, remote_id=remote_id)

    def start(self, connection: Connection) -> None:
        """Begin to serve a connection."""
        self.connections.append(connection)
        self.tasks.append(asyncio.create_task(self.serve(connection)))


def wired(
    store: SqliteStore,
    clock: Clock,
    settings: DeliverySettings,
    peers: Peers,
    *,
    requirements: Requirements,
    rates: RateLimitSettings = NO_LIMITS,
    requests: RequestLimits = NO_REQUEST_LIMITS,
    bounds: IntakeBounds | None = None,
    light_node: bool = False,
) -> tuple[Node, Services]:
    """A node, and what it serves its peers with, as `app.wiring` wires them; the key is that of `settings`."""
    feed, limiter, acceptance = Feed(), RateLimiter(rates), Acceptance(requirements)
    completions = Completions()
    metrics = Metrics()
    relay = Relay(feed, clock, metrics=metrics, light_node=light_node)
    intake = Intake(store, acceptance, clock, feed=feed, limiter=limiter, metrics=metrics)
    delivery = Delivery(store, settings, clock, metrics=metrics)
    services = Services(
        intake=intake,
        completions=completions,
        delivery=delivery,
        ids=IdServices(
            lists=IdLists(store, store.message_ids),
            since=lambda: store.pruned_until + 1,
            opener=delivery.opener,
            settings=IdSettings(settings.max_limit, settings.allow_clear),
            clock=clock,
            metrics=metrics,
        ),
        feed=feed,
        bounds=bounds or IntakeBounds(),
        sealing=LoopScheduler(),
        relay=relay,
        rates=limiter,
        requests=RequestLimiter(requests, NO_REQUEST_LIMITS, EMPTY_ALLOWLIST),
        trusted=peers.trusted,
        clock=clock,
        metrics=metrics,
    )
    node = Node(
        settings.key,
        CLIENT_ID,
        acceptance=acceptance,
        intake=intake,
        completions=completions,
        feed=feed,
        relay=relay,
        peers=peers,
        clock=clock,
        light_node=light_node,
        packet_rate_limits=rates.packets,
        byte_rate_limits=rates.bytes,
    )
    return node, services


@contextlib.asynccontextmanager
async def running_mailserver(
    folder: Path,
    *,
    settings: DeliverySettings | None = None,
    key: PrivateKey | None = None,
    min_pow: float = 0.0,
    interest: Interest = FULL_INTEREST,
    rates: RateLimitSettings = NO_LIMITS,
    requests: RequestLimits = NO_REQUEST_LIMITS,
    bounds: IntakeBounds | None = None,
    trusted: Iterable[NodeId] = (),
    static: Iterable[Enode] = (),
    max_peers: int = 500,
    light_node: bool = False,
) -> AsyncIterator[Mailserver]:
    """Run a mailserver with a store in `folder`; whatever goes wrong in the serving of a peer is raised at the end."""
    key = key or private_key("mailserver")
    clock = Clock()
    settings = replace(settings or DeliverySettings(PASSWORD_KEY, key), key=key)
    async with open_store(folder / STORE_FILE) as store:
        peers = Peers(max_peers, trusted=trusted, static=[enode.node_id for enode in static])
        node, services = wired(
            store,
            clock,
            settings,
            peers,
            requirements=Requirements(min_pow, interest),
            rates=rates,
            requests=requests,
            bounds=bounds,
            light_node=light_node,
        )
        server = Mailserver(node, store, folder / STORE_FILE, clock, services, peers)
        static_peers = StaticPeers(server.dial_neighbour, server.serve, lambda peer: peers.find(peer) is not None)
        node.listening(("127.0.0.1", PORT), Enode(key.public_key, "127.0.0.1", PORT), static_peers)
        static_peers.follow(static)
        relaying = asyncio.create_task(services.relay.run())
        try:
            yield server
        finally:
            relaying.cancel()
            static_peers.stop()
            for raw in server.raw_peers:
                await raw.close()
            for peer in peers:
                peer.abort()
            async with asyncio.timeout(DEADLINE_S):
                await asyncio.gather(*server.tasks)
                await static_peers.join()
