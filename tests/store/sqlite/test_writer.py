"""mailserver.store.sqlite.writer on real files: what is stored, when it is durable, and what a failing disk does."""

import asyncio
import contextlib
import resource
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.errors import StoreError
from mailserver.store.interface import NewEnvelope
from mailserver.store.sqlite import writer as writer_module
from mailserver.store.sqlite.connections import open_writer, pragma
from mailserver.store.sqlite.failures import StoreFailures
from mailserver.store.sqlite.presence import Presence
from mailserver.store.sqlite.schema import HASH_PREFIX_BYTES, STORE_FILE
from mailserver.store.sqlite.worker import Worker
from mailserver.store.sqlite.writer import ANSWERED_AT_ONCE, MAX_GROUP_ROWS, MAX_QUEUED_BYTES, StoreWriter
from mailserver.waku.acceptance import MAX_ENVELOPE_BYTES
from mailserver.waku.envelope import EnvelopeHash
from tests.properties import settings
from tests.store.samples import (
    DAY,
    LAST_SECOND,
    NEWS,
    SPORT,
    START,
    UNSHRUNK,
    assert_counts_are_right,
    change,
    copy_as_on_disk,
    new_envelope,
    new_envelopes,
    plain,
    raws,
    rows,
    stored,
)

FOREVER = 3600.0
LIMIT_S = 15.0


class Running(NamedTuple):
    """A writer that runs, and its worker; `statements` are those that it has begun, as SQLite says them.

    `begun` is set whenever a transaction begins.
    """

    writer: StoreWriter
    worker: Worker
    statements: list[str]
    begun: asyncio.Event

    def commits(self) -> int:
        return self.statements.count("COMMIT")


@contextlib.asynccontextmanager
async def connected(path: Path) -> AsyncIterator[Running]:
    """A writer that does not run yet."""
    worker = await open_writer(path)
    loop = asyncio.get_running_loop()
    statements: list[str] = []
    begun = asyncio.Event()

    def trace(statement: str) -> None:  # in the worker's thread
        statements.append(statement)
        if statement == "BEGIN IMMEDIATE":
            loop.call_soon_threadsafe(begun.set)

    await worker.run(lambda connection: connection.set_trace_callback(trace))
    try:
        yield Running(StoreWriter(worker, path, Presence(path), StoreFailures(path)), worker, statements, begun)
    finally:
        await worker.close()


@contextlib.asynccontextmanager
async def running(path: Path) -> AsyncIterator[Running]:
    async with connected(path) as opened, asyncio.TaskGroup() as tasks:
        tasks.create_task(opened.writer.run())
        try:
            yield opened
        finally:
            opened.writer.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / STORE_FILE


async def turns(count: int = 10) -> None:
    """Let every task go on as far as it can by itself."""
    for _ in range(count):
        await asyncio.sleep(0)


async def work_is_done(worker: Worker) -> None:
    """Wait until the worker has done what was begun, and whoever waited for it has gone on."""
    await worker.run(lambda connection: None)
    await turns()


def put_each(writer: StoreWriter, envelopes: Sequence[NewEnvelope]) -> list[asyncio.Task[None]]:
    """A put for each envelope."""
    return [asyncio.create_task(writer.put([envelope])) for envelope in envelopes]


# What is stored


async def test_envelope_is_stored_as_it_is(path: Path) -> None:
    envelope = NewEnvelope(START + 7, START, SPORT, EnvelopeHash(bytes(range(32))), bytes(range(256)))

    async with running(path) as (writer, *_):
        await writer.put([envelope])

    assert stored(path) == [envelope._replace(hash=EnvelopeHash(envelope.hash[:HASH_PREFIX_BYTES]))]


async def test_sequence_follows_the_order_of_arrival(path: Path) -> None:
    newest_first = new_envelopes(7)[::-1]

    async with running(path) as (writer, *_):
        await writer.put(newest_first[:3])
        await asyncio.gather(*put_each(writer, newest_first[3:]))

    assert raws(stored(path)) == raws(newest_first)
    assert rows(path, "SELECT seq FROM envelopes ORDER BY seq") == [(seq,) for seq in range(1, 8)]


