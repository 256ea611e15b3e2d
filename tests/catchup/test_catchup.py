"""mailserver.catchup.catchup: what is asked for, and what was missed."""

import asyncio
from collections.abc import Collection
from pathlib import Path

import pytest

from mailserver.catchup import catchup as catchup_module
from mailserver.catchup.catchup import ASK_AGAIN_S, UNSENT_ATTEMPTS, UNSENT_INTERVAL_S, Catchup
from mailserver.catchup.command import run_once
from mailserver.catchup.ledger import MAX_SOURCES, PROGRESS_FILE, open_ledger
from mailserver.catchup.outages import Contact, Contacts
from mailserver.catchup.progress import SourceState
from mailserver.catchup.ranges import LATE_S, OVERLAP_S, MissingRange
from mailserver.codec.keys import NodeId
from mailserver.errors import StoreError
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from tests.catchup.running import WHOLE, assert_stored, catching_up, settled, state_of
from tests.catchup.servers import DAY, SMALL, THREE_DAYS, Archive, serving, settings_for
from tests.catchup.starts import asked_since, lines, nobody, start
from tests.mailservers import NOW, Clock, fill, make_envelope, stored
from tests.waiting import DEADLINE_S, turns, until

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("quick")]

# What is asked for


async def test_what_is_added_is_on_disk_before_anybody_is_asked(tmp_path: Path) -> None:
    async with open_store(tmp_path / STORE_FILE) as store:
        await Catchup(store, tmp_path, settings_for(nobody(1), nobody(2))).add(*WHOLE)

    ledger = open_ledger(tmp_path)
    for number in (1, 2):
        assert ledger.account(nobody(number).node_id).pending == [MissingRange(*WHOLE)]


async def test_range_ends_at_the_present(tmp_path: Path) -> None:
    async with open_store(tmp_path / STORE_FILE) as store:
        catchup = Catchup(store, tmp_path, settings_for(nobody(1)), lambda: NOW + 0.5)

        await catchup.add(NOW, NOW + DAY)

    assert open_ledger(tmp_path).account(nobody(1).node_id).pending == [MissingRange(NOW, NOW + 10)]


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
    assert progress.state is SourceState.DONE


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

    assert progress.state is SourceState.DONE
    assert not (tmp_path / PROGRESS_FILE).exists()


async def receive_live(folder: Path) -> None:
    async with open_store(folder / STORE_FILE) as store:
        await store.put([stored(THREE_DAYS[0])])


# What was missed


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
        await store.put([stored(THREE_DAYS[200], NOW - 2 * DAY), stored(THREE_DAYS[0], NOW + 1000 * DAY)])

    await start(tmp_path, nobody(1))

    assert open_ledger(tmp_path).account(nobody(1).node_id).pending == [MissingRange(NOW - 2 * DAY - LATE_S, NOW)]


@pytest.mark.parametrize(("days", "since"), [(0.5, NOW - DAY // 2), (1e6, 0)])
async def test_empty_store_asks_for_as_many_days_as_it_may(tmp_path: Path, days: float, since: int) -> None:
    await start(tmp_path, nobody(1), days=days)

    assert open_ledger(tmp_path).account(nobody(1).node_id).pending == [MissingRange(since, NOW)]


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

    assert open_ledger(tmp_path).account(nobody(1).node_id).pending == [MissingRange(NOW - 30 * DAY, NOW)]


async def test_command_between_hides_no_downtime(tmp_path: Path) -> None:
    async with serving(Archive(THREE_DAYS)) as server:
        async with open_store(tmp_path / STORE_FILE) as store:
            await store.put([stored(THREE_DAYS[200], NOW - 2 * DAY)])
            await run_once(store, tmp_path, settings_for(server.enode), NOW - 5000, NOW, clock=Clock())
            assert (await store.stats()).envelopes == 7
        await start(tmp_path, nobody(1))

    assert open_ledger(tmp_path).account(nobody(1).node_id).pending == [MissingRange(NOW - 2 * DAY - LATE_S, NOW)]


async def test_what_one_source_has_given_is_missed_no_more(tmp_path: Path) -> None:
    async with (
        serving(Archive(THREE_DAYS)) as server,
        catching_up(tmp_path, nobody(1), server.enode, wanted=None) as catchup,
    ):
        await catchup.add_missed(3)
        await state_of(catchup, SourceState.DONE, 1)
        await until(lambda: open_ledger(tmp_path).missed != [MissingRange(0, NOW + ASK_AGAIN_S)])

    assert open_ledger(tmp_path).missed == [MissingRange(NOW - LATE_S, NOW + ASK_AGAIN_S)]
    assert open_ledger(tmp_path).account(nobody(1).node_id).pending == [MissingRange(NOW - 3 * DAY, NOW)]


async def test_what_no_source_has_given_stays_missed(tmp_path: Path) -> None:
    async with catching_up(tmp_path, nobody(1), wanted=None) as catchup:
        await catchup.add_missed(3)
        await until(lambda: catchup.snapshot()[0].failures > 10)

    assert open_ledger(tmp_path).missed == [MissingRange(0, NOW + ASK_AGAIN_S)]


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
        await until(lambda: open_ledger(tmp_path).missed == [MissingRange(NOW - LATE_S, NOW + ASK_AGAIN_S)])

    assert min(request.lower for request in server.requests[asked:]) == NOW - 1.5 * DAY
    assert_stored(tmp_path, [envelope for envelope in THREE_DAYS if not -2 * DAY < envelope.created - NOW < -1.5 * DAY])


async def test_time_that_the_machine_has_slept_is_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()

    async with (
        serving(Archive(THREE_DAYS)) as server,
        catching_up(tmp_path, server.enode, wanted=None, clock=clock) as catchup,
    ):
        await catchup.add_missed(1)
        await until(lambda: open_ledger(tmp_path).missed == [MissingRange(NOW - LATE_S, NOW + ASK_AGAIN_S)])
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

    assert (given_up.state, given_up.failures) == (SourceState.GIVEN_UP, UNSENT_ATTEMPTS)


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
        assert (await settled(catchup))[0].state is SourceState.GIVEN_UP

        catchup.follow([nobody(1)])

        await until(lambda: catchup.snapshot()[0].failures > UNSENT_ATTEMPTS)
        assert catchup.snapshot()[0].state is not SourceState.GIVEN_UP


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
