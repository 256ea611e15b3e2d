"""mailserver.store.sqlite.store: the store as the services use it, on real files."""

import asyncio
import random
import sqlite3
import sys
import threading
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.codec.keccak import keccak256
from mailserver.errors import StoreError
from mailserver.store.interface import NewEnvelope, Payer, Query, StoreStats
from mailserver.store.retention import END_OF_TIME, Surplus
from mailserver.store.sqlite import page as page_module
from mailserver.store.sqlite import store as envelopes_module
from mailserver.store.sqlite import work
from mailserver.store.sqlite.schema import HASH_PREFIX_BYTES, PAGE_BYTES, STORE_FILE
from mailserver.store.sqlite.store import READERS, SqliteStore, open_store, read_stats
from mailserver.store.sqlite.wal import wal_file
from mailserver.waku.bloom import Interest, bloom_of
from mailserver.waku.envelope import Topic
from tests.mailservers import fill, in_order, make_envelopes
from tests.properties import settings
from tests.store.samples import (
    DAY,
    EVER,
    EVERY_BYTE,
    FULL,
    NEWS,
    RECEIVED,
    SPORT,
    START,
    UNSHRUNK,
    answer,
    assert_counts_are_right,
    change,
    copy_as_on_disk,
    is_prefix_of,
    make_store,
    names_in,
    new_envelope,
    new_envelopes,
    place,
    plain,
    raws,
    read,
    rows,
    stored,
    write,
)
from tests.waiting import turns, until

EVERYTHING = Query(*EVER, FULL)
NEWS_ONLY = Query(*EVER, Interest(topics=frozenset({NEWS})))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / STORE_FILE


async def found(store: SqliteStore, query: Query, limit: int = 1000) -> list[bytes]:
    page = await store.find(query, limit)
    return (await page.read(page.left, EVERY_BYTE)).split()


# Put, find, read


async def test_what_was_put_is_found_and_read(path: Path) -> None:
    envelopes = [new_envelope(1, topic=NEWS), new_envelope(2, created=START + 1, topic=SPORT)]

    async with open_store(path) as store:
        await store.put(envelopes)

        assert await found(store, EVERYTHING) == raws(envelopes[::-1])
        assert await found(store, NEWS_ONLY) == raws(envelopes[:1])


async def test_envelope_is_found_as_soon_as_put_returns(path: Path) -> None:
    async with open_store(path) as store:
        for number, envelope in enumerate(new_envelopes(3 * READERS), 1):
            await store.put([envelope])

            assert (await store.find(NEWS_ONLY, 100)).left == number


async def test_page_says_whether_there_is_more(path: Path) -> None:
    async with open_store(path) as store:
        await store.put(new_envelopes(3))

        assert (await store.find(EVERYTHING, 2)).end is not None
        assert (await store.find(EVERYTHING, 3)).end is None
        nothing = await store.find(Query(0, START - 1, FULL), 3)
        assert (nothing.left, nothing.end, nothing.last_hash, nothing.ended_early) == (0, None, None, False)
        assert (await nothing.read(10, EVERY_BYTE)).split() == []


async def test_bytes_of_what_was_found_leave_out_what_was_deleted_since(path: Path) -> None:
    envelopes = [new_envelope(number, created=START + number, size=20 + number) for number in range(3)]

    async with open_store(path) as store:
        await store.put(envelopes)
        before, after = await store.find(EVERYTHING, 10), await store.find(EVERYTHING, 10)
        assert (await before.read(10, EVERY_BYTE)).sizes == [22, 21, 20]
        change(path, f"DELETE FROM envelopes WHERE created = {START + 1}")

        left = await after.read(10, EVERY_BYTE)
        assert left.split() == raws([envelopes[2], envelopes[0]])
        assert left.sizes == [22, 0, 20]