@pytest.mark.parametrize("count", [1, 9, 10, 11, 99, 100, 101, 123])
async def test_any_number_of_envelopes_is_stored_once_and_in_order(path: Path, count: int) -> None:
    envelopes = new_envelopes(count)

    async with running(path) as (writer, *_):
        await writer.put(envelopes)

    assert raws(stored(path)) == raws(envelopes)
    assert_counts_are_right(path)


async def test_nothing_is_stored_at_once(path: Path) -> None:
    async with connected(path) as (writer, _, statements, _):
        await writer.put([])  # and waits for no one

        assert statements == []


async def test_put_of_more_than_a_group_goes_into_several_transactions(path: Path) -> None:
    envelopes = new_envelopes(2 * MAX_GROUP_ROWS + 1)

    async with running(path) as opened:
        await opened.writer.put(envelopes)
        assert raws(stored(path)) == raws(envelopes)

        assert opened.commits() == 3
    assert_counts_are_right(path)


async def test_envelope_of_the_first_and_the_last_second_is_stored(path: Path) -> None:
    envelopes = [new_envelope(1, created=0), new_envelope(2, created=LAST_SECOND)]

    async with running(path) as (writer, *_):
        await writer.put(envelopes)

    assert [envelope.created for envelope in stored(path)] == [0, LAST_SECOND]
    assert rows(path, "SELECT day FROM days") == [(0,), (LAST_SECOND // DAY,)]


# Duplicates


async def test_envelope_is_stored_once_however_often_a_put_holds_it(path: Path) -> None:
    one, other = new_envelopes(2)

    async with running(path) as (writer, *_):
        await writer.put([one, other, one, one])

    assert raws(stored(path)) == raws([one, other])
    assert_counts_are_right(path)


async def test_envelope_is_stored_once_however_often_it_is_put(path: Path) -> None:
    one, other = new_envelopes(2)

    async with running(path) as (writer, *_):
        await writer.put([one])
        await writer.put([other, one])
        await asyncio.gather(*put_each(writer, [one, other, one]))

    assert raws(stored(path)) == raws([one, other])
    assert_counts_are_right(path)


async def test_envelope_is_stored_once_also_when_the_store_is_opened_again(path: Path) -> None:
    envelopes = new_envelopes(3)

    for _ in range(2):
        async with running(path) as (writer, *_):
            await writer.put(envelopes)

    assert raws(stored(path)) == raws(envelopes)
    assert_counts_are_right(path)


async def test_what_is_there_is_left_as_it_was(path: Path) -> None:
    envelope = new_envelope(1)

    async with running(path) as (writer, *_):
        await writer.put([envelope])
        await writer.put([envelope._replace(received=envelope.received + 1)])

    assert [each.received for each in stored(path)] == [envelope.received]


async def test_envelopes_of_one_second_are_told_apart_by_their_hash(path: Path) -> None:
    envelopes = [new_envelope(number, created=START) for number in range(20)]

    async with running(path) as (writer, *_):
        await writer.put(envelopes)

    assert raws(stored(path)) == raws(envelopes)


@given(
    st.lists(
        st.lists(
            st.builds(
                lambda number, day, received, topic: new_envelope(
                    number, created=START + day * DAY, topic=topic, size=9 + number
                )._replace(received=START + received),
                st.integers(0, 12),
                st.integers(0, 2),
                st.integers(0, 2 * DAY),
                st.sampled_from([NEWS, SPORT]),
            ),
            max_size=12,
        ),
        max_size=6,
    )
)
@settings(max_examples=8, phases=UNSHRUNK)
async def test_counts_of_days_and_topics_are_right_whatever_is_put(
    tmp_path_factory: pytest.TempPathFactory, puts: list[list[NewEnvelope]]
) -> None:
    path = tmp_path_factory.mktemp("counts") / STORE_FILE

    async with running(path) as (writer, *_):
        await asyncio.gather(*(writer.put(envelopes) for envelopes in puts[::2]))
        for envelopes in puts[1::2]:
            await writer.put(envelopes)

    distinct = {(envelope.created, envelope.hash) for envelopes in puts for envelope in envelopes}
    assert len(stored(path)) == len(distinct)
    assert_counts_are_right(path)


async def test_sequence_number_is_never_used_twice(path: Path) -> None:
    async with running(path) as (writer, *_):
        await writer.put(new_envelopes(3))
        change(path, "DELETE FROM envelopes WHERE seq = 3")
        await writer.put(new_envelopes(1, first=10))
        assert rows(path, "SELECT seq FROM envelopes") == [(1,), (2,), (4,)]

    change(path, "DELETE FROM envelopes", "DELETE FROM days", "DELETE FROM day_topics", "DELETE FROM reception_days")
    async with running(path) as (writer, *_):
        await writer.put(new_envelopes(2, first=20))

    assert rows(path, "SELECT seq FROM envelopes") == [(5,), (6,)]
    assert_counts_are_right(path)


# Durability


async def test_envelope_can_be_read_by_others_once_put_returns(path: Path) -> None:
    async with running(path) as (writer, *_):
        with plain(path) as reader:
            for envelope in new_envelopes(5):
                await writer.put([envelope])

                newest = reader.execute("SELECT raw FROM envelopes ORDER BY seq DESC LIMIT 1").fetchall()
                assert newest == [(envelope.raw,)]


async def test_envelope_is_on_disk_once_put_returns(path: Path, tmp_path: Path) -> None:
    envelopes = new_envelopes(5)

    async with running(path) as (writer, *_):
        for number, envelope in enumerate(envelopes):
            await writer.put([envelope])

            killed = copy_as_on_disk(path, tmp_path / f"killed after {number}")
            assert raws(stored(killed)) == raws(envelopes[: number + 1])
            assert_counts_are_right(killed)


async def test_transaction_that_is_killed_leaves_all_of_it_or_nothing(path: Path, tmp_path: Path) -> None:
    first, second = new_envelopes(5), new_envelopes(120, first=3, size=2000)
    copies: list[Path] = []

    def copy(_: str) -> None:
        copies.append(copy_as_on_disk(path, tmp_path / f"killed at {len(copies)}"))

    async with running(path) as (writer, worker, *_):
        await writer.put(first)
        await worker.run(lambda connection: connection.set_trace_callback(copy))
        await writer.put(second)
        await worker.run(lambda connection: connection.set_trace_callback(None))

    assert len(copies) > 5
    for copied in copies:
        assert raws(stored(copied)) == raws(first)
        assert_counts_are_right(copied)
        assert rows(copied, "PRAGMA integrity_check") == [("ok",)]
    assert len(stored(path)) == 123


async def test_put_does_not_return_before_its_transaction_is_committed(path: Path) -> None:
    async with running(path) as opened:
        for number in range(3):
            await opened.writer.put([new_envelope(number)])

            assert opened.statements[-1] == "COMMIT"
            assert opened.commits() == number + 1


# Groups


async def test_what_arrives_together_is_committed_together(path: Path) -> None:
    async with running(path) as opened:
        await asyncio.gather(*put_each(opened.writer, new_envelopes(200)))

        assert opened.commits() == 1
    assert len(stored(path)) == 200


async def test_no_transaction_holds_more_than_a_group(path: Path) -> None:
    part = MAX_GROUP_ROWS // 2 - 1

    async with running(path) as opened:
        puts = [opened.writer.put(new_envelopes(part, first=number * part)) for number in range(5)]
        await asyncio.gather(*puts)

        assert opened.commits() == 3  # two parts fit, three do not
    assert len(stored(path)) == 5 * part


async def test_group_is_filled_to_the_last_row(path: Path) -> None:
    half = MAX_GROUP_ROWS // 2

    async with running(path) as opened:
        await asyncio.gather(*(opened.writer.put(new_envelopes(half, first=number * half)) for number in range(4)))

        assert opened.commits() == 2


async def test_lone_put_waits_for_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "GROUP_INTERVAL_S", FOREVER)

    async with running(path) as (writer, *_):
        await turns()
        await writer.put([new_envelope(1)])

        assert len(stored(path)) == 1


async def test_second_put_waits_until_the_interval_is_over(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "GROUP_INTERVAL_S", FOREVER)

    async with running(path) as opened:
        await opened.writer.put([new_envelope(1)])
        second = asyncio.create_task(opened.writer.put([new_envelope(2)]))
        await turns()
        await work_is_done(opened.worker)
        assert not second.done()
        assert opened.commits() == 1
        third = asyncio.create_task(opened.writer.put([new_envelope(3)]))
        await turns()
    await asyncio.gather(second, third)

    assert opened.commits() == 2  # what had waited together, when the writer was closed
    assert len(stored(path)) == 3


async def test_interval_ends_by_itself(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "GROUP_INTERVAL_S", 0.05)

    async with running(path) as opened:
        await opened.writer.put([new_envelope(1)])
        await opened.writer.put([new_envelope(2)])

        assert opened.commits() == 2


async def test_others_have_their_turn_while_thousands_are_told_that_they_are_stored(path: Path) -> None:
    count = MAX_GROUP_ROWS
    async with running(path) as opened, asyncio.TaskGroup() as tasks:
        puts = [tasks.create_task(opened.writer.put([envelope])) for envelope in new_envelopes(count)]
        done = [0]
        while done[-1] < count:
            await asyncio.sleep(0)
            done.append(sum(put.done() for put in puts))

    told = [after - before for before, after in pairwise(done) if after > before]
    assert max(told) <= ANSWERED_AT_ONCE
    assert len(rows(path, "SELECT seq FROM envelopes")) == count


async def test_full_group_waits_for_no_interval(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "GROUP_INTERVAL_S", FOREVER)

    async with running(path) as opened:
        await opened.writer.put([new_envelope(0)])
        early = asyncio.create_task(opened.writer.put([new_envelope(1)]))
        await turns()
        await opened.writer.put(new_envelopes(MAX_GROUP_ROWS - 1, first=2))
        await early

        assert opened.commits() == 2
        await opened.writer.put(new_envelopes(MAX_GROUP_ROWS, first=2000))
        assert opened.commits() == 3
        lone = asyncio.create_task(opened.writer.put([new_envelope(5000)]))
        await turns()
        await work_is_done(opened.worker)
        assert opened.commits() == 3  # it waits again
    await lone


# FairQueue


async def test_lone_envelope_is_in_the_next_transaction_however_much_others_have_queued(path: Path) -> None:
    async with connected(path) as opened:
        floods = [
            asyncio.create_task(opened.writer.put(new_envelopes(100, first=number * 100), source=number % 20))
            for number in range(100)
        ]
        await turns()
        lone = asyncio.create_task(opened.writer.put([new_envelope(20_000)], source="lone"))
        await turns()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(opened.writer.run())
            await lone
            assert opened.commits() == 1
            await asyncio.gather(*floods)
            opened.writer.close()

    assert len(stored(path)) == 10_001


async def test_each_source_has_its_share_of_every_transaction(path: Path) -> None:
    async with connected(path) as opened:
        greedy = [
            asyncio.create_task(opened.writer.put(new_envelopes(100, first=number * 100), source="greedy"))
            for number in range(50)
        ]
        modest = [
            asyncio.create_task(opened.writer.put(new_envelopes(100, first=5000 + number * 100), source="modest"))
            for number in range(10)
        ]
        await turns()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(opened.writer.run())
            await asyncio.gather(*modest)
            assert opened.commits() <= 3  # half of two, and of a third at most; and 50 + 10 packets fill six
            await asyncio.gather(*greedy)
            opened.writer.close()

    assert raws(stored(path)[:100]) == raws(new_envelopes(100))


# Backpressure


async def test_put_waits_while_too_much_is_queued(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "MAX_QUEUED_BYTES", 4000)
    envelopes = new_envelopes(10, size=1000)

    async with connected(path) as opened:
        puts = put_each(opened.writer, envelopes)
        await turns()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(opened.writer.run())
            await asyncio.gather(*puts)
            opened.writer.close()

        assert opened.commits() == 3  # 4, 4 and 2 of them
    assert raws(stored(path)) == raws(envelopes)


def test_queue_has_room_for_many_of_the_longest_envelopes_and_is_bounded() -> None:
    assert 2 * MAX_ENVELOPE_BYTES < MAX_QUEUED_BYTES <= 32 * 1024 * 1024


async def test_source_that_has_nothing_queued_does_not_wait_for_room(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "MAX_QUEUED_BYTES", 100)

    async with connected(path) as opened:
        puts = put_each(opened.writer, new_envelopes(3, size=100))
        await turns()
        other = asyncio.create_task(opened.writer.put([new_envelope(10)], source="other"))
        await turns()
        assert opened.writer.queued[0] == 2  # the first, and that of the other source
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(opened.writer.run())
            await asyncio.gather(other, *puts)
            opened.writer.close()

    assert len(stored(path)) == 4


async def test_put_may_be_larger_than_the_queue(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "MAX_QUEUED_BYTES", 1000)

    async with running(path) as opened:
        await asyncio.gather(
            opened.writer.put(new_envelopes(5, size=1000)), opened.writer.put(new_envelopes(5, first=5, size=1000))
        )

        assert opened.commits() == 2
    assert len(stored(path)) == 10


async def test_put_waits_until_enough_of_a_larger_one_is_committed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "MAX_QUEUED_BYTES", 1000)

    async with running(path) as opened:
        large = asyncio.create_task(opened.writer.put(new_envelopes(2 * MAX_GROUP_ROWS + 500)))
        await asyncio.gather(large, *put_each(opened.writer, new_envelopes(1, first=5000)))

        assert opened.commits() == 4  # three for the large one, which left no room until its end
    assert len(stored(path)) == 2 * MAX_GROUP_ROWS + 501


