"""mailserver.api.filters: what waits for polls and subscriptions, and what falls out."""

import asyncio

from mailserver.api.filters import (
    MESSAGE_OVERHEAD_BYTES,
    SENT_TOGETHER_BYTES,
    Criteria,
    FilterLimits,
    Message,
)
from mailserver.waku.envelope import Envelope, EnvelopeHash
from mailserver.waku.payload import open_symmetric
from tests.api.filter_world import ANY_NEWS, KEY, NEWS, SPORT, live, next_of, running_world, sealed, taken
from tests.waiting import DEADLINE_S, turns

# Polling


async def test_messages_are_taken_once_oldest_first() -> None:
    async with running_world() as world:
        news = world.filters.install(ANY_NEWS)

        await world.offer(*(sealed(b"%d" % number) for number in range(5)))

        assert taken(news) == [b"0", b"1", b"2", b"3", b"4"]
        assert taken(news) == []
        await world.offer(sealed(b"5"))
        assert taken(news) == [b"5"]


async def test_message_that_waits_already_is_not_queued_again() -> None:
    envelope = sealed()
    async with running_world() as world:
        news = world.filters.install(Criteria(symmetric_key=KEY, topics=(NEWS,), allow_p2p=True))

        await world.offer(envelope)
        size = news.queued_bytes
        world.feed.publish(live(envelope, is_p2p=True))
        await turns()

        assert news.queued_bytes == world.filters.queued_bytes == size
        assert taken(news) == [b"hello"]
        await world.offer(envelope)  # asked for again
        assert taken(news) == [b"hello"]


async def test_beyond_so_many_messages_the_oldest_falls_out() -> None:
    async with running_world(limits=FilterLimits(messages=3)) as world:
        news = world.filters.install(ANY_NEWS)
        other = world.filters.install(Criteria(symmetric_key=KEY, topics=(SPORT,)))

        await world.offer(*(sealed(b"%d" % number) for number in range(5)), sealed(b"sport", topic=SPORT))

    assert taken(news) == [b"2", b"3", b"4"]
    assert taken(other) == [b"sport"]


async def test_beyond_so_many_bytes_the_oldest_falls_out() -> None:
    size = size_of(sealed(bytes(1000)))
    async with running_world(limits=FilterLimits(bytes=2 * size + 100)) as world:
        news = world.filters.install(ANY_NEWS)

        await world.offer(*(sealed(bytes([number]) * 1000) for number in range(4)))
        assert size < news.queued_bytes <= 2 * size + 100
        assert taken(news) == [bytes([number]) * 1000 for number in (2, 3)]
        await world.offer(sealed(bytes(1000)))
        await world.offer(sealed(bytes(5000)))  # longer than all that may wait

    assert news.queued_bytes == 0
    assert taken(news) == []


async def test_message_is_counted_with_what_it_holds() -> None:
    envelope = sealed(bytes(1000))
    async with running_world() as world:
        news = world.filters.install(ANY_NEWS)

        await world.offer(envelope)

        counted = news.queued_bytes
        (message,) = news.take()
    assert counted == message.size
    assert counted == len(envelope.raw) + 1024 - 1 - 2 + MESSAGE_OVERHEAD_BYTES  # of the plaintext: flags, length


async def test_beyond_so_many_bytes_of_all_filters_the_fullest_pays() -> None:
    size = size_of(sealed(bytes(1000)))
    async with running_world(limits=FilterLimits(all_bytes=5 * size + 100)) as world:
        full = world.filters.install(ANY_NEWS)
        few = world.filters.install(Criteria(symmetric_key=KEY, topics=(SPORT,)))

        await world.offer(*(sealed(bytes([number]) * 1000) for number in range(5)))
        await world.offer(*(sealed(bytes([number]) * 1000, topic=SPORT) for number in range(2)))

        assert world.filters.queued_bytes <= 5 * size + 100
        assert len(full.take()) == 3
        assert len(few.take()) == 2
        assert world.filters.queued_bytes == 0


async def test_bytes_are_given_back_however_messages_leave() -> None:
    async with running_world() as world:
        one, two, three = (world.filters.install(ANY_NEWS, expires=False) for _ in range(3))
        await world.offer(*(sealed() for _ in range(3)))
        assert world.filters.queued_bytes == 3 * one.queued_bytes > 0

        one.take()
        await two.next()
        world.filters.uninstall(three.id)

        assert world.filters.queued_bytes == one.queued_bytes == two.queued_bytes == three.queued_bytes == 0


# Subscriptions


async def test_next_waits_for_a_message() -> None:
    async with running_world() as world:
        news = world.filters.install(ANY_NEWS, expires=False)
        waiting = asyncio.create_task(next_of(news))
        await turns()
        assert not waiting.done()

        await world.offer(sealed(b"one"))

        assert await waiting == [b"one"]
        await world.offer(sealed(b"two"), sealed(b"three"))
        assert await next_of(news) == [b"two", b"three"]


async def test_next_brings_so_many_bytes_together_and_the_rest_thereafter() -> None:
    count = 2 * SENT_TOGETHER_BYTES // size_of(sealed(bytes(1000)))
    async with running_world() as world:
        news = world.filters.install(ANY_NEWS, expires=False)
        await world.offer(*(sealed(bytes([number]) * 1000) for number in range(count)))

        async with asyncio.timeout(DEADLINE_S):
            brought = [await news.next() for _ in range(2)]

        sizes = [sum(message.size for message in messages) for messages in brought]
        assert all(SENT_TOGETHER_BYTES * 0.9 < size <= SENT_TOGETHER_BYTES for size in sizes)
        rest = news.take()
        assert [message.opened.payload[0] for message in [*brought[0], *brought[1], *rest]] == [*range(count)]


async def test_next_brings_a_message_that_is_longer_by_itself() -> None:
    async with running_world() as world:
        news = world.filters.install(ANY_NEWS, expires=False)
        await world.offer(sealed(b"short"), sealed(bytes(SENT_TOGETHER_BYTES)), sealed(b"short, too"))

        assert await next_of(news) == [b"short"]
        assert await next_of(news) == [bytes(SENT_TOGETHER_BYTES)]
        assert await next_of(news) == [b"short, too"]


async def test_who_waits_learns_that_the_filter_is_uninstalled() -> None:
    async with running_world() as world:
        news = world.filters.install(ANY_NEWS, expires=False)
        waiting = asyncio.create_task(next_of(news))
        await turns()

        world.filters.uninstall(news.id)

        assert await waiting == []
        assert await next_of(news) == []


async def test_who_gives_up_waiting_loses_nothing() -> None:
    async with running_world() as world:
        news = world.filters.install(ANY_NEWS, expires=False)
        waiting = asyncio.create_task(news.next())
        await turns()

        world.publish(sealed())
        waiting.cancel()
        await turns()

        assert waiting.cancelled()
        assert await next_of(news) == [b"hello"]


async def test_message_that_is_longer_than_the_queue_wakes_nobody_for_nothing() -> None:
    async with running_world(limits=FilterLimits(bytes=4000)) as world:
        news = world.filters.install(ANY_NEWS, expires=False)
        waiting = asyncio.create_task(next_of(news))
        await turns()

        await world.offer(sealed(bytes(5000)))
        assert not waiting.done()
        await world.offer(sealed(b"short"))

        assert await waiting == [b"short"]


def size_of(envelope: Envelope) -> int:
    """What the message of an envelope with the symmetric key is counted with."""
    opened = open_symmetric(envelope.data, KEY)
    return Message(envelope, EnvelopeHash(bytes(32)), opened, None, 0.0, is_p2p=False).size
