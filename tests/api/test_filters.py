"""mailserver.api.filters: how filters are installed, how they expire, and how much of the loop's time they take."""

import asyncio
from collections.abc import Callable

import pytest

from mailserver.api.filters import (
    FILTER_IDLE_S,
    MAX_EXPIRED_TOGETHER,
    MAX_FILTERS,
    WARNING_INTERVAL_S,
    WORK_S,
    Criteria,
    FilterLimits,
    FilterNotFound,
    TooManyFilters,
)
from mailserver.live.feed import Feed
from tests.api.filter_world import (
    ANY_FOR_BOB,
    ANY_NEWS,
    BOB,
    KEY,
    SPORT,
    World,
    live,
    next_of,
    running_world,
    sealed,
    sealed_to,
    taken,
)
from tests.waiting import DEADLINE_S, turns, until

LONG_STEP = 2 * WORK_S
"""Of the clock: there is a pause after each piece of work."""

SHORT_STEP = 0.6 * WORK_S
"""Of the clock: there is a pause after every second piece of work."""


# Installation


async def test_filter_sees_what_is_published_after_its_installation() -> None:
    world = World()
    early = world.filters.install(ANY_NEWS)
    world.publish(sealed(b"before"))
    late = world.filters.install(ANY_NEWS)
    world.publish(sealed(b"after"))

    async with world.running():
        await turns()

    assert taken(early) == [b"before", b"after"]
    assert taken(late) == [b"after"]


async def test_filter_installed_while_the_feed_is_worked_off_does_not_see_what_was_there() -> None:
    async with running_world() as world:
        early = world.filters.install(ANY_NEWS)
        world.clock.step = LONG_STEP
        world.publish(*(sealed(b"%d" % number) for number in range(4)))
        await until(lambda: early.queued_bytes > 0)

        late = world.filters.install(ANY_NEWS)
        world.publish(sealed(b"after"))
        world.clock.step = 0.0
        await until(lambda: late.queued_bytes > 0)

    assert taken(early) == [b"0", b"1", b"2", b"3", b"after"]
    assert taken(late) == [b"after"]


async def test_what_was_published_before_a_feed_is_read_is_not_seen() -> None:
    feed = Feed()
    feed.publish(live(sealed(b"before")))
    async with running_world(feed=feed) as world:
        news = world.filters.install(ANY_NEWS)

        await world.offer(sealed(b"after"))

    assert taken(news) == [b"after"]


def test_ids_are_64_hex_digits_and_differ() -> None:
    filters = World().filters

    ids = {filters.install(ANY_NEWS).id for _ in range(100)}

    assert len(ids) == 100
    assert all(len(one) == 64 and set(one) <= set("0123456789abcdef") for one in ids)


def test_filter_is_found_by_its_id() -> None:
    filters = World().filters
    one = filters.install(ANY_NEWS)
    filters.install(ANY_NEWS)

    assert filters.get(one.id) is one


@pytest.mark.parametrize("filter_id", ["", 64 * "0", "\ud800"])
def test_unknown_id_is_said_not_to_be_found(filter_id: str) -> None:
    filters = World().filters
    filters.install(ANY_NEWS)

    with pytest.raises(FilterNotFound, match="no filter has this id"):
        filters.get(filter_id)
    assert not filters.uninstall(filter_id)


async def test_uninstalled_filter_is_gone_with_its_messages() -> None:
    async with running_world() as world:
        one, other = world.filters.install(ANY_NEWS), world.filters.install(ANY_NEWS)
        await world.offer(sealed())

        assert world.filters.uninstall(one.id)

        await world.offer(sealed())
        assert not world.filters.uninstall(one.id)
        with pytest.raises(FilterNotFound):
            world.filters.get(one.id)
        assert one.take() == []
        assert len(world.filters) == 1
        assert len(other.take()) == 2
        assert world.filters.queued_bytes == 0


