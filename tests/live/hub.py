"""A relay in the middle of real connections over socket pairs, in simulated time.

A Hub has all of a mailserver that relays, and no store. Its wall clock and its loop go on together.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence

from mailserver.limits.intake_bounds import MemoryBudget
from mailserver.limits.loop_scheduler import LoopScheduler, WorkBudget
from mailserver.limits.send_rate import SendRate
from mailserver.live.feed import Feed, LiveEnvelope
from mailserver.live.pool import POOL_BYTES
from mailserver.live.relay import PeerRelay, Relay
from mailserver.live.seen import Sighting
from mailserver.metrics.registry import Metrics
from mailserver.net.connection import Connection
from mailserver.net.inbound import Event
from mailserver.net.pipe import Pipe
from mailserver.net.sessions import session_config
from mailserver.peers.paced_sender import PacedSender
from mailserver.waku.envelope import Envelope, Topic, decode_envelopes, encode_envelope
from mailserver.waku.packets import PacketCode, StatusOptions
from mailserver.waku.peer import SettingsChanged, StatusReceived
from tests.mailservers import NEWS, NOW, SPORT, STATUS, make_envelope
from tests.pairs import private_key
from tests.raw_peer import Hangup, RawPeer, stream_pair

KEY = private_key("hub")
ALL = StatusOptions(pow_requirement=0.0)
"""The Status of a peer that wants everything."""


class Neighbour:
    """A peer that takes down when it heard which envelopes, as soon as it reads."""

    def __init__(self, raw: RawPeer, number: int, connection: Connection) -> None:
        self.raw = raw
        self.number = number
        self.connection = connection
        self.packets: list[tuple[float, list[Envelope]]] = []
        self.sizes: list[int] = []
        self._reading: asyncio.Task[None] | None = None

    def read(self) -> None:
        """Begin to read."""
        self._reading = asyncio.create_task(self._read())

    async def stop(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        await self.raw.close()

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(Hangup):
            while True:
                with contextlib.suppress(TimeoutError):  # nobody says anything, for a while
                    code, payload = await self.raw.hear_packet()
                    assert code == PacketCode.MESSAGES
                    self.packets.append((loop.time(), decode_envelopes(payload)))
                    self.sizes.append(len(payload))

    @property
    def heard(self) -> list[Envelope]:
        """All envelopes, in order."""
        return [envelope for _, envelopes in self.packets for envelope in envelopes]

    @property
    def times(self) -> list[float]:
        """When each packet came."""
        return [time for time, _ in self.packets]

    def update(self, options: StatusOptions) -> None:
        """Send a Status Update."""
        self.raw.say(PacketCode.STATUS_UPDATE, options.encode())


class Hub:
    """What relays, and who is joined to it."""

    def __init__(self, *, light_node: bool, pool_bytes: int, feed: Feed) -> None:
        self._started = asyncio.get_running_loop().time()
        self.feed = feed
        self.relay = Relay(self.feed, self.clock, metrics=Metrics(), light_node=light_node, pool_bytes=pool_bytes)
        self.tasks: list[asyncio.Task[None]] = []
        self.neighbours: list[Neighbour] = []
        self.sightings: dict[bytes, Sighting] = {}

    def clock(self) -> float:
        """The present in Unix seconds."""
        return NOW + asyncio.get_running_loop().time() - self._started

    async def join(self, status: StatusOptions = ALL, *, reads: bool = True, is_limited: bool = True) -> Neighbour:
        """Join a peer with this Status."""
        ours, theirs = stream_pair()
        _, pipe = await asyncio.get_running_loop().create_connection(Pipe, sock=ours)
        connection = Connection(pipe, session_config(KEY, "hub/1"), STATUS)
        number = len(self.neighbours) + 1
        send_rate = SendRate()

        async def on_event(event: Event) -> None:
            if isinstance(event, StatusReceived | SettingsChanged):
                send_rate.follow(event.settings)

        self.tasks.append(asyncio.create_task(connection.run(on_event)))
        raw = await RawPeer.dial(theirs, KEY.public_key, name=f"peer {number}")
        await raw.greet(status=status.encode())
        await connection.ready()

        sender = PacedSender(connection, send_rate, WorkBudget(LoopScheduler(), 10**9), MemoryBudget(2**30))
        sending = PeerRelay(self.relay, connection, number, send_rate, self.clock, sender, is_limited=is_limited)
        self.tasks.append(asyncio.create_task(sending.run()))
        neighbour = Neighbour(raw, number, connection)
        self.neighbours.append(neighbour)
        if reads:
            neighbour.read()
        return neighbour

    def publish(
        self,
        *envelopes: Envelope,
        sender: Neighbour | None = None,
        ahead: int = 0,
        is_own: bool = False,
        is_p2p: bool = False,
    ) -> None:
        """Accept envelopes; each new one goes to the feed, as the archive does it."""
        for envelope in envelopes:
            envelope_hash = envelope.hash()
            sighting = self.sightings.get(envelope_hash)
            is_new = sighting is None
            if sighting is None:
                sighting = self.sightings[envelope_hash] = Sighting(envelope.expiry)
            if sender is not None:
                sighting.add_peer(sender.number)
            if is_new:
                live = LiveEnvelope(envelope, envelope_hash, sighting, ahead=ahead, is_own=is_own, is_p2p=is_p2p)
                self.feed.publish(live)


@contextlib.asynccontextmanager
async def running_hub(
    *, light_node: bool = False, pool_bytes: int = POOL_BYTES, feed: Feed | None = None
) -> AsyncIterator[Hub]:
    """Relay as long as the context is entered."""
    hub = Hub(light_node=light_node, pool_bytes=pool_bytes, feed=feed or Feed())
    running = asyncio.create_task(hub.relay.run())
    try:
        yield hub
    finally:
        running.cancel()
        for neighbour in hub.neighbours:
            await neighbour.stop()
        for task in hub.tasks[1::2]:
            task.cancel()
        await asyncio.gather(*hub.tasks[::2])
        await asyncio.wait([running, *hub.tasks])
        for task in hub.tasks[1::2]:
            assert task.cancelled() or task.exception() is None


def new_envelopes(count: int, *, first: int = 0, topic: Topic = NEWS, data_bytes: int = 100) -> list[Envelope]:
    """So many envelopes that were created now."""
    return [make_envelope(number, topic=topic, data_bytes=data_bytes) for number in range(first, first + count)]


def large_envelopes(count: int, data_bytes: int) -> list[Envelope]:
    """So many envelopes that were created now and that compression makes no shorter."""
    return [
        encode_envelope(NOW + 50, 50, NEWS, random.randbytes(data_bytes), number)  # whatever is in them
        for number in range(count)
    ]


ONE = len(make_envelope(0).raw)


def assert_within(peer: Neighbour, costs: Sequence[float], rate: float) -> None:
    """See that what was sent kept to a bucket that gains `rate` a second, holds as much, and was full at first."""
    level, at = rate, 0.0
    for time, cost in zip(peer.times, costs, strict=True):
        level = min(rate, level + (time - at) * rate) - cost
        at = time
        assert level >= -1e-3 * rate, f"over its limit at {time}"


TOPICS = [NEWS, SPORT, Topic(b"\x01\x02\x03\x04")]
