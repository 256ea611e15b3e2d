"""Messages that only the archive has: found, ordered and read as if the store had them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.archive.days import day_name
from mailserver.archive.paths import record_of
from mailserver.errors import StoreError
from mailserver.gateway.index import archived as indexing
from mailserver.gateway.index import follower as following
from mailserver.gateway.index.schema import INDEX_FILE
from mailserver.gateway.index.values import MAX_PAGE_BYTES, MessagePage
from mailserver.ids.envelopes import NS, content_topic_of, message_of
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.store.interface import Payer
from mailserver.store.message_ids import NotIndexedYet
from mailserver.waku2.store_query import WakuMessageKeyValue
from tests.gateway.index.archives import ArchivedWorld, opened_archived_world
from tests.gateway.index.test_model import arrivals, do, drawn_query, storable
from tests.gateway.index.worlds import (
    all_of,
    at,
    envelope,
    envelopes,
    hashes,
    opened_messages,
    original,
    query_for,
    stored,
)
from tests.properties import settings
from tests.store.engines import Engine
from tests.store.samples import DAY, NEWS, SPORT, START, UNSHRUNK, change, rows
from tests.waiting import until


@pytest.fixture
async def world(tmp_path: Path, engine: Engine) -> AsyncIterator[ArchivedWorld]:
    """An empty store, and an archive that was never written."""
    async with opened_archived_world(tmp_path, engine=engine) as opened:
        await opened.follow()
        yield opened


async def archived(world: ArchivedWorld, count: int, keep: int = 0) -> None:
    """Envelopes that only the archive has, and some that the store has as well."""
    await world.put(*envelopes(count))
    world.compact()
    await world.follow()
    await world.prune(count - keep)


nights = st.one_of(
    arrivals,
    st.tuples(st.just("compact"), st.none()),
    st.tuples(st.just("night"), st.integers(1, 6)),
    st.tuples(st.just("merge"), st.none()),
)


async def do_or_archive(world: ArchivedWorld, action: str, details: Any) -> None:
    """Do one thing to store, archive or index, and to the model."""
    if action == "compact":
        world.compact()
    elif action == "night":
        world.compact()
        await world.prune(details)
    elif action == "merge":
        world.merge()
    else:
        if action in ("put", "send"):
            *first, received = details
            details = *first, received * DAY
        await do(world, action, details)
        if action in ("put", "send"):
            await world.messages.follower.catch_up()  # before it is pruned: it can be a cursor from then on


@pytest.mark.slow
@given(data=st.data(), script=st.lists(nights, min_size=10, max_size=40), later=st.lists(nights, max_size=12))
@settings(max_examples=30, phases=UNSHRUNK)
async def test_queries_answer_as_one_store_would_that_holds_all(
    new_folder: Callable[[], Path], data: st.DataObject, script: list[Any], later: list[Any]
) -> None:
    async with opened_archived_world(new_folder()) as world:
        await world.follow()
        for each in script:
            await do_or_archive(world, *each)
        for _ in range(4):
            query = drawn_query(data, world)
            known = storable(world)
            goes_on = data.draw(st.integers(0, 1))
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
                await do_or_archive(world, *each[1])
            if page.cursor is None:
                break
            query = replace(query, cursor=page.cursor)


@pytest.mark.parametrize("is_forward", [True, False])
async def test_page_is_filled_across_the_seam(world: ArchivedWorld, *, is_forward: bool) -> None:
    await archived(world, 20, keep=10)

    page = await world.messages.query(query_for(limit=15, is_forward=is_forward))

    expected = all_of(envelopes(20))
    assert page.entries == (expected[:15] if is_forward else expected[5:])
    assert page.cursor == (expected[14] if is_forward else expected[5]).message_hash


async def test_message_that_was_pruned_is_found_before_and_after_it_leaves_the_index_of_the_store(
    world: ArchivedWorld,
) -> None:
    await archived(world, 6)
    name = message_of(envelope(2, created=START + 2)).hash(DEFAULT_NETWORK_TOPIC)
    query = query_for(message_hashes=(name,), include_data=False)

    before = await world.messages.query(query)
    await world.follow()
    after = await world.messages.query(query)

    assert before.entries == after.entries == [WakuMessageKeyValue(name)]
    assert rows(world.folder / INDEX_FILE, "SELECT count(*) FROM messages") == [(0,)]
    assert await world.messages.is_stored(name)


async def test_original_is_found_in_the_archive_as_it_was_sent(world: ArchivedWorld) -> None:
    message = original(1, timestamp=at(3) + 500, meta=b"meta", version=0)
    await world.put(*envelopes(8, first=10))
    await world.send(message, created=START)
    world.compact()
    await world.follow()
    await world.prune(8)
    await world.follow()
    name = message.hash(DEFAULT_NETWORK_TOPIC)

    by_time = await world.messages.query(query_for(time_start=at(3), time_end=at(4)))
    by_hash = await world.messages.query(query_for(message_hashes=(name,)))

    assert by_time.entries == by_hash.entries == [stored(message)]


async def test_message_that_was_not_to_be_stored_stays_away_when_days_are_merged(world: ArchivedWorld) -> None:
    await world.put(*envelopes(2), received=START)
    await world.send(original(1, timestamp=at(3), ephemeral=True), received=START)
    world.compact()
    await world.follow()
    await world.prune(3)
    await world.follow()
    world.merge()
    await world.messages.archived.index(START)  # type: ignore[union-attr]

    assert (await world.messages.query(query_for())).entries == all_of(envelopes(2))
    assert rows(world.folder / INDEX_FILE, "SELECT count(*) FROM archived") == [(2,)]


async def test_original_outlives_another_store_and_an_index_that_is_cleaned(tmp_path: Path) -> None:
    message = original(1, timestamp=at(3) + 500)
    now = [float(START)]
    async with opened_archived_world(tmp_path, lambda: now[0]) as world:
        await world.send(message, created=START)
        world.compact()
        await world.follow()
        await world.prune(1)
        await world.follow()
        change(tmp_path / "mailserver.db", "UPDATE identity SET id = 'another'")
        now[0] += 365 * DAY
        await world.follow()

        page = await world.messages.query(query_for())

    assert page.entries == [stored(message)]


async def test_gateway_that_is_new_to_an_old_archive_answers_once_it_is_indexed(tmp_path: Path) -> None:
    async with opened_archived_world(tmp_path) as world:
        await archived(world, 9, keep=2)
    (tmp_path / INDEX_FILE).unlink()

    async with opened_archived_world(tmp_path) as world:
        with pytest.raises(NotIndexedYet):
            await world.messages.query(query_for())
        with pytest.raises(NotIndexedYet):
            await world.messages.query(query_for(message_hashes=(hashes(MessagePage(all_of(envelopes(1)), None))[0],)))
        newest = await world.messages.query(query_for(time_start=int(time.time() + DAY) * NS))
        assert newest.entries == []

        await world.follow()

        assert (await world.messages.query(query_for())).entries == all_of(envelopes(9))
        assert world.messages.archived is not None
        assert world.messages.archived.owed == 0


async def test_what_was_archived_and_pruned_before_it_was_indexed_is_never_left_out(
    world: ArchivedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await archived(world, 5, keep=1)
    await world.follow()
    monkeypatch.setattr(following, "SWEEP_REST_S", 3600.0)
    await world.put(*envelopes(5, first=5))
    world.compact()
    await world.prune(4)  # nobody has asked, so none of the five is indexed

    with pytest.raises(NotIndexedYet):
        await world.messages.query(query_for())
    running = asyncio.create_task(world.messages.follower.run())
    await until(lambda: world.messages.archived is not None and world.messages.archived.owed == 0)
    page = await world.messages.query(query_for())
    running.cancel()
    await asyncio.wait([running])

    assert page.entries == all_of(envelopes(10))


async def test_store_that_is_replaced_while_the_archive_is_indexed_leaves_open_what_is_owed(
    world: ArchivedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.put(*envelopes(9))
    world.compact()
    messages = world.messages.archived
    assert messages is not None
    walk = world.source.walk

    def walk_and_begin_anew(*period: Any) -> Any:
        messages.begin_anew()
        return walk(*period)

    monkeypatch.setattr(world.source, "walk", walk_and_begin_anew)
    await messages.index(START + DAY)
    between = messages.owed
    await messages.index(START + DAY)

    assert between is None
    assert messages.owed == 0


async def test_without_an_archive_what_it_has_is_not_answered(tmp_path: Path) -> None:
    async with opened_archived_world(tmp_path) as world:
        await archived(world, 9, keep=2)

    async with opened_messages(tmp_path) as messages:
        page = await messages.query(query_for())

    assert page.entries == all_of(envelopes(2, first=7))


async def test_what_was_pruned_and_is_not_archived_is_gone(world: ArchivedWorld) -> None:
    await world.put(*envelopes(3))
    world.compact()
    await world.put(*envelopes(3, first=3))
    await world.follow()
    await world.prune(5)
    before = await world.messages.query(query_for())
    await world.follow()
    after = await world.messages.query(query_for())

    assert before.entries == after.entries == all_of([*envelopes(3), *envelopes(1, first=5)])


async def test_what_was_taken_out_of_the_archive_is_gone_and_found_once_it_is_back(world: ArchivedWorld) -> None:
    message = original(1, timestamp=at(3) + 500)
    await world.put(envelope(50, created=START), received=START)
    await world.put(*envelopes(3), received=START + DAY)
    await world.send(message, created=START, received=START + DAY)
    world.compact()
    await world.put(envelope(60, created=START + 9), received=START + 2 * DAY)
    await world.follow()
    await world.prune(5)
    await world.follow()
    record = world.archive / record_of(day_name(START // DAY + 1))
    old = all_of([envelope(50, created=START), envelope(60, created=START + 9)])
    whole = all_of([envelope(50, created=START), *envelopes(3), envelope(60, created=START + 9)])

    record.rename(world.folder / "aside")
    gone = await world.messages.query(query_for())
    await world.follow()
    left = rows(world.folder / INDEX_FILE, "SELECT count(*) FROM archived")
    (world.folder / "aside").rename(record)
    await world.messages.archived.index(START + DAY)  # type: ignore[union-attr]
    back = await world.messages.query(query_for())

    assert gone.entries == old
    assert left == [(1,)]
    assert back.entries == [*whole[:4], stored(message), whole[4]]


async def test_archive_that_cannot_be_read_costs_those_an_error_who_need_it_and_comes_back_by_itself(
    world: ArchivedWorld, caplog: pytest.LogCaptureFixture
) -> None:
    await archived(world, 9, keep=3)
    files = [file for file in world.archive.rglob("*") if file.is_file() and "part-" in file.name]
    whole = {file: file.read_bytes() for file in files}
    for file in files:
        file.write_bytes(bytes(len(whole[file])))

    recent = await world.messages.query(query_for(limit=2, is_forward=False))
    with pytest.raises(StoreError, match="cannot read the archive"):
        await world.messages.query(query_for())
    assert world.messages.archived is not None
    problem = world.messages.archived.problem
    for file in files:
        file.write_bytes(whole[file])
    page = await world.messages.query(query_for())

    assert recent.entries == all_of(envelopes(2, first=7))
    assert "could not be answered from the archive" in problem
    assert len([each for each in caplog.records if "archive cannot be read" in each.message]) == 1
    assert page.entries == all_of(envelopes(9))


async def test_archive_that_cannot_be_indexed_leaves_everything_where_it_is(world: ArchivedWorld) -> None:
    await world.put(*envelopes(9))
    await world.follow()
    world.compact()
    await world.prune(4)
    record = next((world.archive / "_records").iterdir())
    text = record.read_text()
    record.write_text("{")
    await world.messages.follower.catch_up()

    with pytest.raises(StoreError):
        await world.messages.follower.sweep()
    record.write_text(text)
    page = await world.messages.query(query_for())
    await world.follow()
    after = await world.messages.query(query_for())

    assert page.entries == after.entries == all_of(envelopes(9))


async def test_page_of_long_messages_ends_before_it_is_too_long(world: ArchivedWorld) -> None:
    size = MAX_PAGE_BYTES // 4
    long = [envelope(number, created=START + number, size=size) for number in range(9)]
    await world.put(*long)
    world.compact()
    await world.follow()
    await world.prune(5)

    pages = []
    query = query_for()
    while True:
        page = await world.messages.query(query)
        pages.append(page)
        if page.cursor is None:
            break
        query = replace(query, cursor=page.cursor)

    assert [entry for page in pages for entry in page.entries] == all_of(long)
    assert [len(page.entries) for page in pages] == [3, 3, 3]


async def test_what_the_archive_costs_is_charged(world: ArchivedWorld) -> None:
    await archived(world, 30, keep=10)
    charged = {"recent": 0, "old": 0}

    def payer(which: str) -> Payer:
        def charge(work: int) -> None:
            charged[which] += work

        return Payer(which, which, charge)

    await world.messages.query(query_for(limit=5, is_forward=False), payer=payer("recent"))
    await world.messages.query(query_for(limit=5), payer=payer("old"))

    assert charged["old"] > charged["recent"] + 2000


async def test_index_of_the_archive_goes_on_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "STEP_BYTES", 1)
    async with opened_archived_world(tmp_path) as world:
        await archived(world, 12)
        change(tmp_path / INDEX_FILE, "UPDATE archived_periods SET row_groups = 2, is_all = 0")
        change(tmp_path / INDEX_FILE, "DELETE FROM archived")

        await world.messages.archived.index(0)  # type: ignore[union-attr]

    assert rows(tmp_path / INDEX_FILE, "SELECT count(*) FROM archived") == [(6,)]
    assert rows(tmp_path / INDEX_FILE, "SELECT row_groups, is_all FROM archived_periods") == [(4, 1)]


async def test_envelopes_that_were_cached_are_not_read_again(world: ArchivedWorld) -> None:
    await archived(world, 9)
    first = await world.messages.query(query_for(content_topics=(content_topic_of(NEWS),)))
    for file in world.archive.rglob("part-*"):
        file.unlink()

    again = await world.messages.query(query_for(content_topics=(content_topic_of(NEWS),)))

    assert again == first
    assert first.entries == all_of(envelopes(9))


async def test_many_of_one_second_are_ordered_by_their_message_hashes(world: ArchivedWorld) -> None:
    some = [envelope(number, created=START, topic=(NEWS, SPORT)[number % 2]) for number in range(60)]
    await world.put(*some)
    world.compact()
    await world.follow()
    await world.prune(31)

    walked = await world.walk(query_for(limit=7))
    backward = await world.walk(query_for(limit=7, is_forward=False))
    news = await world.walk(query_for(limit=7, content_topics=(content_topic_of(NEWS),)))

    assert walked == backward[::-1] == all_of(some)
    assert news == all_of(some[::2])


async def test_walk_meets_all_once_while_pruning_compaction_and_merge_go_on(world: ArchivedWorld) -> None:
    some = envelopes(64)
    await world.put(*some)

    async def change_all() -> None:
        for number in range(8):
            world.compact()
            if number % 4 == 3:
                world.merge()
            await world.follow()
            await world.prune(8)

    changing = asyncio.create_task(change_all())
    found = await world.walk(query_for(limit=7))
    await changing

    assert found == all_of(some)
    assert await world.walk(query_for(limit=7, is_forward=False)) == all_of(some)[::-1]


async def test_archive_is_looked_at_as_soon_as_the_store_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "SWEEP_REST_S", 3600.0)
    async with opened_archived_world(tmp_path) as world:
        await archived(world, 9, keep=2)
    (tmp_path / INDEX_FILE).unlink()

    async with opened_archived_world(tmp_path) as world:
        running = asyncio.create_task(world.messages.follower.run())
        await until(lambda: world.messages.archived is not None and world.messages.archived.owed == 0)
        page = await world.messages.query(query_for())
        running.cancel()
        await asyncio.wait([running])

    assert page.entries == all_of(envelopes(9))
