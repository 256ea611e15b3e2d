"""mailserver.store.sqlite.writer: who is next, who waits for room, and what cancelling and closing leave."""

import asyncio
from pathlib import Path

import pytest

from mailserver.errors import StoreError
from mailserver.store.engine import put_queue
from mailserver.store.engine.put_queue import MAX_GROUP_ROWS, MAX_QUEUED_BYTES
from mailserver.store.interface import NewEnvelope
from mailserver.waku.acceptance import MAX_ENVELOPE_BYTES
from tests.store.samples import (
    new_envelope,
    new_envelopes,
    raws,
    stored,
)
from tests.store.sqlite.writing import (
    connected,
    fill,
    make_room,
    put_each,
    running,
    work_is_done,
)
from tests.waiting import turns

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
    monkeypatch.setattr(put_queue, "MAX_QUEUED_BYTES", 4000)
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
    monkeypatch.setattr(put_queue, "MAX_QUEUED_BYTES", 100)

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
    monkeypatch.setattr(put_queue, "MAX_QUEUED_BYTES", 1000)

    async with running(path) as opened:
        await asyncio.gather(
            opened.writer.put(new_envelopes(5, size=1000)), opened.writer.put(new_envelopes(5, first=5, size=1000))
        )

        assert opened.commits() == 2
    assert len(stored(path)) == 10


async def test_put_waits_until_enough_of_a_larger_one_is_committed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(put_queue, "MAX_QUEUED_BYTES", 1000)

    async with running(path) as opened:
        large = asyncio.create_task(opened.writer.put(new_envelopes(2 * MAX_GROUP_ROWS + 500)))
        await asyncio.gather(large, *put_each(opened.writer, new_envelopes(1, first=5000)))

        assert opened.commits() == 4  # three for the large one, which left no room until its end
    assert len(stored(path)) == 2 * MAX_GROUP_ROWS + 501


async def test_put_that_waits_for_room_fails_when_the_writer_closes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(put_queue, "MAX_QUEUED_BYTES", 100)

    async with connected(path) as opened:
        queued, waiting, waiting_too = put_each(opened.writer, new_envelopes(3, size=100))
        await turns()
        opened.writer.close()
        await opened.writer.run()
        outcomes = await asyncio.gather(queued, waiting, waiting_too, return_exceptions=True)

    assert [type(outcome) for outcome in outcomes] == [type(None), StoreError, StoreError]
    assert len(stored(path)) == 1


async def test_put_that_waits_for_room_may_be_cancelled(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(put_queue, "MAX_QUEUED_BYTES", 100)
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
        opened.may_go_on.clear()
        put = asyncio.create_task(opened.writer.put([new_envelope(1)]))
        await opened.begun.wait()
        put.cancel()
        opened.may_go_on.set()
        await opened.writer.put([new_envelope(2)])

    assert raws(stored(path)) == raws(new_envelopes(2, first=1))


async def test_cancelled_put_that_fails_is_not_reported_to_anyone(path: Path) -> None:
    async with running(path) as opened:
        await fill(opened.worker)
        opened.may_go_on.clear()
        put = asyncio.create_task(opened.writer.put([new_envelope(1, size=50_000)]))
        await opened.begun.wait()
        put.cancel()
        opened.may_go_on.set()
        with pytest.raises(StoreError):  # behind the first one, which has failed then
            await opened.writer.put([new_envelope(2, size=50_000)])
        await make_room(opened.worker)
        await opened.writer.put([new_envelope(3)])

        assert put.cancelled()
    assert raws(stored(path)) == raws([new_envelope(3)])


async def test_live_envelopes_are_told_of_once_they_are_on_disk_whoever_still_waits(path: Path) -> None:
    """A peer that hangs up while its envelope is committed has posted it all the same."""
    told: list[NewEnvelope] = []
    envelopes = new_envelopes(MAX_GROUP_ROWS + 5)
    async with running(path) as opened:
        opened.writer.tell = lambda envelopes, source: told.extend(envelopes)
        opened.may_go_on.clear()
        put = asyncio.create_task(opened.writer.put(envelopes, is_live=True))
        await opened.begun.wait()
        put.cancel()
        await turns()
        before = [*told]
        opened.may_go_on.set()
        await opened.writer.put(new_envelopes(5, first=5000))

    assert put.cancelled()
    assert before == []
    assert told == envelopes
    assert len(stored(path)) == len(envelopes) + 5


async def test_nobody_is_told_of_live_envelopes_that_are_not_stored(path: Path) -> None:
    told: list[NewEnvelope] = []
    async with running(path) as opened:
        opened.writer.tell = lambda envelopes, source: told.extend(envelopes)
        await fill(opened.worker)
        with pytest.raises(StoreError):
            await opened.writer.put([new_envelope(1, size=50_000)], is_live=True)
        await make_room(opened.worker)
        await opened.writer.put([new_envelope(2)], is_live=True)

    assert told == [new_envelope(2)]


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
        opened.may_go_on.clear()
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
        opened.may_go_on.set()
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
