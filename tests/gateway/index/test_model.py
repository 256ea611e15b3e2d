"""Queries beside a model in plain Python, whatever arrives and is pruned, before them and between their pages."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.ids.envelopes import content_topic_of, message_of
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.waku.envelope import Topic
from mailserver.waku2.store_rules import StoreQuery
from tests.gateway.index.worlds import World, at, bridged, envelope, muid_of, opened_world, original, query_for
from tests.properties import settings
from tests.store.engines import ENGINES, each_engine
from tests.store.samples import NEWS, SPORT, START, UNSHRUNK

NUMBERS = 40
topics = st.sampled_from([NEWS, SPORT, Topic(b"\xff\x00\xff\x07")])
seconds = st.integers(0, 4)
numbers = st.integers(0, NUMBERS)
v1 = st.builds(
    lambda number, second, topic: envelope(number, created=START + second, topic=topic), numbers, seconds, topics
)
v2 = st.builds(
    lambda number, second, extra, topic, meta, ephemeral: original(
        number, timestamp=at(second) + extra, topic=topic, meta=meta, version=None, ephemeral=ephemeral
    ),
    numbers,
    seconds,
    st.sampled_from([0, 0, 1, 999_999_999]),
    topics,
    st.sampled_from([b"", b"meta"]),
    st.sampled_from([None, False, True]),
)
times = st.none() | st.builds(lambda second, extra: at(second) + extra, seconds, st.sampled_from([0, 1]))
NONE_OF_OURS = "/app/1/chat/proto"
content_topics = st.lists(topics.map(content_topic_of) | st.just(NONE_OF_OURS), max_size=4).map(tuple)
arrivals = st.one_of(
    st.tuples(st.just("put"), st.tuples(v1, st.integers(0, 3))),
    st.tuples(st.just("send"), st.tuples(v2, seconds, st.integers(0, 3))),
    st.tuples(st.just("prune"), st.integers(1, 6)),
    st.tuples(st.just("sweep"), st.none()),
)


async def do(world: World, action: str, details: Any) -> None:
    """Do one thing to the store, or to the index, and to the model."""
    if action == "put":
        each, received = details
        if message_of(each).hash(DEFAULT_NETWORK_TOPIC) not in world.model.known:
            await world.put(each, received=START + received)
    elif action == "send":
        message, second, received = details
        each = bridged(message, START + second, nonce=len(world.model.known))
        name = message.hash(DEFAULT_NETWORK_TOPIC)
        if name not in world.model.known:
            await world.send(message, each.created, nonce=each.nonce, received=START + received)
    elif action == "prune":
        await world.prune(details)
    else:
        await world.messages.follower.catch_up()
        await world.messages.follower.sweep()


def drawn_query(data: st.DataObject, world: World) -> StoreQuery:
    query = query_for(
        is_forward=data.draw(st.booleans()),
        limit=data.draw(st.integers(1, 5)),
        include_data=data.draw(st.booleans()),
        include_muids=data.draw(st.booleans()),
    )
    known = [*world.model.known]
    if known and data.draw(st.integers(0, 3)) == 0:
        names = data.draw(st.lists(st.sampled_from(known), max_size=8))
        muids = {name for each in world.model.known.values() if (name := muid_of(each)) is not None}
        others = data.draw(st.lists(st.sampled_from(sorted(muids)), max_size=8)) if muids else []
        return replace(query, message_hashes=tuple(names), muids=tuple(others))
    return replace(
        query,
        content_topics=data.draw(content_topics),
        time_start=data.draw(times),
        time_end=data.draw(times),
    )


def storable(world: World) -> list[Any]:
    """What can be a cursor: every message that was ever indexed."""
    return [name for name, message in world.model.known.items() if not message.ephemeral]


@pytest.mark.slow
@each_engine
@given(data=st.data(), script=st.lists(arrivals, min_size=8, max_size=40), later=st.lists(arrivals, max_size=12))
@settings(max_examples=30, phases=UNSHRUNK)
async def test_queries_answer_as_the_model_does(
    name: str, new_folder: Callable[[], Path], data: st.DataObject, script: list[Any], later: list[Any]
) -> None:
    folder = new_folder()
    async with opened_world(folder, engine=ENGINES[name](folder)) as world:
        for each in script:
            await do(world, *each)
            if each[0] in ("put", "send"):
                await world.messages.follower.catch_up()  # before it is pruned: it can be a cursor from then on
        for _ in range(4):
            query = drawn_query(data, world)
            known = storable(world)
            goes_on = data.draw(st.booleans())
            if known and goes_on:
                query = replace(query, cursor=data.draw(st.sampled_from(known)))

            assert await world.messages.query(query) == world.model.page(query)
            assert await world.walk(query) == world.model.answer(query)

        query = drawn_query(data, world)
        changes = iter(later)
        while True:
            page = await world.messages.query(query)
            assert page == world.model.page(query)
            for each in (*zip(range(2), changes, strict=False),):
                await do(world, *each[1])
            if page.cursor is None:
                break
            query = replace(query, cursor=page.cursor)
