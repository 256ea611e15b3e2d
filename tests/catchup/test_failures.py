"""mailserver.catchup.source: sources that fail: when they are tried again, and when they are given up."""

import asyncio
import logging
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mailserver.catchup import asking as asking_module
from mailserver.catchup import page_rules as pages_module
from mailserver.catchup import retry as retry_module
from mailserver.catchup import source as source_module
from mailserver.catchup.page_rules import MIN_PAGE_ENVELOPES, Lie
from mailserver.catchup.progress import SourceState
from mailserver.catchup.source import MAX_REFUSALS
from mailserver.client import mail_client as client_module
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.waku.envelope import encode_envelopes
from mailserver.waku.packets import PacketCode
from tests.catchup.answers import HONEST, lines, refuse
from tests.catchup.running import WHOLE, assert_stored, catching_up, settled, state_of
from tests.catchup.servers import DAY, SMALL, STATUS, THREE_DAYS, Answer, Archive, Asked, serving, settings_for, silent
from tests.mailservers import NOW
from tests.store.samples import change
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("quick")]

# Failures


def by_turns(*answers: Answer) -> Answer:
    """Each request is answered by the next of these, the last one answers all others."""

    async def answer(asked: Asked) -> None:
        await answers[min(asked.number, len(answers)) - 1](asked)

    return answer


async def cut_at_once(asked: Asked) -> None:
    await asked.peer.close()


async def cut_in_a_page(asked: Asked) -> None:
    asked.give(THREE_DAYS[:5])
    await asked.peer.writer.drain()
    await asked.peer.close()


async def cut_in_a_frame(asked: Asked) -> None:
    frame = asked.peer.packet(PacketCode.P2P_MESSAGE, encode_envelopes([THREE_DAYS[0].raw]))
    asked.peer.write(frame[: len(frame) // 2])
    await asked.peer.writer.drain()
    await asked.peer.close()


async def not_decodable(asked: Asked) -> None:
    asked.peer.say(PacketCode.P2P_MESSAGE, b"\xc1\xff")


async def not_a_completion(asked: Asked) -> None:
    asked.peer.say(PacketCode.P2P_REQUEST_COMPLETE, b"\x83abc")


@pytest.mark.parametrize(
    "fault", [cut_at_once, cut_in_a_page, cut_in_a_frame, not_decodable, not_a_completion, refuse, silent]
)
@pytest.mark.parametrize("turn", [1, 2, 7])
async def test_failure_is_borne_with_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: Answer, turn: int
) -> None:
    if fault is silent:  # else an answer that takes its time would be one more failure
        monkeypatch.setattr(client_module, "ANSWER_TIMEOUT_S", 1.0)

    async with (
        serving(by_turns(*[HONEST] * (turn - 1), fault, HONEST)) as server,
        catching_up(tmp_path, server.enode) as catchup,
    ):
        (progress,) = await settled(catchup)

    assert_stored(tmp_path, THREE_DAYS)
    assert (progress.state, progress.problem) == (SourceState.DONE, "")
    assert server.visits == 2
    (line,) = [line for line in lines(caplog, logging.INFO) if line.startswith("catch-up waits")]
    assert f"source={progress.source} cause=" in line
    assert "\x1b" not in line


async def test_every_page_of_a_source_that_always_cuts_the_connection_counts(tmp_path: Path) -> None:
    async def answer(asked: Asked) -> None:
        await HONEST(asked)
        await asked.peer.writer.drain()
        await asked.peer.close()

    async with serving(answer) as server, catching_up(tmp_path, server.enode) as catchup:
        await settled(catchup)

    assert_stored(tmp_path, THREE_DAYS)
    assert server.visits >= len(THREE_DAYS) // SMALL


async def test_source_that_drips_is_not_waited_for_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking_module, "PAGE_TIMEOUT_S", 0.2)

    async def drip(asked: Asked) -> None:
        while not asked.peer.writer.is_closing():
            asked.give(THREE_DAYS[:1])
            await asyncio.sleep(0.02)

    async with serving(drip) as server, catching_up(tmp_path, server.enode) as catchup:
        progress = await state_of(catchup, SourceState.SET_ASIDE)

    assert progress.problem == Lie.ENDLESS_PAGE.value
    assert [request.limit for request in server.requests] == [1000, 125, 15, MIN_PAGE_ENVELOPES]