async def test_put_that_waits_for_room_fails_when_the_writer_closes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "MAX_QUEUED_BYTES", 100)

    async with connected(path) as opened:
        queued, waiting, waiting_too = put_each(opened.writer, new_envelopes(3, size=100))
        await turns()
        opened.writer.close()
        await opened.writer.run()
        outcomes = await asyncio.gather(queued, waiting, waiting_too, return_exceptions=True)

    assert [type(outcome) for outcome in outcomes] == [type(None), StoreError, StoreError]
    assert len(stored(path)) == 1


async def test_put_that_waits_for_room_may_be_cancelled(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "MAX_QUEUED_BYTES", 100)
    first, cancelled, last = new_envelopes(3, size=100)

    async with connected(path) as opened:
        puts = put_each(opened.writer, [first, cancelled, last])
        await turns()
        puts[1].cancel()
        await turns()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(opened.writer.run())
            await asyncio.gather(puts[0], puts[2])
            opened.writer.close()

        assert puts[1].cancelled()
    assert raws(stored(path)) == raws([first, last])


# Cancelling and closing


async def test_cancelled_put_is_stored_all_the_same(path: Path) -> None:
    cancelled, other = new_envelopes(2)

    async with connected(path) as opened:
        puts = put_each(opened.writer, [cancelled, other])
        await turns()
        puts[0].cancel()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(opened.writer.run())
            await puts[1]
            await opened.writer.put([new_envelope(3)])
            opened.writer.close()

        assert puts[0].cancelled()
    assert raws(stored(path)) == raws([cancelled, other, new_envelope(3)])


