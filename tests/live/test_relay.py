"""mailserver.live.relay: with real connections over socket pairs, in simulated time.

A Hub has all of a mailserver that relays, and no store. Its wall clock and its loop go on together.
"""

import asyncio
import contextlib
import logging
import random
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.codec import snappy
from mailserver.limits.send_rate import BURST_S, SHARE, SendRate
from mailserver.live import relay as relay_module
from mailserver.live.feed import MAX_FEED_ENVELOPES, Feed, LiveEnvelope
from mailserver.live.pool import ENVELOPE_OVERHEAD_BYTES, MAX_BUNDLE_BYTES, POOL_BYTES, Bundle, Pool
from mailserver.live.relay import (
    BUNDLE_INTERVAL_S,
    BUNDLED_AT_ONCE,
    LOOKED_AT_BYTES,
    MAX_HELD_BYTES,
    MAX_SHARED_BYTES,
    PURGE_INTERVAL_S,
    WOKEN_AT_ONCE,
    PeerRelay,
    Relay,
)
from mailserver.live.seen import Sighting
from mailserver.metrics.registry import Metrics, count_of
from mailserver.net.connection import Connection
from mailserver.net.pipe import WRITE_HIGH_BYTES, Pipe
from mailserver.net.sessions import session_config
from mailserver.waku.bloom import EMPTY_BLOOM, FULL_BLOOM, Interest, bloom_of
from mailserver.waku.envelope import Envelope, Topic, decode_envelopes, encode_envelope, encode_envelopes
from mailserver.waku.packets import (
    DEFAULT_POW_REQUIREMENT,
    MAX_PACKET_BYTES,
    NO_RATE_LIMITS,
    PacketCode,
    PeerSettings,
    RateLimits,
    StatusOptions,
)
from mailserver.waku.peer import Event, SettingsChanged, StatusReceived
from tests.mailservers import NEWS, NOW, SPORT, STATUS, make_envelope
from tests.pairs import private_key
from tests.properties import settings
from tests.raw_peer import Hangup, RawPeer, stream_pair
from tests.simulated_time import in_simulated_time, pass_time
from tests.waiting import turns

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
        pace = SendRate()

        async def on_event(event: Event) -> None:
            if isinstance(event, StatusReceived | SettingsChanged):
                pace.follow(event.settings)

        self.tasks.append(asyncio.create_task(connection.run(on_event)))
        raw = await RawPeer.dial(theirs, KEY.public_key, name=f"peer {number}")
        await raw.greet(status=status.encode())
        await connection.ready()

        async def turn(size: int) -> None:
            await pace.take(size)
            await connection.drain()

        sending = PeerRelay(self.relay, connection, number, pace, self.clock, turn, is_limited=is_limited)
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


def in_order(envelopes: Iterable[Envelope]) -> list[bytes]:
    return sorted(envelope.raw for envelope in envelopes)


# What a peer wants


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (StatusOptions(), {NEWS, SPORT}),
        (StatusOptions(bloom=FULL_BLOOM), {NEWS, SPORT}),
        (StatusOptions(bloom=b""), {NEWS, SPORT}),
        (StatusOptions(bloom=bloom_of([SPORT])), {SPORT}),
        (StatusOptions(bloom=EMPTY_BLOOM), set()),
        (StatusOptions(topic_interest=frozenset({NEWS})), {NEWS}),
        (StatusOptions(topic_interest=frozenset({NEWS, SPORT})), {NEWS, SPORT}),
        (StatusOptions(topic_interest=frozenset()), set()),
        (StatusOptions(topic_interest=frozenset({NEWS}), bloom=FULL_BLOOM), {NEWS}),
        (StatusOptions(topic_interest=frozenset({NEWS}), bloom=EMPTY_BLOOM), {NEWS}),
        (StatusOptions(topic_interest=frozenset(), bloom=FULL_BLOOM), set()),
        (StatusOptions(light_node=True, bloom=bloom_of([NEWS])), {NEWS}),
    ],
)
@in_simulated_time
async def test_peer_gets_the_topics_of_its_interest_else_of_its_bloom_filter(
    options: StatusOptions, wanted: set[Topic]
) -> None:
    envelopes = [make_envelope(number, topic=topic) for number, topic in enumerate([NEWS, SPORT, NEWS, SPORT])]
    async with running_hub() as hub:
        peer = await hub.join(replace(options, pow_requirement=0.0))

        hub.publish(*envelopes)
        await pass_time(5.0)

        assert peer.heard == [envelope for envelope in envelopes if envelope.topic in wanted]


@in_simulated_time
async def test_peer_gets_what_has_at_least_the_work_that_it_asks_for() -> None:
    envelopes = new_envelopes(20)
    pows = sorted(envelope.pow() for envelope in envelopes)
    async with running_hub() as hub:
        for required in (0.0, pows[0], pows[10], pows[-1], pows[-1] * 1.0001):
            await hub.join(StatusOptions(pow_requirement=required))

        hub.publish(*envelopes)
        await pass_time(5.0)

        for peer in hub.neighbours:
            required = peer.connection.settings.pow_requirement
            assert peer.heard == [envelope for envelope in envelopes if envelope.pow() >= required]
        assert [len(peer.heard) for peer in hub.neighbours][::4] == [20, 0]