async def test_page_reads_itself_some_envelopes_at_a_time(path: Path) -> None:
    envelopes = in_order(make_envelopes(6))
    sizes = [len(envelope.raw) for envelope in envelopes]

    async with open_store(path) as store:
        await fill(store, envelopes)
        page = await store.find(EVERYTHING, 5)
        assert (page.left, page.last_hash) == (5, None)
        first = await page.read(2, EVERY_BYTE)
        assert (page.left, page.last_hash) == (3, envelopes[1].hash())
        second = await page.read(3, sum(sizes[2:4]))

        assert first.split() == [envelope.raw for envelope in envelopes[:2]]
        assert second.split() == [envelope.raw for envelope in envelopes[2:4]]
        assert (page.left, page.last_hash) == (1, envelopes[3].hash())


async def test_last_envelope_of_a_page_is_hashed_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []

    def counted(data: bytes) -> bytes:
        hashed.append(data)
        return keccak256(data)

    async with open_store(path) as store:
        await fill(store, make_envelopes(4))
        page = await store.find(EVERYTHING, 3)
        monkeypatch.setattr(page_module, "keccak256", counted)
        await page.read(2, EVERY_BYTE)
        (last,) = (await page.read(1, EVERY_BYTE)).split()

        assert page.end is not None
        assert page.end[1] == page.last_hash == keccak256(last)
    assert hashed == [last]


async def test_next_page_begins_behind_the_last_envelope_by_its_whole_hash(path: Path) -> None:
    envelopes = in_order(make_envelopes(4))
    last = envelopes[1]
    prefix = last.hash()[:HASH_PREFIX_BYTES]

    async with open_store(path) as store:
        await fill(store, envelopes)
        whole, pruned = await store.find(EVERYTHING, 2), await store.find(EVERYTHING, 2)
        await whole.read(2, EVERY_BYTE)
        change(path, f"DELETE FROM envelopes WHERE hash = x'{prefix.hex()}'")
        await pruned.read(2, EVERY_BYTE)

        assert whole.end == (last.created, last.hash())
        assert pruned.end == (last.created, prefix.ljust(32, b"\x00"))
        for end in (whole.end, pruned.end):
            assert await found(store, Query(*EVER, FULL, end)) == [envelope.raw for envelope in envelopes[2:]]


@pytest.mark.parametrize("count", [0, 1, 2, 255, 256, 257, 1000])
async def test_missing_is_what_is_not_there_in_the_order_given(path: Path, count: int) -> None:
    envelopes = new_envelopes(count)
    random.Random(1).shuffle(envelopes)
    there = set(envelopes[::3])

    async with open_store(path) as store:
        await store.put(list(there))

        assert await store.missing(envelopes) == [envelope for envelope in envelopes if envelope not in there]
        assert await store.missing(list(there)) == []


async def test_envelope_of_the_same_second_or_hash_is_not_the_same(path: Path) -> None:
    envelope = new_envelope(1)
    later, other = envelope._replace(created=START + 1), envelope._replace(hash=new_envelope(2).hash)

    async with open_store(path) as store:
        await store.put([envelope])

        assert await store.missing([later, envelope, other, later]) == [later, other, later]


async def test_what_was_deleted_is_missing(path: Path) -> None:
    envelopes = new_envelopes(3)

    async with open_store(path) as store:
        await store.put(envelopes)
        change(path, f"DELETE FROM envelopes WHERE created = {START + 1}")

        assert await store.missing(envelopes) == envelopes[1:2]


async def test_store_keeps_what_it_holds_when_it_is_opened_again(path: Path) -> None:
    envelopes = new_envelopes(5)

    async with open_store(path) as store:
        await store.put(envelopes)
    async with open_store(path) as store:
        assert await found(store, EVERYTHING) == raws(envelopes[::-1])


async def test_many_requests_are_answered_at_once(path: Path) -> None:
    envelopes = new_envelopes(50)

    async with open_store(path) as store:
        await store.put(envelopes)
        answers = await asyncio.gather(*(found(store, NEWS_ONLY, limit) for limit in range(1, 10 * READERS)))

    assert answers == [raws(envelopes[::-1][:limit]) for limit in range(1, 10 * READERS)]


