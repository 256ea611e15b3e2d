"""A database that goes away, hangs, comes back, or is another one by then."""

import asyncio
import contextlib
import gc
import os
import signal
import time
from collections.abc import AsyncIterator

import asyncpg
import pytest

from mailserver.errors import StoreError
from mailserver.store.postgres import connections, others, readers, writer
from mailserver.store.postgres.failures import StoreFailures, Unreachable
from mailserver.store.postgres.store import PostgresStore, open_store
from mailserver.store.retention import END_OF_TIME, Surplus
from tests.store.engines import EVERYTHING, found
from tests.store.postgres.conftest import Place
from tests.store.postgres.line import Way, line_to
from tests.store.postgres.server import USER, Server, new_schema
from tests.store.samples import new_envelopes, raws
from tests.waiting import turns, until

pytestmark = pytest.mark.integration

BACKENDS = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"


@pytest.fixture
async def store(own_server: Server) -> AsyncIterator[PostgresStore]:
    async with open_store(own_server.url(new_schema(own_server))) as opened:
        yield opened


async def is_well(store: PostgresStore) -> bool:
    try:
        await store.check_presence()
    except StoreError:
        return False
    return True


async def until_well(store: PostgresStore) -> None:
    async with asyncio.timeout(15):
        while True:
            if await is_well(store):
                return
            await asyncio.sleep(0.02)


async def test_whoever_is_cancelled_ends_though_the_connection_is_lost_amid_a_transaction(own_server: Server) -> None:
    begun = asyncio.Event()

    async def job(connection: connections.DriverConnection) -> None:
        async with connection.transaction():
            try:
                begun.set()
                await connection.execute("SELECT pg_sleep(60)")
            finally:
                connection.terminate()

    async with connections.open_links(own_server.url(new_schema(own_server)), 1, StoreFailures()) as (link,):
        task = asyncio.create_task(link.run(job))
        await begun.wait()
        task.cancel()
        await asyncio.wait([task])

    assert task.cancelled()


