"""mailserver.catchup.catchup: several sources, what is owed over restarts, and what the log says."""

import asyncio
import json
import logging
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mailserver.catchup import catchup as catchup_module
from mailserver.catchup import ledger as ledger_module
from mailserver.catchup.catchup import ASK_AGAIN_S, MAX_SOURCES, UNSENT_ATTEMPTS, UNSENT_INTERVAL_S, Catchup
from mailserver.catchup.command import run_once
from mailserver.catchup.ledger import PROGRESS_FILE, CatchupError, open_ledger
from mailserver.catchup.outages import Contact, Contacts
from mailserver.catchup.progress import State
from mailserver.catchup.ranges import LATE_S, OVERLAP_S, Range
from mailserver.codec.keys import Enode, NodeId
from mailserver.errors import StoreError
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import SqliteStore, open_store
from tests.catchup.running import WHOLE, assert_stored, catching_up, hurry, settled, state_of
from tests.catchup.servers import DAY, Archive, Asked, Server, make_envelopes, row, serving, settings_for
from tests.mailservers import NOW, Clock, fill, make_envelope
from tests.pairs import private_key
from tests.store.samples import read, write
from tests.waiting import DEADLINE_S, turns, until

pytestmark = pytest.mark.integration

THREE_DAYS = make_envelopes(250, step_s=1000)
SMALL = 20


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    hurry(monkeypatch)
    caplog.set_level(logging.INFO, "mailserver")


def lines(caplog: pytest.LogCaptureFixture, start: str) -> list[str]:
    return [record.message for record in caplog.records if record.message.startswith(start)]


def nobody(number: int) -> Enode:
    """A source that is never there."""
    return Enode(private_key(f"nobody {number}").public_key, "127.0.0.1", 1)


async def silent(asked: Asked) -> None:
    pass


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
        await state_of(catchup, State.DONE, 2)
        assert not any(source.state is State.DONE for source in catchup.snapshot()[:2])

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
        await state_of(catchup, State.WAITING)
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
        assert (progress.state, progress.stored) == (State.DONE, len(THREE_DAYS))


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

        assert open_ledger(tmp_path).account(nobody(1).node_id).pending == [Range(*WHOLE)]


async def test_more_sources_than_there_may_be_are_an_error(tmp_path: Path) -> None:
    async with open_store(tmp_path / STORE_FILE) as store:
        some = [nobody(number) for number in range(MAX_SOURCES)]
        catchup = Catchup(store, tmp_path, settings_for(*some))

        with pytest.raises(CatchupError, match="more than 16 mailservers"):
            await catchup.add(0, 1, [nobody(MAX_SOURCES)])
        with pytest.raises(CatchupError, match="more than 16 mailservers"):
            Catchup(store, tmp_path, settings_for(*some, nobody(MAX_SOURCES)))


# What is asked for


async def test_what_is_added_is_on_disk_before_anybody_is_asked(tmp_path: Path) -> None:
    async with open_store(tmp_path / STORE_FILE) as store:
        await Catchup(store, tmp_path, settings_for(nobody(1), nobody(2))).add(*WHOLE)

    ledger = open_ledger(tmp_path)
    for number in (1, 2):
        assert ledger.account(nobody(number).node_id).pending == [Range(*WHOLE)]


async def test_range_ends_at_the_present(tmp_path: Path) -> None:
    async with open_store(tmp_path / STORE_FILE) as store:
        catchup = Catchup(store, tmp_path, settings_for(nobody(1)), lambda: NOW + 0.5)

        await catchup.add(NOW, NOW + DAY)

    assert open_ledger(tmp_path).account(nobody(1).node_id).pending == [Range(NOW, NOW + 10)]


@pytest.mark.parametrize(("since", "until_"), [(-1, NOW), (NOW + 20, NOW + 30), (NOW, NOW - 1)])
async def test_range_of_no_times_is_an_error(tmp_path: Path, since: int, until_: int) -> None:
    async with open_store(tmp_path / STORE_FILE) as store:
        catchup = Catchup(store, tmp_path, settings_for(nobody(1)), lambda: NOW)

        with pytest.raises(ValueError, match="no range of times"):
            await catchup.add(since, until_)

    assert not (tmp_path / PROGRESS_FILE).exists()