async def test_source_that_is_down_is_tried_until_it_is_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(HONEST) as gone:
        pass

    async with catching_up(tmp_path, gone.enode) as catchup:
        await until(lambda: len(lines(caplog, logging.INFO)) >= 10)
        (progress,) = catchup.snapshot()

        assert progress.state in (SourceState.WAITING, SourceState.FETCHING)
        assert "cannot connect" in progress.problem
        assert progress.ranges > 0


async def test_source_that_asks_to_come_back_is_left_alone_so_long(tmp_path: Path) -> None:
    times = []

    async def answer(asked: Asked) -> None:
        times.append(time.monotonic())
        await (HONEST(asked) if asked.number != 3 else send_away(asked))

    async def send_away(asked: Asked) -> None:
        asked.fail("too many requests or envelopes in a short time: come back in 1 s")

    async with serving(answer) as server, catching_up(tmp_path, server.enode) as catchup:
        await settled(catchup)

    assert_stored(tmp_path, THREE_DAYS)
    assert times[3] - times[2] >= 1
    assert server.requests[3].cursor == server.requests[2].cursor


async def test_source_that_says_come_back_in_7_s_is_waiting(tmp_path: Path) -> None:
    async def answer(asked: Asked) -> None:
        asked.fail("come back in 7 s")

    async with serving(answer) as server, catching_up(tmp_path, server.enode) as catchup:
        await until(lambda: len(server.requests) > 0)
        progress = await state_of(catchup, SourceState.WAITING)
        await asyncio.wait([asyncio.create_task(catchup.settled())], timeout=0.2)

        assert progress.problem == "come back in 7 s"
        assert len(server.requests) == 1


async def test_nobody_is_waited_for_longer_than_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert source_module.MAX_COME_BACK_S == 3600
    monkeypatch.setattr(source_module, "MAX_COME_BACK_S", 0.01)

    async def send_away(asked: Asked) -> None:
        asked.fail("come back in 999999999 s")

    async with serving(by_turns(send_away, HONEST)) as server, catching_up(tmp_path, server.enode) as catchup:
        await settled(catchup)

    assert_stored(tmp_path, THREE_DAYS)


async def test_window_is_begun_again_when_its_cursor_is_refused_again_and_again(tmp_path: Path) -> None:
    """As after the source has lost what its cursors refer to."""

    async def answer(asked: Asked) -> None:
        if asked.request.cursor is not None and asked.number <= 3 + MAX_REFUSALS:
            asked.fail("unknown cursor")
        else:
            await HONEST(asked)

    async with serving(answer) as server, catching_up(tmp_path, server.enode) as catchup:
        await settled(catchup)

    cursors = [request.cursor for request in server.requests]
    assert_stored(tmp_path, THREE_DAYS)
    assert cursors[1 : MAX_REFUSALS + 1] == [cursors[1]] * MAX_REFUSALS
    assert cursors[MAX_REFUSALS + 1] is None
    assert catchup.snapshot()[0].failures == 0


@pytest.mark.parametrize("behind_a_cursor", [True, False])
async def test_window_that_is_always_refused_does_not_keep_back_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind_a_cursor: bool
) -> None:
    """As where a source's disk is damaged: what lies around that is fetched, and then it is asked less and less."""
    monkeypatch.setattr(retry_module, "MAX_BACKOFF_S", 3600.0)
    broken = NOW - DAY

    async def answer(asked: Asked) -> None:
        request = asked.request
        if request.lower <= broken <= request.upper and (request.cursor is not None or not behind_a_cursor):
            asked.fail("internal error")
        else:
            await HONEST(asked)

    async with serving(answer) as server, catching_up(tmp_path, server.enode) as catchup:
        await until(lambda: catchup.snapshot()[0].failures > 8)
        (progress,) = catchup.snapshot()

    assert progress.ranges == 1
    assert progress.left_s <= DAY
    assert progress.stored > len(THREE_DAYS) * 0.6


