"""Relays live envelopes to the peers that want them (6/WAKU1 "Gossip based routing").

Envelopes from the feed are put into bundles. Each peer goes through the bundles at its own speed, and is sent what it
wants and does not have. Peers that want the same envelopes of a bundle share the encoded packet. A peer that is too
slow misses what has left the pool meanwhile.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from mailserver.errors import ConnectionLost, RequestRejected
from mailserver.limits.admission import groups_of
from mailserver.limits.buckets import Buckets
from mailserver.limits.loop_scheduler import LoopScheduler
from mailserver.limits.send_rate import SendRate
from mailserver.live.feed import Feed, LiveEnvelope
from mailserver.live.intake import Clock
from mailserver.live.pool import (
    ENVELOPE_OVERHEAD_BYTES,
    MAX_BUNDLE_BYTES,
    POOL_BYTES,
    Bundle,
    Losses,
    Pool,
    cut_envelopes,
    memory_of,
)
from mailserver.metrics.registry import Metrics
from mailserver.net.connection import Connection
from mailserver.net.sessions import Code
from mailserver.rlpx.shared_payload import SharedPayload
from mailserver.waku.envelope import encode_envelopes, packet_bytes
from mailserver.waku.packets import PacketCode, PeerSettings

log = logging.getLogger(__name__)

BUNDLE_INTERVAL_S = 0.3
"""How long envelopes are collected after a bundle was made, as in deployed nodes. The first after a pause is sent at
once."""

COLLECT_INTERVAL_S = 0.03
"""How often the feed is read while collecting: at full speed 1,000 envelopes come in this time, and it holds 16,000."""

PURGE_INTERVAL_S = 10.0
"""How often expired envelopes are dropped while no new ones come in."""

BACKLOG_BYTES_PER_MINUTE = POOL_BYTES
BACKLOG_BURST_BYTES = 2 * POOL_BYTES
"""How much of the backlog is sent to all connections of one address (for IPv6, a /64). The backlog is what was in the
pool before they connected. Beyond this, they are sent only what is new. It is enough for many phones behind one
address, as each of them wants little."""

LOOKED_AT_BYTES = 32
"""As how many bytes it counts to check whether a peer wants an envelope: they could be encrypted in the same time."""

MAX_BACKLOG_ADDRESSES = 16_384
"""Most addresses whose use of the backlog is remembered; 200 bytes per entry. After two minutes it is forgotten
anyway."""

MAX_SHARED_BYTES = 8 * 1024 * 1024
"""Memory for encoded packets, which are kept for other peers that want the same. Most of these want it within
moments."""

BUNDLED_AT_ONCE = 1000
"""How many envelopes are bundled in one iteration of the event loop; it takes 1 ms. In a flood there may be 25,000,
which would take 22 ms."""

WOKEN_AT_ONCE = 64
"""How many peers are woken for a bundle in one iteration of the event loop. Each takes some 25 us to look at it. 2,000
at once delayed a request by 60 ms."""

MAX_HELD_BYTES = 64 * 1024
"""Memory per peer for envelopes that are held back because their topics have reached the limit of the peer. They may
have left the pool, and differ from peer to peer. Beyond this, the oldest are dropped."""


class Relay:
    """Makes bundles of the envelopes in the feed, and keeps them for all peers."""

    def __init__(
        self, feed: Feed, clock: Clock, *, metrics: Metrics, light_node: bool = False, pool_bytes: int = POOL_BYTES
    ) -> None:
        """Start with an empty pool.

        Args:
            light_node: relay only what was made here (6/WAKU1 "Light Node Field").
        """
        self.metrics = metrics
        self._reader = feed.reader()
        self._clock = clock
        self._light_node = light_node
        self._pool = Pool(pool_bytes)
        self._waiting: dict[asyncio.Future[None], None] = {}  # peers that wait for the next bundle
        self._shared: OrderedDict[tuple[LiveEnvelope, ...], SharedPayload] = OrderedDict()
        self._shared_bytes = 0
        self._missed = 0
        self._backlogs: Buckets[bytes] = Buckets(
            BACKLOG_BYTES_PER_MINUTE / 60, BACKLOG_BURST_BYTES, max_keys=MAX_BACKLOG_ADDRESSES
        )
        self._scheduler = LoopScheduler()
        self._peers: set[PeerRelay] = set()

    @property
    def usage(self) -> tuple[int, int]:
        """How many envelopes are in the pool, and their bytes."""
        return self._pool.usage

    async def run(self) -> None:
        """Make bundles of the envelopes in the feed, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(PURGE_INTERVAL_S):
                    envelopes = await self._reader.read()
            except TimeoutError:
                self._purge()
                continue
            await self._bundle(envelopes)
            while collected := await self._collect():
                await self._bundle(collected)

    async def _collect(self) -> list[LiveEnvelope]:
        """Collect envelopes until the next bundle is due. Read the feed so often that its ring does not overflow."""
        envelopes: list[LiveEnvelope] = []
        loop = asyncio.get_running_loop()
        due = loop.time() + BUNDLE_INTERVAL_S
        while (left := due - loop.time()) > 0:
            await asyncio.sleep(min(left, COLLECT_INTERVAL_S))
            envelopes += self._reader.read_nowait()
        if self._reader.missed > self._missed:
            log.warning("relay missed envelopes count=%d", self._reader.missed - self._missed)
            self.metrics.relay_missed.inc(self._reader.missed - self._missed)
            self._missed = self._reader.missed
        return envelopes

    async def next(self, position: int) -> tuple[Bundle, int]:
        """Wait for the first bundle from `position` on; return it, and the next position."""
        while True:
            bundle = self._pool.first(position)
            if bundle is not None:
                return bundle, bundle.number + 1
            bundled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting[bundled] = None
            try:
                await bundled
            finally:
                self._waiting.pop(bundled, None)

    @contextlib.contextmanager
    def reading(self, peer: "PeerRelay") -> Iterator[None]:
        """Count what the pool loses meanwhile before this peer has come to it."""
        self._peers.add(peer)
        try:
            yield
        finally:
            self._peers.remove(peer)

    def _count_lost(self, losses: Losses) -> None:
        """Count what the pool has lost and some peer has not come to: each envelope once. Whether such a peer would
        want it is not asked."""
        if losses and self._peers:
            slowest = min(peer.position for peer in self._peers)
            self.metrics.relay_shed.inc(sum(envelopes for number, envelopes in losses if number >= slowest))

    @property
    def end(self) -> int:
        """The number of the next bundle."""
        return self._pool.end

    async def wait_turn(self) -> None:
        """Wait for a turn to do something that takes long: peers do it one at a time."""
        await self._scheduler.wait_turn()

    def may_have_backlog(self, address: str) -> bool:
        """Whether the connections of an address may be sent more of the backlog."""
        now = asyncio.get_running_loop().time()
        return self._backlogs.of(groups_of(address).address, now).wait(1, now) == 0.0

    def count_backlog(self, address: str, size: int) -> None:
        """Count bytes of the backlog that a connection of this address is sent."""
        now = asyncio.get_running_loop().time()
        self._backlogs.of(groups_of(address).address, now).take(size, now)

    def share(self, envelopes: Sequence[LiveEnvelope]) -> SharedPayload:
        """The payload of a Messages packet with these envelopes, encoded once for all peers that want it soon."""
        key = tuple(envelopes)
        payload = self._shared.get(key)
        if payload is None:
            payload = SharedPayload(encode_envelopes([live.envelope.raw for live in envelopes]))
            self._shared[key] = payload
            self._shared_bytes += _shared_memory(key, payload)
            while self._shared_bytes > MAX_SHARED_BYTES and len(self._shared) > 1:
                self._shared_bytes -= _shared_memory(*self._shared.popitem(last=False))
        return payload

    async def _bundle(self, envelopes: Sequence[LiveEnvelope]) -> None:
        now = self._clock()
        due = [
            live
            for live in envelopes
            if live.envelope.expiry >= now and not live.is_p2p and (live.is_own or not self._light_node)
        ]
        for at in range(0, len(due), BUNDLED_AT_ONCE):
            if at:
                await asyncio.sleep(0)  # let other tasks run
            self._count_lost(self._pool.add(due[at : at + BUNDLED_AT_ONCE], now))
        waiting, self._waiting = self._waiting, {}
        for number, bundled in enumerate(waiting, start=1):
            if not bundled.done():  # the peer that waited may have gone
                bundled.set_result(None)
            if not number % WOKEN_AT_ONCE:
                await asyncio.sleep(0)  # let other tasks run

    def _purge(self) -> None:
        """Drop what has expired while nothing new came in."""
        self._count_lost(self._pool.purge(self._clock()))
        if not len(self._pool):
            self._shared.clear()
            self._shared_bytes = 0