async def test_filter_uninstalled_while_an_envelope_is_offered_gets_nothing_any_more() -> None:
    async with running_world() as world:
        ahead, behind = world.filters.install(ANY_NEWS), world.filters.install(ANY_NEWS)
        world.clock.step = LONG_STEP
        world.publish(sealed(b"first"), sealed(b"last"))
        await until(lambda: ahead.queued_bytes > 0)
        assert behind.queued_bytes == 0

        world.filters.uninstall(behind.id)
        first = ahead.queued_bytes
        await until(lambda: ahead.queued_bytes > first)
        await turns()

    assert behind.take() == []
    assert world.filters.queued_bytes == ahead.queued_bytes
    assert taken(ahead) == [b"first", b"last"]


def test_filters_are_bounded() -> None:
    filters = World(limits=FilterLimits(filters=2)).filters
    polled = filters.install(ANY_NEWS)
    subscription = filters.install(ANY_NEWS, expires=False)

    with pytest.raises(TooManyFilters, match="no room for another filter, the limit is 2"):
        filters.install(ANY_NEWS)
    assert len(filters) == 2

    for one in (polled, subscription):
        filters.uninstall(one.id)
        filters.install(ANY_NEWS)
        with pytest.raises(TooManyFilters):
            filters.install(ANY_NEWS)


def test_a_thousand_filters_may_be_installed_by_default() -> None:
    filters = World().filters

    for _ in range(MAX_FILTERS):
        filters.install(ANY_NEWS)

    assert len(filters) == 1000
    with pytest.raises(TooManyFilters):
        filters.install(ANY_NEWS)


# Idle filters


def test_filter_that_nobody_polls_is_removed() -> None:
    world = World()
    one = world.filters.install(ANY_NEWS)

    world.clock.now += FILTER_IDLE_S - 0.1
    assert world.filters.get(one.id) is one
    world.clock.now += FILTER_IDLE_S - 0.1
    assert world.filters.get(one.id) is one
    world.clock.now += FILTER_IDLE_S

    with pytest.raises(FilterNotFound):
        world.filters.get(one.id)
    assert len(world.filters) == 0


def test_only_filters_that_nobody_polls_are_removed() -> None:
    world = World()
    polled, idle = world.filters.install(ANY_NEWS), world.filters.install(ANY_NEWS)
    world.clock.now += FILTER_IDLE_S / 2
    late = world.filters.install(ANY_NEWS)
    world.filters.get(polled.id)
    world.clock.now += FILTER_IDLE_S / 2

    with pytest.raises(FilterNotFound):
        world.filters.get(idle.id)
    assert world.filters.get(polled.id) is polled
    assert world.filters.get(late.id) is late


def test_idle_filter_makes_room_for_a_new_one() -> None:
    world = World(limits=FilterLimits(filters=1))
    world.filters.install(ANY_NEWS)
    world.clock.now += FILTER_IDLE_S

    new = world.filters.install(ANY_NEWS)

    assert world.filters.get(new.id) is new
    assert len(world.filters) == 1


def test_idle_filters_are_removed_a_few_at_a_time() -> None:
    world = World()
    for _ in range(2 * MAX_EXPIRED_TOGETHER):
        world.filters.install(ANY_NEWS)
    world.clock.now += FILTER_IDLE_S

    new = [world.filters.install(ANY_NEWS) for _ in range(3)]

    assert len(world.filters) == len(new)
    assert [world.filters.get(one.id) for one in new] == new


def test_removing_idle_filters_never_takes_long() -> None:
    world = World()
    for _ in range(2 * MAX_EXPIRED_TOGETHER):
        world.filters.install(ANY_NEWS)
    world.clock.now += FILTER_IDLE_S

    world.filters.install(ANY_NEWS)

    assert len(world.filters) == MAX_EXPIRED_TOGETHER + 1


async def test_idle_filter_takes_nothing_any_more_and_leaves_its_bytes() -> None:
    async with running_world() as world:
        idle = world.filters.install(ANY_NEWS)
        await world.offer(sealed())
        assert world.filters.queued_bytes > 0

        world.clock.now += FILTER_IDLE_S
        await world.offer(sealed())

        assert len(world.filters) == 0
        assert world.filters.queued_bytes == 0
        assert idle.take() == []