async def test_put_that_is_cancelled_while_it_is_committed_is_stored(path: Path) -> None:
    async with running(path) as opened:
        put = asyncio.create_task(opened.writer.put([new_envelope(1)]))
        await opened.begun.wait()
        put.cancel()
        await opened.writer.put([new_envelope(2)])

    assert raws(stored(path)) == raws(new_envelopes(2, first=1))


async def test_cancelled_put_that_fails_is_not_reported_to_anyone(path: Path) -> None:
    async with running(path) as opened:
        await fill(opened.worker)
        put = asyncio.create_task(opened.writer.put([new_envelope(1, size=50_000)]))
        await opened.begun.wait()
        put.cancel()
        with pytest.raises(StoreError):  # behind the first one, which has failed then
            await opened.writer.put([new_envelope(2, size=50_000)])
        await make_room(opened.worker)
        await opened.writer.put([new_envelope(3)])

        assert put.cancelled()
    assert raws(stored(path)) == raws([new_envelope(3)])


async def test_what_is_queued_is_committed_when_the_writer_closes(path: Path) -> None:
    envelopes = new_envelopes(MAX_GROUP_ROWS + 5)

    async with connected(path) as opened:
        put = asyncio.create_task(opened.writer.put(envelopes))
        await turns()
        opened.writer.close()
        await opened.writer.run()
        await put

    assert raws(stored(path)) == raws(envelopes)


