"""A store behind PgBouncer: it pools sessions, or is refused."""

import asyncio
import contextlib
import time
from collections.abc import Iterator

import asyncpg
import pytest

from mailserver.app.config import Config
from mailserver.doctor.database import check_database
from mailserver.doctor.findings import FindingVerdict
from mailserver.errors import StoreError
from mailserver.store.postgres.connections import CONNECTIONS, DriverConnection, hold_lock, open_links
from mailserver.store.postgres.failures import StoreFailures
from mailserver.store.postgres.job import StoreDatabase
from mailserver.store.postgres.schema import Lock
from mailserver.store.postgres.store import open_store
from mailserver.store.retention import END_OF_TIME, Surplus
from tests.store.engines import EVERYTHING, found
from tests.store.postgres.looking import assert_sound
from tests.store.postgres.pooler import Pooler
from tests.store.postgres.server import new_schema, shared_server
from tests.store.samples import DAY, new_envelopes, raws

pytestmark = pytest.mark.integration

TODAY = int(time.time()) // DAY
REFUSAL = "a pooler before the database shares its connections between transactions: have it pool sessions"


def pooled(mode: str, connections: int) -> Iterator[tuple[Pooler, str]]:
    server = shared_server()
    schema = new_schema(server)
    pooler = Pooler(server, schema, mode, connections=connections)
    pooler.start()
    yield pooler, schema
    pooler.remove()


@pytest.fixture
def sessions() -> Iterator[tuple[Pooler, str]]:
    """One that pools sessions, as many as two mailservers and a run of the compaction need."""
    yield from pooled("session", 2 * CONNECTIONS + 2)


@pytest.fixture
def transactions() -> Iterator[tuple[Pooler, str]]:
    """One that pools transactions."""
    yield from pooled("transaction", 10)


async def test_several_mailservers_store_find_and_delete_through_pooled_sessions(
    sessions: tuple[Pooler, str],
) -> None:
    pooler, schema = sessions
    envelopes = [*new_envelopes(50, created=(TODAY - 1) * DAY), *new_envelopes(50, first=50, created=TODAY * DAY)]
    for _ in range(2):  # sessions are used again by others
        async with open_store(pooler.url) as store, open_store(pooler.url) as other:
            await asyncio.gather(store.put(envelopes), other.put(envelopes))
            assert await found(other) == await found(store) == raws(envelopes[::-1])
            await asyncio.gather(*(store.find(EVERYTHING, 10) for _ in range(20)))
            await store.message_ids.find([])  # once all is indexed

    async with open_store(pooler.url) as store, open_store(pooler.url) as other:
        await asyncio.gather(*(each.prune(Surplus(END_OF_TIME, 60)) for each in (store, other)))
        assert len(await found(store)) < 100
    assert_sound(shared_server(), schema)


class Cut(Exception):
    """The end of a connection."""


async def test_lock_of_a_run_is_held_through_a_pooled_session_and_given_up_when_that_is_cut(
    sessions: tuple[Pooler, str],
) -> None:
    pooler, _ = sessions

    async def cut(_: DriverConnection) -> None:
        raise Cut

    async with open_store(pooler.url) as store, open_links(pooler.url, 1, StoreFailures()) as (run,):
        await store.put(new_envelopes(5))
        assert await run.run(lambda connection: hold_lock(connection, Lock.COMPACTION, 5.0)) is None
        during = await store.prune(Surplus(END_OF_TIME, 5))
        with pytest.raises(Cut):  # then the link does not use its connection again
            await run.run(cut)
        async with asyncio.timeout(10):  # the pooler has to notice
            while not (after := await store.prune(Surplus(END_OF_TIME, 5))).envelopes:
                pass

    assert (during.envelopes, after.envelopes) == (0, 5)


async def test_killed_pooler_confirms_nothing_and_all_goes_on_when_it_is_back(sessions: tuple[Pooler, str]) -> None:
    pooler, _ = sessions
    async with open_store(pooler.url) as store:
        await store.put(new_envelopes(1))
        pooler.kill()
        with pytest.raises(StoreError, match="database"):
            await store.put(new_envelopes(2))
        problem = store.problem
        pooler.start()
        async with asyncio.timeout(15):
            while store.problem:
                with contextlib.suppress(StoreError):
                    await store.check_presence()
                await asyncio.sleep(0.02)
        await store.put(new_envelopes(3))

        assert "database" in problem
        assert await found(store) == raws(new_envelopes(3)[::-1])


async def test_pooler_of_transactions_is_refused_at_the_start(transactions: tuple[Pooler, str]) -> None:
    pooler, schema = transactions

    for _ in range(3):  # whatever was prepared before
        with pytest.raises(StoreError, match=REFUSAL) as refused:
            async with open_store(pooler.url):
                pytest.fail("it was opened")
        assert "\n" not in str(refused.value)
        with pytest.raises(StoreError, match=REFUSAL):
            await asyncio.to_thread(StoreDatabase(pooler.url).exists)

    (finding,) = await asyncio.to_thread(check_database, Config(store=pooler.url))
    assert finding.verdict is FindingVerdict.PROBLEM
    assert REFUSAL in finding.text
    assert shared_server().sql("SELECT to_regclass('envelopes')", schema) == ""


async def test_pooler_of_transactions_is_refused_amid_those_who_use_it(transactions: tuple[Pooler, str]) -> None:
    pooler, _ = transactions

    async def use() -> None:
        connection = await asyncpg.connect(pooler.url)
        try:
            while True:
                async with connection.transaction():
                    await connection.execute("SELECT pg_sleep(0.001)")
        finally:
            connection.terminate()

    async with asyncio.TaskGroup() as tasks:
        using = [tasks.create_task(use()) for _ in range(5)]
        for _ in range(5):
            with pytest.raises(StoreError, match=REFUSAL):
                async with open_store(pooler.url):
                    pytest.fail("it was opened")
        for each in using:
            each.cancel()