async def test_connection_that_is_not_fit_for_use_is_not_made_again_at_once(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leads to a standby, say: requests, hundreds a second maybe, are refused without one."""
    monkeypatch.setattr(connections, "RETRY_S", 3600.0)
    attempts = 0

    async def refuse(_: connections.DriverConnection) -> None:
        nonlocal attempts
        attempts += 1
        raise Unreachable(connections.STANDBY)

    async with connections.open_links(own_server.url(), 1, StoreFailures(), refuse) as (link,):
        for _ in range(20):
            with pytest.raises(Unreachable, match="is a standby"):
                await link.run(lambda connection: connection.fetchval("SELECT 1"))

    assert attempts == 1


async def test_whoever_hangs_up_amid_a_search_costs_no_connection(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "LEFT_ALONE_S", 3600.0)
    locked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    schema = new_schema(own_server)
    async with open_store(own_server.url(schema)) as store:
        await store.put(new_envelopes(1))
        await asyncio.gather(*(store.find(EVERYTHING, 10) for _ in range(5)))  # by all connections
        before = {*own_server.sql(BACKENDS).split()}
        holder = await asyncpg.connect(own_server.url(schema))
        try:
            for _ in range(3):
                async with holder.transaction():
                    await holder.execute("LOCK TABLE removed")  # each statement of a search reads it
                    searches = [asyncio.create_task(store.find(EVERYTHING, 10)) for _ in range(10)]
                    await until(lambda: own_server.sql(locked) == str(connections.READERS))
                    for search in searches:
                        search.cancel()
                    await asyncio.wait(searches)  # nobody waits for his statement any more

                assert all(search.cancelled() for search in searches)
                assert await found(store) == raws(new_envelopes(1))
        finally:
            await holder.close()

        assert before <= {*own_server.sql(BACKENDS).split()}


async def test_search_that_nobody_waits_for_gives_its_connection_up_if_the_database_says_nothing(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "LEFT_ALONE_S", 0.01)
    async with open_store(own_server.url(new_schema(own_server))) as store:
        await store.put(new_envelopes(1))
        await asyncio.gather(*(store.find(EVERYTHING, 10) for _ in range(5)))
        before = {*own_server.sql(BACKENDS).split()}
        with own_server.hanging():
            searches = [asyncio.create_task(store.find(EVERYTHING, 10)) for _ in range(10)]
            await turns()
            for search in searches:
                search.cancel()
            await asyncio.wait(searches)
            await until(is_nothing_read)

        assert await found(store) == raws(new_envelopes(1))
        await until(lambda: not before <= {*own_server.sql(BACKENDS).split()})


def is_nothing_read() -> bool:
    return not any("ReaderPool._turn" in repr(task) for task in asyncio.all_tasks())


async def test_search_that_fails_when_nobody_waits_for_it_leaves_no_traceback(
    own_server: Server, store: PostgresStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(readers, "LEFT_ALONE_S", 3600.0)
    await store.put(new_envelopes(1))
    own_server.hang()
    searches = [asyncio.create_task(store.find(EVERYTHING, 10)) for _ in range(10)]
    await turns()
    for search in searches:
        search.cancel()
    await asyncio.wait(searches)
    assert not is_nothing_read()

    own_server.kill()
    try:
        await until(is_nothing_read)
        gc.collect()
    finally:
        own_server.start()

    assert "never retrieved" not in caplog.text


async def test_lost_database_confirms_nothing_and_says_so_and_recovers_by_itself(
    own_server: Server, store: PostgresStore
) -> None:
    told: list[str] = []
    store.tell(lambda: told.append(store.problem))
    envelopes = new_envelopes(2)
    await store.put(envelopes[:1])

    own_server.stop()
    for refused in (
        store.put(envelopes[1:]),
        store.find(EVERYTHING, 10),
        store.missing(envelopes),
        store.touch(),
        store.check_presence(),
        store.usage(),
        store.prune(Surplus(END_OF_TIME, 1)),
    ):
        with pytest.raises(StoreError, match="database"):
            await refused
    problem = store.problem
    own_server.start()
    await until_well(store)

    assert "the database cannot be reached" in problem
    assert (told[0] != "", told[-1]) == (True, "")
    assert (store.problem, store.damage, store.is_lost) == ("", "", False)
    assert await found(store) == raws(envelopes[:1])
    await store.put(envelopes)
    assert await found(store) == raws(envelopes[::-1])


async def test_database_that_is_read_only_is_told_once_and_written_again_when_that_is_over(
    own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Each session keeps what was set when it began. That it can be read does not mean that the trouble is over."""
    caplog.set_level("INFO")
    schema = new_schema(own_server)
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'guest'"
    own_server.sql(f"CREATE ROLE guest LOGIN; ALTER SCHEMA {schema} OWNER TO guest")
    async with open_store(own_server.url(schema).replace(f"{USER}@", "guest@")) as store:
        await store.put(new_envelopes(1))
        own_server.sql(f"ALTER ROLE guest SET default_transaction_read_only = on; {cut}")
        await until_well(store)  # as far as is known: it can be read
        for _ in range(3):
            with pytest.raises(StoreError, match="read-only"):
                await store.put(new_envelopes(1, first=1))
            with pytest.raises(StoreError, match="read-only"):
                await store.touch()
            await until_well(store)
        problem = store.problem

        own_server.sql("ALTER ROLE guest RESET default_transaction_read_only")
        async with asyncio.timeout(15):
            while store.problem:
                with contextlib.suppress(StoreError):  # it is not tried again at once
                    await store.put(new_envelopes(2))
                await asyncio.sleep(0.02)
        await store.touch()

        assert len(await found(store)) == 2
    assert "read-only transaction" in problem
    assert [message.partition(" envelopes=")[0] for message in caplog.messages if "store " in message] == [
        "store write failed",
        "store can be written again",
    ]


async def test_database_that_gives_too_few_connections_is_told_once(
    own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Who has one can read: that does not mean that the trouble is over."""
    schema = new_schema(own_server)
    own_server.sql(f"CREATE ROLE few LOGIN; ALTER SCHEMA {schema} OWNER TO few")
    async with open_store(own_server.url(schema).replace(f"{USER}@", "few@")) as store:
        assert await found(store) == []  # nothing was stored yet, so the writer has no connection
        own_server.sql("ALTER ROLE few CONNECTION LIMIT 0")
        for _ in range(3):
            with pytest.raises(StoreError, match="too many connections"):
                await store.put(new_envelopes(1))
            assert await found(store) == []
        problem = store.problem

        own_server.sql("ALTER ROLE few CONNECTION LIMIT -1")
        async with asyncio.timeout(15):
            while store.problem:
                with contextlib.suppress(StoreError):  # it is not tried again at once
                    await store.put(new_envelopes(1))
                await asyncio.sleep(0.02)

    assert "too many connections" in problem
    assert [message for message in caplog.messages if "unreachable" in message] == []
    assert len([message for message in caplog.messages if message.startswith("store write failed")]) == 1


async def test_others_are_heard_again_when_the_database_is_back(
    own_server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(others, "RETRY_S", 0.01)
    url, envelopes = own_server.url(new_schema(own_server)), new_envelopes(3)
    async with open_store(url) as store, open_store(url) as other:
        running = []
        for each in (store, other):
            await each.others.begin()
            running.append(asyncio.create_task(each.others.run()))

        own_server.stop()
        with pytest.raises(StoreError):
            await store.put(envelopes[:1], is_live=True)
        own_server.start()
        await until(lambda: caplog.text.count("live envelopes of other mailservers may have been missed") == 2)
        async with asyncio.timeout(15):
            while True:
                try:
                    await store.put(envelopes[1:], is_live=True)
                    break
                except StoreError:  # the writer does not try again at once
                    await asyncio.sleep(0.02)
            assert other.others.outages == 1
            while not (heard := await other.others.read()):  # nothing may come first, to say that there was an outage
                pass
            assert heard == raws(envelopes[1:])
        for task in running:
            task.cancel()
        await asyncio.wait(running)


async def test_connections_that_were_cut_are_made_anew_before_they_are_used(
    own_server: Server, store: PostgresStore
) -> None:
    await store.put(new_envelopes(1))
    await asyncio.gather(*(store.find(EVERYTHING, 10) for _ in range(5)))

    own_server.stop()
    own_server.start()

    async with asyncio.timeout(15):
        while True:
            try:
                await store.put(new_envelopes(2))
                break
            except StoreError:  # the loop has not heard yet that they were cut
                await asyncio.sleep(0)
    assert await found(store) == raws(new_envelopes(2)[::-1])


async def test_store_whose_database_is_silent_is_closed_without_waiting_for_it(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with line_to(own_server) as line:
        async with open_store(line.url(new_schema(own_server))) as store:
            await store.put(new_envelopes(1))
            await asyncio.gather(*(store.find(EVERYTHING, 10) for _ in range(5)))  # by all connections
            monkeypatch.setattr(writer, "GROUP_TIMEOUT_S", 0.2)
            line.fall_silent()
            with pytest.raises(StoreError, match="in time"):
                await store.put(new_envelopes(1, first=2))
            with pytest.raises(StoreError, match="in time"):
                await store.touch()
            assert store.problem
            putting = [asyncio.create_task(store.put(new_envelopes(1, first=first))) for first in range(3, 8)]
            await turns()
            began = time.monotonic()
        took_s = time.monotonic() - began
        await asyncio.wait(putting)
        await line.mend()

    assert took_s < connections.CLOSE_TIMEOUT_S / 2
    assert all(isinstance(task.exception(), StoreError) for task in putting)


@pytest.mark.parametrize("is_known", [True, False], ids=["known to be silent", "not known"])
async def test_transaction_on_a_silent_line_does_not_hold_up_the_end(
    own_server: Server, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    monkeypatch.setattr(connections, "CLOSE_TIMEOUT_S", 0.2)
    begun, failures = asyncio.Event(), StoreFailures()

    async def job(connection: connections.DriverConnection) -> None:
        async with connection.transaction():
            begun.set()
            await connection.execute("SELECT pg_sleep(60)")

    async with line_to(own_server) as line:
        async with connections.open_links(line.url(new_schema(own_server)), 1, failures) as (link,):
            task = asyncio.create_task(link.run(job))
            await begun.wait()
            line.fall_silent()
            if is_known:
                failures.reached("it is silent")
            began = time.monotonic()
            task.cancel()
        await asyncio.wait([task])
        took_s = time.monotonic() - began
        await line.mend()

    assert task.cancelled()
    assert took_s < connections.STATEMENT_TIMEOUT_S / 3


async def test_line_that_is_cut_while_much_is_copied_refuses_at_once_and_leaves_no_error_behind(
    own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    envelopes = [*new_envelopes(200, first=1, size=60_000), *new_envelopes(2, first=201, size=700_000)]
    async with line_to(own_server) as line, open_store(line.url(new_schema(own_server))) as store:
        await store.put(new_envelopes(1))

        line.fall_silent_at(Way.THERE, b"COPY")
        putting = asyncio.create_task(store.put(envelopes))
        await until(lambda: line.is_silent)
        await turns(100)  # the driver fills what lies between
        began = time.monotonic()
        await line.cut()
        with pytest.raises(StoreError, match="the connection to the database was lost"):
            await putting
        took_s = time.monotonic() - began
        await line.mend()
        await until_well(store)
        await store.put(envelopes)
        there = await found(store)

    assert took_s < writer.GROUP_TIMEOUT_S / 3
    gc.collect()
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []
    assert there == raws([*envelopes[::-1], *new_envelopes(1)])


async def test_database_that_hangs_refuses_in_time(
    own_server: Server, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "GROUP_TIMEOUT_S", 0.2)
    await store.put(new_envelopes(1))
    pids = [int(pid) for pid in own_server.sql(BACKENDS).split()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    try:
        with pytest.raises(StoreError, match="does not answer in time"):
            await store.put(new_envelopes(1, first=1))
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    assert time.monotonic() - began < connections.STATEMENT_TIMEOUT_S
    await store.put(new_envelopes(1, first=1))  # by a new connection
    assert len(await found(store)) == 2


async def test_other_store_in_its_place_is_noticed_and_gets_nothing(own_server: Server) -> None:
    schema = new_schema(own_server)
    async with open_store(own_server.url(schema)) as store:
        identity = await store.identity()
        await store.put(new_envelopes(1))
        own_server.sql(f"ALTER SCHEMA {schema} RENAME TO {schema}_before; CREATE SCHEMA {schema}")
        async with open_store(own_server.url(schema)) as replacing:
            other = await replacing.identity()
            own_server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
            for refused in (store.check_presence(), store.put(new_envelopes(1, first=1)), store.find(EVERYTHING, 1)):
                with pytest.raises(StoreError):
                    await refused

        assert store.is_lost
        assert store.problem == f"there is another store, {other}, in the database"
        assert other != identity
    assert own_server.sql("SELECT count(*) FROM envelopes", schema) == "0"


async def test_store_that_is_gone_is_lost(own_server: Server) -> None:
    schema = new_schema(own_server)
    async with open_store(own_server.url(schema)) as store:
        await store.put(new_envelopes(1))
        # To drop it would wait for what the store does at this moment, and that for us.
        own_server.sql(f"ALTER SCHEMA {schema} RENAME TO {schema}_before; CREATE SCHEMA {schema}")
        own_server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")

        with pytest.raises(StoreError):
            await store.put(new_envelopes(1))
        await asyncio.gather(store.check_presence(), return_exceptions=True)

        assert store.problem == "there is no store in the database"


# Opening


async def test_database_that_is_not_there_is_refused(own_server: Server) -> None:
    with pytest.raises(StoreError, match="the database cannot be reached"):
        async with open_store(own_server.url().replace("pg-", "pg-missing-")):
            pass


async def test_tables_of_another_program_are_refused_and_left(own_server: Server) -> None:
    place = Place(own_server, new_schema(own_server))
    place.rows("CREATE TABLE envelopes (id bytea, data bytea)")  # the Go mailserver's

    with pytest.raises(StoreError, match="there is a table envelopes of another program"):
        async with open_store(place.url):
            pass

    assert place.rows("SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace") == [
        "envelopes"
    ]


async def test_schema_that_is_not_there_is_refused(own_server: Server) -> None:
    with pytest.raises(StoreError, match="the database has no schema of that name"):
        async with open_store(own_server.url("missing")):
            pass


async def test_server_that_does_not_keep_what_it_confirms_is_named(
    own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_store(own_server.url(new_schema(own_server))):
        await until(lambda: bool(caplog.messages))

    assert caplog.messages == ["database forgets what it confirms in a power cut"]