async def test_writer_that_is_closed_while_idle_ends(path: Path) -> None:
    async with running(path) as opened:
        await turns()
        assert opened.statements == []

    assert stored(path) == []


async def test_put_after_close_fails(path: Path) -> None:
    async with running(path) as opened:
        opened.writer.close()

        with pytest.raises(StoreError, match="closing"):
            await opened.writer.put([new_envelope(1)])

    assert stored(path) == []


async def test_writer_that_is_cancelled_leaves_no_one_waiting(path: Path) -> None:
    async with connected(path) as opened:
        run = asyncio.create_task(opened.writer.run())
        committing = asyncio.create_task(opened.writer.put([new_envelope(1)]))
        await opened.begun.wait()
        queued = asyncio.create_task(opened.writer.put([new_envelope(2)]))
        await turns(1)
        run.cancel()
        await asyncio.wait([run])
        await turns()

        assert [put.done() and type(put.exception()) for put in (committing, queued)] == [StoreError] * 2
        with pytest.raises(StoreError):
            await opened.writer.put([new_envelope(3)])
        await work_is_done(opened.worker)
        assert raws(stored(path)) == raws([new_envelope(1)])  # it had begun, and goes on to its end


async def test_writer_that_fails_by_a_fault_of_ours_leaves_no_one_waiting(path: Path) -> None:
    beyond_sqlite = 2**63

    async with connected(path) as opened:
        puts = put_each(opened.writer, [new_envelope(1), new_envelope(2, created=beyond_sqlite)])
        large = asyncio.create_task(opened.writer.put(new_envelopes(MAX_GROUP_ROWS, first=10)))
        cancelled = asyncio.create_task(opened.writer.put(new_envelopes(5)))
        await turns()
        cancelled.cancel()
        with pytest.raises(OverflowError):
            await opened.writer.run()
        await turns()

        assert [put.done() and type(put.exception()) for put in (*puts, large)] == [StoreError] * 3
    assert stored(path) == []