async def test_requests_are_answered_while_envelopes_are_put(path: Path) -> None:
    async with open_store(path) as store:
        whole = raws(new_envelopes(200)[::-1])
        async with asyncio.TaskGroup() as tasks:
            for number in range(10):
                tasks.create_task(store.put(new_envelopes(20, first=20 * number)))
            finds = [tasks.create_task(found(store, EVERYTHING)) for _ in range(20)]

        for find in finds:
            answered = set(find.result())
            assert find.result() == [raw for raw in whole if raw in answered]  # some of them, in order
        assert await found(store, EVERYTHING) == whole


async def test_reading_does_not_keep_the_log_from_being_cut(path: Path) -> None:
    async with open_store(path) as store:
        await store.put(new_envelopes(100))
        await found(store, EVERYTHING, 10)
        await store.stats()

        with plain(path, write=True) as other:
            ((busy, *_),) = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        assert busy == 0


batches = st.lists(
    st.builds(
        lambda number, when, topic: new_envelope(number, created=when, topic=topic),
        st.integers(0, 20),
        st.sampled_from([0, DAY - 1, DAY, START, START + DAY]),
        st.sampled_from([NEWS, SPORT]),
    ),
    max_size=15,
)
interests = st.sampled_from([FULL, Interest(topics=frozenset({NEWS})), Interest(bloom=bloom_of([SPORT]))])
actions = st.one_of(
    st.tuples(st.just("put"), batches),
    st.tuples(st.just("find"), st.tuples(interests, st.integers(1, 8))),
    st.tuples(st.just("delete"), st.sampled_from([0, 1, 2])),
    st.tuples(st.just("open again"), st.none()),
)


