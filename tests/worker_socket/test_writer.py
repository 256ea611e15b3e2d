"""A worker that writes a store for others, and one of these: both sides of their socket, on a real store."""

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import AsyncIterator, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mailserver.errors import LocalProtocolError, StoreError
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.reconcile.sides import Needed
from mailserver.store.engine import index_wait
from mailserver.store.interface import NewEnvelope
from mailserver.store.retention import Surplus
from mailserver.store.sqlite.followed import FollowedStore, open_followed
from mailserver.store.sqlite.presence import StoreLost
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import SqliteStore, open_store
from mailserver.worker_socket import live_queue
from mailserver.worker_socket import server as server_module
from mailserver.worker_socket.client import RemoteWriter, open_remote_writer
from mailserver.worker_socket.frames import WORKERS_FILE, Put
from mailserver.worker_socket.live_queue import LiveQueue
from mailserver.worker_socket.server import PutSource, WriterServer
from tests.mailservers import NOW, make_envelope, make_envelopes, make_large_envelopes, stored
from tests.store.engines import EVERYTHING, found
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.integration


def rows(count: int, first: int = 0) -> list[NewEnvelope]:
    return [stored(envelope) for envelope in make_envelopes(count, first=first)]


@dataclass
class Slow:
    """A store that stores nothing until it is let."""

    put_rows: list[int] = field(default_factory=list)
    may_store: asyncio.Event = field(default_factory=asyncio.Event)

    async def put(self, envelopes: Sequence[NewEnvelope], source: Hashable = None, *, is_live: bool = False) -> None:
        self.put_rows.append(len(envelopes))
        await self.may_store.wait()

    async def touch(self) -> None:
        raise StoreError("the disk is full")

    async def index_moves(self) -> None: ...

    async def index_anew(self, until_seq: int) -> None: ...