# Disks that fail


async def fill(worker: Worker) -> None:
    """Let the file grow no more: SQLite answers as it does on a full disk."""
    await set_max_pages(worker, await worker.run(lambda connection: pragma(connection, "page_count")))


async def make_room(worker: Worker) -> None:
    await set_max_pages(worker, 1_000_000)


async def set_max_pages(worker: Worker, pages: int) -> None:
    await worker.run(lambda connection: connection.execute(f"PRAGMA max_page_count = {pages}"))


async def test_full_disk_fails_every_put_that_waits_and_stores_nothing_of_them(path: Path) -> None:
    first, later = new_envelopes(3), new_envelopes(4, first=10, size=50_000)

    async with running(path) as opened:
        await opened.writer.put(first)
        await fill(opened.worker)
        small = opened.writer.put([new_envelope(20)])
        outcomes = await asyncio.gather(small, *put_each(opened.writer, later), return_exceptions=True)

        assert [type(outcome) for outcome in outcomes] == [StoreError] * 5
        assert "database or disk is full" in str(outcomes[0])
        assert raws(stored(path)) == raws(first)  # and reads go on
        assert_counts_are_right(path)
        await make_room(opened.worker)
        await opened.writer.put(later)

    assert raws(stored(path)) == raws([*first, *later])
    assert_counts_are_right(path)


async def test_transaction_that_fails_midway_is_rolled_back(path: Path) -> None:
    first, later = new_envelopes(3), new_envelopes(12, first=10)

    async with running(path) as opened:
        await opened.writer.put(first)
        change(path, "ALTER TABLE day_topics RENAME TO mislaid")
        with pytest.raises(StoreError, match="no such table: "):
            await opened.writer.put(later)
        assert raws(stored(path)) == raws(first)
        change(path, "ALTER TABLE mislaid RENAME TO day_topics")
        await opened.writer.put(later)

    assert raws(stored(path)) == raws([*first, *later])
    assert_counts_are_right(path)