class Sender(Protocol):
    """Sends packets to one peer, each after its turn: `mailserver.peers.paced_sender`."""

    async def wait_turn(self, size: int) -> None:
        """Wait until a packet of about `size` bytes may be sent.

        Raises:
            ConnectionLost: the connection has ended.
            RequestRejected: it is long, and too many peers do not read such.
        """

    async def drain(self) -> None:
        """Wait until the peer has read enough of what was sent.

        Raises:
            ConnectionLost: the connection has ended.
        """

    def send(self, code: Code, payload: bytes | SharedPayload) -> None:
        """Send a packet, after `wait_turn`.

        Raises:
            ConnectionLost: the connection has ended.
        """


class PeerRelay:
    """Sends one peer what it wants of the pool. `position`: the number of the first bundle that it has not come to."""

    def __init__(
        self,
        relay: Relay,
        connection: Connection,
        number: int,
        send_rate: SendRate,
        clock: Clock,
        sender: Sender,
        *,
        is_limited: bool = True,
    ) -> None:
        """Describe the peer; `run` does the rest.

        Args:
            number: the number of the connection.
            send_rate: the rate limits that the peer has announced.
            sender: sends to the peer; nobody else uses it.
            is_limited: whether the limit of the backlog holds for this peer.
        """
        self._relay = relay
        self._connection = connection
        self._number = number
        self._send_rate = send_rate
        self._clock = clock
        self._sender = sender
        self._is_limited = is_limited
        self._joined_at = relay.end
        self.position = 0
        self._held: deque[LiveEnvelope] = deque()
        self._held_bytes = 0

    async def run(self) -> None:
        """Send what is due until the connection ends."""
        # Whoever has lost its connection is ended by the task that serves the peer.
        with contextlib.suppress(ConnectionLost), self._relay.reading(self):
            while True:
                await self._sender.drain()
                if self.position < self._joined_at:  # it still has to go through the backlog
                    await self._relay.wait_turn()
                else:
                    await asyncio.sleep(0)  # let other tasks run
                envelopes = await self._next()
                for packet in cut_envelopes(envelopes, min(MAX_BUNDLE_BYTES, self._send_rate.max_packet_bytes)):
                    await self._send(packet)

    async def _next(self) -> list[LiveEnvelope]:
        """Wait for a bundle, or until what is held back may be tried again; return the envelopes to send."""
        bundle = None
        if not self._held:
            bundle, self.position = await self._relay.next(self.position)
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BUNDLE_INTERVAL_S):
                    bundle, self.position = await self._relay.next(self.position)
        if self._send_rate.limits_topics:  # then it takes ten times as long to look at an envelope
            await self._relay.wait_turn()
        now, settings = self._clock(), self._connection.settings
        due = Bundle(self._held).select(self._number, settings, now) if self._held else []
        self._held.clear()
        self._held_bytes = 0
        if bundle is not None:
            due += self._select(bundle, settings, now)
        if not self._send_rate.limits_topics:
            return due
        allowed = []
        for live in due:
            if self._send_rate.take_topic(live.envelope.topic, len(live.envelope.raw)):
                allowed.append(live)
            else:
                self._hold(live)
        return allowed

    def _select(self, bundle: Bundle, settings: PeerSettings, now: float) -> list[LiveEnvelope]:
        """The envelopes that the peer wants of a bundle. Skip the backlog if its address was sent enough of it."""
        if bundle.number >= self._joined_at or not self._is_limited:
            return bundle.select(self._number, settings, now)
        address = self._connection.host
        if not self._relay.may_have_backlog(address):
            self.position = self._joined_at
            return []
        selected = bundle.select(self._number, settings, now)
        size = sum(len(live.envelope.raw) for live in selected)
        self._relay.count_backlog(address, size + LOOKED_AT_BYTES * len(bundle.envelopes))
        return selected

    def _hold(self, live: LiveEnvelope) -> None:
        self._held.append(live)
        self._held_bytes += memory_of(live)
        while self._held_bytes > MAX_HELD_BYTES and len(self._held) > 1:
            self._held_bytes -= memory_of(self._held.popleft())

    async def _send(self, envelopes: Sequence[LiveEnvelope]) -> None:
        size = packet_bytes(sum(len(live.envelope.raw) for live in envelopes))
        try:
            await self._sender.wait_turn(size)
        except RequestRejected as error:  # like a peer that is too slow, it misses this
            log.debug("long envelope not relayed peer=%s bytes=%d cause=%r", self._connection, size, error.cause)
            return
        now = self._clock()  # waiting may have taken a while
        due = [live for live in envelopes if live.envelope.expiry >= now and self._number not in live.sighting.peers]
        if due:
            self._sender.send(PacketCode.MESSAGES, self._relay.share(due))
            self._relay.metrics.relayed.inc(len(due))


def _shared_memory(envelopes: Sequence[LiveEnvelope], payload: SharedPayload) -> int:
    # The payload; the compressed payload, as long for sealed data; and the envelopes, which may have left the pool.
    return 2 * len(payload.raw) + ENVELOPE_OVERHEAD_BYTES * len(envelopes)
