"""mailserver.store.sqlite.reader_pool: whose statement is next, what it is charged for, and who gives up."""

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mailserver.store.engine import work
from mailserver.store.interface import Payer, Query
from mailserver.store.sqlite import store as envelopes_module
from mailserver.store.sqlite.reading import READERS
from mailserver.store.sqlite.store import open_store
from mailserver.waku.bloom import Interest
from mailserver.waku.envelope import Topic
from tests.store.engines import EVERYTHING, NEWS_ONLY, found
from tests.store.samples import (
    EVER,
    EVERY_BYTE,
    FULL,
    change,
    make_store,
    new_envelopes,
    raws,
)
from tests.waiting import turns, until

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