async def test_subscription_stays_and_is_no_filter_to_poll() -> None:
    async with running_world() as world:
        subscription = world.filters.install(ANY_NEWS, expires=False)

        world.clock.now += 100 * FILTER_IDLE_S
        await world.offer(sealed())

        assert await next_of(subscription) == [b"hello"]
        with pytest.raises(FilterNotFound):
            world.filters.get(subscription.id)
        assert world.filters.uninstall(subscription.id)


# The loop's time


async def progress(done: Callable[[], int], total: int) -> list[int]:
    """How far something gets between one turn of ours and the next."""
    steps = []
    async with asyncio.timeout(DEADLINE_S):
        before = 0
        while before < total:
            await asyncio.sleep(0)
            now = done()
            steps.append(now - before)
            before = now
    return steps


async def test_others_have_their_turn_between_envelopes() -> None:
    async with running_world() as world:
        for_bob = world.filters.install(ANY_FOR_BOB)
        await world.offer(sealed_to(BOB))
        size = for_bob.queued_bytes
        for_bob.take()
        world.clock.step = SHORT_STEP
        world.publish(*(sealed_to(BOB) for _ in range(20)))

        steps = await progress(lambda: round(for_bob.queued_bytes / size), 20)

    assert max(steps) == 1  # two pieces of work: to open it for the filter, and to be done with it


async def test_others_have_their_turn_while_one_envelope_is_offered_to_many_filters() -> None:
    async with running_world() as world:
        many = [world.filters.install(ANY_NEWS) for _ in range(20)]
        world.clock.step = SHORT_STEP
        world.publish(sealed())

        steps = await progress(lambda: sum(one.queued_bytes > 0 for one in many), 20)

    assert [step for step in steps if step] == [2] * 10  # the time is taken anew after each pause


async def test_others_have_their_turn_while_envelopes_match_nothing() -> None:
    feed = Feed()
    async with running_world(feed=feed) as world:
        last = world.filters.install(Criteria(symmetric_key=KEY, topics=(SPORT,)))
        world.clock.step = SHORT_STEP
        world.publish(*(sealed() for _ in range(20)), sealed(topic=SPORT))

        steps = await progress(lambda: int(last.queued_bytes > 0), 1)

    assert len(steps) > 5


async def test_work_that_is_short_is_done_without_a_pause() -> None:
    async with running_world() as world:
        news = world.filters.install(ANY_NEWS)
        world.clock.step = WORK_S / 1000
        world.publish(*(sealed() for _ in range(20)))

        steps = await progress(lambda: int(news.queued_bytes > 0), 1)

    assert len(news.take()) == 20
    assert len(steps) <= 5


async def test_filters_that_are_too_slow_miss_envelopes_and_say_so(caplog: pytest.LogCaptureFixture) -> None:
    async with running_world(feed=Feed(max_envelopes=4)) as world:
        news = world.filters.install(ANY_NEWS)

        async def fall_behind() -> None:
            world.clock.step = LONG_STEP
            world.publish(sealed())
            await until(lambda: news.queued_bytes > 0)
            world.publish(*(sealed(b"%d" % number) for number in range(10)))
            world.clock.step = 0.0
            news.take()
            await until(lambda: news.queued_bytes > 0)

        await fall_behind()
        assert taken(news) == [b"6", b"7", b"8", b"9"]
        assert world.filters.missed == 6
        assert caplog.messages == ["filters missed envelopes count=6 filters=1"]

        await fall_behind()
        assert world.filters.missed == 12
        assert len(caplog.messages) == 1

        world.clock.now += WARNING_INTERVAL_S
        await world.offer(sealed())
        assert caplog.messages[1:] == ["filters missed envelopes count=6 filters=1"]

        world.clock.now += WARNING_INTERVAL_S
        await world.offer(sealed())
        assert len(caplog.messages) == 2


async def test_envelopes_that_pass_without_a_filter_are_not_missed(caplog: pytest.LogCaptureFixture) -> None:
    async with running_world(feed=Feed(max_envelopes=4)) as world:
        await world.offer(*(sealed() for _ in range(10)))

        assert caplog.messages == []