async def test_source_that_waits_after_a_failure_is_tried_at_once_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "backoff_s", lambda failures: 3600.0 if failures else 0.0)

    async def send_away(asked: Asked) -> None:
        asked.fail("come back in 0 s")

    async with (
        serving(by_turns(send_away, cut_at_once, HONEST)) as server,
        catching_up(tmp_path, server.enode) as catchup,
    ):
        await until(lambda: catchup.snapshot()[0].failures == 1)
        await catchup.add(*WHOLE)
        await settled(catchup)

    assert_stored(tmp_path, THREE_DAYS)


async def test_source_that_has_asked_to_come_back_is_not_tried_sooner_whoever_asks(tmp_path: Path) -> None:
    async def send_away(asked: Asked) -> None:
        asked.fail("too many requests, come back in 3600 s")

    async with serving(send_away) as server, catching_up(tmp_path, server.enode) as catchup:
        await until(lambda: bool(catchup.snapshot()[0].problem))
        await catchup.add(*WHOLE)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(catchup.settled(), 0.1)

    assert server.visits == 1


async def test_request_that_takes_too_much_work_is_not_made(tmp_path: Path) -> None:
    async with (
        serving(HONEST, status=replace(STATUS, pow_requirement=1e6)) as server,
        catching_up(tmp_path, server.enode) as catchup,
    ):
        await until(lambda: server.visits > 2)
        progress = await state_of(catchup, SourceState.WAITING)

    assert "proof of work of 1000000 for" in progress.problem
    assert server.requests == []


@pytest.mark.parametrize("archive", [HONEST, Archive(THREE_DAYS)], ids=["many pages", "one page a window"])
async def test_store_that_fails_is_not_held_against_the_source(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, archive: Archive
) -> None:
    path = tmp_path / STORE_FILE

    async with serving(archive) as server, catching_up(tmp_path, server.enode, wanted=None) as catchup:
        change(path, "CREATE TRIGGER fail BEFORE INSERT ON envelopes BEGIN SELECT RAISE(ABORT, 'no room'); END")
        await catchup.add(*WHOLE)
        await until(lambda: server.visits > 3)
        assert catchup.snapshot()[0].stored == 0
        change(path, "DROP TRIGGER fail")
        await settled(catchup)

    assert_stored(tmp_path, THREE_DAYS)
    assert any(line.startswith("catch-up cannot store source=") for line in lines(caplog, logging.ERROR))


async def test_fault_of_ours_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(HONEST) as server, catching_up(tmp_path, server.enode, wanted=None) as catchup:
        with monkeypatch.context() as faulty:
            faulty.setattr(pages_module, "NewEnvelope", None)
            await catchup.add(*WHOLE)
            await until(lambda: "internal error in catch-up" in caplog.text)
        await settled(catchup)

    assert_stored(tmp_path, THREE_DAYS)


# Giving up


async def test_source_that_fails_so_often_is_given_up_if_that_is_wanted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = replace(settings_for(), give_up_after=3)

    async with (
        serving(by_turns(HONEST, *[cut_at_once] * 5, HONEST)) as server,
        catching_up(tmp_path, server.enode, settings=settings) as catchup,
    ):
        (progress,) = await settled(catchup)
        assert (progress.state, len(server.requests)) == (SourceState.GIVEN_UP, 4)

        await catchup.add(*WHOLE)
        (progress,) = await settled(catchup)
        assert progress.state is SourceState.DONE
        assert len(server.requests) >= 4 + 2 + 14

    assert_stored(tmp_path, THREE_DAYS)


def says(*messages: str) -> Answer:
    """Refuses, with each of these words in turn, the last one ever after."""

    async def answer(asked: Asked) -> None:
        asked.fail(messages[min(asked.number, len(messages)) - 1])

    return answer


NOT_DECRYPTED = "failed to decrypt p2p request"
SEND_AWAY = "too many requests or envelopes in a short time: come back in 0 s"


