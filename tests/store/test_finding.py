"""What a history request finds, whatever engine the store is of: held against a model in plain Python."""

import random

import pytest

from mailserver.store.interface import NewEnvelope, Query, Store
from mailserver.waku.bloom import EMPTY_BLOOM, Interest, bloom_of
from mailserver.waku.envelope import Topic
from tests.store.engines import found
from tests.store.samples import (
    DAY,
    EVER,
    FULL,
    LAST_SECOND,
    NEWS,
    SPORT,
    START,
    answer,
    deployed_bloom,
    new_envelope,
    new_envelopes,
    place,
    place_at,
    raws,
    topics_around,
)

ALMOST_FULL = Interest(bloom=b"\xfe" + b"\xff" * 63)
"""Not read as the full bloom filter, though it admits nearly everything."""

on_news = Interest(topics=frozenset({NEWS}))
each_interest = pytest.mark.parametrize("interest", [FULL, ALMOST_FULL, on_news], ids=["all", "bloom", "topics"])


def numbered(numbers: range) -> list[bytes]:
    """The envelopes of `new_envelopes` with these numbers."""
    return raws(new_envelopes(1, first=number)[0] for number in numbers)


@each_interest
async def test_empty_store_has_nothing(store: Store, interest: Interest) -> None:
    page = await store.find(Query(*EVER, interest), 10)

    assert (page.left, page.end) == (0, None)


@pytest.mark.parametrize("interest", [FULL, ALMOST_FULL, Interest(bloom=bloom_of([NEWS])), on_news])
async def test_envelopes_are_found_newest_first(store: Store, interest: Interest) -> None:
    envelopes = new_envelopes(5)
    shuffled = random.Random(1).sample(envelopes, 5)

    await store.put(shuffled)

    assert await found(store, Query(*EVER, interest)) == raws(envelopes[::-1])


@pytest.mark.parametrize("interest", [FULL, ALMOST_FULL, Interest(topics=frozenset({NEWS, SPORT}))])
async def test_envelopes_of_one_second_stand_in_the_order_of_their_hashes(store: Store, interest: Interest) -> None:
    envelopes = [new_envelope(number, topic=(NEWS, SPORT)[number % 2]) for number in range(20)]

    await store.put(envelopes)

    assert await found(store, Query(*EVER, interest)) == raws(answer(envelopes, Query(*EVER, interest)))


@each_interest
@pytest.mark.parametrize(("limit", "left", "more"), [(1, 1, True), (3, 3, True), (4, 4, False), (5, 4, False)])
async def test_there_is_more_only_if_something_remains(
    store: Store, interest: Interest, limit: int, left: int, more: bool
) -> None:
    await store.put(new_envelopes(4))

    page = await store.find(Query(*EVER, interest), limit)

    assert (page.left, page.end is not None) == (left, more)


@each_interest
async def test_both_bounds_are_inclusive(store: Store, interest: Interest) -> None:
    await store.put(new_envelopes(10))

    for lower, upper, expected in (
        (START, START + 9, range(10)),
        (START + 3, START + 5, range(3, 6)),
        (START + 5, START + 5, range(5, 6)),
        (0, START, range(1)),
        (START + 9, LAST_SECOND, range(9, 10)),
        (0, START - 1, range(0)),
        (START + 10, LAST_SECOND, range(0)),
        (START + 5, START + 4, range(0)),
        (START + 2 * DAY, START + DAY, range(0)),
    ):
        assert await found(store, Query(lower, upper, interest)) == numbered(expected)[::-1]


@each_interest
async def test_days_follow_one_another_without_a_seam(store: Store, interest: Interest) -> None:
    seconds = [0, 1, DAY - 1, DAY, START - 1, START, START + 1, START + 40 * DAY, LAST_SECOND - 1, LAST_SECOND]
    envelopes = [new_envelope(number, created=created) for number, created in enumerate(seconds)]

    await store.put(envelopes)

    expected = sorted(envelopes, key=place, reverse=True)
    assert await found(store, Query(*EVER, interest)) == raws(expected)


# Cursors


@each_interest
async def test_cursor_is_exclusive_whether_its_envelope_is_there_or_not(store: Store, interest: Interest) -> None:
    envelopes = sorted((new_envelope(number) for number in range(8)), key=place, reverse=True)
    await store.put(envelopes[:3] + envelopes[4:])

    for number in (2, 3):
        below = place(envelopes[number])
        assert await found(store, Query(*EVER, interest, below=below)) == raws(envelopes[4:])