@in_simulated_time
async def test_peer_that_asks_for_no_certain_work_gets_what_the_specification_says() -> None:
    envelopes = [make_envelope(number, ttl=10) for number in range(20)]
    assert {envelope.pow() >= DEFAULT_POW_REQUIREMENT for envelope in envelopes} == {True, False}
    async with running_hub() as hub:
        peer = await hub.join(StatusOptions())

        hub.publish(*envelopes)
        await pass_time(1.0)

        assert peer.heard == [envelope for envelope in envelopes if envelope.pow() >= DEFAULT_POW_REQUIREMENT]


@in_simulated_time
async def test_work_of_an_envelope_from_the_future_is_counted_as_its_receiver_counts_it() -> None:
    envelope = make_envelope(1, created=NOW + 5)
    async with running_hub() as hub:
        strict = await hub.join(StatusOptions(pow_requirement=envelope.pow()))
        lenient = await hub.join(StatusOptions(pow_requirement=envelope.pow(5)))

        hub.publish(envelope, ahead=5)
        await pass_time(1.0)

        assert (strict.heard, lenient.heard) == ([], [envelope])


# Who gets it


@in_simulated_time
async def test_envelope_goes_to_everyone_but_its_sender_once() -> None:
    envelopes = new_envelopes(5)
    async with running_hub() as hub:
        sender, *others = [await hub.join() for _ in range(4)]

        hub.publish(*envelopes, sender=sender)
        await pass_time(60.0)
        hub.publish(*envelopes, sender=sender)
        await pass_time(60.0)

        assert sender.heard == []
        assert [peer.heard for peer in others] == [envelopes] * 3
        assert count_of(hub.relay.metrics.relayed) == 15


@in_simulated_time
async def test_envelope_does_not_go_to_a_peer_that_has_sent_it_before_it_was_bundled() -> None:
    first, second = new_envelopes(2)
    async with running_hub() as hub:
        a, b, c = [await hub.join() for _ in range(3)]

        hub.publish(first, sender=a)
        await pass_time(BUNDLE_INTERVAL_S / 3)
        hub.publish(second, sender=a)  # waits for the next bundle
        await pass_time(BUNDLE_INTERVAL_S / 3)
        hub.publish(second, sender=b)
        await pass_time(5.0)

        assert (a.heard, b.heard, c.heard) == ([], [first], [first, second])


@in_simulated_time
async def test_envelope_does_not_go_to_a_peer_that_has_sent_it_while_its_limit_held_it_back() -> None:
    first, second, third = new_envelopes(3)
    async with running_hub() as hub:
        by_topic = await hub.join(StatusOptions(pow_requirement=0.0, packet_rate_limits=RateLimits(topic=1)))
        by_packet = await hub.join(StatusOptions(pow_requirement=0.0, packet_rate_limits=RateLimits(peer=1)))
        sender = await hub.join()

        hub.publish(first, sender=sender)
        await pass_time(0.1)
        hub.publish(second, third, sender=sender)
        await pass_time(0.5)  # bundled by now
        hub.publish(second, sender=by_topic)
        hub.publish(second, sender=by_packet)
        await pass_time(10.0)

        assert by_topic.heard == by_packet.heard == [first, third]


@in_simulated_time
async def test_light_node_relays_its_own_envelopes_only() -> None:
    others, own = make_envelope(1), make_envelope(2)
    async with running_hub(light_node=True) as hub:
        sender, peer = await hub.join(), await hub.join()

        hub.publish(others, sender=sender)
        hub.publish(own, is_own=True)
        await pass_time(5.0)

        assert sender.heard == peer.heard == [own]
        assert hub.relay.usage == (1, len(own.raw))


@in_simulated_time
async def test_what_came_outside_gossip_is_never_relayed() -> None:
    history, live = make_envelope(1), make_envelope(2)
    async with running_hub() as hub:
        peer = await hub.join()

        hub.publish(history, is_p2p=True)
        hub.publish(live)
        await pass_time(5.0)

        assert peer.heard == [live]


# Expiry


@in_simulated_time
async def test_expired_envelope_is_not_relayed() -> None:
    expired, last_second = make_envelope(1, created=NOW - 51), make_envelope(2, created=NOW - 50)
    async with running_hub() as hub:
        peer = await hub.join()

        hub.publish(expired, last_second)
        await pass_time(5.0)

        assert peer.heard == [last_second]
        assert hub.relay.usage[0] == 1


@in_simulated_time
async def test_envelope_that_expires_while_it_waits_for_its_bundle_is_not_relayed() -> None:
    first, second, third = make_envelope(1), make_envelope(2, created=NOW - 50), make_envelope(3)
    async with running_hub() as hub:
        peer = await hub.join()

        hub.publish(first)
        await pass_time(BUNDLE_INTERVAL_S / 2)
        hub.publish(second, third)
        await pass_time(5.0)

        assert peer.heard == [first, third]


ONE = len(make_envelope(0).raw)


