"""mailserver.store.engine.message_ids on real files: in slices, and while the index of ids is being built."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mailserver.errors import StoreError
from mailserver.ids.envelopes import envelope_muid
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC, Muid, sync_id
from mailserver.reconcile.sides import Needed
from mailserver.store.engine import index_state, index_wait, message_ids, muids, work
from mailserver.store.engine.message_ids import StoredMessageIds
from mailserver.store.interface import NewEnvelope, Payer, Query
from mailserver.store.message_ids import NotIndexedYet
from mailserver.store.sqlite import id_index, writer
from mailserver.store.sqlite.reader_pool import ReaderPool
from mailserver.store.sqlite.store import SqliteStore, open_store
from mailserver.waku.envelope import decode_envelope
from tests.store.engines import EVERYTHING, NEWS_ONLY
from tests.store.samples import DAY, EVER, EVERY_BYTE, NEWS, SPORT, START, change, make_store, raws, rows
from tests.store.sqlite.ids import assert_all_is_indexed, row
from tests.waiting import DEADLINE_S, turns, until

OTHER = "/waku/2/rs/1/5"


def some_rows(count: int, *, first: int = 0) -> list[NewEnvelope]:
    """Rows that arrive in another order than they were created in: of each third minute of two days, two topics."""
    return [
        row(number, created=START + number * 37 % 50 * DAY // 25, topic=NEWS if number % 3 else SPORT)
        for number in range(first, first + count)
    ]


def muid(each: NewEnvelope, network_topic: str = DEFAULT_NETWORK_TOPIC) -> Muid:
    return envelope_muid(network_topic, decode_envelope(each.raw))


def newest_first(envelopes: list[NewEnvelope]) -> list[NewEnvelope]:
    return sorted(envelopes, key=lambda each: (each.created, each.hash), reverse=True)


def by_item(envelopes: list[NewEnvelope]) -> list[NewEnvelope]:
    return sorted(envelopes, key=lambda each: (each.created, sync_id(muid(each))))


async def read_all(ids: StoredMessageIds, asked: list[NewEnvelope]) -> list[bytes]:
    found = await ids.find([muid(each) for each in asked])
    return (await found.read(found.left, EVERY_BYTE)).split()


def statements_of(
    monkeypatch: pytest.MonkeyPatch, before_each: Callable[[int], None] = lambda _: None
) -> list[tuple[str, Sequence[object]]]:
    """The statements that readers run from now on, with their parameters.

    Args:
        before_each: called before a statement is run, with the number of those before it.
    """
    run = ReaderPool.run
    statements: list[tuple[str, Sequence[object]]] = []

    async def recorded(self: ReaderPool, sql: str, parameters: Sequence[object], *others: Any, **named: Any) -> Any:
        before_each(len(statements))
        statements.append((sql, parameters))
        return await run(self, sql, parameters, *others, **named)

    monkeypatch.setattr(ReaderPool, "run", recorded)
    return statements


@contextlib.asynccontextmanager
async def nothing_is_indexed(
    path: Path, monkeypatch: pytest.MonkeyPatch, network_topic: str = DEFAULT_NETWORK_TOPIC
) -> AsyncIterator[SqliteStore]:
    """A store whose index does not move for as long as nothing waits for it but these tests."""
    monkeypatch.setattr(writer.StoreWriter, "_index_until_arrival", lambda self: self._arrived.wait())
    async with open_store(path, network_topic, reindex=True) as store:
        yield store


@pytest.mark.parametrize("at_once", [1, 3, 64])
async def test_all_is_as_it_would_be_in_one_slice(path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(message_ids, "IDS_AT_ONCE", at_once)
    monkeypatch.setattr(message_ids, "WALKED_ROWS", at_once)
    monkeypatch.setattr(muids, "BYTES_AT_ONCE", 150)
    envelopes = some_rows(40)
    news = [each for each in envelopes if each.topic == NEWS]
    async with open_store(path) as store:
        await store.put(envelopes)
        ids = store.message_ids

        assert (await ids.as_arrived(NEWS_ONLY, 100)).muids == [muid(each) for each in news]
        some = await ids.as_arrived(NEWS_ONLY, 5)
        rest = await ids.as_arrived(NEWS_ONLY, 100, after=some.end)
        assert (*some.muids, *rest.muids) == tuple(muid(each) for each in news)
        early = await ids.as_arrived(NEWS_ONLY, 100, goes_on=lambda _: False)
        assert early.is_all == (at_once > len(envelopes))
        assert early.muids == [muid(each) for each in envelopes[:at_once] if each.topic == NEWS]

        items = [sync_id(muid(each)) for each in news]
        found = await ids.find_items([Needed(*EVER, items)])
        assert (await found.read(found.left, EVERY_BYTE)).split() == raws(by_item(news))


async def test_walk_ends_with_the_last_item_that_is_wanted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_ids, "WALKED_ROWS", 5)
    envelopes = by_item(some_rows(40))
    async with open_store(path) as store:
        await store.put(envelopes)
        await read_all(store.message_ids, envelopes)
        run = statements_of(monkeypatch)

        await store.message_ids.find_items([Needed(*EVER, [sync_id(muid(envelopes[7]))])])

    assert len(run) == 3  # the state of the index, and two statements that walk


async def test_what_was_not_looked_at_is_given_back(path: Path) -> None:
    charges: list[int] = []
    async with open_store(path) as store:
        await store.put(some_rows(3))
        await store.message_ids.as_arrived(EVERYTHING, 9, payer=Payer(charge=charges.append))

    assert 0 < sum(charges) < 10 * work.STATEMENT < max(charges)


# What the index lacks


async def test_what_was_stored_before_is_indexed_first(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_index, "BATCH_ROWS", 10)
    envelopes = some_rows(45)
    async with open_store(path) as store:
        await store.put(envelopes)
        assert store.unindexed

        assert await read_all(store.message_ids, envelopes) == raws(envelopes)
        assert await read_all(store.message_ids, envelopes) == raws(envelopes)
        await until(lambda: not store.unindexed)
        async with asyncio.timeout(DEADLINE_S):
            await store.message_ids.index.moves()  # nothing has to move


async def test_batches_are_not_put_off_while_somebody_waits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    envelopes = some_rows(30)
    async with nothing_is_indexed(path, monkeypatch) as store:
        await store.put(envelopes)
        finding = asyncio.create_task(read_all(store.message_ids, envelopes))
        number = 100
        while not finding.done():  # something always waits for the disk
            await store.put([row(number, created=START)])
            number += 1

        assert await finding == raws(envelopes)


async def test_store_that_is_indexed_for_the_first_time_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_state, "MAX_UNINDEXED_ROWS", 20)
    monkeypatch.setattr(index_state, "INDEX_WAIT_S", 3600.0)  # it says so at once
    envelopes = some_rows(30)
    make_store(path, envelopes)
    async with nothing_is_indexed(path, monkeypatch) as store, asyncio.timeout(DEADLINE_S):
        with pytest.raises(NotIndexedYet, match="still indexing the ids of 30 envelopes") as refused:
            await store.message_ids.find([muid(envelopes[0])])
        with pytest.raises(NotIndexedYet):
            await store.message_ids.find_items([Needed(*EVER, [bytes(32)])])
        assert refused.value.left == 30
        assert len((await store.message_ids.as_arrived(EVERYTHING, 100)).muids) == 30  # lists need no index

    monkeypatch.undo()
    async with open_store(path) as store:
        await until(lambda: not store.unindexed)
        assert await read_all(store.message_ids, envelopes) == raws(envelopes)


async def test_whoever_asks_again_and_again_does_not_make_the_writer_index_each_envelope(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_wait, "INDEX_DELAY_S", 3600.0)
    monkeypatch.setattr(writer, "INDEX_INTERVAL_S", 3600.0)
    one, other = some_rows(2)
    async with open_store(path) as store:
        await store.put([one])
        assert await read_all(store.message_ids, [one]) == raws([one])  # indexed for whoever asks
        await store.put([other])
        monkeypatch.setattr(index_state, "INDEX_WAIT_S", 0.05)
        for _ in range(3):
            with pytest.raises(NotIndexedYet):
                await store.message_ids.find([muid(other)])

    assert rows(path, "SELECT count(*) FROM ids") == [(1,)]


async def test_nobody_waits_longer_than_the_bound(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_state, "INDEX_WAIT_S", 0.05)
    async with nothing_is_indexed(path, monkeypatch) as store:
        await store.put(some_rows(3))

        with pytest.raises(NotIndexedYet, match="of 3 envelopes"):
            await store.message_ids.find([muid(some_rows(1)[0])])


async def test_closing_ends_the_wait(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with nothing_is_indexed(path, monkeypatch) as store:
        await store.put(some_rows(3))
        run = statements_of(monkeypatch)
        finding = asyncio.create_task(store.message_ids.find([muid(some_rows(1)[0])]))
        await until(lambda: bool(run))
        await turns(50)

    with pytest.raises(StoreError, match="closing"):
        await finding


async def test_ids_are_those_of_the_network_topic(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    envelopes = some_rows(30)
    async with open_store(path) as store:
        await store.put(envelopes)
        await until(lambda: not store.unindexed)

    with monkeypatch.context() as patched:
        patched.setattr(index_state, "INDEX_WAIT_S", 0.05)
        async with nothing_is_indexed(path, patched, OTHER) as store:
            with pytest.raises(NotIndexedYet):
                await store.message_ids.find([muid(envelopes[0], OTHER)])

    async with open_store(path, OTHER, reindex=True) as store:
        ids = store.message_ids
        theirs = [muid(each, OTHER) for each in envelopes]
        found = await ids.find([*theirs, *(muid(each) for each in envelopes)])

        assert (await found.read(100, EVERY_BYTE)).split() == raws(envelopes)
        assert (await ids.as_arrived(EVERYTHING, 100)).muids == theirs


async def test_index_that_is_given_up_amidst_a_lookup_is_not_taken_for_whole(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    envelopes = some_rows(3)
    async with open_store(path) as store:
        await store.put(envelopes)
        await until(lambda: not store.unindexed)

        def give_up(run_before: int) -> None:
            if run_before == 1:  # how far the index had come is known; the lookup itself is next
                change(path, "UPDATE id_index SET network_topic = '', until_seq = 0")

        for items in (False, True):
            run = statements_of(monkeypatch, give_up)
            ids = store.message_ids
            with pytest.raises(NotIndexedYet):
                await (ids.find_items([Needed(*EVER, [bytes(32)])]) if items else ids.find([muid(envelopes[0])]))
            assert len(run) == 2
            change(path, f"UPDATE id_index SET network_topic = '{DEFAULT_NETWORK_TOPIC}', until_seq = 3")
            monkeypatch.undo()


async def test_damaged_id_is_an_error_of_the_store_which_is_then_indexed_anew(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    envelopes = some_rows(3)
    async with open_store(path) as store:
        await store.put(envelopes)
        await until(lambda: not store.unindexed)
        change(path, "UPDATE ids SET id = x'01' WHERE seq = 2")

        with pytest.raises(StoreError, match="index of message ids is damaged"):
            await store.message_ids.find_items([Needed(*EVER, [bytes(32)])])

        found = await store.message_ids.find_items([Needed(*EVER, [sync_id(muid(each)) for each in envelopes])])
        assert (await found.read(3, EVERY_BYTE)).split() == raws(by_item(envelopes))

    assert_all_is_indexed(path, DEFAULT_NETWORK_TOPIC)
    assert "index of message ids is damaged, indexing the store anew until_seq=3" in caplog.text


async def test_rows_are_found_by_the_index_that_has_their_order(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_store(path) as store:
        await store.put(some_rows(3))
        await until(lambda: not store.unindexed)
        run = statements_of(monkeypatch)
        await store.message_ids.as_arrived(Query(0, 1, EVERYTHING.interest), 9)
        await store.message_ids.find([muid(some_rows(1)[0])])
        await store.message_ids.find_items([Needed(*EVER, [bytes(32)])])

    arrived, state, looked_up, _, walked = (
        [detail for *_, detail in rows(path, f"EXPLAIN QUERY PLAN {sql}", *parameters)] for sql, parameters in run
    )
    assert "SEARCH envelopes USING INTEGER PRIMARY KEY (rowid>?)" in arrived
    assert state.count("SCAN id_index") == 2
    assert "SEARCH i USING PRIMARY KEY (created=? AND id=?)" in looked_up
    assert "SEARCH ids USING PRIMARY KEY ((created,id)>(?,?) AND (created,id)<(?,?))" in walked
    assert not any("TEMP B-TREE" in detail for plan in (arrived, state, looked_up, walked) for detail in plan)
