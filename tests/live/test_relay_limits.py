"""mailserver.live.relay: slow peers, limits that a peer has announced, and its Status Updates."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.limits.send_rate import BURST_S, USED_SHARE
from mailserver.live.pool import ENVELOPE_OVERHEAD_BYTES, MAX_BUNDLE_BYTES
from mailserver.live.relay import BUNDLE_INTERVAL_S, MAX_HELD_BYTES
from mailserver.metrics.registry import count_of
from mailserver.net.pipe import WRITE_HIGH_BYTES
from mailserver.waku.bloom import EMPTY_BLOOM, FULL_BLOOM, Interest, bloom_of
from mailserver.waku.envelope import Topic
from mailserver.waku.packets import DEFAULT_POW_REQUIREMENT, NO_RATE_LIMITS, RateLimits, StatusOptions
from tests.live.hub import ALL, ONE, TOPICS, assert_within, large_envelopes, new_envelopes, running_hub
from tests.mailservers import NEWS, SPORT, make_envelope
from tests.properties import settings
from tests.simulated_time import in_simulated_time, pass_time
from tests.waiting import until

# Slow peers


@in_simulated_time
async def test_slow_peer_delays_no_other_misses_what_has_left_the_pool_and_gets_the_rest() -> None:
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
        assert count_of(hub.relay.metrics.relay_shed) == 60 - len(slow.heard)


@in_simulated_time
async def test_what_leaves_the_full_pool_is_not_missed_by_peers_that_had_it_or_have_gone() -> None:
    async with running_hub(pool_bytes=1_000_000) as hub:
        slow, fast = await hub.join(reads=False), await hub.join()
        await slow.stop()
        for envelope in large_envelopes(30, 100_000):
            hub.publish(envelope)
            await pass_time(BUNDLE_INTERVAL_S + 0.01)

        assert len(fast.heard) == 30
        assert count_of(hub.relay.metrics.relay_shed) == 0


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
        await until(hub.tasks[0].done)
        hub.publish(*envelopes[1:])
        await pass_time(5.0)

        assert hub.tasks[1].done()
        assert stays.heard == envelopes


# Limits that the peer has announced


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
            (30 - 1) / (2 * USED_SHARE), abs=BUNDLE_INTERVAL_S
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
        assert peer.times[-1] == pytest.approx(sum(peer.sizes) / (5000 * USED_SHARE) - BURST_S, abs=0.1)


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
        assert peer.times[-1] == pytest.approx((20 - 4) / (10 * USED_SHARE), abs=2 * BUNDLE_INTERVAL_S)


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
