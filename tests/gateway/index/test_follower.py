"""Following a store: what arrives, what is removed, and a store that is replaced."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from mailserver.errors import StoreError
from mailserver.gateway.index import follower as following
from mailserver.gateway.index.message_store import News, open_messages
from mailserver.gateway.index.schema import INDEX_FILE, PREFIX_BYTES
from mailserver.gateway.index.values import MessagePage, UnknownCursor
from mailserver.gateway.index.writing import CURSOR_KEPT_S, ORIGINAL_KEPT_S
from mailserver.ids.envelopes import message_of
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.store.arrivals import OtherStore, Sought
from mailserver.store.interface import OURSELVES, Payer
from mailserver.store.message_ids import Arrival, NotIndexedYet
from mailserver.store.retention import END_OF_TIME, Surplus
from mailserver.store.sqlite.arrivals import SqliteArrivalLog, SqliteArrived
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.waku.envelope_rows import read_fields
from tests.gateway.index.worlds import (
    NEWS_TOPIC,
    World,
    all_of,
    at,
    envelope,
    envelopes,
    new,
    opened_messages,
    opened_world,
    original,
    query_for,
    stored,
)
from tests.store.engines import SqliteEngine
from tests.store.samples import START, change, make_store, rows
from tests.waiting import turns, until

OTHER_TOPIC = "/waku/2/rs/9/9"


def count(folder: Path, table: str = "messages") -> int:
    ((found,),) = rows(folder / INDEX_FILE, f"SELECT count(*) FROM {table}")
    return int(found)


async def test_index_goes_on_where_it_ended(tmp_path: Path) -> None:
    async with opened_world(tmp_path) as world:
        await world.put(*envelopes(3))
        await world.messages.follower.catch_up()
        before = world.messages.follower.progress

    async with opened_world(tmp_path) as world:
        assert world.messages.follower.progress == before
        await world.store.put([new(envelope(3, created=START + 3))])
        page = await world.messages.query(query_for())

    assert page.entries == all_of(envelopes(4))


async def test_index_that_was_deleted_is_made_anew(tmp_path: Path) -> None:
    async with opened_world(tmp_path) as world:
        await world.put(*envelopes(3))
        await world.messages.follower.catch_up()
    (tmp_path / INDEX_FILE).unlink()

    async with opened_messages(tmp_path) as messages:
        page = await messages.query(query_for())

    assert page.entries == all_of(envelopes(3))


async def test_index_of_another_network_topic_is_made_anew_and_its_originals_are_found_again(tmp_path: Path) -> None:
    message = original(1, timestamp=at(5))
    async with opened_world(tmp_path) as world:
        await world.put(envelope(1))
        await world.send(message)
        await world.messages.follower.catch_up()
    change(tmp_path / STORE_FILE, "UPDATE id_index SET network_topic = ''")

    async with opened_messages(tmp_path, OTHER_TOPIC) as messages:
        page = await messages.query(query_for())
        is_known = await messages.is_stored(message.hash(OTHER_TOPIC))

    assert page.entries == [stored(message_of(envelope(1)), OTHER_TOPIC), stored(message, OTHER_TOPIC)]
    assert is_known


async def test_store_that_was_replaced_is_indexed_from_its_beginning(tmp_path: Path) -> None:
    message = original(7, timestamp=at(9))
    async with opened_world(tmp_path) as world:
        await world.put(*envelopes(3))
        each = await world.send(message)
        await world.messages.query(query_for())
    make_store(tmp_path / "other.db", [new(envelope(8)), new(each)])

    async with opened_messages(tmp_path) as messages:
        before = await messages.query(query_for())
        (tmp_path / "other.db").replace(tmp_path / STORE_FILE)
        after = await messages.query(query_for())
        with pytest.raises(UnknownCursor):
            await messages.query(query_for(cursor=before.entries[0].message_hash))

    assert before.entries == [*all_of(envelopes(3)), stored(message)]
    assert after.entries == [stored(message_of(envelope(8))), stored(message)]


class CountedReads(SqliteArrivalLog):
    """Counts how often the order of arrival is read."""

    reads = 0

    async def after(self, arrival: Arrival, limit: int, *, of: str) -> SqliteArrived:
        self.reads += 1
        return await super().after(arrival, limit, of=of)


async def test_those_who_ask_at_the_same_time_share_a_step(tmp_path: Path) -> None:
    make_store(tmp_path / STORE_FILE, [new(each) for each in envelopes(3)])
    log = CountedReads(tmp_path / STORE_FILE, DEFAULT_NETWORK_TOPIC)
    async with open_messages(tmp_path / INDEX_FILE, log, DEFAULT_NETWORK_TOPIC) as messages:
        pages = await asyncio.gather(*(messages.query(query_for()) for _ in range(30)))
    await log.close()

    assert all(page.entries == all_of(envelopes(3)) for page in pages)
    assert log.reads <= 3  # the first knows no store yet


async def test_message_that_was_confirmed_is_found_while_others_step(world: World) -> None:
    async def put_and_ask(number: int) -> bool:
        each = envelope(number, created=START + number)
        await world.put(each)
        wanted = message_of(each).hash(DEFAULT_NETWORK_TOPIC)
        page = await world.messages.query(query_for(message_hashes=(wanted,), include_data=False))
        return len(page.entries) == 1

    assert all(await asyncio.gather(*(put_and_ask(number) for number in range(100))))


@pytest.mark.parametrize("is_forward", [True, False])
async def test_walk_meets_all_that_stays_once_while_others_arrive_and_go(world: World, *, is_forward: bool) -> None:
    # What goes is older by reception; what stays was created before, between and after it.
    goes = [envelope(number, created=START + 2 * number) for number in range(200)]
    stays = [envelope(number, created=START + 2 * (number - 1000) + 1) for number in range(1000, 1200)]
    await world.put(*goes, received=START)
    await world.put(*stays, received=START + 1)

    async def change_all() -> None:
        for number in range(20):
            await world.prune(10)
            await world.store.put([new(envelope(2000 + number, created=START + 20 * number), START + 2)])
            await world.messages.follower.catch_up()
            await world.messages.follower.sweep()

    changing = asyncio.create_task(change_all())
    found = await world.walk(query_for(limit=10, is_forward=is_forward))
    await changing

    names = [entry.message_hash for entry in found]
    lasting = [entry.message_hash for entry in all_of(stays)]
    assert [name for name in names if name in {*lasting}] == (lasting if is_forward else lasting[::-1])
    assert len(names) == len({*names}) > len(lasting)


async def test_what_is_asked_for_while_too_much_is_not_indexed_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "STEP_ENVELOPES", 10)
    monkeypatch.setattr(following, "MAX_BEHIND", 25)
    await world.put(*envelopes(100))

    with pytest.raises(NotIndexedYet) as caught:
        await world.messages.query(query_for())
    assert caught.value.left == 90

    while world.messages.follower.behind > 25:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(world.messages.follower.run())
            await until(lambda: world.messages.follower.behind <= 25)
            running.cancel()
    page = await world.messages.query(query_for(limit=100))
    assert page.entries == all_of(envelopes(100))


async def test_asking_ends_if_indexing_takes_too_long(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "CATCH_UP_S", 0.0)
    await world.put(envelope(1))

    with pytest.raises(NotIndexedYet):
        await world.messages.query(query_for())


async def test_step_of_somebody_who_did_not_wait_is_not_done_twice(world: World) -> None:
    for number in range(40):
        await world.put(*envelopes(3, first=3 * number))
        asking = asyncio.create_task(world.messages.follower.catch_up())
        await turns(number)
        asking.cancel()
        await asyncio.wait([asking])

    found = await world.walk(query_for())

    assert found == all_of(envelopes(120))


async def test_damaged_envelopes_are_counted_and_left_out(tmp_path: Path) -> None:
    make_store(tmp_path / STORE_FILE, [new(each) for each in envelopes(3)])
    change(tmp_path / STORE_FILE, "UPDATE envelopes SET raw = substr(raw, 1, 40) || x'00' WHERE seq = 2")

    async with opened_messages(tmp_path) as messages:
        page = await messages.query(query_for())

        assert page.entries == all_of(envelopes(1) + envelopes(1, first=2))
        assert messages.follower.damaged == 1


async def test_envelope_that_was_damaged_since_it_was_indexed_is_left_out_and_the_page_filled(tmp_path: Path) -> None:
    make_store(tmp_path / STORE_FILE, [new(each) for each in envelopes(4)])
    async with opened_messages(tmp_path) as messages:
        await messages.follower.catch_up()
        change(tmp_path / STORE_FILE, "UPDATE envelopes SET raw = CAST(raw || x'00' AS BLOB) WHERE seq = 1")
        ((other,),) = rows(tmp_path / STORE_FILE, "SELECT hex(raw) FROM envelopes WHERE seq = 3")
        change(tmp_path / STORE_FILE, f"UPDATE envelopes SET raw = x'{other}' WHERE seq = 2")

        page = await messages.query(query_for(limit=2))
        again = await messages.query(query_for(limit=2))

        assert page.entries == again.entries == all_of(envelopes(2, first=2))
        assert messages.follower.damaged == 2


async def test_envelope_from_before_1970_has_no_message(world: World) -> None:
    await world.store.put([new(envelope(1, created=0)), new(envelope(2, created=1))])

    page = await world.messages.query(query_for())

    assert page.entries == all_of([envelope(2, created=1)])


async def test_messages_of_pruned_envelopes_leave_the_index_and_no_others(world: World) -> None:
    message = original(1, timestamp=at(9_000_000))  # long after its envelope was created
    await world.put(*envelopes(2500))
    await world.send(message, created=START)
    await world.send(original(2, timestamp=at(1), ephemeral=True), created=START)
    await world.messages.follower.catch_up()
    await world.messages.follower.sweep()
    assert count(world.folder) == 2501

    for _ in range(9):
        await world.prune(250)
    await world.messages.follower.catch_up()
    await world.messages.follower.sweep()

    assert count(world.folder) == 2502 - 9 * 250
    assert count(world.folder, "originals") == 1  # the ephemeral one: an archive may have its envelope
    assert count(world.folder, "gone") == 9 * 250 - 1  # the ephemeral one was in no order


async def test_what_is_gone_is_found_in_many_steps(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "SWEPT_KEYS", 2)
    for number in range(7):
        await world.send(original(number, timestamp=at(9_000_000 + number)), created=START + number)
    await world.put(*envelopes(7, first=20))
    await world.messages.follower.catch_up()
    await world.prune(5)
    await world.messages.follower.catch_up()

    await world.messages.follower.sweep()

    assert (count(world.folder), count(world.folder, "originals")) == (9, 2)
    assert await world.walk(query_for()) == world.model.answer(query_for())


class Looked(SqliteArrivalLog):
    """Counts the messages that are looked for in the store when the index is swept; does something else then."""

    def __init__(self, path: Path, network_topic: str) -> None:
        super().__init__(path, network_topic)
        self.looked_for = 0
        self.meanwhile: list[Callable[[], Awaitable[None]]] = []

    async def missing(self, places: Sequence[Sought], *, payer: Payer = OURSELVES) -> list[Arrival]:
        self.looked_for += len(places)
        missing = await super().missing(places, payer=payer)
        while places and self.meanwhile:
            await self.meanwhile.pop()()
        return missing


async def swept_at_a_start(folder: Path) -> tuple[int, int]:
    """Start a gateway that sweeps; return how many messages it has looked for in the store, and how many are left."""
    log = Looked(folder / STORE_FILE, DEFAULT_NETWORK_TOPIC)
    async with open_messages(folder / INDEX_FILE, log, DEFAULT_NETWORK_TOPIC) as messages:
        await messages.follower.catch_up()
        await messages.follower.sweep()
    await log.close()
    return log.looked_for, count(folder)


async def test_start_sweeps_the_index_again_only_for_what_was_removed_since(tmp_path: Path) -> None:
    async with SqliteEngine(tmp_path).open() as store:
        await store.put([new(each) for each in envelopes(9)])
        first = await swept_at_a_start(tmp_path)
        again = await swept_at_a_start(tmp_path)
        await store.prune(Surplus(END_OF_TIME, 4))
        pruned = await swept_at_a_start(tmp_path)
        after = await swept_at_a_start(tmp_path)

    assert (first, again) == ((9, 9), (0, 9))
    assert (pruned, after) == ((9, 5), (0, 5))


async def test_start_sweeps_for_a_store_that_has_become_empty(tmp_path: Path) -> None:
    async with SqliteEngine(tmp_path).open() as store:
        await store.put([new(each) for each in envelopes(3)])
        async with opened_messages(tmp_path) as messages:
            await messages.follower.catch_up()
        await store.prune(Surplus(END_OF_TIME, 3))

        assert await swept_at_a_start(tmp_path) == (3, 0)


async def test_what_was_swept_of_another_store_does_not_count(tmp_path: Path) -> None:
    make_store(tmp_path / STORE_FILE, [new(each) for each in envelopes(3)])
    make_store(tmp_path / "other.db", [new(each) for each in envelopes(3)])
    before = await swept_at_a_start(tmp_path)
    (tmp_path / "other.db").replace(tmp_path / STORE_FILE)

    assert before == await swept_at_a_start(tmp_path) == (3, 3)


async def test_sweep_during_which_the_store_is_replaced_is_none_of_the_new_one(tmp_path: Path) -> None:
    make_store(tmp_path / STORE_FILE, [new(each) for each in envelopes(3)])
    make_store(tmp_path / "other.db", [new(each) for each in envelopes(5)])
    log = Looked(tmp_path / STORE_FILE, DEFAULT_NETWORK_TOPIC)
    async with open_messages(tmp_path / INDEX_FILE, log, DEFAULT_NETWORK_TOPIC) as messages:

        async def replace_store() -> None:
            (tmp_path / "other.db").replace(tmp_path / STORE_FILE)
            await messages.follower.catch_up()

        await messages.follower.catch_up()
        log.meanwhile.append(replace_store)
        await messages.follower.sweep()
        before = log.looked_for
        await messages.follower.sweep()
    await log.close()

    assert (before, log.looked_for) == (3, 3 + 5)


async def test_index_that_cannot_be_swept_is_a_problem(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "FOLLOW_S", 30.0)
    await world.put(*envelopes(3))
    await world.messages.follower.catch_up()
    await world.prune(1)
    await world.messages.follower.catch_up()
    change(world.folder / INDEX_FILE, "DROP TABLE gone")

    running = asyncio.create_task(world.messages.follower.run())
    await until(lambda: "no such table" in world.messages.follower.problem)

    running.cancel()
    await asyncio.wait([running])


async def test_gone_messages_that_a_query_meets_leave_the_index(world: World) -> None:
    await world.put(*envelopes(10))
    await world.messages.follower.catch_up()
    await world.messages.follower.sweep()
    world.engine.change("DELETE FROM envelopes WHERE seq = 5")  # not as pruning does it

    await world.messages.query(query_for())
    await world.messages.follower.sweep()

    assert count(world.folder) == 9


async def test_place_of_a_gone_message_is_forgotten_after_a_day(tmp_path: Path) -> None:
    now = [float(START)]
    left = []
    async with opened_world(tmp_path, lambda: now[0]) as world:
        await world.put(*envelopes(4))
        await world.messages.follower.catch_up()
        for seconds in (0, CURSOR_KEPT_S - 1, 1):
            now[0] += seconds
            await world.prune(1)
            await world.messages.follower.catch_up()
            await world.messages.follower.sweep()
            left.append(count(tmp_path, "gone"))

    assert left == [1, 2, 2]


async def test_original_that_never_arrives_is_forgotten_after_a_month(tmp_path: Path) -> None:
    now = [float(START)]
    left = []
    async with opened_world(tmp_path, lambda: now[0]) as world:
        await world.messages.keep_original(envelope(1), original(1, timestamp=at(0)))
        await world.put(*envelopes(3, first=5))
        await world.messages.follower.catch_up()
        for seconds in (ORIGINAL_KEPT_S, 1):
            now[0] += seconds
            await world.prune(1)
            await world.messages.follower.catch_up()
            await world.messages.follower.sweep()
            left.append(count(tmp_path, "originals"))

    assert left == [1, 0]


async def test_running_follower_indexes_and_sweeps_what_nobody_asks_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "FOLLOW_S", 0.01)
    monkeypatch.setattr(following, "SWEEP_REST_S", 0.01)
    running = asyncio.create_task(world.messages.follower.run())

    await world.put(*envelopes(5))
    await until(lambda: count(world.folder) == 5)
    await world.prune(2)
    await until(lambda: count(world.folder) == 3)

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_store_that_cannot_be_read_is_a_problem_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(following, "FOLLOW_S", 0.01)
    async with opened_messages(tmp_path) as messages:
        running = asyncio.create_task(messages.follower.run())
        await until(lambda: bool(messages.follower.problem))
        problem = messages.follower.problem
        with pytest.raises(StoreError, match="there is none"):
            await messages.query(query_for())

        make_store(tmp_path / STORE_FILE, [new(envelope(1))])
        await until(lambda: not messages.follower.problem)
        running.cancel()

        assert "there is none" in problem
        assert len([record for record in caplog.records if "are not indexed" in record.message]) == 1
        assert (await messages.query(query_for())).entries == all_of([envelope(1)])


async def test_news_are_the_messages_that_arrived_after_a_place(world: World) -> None:
    message = original(9, timestamp=at(0))
    await world.put(*envelopes(2))
    await world.messages.follower.catch_up()
    place, identity = world.messages.follower.progress.arrival, world.messages.follower.progress.identity
    await world.put(envelope(5), envelope(3))
    await world.store.put([new(envelope(4, created=0))])
    await world.send(message)

    news = await world.messages.news(place, of=identity)
    none = await world.messages.news(news.end, of=identity)

    expected = [message_of(envelope(5)), message_of(envelope(3)), message]
    assert [each.encoded for each in news.messages] == [each.encode() for each in expected]
    assert [each.timestamp for each in news.messages] == [each.timestamp for each in expected]
    assert news.end == news.last > place
    assert [*news.envelopes[:2]] == [envelope(number).hash()[:PREFIX_BYTES] for number in (5, 3)]
    assert none == News([], [], news.end, news.end, has_more=False)


async def test_news_of_a_store_that_was_replaced_are_told_to_be_of_another(tmp_path: Path) -> None:
    make_store(tmp_path / STORE_FILE, [new(envelope(1))])
    async with opened_messages(tmp_path) as messages:
        await messages.follower.catch_up()
        identity = messages.follower.progress.identity
        make_store(tmp_path / "other.db", [new(envelope(2)), new(envelope(3))])
        shutil.move(tmp_path / "other.db", tmp_path / STORE_FILE)

        with pytest.raises(OtherStore):
            await messages.news(Arrival(1), of=identity)


async def test_live_envelopes_are_mapped_with_their_originals(world: World) -> None:
    message = original(9, timestamp=at(0), version=0, ephemeral=True)
    each = await world.send(message)
    live = [envelope(1), each, envelope(2, created=0)]

    all_fields = read_fields(b"".join(one.raw for one in live), [len(one.raw) for one in live])
    found = await world.messages.messages_of(
        [(fields, one.hash()) for fields, one in zip(all_fields, live, strict=True) if fields is not None]
    )

    assert found[2] is None
    first = message_of(envelope(1))
    assert found[0] == (first.hash(DEFAULT_NETWORK_TOPIC), NEWS_TOPIC, first.timestamp, first.encode())
    assert found[1] == (message.hash(DEFAULT_NETWORK_TOPIC), NEWS_TOPIC, message.timestamp, message.encode())


async def test_empty_store_has_no_messages(world: World) -> None:
    assert await world.messages.query(query_for()) == MessagePage([], None)