@pytest.mark.parametrize("wanted", [WHOLE, (NOW - 100, NOW)], ids=["several windows", "one window"])
async def test_source_that_says_the_same_of_all_is_given_up_at_the_second_time(
    tmp_path: Path, wanted: tuple[int, int]
) -> None:
    settings = replace(settings_for(), give_up_after=6)

    async with (
        serving(says(NOT_DECRYPTED)) as server,
        catching_up(tmp_path, server.enode, settings=settings, wanted=wanted) as catchup,
    ):
        (progress,) = await settled(catchup)

        assert (progress.state, progress.problem, progress.is_hopeless) == (SourceState.GIVEN_UP, NOT_DECRYPTED, True)
        assert len(server.requests) == 2
        assert progress.left_s == wanted[1] - wanted[0] + 1
        await catchup.add(*wanted)  # it may have been mended meanwhile
        await settled(catchup)
        assert len(server.requests) == 4


@pytest.mark.parametrize(
    "answer",
    [
        says("rate limit exceeded"),
        says("one", "two", "three", "four", "five", "six"),
        by_turns(says(NOT_DECRYPTED), cut_at_once, says(SEND_AWAY), cut_in_a_page, cut_at_once),
    ],
    ids=["rate limit", "other words", "other failures"],
)
async def test_source_that_may_say_something_else_next_time_is_asked_as_often_as_wanted(
    tmp_path: Path, answer: Answer
) -> None:
    settings = replace(settings_for(), give_up_after=6)

    async with (
        serving(answer) as server,
        catching_up(tmp_path, server.enode, settings=settings) as catchup,
    ):
        (progress,) = await settled(catchup)

    assert (progress.state, progress.failures, progress.is_hopeless) == (SourceState.GIVEN_UP, 6, False)


async def test_source_that_asks_to_come_back_again_and_again_is_not_given_up(tmp_path: Path) -> None:
    settings = replace(settings_for(), give_up_after=3)

    async with (
        serving(by_turns(*[says(SEND_AWAY)] * 10, HONEST)) as server,
        catching_up(tmp_path, server.enode, settings=settings) as catchup,
    ):
        await settled(catchup)

    assert_stored(tmp_path, THREE_DAYS)


async def test_window_that_is_always_refused_does_not_have_the_source_given_up_before_all_others_are_there(
    tmp_path: Path,
) -> None:
    settings = replace(settings_for(), give_up_after=6)

    async def answer(asked: Asked) -> None:
        if asked.request.upper > NOW:
            asked.fail("internal error")
        else:
            await HONEST(asked)

    async with (
        serving(answer) as server,
        catching_up(tmp_path, server.enode, settings=settings) as catchup,
    ):
        (progress,) = await settled(catchup)

    assert progress.state is SourceState.GIVEN_UP
    assert_stored(tmp_path, [envelope for envelope in THREE_DAYS if envelope.created <= NOW - DAY + 1])


async def test_node_that_never_answers_is_given_up_at_the_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "ANSWER_TIMEOUT_S", 0.2)
    settings = replace(settings_for(), give_up_after=6)

    async with (
        serving(silent) as server,
        catching_up(tmp_path, server.enode, settings=settings) as catchup,
    ):
        (progress,) = await settled(catchup)

    assert (progress.state, progress.failures, server.visits) == (SourceState.GIVEN_UP, 2, 2)
    assert "no answer within" in progress.problem


async def first_part_only(asked: Asked) -> None:
    asked.give(THREE_DAYS[:5])


@pytest.mark.parametrize(
    "answer",
    [by_turns(HONEST, silent), first_part_only, by_turns(says("internal error"), silent)],
    ids=["after a page", "in a page", "after a refusal"],
)
async def test_source_that_has_answered_once_may_be_silent_more_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    monkeypatch.setattr(client_module, "ANSWER_TIMEOUT_S", 0.2)
    settings = replace(settings_for(), give_up_after=4)

    async with (
        serving(answer) as server,
        catching_up(tmp_path, server.enode, settings=settings) as catchup,
    ):
        (progress,) = await settled(catchup)

    assert (progress.state, progress.failures) == (SourceState.GIVEN_UP, 4)


async def test_source_is_asked_for_ever_if_nobody_waits(tmp_path: Path) -> None:
    async with (
        serving(by_turns(*[says(NOT_DECRYPTED)] * 10, HONEST)) as server,
        catching_up(tmp_path, server.enode) as catchup,
    ):
        await until(lambda: catchup.snapshot()[0].is_hopeless)
        (progress,) = await settled(catchup)

    assert_stored(tmp_path, THREE_DAYS)
    assert not progress.is_hopeless
