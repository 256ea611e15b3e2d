"""mailserver.store.engine.search: what is found either way, where pages end early, and what it costs at worst."""

import random
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.store.engine import search as search_module
from mailserver.store.engine import work
from mailserver.store.engine.keys import FoundKeys, KeyPlace
from mailserver.store.interface import NewEnvelope, Query, always
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.waku.bloom import Interest, bloom_of, matches
from mailserver.waku.envelope import EnvelopeHash, Topic
from tests.properties import settings
from tests.store.samples import (
    DAY,
    EVER,
    LAST_SECOND,
    START,
    UNSHRUNK,
    answer,
    deployed_bloom,
    make_store,
    new_envelope,
    place_at,
)
from tests.store.sqlite.statements import Made, Statements, places, stored_places


async def pages_of(
    statements: Statements, query: Query, limit: int, goes_on: Callable[[int], bool] = always
) -> list[FoundKeys]:
    """All pages of an answer, each behind the end of the one before: a cursor has its hash filled up with zeros."""
    pages: list[FoundKeys] = []
    below = query.below
    while True:
        page = await statements.find(Query(query.lower, query.upper, query.interest, below), limit, goes_on)
        pages.append(page)
        if page.end is None:
            return pages
        following = place_at(page.end[0], page.end[1].ljust(32, b"\x00"))
        assert below is None or following < below
        below = following


# Whatever way it takes, it finds the same

POOL = [Topic(bytes([a, b, c, d])) for a in (0, 7) for b in (0, 9) for c in (1, 66) for d in (0, 5, 255)]
seconds = st.sampled_from([0, 1, DAY - 1, DAY, START - 1, START, START + 1, START + DAY - 1, START + DAY, LAST_SECOND])
stores = st.lists(st.tuples(seconds, st.sampled_from(POOL)), max_size=50).map(
    lambda pairs: [new_envelope(number, created=when, topic=topic) for number, (when, topic) in enumerate(pairs)]
)
some_topics = st.frozensets(st.sampled_from(POOL), min_size=1)
topic_interests = some_topics.map(lambda topics: Interest(topics=topics))
bloom_interests = st.one_of(
    some_topics.map(lambda topics: Interest(bloom=bloom_of(topics))),
    some_topics.map(lambda topics: Interest(bloom=deployed_bloom(min(topics)))),
    st.lists(st.integers(0, 511), max_size=12).map(
        lambda bits: Interest(bloom=(2**512 - 1 - sum(1 << bit for bit in set(bits))).to_bytes(64, "little"))
    ),
)
bounds = st.fixed_dictionaries(
    {
        "MAX_ROWS": st.sampled_from([1, 2, 5, 2000]),
        "MIN_ROWS": st.sampled_from([1, 64]),
        "MAX_TOPICS": st.sampled_from([1, 3, 8000]),
        "MAX_TOPICS_OF_DAY": st.sampled_from([1, 4, 200_000]),
        "MAX_PAIRS": st.sampled_from([1, 3, 8192]),
        "MAX_DAYS": st.sampled_from([1, 2, 128]),
        "MAX_PLACES": st.sampled_from([1, 2048]),
        "DAYS_AT_ONCE": st.sampled_from([1, 2, 1024]),
    }
)
weights = st.fixed_dictionaries(
    {"ROW": st.sampled_from([1, 5, 1000]), "PAIR": st.sampled_from([0, 7, 10_000]), "STATEMENT": st.just(1)}
)


