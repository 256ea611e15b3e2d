"""mailserver.limits.send_rate, in simulated time: how long a packet waits is what is tested."""

import asyncio

import pytest

from mailserver.limits.send_rate import MAX_DEBT_S, MAX_TOPICS, SendRate
from mailserver.waku.envelope import Topic
from mailserver.waku.packets import MAX_PACKET_BYTES, NO_RATE_LIMITS, PeerSettings, RateLimits
from tests.mailservers import NEWS, SPORT
from tests.simulated_time import in_simulated_time, pass_time


def send_rate_of(*, packets: RateLimits = NO_RATE_LIMITS, sizes: RateLimits = NO_RATE_LIMITS) -> SendRate:
    """The send rate for a peer that has announced these limits."""
    send_rate = SendRate()
    send_rate.follow(PeerSettings(packet_rate_limits=packets, byte_rate_limits=sizes))
    return send_rate


def now() -> float:
    return asyncio.get_running_loop().time()


async def times_of(send_rate: SendRate, sizes: list[int]) -> list[float]:
    """Take packets of these sizes one after another; return when each may be sent."""
    times = []
    for size in sizes:
        await send_rate.take(size)
        times.append(now())
    return times


@in_simulated_time
async def test_nothing_waits_without_limits() -> None:
    send_rate = send_rate_of()

    assert await times_of(send_rate, [MAX_PACKET_BYTES] * 100) == [0.0] * 100
    assert not send_rate.limits_topics
    assert send_rate.max_packet_bytes == MAX_PACKET_BYTES


@pytest.mark.parametrize(
    "limits",
    [RateLimits(10, 0, 0), RateLimits(0, 10, 0), RateLimits(10, 500, 0), RateLimits(500, 10, 0), RateLimits(10, 10, 3)],
)
@in_simulated_time
async def test_packets_keep_to_the_lower_limit_of_address_and_peer(limits: RateLimits) -> None:
    times = await times_of(send_rate_of(packets=limits), [1_000_000] * 30)

    # Of eight a second, half a second's worth at once, then one each eighth of a second.
    assert times == pytest.approx([0.0] * 4 + [number / 8 for number in range(1, 27)], abs=1e-4)


@pytest.mark.parametrize("limits", [RateLimits(1000, 0, 0), RateLimits(0, 1000, 0), RateLimits(2000, 1000, 1)])
@in_simulated_time
async def test_bytes_keep_to_the_lower_limit_of_address_and_peer(limits: RateLimits) -> None:
    times = await times_of(send_rate_of(sizes=limits), [400] * 7)

    assert times == pytest.approx([0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0], abs=1e-4)


@in_simulated_time
async def test_slower_of_packets_and_bytes_decides() -> None:
    by_bytes = await times_of(send_rate_of(packets=RateLimits(peer=100), sizes=RateLimits(peer=250)), [100] * 3)
    started = now()
    by_packets = await times_of(send_rate_of(packets=RateLimits(peer=1), sizes=RateLimits(peer=10_000)), [100] * 3)

    assert by_bytes == pytest.approx([0.0, 0.5, 1.0], abs=1e-4)
    assert by_packets == pytest.approx([started, started + 1.25, started + 2.5], abs=1e-4)


@in_simulated_time
async def test_packet_longer_than_may_go_at_once_waits_as_long_as_its_bytes_take() -> None:
    assert await times_of(send_rate_of(sizes=RateLimits(peer=250)), [800, 10]) == pytest.approx([3.5, 3.55], abs=1e-4)


@in_simulated_time
async def test_tasks_that_send_wait_in_their_order() -> None:
    send_rate = send_rate_of(packets=RateLimits(peer=1))
    order: list[tuple[str, float]] = []

    async def send(name: str) -> None:
        await send_rate.take(100)
        order.append((name, round(now(), 3)))

    await asyncio.gather(*(send(name) for name in "abcd"))

    assert order == [("a", 0.0), ("b", 1.25), ("c", 2.5), ("d", 3.75)]


@in_simulated_time
async def test_pause_gives_back_half_a_seconds_worth_and_no_more() -> None:
    send_rate = send_rate_of(packets=RateLimits(peer=10))
    await times_of(send_rate, [1] * 4)

    await pass_time(100.0)
    times = await times_of(send_rate, [1] * 5)

    assert times == pytest.approx([100.0] * 4 + [100.125], abs=1e-4)


@in_simulated_time
async def test_same_settings_again_change_nothing_and_others_begin_anew() -> None:
    send_rate, settings = SendRate(), PeerSettings(packet_rate_limits=RateLimits(peer=2))
    send_rate.follow(settings)
    await times_of(send_rate, [1, 1])

    send_rate.follow(PeerSettings(pow_requirement=3.0, packet_rate_limits=RateLimits(peer=2)))
    assert await times_of(send_rate, [1]) == pytest.approx([1.25], abs=1e-4)
    send_rate.follow(PeerSettings(packet_rate_limits=RateLimits(peer=1)))
    assert await times_of(send_rate, [1, 1]) == pytest.approx([1.25, 2.5], abs=1e-4)
    send_rate.follow(PeerSettings())

    assert await times_of(send_rate, [1] * 50) == pytest.approx([2.5] * 50, abs=1e-4)