@pytest.fixture
async def written(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """The store, in the process that writes it, and stores for others."""
    async with open_store(tmp_path / STORE_FILE) as store, serving(store, tmp_path):
        yield store


@contextlib.asynccontextmanager
async def serving(store: SqliteStore, folder: Path) -> AsyncIterator[WriterServer]:
    server = WriterServer(store)
    store.share(server.others, server.tell)
    await server.start(folder)
    try:
        yield server
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def following(folder: Path) -> AsyncIterator[FollowedStore]:
    """The store in another worker."""
    async with (
        open_remote_writer(folder) as writer,
        open_followed(folder / STORE_FILE, DEFAULT_NETWORK_TOPIC, writer) as store,
    ):
        yield store


async def read(store: SqliteStore | FollowedStore, count: int) -> list[bytes]:
    """So many live envelopes of others, in the order in which they came."""
    assert store.others is not None
    raws: list[bytes] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(raws) < count:
            raws += await store.others.read()
    return raws


async def test_what_is_confirmed_to_a_worker_is_on_disk_and_read_by_all(written: SqliteStore, tmp_path: Path) -> None:
    async with following(tmp_path) as one, following(tmp_path) as other:
        await asyncio.gather(one.put(rows(10), 1), other.put(rows(10, first=5), 2), written.put(rows(5, first=20)))

        with contextlib.closing(sqlite3.connect(tmp_path / STORE_FILE)) as connection:
            assert connection.execute("SELECT count(*) FROM envelopes").fetchall() == [(20,)]
        everything = sorted(row.raw for row in rows(15) + rows(5, first=20))
        for store in (written, one, other):
            assert sorted(await found(store, EVERYTHING, 100)) == everything
            assert await store.missing([*rows(1), *rows(1, first=15)]) == rows(1, first=15)
        assert one.queued == other.queued == (0, 0)


async def test_each_hears_of_what_others_put_live_once_and_not_of_its_own(written: SqliteStore, tmp_path: Path) -> None:
    async with following(tmp_path) as one, following(tmp_path) as other:
        await one.put(rows(300), 1, is_live=True)
        await one.put(rows(3, first=1000), 1)
        await written.put(rows(2, first=400), 1, is_live=True)
        await other.put(rows(1, first=500), 1, is_live=True)
        of_one, of_written, of_other = ([row.raw for row in part] for part in (rows(300), rows(2, 400), rows(1, 500)))

        assert await read(written, 301) == of_one + of_other
        assert await read(other, 302) == of_one + of_written
        assert await read(one, 3) == of_written + of_other


async def test_packet_that_is_longer_than_a_frame_is_stored_whole(written: SqliteStore, tmp_path: Path) -> None:
    long = [stored(envelope) for envelope in make_large_envelopes(9, 500_000)]
    async with following(tmp_path) as store:
        await store.put(long, 1, is_live=True)

        assert sorted(await found(store, EVERYTHING, 100)) == sorted(row.raw for row in long)
        assert len(await read(written, 9)) == 9


async def test_nothing_is_stored_while_the_writer_is_away_and_all_goes_on_when_it_is_back(tmp_path: Path) -> None:
    changes = 0

    def changed() -> None:
        nonlocal changes
        changes += 1

    async with contextlib.AsyncExitStack() as first, contextlib.AsyncExitStack() as follower:
        written = await first.enter_async_context(open_store(tmp_path / STORE_FILE))
        await first.enter_async_context(serving(written, tmp_path))
        store = await follower.enter_async_context(following(tmp_path))
        store.tell(changed)
        await store.put(rows(1), 1)
        await first.aclose()

        await until(lambda: bool(store.problem))
        assert store.problem == "the worker that stores for all is not there"
        for asked in (store.put(rows(1, first=1), 1), store.touch(), store.message_ids.index.moves()):
            with pytest.raises(StoreError, match="is not there"):
                await asked
        assert await found(store, EVERYTHING, 100) == [rows(1)[0].raw]  # history goes on

        async with open_store(tmp_path / STORE_FILE) as again, serving(again, tmp_path):
            await until(lambda: not store.problem)
            assert store.others.outages == 1
            assert await store.others.read() == []
            assert await store.others.figures() is None
            await store.put(rows(1, first=1), 1, is_live=True)
            assert await read(again, 1) == [rows(1, first=1)[0].raw]
            assert len(await found(store, EVERYTHING, 100)) == 2
            await follower.aclose()
    assert changes == 2


async def test_what_waits_for_the_writer_when_it_goes_is_not_confirmed(tmp_path: Path) -> None:
    slow = Slow()
    server = WriterServer(slow)
    await server.start(tmp_path)
    async with open_remote_writer(tmp_path) as writer:
        putting = asyncio.create_task(writer.put(rows(2), None, is_live=True))
        await until(lambda: slow.put_rows == [2])
        assert writer.queued[0] == 2
        await server.stop()

        with pytest.raises(StoreError, match="is not there"):
            await putting
        assert writer.queued == (0, 0)


async def test_all_others_hear_of_what_is_stored_after_its_worker_has_gone(
    written: SqliteStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with following(tmp_path) as other:
        with contextlib.closing(sqlite3.connect(tmp_path / STORE_FILE, isolation_level=None)) as slow:
            slow.execute("BEGIN IMMEDIATE")  # the writer waits for this
            _, writer = await asyncio.open_unix_connection(str(tmp_path / WORKERS_FILE))
            writer.write(Put(1, 0, is_live=True, envelopes=tuple(rows(3))).encode())
            await until(lambda: written.queued[0] == 3)
            writer.close()
            await until(lambda: "worker hung up" in caplog.text)
            slow.execute("ROLLBACK")

        told = [row.raw for row in rows(3)]
        assert await read(written, 3) == told
        assert await read(other, 3) == told


async def test_cause_of_the_writer_is_the_workers_and_is_over_with_the_next_that_is_stored(
    written: SqliteStore, tmp_path: Path
) -> None:
    async with following(tmp_path) as store:
        written.hold("what was missed is not noted")
        with pytest.raises(StoreError, match="what was missed is not noted"):
            await store.put(rows(1), 1)
        assert store.problem == "what was missed is not noted"
        written.hold("")
        await store.put(rows(1), 1)
        await store.touch()
        assert store.problem == ""

        store.hold("wait")
        with pytest.raises(StoreError, match="wait"):
            await store.put(rows(1, first=1), 1)
        assert store.problem == "wait"


async def test_no_more_of_a_worker_waits_than_the_bounds_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_ASKED_AT_ONCE", 3)
    slow = Slow()
    server = WriterServer(slow)
    await server.start(tmp_path)
    async with open_remote_writer(tmp_path) as one, open_remote_writer(tmp_path) as other:
        puts = [asyncio.create_task(one.put(rows(1, first=number), 1, is_live=False)) for number in range(8)]
        await until(lambda: len(slow.put_rows) == 3)
        puts.append(asyncio.create_task(other.put(rows(2, first=20), 1, is_live=False)))
        await until(lambda: len(slow.put_rows) == 4)  # what one has queued keeps no other waiting
        assert sorted(slow.put_rows) == [1, 1, 1, 2]

        slow.may_store.set()
        await asyncio.gather(*puts)
        assert len(slow.put_rows) == 9
    await server.stop()


async def test_worker_that_says_what_is_no_frame_is_hung_up_on(written: SqliteStore, tmp_path: Path) -> None:
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / WORKERS_FILE))
    writer.write(b"\0\0\0\x09\x7f" + bytes(8))

    assert await asyncio.wait_for(reader.read(), DEADLINE_S) == b""
    writer.close()
    async with following(tmp_path) as store:
        await store.put(rows(1), 1)


