"""mailserver.store.engine.search and reader beside a model in plain Python, on stores that plain SQL has made."""

import random
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mailserver.store.engine.keys import EnvelopeKey, FoundKeys
from mailserver.store.interface import NewEnvelope, Query, Raws
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.waku.bloom import EMPTY_BLOOM, FULL_BLOOM, Interest, bloom_of
from mailserver.waku.envelope import EnvelopeHash, Topic
from tests.properties import settings
from tests.store.samples import (
    DAY,
    EVER,
    EVERY_BYTE,
    FULL,
    LAST_SECOND,
    NEWS,
    SPORT,
    START,
    UNSHRUNK,
    answer,
    change,
    deployed_bloom,
    make_store,
    new_envelope,
    new_envelopes,
    place,
    place_at,
    topics_around,
)
from tests.store.sqlite.statements import Made, Statements, places, stored_places

ALMOST_FULL = Interest(bloom=b"\xfe" + b"\xff" * 63)
"""Not read as the full bloom filter, though it admits nearly everything."""


async def assert_finds_what_the_model_finds(
    statements: Statements, envelopes: Sequence[NewEnvelope], query: Query, limit: int
) -> None:
    """One page, and then all pages by following cursors."""
    expected = answer(envelopes, query)

    page = await statements.find(query, limit)

    assert places(page) == stored_places(expected[:limit])
    assert page.more == (len(expected) > limit)


async def pages_of(
    statements: Statements, envelopes: Sequence[NewEnvelope], query: Query, limit: int
) -> list[FoundKeys]:
    """Every page of an answer; the cursor after each is the last envelope's place, with its whole hash."""
    whole = {envelope.hash[:16]: envelope.hash for envelope in envelopes}
    pages = [await statements.find(query, limit)]
    while pages[-1].more and len(pages) <= len(envelopes):
        created, prefix = pages[-1].keys.last_place
        below = place_at(created, whole[prefix])
        pages.append(await statements.find(Query(*EVER, query.interest, below), limit))
    return pages


async def test_key_names_place_and_row(made: Made) -> None:
    envelopes = new_envelopes(2)

    page = await made(envelopes).find(Query(*EVER, FULL), 10)

    assert [*page.keys] == [
        EnvelopeKey(envelopes[1].created, envelopes[1].hash[:16], 2),
        EnvelopeKey(envelopes[0].created, envelopes[0].hash[:16], 1),
    ]


def busy_store(rng: random.Random, topics: Sequence[Topic], days: int, count: int) -> list[NewEnvelope]:
    """Few seconds a day, so that many envelopes share one."""
    return [
        new_envelope(
            number,
            created=START + rng.randrange(days) * DAY + rng.choice([0, 1, 2, 3, DAY - 1]),
            topic=rng.choice(topics),
        )
        for number in range(count)
    ]


def many_topics(count: int) -> list[Topic]:
    return [Topic((number * 2654435761 % 2**32).to_bytes(4, "big")) for number in range(count)]


@pytest.mark.parametrize("wanted", [1, 8, 9, 64, 200, 256, 257, 600])
async def test_any_number_of_topics_is_looked_up(made: Made, wanted: int) -> None:
    # More than 256 pairs of day and topic are looked up in several statements, whose finds are merged.
    rng = random.Random(wanted)
    topics = many_topics(700)
    envelopes = busy_store(rng, topics, days=4, count=1500)
    interest = Interest(topics=frozenset(rng.sample(topics, wanted)))
    statements = made(envelopes)

    for limit in (1, 50, 5000):
        await assert_finds_what_the_model_finds(statements, envelopes, Query(*EVER, interest), limit)


async def test_any_number_of_topics_in_a_bloom_is_looked_up(made: Made) -> None:
    rng = random.Random(7)
    topics = many_topics(1500)
    envelopes = busy_store(rng, topics, days=3, count=3000)
    interest = Interest(bloom=bloom_of(rng.sample(topics, 300)))
    statements = made(envelopes)

    matched = {envelope.topic for envelope in answer(envelopes, Query(*EVER, interest))}
    assert len(matched) > 2 * 256
    for limit in (1, 7, 300, 5000):
        await assert_finds_what_the_model_finds(statements, envelopes, Query(*EVER, interest), limit)


