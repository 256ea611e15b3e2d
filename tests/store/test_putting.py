"""What is put into a store: all of it, once, and for good, whatever engine keeps it."""

import asyncio
import random

import pytest

from mailserver.errors import StoreError
from mailserver.store.interface import Store
from mailserver.store.retention import END_OF_TIME, Surplus
from tests.store.engines import EVERYTHING, NEWS_ONLY, Engine, found
from tests.store.samples import (
    LAST_SECOND,
    NEWS,
    RECEIVED,
    SPORT,
    START,
    new_envelope,
    new_envelopes,
    raws,
)


async def test_what_was_put_is_found_and_read(store: Store) -> None:
    envelopes = [new_envelope(1, topic=NEWS), new_envelope(2, created=START + 1, topic=SPORT)]

    await store.put(envelopes)

    assert await found(store, EVERYTHING) == raws(envelopes[::-1])
    assert await found(store, NEWS_ONLY) == raws(envelopes[:1])


async def test_envelope_is_found_as_soon_as_put_returns(store: Store) -> None:
    for number, envelope in enumerate(new_envelopes(9), 1):
        await store.put([envelope])

        assert (await store.find(NEWS_ONLY, 100)).left == number


async def test_envelope_of_the_first_and_the_last_second_is_stored(engine: Engine) -> None:
    envelopes = [new_envelope(1, created=0), new_envelope(2, created=LAST_SECOND)]

    async with engine.open() as store:
        await store.put(envelopes)

        assert await found(store) == raws(envelopes[::-1])
        stats = await store.stats()
        assert (stats.oldest, stats.newest) == (0, LAST_SECOND)
    engine.assert_sound()


async def test_requests_are_answered_while_envelopes_are_put(store: Store) -> None:
    whole = raws(new_envelopes(200)[::-1])
    async with asyncio.TaskGroup() as tasks:
        for number in range(10):
            tasks.create_task(store.put(new_envelopes(20, first=20 * number)))
        finds = [tasks.create_task(found(store)) for _ in range(20)]

    for find in finds:
        answered = set(find.result())
        assert find.result() == [raw for raw in whole if raw in answered]  # some of them, in order
    assert await found(store) == whole


async def test_queue_is_empty_when_all_is_stored(store: Store) -> None:
    putting = asyncio.create_task(store.put(new_envelopes(3, size=100)))
    await asyncio.sleep(0)

    assert store.queued == (3, 300)
    await putting
    assert store.queued == (0, 0)


async def test_store_that_is_held_takes_nothing_and_says_why(store: Store) -> None:
    await store.put(new_envelopes(1))

    store.hold("no room")

    assert store.problem == "no room"
    with pytest.raises(StoreError, match="no room"):
        await store.put(new_envelopes(1, first=1))
    assert (await store.prune(Surplus(END_OF_TIME, 1))).envelopes == 1  # which makes room
    store.hold("")
    assert store.problem == ""
    await store.put(new_envelopes(1, first=1))
    assert await found(store) == raws(new_envelopes(1, first=1))


# Duplicates


async def test_envelope_is_stored_once_however_often_a_put_holds_it(engine: Engine) -> None:
    one, other = new_envelopes(2)

    async with engine.open() as store:
        await store.put([one, other, one, one])

        assert await found(store) == raws([other, one])
    engine.assert_sound()


async def test_envelope_is_stored_once_however_often_it_is_put(engine: Engine) -> None:
    one, other = new_envelopes(2)

    async with engine.open() as store:
        await store.put([one])
        await store.put([other, one])
        await asyncio.gather(*(store.put([envelope]) for envelope in (one, other, one)))

        assert await found(store) == raws([other, one])
        assert (await store.stats()).envelopes == 2
    engine.assert_sound()


async def test_envelope_is_stored_once_also_when_the_store_is_opened_again(engine: Engine) -> None:
    envelopes = new_envelopes(3)

    for _ in range(2):
        async with engine.open() as store:
            await store.put(envelopes)

            assert await found(store) == raws(envelopes[::-1])
    engine.assert_sound()


