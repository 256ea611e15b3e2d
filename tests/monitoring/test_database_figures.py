"""What is told of a real PostgreSQL: `monitoring.watch`, and `figures` of the other mailservers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mailserver.metrics.registry import Metrics
from mailserver.monitoring.watch import Watch
from mailserver.store.postgres.others import PostgresOthers
from mailserver.store.postgres.schema import LOCK_CLASS, Lock
from mailserver.store.postgres.store import PostgresStore, open_store
from tests.monitoring.prometheus import ROOT
from tests.store.postgres.server import Server, new_schema
from tests.store.samples import START, new_envelope, new_envelopes
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.integration


def documented_query() -> str:
    """How docs/operating/postgresql.md says who holds a lock."""
    text = (ROOT / "docs" / "operating" / "postgresql.md").read_text(encoding="utf-8")
    return text.partition("## Who holds a lock\n")[2].split("```")[1]


@pytest.fixture
def schema(own_server: Server) -> str:
    return new_schema(own_server)


@pytest.fixture
async def store(own_server: Server, schema: str) -> AsyncIterator[PostgresStore]:
    async with open_store(own_server.url(schema)) as store:
        await store.others.begin()
        yield store


@contextlib.asynccontextmanager
async def held(server: Server, lock: Lock, schema: str) -> AsyncIterator[None]:
    """A lock of a store is held by another session meanwhile."""
    key = f"{LOCK_CLASS + lock}, '{schema}'::regnamespace::oid::int"
    hold = f"SELECT pg_advisory_lock({key}), pg_sleep(60)"
    process = await asyncio.create_subprocess_exec("psql", "-X", "-q", "-c", hold, server.url(schema).split("&")[0])
    is_held = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid::bigint = {LOCK_CLASS + lock}"
    await until(lambda: server.sql(is_held) != "0")
    try:
        yield
    finally:
        sleeping = "query LIKE '%pg_sleep(60)%' AND pid <> pg_backend_pid()"
        server.sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {sleeping}")
        await process.wait()


async def test_look_sees_the_database_and_nothing_once_it_is_away(
    own_server: Server, store: PostgresStore, tmp_path: Path
) -> None:
    watch = Watch(store, tmp_path, Metrics().loop_lag)
    await store.put([*new_envelopes(3), new_envelope(9, created=START)])

    await watch.look()
    seen = watch.sight.database
    own_server.stop()
    await watch.look()
    own_server.start()

    assert seen is not None
    assert 1 <= seen.connections <= 20
    assert seen.max_connections == 97
    assert (seen.lock_waits, seen.partitions, seen.others_waiting) == (0, 0, 0)
    assert 0 <= seen.notification_queue < 0.01
    assert watch.sight.database is None
    assert watch.sight.store_problem != ""


async def test_who_waits_for_a_lock_of_this_store_is_counted(
    own_server: Server, store: PostgresStore, schema: str
) -> None:
    async with open_store(own_server.url(new_schema(own_server))) as another_store:
        await another_store.others.begin()
        async with held(own_server, Lock.COMMIT, schema):
            putting = asyncio.create_task(store.put(new_envelopes(1)))
            async with asyncio.timeout(DEADLINE_S):
                while (await store.others.figures()).lock_waits == 0:
                    pass
            # What the docs say of how to find out who.
            who = await asyncio.to_thread(own_server.sql, documented_query())
            holder, waiter = (line.split("|") for line in who.splitlines() if line.startswith("commit|"))
            assert (holder[2], waiter[2]) == ("t", "f")
            assert "pg_sleep(60)" in holder[-1]
            assert (await store.others.figures()).lock_waits == 1
            assert (await another_store.others.figures()).lock_waits == 0
        await putting
    assert (await store.others.figures()).lock_waits == 0


async def test_what_was_heard_of_and_not_read_waits(own_server: Server, schema: str, store: PostgresStore) -> None:
    async with open_store(own_server.url(schema)) as other:
        await other.others.begin()
        assert isinstance(other.others, PostgresOthers)
        await store.put(new_envelopes(40), is_live=True)

        async with asyncio.timeout(DEADLINE_S):
            while (await other.others.figures()).others_waiting < 40:
                pass
        await other.others.read()
        assert (await other.others.figures()).others_waiting == 0