async def test_more_topics_in_a_day_than_are_looked_up_are_read_in_order_of_time(made: Made) -> None:
    envelopes = [
        new_envelope(number, created=START + number % 7000, topic=topic, size=9)
        for number, topic in enumerate(many_topics(20_500))
    ]
    envelopes.append(new_envelope(30_000, created=START + DAY))
    statements = made(envelopes)

    for limit in (1, 2500, 30_000):
        await assert_finds_what_the_model_finds(statements, envelopes, Query(*EVER, ALMOST_FULL), limit)

    assert any("envelopes_by_time" in sql for sql, _ in statements.run_so_far)


# Random stores and random queries

POOL = topics_around(random.Random(0), 6)


FILLERS = many_topics(700)


seconds = st.sampled_from(
    [0, 1, DAY - 1, DAY, START - 1, START, START + 1, START + DAY - 1, START + DAY, START + 9 * DAY, LAST_SECOND]
)


stores = st.lists(st.tuples(seconds, st.sampled_from(POOL)), max_size=60).map(
    lambda pairs: [new_envelope(number, created=when, topic=topic) for number, (when, topic) in enumerate(pairs)]
)


few_topics = st.frozensets(st.sampled_from(POOL), min_size=1)


interests = st.one_of(
    few_topics.map(lambda topics: Interest(topics=topics)),
    st.builds(
        lambda topics, fillers: Interest(topics=topics | frozenset(FILLERS[:fillers])),
        few_topics,
        st.sampled_from([100, 300, 700]),
    ),
    few_topics.map(lambda topics: Interest(bloom=bloom_of(topics))),
    few_topics.map(lambda topics: Interest(bloom=deployed_bloom(min(topics)))),
    st.lists(st.integers(0, 511), max_size=12).map(
        lambda bits: Interest(bloom=(2**512 - 1 - sum(1 << bit for bit in set(bits))).to_bytes(64, "little"))
    ),
    st.sampled_from([FULL, ALMOST_FULL, Interest(bloom=EMPTY_BLOOM)]),
)


any_place = st.tuples(seconds | st.integers(0, LAST_SECOND), st.binary(min_size=32, max_size=32))


queries = st.tuples(
    st.tuples(seconds, seconds).map(sorted) | st.just(EVER),
    interests,
    st.none() | any_place | st.integers(0, 59),
    st.integers(1, 70),
)


@given(
    envelopes=stores,
    asked=st.lists(queries, min_size=1, max_size=6),
    most_topics=st.sampled_from([1, 2, 3, 6, 20_000]),
    most_days=st.sampled_from([1, 2, 128]),
    scanned=st.sampled_from([1, 2, 7, 2000]),
)
@example(envelopes=[], asked=[(EVER, ALMOST_FULL, None, 1)], most_topics=1, most_days=1, scanned=1)
@settings(max_examples=80, phases=UNSHRUNK)
async def test_search_finds_what_the_model_finds(
    tmp_path_factory: pytest.TempPathFactory,
    envelopes: list[NewEnvelope],
    asked: list[Any],
    most_topics: int,
    most_days: int,
    scanned: int,
) -> None:
    path = tmp_path_factory.mktemp("model") / STORE_FILE
    make_store(path, envelopes)
    statements = Statements(path)

    with closing(statements.connection), pytest.MonkeyPatch.context() as patch:
        patch.setattr("mailserver.store.engine.search.MAX_TOPICS", most_topics)
        patch.setattr("mailserver.store.engine.search.MAX_DAYS", most_days)
        patch.setattr("mailserver.store.engine.search.MAX_ROWS", scanned)
        for (lower, upper), interest, cursor, limit in asked:
            below = cursor
            if isinstance(cursor, int):
                below = place(envelopes[cursor % len(envelopes)]) if envelopes else None
            query = Query(lower, upper, interest, below)
            await assert_finds_what_the_model_finds(statements, envelopes, query, limit)