@pytest.mark.parametrize(
    "limits",
    [
        StatusOptions(pow_requirement=0.0, byte_rate_limits=RateLimits(peer=3 * ONE)),
        StatusOptions(pow_requirement=0.0, packet_rate_limits=RateLimits(topic=1)),
    ],
)
@in_simulated_time
async def test_envelope_that_expires_while_a_limit_holds_it_back_is_not_relayed(limits: StatusOptions) -> None:
    # One goes out at a time, after a while; they expire at NOW, NOW, NOW + 2, NOW + 2, NOW + 4...
    envelopes = [make_envelope(number, created=NOW - 50 + number // 2 * 2, ttl=50) for number in range(8)]
    async with running_hub() as hub:
        peer, unlimited = await hub.join(limits), await hub.join()

        hub.publish(*envelopes)
        await pass_time(60.0)

        assert unlimited.heard == envelopes
        assert 3 <= len(peer.heard) < 8
        for time, heard in peer.packets:
            assert [envelope for envelope in heard if envelope.expiry < NOW + time] == []


# Bundles


@in_simulated_time
async def test_first_envelope_after_a_pause_goes_at_once_and_what_follows_after_the_interval_together() -> None:
    envelopes = new_envelopes(7)
    async with running_hub() as hub:
        peer = await hub.join()

        for at in (0.0, 5.0):
            await pass_time(at)
            started, before = hub.clock(), len(peer.packets)
            hub.publish(envelopes[0])
            await pass_time(BUNDLE_INTERVAL_S / 4)
            for envelope in envelopes[1:4]:
                hub.publish(envelope)
            await pass_time(BUNDLE_INTERVAL_S / 4)
            hub.publish(*envelopes[4:])
            await pass_time(BUNDLE_INTERVAL_S)

            packets = peer.packets[before:]
            assert [heard for _, heard in packets] == [envelopes[:1], envelopes[1:]]
            expected = pytest.approx([started, started + BUNDLE_INTERVAL_S], abs=1e-3)
            assert [NOW + time for time in peer.times[before:]] == expected
            hub.sightings.clear()


@in_simulated_time
async def test_bundles_are_cut_at_their_longest_and_a_longer_envelope_goes_alone() -> None:
    small = large_envelopes(100, 10_000)
    large = make_envelope(1000, data_bytes=MAX_PACKET_BYTES - 100)
    async with running_hub() as hub:
        peer = await hub.join()

        hub.publish(*small[:50], large, *small[50:])
        await pass_time(5.0)

        assert peer.heard == [*small[:50], large, *small[50:]]
        alone = [heard for _, heard in peer.packets if large in heard]
        assert alone == [[large]]
        others = sorted(size for (_, heard), size in zip(peer.packets, peer.sizes, strict=True) if heard != [large])
        assert others[-1] <= MAX_BUNDLE_BYTES
        assert len(others) == 18  # 6 fit into each, 50 come before the large one and 50 after it
        assert max(peer.sizes) <= MAX_PACKET_BYTES


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a packet of envelopes was encoded, and one compressed."""
    counts: Counter[str] = Counter()
    compress = snappy.compress

    def encode_counted(raws: list[bytes]) -> bytes:
        counts["encoded"] += 1
        return encode_envelopes(raws)

    def compress_counted(data: bytes) -> bytes:
        counts["compressed"] += 1
        return compress(data)

    monkeypatch.setattr(relay_module, "encode_envelopes", encode_counted)
    monkeypatch.setattr(snappy, "compress", compress_counted)
    return counts


@in_simulated_time
async def test_packet_is_encoded_and_compressed_once_for_all_who_want_the_same(encoded: Counter[str]) -> None:
    news, sport = new_envelopes(10), new_envelopes(10, first=100, topic=SPORT)
    async with running_hub() as hub:
        everything = [await hub.join() for _ in range(20)]
        only_news = [await hub.join(StatusOptions(0.0, topic_interest=frozenset({NEWS}))) for _ in range(10)]
        only_news += [await hub.join(StatusOptions(0.0, bloom=bloom_of([NEWS]))) for _ in range(10)]
        nothing = await hub.join(StatusOptions(0.0, bloom=EMPTY_BLOOM))
        sender = await hub.join()
        encoded.clear()

        hub.publish(*news, *sport, sender=sender)
        await pass_time(5.0)

        assert all(peer.heard == news + sport for peer in everything)
        assert all(peer.heard == news for peer in only_news)
        assert sender.heard == nothing.heard == []
        assert encoded == {"encoded": 2, "compressed": 2}


@in_simulated_time
async def test_same_envelopes_have_the_same_payload_as_long_as_it_is_wanted(encoded: Counter[str]) -> None:
    lives = [LiveEnvelope(envelope, envelope.hash()) for envelope in large_envelopes(60, 100_000)]
    async with running_hub() as hub:
        relay = hub.relay

        first = relay.share(lives[:1])

        assert relay.share(lives[:1]) is first
        assert relay.share(lives[1:2]) is not first
        assert relay.share(lives[:2]) is not first
        assert decode_envelopes(first.raw) == [lives[0].envelope]
        for live in lives[2:]:  # more than is kept
            relay.share([live])
        assert relay.share(lives[-1:]) is relay.share(lives[-1:])
        encoded.clear()
        assert relay.share(lives[:1]) is not first
        assert encoded["encoded"] == 1


@in_simulated_time
async def test_packets_of_the_tiniest_envelopes_take_no_more_memory_than_any() -> None:
    count = 20_000
    lives = [LiveEnvelope(envelope, envelope.hash()) for envelope in new_envelopes(count, data_bytes=10)]
    async with running_hub() as hub:
        tracemalloc.start()
        for live in lives:
            hub.relay.share([live])
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()

        assert taken < 1.5 * MAX_SHARED_BYTES


# The pool


@in_simulated_time
async def test_peer_that_comes_late_gets_what_floats() -> None:
    short, long = make_envelope(1, ttl=5), make_envelope(2, ttl=60)
    async with running_hub() as hub:
        early = await hub.join()
        hub.publish(short, long)
        await pass_time(10.0)

        late = await hub.join()
        await pass_time(1.0)
        picky = await hub.join(StatusOptions(0.0, topic_interest=frozenset({SPORT})))
        await pass_time(100.0)

        assert early.heard == [short, long]
        assert late.heard == [long]
        assert picky.heard == []


@in_simulated_time
async def test_address_that_connects_again_and_again_gets_what_floats_only_so_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    floating = [make_envelope(number, ttl=1000, data_bytes=1000) for number in range(20)]
    pool = sum(len(envelope.raw) + LOOKED_AT_BYTES for envelope in floating)
    monkeypatch.setattr(relay_module, "BACKLOG_BURST_BYTES", 2 * pool)
    monkeypatch.setattr(relay_module, "BACKLOG_BYTES_PER_MINUTE", pool)
    new, newer = make_envelope(100, ttl=1000), make_envelope(101, ttl=1000)

    async with running_hub() as hub:
        for envelope in floating:
            hub.publish(envelope)
            await pass_time(BUNDLE_INTERVAL_S + 0.01)
        often = []
        for _ in range(5):
            often.append(await hub.join())
            await pass_time(0.2)
        allowed = await hub.join(is_limited=False)
        hub.publish(new)
        await pass_time(1.0)

        heard = [len(neighbour.heard) for neighbour in often]
        assert heard[:2] == [21, 21]  # and `new`
        assert heard[2] in (1, 2)  # a minute's worth has not come back yet
        assert heard[3:] == [1, 1]
        assert allowed.heard == [*floating, new]

        await pass_time(70.0)
        later = await hub.join()
        hub.publish(newer)
        await pass_time(1.0)
        assert len(later.heard) >= 21
        assert later.heard[-1] == newer


@in_simulated_time
async def test_to_look_through_what_floats_counts_also_if_nothing_of_it_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay_module, "BACKLOG_BURST_BYTES", 50 * LOOKED_AT_BYTES)
    monkeypatch.setattr(relay_module, "BACKLOG_BYTES_PER_MINUTE", 60)
    async with running_hub() as hub:
        for number in range(20):
            hub.publish(make_envelope(number, ttl=1000))
            await pass_time(BUNDLE_INTERVAL_S + 0.01)

        for _ in range(3):  # the third uses up what is left
            await hub.join(StatusOptions(0.0, bloom=EMPTY_BLOOM))
            await pass_time(0.1)
        late = await hub.join()
        await pass_time(1.0)

        assert late.heard == []


@in_simulated_time
async def test_those_who_come_together_go_through_what_floats_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_hub() as hub:
        for number in range(50):
            hub.publish(make_envelope(number, ttl=1000))
            await pass_time(BUNDLE_INTERVAL_S + 0.01)
        gone_through = 0
        next_bundle = hub.relay.next

        async def noted(position: int) -> tuple[Bundle, int]:
            nonlocal gone_through
            gone_through += 1
            return await next_bundle(position)

        monkeypatch.setattr(hub.relay, "next", noted)
        for _ in range(5):
            await hub.join(StatusOptions(0.0, bloom=EMPTY_BLOOM))
        before = gone_through
        seen: list[int] = []
        while gone_through < 5 * 51:
            await asyncio.sleep(0)
            seen.append(gone_through)

        assert max(after - earlier for earlier, after in pairwise([before, *seen])) == 1


@in_simulated_time
async def test_pool_is_emptied_of_what_has_expired_also_while_nothing_comes() -> None:
    short, long = new_envelopes(3), make_envelope(100, ttl=500)
    async with running_hub() as hub:
        hub.publish(long)
        await pass_time(1.0)
        hub.publish(*short)  # behind one that stays
        await pass_time(1.0)
        assert hub.relay.usage == (4, sum(len(envelope.raw) for envelope in [long, *short]))

        await pass_time(50.0 + PURGE_INTERVAL_S)
        assert hub.relay.usage == (1, len(long.raw))
        await pass_time(500.0)

        assert hub.relay.usage == (0, 0)


@pytest.mark.parametrize("data_bytes", [10, 5000])
@in_simulated_time
async def test_pool_is_bounded_and_loses_the_oldest_first(data_bytes: int) -> None:
    envelopes = new_envelopes(40, data_bytes=data_bytes)
    room = 10 * (len(envelopes[0].raw) + ENVELOPE_OVERHEAD_BYTES)
    async with running_hub(pool_bytes=room) as hub:
        for envelope in envelopes:
            hub.publish(envelope)
            await pass_time(BUNDLE_INTERVAL_S + 0.01)
        count, size = hub.relay.usage

        late = await hub.join()
        await pass_time(1.0)

        assert 9 <= count <= 10
        assert size == sum(len(envelope.raw) for envelope in envelopes[-count:])
        assert late.heard == envelopes[-count:]


@in_simulated_time
async def test_bundle_that_alone_is_too_much_for_the_pool_is_dropped() -> None:
    async with running_hub(pool_bytes=1000) as hub:
        peer = await hub.join()

        hub.publish(make_envelope(1, data_bytes=5000))
        await pass_time(1.0)

        assert hub.relay.usage == (0, 0)
        assert peer.heard == []


@in_simulated_time
async def test_others_have_their_turn_while_one_goes_through_the_whole_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_hub() as hub:
        for number in range(100):
            hub.publish(make_envelope(number, ttl=1000))
            await pass_time(BUNDLE_INTERVAL_S + 0.01)
        gone_through: list[int] = []
        next_bundle = hub.relay.next

        async def noted(position: int) -> tuple[Bundle, int]:
            gone_through.append(position)
            return await next_bundle(position)

        monkeypatch.setattr(hub.relay, "next", noted)
        await hub.join(StatusOptions(0.0, bloom=EMPTY_BLOOM))
        seen_between = []
        for _ in range(200):
            await asyncio.sleep(0)
            seen_between.append(len(gone_through))

        assert len(gone_through) == 101, gone_through
        assert seen_between[-1] == 101
        assert max(after - before for before, after in pairwise(seen_between)) == 1


@in_simulated_time
async def test_others_have_their_turn_while_thousands_are_told_of_a_bundle() -> None:
    async with running_hub() as hub:
        told: list[int] = []

        async def follow(number: int) -> None:
            _, position = await hub.relay.next(0)
            told.append(number)
            await hub.relay.next(position)

        async with asyncio.TaskGroup() as following:
            tasks = [following.create_task(follow(number)) for number in range(2000)]
            await turns(2)
            hub.publish(make_envelope(1))
            told_before = []
            while len(told) < len(tasks):
                told_before.append(len(told))
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()

        assert told == list(range(2000))
        assert max(after - before for before, after in pairwise(told_before)) <= WOKEN_AT_ONCE
        assert len(told_before) < 100


@in_simulated_time
async def test_others_have_their_turn_while_thousands_become_bundles(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_hub() as hub:
        added: list[int] = []
        add = Pool.add

        def noted(pool: Pool, envelopes: Sequence[LiveEnvelope], now: float) -> None:
            added.append(len(envelopes))
            add(pool, envelopes, now)

        monkeypatch.setattr(Pool, "add", noted)
        for number in range(2 * BUNDLED_AT_ONCE + 1):
            hub.publish(make_envelope(number, data_bytes=1))
        added_before = []
        while sum(added) < 2 * BUNDLED_AT_ONCE + 1:
            added_before.append(len(added))
            await asyncio.sleep(0)

        assert added == [BUNDLED_AT_ONCE, BUNDLED_AT_ONCE, 1]
        assert max(after - before for before, after in pairwise([*added_before, len(added)])) == 1
        assert hub.relay.usage[0] == 2 * BUNDLED_AT_ONCE + 1


@in_simulated_time
async def test_who_waited_for_a_bundle_and_is_gone_leaves_nothing_behind() -> None:
    async with running_hub() as hub:
        tracemalloc.start()
        try:
            for _ in range(3000):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0):
                        await hub.relay.next(0)
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

        assert kept < 100_000


@in_simulated_time
async def test_more_may_come_between_two_bundles_than_the_feed_holds() -> None:
    envelopes = new_envelopes(41)
    async with running_hub(feed=Feed(max_envelopes=8)) as hub:
        peer = await hub.join()

        hub.publish(envelopes[0])
        for at in range(1, 41, 8):
            await pass_time(BUNDLE_INTERVAL_S / 6)
            hub.publish(*envelopes[at : at + 8])
        await pass_time(1.0)

        assert [heard for _, heard in peer.packets] == [envelopes[:1], envelopes[1:]]


@in_simulated_time
async def test_relay_says_how_much_it_missed(caplog: pytest.LogCaptureFixture) -> None:
    async with running_hub() as hub:
        peer = await hub.join()
        envelopes = [make_envelope(number, data_bytes=10) for number in range(MAX_FEED_ENVELOPES + 3)]

        hub.publish(*envelopes)
        await pass_time(5.0)

        assert peer.heard == envelopes[3:]
        assert count_of(hub.relay.metrics.relay_missed) == 3
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warnings == ["relay missed envelopes count=3"]


# Slow peers


@in_simulated_time
async def test_slow_peer_holds_up_nobody_misses_what_has_left_the_pool_and_gets_the_rest() -> None:
    envelopes = large_envelopes(60, 100_000)
    pool_bytes = 1_000_000
    async with running_hub(pool_bytes=pool_bytes) as hub:
        slow, fast = await hub.join(reads=False), await hub.join()
        times = []
        for envelope in envelopes:
            times.append(asyncio.get_running_loop().time())
            hub.publish(envelope)
            await pass_time(BUNDLE_INTERVAL_S + 0.01)

        assert fast.heard == envelopes
        assert fast.times == pytest.approx(times, abs=1e-3)
        slow.read()
        await pass_time(1.0)

        # What was under way when it stopped to read, and what was in the pool when it went on.
        under_way = [envelopes.index(envelope) for envelope in slow.heard if envelope in envelopes[:30]]
        in_pool = [envelopes.index(envelope) for envelope in slow.heard if envelope in envelopes[30:]]
        assert under_way == list(range(len(under_way)))
        assert in_pool == list(range(60 - len(in_pool), 60))
        assert len(slow.heard) == len(under_way) + len(in_pool)
        assert 8 <= len(in_pool) <= 10
        assert len(under_way) * 100_000 <= WRITE_HIGH_BYTES + 1_000_000  # buffers of both ends


@in_simulated_time
async def test_what_waits_for_a_slow_peer_is_bounded() -> None:
    async with running_hub() as hub:
        slow = await hub.join(reads=False)
        hub.publish(*large_envelopes(100, 100_000))

        await pass_time(15.0)

        held = hub.neighbours[0].connection._pipe.transport.get_write_buffer_size()  # noqa: SLF001 - nobody else knows
        assert 0 < held <= WRITE_HIGH_BYTES + 2 * MAX_BUNDLE_BYTES
        slow.read()
        await pass_time(5.0)
        assert len(slow.heard) == 100


@in_simulated_time
async def test_peer_that_goes_away_ends_its_part_and_no_other() -> None:
    envelopes = new_envelopes(3)
    async with running_hub() as hub:
        gone, stays = await hub.join(), await hub.join()
        hub.publish(envelopes[0])
        await pass_time(1.0)

        await gone.raw.close()
        hub.publish(*envelopes[1:])
        await pass_time(5.0)

        assert hub.tasks[0].done()
        assert hub.tasks[1].done()
        assert stays.heard == envelopes


# Limits that the peer has announced


def assert_within(peer: Neighbour, costs: Sequence[float], rate: float) -> None:
    """See that what was sent kept to a bucket that gains `rate` a second, holds as much, and was full at first."""
    level, at = rate, 0.0
    for time, cost in zip(peer.times, costs, strict=True):
        level = min(rate, level + (time - at) * rate) - cost
        at = time
        assert level >= -1e-3 * rate, f"over its limit at {time}"


@pytest.mark.parametrize("limits", [RateLimits(peer=2), RateLimits(ip=2), RateLimits(ip=10, peer=2, topic=1000)])
@in_simulated_time
async def test_packets_per_second_are_kept(limits: RateLimits) -> None:
    envelopes = new_envelopes(30)
    async with running_hub() as hub:
        peer, free = await hub.join(StatusOptions(0.0, packet_rate_limits=limits)), await hub.join()

        for envelope in envelopes:  # each in a bundle of its own: three a second
            hub.publish(envelope)
            await pass_time(BUNDLE_INTERVAL_S + 0.01)
        assert free.heard == envelopes
        await pass_time(20.0)

        assert peer.heard == envelopes
        assert_within(peer, [1] * 30, rate=2)
        assert peer.times[-1] == pytest.approx(
            (30 - 1) / (2 * SHARE), abs=BUNDLE_INTERVAL_S
        )  # nor slower than it must be


@in_simulated_time
async def test_bytes_per_second_are_kept_and_no_packet_is_longer() -> None:
    envelopes = large_envelopes(40, 1000)
    async with running_hub() as hub:
        peer = await hub.join(StatusOptions(0.0, byte_rate_limits=RateLimits(ip=9000, peer=5000)))

        hub.publish(*envelopes)
        await pass_time(30.0)

        assert peer.heard == envelopes
        assert max(peer.sizes) <= 5000
        assert_within(peer, peer.sizes, rate=5000)
        assert peer.times[-1] == pytest.approx(sum(peer.sizes) / (5000 * SHARE) - BURST_S, abs=0.1)


@in_simulated_time
async def test_envelope_longer_than_may_go_at_once_goes_when_as_much_time_has_passed() -> None:
    small, large = large_envelopes(2, 10_000)[0], make_envelope(5, data_bytes=35_000)
    async with running_hub() as hub:
        peer = await hub.join(StatusOptions(0.0, byte_rate_limits=RateLimits(peer=10_000)))

        hub.publish(large, small)
        await pass_time(30.0)

        assert peer.heard == [large, small]
        assert peer.times == pytest.approx([3.9, 5.1], abs=0.1)


@pytest.mark.parametrize(
    "options",
    [
        StatusOptions(0.0, packet_rate_limits=RateLimits(topic=10)),
        StatusOptions(0.0, byte_rate_limits=RateLimits(topic=10 * ONE)),
    ],
)
@in_simulated_time
async def test_limits_of_topics_are_kept_and_other_topics_do_not_wait(options: StatusOptions) -> None:
    news, sport = new_envelopes(20), new_envelopes(3, first=100, topic=SPORT)
    async with running_hub() as hub:
        peer = await hub.join(options)

        hub.publish(*news, *sport)
        await pass_time(30.0)

        assert [envelope for envelope in peer.heard if envelope.topic == SPORT] == sport
        assert [envelope for envelope in peer.heard if envelope.topic == NEWS] == news
        assert peer.packets[0][1] == news[:4] + sport
        assert_within(peer, [sum(envelope.topic == NEWS for envelope in heard) for _, heard in peer.packets], rate=10)
        assert peer.times[-1] == pytest.approx((20 - 4) / (10 * SHARE), abs=2 * BUNDLE_INTERVAL_S)


@in_simulated_time
async def test_envelopes_that_are_held_back_for_a_peer_are_bounded_and_the_oldest_go_first() -> None:
    envelopes = [make_envelope(number, ttl=5000, data_bytes=10_000) for number in range(60)]
    fit = MAX_HELD_BYTES // (len(envelopes[0].raw) + ENVELOPE_OVERHEAD_BYTES)
    async with running_hub() as hub:
        peer = await hub.join(StatusOptions(0.0, packet_rate_limits=RateLimits(topic=1)))

        for number in range(6):
            hub.publish(*envelopes[number * 10 : number * 10 + 10])
            await pass_time(0.01)
        await pass_time(BUNDLE_INTERVAL_S)
        await pass_time(100.0)

        assert peer.heard == [envelopes[0], *envelopes[-fit:]]


@in_simulated_time
async def test_one_envelope_may_be_held_back_however_long_it_is() -> None:
    first, large = make_envelope(1), make_envelope(2, data_bytes=2 * MAX_HELD_BYTES)
    async with running_hub() as hub:
        peer = await hub.join(StatusOptions(0.0, packet_rate_limits=RateLimits(topic=1)))

        hub.publish(first, large)
        await pass_time(5.0)

        assert peer.heard == [first, large]


# Status Updates of the peer


@in_simulated_time
async def test_status_update_takes_effect_on_the_next_bundle() -> None:
    news = new_envelopes(6)
    sport = new_envelopes(6, first=100, topic=SPORT)
    best = max(envelope.pow() for envelope in news)
    updates = [
        (StatusOptions(topic_interest=frozenset({SPORT})), sport[0:1]),
        (StatusOptions(bloom=bloom_of([NEWS])), news[1:2]),
        (StatusOptions(pow_requirement=best * 1.01), []),
        (StatusOptions(pow_requirement=0.0), news[3:4]),
        (StatusOptions(bloom=b""), [news[4], sport[4]]),
        (StatusOptions(), [news[5], sport[5]]),
    ]
    async with running_hub() as hub:
        peer = await hub.join()
        for number, (update, expected) in enumerate(updates):
            peer.update(update)
            await pass_time(0.1)
            before = len(peer.heard)
            hub.publish(news[number], sport[number])
            await pass_time(1.0)

            assert peer.heard[before:] == expected


@in_simulated_time
async def test_status_update_holds_for_what_waits_to_be_bundled() -> None:
    first, second = new_envelopes(2)
    async with running_hub() as hub:
        peer = await hub.join()

        hub.publish(first)
        await pass_time(BUNDLE_INTERVAL_S / 2)
        hub.publish(second)
        peer.update(StatusOptions(bloom=EMPTY_BLOOM))
        await pass_time(5.0)

        assert peer.heard == [first]


@in_simulated_time
async def test_status_update_holds_for_what_a_topics_limit_holds_back() -> None:
    news, sport = new_envelopes(4), new_envelopes(4, first=100, topic=SPORT)
    async with running_hub() as hub:
        peer = await hub.join(StatusOptions(0.0, packet_rate_limits=RateLimits(topic=1)))

        hub.publish(*news, *sport)
        await pass_time(0.5)
        peer.update(StatusOptions(topic_interest=frozenset({SPORT})))
        await pass_time(10.0)

        assert peer.heard == [news[0], *sport]


@in_simulated_time
async def test_limits_may_come_and_go() -> None:
    envelopes = new_envelopes(30)
    async with running_hub() as hub:
        peer = await hub.join()
        hub.publish(*envelopes[:10])
        await pass_time(1.0)
        assert peer.heard == envelopes[:10]

        peer.update(StatusOptions(packet_rate_limits=RateLimits(topic=1)))
        await pass_time(0.1)
        hub.publish(*envelopes[10:20])
        await pass_time(1.0)
        assert peer.heard == envelopes[:11]
        peer.update(StatusOptions(packet_rate_limits=NO_RATE_LIMITS))
        await pass_time(1.0)
        hub.publish(*envelopes[20:])
        await pass_time(1.0)

        assert peer.heard == envelopes


TOPICS = [NEWS, SPORT, Topic(b"\x01\x02\x03\x04")]
OPTIONS = st.builds(
    StatusOptions,
    pow_requirement=st.none() | st.sampled_from([0.0, 0.0002, 0.001, 0.01]),
    bloom=st.none() | st.lists(st.sampled_from(TOPICS)).map(bloom_of) | st.sampled_from([b"", FULL_BLOOM]),
    light_node=st.none() | st.booleans(),
    confirmations=st.none() | st.booleans(),
    topic_interest=st.none() | st.frozensets(st.sampled_from(TOPICS)),
)


@settings(max_examples=25)
@given(status=OPTIONS, steps=st.lists(OPTIONS | st.sampled_from(TOPICS), max_size=25))
def test_whatever_a_peer_updates_it_gets_what_it_then_wants(
    status: StatusOptions, steps: list[StatusOptions | Topic]
) -> None:
    updates_against_model(status, steps)


@in_simulated_time
async def updates_against_model(status: StatusOptions, steps: list[StatusOptions | Topic]) -> None:
    """Let a peer send updates, and envelopes of topics come; compare with what 6/WAKU1 says that it wants."""
    min_pow, topics, bloom = DEFAULT_POW_REQUIREMENT, None, FULL_BLOOM
    expected = []
    async with running_hub() as hub:
        peer = await hub.join(status)
        for number, step in enumerate([status, *steps]):
            if isinstance(step, StatusOptions):
                min_pow = min_pow if step.pow_requirement is None else step.pow_requirement
                if step.topic_interest is not None:
                    topics = step.topic_interest
                elif step.bloom is not None:
                    topics, bloom = None, step.bloom or FULL_BLOOM
                if number:
                    peer.update(step)
                await pass_time(0.01)
                continue
            envelope = make_envelope(number, topic=step, ttl=20)
            hub.publish(envelope)
            await pass_time(BUNDLE_INTERVAL_S + 0.01)
            has_bloom = Interest(bloom=bloom).wants(step)
            if envelope.pow() >= min_pow and (has_bloom if topics is None else step in topics):
                expected.append(envelope)
        assert peer.heard == expected
        assert peer.connection.settings.pow_requirement == min_pow


@in_simulated_time
async def test_peer_that_lifts_its_limit_gets_at_once_what_waited_for_it() -> None:
    envelopes = new_envelopes(3, data_bytes=1000)
    async with running_hub() as hub:
        peer = await hub.join(replace(ALL, byte_rate_limits=RateLimits(peer=100)))
        hub.publish(*envelopes[:2])
        await pass_time(1.0)  # the first takes 10 seconds
        peer.update(StatusOptions(byte_rate_limits=NO_RATE_LIMITS))
        hub.publish(envelopes[2])
        await pass_time(1.0)

        assert peer.heard == envelopes


# Whatever else


@settings(max_examples=12)
@given(seed=st.integers(0, 1 << 32))
def test_everyone_gets_exactly_what_it_wants_and_has_not_sent(seed: int) -> None:
    relay_at_random(random.Random(seed))


@in_simulated_time
async def relay_at_random(rng: random.Random) -> None:
    """Let peers of any interest and limits come, and envelopes of any length, from any of them or two."""
    async with running_hub() as hub:
        for _ in range(rng.randint(1, 6)):
            topics = rng.choice([None, frozenset(rng.sample(TOPICS, rng.randint(0, 3)))])
            limits = RateLimits(topic=rng.choice([0, 0, 2, 10]), peer=rng.choice([0, 0, 3]))
            sizes = RateLimits(peer=rng.choice([0, 0, 20_000]), topic=rng.choice([0, 0, 5000]))
            status = StatusOptions(
                rng.choice([0.0, 0.0, 0.00001]),
                topic_interest=topics,
                packet_rate_limits=limits,
                byte_rate_limits=sizes,
            )
            await hub.join(status)
        envelopes = [
            make_envelope(number, topic=rng.choice(TOPICS), ttl=900, data_bytes=rng.choice([10, 300, 3000]))
            for number in range(rng.randint(1, 60))
        ]
        for envelope in envelopes:
            sender = rng.choice([None, *hub.neighbours])
            hub.publish(envelope, sender=sender, is_own=sender is None)
            if rng.random() < 0.5:
                await pass_time(rng.random() * 0.5)
        await pass_time(100.0)

        for peer in hub.neighbours:
            settings_: PeerSettings = peer.connection.settings
            wanted = [
                envelope
                for envelope in envelopes
                if settings_.interest.wants(envelope.topic)
                and envelope.pow() >= settings_.pow_requirement
                and peer.number not in hub.sightings[envelope.hash()].peers
            ]
            assert in_order(peer.heard) == in_order(wanted)
            if not (settings_.packet_rate_limits.topic or settings_.byte_rate_limits.topic):
                assert peer.heard == wanted  # and in order, unless topics overtake each other
            if settings_.packet_rate_limits.peer:
                assert_within(peer, [1] * len(peer.packets), settings_.packet_rate_limits.peer)
            if settings_.byte_rate_limits.peer:
                assert_within(peer, peer.sizes, settings_.byte_rate_limits.peer)