@each_interest
async def test_cursor_may_be_any_place(store: Store, interest: Interest) -> None:
    await store.put(new_envelopes(3))

    for below, count in (
        ((0, bytes(32)), 0),
        ((START, bytes(32)), 0),
        ((START, b"\xff" * 32), 1),
        ((START + 1, bytes(32)), 1),
        ((START + 3, b"\xff" * 32), 3),
        ((LAST_SECOND, b"\xff" * 32), 3),
    ):
        assert len(await found(store, Query(*EVER, interest, below=place_at(*below)))) == count


@each_interest
async def test_bounds_hold_beside_a_cursor(store: Store, interest: Interest) -> None:
    await store.put(new_envelopes(10))

    within = Query(START + 2, START + 8, interest, below=place_at(START + 6, bytes(32)))
    above = Query(START + 2, START + 8, interest, below=place_at(START + 9, b"\xff" * 32))
    beneath = Query(START + 2, START + 8, interest, below=place_at(START + 1, b"\xff" * 32))

    assert await found(store, within) == numbered(range(2, 6))[::-1]
    assert await found(store, above) == numbered(range(2, 9))[::-1]
    assert await found(store, beneath) == []
    assert (await store.find(beneath, 20)).end is None


# Topics and bloom filters


async def test_only_envelopes_on_the_topics_are_found(store: Store) -> None:
    other = Topic(NEWS[:3] + b"\x43")
    envelopes = [new_envelope(number, topic=(NEWS, SPORT, other)[number % 3]) for number in range(9)]
    await store.put(envelopes)

    either = await found(store, Query(*EVER, Interest(topics=frozenset({NEWS, other}))))

    assert sorted(either) == sorted(raws(envelopes[::3] + envelopes[2::3]))


async def test_bloom_of_an_interest_in_topics_is_not_looked_at(store: Store) -> None:
    await store.put(new_envelopes(3))

    assert len(await found(store, Query(*EVER, Interest(topics=frozenset({NEWS}), bloom=EMPTY_BLOOM)))) == 3


@pytest.mark.parametrize("interest", [Interest(topics=frozenset()), Interest(bloom=EMPTY_BLOOM)])
async def test_interest_in_nothing_finds_nothing(store: Store, interest: Interest) -> None:
    await store.put(new_envelopes(3))

    page = await store.find(Query(*EVER, interest), 20)

    assert (page.left, page.end) == (0, None)


@pytest.mark.parametrize("bits", [1, 2, 3, 20, 100, 256, 400, 500, 511])
async def test_bloom_finds_every_topic_that_it_matches_and_no_other(store: Store, bits: int) -> None:
    rng = random.Random(bits)
    topics = topics_around(rng, 300)
    envelopes = [
        new_envelope(number, created=START + number % 3 * DAY, topic=topic) for number, topic in enumerate(topics)
    ]
    chosen = rng.sample(range(512), bits)
    bloom = bloom_of([NEWS]) if bits == 3 else sum(1 << bit for bit in chosen).to_bytes(64, "little")
    query = Query(*EVER, Interest(bloom=bloom))

    await store.put(envelopes)

    assert await found(store, query) == raws(answer(envelopes, query))


@pytest.mark.parametrize(
    "topic",
    [
        pytest.param(NEWS, id="three bytes of the filter"),
        pytest.param(b"\x00\x00\x00\x00", id="one bit"),
        pytest.param(b"\xff\xff\xff\xff", id="the last bit"),
        pytest.param(b"\x08\x09\x20\x00", id="first and second in one byte"),
        pytest.param(b"\x08\x20\x09\x00", id="first and third in one byte"),
        pytest.param(b"\x20\x08\x09\x00", id="second and third in one byte"),
        pytest.param(b"\x08\x09\x0a\x00", id="all in one byte"),
        pytest.param(b"\x08\x09\x0a\x07", id="all in one byte of the second half"),
        pytest.param(b"\x08\x09\x0a\x02", id="in both halves"),
    ],
)
async def test_bloom_of_one_topic_finds_it_however_it_was_made(store: Store, topic: bytes) -> None:
    # Deployed clients write each bit over the byte in which it lies: where two share one, the former is lost.
    envelopes: list[NewEnvelope] = [new_envelope(1, topic=Topic(topic))]
    await store.put(envelopes)

    for bloom in (bloom_of([topic]), deployed_bloom(topic)):
        assert await found(store, Query(*EVER, Interest(bloom=bloom))) == raws(envelopes)
