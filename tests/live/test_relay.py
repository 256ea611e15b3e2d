"""mailserver.live.relay: what a peer wants, who gets what, expiry, and the pool."""

import asyncio
import contextlib
import logging
import random
import tracemalloc
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.live import relay as relay_module
from mailserver.live.feed import MAX_FEED_ENVELOPES, Feed, LiveEnvelope
from mailserver.live.pool import ENVELOPE_OVERHEAD_BYTES, Bundle, Pool
from mailserver.live.relay import BUNDLE_INTERVAL_S, BUNDLED_AT_ONCE, LOOKED_AT_BYTES, PURGE_INTERVAL_S, WOKEN_AT_ONCE
from mailserver.metrics.registry import count_of
from mailserver.waku.bloom import EMPTY_BLOOM, FULL_BLOOM, bloom_of
from mailserver.waku.envelope import Envelope, Topic
from mailserver.waku.packets import DEFAULT_POW_REQUIREMENT, PeerSettings, RateLimits, StatusOptions
from tests.live.hub import ONE, TOPICS, assert_within, new_envelopes, running_hub
from tests.mailservers import NEWS, NOW, SPORT, make_envelope
from tests.properties import settings
from tests.simulated_time import in_simulated_time, pass_time
from tests.waiting import turns


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
async def test_peers_that_connect_together_go_through_the_pool_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
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
async def test_peer_that_goes_while_it_waits_for_a_bundle_leaves_nothing_behind() -> None:
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