async def test_what_is_there_is_left_as_it_was(store: Store) -> None:
    envelope = new_envelope(1)

    await store.put([envelope])
    await store.put([envelope._replace(received=envelope.received + 1)])

    assert await store.last_reception(RECEIVED + 100) == envelope.received


async def test_envelopes_of_one_second_are_told_apart_by_their_hash(store: Store) -> None:
    envelopes = [new_envelope(number, created=START) for number in range(20)]

    await store.put(envelopes)

    assert sorted(await found(store)) == raws(envelopes)


# What is missing


@pytest.mark.parametrize("count", [0, 1, 2, 255, 256, 257, 1000])
async def test_missing_is_what_is_not_there_in_the_order_given(store: Store, count: int) -> None:
    envelopes = new_envelopes(count)
    random.Random(1).shuffle(envelopes)
    there = set(envelopes[::3])

    await store.put(list(there))

    assert await store.missing(envelopes) == [envelope for envelope in envelopes if envelope not in there]
    assert await store.missing(list(there)) == []


async def test_envelope_of_the_same_second_or_hash_is_not_the_same(store: Store) -> None:
    envelope = new_envelope(1)
    later, other = envelope._replace(created=START + 1), envelope._replace(hash=new_envelope(2).hash)

    await store.put([envelope])

    assert await store.missing([later, envelope, other, later]) == [later, other, later]


async def test_what_was_deleted_is_missing(store: Store) -> None:
    first, second, third = new_envelopes(3)
    oldest = second._replace(received=RECEIVED - 1)

    await store.put([first, oldest, third])
    await store.prune(Surplus(END_OF_TIME, 1))

    assert await store.missing([first, oldest, third]) == [oldest]


# Opening and closing


async def test_store_keeps_what_it_holds_when_it_is_opened_again(engine: Engine) -> None:
    envelopes = new_envelopes(5)

    async with engine.open() as store:
        await store.put(envelopes)
        identity = await store.identity()
    async with engine.open() as store:
        assert await found(store) == raws(envelopes[::-1])
        assert await store.identity() == identity


async def test_what_is_being_put_when_the_store_closes_is_committed(engine: Engine) -> None:
    async with engine.open() as store:
        puts = [asyncio.create_task(store.put([envelope])) for envelope in new_envelopes(5)]
        await asyncio.sleep(0)
    await asyncio.gather(*puts)

    async with engine.open() as store:
        assert await found(store) == raws(new_envelopes(5)[::-1])


class Fault(Exception):
    """Something that goes wrong while the store is open."""


async def test_error_while_the_store_is_open_goes_through_as_it_is_and_loses_nothing(engine: Engine) -> None:
    put: list[asyncio.Task[None]] = []

    async def use_and_fail() -> None:
        async with engine.open() as store:
            put.append(asyncio.create_task(store.put(new_envelopes(3))))
            await asyncio.sleep(0)
            raise Fault

    with pytest.raises(Fault):
        await use_and_fail()
    await put[0]

    async with engine.open() as store:
        assert await found(store) == raws(new_envelopes(3)[::-1])


async def test_cancelling_while_the_store_is_open_loses_nothing(engine: Engine) -> None:
    put: list[asyncio.Task[None]] = []
    is_open = asyncio.Event()

    async def use_forever() -> None:
        async with engine.open() as store:
            put.append(asyncio.create_task(store.put(new_envelopes(3))))
            is_open.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(use_forever())
    await is_open.wait()
    task.cancel()
    await asyncio.wait([task])
    await put[0]

    assert task.cancelled()
    async with engine.open() as store:
        assert await found(store) == raws(new_envelopes(3)[::-1])


async def test_store_takes_nothing_once_it_is_closed(engine: Engine) -> None:
    async with engine.open() as store:
        pass

    with pytest.raises(StoreError, match="closing"):
        await store.put(new_envelopes(1))