async def test_range_may_be_added_while_it_runs_and_after_all_is_done(tmp_path: Path) -> None:
    async with (
        serving(Archive(THREE_DAYS, max_limit=SMALL)) as server,
        catching_up(tmp_path, server.enode, wanted=(NOW - DAY // 2, NOW)) as catchup,
    ):
        await until(lambda: len(server.requests) > 0)
        await catchup.add(NOW - DAY, NOW)
        await settled(catchup)
        await catchup.add(NOW - 3 * DAY, NOW - DAY)
        (progress,) = await settled(catchup)

    assert_stored(tmp_path, THREE_DAYS)
    assert progress.state is State.DONE


async def test_source_may_be_added_while_it_runs(tmp_path: Path) -> None:
    async with (
        serving(Archive(THREE_DAYS[:100]), name="one") as first,
        serving(Archive(THREE_DAYS[100:]), name="other") as second,
        catching_up(tmp_path, first.enode) as catchup,
    ):
        await settled(catchup)
        assert_stored(tmp_path, THREE_DAYS[:100])
        await catchup.add(*WHOLE, [second.enode])
        await settled(catchup)

        assert_stored(tmp_path, THREE_DAYS)
        assert first.visits == 1


async def test_nothing_to_do_is_settled_at_once_and_leaves_no_file(tmp_path: Path) -> None:
    async with catching_up(tmp_path, nobody(1), wanted=None) as catchup:
        (progress,) = await settled(catchup)

    assert progress.state is State.DONE
    assert not (tmp_path / PROGRESS_FILE).exists()


# What was missed


def asked_since(server: Server) -> int:
    return min(request.lower for request in server.requests)


async def start(folder: Path, *sources: Enode, days: float = 30.0) -> Catchup:
    """What a daemon does first; it is killed before it does more."""
    async with open_store(folder / STORE_FILE) as store:
        catchup = Catchup(store, folder, settings_for(*sources), Clock())
        await catchup.add_missed(days)
    return catchup


async def receive_live(folder: Path) -> None:
    async with open_store(folder / STORE_FILE) as store:
        await store.put([row(THREE_DAYS[0])])


async def test_all_since_the_last_reception_is_asked_for(tmp_path: Path) -> None:
    async with (
        serving(Archive(THREE_DAYS)) as server,
        catching_up(tmp_path, server.enode, held=THREE_DAYS[88:], wanted=None) as catchup,
    ):
        await catchup.add_missed(30)
        await settled(catchup)

    assert_stored(tmp_path, THREE_DAYS)
    assert asked_since(server) == NOW - DAY - LATE_S


async def test_rows_from_the_future_hide_no_downtime(tmp_path: Path) -> None:
    """Our clock was ahead once."""
    async with open_store(tmp_path / STORE_FILE) as store:
        await store.put([row(THREE_DAYS[200], NOW - 2 * DAY), row(THREE_DAYS[0], NOW + 1000 * DAY)])

    await start(tmp_path, nobody(1))

    assert open_ledger(tmp_path).account(nobody(1).node_id).pending == [Range(NOW - 2 * DAY - LATE_S, NOW)]


@pytest.mark.parametrize(("days", "since"), [(0.5, NOW - DAY // 2), (1e6, 0)])
async def test_empty_store_asks_for_as_many_days_as_it_may(tmp_path: Path, days: float, since: int) -> None:
    await start(tmp_path, nobody(1), days=days)

    assert open_ledger(tmp_path).account(nobody(1).node_id).pending == [Range(since, NOW)]


async def test_no_days_are_asked_for_if_that_is_wanted(tmp_path: Path) -> None:
    catchup = await start(tmp_path, nobody(1), days=0)

    assert catchup.snapshot()[0].ranges == 0


async def test_start_that_is_killed_before_anything_was_given_hides_no_downtime(tmp_path: Path) -> None:
    await start(tmp_path, nobody(1))
    await receive_live(tmp_path)

    async with (
        serving(Archive(THREE_DAYS)) as server,
        catching_up(tmp_path, server.enode, wanted=None) as catchup,
    ):
        await catchup.add_missed(3)  # of another source than the first time: that one's address was wrong
        await settled(catchup)

    assert_stored(tmp_path, THREE_DAYS)


async def test_start_without_sources_hides_no_downtime(tmp_path: Path) -> None:
    await start(tmp_path)
    await receive_live(tmp_path)
    await start(tmp_path, nobody(1))

    assert open_ledger(tmp_path).account(nobody(1).node_id).pending == [Range(NOW - 30 * DAY, NOW)]


async def test_command_between_hides_no_downtime(tmp_path: Path) -> None:
    async with serving(Archive(THREE_DAYS)) as server:
        async with open_store(tmp_path / STORE_FILE) as store:
            await store.put([row(THREE_DAYS[200], NOW - 2 * DAY)])
            await run_once(store, tmp_path, settings_for(server.enode), NOW - 5000, NOW, clock=Clock())
            assert (await store.stats()).envelopes == 7
        await start(tmp_path, nobody(1))

    assert open_ledger(tmp_path).account(nobody(1).node_id).pending == [Range(NOW - 2 * DAY - LATE_S, NOW)]


async def test_what_one_source_has_given_is_missed_no_more(tmp_path: Path) -> None:
    async with (
        serving(Archive(THREE_DAYS)) as server,
        catching_up(tmp_path, nobody(1), server.enode, wanted=None) as catchup,
    ):
        await catchup.add_missed(3)
        await state_of(catchup, State.DONE, 1)
        await until(lambda: open_ledger(tmp_path).missed != [Range(0, NOW + ASK_AGAIN_S)])

    assert open_ledger(tmp_path).missed == [Range(NOW - LATE_S, NOW + ASK_AGAIN_S)]
    assert open_ledger(tmp_path).account(nobody(1).node_id).pending == [Range(NOW - 3 * DAY, NOW)]


async def test_what_no_source_has_given_stays_missed(tmp_path: Path) -> None:
    async with catching_up(tmp_path, nobody(1), wanted=None) as catchup:
        await catchup.add_missed(3)
        await until(lambda: catchup.snapshot()[0].failures > 10)

    assert open_ledger(tmp_path).missed == [Range(0, NOW + ASK_AGAIN_S)]


async def test_what_was_sent_until_our_peers_were_back_is_asked_for_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catchup_module, "ASK_AGAIN_S", 1)
    archive, clock = Archive(THREE_DAYS), Clock()
    late = make_envelope(1000, created=NOW + 300)

    async with (
        serving(archive) as server,
        catching_up(tmp_path, server.enode, wanted=None, clock=clock) as catchup,
    ):
        await catchup.add_missed(3)
        await settled(catchup)
        archive.add(late)
        clock.now = NOW + 600
        await until(lambda: catchup.snapshot()[0].fetched > len(THREE_DAYS))
        await settled(catchup)
        await until(lambda: open_ledger(tmp_path).missed == [])

    assert_stored(tmp_path, [late, *THREE_DAYS])
    assert (server.requests[-1].lower, server.requests[-1].upper) == (NOW - LATE_S, NOW + 600 + OVERLAP_S)


async def test_clock_that_was_behind_at_the_start_hides_no_downtime(tmp_path: Path) -> None:
    """As in a machine without a clock of its own, before it has asked the network for the time."""
    clock = Clock(NOW - 2 * DAY)

    async with (
        serving(Archive(THREE_DAYS)) as server,
        catching_up(tmp_path, server.enode, wanted=None, clock=clock) as catchup,
    ):
        await catchup.add_missed(1.5)
        await settled(catchup)
        asked = len(server.requests)
        await receive_live(tmp_path)  # now nobody can see it by the last reception
        clock.now = NOW
        await until(lambda: len(server.requests) > asked)
        await settled(catchup)
        await until(lambda: open_ledger(tmp_path).missed == [Range(NOW - LATE_S, NOW + ASK_AGAIN_S)])

    assert min(request.lower for request in server.requests[asked:]) == NOW - 1.5 * DAY
    assert_stored(tmp_path, [envelope for envelope in THREE_DAYS if not -2 * DAY < envelope.created - NOW < -1.5 * DAY])


async def test_time_that_the_machine_has_slept_is_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()

    async with (
        serving(Archive(THREE_DAYS)) as server,
        catching_up(tmp_path, server.enode, wanted=None, clock=clock) as catchup,
    ):
        await catchup.add_missed(1)
        await until(lambda: open_ledger(tmp_path).missed == [Range(NOW - LATE_S, NOW + ASK_AGAIN_S)])
        server.requests.clear()
        clock.now += 5000
        await until(lambda: len(server.requests) > 0)
        await settled(catchup)

    assert server.requests[0].upper == NOW + 5000 + OVERLAP_S
    assert asked_since(server) == NOW - LATE_S
    assert len(lines(caplog, "clock leapt ahead, what was sent meanwhile is missed seconds=")) == 1


async def test_what_was_refused_while_the_clock_was_ahead_is_asked_for_when_it_is_set_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, archive = Clock(), Archive(THREE_DAYS)
    refused = make_envelope(1000, created=NOW + 100)

    async with (
        serving(archive) as server,
        catching_up(tmp_path, server.enode, wanted=None, clock=clock) as catchup,
    ):
        await catchup.add_missed(3)
        await settled(catchup)
        clock.now += 365 * DAY
        await until(lambda: len(lines(caplog, "clock leapt ahead")) == 1)
        await settled(catchup)
        archive.add(refused)
        clock.now = NOW + 200
        await until(lambda: len(lines(caplog, "clock was set back, what was sent before is missed by=31535")) == 1)
        await until(lambda: catchup.snapshot()[0].stored > len(THREE_DAYS))

    assert_stored(tmp_path, [refused, *THREE_DAYS])


async def test_source_that_was_out_of_reach_is_asked_for_what_it_took_meanwhile(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archive, clock = Archive(THREE_DAYS), Clock()
    meanwhile = make_envelope(1000, created=NOW + 5)

    async with (
        serving(archive) as server,
        catching_up(tmp_path, server.enode, wanted=None, clock=clock) as catchup,
    ):
        contacts = Contacts({server.enode.node_id: Contact(1, 0.0, 0)}, 0.0)
        looks = 0

        def look(sources: Collection[NodeId]) -> Contacts:
            nonlocal looks
            looks += 1
            assert set(sources) == {server.enode.node_id}
            return contacts

        async def look_twice() -> None:
            seen = looks
            await until(lambda: looks > seen + 2)

        catchup.watch(look)
        await catchup.add_missed(3)
        await settled(catchup)
        await look_twice()
        asked = len(server.requests)
        archive.add(meanwhile)
        contacts = Contacts({}, None)
        clock.now += 10
        await look_twice()
        assert len(server.requests) == asked
        contacts = Contacts({server.enode.node_id: Contact(2, 0.0, 0)}, 0.0)
        await until(lambda: len(server.requests) > asked)
        await settled(catchup)
        await look_twice()

    assert_stored(tmp_path, [meanwhile, *THREE_DAYS])
    assert [(request.lower, request.upper) for request in server.requests[asked:]] == [
        (NOW - LATE_S, NOW + 10 + OVERLAP_S)
    ]
    (line,) = lines(caplog, "trusted peer was out of reach")
    assert line.endswith(f":{server.enode.port} since_s={LATE_S + 10}")


async def test_peer_that_is_no_source_is_asked_for_what_it_cannot_send(tmp_path: Path) -> None:
    unsent = make_envelope(1000, created=NOW - 5)

    async with (
        serving(Archive([unsent])) as server,
        catching_up(tmp_path, wanted=None, clock=Clock()) as catchup,
    ):
        assert not catchup.ask_for_unsent(server.enode)  # nothing is to be fetched at all
        await catchup.add_missed(3)

        assert catchup.ask_for_unsent(server.enode)
        await settled(catchup)

    assert_stored(tmp_path, [unsent])


async def test_peer_that_is_no_source_and_does_not_answer_is_given_up(tmp_path: Path) -> None:
    async with catching_up(tmp_path, wanted=None, clock=Clock()) as catchup:
        await catchup.add_missed(3)
        assert catchup.ask_for_unsent(nobody(1))

        (given_up,) = await settled(catchup)

    assert (given_up.state, given_up.failures) == (State.GIVEN_UP, UNSENT_ATTEMPTS)


async def test_peers_that_are_no_sources_make_room_for_those_that_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catchup_module, "UNSENT_ATTEMPTS", 1_000_000)
    late = [nobody(number) for number in range(MAX_SOURCES)]
    async with (
        serving(Archive(THREE_DAYS)) as server,
        catching_up(tmp_path, wanted=None, clock=Clock()) as catchup,
    ):
        await catchup.add_missed(3)
        assert [catchup.ask_for_unsent(peer) for peer in late] == [True] * MAX_SOURCES
        assert not catchup.ask_for_unsent(nobody(MAX_SOURCES))  # nor do they push each other out
        waiting = asyncio.create_task(catchup.settled(late[:1]))
        await turns()
        assert not waiting.done()

        catchup.follow([server.enode])
        await asyncio.wait_for(catchup.settled([server.enode]), DEADLINE_S)
        await asyncio.wait_for(waiting, DEADLINE_S)  # for the one that had to go

    assert_stored(tmp_path, THREE_DAYS)


async def test_peer_that_was_no_source_and_becomes_one_is_not_given_up(tmp_path: Path) -> None:
    async with catching_up(tmp_path, wanted=None, clock=Clock()) as catchup:
        await catchup.add_missed(3)
        assert catchup.ask_for_unsent(nobody(1))
        assert (await settled(catchup))[0].state is State.GIVEN_UP

        catchup.follow([nobody(1)])

        await until(lambda: catchup.snapshot()[0].failures > UNSENT_ATTEMPTS)
        assert catchup.snapshot()[0].state is not State.GIVEN_UP


async def test_source_that_cannot_send_its_pool_is_asked_for_it_again_and_again_but_not_all_the_time(
    tmp_path: Path,
) -> None:
    archive, clock = Archive(THREE_DAYS), Clock()
    unsent = make_envelope(1000, created=NOW + 5)

    async with (
        serving(archive) as server,
        catching_up(tmp_path, server.enode, wanted=None, clock=clock) as catchup,
    ):
        await catchup.add_missed(3)
        await settled(catchup)
        asked = len(server.requests)
        archive.add(unsent)
        clock.now += UNSENT_INTERVAL_S

        assert catchup.ask_for_unsent(server.enode)
        await settled(catchup)
        assert catchup.ask_for_unsent(server.enode)  # it is dialled again at once: that asks for nothing more
        await settled(catchup)
        clock.now += UNSENT_INTERVAL_S
        assert catchup.ask_for_unsent(server.enode)
        await settled(catchup)

    assert_stored(tmp_path, [unsent, *THREE_DAYS])
    assert [request.lower for request in server.requests[asked:]] == [
        NOW + UNSENT_INTERVAL_S - LATE_S,
        NOW + UNSENT_INTERVAL_S - LATE_S,
    ]


async def test_clock_that_is_set_right_by_less_than_envelopes_are_late_is_no_leap(tmp_path: Path) -> None:
    clock = Clock()

    async with catching_up(tmp_path, nobody(1), wanted=None, clock=clock):
        for step_s in (0, LATE_S, 60 - LATE_S):
            clock.now += step_s
            await asyncio.sleep(5 * catchup_module.SAVE_INTERVAL_S)

    assert not (tmp_path / PROGRESS_FILE).exists()


# Sources that change


async def test_new_source_is_asked_for_what_is_missed(tmp_path: Path) -> None:
    async with (
        serving(Archive(THREE_DAYS)) as server,
        catching_up(tmp_path, wanted=None) as catchup,
    ):
        await catchup.add_missed(3)
        catchup.follow([server.enode])
        await settled(catchup)
        await until(lambda: open_ledger(tmp_path).missed == [Range(NOW - LATE_S, NOW + ASK_AGAIN_S)])

    assert_stored(tmp_path, THREE_DAYS)
    assert asked_since(server) == NOW - 3 * DAY


async def test_new_source_is_not_asked_for_what_another_has_given(tmp_path: Path) -> None:
    async with (
        serving(Archive(THREE_DAYS), name="one") as one,
        serving(Archive(THREE_DAYS), name="other") as other,
        catching_up(tmp_path, one.enode, wanted=None) as catchup,
    ):
        await catchup.add_missed(3)
        await until(lambda: open_ledger(tmp_path).missed == [Range(NOW - LATE_S, NOW + ASK_AGAIN_S)])
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
        assert (progress.state, progress.problem) == (State.GIVEN_UP, "no trusted peer any more")
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
        await state_of(catchup, State.WAITING)
        catchup.follow([])
        await catchup.add(*WHOLE, [server.enode])
        (progress,) = await settled(catchup)

    assert_stored(tmp_path, THREE_DAYS)
    assert progress.state is State.DONE


async def test_source_that_owes_nothing_and_is_none_any_more_is_done(tmp_path: Path) -> None:
    async with (
        serving(Archive(THREE_DAYS)) as server,
        catching_up(tmp_path, server.enode) as catchup,
    ):
        await settled(catchup)
        catchup.follow([])

        assert catchup.snapshot([server.enode])[0].state is State.DONE


async def test_sources_that_are_none_any_more_make_room_and_what_they_owe_is_kept(tmp_path: Path) -> None:
    async with catching_up(tmp_path, *map(nobody, range(MAX_SOURCES))) as catchup:
        others = [nobody(number) for number in range(100, 100 + MAX_SOURCES)]
        catchup.follow(others)

        assert len(catchup.snapshot(others)) == MAX_SOURCES
        await catchup.add(*WHOLE)
        assert open_ledger(tmp_path).account(nobody(0).node_id).pending == [Range(*WHOLE)]


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
    assert progress.state is State.DONE
    assert server.visits == 2


# Over restarts


async def test_it_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    stops = (2, 6, 10)

    async with serving(Archive(THREE_DAYS, max_limit=SMALL)) as server:
        for count in stops:
            async with catching_up(tmp_path, server.enode, wanted=WHOLE if count == stops[0] else None):
                await until(lambda: len(server.requests) >= count)  # noqa: B023
        async with catching_up(tmp_path, server.enode, wanted=None) as catchup:
            await settled(catchup)

    assert_stored(tmp_path, THREE_DAYS)
    undisturbed = 16
    assert len(server.requests) <= undisturbed + 2 * len(stops)  # what was under way, and what was to be asked next
    assert json.loads(read(tmp_path / PROGRESS_FILE))["sources"] == {}


async def test_same_request_after_a_restart_goes_on_too(tmp_path: Path) -> None:
    async with serving(Archive(THREE_DAYS, max_limit=SMALL)) as server:
        async with catching_up(tmp_path, server.enode):
            await until(lambda: len(server.requests) >= 9)
        asked = len(server.requests)
        async with catching_up(tmp_path, server.enode, wanted=WHOLE) as catchup:
            await settled(catchup)

    assert_stored(tmp_path, THREE_DAYS)
    assert all(request.upper < NOW for request in server.requests[asked:])


async def test_what_was_new_while_it_was_stopped_is_asked_for_too(tmp_path: Path) -> None:
    before = [envelope for envelope in THREE_DAYS if envelope.created <= NOW - 2 * DAY]

    async with serving(Archive(THREE_DAYS, max_limit=SMALL)) as server:
        async with catching_up(tmp_path, server.enode, wanted=(NOW - 3 * DAY, NOW - 2 * DAY)):
            await until(lambda: len(server.requests) >= 2)
        asked = len(server.requests)
        async with catching_up(tmp_path, server.enode, wanted=WHOLE) as catchup:
            await settled(catchup)

    assert_stored(tmp_path, THREE_DAYS)
    assert len(before) > 3 * SMALL
    lowest_new = NOW - 2 * DAY - LATE_S
    assert min(request.lower for request in server.requests[asked:] if request.upper > NOW - 2 * DAY + 1) > lowest_new


async def test_what_a_source_owes_waits_for_it_while_others_are_asked(tmp_path: Path) -> None:
    async with open_store(tmp_path / STORE_FILE) as store:
        await Catchup(store, tmp_path, settings_for(nobody(1))).add(*WHOLE)

    async with (
        serving(Archive(THREE_DAYS)) as server,
        catching_up(tmp_path, server.enode) as catchup,
    ):
        assert len(await settled(catchup)) == 1

    assert open_ledger(tmp_path).account(nobody(1).node_id).pending == [Range(*WHOLE)]


async def test_damaged_progress_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    write(tmp_path / PROGRESS_FILE, b"{")

    async with open_store(tmp_path / STORE_FILE) as store:
        with pytest.raises(CatchupError, match="is damaged"):
            Catchup(store, tmp_path, settings_for(nobody(1)))

    assert read(tmp_path / PROGRESS_FILE) == b"{"


async def test_progress_that_cannot_be_saved_is_said_once_and_saved_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / f"{PROGRESS_FILE}.tmp"
    async with (
        serving(Archive(THREE_DAYS, max_limit=SMALL)) as server,
        catching_up(tmp_path, server.enode, wanted=None) as catchup,
    ):
        await catchup.add(*WHOLE)
        blocked.mkdir()
        await settled(catchup)
        assert json.loads(read(tmp_path / PROGRESS_FILE))["sources"] != {}
        await until(lambda: bool(lines(caplog, "catch-up progress not saved")))
        await asyncio.sleep(5 * catchup_module.SAVE_INTERVAL_S)
        blocked.rmdir()
        await until(lambda: json.loads(read(tmp_path / PROGRESS_FILE))["sources"] == {})

    assert_stored(tmp_path, THREE_DAYS)
    assert len(lines(caplog, "catch-up progress not saved")) == 1


async def test_range_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / f"{PROGRESS_FILE}.tmp").mkdir()

    async with open_store(tmp_path / STORE_FILE) as store:
        with pytest.raises(CatchupError, match="cannot write"):
            await Catchup(store, tmp_path, settings_for(nobody(1))).add(*WHOLE)


async def test_being_cancelled_is_being_stopped(tmp_path: Path) -> None:
    async with (
        serving(Archive(THREE_DAYS, max_limit=SMALL)) as server,
        open_store(tmp_path / STORE_FILE) as store,
    ):
        catchup = Catchup(store, tmp_path, settings_for(server.enode), lambda: NOW)
        await catchup.add(*WHOLE)
        running = asyncio.create_task(catchup.run())
        await until(lambda: len(server.requests) >= 5)
        running.cancel()
        await asyncio.wait([running], timeout=DEADLINE_S)
        owed = open_ledger(tmp_path).account(server.enode.node_id).pending

        assert running.cancelled()
        assert owed[0].cursor is not None
        assert [source.ranges for source in catchup.snapshot()] == [len(owed)]


# The log


async def test_log_says_how_far_it_is_and_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(catchup_module, "LOG_INTERVAL_S", 0.0)
    archive, go_on = Archive(THREE_DAYS, max_limit=SMALL), asyncio.Event()

    async def answer(asked: Asked) -> None:
        if asked.number == 3:
            await go_on.wait()
        await archive(asked)

    async with (
        serving(answer) as server,
        catching_up(tmp_path, server.enode) as catchup,
    ):
        await until(lambda: len(lines(caplog, "catching up")) > 0)
        await until(lambda: catchup.snapshot()[0].pages == 2)
        await asyncio.sleep(5 * catchup_module.SAVE_INTERVAL_S)
        under_way = lines(caplog, "catching up")
        go_on.set()
        (progress,) = await settled(catchup)

    pages = [line.partition("pages=")[2].split()[0] for line in under_way]
    assert under_way[-1].startswith(f"catching up source={progress.source} left_s=")
    assert pages in (["1", "2"], ["2"])  # nothing is said where nothing has come
    (end,) = lines(caplog, "caught up ")
    start = f"caught up source={progress.source} pages=15 fetched=250 stored=250 wrong=0 seconds="
    assert end.startswith(start)


async def test_less_and_less_is_left(tmp_path: Path) -> None:
    left: list[int] = []

    async with (
        serving(Archive(THREE_DAYS, max_limit=SMALL)) as server,
        catching_up(tmp_path, server.enode) as catchup,
    ):
        while catchup.snapshot()[0].state is not State.DONE:
            left.append(catchup.snapshot()[0].left_s)
            await asyncio.sleep(0)

    assert left[0] == 3 * DAY + 1
    assert left == sorted(left, reverse=True)
    assert len(set(left)) > 10


async def test_nothing_is_stored_before_it_is_written_down_what_was_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the last reception would be a recent one after a crash, and the gap before it be forgotten."""
    monkeypatch.setattr(catchup_module, "SAVE_INTERVAL_S", 0.01)
    blocked = tmp_path / f"{PROGRESS_FILE}.tmp"
    blocked.mkdir()
    async with open_store(tmp_path / STORE_FILE) as store:
        catchup = Catchup(store, tmp_path, settings_for(nobody(1)), lambda: NOW)
        await catchup.add_missed(30)

        with pytest.raises(StoreError, match=r"cannot write .*sync\.json"):
            await fill(store, THREE_DAYS[:1])
        assert "cannot write" in store.problem
        assert (await store.stats()).envelopes == 0

        running = asyncio.create_task(catchup.run())
        blocked.rmdir()
        await until(lambda: not store.problem)
        await fill(store, THREE_DAYS[:1])
        assert open_ledger(tmp_path).missed
        catchup.stop()
        await running