@in_simulated_time
async def test_waiting_task_follows_new_limits_as_soon_as_they_are_announced() -> None:
    send_rate = send_rate_of(sizes=RateLimits(peer=1))
    order: list[tuple[str, float]] = []

    async def send(name: str) -> None:
        await send_rate.take(1000)
        order.append((name, round(now(), 3)))

    waiting = [asyncio.create_task(send(name)) for name in "abc"]
    await pass_time(10.0)
    send_rate.follow(PeerSettings(byte_rate_limits=RateLimits(peer=1000)))
    await asyncio.wait(waiting)

    assert order == [("a", 10.75), ("b", 12.0), ("c", 13.25)]


@in_simulated_time
async def test_waiting_task_sends_at_once_when_there_are_no_limits_any_more() -> None:
    send_rate = send_rate_of(sizes=RateLimits(peer=1))
    waiting = asyncio.create_task(send_rate.take(1_000_000))
    await pass_time(10.0)

    send_rate.follow(PeerSettings())
    await waiting

    assert now() == pytest.approx(10.0, abs=1e-4)


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (RateLimits(), MAX_PACKET_BYTES),
        (RateLimits(peer=1000), 400),
        (RateLimits(peer=1), 1),
        (RateLimits(ip=700, peer=1000), 280),
        (RateLimits(topic=10), MAX_PACKET_BYTES),
        (RateLimits(peer=1 << 63), MAX_PACKET_BYTES),
    ],
)
@in_simulated_time
async def test_no_packet_is_to_be_longer_than_may_go_at_once(limits: RateLimits, expected: int) -> None:
    assert send_rate_of(sizes=limits).max_packet_bytes == expected


@in_simulated_time
async def test_each_topic_has_its_own_limit_of_envelopes() -> None:
    send_rate = send_rate_of(packets=RateLimits(topic=10))

    assert send_rate.limits_topics
    assert [send_rate.take_topic(NEWS, 100) for _ in range(6)] == [True, True, True, True, False, False]
    assert send_rate.take_topic(SPORT, 100)
    await pass_time(0.13)
    assert [send_rate.take_topic(NEWS, 100) for _ in range(2)] == [True, False]


@in_simulated_time
async def test_each_topic_has_its_own_limit_of_bytes() -> None:
    send_rate = send_rate_of(sizes=RateLimits(topic=2500))

    assert send_rate.limits_topics
    assert [send_rate.take_topic(NEWS, 400) for _ in range(3)] == [True, True, False]
    assert send_rate.take_topic(NEWS, 200)
    assert send_rate.take_topic(SPORT, 1000)
    await pass_time(0.21)
    assert [send_rate.take_topic(NEWS, 400) for _ in range(2)] == [True, False]


@in_simulated_time
async def test_envelope_longer_than_may_go_at_once_of_its_topic_goes_when_that_is_there() -> None:
    send_rate = send_rate_of(sizes=RateLimits(topic=250))

    assert send_rate.take_topic(NEWS, 250)
    await pass_time(1.2)
    assert not send_rate.take_topic(NEWS, 250)
    await pass_time(0.2)
    assert send_rate.take_topic(NEWS, 250)


@in_simulated_time
async def test_envelope_refused_by_one_limit_uses_up_nothing_of_the_other() -> None:
    send_rate = send_rate_of(packets=RateLimits(topic=1), sizes=RateLimits(topic=1000))

    assert [send_rate.take_topic(NEWS, 10) for _ in range(500)] == [True] + [False] * 499
    await pass_time(1.3)

    assert send_rate.take_topic(NEWS, 1000)


@in_simulated_time
async def test_topics_that_are_remembered_are_bounded() -> None:
    send_rate = send_rate_of(packets=RateLimits(topic=1))

    for number in range(MAX_TOPICS + 1):
        assert send_rate.take_topic(Topic(number.to_bytes(4, "big")), 1)

    assert not send_rate.take_topic(Topic(MAX_TOPICS.to_bytes(4, "big")), 1)
    assert send_rate.take_topic(Topic(bytes(4)), 1)  # the longest unused one is as good as new


@in_simulated_time
async def test_limits_of_topics_alone_make_no_packet_wait() -> None:
    send_rate = send_rate_of(packets=RateLimits(topic=1), sizes=RateLimits(topic=1))

    assert await times_of(send_rate, [1000] * 5) == [0.0] * 5


@in_simulated_time
async def test_what_goes_at_once_is_made_up_for_by_what_can_wait() -> None:
    send_rate = send_rate_of(packets=RateLimits(peer=10))

    for _ in range(6):
        send_rate.count(100)  # four may go at once: two too many

    assert now() == 0.0
    assert await times_of(send_rate, [1, 1]) == pytest.approx([3 / 8, 4 / 8], abs=1e-4)


@pytest.mark.parametrize("limits", [{"packets": RateLimits(peer=10)}, {"sizes": RateLimits(peer=1000)}])
@in_simulated_time
async def test_what_can_wait_goes_however_much_goes_at_once(limits: dict[str, RateLimits]) -> None:
    send_rate = send_rate_of(**limits)

    for _ in range(100_000):
        send_rate.count(100)
    await send_rate.take(100)

    assert MAX_DEBT_S < now() <= MAX_DEBT_S + 0.3


@in_simulated_time
async def test_what_goes_at_once_counts_nothing_without_limits() -> None:
    send_rate = send_rate_of()

    send_rate.count(1_000_000)

    assert await times_of(send_rate, [1_000_000]) == [0.0]
