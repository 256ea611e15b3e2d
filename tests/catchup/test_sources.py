"""mailserver.catchup.catchup: several sources at once, and sources that change."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mailserver.catchup import ledger as ledger_module
from mailserver.catchup.catchup import ASK_AGAIN_S, Catchup
from mailserver.catchup.ledger import MAX_SOURCES, CatchupError, open_ledger
from mailserver.catchup.progress import SourceState
from mailserver.catchup.ranges import LATE_S, MissingRange
from mailserver.limits.frame_bounds import FrameBounds
from mailserver.limits.frame_memory import ReceiveMemory
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import SqliteStore, open_store
from tests.catchup.running import WHOLE, assert_stored, catching_up, settled, state_of
from tests.catchup.servers import DAY, SMALL, THREE_DAYS, Archive, Asked, serving, settings_for, silent
from tests.catchup.starts import asked_since, lines, nobody
from tests.mailservers import NOW, make_large_envelopes
from tests.waiting import DEADLINE_S, turns, until

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("quick")]

# Several sources


async def test_sources_fill_each_others_gaps_and_nothing_is_stored_twice(tmp_path: Path) -> None:
    one, other = THREE_DAYS[:150], THREE_DAYS[100:]

    async with (
        serving(Archive(one, max_limit=SMALL), name="one") as first,
        serving(Archive(other, like_go=True), name="other") as second,
        catching_up(tmp_path, first.enode, second.enode) as catchup,
    ):
        progress = await settled(catchup)

    assert_stored(tmp_path, THREE_DAYS)
    assert [source.fetched for source in progress] == [150, 150]


async def test_sources_that_are_silent_or_down_hold_up_nobody(tmp_path: Path) -> None:
    async with (
        serving(silent, name="silent") as mute,
        serving(Archive(THREE_DAYS)) as honest,
        catching_up(tmp_path, mute.enode, nobody(1), honest.enode) as catchup,
    ):
        await state_of(catchup, SourceState.DONE, 2)
        assert not any(source.state is SourceState.DONE for source in catchup.snapshot()[:2])

    assert_stored(tmp_path, THREE_DAYS)


async def test_source_that_is_named_twice_is_one(tmp_path: Path) -> None:
    async with (
        serving(Archive(THREE_DAYS)) as server,
        catching_up(tmp_path, replace(server.enode, host="127.0.0.2"), server.enode) as catchup,
    ):
        assert len(await settled(catchup)) == 1
        assert server.visits == 1


async def test_source_that_has_moved_is_asked_where_it_is(tmp_path: Path) -> None:
    async with (
        serving(Archive(THREE_DAYS)) as server,
        catching_up(tmp_path, replace(server.enode, port=1)) as catchup,
    ):
        await state_of(catchup, SourceState.WAITING)
        await catchup.add(*WHOLE, [server.enode])
        await settled(catchup)

    assert_stored(tmp_path, THREE_DAYS)


async def test_source_can_be_waited_for_and_looked_at_by_itself(tmp_path: Path) -> None:
    async with (
        serving(Archive(THREE_DAYS)) as server,
        catching_up(tmp_path, nobody(1), server.enode) as catchup,
    ):
        await asyncio.wait_for(catchup.settled([server.enode]), DEADLINE_S)

        (progress,) = catchup.snapshot([server.enode, nobody(2)])
        assert (progress.state, progress.stored) == (SourceState.DONE, len(THREE_DAYS))


async def test_source_that_was_asked_by_the_way_makes_room_when_it_owes_nothing(tmp_path: Path) -> None:
    async with (
        serving(Archive(THREE_DAYS[:100]), name="one") as one,
        serving(Archive(THREE_DAYS[100:]), name="other") as other,
        catching_up(tmp_path, *map(nobody, range(MAX_SOURCES - 1)), wanted=None) as catchup,
    ):
        for source in (one.enode, other.enode):
            await catchup.add(*WHOLE, [source])
            await asyncio.wait_for(catchup.settled([source]), DEADLINE_S)

        assert len(catchup.snapshot()) == MAX_SOURCES
        with pytest.raises(CatchupError, match="more than 16 mailservers"):
            await catchup.add(*WHOLE, [one.enode, other.enode])
        assert_stored(tmp_path, THREE_DAYS)


async def test_sources_that_were_asked_by_the_way_push_no_other_out_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "MAX_ACCOUNTS", MAX_SOURCES)

    async with catching_up(tmp_path, nobody(1), wanted=None) as catchup:
        for number in range(MAX_SOURCES + 2):
            async with serving(Archive([]), name=f"source {number}") as server:
                await catchup.add(NOW - DAY, NOW, [server.enode])
                await asyncio.wait_for(catchup.settled([server.enode]), DEADLINE_S)
        await catchup.add(*WHOLE)

        assert open_ledger(tmp_path).account(nobody(1).node_id).pending == [MissingRange(*WHOLE)]


async def test_more_sources_than_there_may_be_are_an_error(tmp_path: Path) -> None:
    async with open_store(tmp_path / STORE_FILE) as store:
        some = [nobody(number) for number in range(MAX_SOURCES)]
        catchup = Catchup(store, tmp_path, settings_for(*some))

        with pytest.raises(CatchupError, match="more than 16 mailservers"):
            await catchup.add(0, 1, [nobody(MAX_SOURCES)])
        with pytest.raises(CatchupError, match="more than 16 mailservers"):
            Catchup(store, tmp_path, settings_for(*some, nobody(MAX_SOURCES)))


# Sources that change


async def test_new_source_is_asked_for_what_is_missed(tmp_path: Path) -> None:
    async with (
        serving(Archive(THREE_DAYS)) as server,
        catching_up(tmp_path, wanted=None) as catchup,
    ):
        await catchup.add_missed(3)
        catchup.follow([server.enode])
        await settled(catchup)
        await until(lambda: open_ledger(tmp_path).missed == [MissingRange(NOW - LATE_S, NOW + ASK_AGAIN_S)])

    assert_stored(tmp_path, THREE_DAYS)
    assert asked_since(server) == NOW - 3 * DAY


async def test_new_source_is_not_asked_for_what_another_has_given(tmp_path: Path) -> None:
    async with (
        serving(Archive(THREE_DAYS), name="one") as one,
        serving(Archive(THREE_DAYS), name="other") as other,
        catching_up(tmp_path, one.enode, wanted=None) as catchup,
    ):
        await catchup.add_missed(3)
        await until(lambda: open_ledger(tmp_path).missed == [MissingRange(NOW - LATE_S, NOW + ASK_AGAIN_S)])
        catchup.follow([one.enode, other.enode])
        await settled(catchup)

        assert asked_since(other) == NOW - LATE_S
        assert one.visits == 1


async def test_new_source_is_asked_for_nothing_where_days_are_none(tmp_path: Path) -> None:
    async with catching_up(tmp_path, wanted=None) as catchup:
        await catchup.add_missed(0)
        catchup.follow([nobody(1)])
        (progress,) = await settled(catchup)

    assert progress.ranges == 0


async def test_source_that_is_left_while_a_page_is_stored_says_so_throughout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storing, go_on, watched = asyncio.Event(), asyncio.Event(), asyncio.Event()
    problems: list[str] = []
    put = SqliteStore.put

    async def put_slowly(store: SqliteStore, *rows: Any, **more: Any) -> None:
        storing.set()
        await go_on.wait()
        await put(store, *rows, **more)
        asyncio.get_running_loop().call_soon(watch)

    def watch() -> None:
        problems.extend(progress.problem for progress in catchup.snapshot([server.enode]))
        if len(problems) < 30:
            asyncio.get_running_loop().call_soon(watch)
        else:
            watched.set()

    archive = Archive(THREE_DAYS, max_limit=SMALL)

    async def answer(asked: Asked) -> None:
        if asked.number == 1:  # what is asked next is waited for while this is stored
            await archive(asked)

    async with serving(answer) as server, catching_up(tmp_path, server.enode) as catchup:
        monkeypatch.setattr(SqliteStore, "put", put_slowly)
        await asyncio.wait_for(storing.wait(), DEADLINE_S)
        catchup.follow([])
        go_on.set()
        await asyncio.wait_for(watched.wait(), DEADLINE_S)

    assert set(problems) == {"no trusted peer any more"}


async def test_source_that_is_none_any_more_is_left_at_once_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    archive, left = Archive(THREE_DAYS, max_limit=SMALL), asyncio.Event()

    async def answer(asked: Asked) -> None:
        if asked.number != 4:  # else it waits, for longer than the test
            await archive(asked)
        else:
            left.set()

    async with (
        serving(answer) as server,
        catching_up(tmp_path, server.enode) as catchup,
    ):
        waiting = asyncio.create_task(catchup.settled([server.enode]))
        await asyncio.wait_for(left.wait(), DEADLINE_S)
        catchup.follow([])
        await asyncio.wait_for(waiting, DEADLINE_S)

        (progress,) = catchup.snapshot([server.enode])
        assert (progress.state, progress.problem) == (SourceState.GIVEN_UP, "no trusted peer any more")
        assert catchup.snapshot() == ()
        await until(lambda: open_ledger(tmp_path).account(server.enode.node_id).pending[0].cursor is not None)
        assert (server.visits, len(server.requests)) == (1, 4)

        catchup.follow([server.enode])
        await settled(catchup)
        assert server.requests[4].cursor == server.requests[3].cursor

    assert_stored(tmp_path, THREE_DAYS)


async def test_source_that_is_none_any_more_is_asked_when_a_command_wants_it(tmp_path: Path) -> None:
    async with (
        serving(Archive(THREE_DAYS)) as server,
        catching_up(tmp_path, replace(server.enode, port=1)) as catchup,
    ):
        await state_of(catchup, SourceState.WAITING)
        catchup.follow([])
        await catchup.add(*WHOLE, [server.enode])
        (progress,) = await settled(catchup)

    assert_stored(tmp_path, THREE_DAYS)
    assert progress.state is SourceState.DONE


async def test_source_that_owes_nothing_and_is_none_any_more_is_done(tmp_path: Path) -> None:
    async with (
        serving(Archive(THREE_DAYS)) as server,
        catching_up(tmp_path, server.enode) as catchup,
    ):
        await settled(catchup)
        catchup.follow([])

        assert catchup.snapshot([server.enode])[0].state is SourceState.DONE


async def test_sources_that_are_none_any_more_make_room_and_what_they_owe_is_kept(tmp_path: Path) -> None:
    async with catching_up(tmp_path, *map(nobody, range(MAX_SOURCES))) as catchup:
        others = [nobody(number) for number in range(100, 100 + MAX_SOURCES)]
        catchup.follow(others)

        assert len(catchup.snapshot(others)) == MAX_SOURCES
        await catchup.add(*WHOLE)
        assert open_ledger(tmp_path).account(nobody(0).node_id).pending == [MissingRange(*WHOLE)]


async def test_sources_for_which_there_is_no_room_are_an_error_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archive, go_on = Archive(THREE_DAYS), asyncio.Event()

    async def answer(asked: Asked) -> None:
        await go_on.wait()
        await archive(asked)

    async with serving(answer) as server, catching_up(tmp_path, wanted=None) as catchup:
        await catchup.add_missed(3)
        await catchup.add(*WHOLE, [server.enode, *(nobody(number) for number in range(MAX_SOURCES - 1))])
        catchup.follow([nobody(100)])
        (line,) = lines(caplog, "catch-up does not follow the settings")
        assert "more than 16 mailservers" in line

        go_on.set()
        await asyncio.wait_for(catchup.settled([server.enode]), DEADLINE_S)
        catchup.follow([nobody(100)])
        assert [progress.ranges for progress in catchup.snapshot([nobody(100)])] == [1]


async def test_source_that_comes_and_goes_while_it_is_being_left_is_asked_on(tmp_path: Path) -> None:
    archive = Archive(THREE_DAYS, max_limit=SMALL)

    async def answer(asked: Asked) -> None:
        if asked.number != 4:
            await archive(asked)

    async with (
        serving(answer) as server,
        catching_up(tmp_path, server.enode) as catchup,
    ):
        await until(lambda: len(server.requests) == 4)
        for sources in ([], [server.enode], [], [server.enode]):
            catchup.follow(sources)
            await turns()
        (progress,) = await settled(catchup)

    assert_stored(tmp_path, THREE_DAYS)
    assert progress.state is SourceState.DONE
    assert server.visits == 2


async def test_sources_share_the_memory_for_what_is_coming(tmp_path: Path) -> None:
    long = make_large_envelopes(3, 100_000)
    memory = ReceiveMemory(1024 * 1024)
    settings = replace(settings_for(), bounds=FrameBounds(memory=memory))
    taken = memory.reserve(1024 * 1024, lambda: None)

    async with (
        serving(Archive(long[:2]), name="one") as one,
        serving(Archive(long[1:]), name="other") as other,
        catching_up(tmp_path, one.enode, other.enode, settings=settings) as catchup,
    ):
        await until(lambda: bool(one.requests and other.requests))
        with pytest.raises(TimeoutError):  # what they send is not read
            await asyncio.wait_for(catchup.settled(), 0.5)
        stored = [progress.stored for progress in catchup.snapshot()]
        memory.release(taken)
        await settled(catchup)

    assert stored == [0, 0]
    assert_stored(tmp_path, long)
