"""Every engine beside a model in plain Python: whatever is put, pruned and asked for, and opened again in between."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mailserver.store.interface import NewEnvelope, Query, Store
from mailserver.store.retention import END_OF_TIME, Surplus
from mailserver.waku.bloom import EMPTY_BLOOM, Interest, bloom_of
from mailserver.waku.envelope import Topic
from tests.properties import settings
from tests.store.engines import ENGINES, EVERYTHING, each_engine, found
from tests.store.samples import (
    DAY,
    EVER,
    EVERY_BYTE,
    FULL,
    LAST_SECOND,
    NEWS,
    RECEIVED,
    SPORT,
    START,
    UNSHRUNK,
    answer,
    is_prefix_of,
    new_envelope,
    place,
    raws,
)

seconds = st.sampled_from([0, DAY - 1, DAY, START - 1, START, START + DAY, LAST_SECOND])
topics = st.sampled_from([NEWS, SPORT, Topic(b"\xff\x00\xff\x07")])
batches = st.lists(
    st.builds(
        lambda number, when, topic: new_envelope(number, created=when, topic=topic),
        st.integers(0, 20),
        seconds,
        topics,
    ),
    max_size=15,
)
interests = st.one_of(
    st.sampled_from([FULL, Interest(bloom=EMPTY_BLOOM), Interest(bloom=b"\xfe" + b"\xff" * 63)]),
    st.frozensets(topics).map(lambda wanted: Interest(topics=wanted)),
    st.frozensets(topics).map(lambda wanted: Interest(bloom=bloom_of(wanted))),
)
queries = st.builds(
    lambda bounds, interest, below: Query(bounds[0], bounds[1], interest, below),
    st.just(EVER) | st.tuples(seconds, seconds).map(sorted),
    interests,
    st.none() | st.builds(lambda number, when: place(new_envelope(number, created=when)), st.integers(0, 20), seconds),
)
actions = st.one_of(
    st.tuples(st.just("put"), batches),
    st.tuples(st.just("find"), st.tuples(queries, st.integers(1, 8))),
    st.tuples(st.just("prune"), st.integers(1, 5)),
    st.tuples(st.just("open again"), st.none()),
)


@each_engine
@given(script=st.lists(actions, max_size=14))
@settings(max_examples=25, phases=UNSHRUNK)
async def test_store_does_what_the_model_does(
    tmp_path_factory: pytest.TempPathFactory, name: str, script: list[tuple[str, Any]]
) -> None:
    engine = ENGINES[name](tmp_path_factory.mktemp("model"))
    model: dict[tuple[int, bytes], NewEnvelope] = {}
    steps = iter([*script, ("find", (EVERYTHING, 3))])
    stats = None
    received = RECEIVED

    while stats is None:
        async with engine.open() as store:
            for action, details in steps:
                if action == "open again":
                    break
                if action == "put":
                    batch = []
                    for envelope in details:  # each in a second of its own, so that it is known which is the oldest
                        received += 1
                        batch.append(envelope._replace(received=received))
                    assert await store.missing(batch) == [each for each in batch if place(each) not in model]
                    await store.put(batch)
                    for envelope in batch:
                        model.setdefault(place(envelope), envelope)
                elif action == "prune":
                    oldest = sorted(model.values())[:details]
                    deleted = await store.prune(Surplus(END_OF_TIME, details))
                    assert deleted == (len(oldest), sum(map(len, raws(oldest))))
                    for envelope in oldest:
                        del model[place(envelope)]
                else:
                    await assert_pages_are_those_of_the_model(store, list(model.values()), *details)
            else:
                stats = await store.stats()
        engine.assert_sound()
    assert (stats.envelopes, stats.bytes) == (len(model), sum(map(len, raws(model.values()))))


async def assert_pages_are_those_of_the_model(
    store: Store, envelopes: list[NewEnvelope], query: Query, limit: int
) -> None:
    expected = answer(envelopes, query)
    pages = []
    below = query.below
    for at in range(0, max(1, len(expected)), limit):
        page = await store.find(Query(query.lower, query.upper, query.interest, below), limit)
        pages.append(page)
        assert (await page.read(page.left, EVERY_BYTE)).split() == raws(expected[at : at + limit])
        below = page.end
        assert below is None or is_prefix_of(below, place(expected[at + limit - 1]))
    assert [page.end is None for page in pages] == [False] * (len(pages) - 1) + [True]


@each_engine
@given(raw=st.lists(st.binary(min_size=1, max_size=40), max_size=8))
@example(raw=[b"\x00", b"\x00\x00a", b"\xff\xfe", b"\xc3", b"\xa9", b",", b"1,2"])
@settings(max_examples=20, phases=UNSHRUNK)
async def test_any_bytes_are_read_as_they_were_put(
    tmp_path_factory: pytest.TempPathFactory, name: str, raw: list[bytes]
) -> None:
    folder: Path = tmp_path_factory.mktemp("bytes")
    envelopes = [new_envelope(number, created=START + number)._replace(raw=each) for number, each in enumerate(raw)]

    async with ENGINES[name](folder).open() as store:
        await store.put(envelopes)
        page = await store.find(EVERYTHING, 100)
        read = await page.read(page.left, EVERY_BYTE)

        assert (read.split(), [*read.sizes]) == (raw[::-1], [len(each) for each in raw[::-1]])
        assert await found(store) == raw[::-1]