@given(
    envelopes=stores,
    interest=topic_interests | bloom_interests,
    limit=st.integers(1, 20),
    bounded=bounds,
    weighted=weights,
)
@settings(max_examples=150, phases=UNSHRUNK)
async def test_pages_hold_each_envelope_once_and_in_order_whichever_way_it_takes(
    tmp_path_factory: pytest.TempPathFactory,
    envelopes: list[NewEnvelope],
    interest: Interest,
    limit: int,
    bounded: dict[str, int],
    weighted: dict[str, int],
) -> None:
    path = tmp_path_factory.mktemp("ways") / STORE_FILE
    make_store(path, envelopes)
    statements = Statements(path)
    query = Query(*EVER, interest)

    with closing(statements.connection), pytest.MonkeyPatch.context() as patch:
        set_all(patch, bounded, weighted)
        pages = await pages_of(statements, query, limit)

    expected = answer(envelopes, query)
    assert [each for page in pages for each in places(page)] == stored_places(expected)
    assert len(pages) == max(1, -(-len(expected) // limit))
    assert all(page.reached is None for page in pages)


@given(
    envelopes=stores,
    interest=topic_interests | bloom_interests,
    span=st.tuples(seconds, seconds).map(sorted) | st.just(EVER),
    limit=st.integers(1, 20),
    bounded=bounds,
    weighted=weights,
    most_work=st.sampled_from([0, 0, 5, 30]),
)
@settings(max_examples=150, phases=UNSHRUNK)
async def test_pages_that_end_early_lead_on_to_each_envelope_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    envelopes: list[NewEnvelope],
    interest: Interest,
    span: Sequence[int],
    limit: int,
    bounded: dict[str, int],
    weighted: dict[str, int],
    most_work: int,
) -> None:
    path = tmp_path_factory.mktemp("early") / STORE_FILE
    make_store(path, envelopes)
    statements = Statements(path)
    query = Query(span[0], span[1], interest)

    with closing(statements.connection), pytest.MonkeyPatch.context() as patch:
        set_all(patch, bounded, weighted)
        pages = await pages_of(statements, query, limit, lambda work: work < most_work)

    expected = answer(envelopes, query)
    assert [each for page in pages for each in places(page)] == stored_places(expected)
    if interest.topics is not None:  # exactly so many before a cursor
        assert all(page.reached is None and len(page.keys) == limit for page in pages[:-1])
    assert len(pages) <= 2 * len(envelopes) + 2


def set_all(patch: pytest.MonkeyPatch, bounded: dict[str, int], weighted: dict[str, int]) -> None:
    for name, value in bounded.items():
        patch.setattr(search_module, name, value)
    for name, value in weighted.items():
        patch.setattr(work, name, value)


async def test_page_that_ends_between_two_days_goes_on_below_the_whole_day(made: Made) -> None:
    envelopes = [
        new_envelope(1, created=START),
        new_envelope(2, created=START - 1)._replace(hash=EnvelopeHash(bytes(31) + b"\x01")),
    ]
    statements = made(envelopes)
    query = Query(*EVER, Interest(bloom=bloom_of([Topic(b"else")])))

    for below in ((START, bytes(32)), (START, bytes(16) + b"\x01" * 16)):
        page = await statements.find(Query(*EVER, query.interest, place_at(*below)), 10, lambda _: False)
        assert page.end is None or page.end < (START, b"")


# What it costs at worst

MANY = 20_000
MOST_STEPS = 150_000
"""Of SQLite's machine, for one statement: 5 ms."""


def tiny(number: int, topic: bytes, created: int = START) -> NewEnvelope:
    return new_envelope(number, created=created, topic=Topic(topic), size=9)


ADMITTED = b"\x42"
"""The third byte of the attackers' topics."""


def filled_day(rng: random.Random) -> list[NewEnvelope]:
    """As many topics as a stranger likes, all of which a filter for their third byte has looked at."""
    return [
        tiny(number, number.to_bytes(2, "big") + ADMITTED + b"\x00", START + rng.randrange(100))
        for number in range(MANY)
    ]


def filter_that_admits(topics: int) -> Interest:
    """A filter whose every byte has a bit, and so has all topics looked at, and that matches some of them."""
    bloom = bytearray(b"\x01" * 64)
    bloom[ADMITTED[0] // 8] |= 1 << ADMITTED[0] % 8
    for first in range(topics):
        bloom[first // 8] |= 1 << first % 8
    return Interest(bloom=bytes(bloom))


ATTACKS = {
    "bloom that matches nothing": filter_that_admits(0),
    "bloom that matches some": filter_that_admits(40),
    "bloom that matches half": Interest(bloom=b"\x55" * 32 + b"\xff" * 32),
    "bloom that matches most": Interest(bloom=b"\xfe" + b"\xff" * 63),
}


@pytest.mark.parametrize("interest", ATTACKS.values(), ids=ATTACKS)
async def test_no_statement_looks_at_more_than_its_part_however_many_topics_a_day_has(
    made: Made, interest: Interest
) -> None:
    statements = made(filled_day(random.Random(1)))
    most_steps = most_work = 0
    run = statements.run

    async def watched(sql: str, parameters: Sequence[object], work: int, likely: int | None = None) -> Any:
        nonlocal most_steps, most_work
        before = statements.steps
        rows = await run(sql, parameters, work, likely)
        most_steps, most_work = max(most_steps, statements.steps - before), max(most_work, work)
        return rows

    statements.run = watched  # type: ignore[method-assign]
    pages = await pages_of(statements, Query(*EVER, interest), limit=1000, goes_on=lambda work: work < 30_000)

    wanted = sum(matches(interest.bloom, envelope.topic) for envelope in filled_day(random.Random(1)))
    assert sum(len(page.keys) for page in pages) == wanted
    assert most_steps < MOST_STEPS
    assert most_work < 25_000


@pytest.mark.parametrize("limit", [1, 100])
@pytest.mark.parametrize("interest", ATTACKS.values(), ids=ATTACKS)
async def test_page_ends_soon_after_it_may_not_go_on(made: Made, interest: Interest, limit: int) -> None:
    statements = made(filled_day(random.Random(1)))

    page = await statements.find(Query(*EVER, interest), limit, lambda work: work < 10_000)

    assert statements.work < 10_000 + 25_000
    assert len(page.keys) == limit or page.reached is not None


@pytest.mark.parametrize(
    "interest", [Interest(), Interest(topics=frozenset({Topic(b"same")})), ATTACKS["bloom that matches most"]]
)
async def test_page_deep_in_a_second_that_is_full_costs_no_more_than_the_first(made: Made, interest: Interest) -> None:
    statements = made([tiny(number, b"same") for number in range(MANY)])
    steps = []
    below: KeyPlace | None = None
    for _ in range(3):
        statements.steps = 0
        page = await statements.find(Query(*EVER, interest, below and place_at(*below)), 100)
        steps.append(statements.steps)
        assert page.end is not None
        below = (START, b"\x08" + bytes(31)) if below is None else page.end

    assert max(steps) <= 1.2 * steps[0] + 2000


@pytest.mark.parametrize("ascending", [True, False])
async def test_page_of_topics_that_strangers_have_filled_costs_what_it_finds(made: Made, ascending: bool) -> None:
    topics = [number.to_bytes(4, "big") for number in range(10)]
    each = MANY // len(topics)
    envelopes = [
        tiny(each * at + number, topic, START + (at if ascending else 0) * each + number)
        for at, topic in enumerate(topics)
        for number in range(each)
    ]
    statements = made(envelopes)
    interest = Interest(topics=frozenset(map(Topic, topics)))

    page = await statements.find(Query(*EVER, interest), 100)

    assert stored_places(answer(envelopes, Query(*EVER, interest))[:100]) == places(page)
    assert statements.work < 5 * MANY * work.ROW / 2  # not all of them, several times