async def test_put_fails_if_only_a_part_of_it_could_be_stored(path: Path) -> None:
    envelopes = [*new_envelopes(MAX_GROUP_ROWS), new_envelope(5000, size=1_000_000)]

    async with running(path) as opened:
        await set_max_pages(opened.worker, 50)
        with pytest.raises(StoreError):
            await opened.writer.put(envelopes)
        assert raws(stored(path)) == raws(envelopes[:-1])
        await make_room(opened.worker)
        await opened.writer.put(envelopes)

    assert raws(stored(path)) == raws(envelopes)
    assert_counts_are_right(path)


async def test_failure_is_logged_once_with_its_cause(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(path) as opened:
        await fill(opened.worker)
        outcomes = await asyncio.gather(*put_each(opened.writer, new_envelopes(3, size=50_000)), return_exceptions=True)

    (record,) = [record for record in caplog.records if record.name.startswith("mailserver")]
    assert (record.levelname, record.getMessage()) == (
        "ERROR",
        "store write failed envelopes=3 error='database or disk is full'",
    )
    assert all(isinstance(outcome, StoreError) for outcome in outcomes)
    assert all(isinstance(outcome.__cause__, sqlite3.Error) for outcome in outcomes if outcome)


async def test_failed_put_makes_room_for_those_that_wait(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "MAX_QUEUED_BYTES", 50_000)

    async with running(path) as opened:
        await fill(opened.worker)
        outcomes = await asyncio.gather(*put_each(opened.writer, new_envelopes(4, size=50_000)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StoreError] * 4
        await make_room(opened.worker)
        await asyncio.gather(*put_each(opened.writer, new_envelopes(4, size=50_000)))

    assert len(stored(path)) == 4


@pytest.fixture
def limit_file_size() -> Iterator[Callable[[int], None]]:
    """Lets no file of this process grow beyond so many bytes: the kernel fails the write, as a dying disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size or soft, hard))

    yield limit
    limit(0)


async def test_write_error_at_commit_fails_the_put_and_stores_nothing_of_it(
    path: Path, limit_file_size: Callable[[int], None]
) -> None:
    first, later = new_envelopes(3), new_envelopes(50, first=10, size=10_000)

    async with running(path) as opened:
        await opened.writer.put(first)
        limit_file_size(200_000)
        with pytest.raises(StoreError, match="cannot store 50 envelopes: disk I/O error"):
            await opened.writer.put(later)
        assert opened.commits() == 2
        assert raws(stored(path)) == raws(first)
        with pytest.raises(StoreError):
            await opened.writer.put(later)
        limit_file_size(0)
        await opened.writer.put(later)

        assert raws(stored(path)) == raws([*first, *later])
        assert_counts_are_right(path)


async def test_lock_of_another_process_fails_the_put(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mailserver.store.sqlite.connections.BUSY_TIMEOUT_S", 0)

    async with running(path) as opened:
        with plain(path, write=True) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreError, match="locked"):
                await opened.writer.put([new_envelope(1)])
            other.execute("ROLLBACK")
        await opened.writer.put([new_envelope(2)])

    assert raws(stored(path)) == raws([new_envelope(2)])


# Jobs between the commits


def count_rows(connection: sqlite3.Connection) -> int:
    ((count,),) = connection.execute("SELECT count(*) FROM envelopes")
    return int(count)


def fail(connection: sqlite3.Connection) -> None:
    connection.execute("SELECT * FROM nowhere")


async def test_job_has_the_connection_to_itself(path: Path) -> None:
    async with running(path) as (writer, _, statements, _):
        puts = put_each(writer, new_envelopes(50))

        def job(connection: sqlite3.Connection) -> bool:
            before = len(statements)
            for _ in range(20):
                connection.execute("SELECT 1")
            return statements[before:] == ["SELECT 1"] * 20 and not connection.in_transaction

        answers = await asyncio.gather(*(writer.between_commits(job) for _ in range(5)))
        await asyncio.gather(*puts)

    assert answers == [True] * 5
    assert len(stored(path)) == 50


async def test_jobs_and_commits_take_turns(path: Path) -> None:
    async with running(path) as (writer, *_):
        groups = [new_envelopes(MAX_GROUP_ROWS, first=n * MAX_GROUP_ROWS) for n in range(4)]
        parts = [asyncio.create_task(writer.put(group)) for group in groups]
        counts = await asyncio.gather(*(writer.between_commits(count_rows) for _ in range(4)))
        await asyncio.gather(*parts)

    assert counts == [n * MAX_GROUP_ROWS for n in range(4)]


async def test_job_that_fails_is_the_error_of_whoever_waits_for_it(path: Path) -> None:
    async with running(path) as (writer, *_):
        with pytest.raises(StoreError, match="cannot change the store: no such table: nowhere"):
            await writer.between_commits(fail)
        await writer.put(new_envelopes(1))

    assert len(stored(path)) == 1


async def test_job_goes_on_to_its_end_when_nobody_waits_any_more(path: Path) -> None:
    events: list[str] = []
    begun, cancelled = threading.Event(), threading.Event()

    def job(connection: sqlite3.Connection) -> None:
        begun.set()
        assert cancelled.wait(LIMIT_S)
        events.append("done")

    async with running(path) as (writer, *_):
        waiting = asyncio.create_task(writer.between_commits(job))
        assert await asyncio.to_thread(begun.wait, LIMIT_S)
        waiting.cancel()
        await turns()
        cancelled.set()
        assert await writer.between_commits(count_rows) == 0

    assert events == ["done"]
    assert waiting.cancelled()


async def test_job_that_nobody_waits_for_any_more_is_not_begun(path: Path) -> None:
    async with connected(path) as opened, asyncio.TaskGroup() as tasks:
        waiting = asyncio.create_task(opened.writer.between_commits(fail))
        await turns()
        waiting.cancel()
        await turns()
        tasks.create_task(opened.writer.run())
        assert await opened.writer.between_commits(count_rows) == 0
        opened.writer.close()

    assert not any("nowhere" in statement for statement in opened.statements)


async def test_no_job_is_begun_once_the_store_closes(path: Path) -> None:
    async with connected(path) as opened:
        waiting = asyncio.create_task(opened.writer.between_commits(count_rows))
        await turns()
        opened.writer.close()
        await opened.writer.run()

        for job in (waiting, opened.writer.between_commits(count_rows)):
            with pytest.raises(StoreError, match="the store is closing"):
                await job

        assert opened.statements == []


async def test_wal_stays_short_beside_readers_that_never_leave_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "MAX_WAL_BYTES", 2_000_000)
    monkeypatch.setattr(writer_module, "_WAL_STEP_BYTES", 1_000_000)
    path = tmp_path / STORE_FILE
    done = threading.Event()

    def read_over_and_over() -> None:
        with plain(path) as connection:
            while not done.is_set():
                for first in range(0, 5000, 1000):
                    connection.execute("SELECT raw FROM envelopes WHERE seq > ? LIMIT 1000", (first,)).fetchall()

    async with running(path) as store:
        await store.writer.put(new_envelopes(5000, size=560))
        reading = [asyncio.create_task(asyncio.to_thread(read_over_and_over)) for _ in range(2)]
        try:
            for first in range(5000, 60_000, 1000):
                await store.writer.put(new_envelopes(1000, first=first, size=560))
        finally:
            done.set()
            await asyncio.gather(*reading)

        assert path.with_name(f"{path.name}-wal").stat().st_size < 15_000_000  # of more than 50 MB written


async def test_reader_that_stays_does_not_hold_up_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "MAX_WAL_BYTES", 0)
    monkeypatch.setattr(writer_module, "_WAL_STEP_BYTES", 0)
    path = tmp_path / STORE_FILE

    async with running(path) as store:
        await store.writer.put(new_envelopes(10))
        with plain(path) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM envelopes").fetchall()
            for first in range(10, 50, 10):
                async with asyncio.timeout(2):
                    await store.writer.put(new_envelopes(10, first=first))
        await store.writer.put(new_envelopes(10, first=50))

    assert len(stored(path)) == 60