async def test_message_ids_are_found_by_a_worker_as_soon_as_what_was_stored_before_is_indexed(
    written: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_wait, "INDEX_DELAY_S", 3600.0)  # the writer would index nothing unless asked
    async with following(tmp_path) as store:
        await store.put(rows(5), 1)

        async with asyncio.timeout(DEADLINE_S):
            assert (await store.message_ids.find_items([Needed(0, NOW, [bytes(32)])])).items == []
        arrived = await store.message_ids.as_arrived(EVERYTHING, 10)
        assert len((await store.message_ids.find(arrived.muids)).items) == 5
        assert written.unindexed == 0

        await store.message_ids.index.give_up(5)
        async with asyncio.timeout(DEADLINE_S):
            assert len((await store.message_ids.find(arrived.muids)).items) == 5


async def test_worker_knows_what_the_writer_has_pruned(written: SqliteStore, tmp_path: Path) -> None:
    async with following(tmp_path) as store:
        await store.put(rows(5), 1)
        assert store.pruned_until == -1
        assert (await written.prune(Surplus(NOW + 1, 2))).envelopes == 2

        await found(store, EVERYTHING, 10)

        assert (store.removed_until, store.pruned_until) == (written.removed_until, written.pruned_until)
        assert store.pruned_until >= 0
        for job in (store.prune(Surplus(NOW, 1)), store.note_pruned(1), store.maintain()):
            with pytest.raises(LocalProtocolError):
                await job


async def test_worker_notices_that_the_store_was_replaced(written: SqliteStore, tmp_path: Path) -> None:
    async with following(tmp_path) as store:
        await store.check_presence()
        (tmp_path / STORE_FILE).rename(tmp_path / "away")

        with pytest.raises(StoreLost, match="was removed"):
            await store.check_presence()
        with pytest.raises(StoreLost):
            await store.put(rows(1), 1)
        assert store.is_lost
        (tmp_path / "away").rename(tmp_path / STORE_FILE)


async def test_live_envelopes_beyond_the_bound_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_queue, "MAX_ENVELOPES", 10)
    slow = Slow()
    server = WriterServer(slow)
    slow.may_store.set()
    told = rows(25)

    server.tell(told, PutSource("another worker", 1))

    assert server.others.missed == 15
    assert await server.others.read() == [row.raw for row in told[15:]]
    queue = LiveQueue()
    monkeypatch.setattr(live_queue, "MAX_BYTES", 0)
    queue.add([])
    assert queue.missed == 0


async def test_worker_that_is_too_slow_is_told_how_many_it_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_queue, "MAX_ENVELOPES", 10)
    server = WriterServer(Slow())
    await server.start(tmp_path)
    async with open_remote_writer(tmp_path) as writer:
        with pytest.raises(StoreError, match="the disk is full"):
            await writer.touch()  # so it is served
        server.tell(rows(25))

        assert await writer.others.read() == [row.raw for row in rows(25)[15:]]
        assert writer.others.missed == 15
    await server.stop()


async def test_worker_that_reads_nothing_is_hung_up_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(server_module, "WRITE_TIMEOUT_S", 0.05)
    server = WriterServer(Slow())
    await server.start(tmp_path)
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / WORKERS_FILE), limit=1)
    writer.write(Put(1, 0, is_live=False, envelopes=()).encode())
    await reader.readexactly(1)  # so it is served

    server.tell([stored(envelope) for envelope in make_large_envelopes(10, 500_000)])

    await until(lambda: "it read nothing for 0.05 s" in caplog.text)
    writer.close()
    await server.stop()


async def test_fault_of_ours_ends_the_connection_of_one_worker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow()
    monkeypatch.setattr(slow, "touch", lambda: 1 / 0)
    server = WriterServer(slow)
    await server.start(tmp_path)
    async with open_remote_writer(tmp_path) as writer:
        with pytest.raises(StoreError, match="is not there"):
            await writer.touch()
        await until(lambda: "internal error in serving a worker" in caplog.text)
    await server.stop()


async def test_start_does_not_wait_forever_for_a_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mailserver.worker_socket.client.CONNECT_LIMIT_S", 0.05)

    async with open_remote_writer(tmp_path) as writer:
        with pytest.raises(StoreError, match="is not there"):
            await writer.put([stored(make_envelope(1))], None, is_live=True)
    assert isinstance(writer, RemoteWriter)