@given(st.lists(actions, max_size=14))
@settings(max_examples=10, phases=UNSHRUNK)
async def test_store_does_what_the_model_does(
    tmp_path_factory: pytest.TempPathFactory, script: list[tuple[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("model") / STORE_FILE
    model: dict[tuple[int, bytes], NewEnvelope] = {}
    steps = iter([*script, ("find", (FULL, 3))])
    done = False

    while not done:
        async with open_store(path) as store:
            for action, details in steps:
                if action == "open again":
                    break
                if action == "put":
                    await store.put(details)
                    for envelope in details:
                        model.setdefault(place(envelope), envelope)
                elif action == "delete":
                    change(path, f"DELETE FROM envelopes WHERE created / {DAY} % 3 = {details}")
                    model = {at: envelope for at, envelope in model.items() if at[0] // DAY % 3 != details}
                else:
                    await assert_pages_are_those_of_the_model(store, list(model.values()), *details)
            else:
                done = True
    assert sorted(raws(stored(path))) == sorted(raws(model.values()))
    sequence = [seq for (seq,) in rows(path, "SELECT seq FROM envelopes ORDER BY seq")]
    assert len(set(sequence)) == len(model)


async def assert_pages_are_those_of_the_model(
    store: SqliteStore, envelopes: list[NewEnvelope], interest: Interest, limit: int
) -> None:
    expected = answer(envelopes, Query(*EVER, interest))
    below = None
    pages = []
    for at in range(0, max(1, len(expected)), limit):
        page = await store.find(Query(*EVER, interest, below), limit)
        pages.append(page)
        assert (await page.read(page.left, EVERY_BYTE)).split() == raws(expected[at : at + limit])
        below = page.end
        assert below is None or is_prefix_of(below, place(expected[at + limit - 1]))
    assert [page.end is None for page in pages] == [False] * (len(pages) - 1) + [True]


# Opening and closing


async def test_what_is_being_put_when_the_store_closes_is_committed(path: Path) -> None:
    async with open_store(path) as store:
        puts = [asyncio.create_task(store.put([envelope])) for envelope in new_envelopes(5)]
        await asyncio.sleep(0)
    await asyncio.gather(*puts)

    assert raws(stored(path)) == raws(new_envelopes(5))


class Fault(Exception):
    """Something that goes wrong while the store is open."""


async def test_error_while_the_store_is_open_goes_through_as_it_is_and_loses_nothing(path: Path) -> None:
    put: list[asyncio.Task[None]] = []

    async def use_and_fail() -> None:
        async with open_store(path) as store:
            put.append(asyncio.create_task(store.put(new_envelopes(3))))
            await asyncio.sleep(0)
            raise Fault

    with pytest.raises(Fault):
        await use_and_fail()
    await put[0]

    assert raws(stored(path)) == raws(new_envelopes(3))


async def test_cancelling_while_the_store_is_open_loses_nothing(path: Path) -> None:
    put: list[asyncio.Task[None]] = []
    is_open = asyncio.Event()

    async def use_forever() -> None:
        async with open_store(path) as store:
            put.append(asyncio.create_task(store.put(new_envelopes(3))))
            is_open.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(use_forever())
    await is_open.wait()
    task.cancel()
    await asyncio.wait([task])
    await put[0]

    assert task.cancelled()
    assert raws(stored(path)) == raws(new_envelopes(3))


async def test_closed_store_leaves_no_log_behind(path: Path) -> None:
    async with open_store(path) as store:
        await store.put(new_envelopes(5))

    assert names_in(path.parent) == {path.name}


async def test_store_takes_nothing_once_it_is_closed(path: Path) -> None:
    async with open_store(path) as store:
        pass

    with pytest.raises(StoreError, match="closing"):
        await store.put(new_envelopes(1))


async def test_file_that_is_no_store_is_not_opened(path: Path) -> None:
    write(path, b"a diary")

    with pytest.raises(StoreError, match=path.name):
        async with open_store(path):
            pytest.fail("opened")


async def test_store_that_was_killed_opens_with_all_that_was_put(path: Path, tmp_path: Path) -> None:
    envelopes = new_envelopes(20)

    async with open_store(path) as store:
        await store.put(envelopes)
        killed = copy_as_on_disk(path, tmp_path / "killed")
    async with open_store(killed) as store:
        await store.put(envelopes[:5])

        assert await found(store, EVERYTHING) == raws(envelopes[::-1])
    assert_counts_are_right(killed)


# Stores that cannot be read


@pytest.mark.parametrize("what", ["find", "find by topic", "find and read"])
async def test_where_many_read_who_has_had_less_work_done_for_it_is_next(
    path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(envelopes_module, "READERS", 1)
    order: list[str] = []
    async with open_store(path) as store:
        await store.put(new_envelopes(3000))

        async def read(name: str, count: int, times: int) -> None:
            for _ in range(times):
                payer = Payer(name)
                if what == "find":
                    await store.find(Query(*EVER, FULL), count, payer=payer)
                elif what == "find by topic":  # of one, as many as are asked for; what it takes is seen only then
                    await store.find(NEWS_ONLY, count, payer=payer)
                else:
                    page = await store.find(Query(*EVER, FULL), count, payer=payer)
                    await page.read(count, EVERY_BYTE // 1024)
                order.append(name)

        strangers = [asyncio.create_task(read(f"stranger {number}", 1000, 5)) for number in range(6)]
        await until(lambda: len(order) >= 8)
        began = len(order)
        await read("phone", 1, 3)
        waited = order[began:]
        await asyncio.gather(*strangers)

    assert waited.index("phone") <= 2
    assert len(waited) <= 10
    assert sorted(order) == sorted([*(f"stranger {number}" for number in range(6) for _ in range(5)), *["phone"] * 3])


@pytest.mark.parametrize("topics", [{b"none"}, {b"none", b"nono"}], ids=["one topic", "two topics"])
async def test_search_for_topics_goes_before_those_who_ask_for_whole_pages(
    path: Path, monkeypatch: pytest.MonkeyPatch, topics: set[bytes]
) -> None:
    monkeypatch.setattr(envelopes_module, "READERS", 1)
    order: list[str] = []
    async with open_store(path) as store:
        await store.put(new_envelopes(1000))

        async def find(name: str, query: Query) -> None:
            await store.find(query, 1000, payer=Payer(name))
            order.append(name)

        wanted = Query(*EVER, Interest(topics=frozenset(map(Topic, topics))))
        strangers = [find(f"stranger {number}", Query(*EVER, FULL)) for number in range(20)]
        await asyncio.gather(*strangers, find("phone", wanted))

    assert order.index("phone") <= 2


async def test_who_comes_with_many_peers_from_one_address_gets_no_more(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(envelopes_module, "READERS", 1)
    order: list[str] = []
    async with open_store(path) as store:
        await store.put(new_envelopes(1000))

        async def read(address: str, peer: int) -> None:
            await store.find(Query(*EVER, FULL), 500, payer=Payer(address, peer))
            order.append(address)

        await asyncio.gather(*(read("crowd", peer) for peer in range(20)), *(read("lone", 1) for _ in range(5)))

    assert order.index("lone") <= 2
    assert order[:11].count("lone") == 5


async def test_what_is_read_is_charged_before_and_what_was_too_much_given_back(path: Path) -> None:
    charged: list[int] = []
    async with open_store(path) as store:
        await store.put(new_envelopes(3))

        await store.find(Query(*EVER, FULL), 1000, payer=Payer(charge=charged.append))

    assert charged == [work.STATEMENT + 1001 * work.ROW, -998 * work.ROW]


async def test_what_is_given_up_while_it_is_read_stays_charged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    charged: list[int] = []
    async with open_store(path) as store:
        await store.put(new_envelopes(3))

        def charge(work: int) -> None:
            charged.append(work)
            reading.cancel()  # while the statement is run

        reading = asyncio.create_task(store.find(Query(*EVER, FULL), 1000, payer=Payer(charge=charge)))
        await asyncio.wait([reading])

    assert sum(charged) == work.STATEMENT + 1001 * work.ROW


async def test_who_gives_up_while_it_waits_to_read_holds_up_nobody(path: Path) -> None:
    async with open_store(path) as store:
        await store.put(new_envelopes(3))
        pages = [await store.find(EVERYTHING, 3, payer=Payer(number)) for number in range(READERS + 6)]
        reading = [asyncio.create_task(page.read(3, EVERY_BYTE)) for page in pages[:READERS]]
        await turns()
        waiting = [asyncio.create_task(page.read(3, EVERY_BYTE)) for page in pages[READERS:]]
        await turns()

        for task in waiting[::2]:
            task.cancel()
        await asyncio.wait([*reading, *waiting])

        assert all(task.cancelled() or task.exception() is None for task in waiting)
        assert not any(task.cancelled() for task in waiting[1::2])
        read = await asyncio.gather(*(found(store, EVERYTHING, 3) for _ in range(2 * READERS)))
        assert read == [raws(new_envelopes(3)[::-1])] * 6


async def test_who_is_gone_before_its_turn_to_read_comes_is_passed_over(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(envelopes_module, "READERS", 1)
    async with open_store(path) as store:
        await store.put(new_envelopes(3))
        pages = [await store.find(EVERYTHING, 3) for _ in range(3)]
        first, *waiting = (asyncio.create_task(page.read(3, EVERY_BYTE)) for page in pages)
        await turns(1)

        first.cancel()
        waiting[0].cancel()  # both in one moment: the connection is given back before the other knows that it is gone
        await asyncio.wait([first, *waiting])

        assert waiting[1].result().split() == raws(new_envelopes(3)[::-1])
        assert await found(store, EVERYTHING, 1) == raws(new_envelopes(3)[-1:])


def damage(path: Path) -> None:
    change(path, "DROP TABLE days", "DROP TABLE envelopes", "DROP TABLE day_topics")


async def test_store_that_cannot_be_read_says_so(path: Path) -> None:
    async with open_store(path) as store:
        await store.put(new_envelopes(1))
        page = await store.find(EVERYTHING, 1)
        damage(path)

        for _ in range(2 * READERS):  # no reader is lost by its failure
            with pytest.raises(StoreError, match="cannot read the store: no such table"):
                await store.find(EVERYTHING, 1)
        with pytest.raises(StoreError):
            await store.find(NEWS_ONLY, 1)
        with pytest.raises(StoreError):
            await page.read(1, EVERY_BYTE)
        with pytest.raises(StoreError):
            await store.missing(new_envelopes(1))
        with pytest.raises(StoreError):
            await store.last_reception(RECEIVED)
        with pytest.raises(StoreError):
            await store.stats()


async def test_damage_is_reported_where_it_is_met(path: Path) -> None:
    make_store(path, new_envelopes(10))
    zero_a_page_of(path, "envelopes")

    async with open_store(path) as store:
        page = await store.find(NEWS_ONLY, 100)
        assert page.left == 10  # the indexes are whole
        with pytest.raises(StoreError, match="cannot read the store"):
            await page.read(10, EVERY_BYTE)
        with pytest.raises(StoreError, match="cannot store 1 envelopes"):
            await store.put(new_envelopes(1, first=10))


def zero_a_page_of(path: Path, table: str) -> None:
    ((number,),) = rows(path, "SELECT rootpage FROM sqlite_schema WHERE name = ?", table)
    ((size,),) = rows(path, "PRAGMA page_size")
    content = path.read_bytes()
    path.write_bytes(content[: (number - 1) * size] + bytes(size) + content[number * size :])


# Requests that nobody waits for any more


@pytest.fixture
def slow_statement(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Semaphore]:
    """Makes a store in which looking for topics takes minutes; the semaphore counts how many such statements run."""
    make_store(path, new_envelopes(3))
    change(
        path,
        "DROP TABLE days",
        """
        CREATE VIEW days AS
        WITH RECURSIVE count (day) AS (SELECT 0 UNION ALL SELECT day + 1 FROM count LIMIT 1000000000)
        SELECT day, 0 AS envelopes, 0 AS bytes FROM count WHERE CASE day WHEN 0 THEN running() ELSE 0 END
        """,
    )
    begun = threading.Semaphore(0)
    connect = sqlite3.connect

    def running() -> int:
        begun.release()
        return 0

    def connect_with_function(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.create_function("running", 0, running)
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_with_function)
    yield begun
    monkeypatch.undo()


async def test_cancelled_request_frees_its_reader(path: Path, slow_statement: threading.Semaphore) -> None:
    async with open_store(path) as store:
        finds = [asyncio.create_task(store.find(NEWS_ONLY, 1)) for _ in range(READERS)]
        for _ in finds:
            await asyncio.to_thread(slow_statement.acquire)
        for find in finds:
            find.cancel()

        answers = await asyncio.gather(*(found(store, EVERYTHING) for _ in range(READERS)))

        assert answers == [raws(new_envelopes(3)[::-1])] * READERS
        await asyncio.wait(finds)
        assert all(find.cancelled() for find in finds)


async def test_request_waits_its_turn_and_may_be_cancelled_while_it_waits(
    path: Path, slow_statement: threading.Semaphore
) -> None:
    async with open_store(path) as store:
        finds = [asyncio.create_task(store.find(NEWS_ONLY, 1)) for _ in range(READERS)]
        for _ in finds:
            await asyncio.to_thread(slow_statement.acquire)
        waiting, cancelled = (asyncio.create_task(found(store, EVERYTHING)) for _ in range(2))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert not waiting.done()

        finds[0].cancel()

        assert await waiting == raws(new_envelopes(3)[::-1])
        assert cancelled.cancelled()
        for find in finds:
            find.cancel()
        await asyncio.wait(finds)


# Statistics

EMPTY_STATS = StoreStats(envelopes=0, bytes=0, topics=0, oldest=None, newest=None)


async def test_empty_store_has_no_oldest_and_no_newest(path: Path) -> None:
    async with open_store(path) as store:
        assert await store.stats() == EMPTY_STATS
    assert await read_stats(path) == EMPTY_STATS


async def test_statistics_say_what_is_in_the_store(path: Path) -> None:
    envelopes = [
        new_envelope(1, created=START, topic=NEWS, size=100),
        new_envelope(2, created=START + DAY, topic=NEWS, size=20),
        new_envelope(3, created=START - DAY, topic=SPORT, size=3_000),
    ]
    expected = StoreStats(envelopes=3, bytes=3_120, topics=2, oldest=START - DAY, newest=START + DAY)

    async with open_store(path) as store:
        await store.put([*envelopes, *envelopes])
        assert await store.stats() == expected
        assert await read_stats(path) == expected  # beside an open store
        await store.put(envelopes)
        assert await store.stats() == expected
    assert await read_stats(path) == expected  # of a closed one


async def test_statistics_do_not_change_the_store(path: Path) -> None:
    async with open_store(path) as store:
        await store.put(new_envelopes(3))
    before = read(path)

    await read_stats(path)

    assert read(path) == before
    async with open_store(path) as store:
        await store.put(new_envelopes(1, first=3))
        assert (await store.stats()).envelopes == 4


async def test_statistics_of_no_store_are_refused(path: Path) -> None:
    with pytest.raises(StoreError):
        await read_stats(path)
    assert names_in(path.parent) == set()

    write(path, b"a diary")
    with pytest.raises(StoreError):
        await read_stats(path)


async def test_statistics_of_a_store_that_cannot_be_read_are_refused(path: Path) -> None:
    make_store(path, [])
    damage(path)

    with pytest.raises(StoreError, match="no such table"):
        await read_stats(path)


def count_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count what SQLite does on every connection that is opened from now on."""
    steps = [0]
    connect = sqlite3.connect

    def count() -> int:
        steps[0] += 1
        return 0

    def connect_counted(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.set_progress_handler(count, 1)
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_counted)
    return steps


async def test_opening_and_statistics_count_no_envelopes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_store(tmp_path / "small", new_envelopes(1))
    make_store(tmp_path / "large", new_envelopes(5000))
    for name in ("small", "large"):  # both become WAL files first
        async with open_store(tmp_path / name):
            pass
    steps = count_steps(monkeypatch)

    taken = {}
    for name in ("small", "large"):
        steps[0] = 0
        async with open_store(tmp_path / name) as store:
            await store.stats()
        await read_stats(tmp_path / name)
        taken[name] = steps[0]

    assert 0 < taken["large"] == taken["small"] < 2000


# Pruning


async def test_usage_counts_rows_and_pages_in_use(path: Path) -> None:
    make_store(path, new_envelopes(1000, size=1000))

    async with open_store(path) as store:
        before = await store.usage()
        while (await store.prune(Surplus(END_OF_TIME, 1000))).envelopes:
            pass
        after = await store.usage()

    ((size,),) = rows(path, "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
    assert before == (1000, size)
    assert after.envelopes == 0
    assert after.bytes < size // 4


async def test_pruned_envelope_is_found_no_more(path: Path) -> None:
    envelopes = new_envelopes(3)

    async with open_store(path) as store:
        await store.put(envelopes)
        page = await store.find(EVERYTHING, 10)
        deleted = await store.prune(Surplus(END_OF_TIME, 2))

        assert deleted == (2, 80)
        left = await page.read(3, EVERY_BYTE)
        assert left.split() == [envelopes[2].raw]
        assert left.sizes == [40, 0, 0]
        assert await found(store, EVERYTHING, 10) == [envelopes[2].raw]
        assert (await store.stats()).envelopes == 1


async def test_what_is_not_archived_is_not_pruned(path: Path) -> None:
    async with open_store(path) as store:
        await store.put(new_envelopes(3))

        assert (await store.prune(Surplus(END_OF_TIME, 3), {RECEIVED // DAY: 2})).envelopes == 2
        assert (await store.prune(Surplus(END_OF_TIME, 3), {RECEIVED // DAY: 2})).envelopes == 0
        assert await store.held(Surplus(END_OF_TIME, 3)) == 1
        assert await store.held(Surplus(RECEIVED, 3)) == 0


async def test_held_is_at_most_what_is_too_much(path: Path) -> None:
    make_store(path, new_envelopes(10))

    async with open_store(path) as store:
        assert await store.held(Surplus(END_OF_TIME, 4)) == 4
        assert await store.held(Surplus(END_OF_TIME, 40)) == 10


async def test_oldest_reception_is_not_the_first_row(path: Path) -> None:
    first, second = new_envelopes(2)
    make_store(path, [first, second._replace(received=RECEIVED - 100)])

    async with open_store(path) as store:
        assert await store.oldest_reception() == RECEIVED - 100


async def test_last_reception_is_not_the_last_row_nor_in_the_future(path: Path) -> None:
    async with open_store(path) as store:
        assert await store.last_reception(RECEIVED) is None
        for number, received in enumerate((RECEIVED, RECEIVED + 100, RECEIVED - 100)):
            await store.put([new_envelope(number)._replace(received=received)])

        assert await store.last_reception(RECEIVED + 200) == RECEIVED + 100
        assert await store.last_reception(RECEIVED + 100) == RECEIVED + 100
        assert await store.last_reception(RECEIVED + 99) == RECEIVED
        assert await store.last_reception(RECEIVED - 101) is None


async def test_empty_store_has_no_oldest(path: Path) -> None:
    async with open_store(path) as store:
        assert await store.oldest_reception() is None
        assert (await store.usage()).envelopes == 0


async def test_identity_is_that_of_the_file(path: Path) -> None:
    async with open_store(path) as store:
        assert [(await store.identity(),)] == rows(path, "SELECT id FROM identity")


async def test_file_says_whether_it_shrinks(path: Path, tmp_path: Path) -> None:
    async with open_store(path) as store:
        assert await store.shrinks()
    old = tmp_path / "old"
    make_store(old, [])
    change(old, "PRAGMA auto_vacuum = NONE", "VACUUM")

    async with open_store(old) as store:
        assert not await store.shrinks()


async def test_touch_writes_to_the_disk(tmp_path: Path) -> None:
    """SQLite writes nothing for a change that changes nothing: then a full disk would not be noticed."""
    path = tmp_path / "mailserver.db"
    async with open_store(path) as store:
        before = wal_file(path).stat().st_size
        for _ in range(3):
            await store.touch()

        assert wal_file(path).stat().st_size >= before + 3 * PAGE_BYTES
        assert await store.identity()


def test_log_stays_whoever_else_opens_the_store_by_sqlite_and_closes_it(path: Path) -> None:
    """As an operator does it: `sqlite3 mailserver.db`. Locks are a process's, so it takes another one."""
    look = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); print(*c.execute('SELECT count(*) FROM envelopes'))"
    look += "; c.close()"

    async def put_and_be_looked_at() -> list[str]:
        counts = []
        async with open_store(path) as store:
            for number in range(3):
                await store.put([new_envelope(number)])
                await store.find(EVERYTHING, 10)
                inode = wal_file(path).stat().st_ino
                process = await asyncio.create_subprocess_exec(sys.executable, "-c", look, path, stdout=PIPE)
                output, _ = await process.communicate()
                counts.append(output.decode().strip())
                assert wal_file(path).stat().st_ino == inode
        return counts

    assert asyncio.run(put_and_be_looked_at()) == ["(1,)", "(2,)", "(3,)"]
    assert raws(new_envelopes(3)) == [raw for (raw,) in rows(path, "SELECT raw FROM envelopes ORDER BY seq")]