@given(envelopes=stores, interest=interests, limit=st.integers(1, 20), most_topics=st.sampled_from([1, 3, 20_000]))
@settings(max_examples=30, phases=UNSHRUNK)
async def test_pages_hold_each_envelope_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    envelopes: list[NewEnvelope],
    interest: Interest,
    limit: int,
    most_topics: int,
) -> None:
    path = tmp_path_factory.mktemp("pages") / STORE_FILE
    make_store(path, envelopes)
    statements = Statements(path)
    query = Query(*EVER, interest)

    with closing(statements.connection), pytest.MonkeyPatch.context() as patch:
        patch.setattr("mailserver.store.engine.search.MAX_TOPICS", most_topics)
        pages = await pages_of(statements, envelopes, query, limit)

    expected = answer(envelopes, query)
    assert [each for page in pages for each in places(page)] == stored_places(expected)
    assert all(len(page.keys) == limit for page in pages[:-1])
    assert len(pages) == max(1, -(-len(expected) // limit))  # no page more than needed, so none is empty


# Reading


async def test_envelopes_come_in_the_order_asked_for(made: Made) -> None:
    envelopes = [new_envelope(number, size=10 + number) for number in range(5)]

    read = await made(envelopes).reader.read([4, 1, 5, 2], EVERY_BYTE)

    assert read.sizes == [13, 10, 14, 11]
    assert read.split() == [envelopes[number].raw for number in (3, 0, 4, 1)]
    assert read.last == envelopes[1].raw


async def test_of_nothing_nothing_is_read(made: Made) -> None:
    assert await made(new_envelopes(1)).reader.read([], EVERY_BYTE) == Raws(b"", [])


async def test_envelope_far_longer_than_the_others_is_not_read_with_them(tmp_path: Path) -> None:
    path = tmp_path / STORE_FILE
    usual, long = new_envelope(1, size=30), [new_envelope(2 + number, size=1_000_000) for number in range(20)]
    make_store(path, [usual, *long, usual._replace(hash=EnvelopeHash(bytes(32)))])
    statements = Statements(path)

    with closing(statements.connection):
        first = await statements.reader.read(range(1, 23), 1_200_000)
        second = await statements.reader.read(range(2, 23), 1_200_000)

        assert first.split() == [usual.raw]
        assert second.split() == [long[0].raw]
        # None of the twenty was read in vain: SQLite made of them what is shorter than one.
        assert [len(row[1]) for row in statements.rows_so_far] == [60, 1_000_030]


async def test_what_is_as_long_as_was_thought_is_read_together_however_long(made: Made) -> None:
    envelopes = [new_envelope(number, size=200_000) for number in range(10)]

    read = await made(envelopes).reader.read(range(1, 7), 1_000_000)

    assert read.split() == [envelope.raw for envelope in envelopes[:5]]


async def test_deleted_envelope_has_no_length_and_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / STORE_FILE
    envelopes = new_envelopes(4, size=30)
    make_store(path, envelopes)
    statements = Statements(path)

    with closing(statements.connection):
        change(path, "DELETE FROM envelopes WHERE seq IN (1, 3)")

        read = await statements.reader.read([4, 3, 2, 1, 99], EVERY_BYTE)
        assert read.split() == [envelopes[3].raw, envelopes[1].raw]
        assert read.sizes == [30, 0, 30, 0, 0]
        assert read.last == envelopes[1].raw


async def test_envelope_that_is_asked_for_twice_is_read_twice(made: Made) -> None:
    envelopes = new_envelopes(1)

    assert (await made(envelopes).reader.read([1, 1], EVERY_BYTE)).split() == [envelopes[0].raw] * 2


async def test_a_thousand_envelopes_are_read_at_once(made: Made) -> None:
    envelopes = new_envelopes(1000)
    statements = made(envelopes)

    assert (await statements.reader.read(list(range(1, 1001)), EVERY_BYTE)).split() == [
        envelope.raw for envelope in envelopes
    ]


# What it costs


async def test_topics_are_looked_up_in_the_covering_index(made: Made) -> None:
    statements = made(new_envelopes(3000))

    for interest in (
        Interest(topics=frozenset({NEWS})),
        Interest(topics=frozenset(many_topics(300))),
        Interest(bloom=bloom_of([NEWS, SPORT])),
    ):
        statements.run_so_far.clear()
        await statements.find(Query(*EVER, interest, below=place_at(START + 2900, bytes(32))), 3)

        plans = [plan for plan in statements.plans() if "envelopes_by_topic" in plan]
        assert plans
        for plan in plans:
            assert (
                "USING COVERING INDEX envelopes_by_topic"
                " (<expr>=? AND topic=? AND (created,hash)>(?,?) AND (created,hash)<(?,?))" in plan
            )
            assert "envelopes_by_time" not in plan


async def test_everything_is_read_in_order_of_the_index_by_time(made: Made) -> None:
    statements = made(new_envelopes(10))

    await statements.find(Query(*EVER, FULL, below=place_at(START + 5, bytes(32))), 3)

    (plan,) = statements.plans()
    assert (
        "SEARCH envelopes USING COVERING INDEX envelopes_by_time ((created,hash)>(?,?) AND (created,hash)<(?,?))"
        in plan
    )
    assert "TEMP B-TREE" not in plan


async def test_what_is_read_as_it_is_found_is_read_in_that_order_too(made: Made) -> None:
    statements = made(new_envelopes(10))

    await statements.find(Query(*EVER, FULL, below=place_at(START + 5, bytes(32)), read_bytes=1000), 3)

    (plan,) = statements.plans()
    assert "SEARCH envelopes USING INDEX envelopes_by_time ((created,hash)>(?,?) AND (created,hash)<(?,?))" in plan
    assert "TEMP B-TREE" not in plan


async def test_days_are_searched_and_never_all_topics_scanned(made: Made) -> None:
    statements = made(new_envelopes(500))

    await statements.find(Query(START, START + DAY, Interest(bloom=bloom_of([NEWS]))), 3)

    days, topics, *_ = statements.plans()
    assert "SEARCH days USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)" in days
    assert "SEARCH t USING COVERING INDEX day_topics_by_third_byte (day=? AND <expr>=? AND topic>?)" in topics


async def test_places_are_looked_up_one_by_one_in_the_index_by_time(made: Made) -> None:
    envelopes = new_envelopes(400)
    statements = made(envelopes)
    asked = [(envelope.created, envelope.hash[:16]) for envelope in envelopes]

    assert await statements.reader.present(asked) == set(asked)

    assert len(statements.run_so_far) == 2
    for plan in statements.plans():
        assert "SEARCH e USING COVERING INDEX envelopes_by_time (created=? AND hash=?)" in plan
        assert "SCAN e" not in plan


async def test_envelopes_are_read_by_their_rows(made: Made) -> None:
    statements = made(new_envelopes(10))

    await statements.reader.read([3, 5], EVERY_BYTE)

    for plan in statements.plans():
        assert "SEARCH e USING INTEGER PRIMARY KEY (rowid=?)" in plan
        assert "SCAN e" not in plan


@pytest.mark.parametrize(
    ("interest", "most_steps"),
    [
        pytest.param(FULL, 500, id="full bloom"),
        pytest.param(Interest(topics=frozenset({NEWS})), 5000, id="one topic"),
        pytest.param(Interest(bloom=bloom_of([NEWS])), 20_000, id="bloom of one topic"),
    ],
)
async def test_cost_of_a_page_does_not_grow_with_the_store(made: Made, interest: Interest, most_steps: int) -> None:
    # On one day, 50 envelopes are on the topic; all others are on 1,000 other topics of the same and other days.
    wanted = [new_envelope(number, created=START + 900 * number) for number in range(50)]
    others = [
        new_envelope(1000 + number, created=START - DAY + 17 * number, topic=topic)
        for number, topic in enumerate(8 * many_topics(1000))
    ]
    query = Query(START, START + DAY - 1, interest)

    steps = []
    for envelopes in (wanted, wanted + others):
        statements = made(envelopes)
        page = await statements.find(query, 10)
        assert len(page.keys) == 10
        steps.append(statements.steps)

    assert steps[1] < most_steps
    assert interest != FULL or steps[1] <= steps[0] + 50


@pytest.mark.parametrize(
    "interest", [FULL, Interest(topics=frozenset({NEWS})), Interest(bloom=bloom_of([NEWS]))], ids=lambda _: ""
)
async def test_page_deep_in_the_store_costs_no_more_than_the_first(made: Made, interest: Interest) -> None:
    statements = made(new_envelopes(5000))

    steps = []
    for below in (START + 5000, START + 50):
        statements.steps = 0
        page = await statements.find(Query(*EVER, interest, below=place_at(below, bytes(32))), 10)
        assert next(iter(page.keys)).created == below - 1
        steps.append(statements.steps)

    assert steps[1] <= 1.1 * steps[0]


async def test_hash_of_a_cursor_is_compared_by_its_stored_prefix(made: Made) -> None:
    envelope = new_envelope(1)._replace(hash=EnvelopeHash(b"\x80" * 32))
    statements = made([envelope])

    same_prefix = await statements.find(Query(*EVER, FULL, below=place_at(START, b"\x80" * 16 + bytes(16))), 5)
    above = await statements.find(Query(*EVER, FULL, below=place_at(START, b"\x80" * 15 + b"\x81" + bytes(16))), 5)

    assert len(same_prefix.keys) == 0  # after a deletion a cursor has only the prefix, filled up with zeros
    assert len(above.keys) == 1


def test_almost_full_is_not_full() -> None:
    assert ALMOST_FULL.bloom != FULL_BLOOM == FULL.bloom
