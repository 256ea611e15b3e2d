"""A whole mailserver in this process, as `mailserver.daemon` wires it, but with a clock and sockets of the test's.

`running_mailserver` has no port: `dial` joins a RawPeer to it by a socket pair. For a mailserver with a port, run
the daemon.
"""

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mailserver.codec import rlp
from mailserver.codec.keys import PrivateKey
from mailserver.mail.request import Cursor
from mailserver.net.connection import Connection, session_config
from mailserver.net.pipe import Pipe
from mailserver.services.archive import Archive
from mailserver.services.delivery import Delivery, DeliverySettings
from mailserver.services.peer import ServedPeer
from mailserver.store.envelopes import EnvelopeStore, open_store
from mailserver.store.schema import STORE_FILE
from mailserver.store.writer import NewEnvelope
from mailserver.waku.acceptance import Acceptance, Requirements
from mailserver.waku.bloom import FULL_BLOOM
from mailserver.waku.envelope import Envelope, Topic, encode_envelope
from mailserver.waku.packets import RateLimits, StatusOptions
from mailserver.waku.payload import MAX_PADDING_BYTES, seal_symmetric
from tests.data import load
from tests.pairs import digest, private_key
from tests.raw_peer import DEPLOYED_STATUS, RawPeer, stream_pair
from tests.waiting import DEADLINE_S

PACKETS = load("packets.json")
PASSWORD = PACKETS["mailserver_password"]
PASSWORD_KEY = bytes.fromhex(PACKETS["mailserver_symmetric_key"])

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


async def fill(store: EnvelopeStore, envelopes: Sequence[Envelope]) -> None:
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
    """What runs."""

    key: PrivateKey
    store: EnvelopeStore
    path: Path
    clock: Clock
    archive: Archive
    delivery: Delivery
    status: StatusOptions = STATUS
    peers: list[ServedPeer] = field(default_factory=list)
    connections: list[Connection] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    raw_peers: list[RawPeer] = field(default_factory=list)

    async def take(self, end: socket.socket) -> None:
        """Serve who is at the other end of a socket."""
        _, pipe = await asyncio.get_running_loop().create_connection(Pipe, sock=end)
        connection = Connection(pipe, session_config(self.key, "mailserver/test"), self.status)
        peer = ServedPeer(connection, self.archive, self.delivery)
        self.peers.append(peer)
        self.connections.append(connection)
        self.tasks.append(asyncio.create_task(peer.run()))

    async def dial(self, *, status: bytes = DEPLOYED_STATUS) -> RawPeer:
        """Join a peer that has exchanged Hello and Status."""
        ours, theirs = stream_pair()
        await self.take(ours)
        raw = await RawPeer.dial(theirs, self.key.public_key, name=f"client {len(self.peers)}")
        self.raw_peers.append(raw)
        return await raw.greet(status=status)


@contextlib.asynccontextmanager
async def running_mailserver(
    folder: Path, *, settings: DeliverySettings | None = None, key: PrivateKey | None = None, min_pow: float = 0.0
) -> AsyncIterator[Mailserver]:
    """Run a mailserver with a store in `folder`; whatever goes wrong in the serving of a peer is raised at the end."""
    key = key or private_key("mailserver")
    clock = Clock()
    settings = replace(settings or DeliverySettings(PASSWORD_KEY, key), key=key)
    async with open_store(folder / STORE_FILE) as store:
        server = Mailserver(
            key,
            store,
            folder / STORE_FILE,
            clock,
            Archive(store, Acceptance(Requirements(min_pow)), clock),
            Delivery(store, settings, clock),
            replace(STATUS, pow_requirement=min_pow),
        )
        try:
            yield server
        finally:
            for peer in server.raw_peers:
                await peer.close()
            async with asyncio.timeout(DEADLINE_S):
                await asyncio.gather(*server.tasks)
