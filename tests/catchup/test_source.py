"""mailserver.catchup.source: one source, honest or not, there or not; what is stored of it, and when it is retried."""

import asyncio
import itertools
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from mailserver.catchup import page_rules as pages_module
from mailserver.catchup import retry as patience_module
from mailserver.catchup import source as source_module
from mailserver.catchup.page_rules import MIN_PAGE_ENVELOPES, Lie, Wrong
from mailserver.catchup.progress import State
from mailserver.catchup.source import MAX_REFUSALS, MAX_WRONG
from mailserver.client import mail_client as client_module
from mailserver.errors import Rejection
from mailserver.mail.request import Cursor
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.waku.acceptance import Requirements
from mailserver.waku.bloom import Interest, bloom_of
from mailserver.waku.envelope import Envelope, EnvelopeHash, Topic, encode_envelopes, mine
from mailserver.waku.packets import PacketCode
from tests.catchup.running import WHOLE, assert_stored, catching_up, hurry, settled, state_of
from tests.catchup.servers import DAY, STATUS, Answer, Archive, Asked, make_envelopes, place, serving, settings_for
from tests.mailservers import NEWS, NOW, SPORT, Clock, make_envelope
from tests.pairs import digest
from tests.store.samples import change, rows
from tests.waiting import turns, until

pytestmark = pytest.mark.integration

THREE_DAYS = make_envelopes(250, step_s=1000)
"""Over a little less than three days."""

SMALL = 20
"""Envelopes in a page of an archive that gives few at once."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    hurry(monkeypatch)
    caplog.set_level(logging.INFO, "mailserver")


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    """What we have logged; asyncio has its own to say on a busy machine."""
    ours = [record for record in caplog.records if record.name.startswith("mailserver")]
    return [record.message for record in ours if record.levelno == level]


class Backwards(Archive):
    """Answers oldest first, and its cursors mean nothing to others."""

    async def __call__(self, asked: Asked) -> None:
        lower, upper = asked.request.lower, asked.request.upper
        matching = [envelope for envelope in self.envelopes[::-1] if lower <= envelope.created <= upper]
        start = 0 if asked.request.cursor is None else 7_000_000 - asked.request.cursor.created
        asked.give(matching[start : start + SMALL])
        more = start + SMALL < len(matching)
        asked.complete(Cursor(7_000_000 - start - SMALL, EnvelopeHash(random.randbytes(32))) if more else None)


class Hasty(Archive):
    """Answers newest first, and ends a page after every so many seconds of creation times, whatever it has found."""

    def __init__(self, envelopes: Iterable[Envelope], step_s: int) -> None:
        super().__init__(envelopes)
        self._step_s = step_s

    async def __call__(self, asked: Asked) -> None:
        request = asked.request
        upper = request.cursor.created - 1 if request.cursor else request.upper
        lower = max(upper - self._step_s + 1, request.lower)
        asked.give([envelope for envelope in self.envelopes if lower <= envelope.created <= upper])
        asked.complete(Cursor(lower, EnvelopeHash(bytes(32))) if lower > request.lower else None)


# Honest sources


@pytest.mark.parametrize(
    "archive",
    [
        Archive(THREE_DAYS),
        Archive(THREE_DAYS, max_limit=SMALL),
        Archive(THREE_DAYS, max_limit=4),
        Archive(THREE_DAYS, like_go=True),
        Archive(THREE_DAYS, like_go=True, max_limit=SMALL),
        Backwards(THREE_DAYS),
        Hasty(THREE_DAYS, 3600),
        Hasty(THREE_DAYS[::80], 3600),
        Hasty([], 3600),
        Archive([]),
    ],
)
async def test_what_an_honest_source_has_is_stored_byte_for_byte(tmp_path: Path, archive: Archive) -> None:
    async with serving(archive) as server, catching_up(tmp_path, server.enode) as catchup:
        (progress,) = await settled(catchup)

    assert_stored(tmp_path, archive.envelopes)
    assert progress.state is State.DONE
    assert progress.stored == len(archive.envelopes)
    assert (progress.ranges, progress.left_s, dict(progress.wrong), progress.problem) == (0, 0, {}, "")


async def test_seconds_where_windows_meet_are_not_lost(tmp_path: Path) -> None:
    """To a server that leaves the upper bound out, too."""
    seconds = [NOW - day * DAY + second for day in range(3) for second in (-2, -1, 0, 1, 2)]
    envelopes = [make_envelope(number, created=second) for number, second in enumerate(seconds)]

    async with (
        serving(Archive(envelopes, like_go=True)) as server,
        catching_up(tmp_path, server.enode, clock=Clock(NOW + 2), wanted=(NOW - 3 * DAY, NOW + 2)) as catchup,
    ):
        await settled(catchup)

    assert_stored(tmp_path, envelopes)


async def test_requests_are_windows_of_a_day_newest_first_within_the_range(tmp_path: Path) -> None:
    async with serving(Archive(THREE_DAYS)) as server, catching_up(tmp_path, server.enode) as catchup:
        await settled(catchup)

    uppers = [request.upper for request in server.requests]
    assert uppers == sorted(uppers, reverse=True)
    assert (server.requests[0].upper, server.requests[-1].lower) == (NOW + 1, NOW - 3 * DAY)
    assert all(request.upper - request.lower <= DAY for request in server.requests)
    assert server.visits == 1


async def test_only_what_was_asked_for_is_taken(tmp_path: Path) -> None:
    wanted = (NOW - 1000, NOW - 500)

    async with (
        serving(Archive(make_envelopes(2000))) as server,
        catching_up(tmp_path, server.enode, wanted=wanted) as catchup,
    ):
        await settled(catchup)

    assert_stored(tmp_path, make_envelopes(502, first=499))  # and the second by which requests overlap


async def test_reception_is_by_our_clock(tmp_path: Path) -> None:
    clock = Clock(NOW + 5.9)

    async with (
        serving(Archive(THREE_DAYS)) as server,
        catching_up(tmp_path, server.enode, clock=clock) as catchup,
    ):
        await settled(catchup)

    assert rows(tmp_path / STORE_FILE, "SELECT DISTINCT received FROM envelopes") == [(NOW + 5,)]


async def test_what_the_store_has_is_left_as_it_is(tmp_path: Path) -> None:
    held = THREE_DAYS[::3]

    async with (
        serving(Archive(THREE_DAYS, max_limit=SMALL)) as server,
        catching_up(tmp_path, server.enode, held=held) as catchup,
    ):
        (progress,) = await settled(catchup)

    assert_stored(tmp_path, THREE_DAYS)
    assert progress.stored == len(THREE_DAYS) - len(held)
    received = rows(tmp_path / STORE_FILE, "SELECT count(*) FROM envelopes WHERE received = ?", NOW - DAY)
    assert received == [(len(held),)]


async def test_repeated_envelopes_are_stored_once(tmp_path: Path) -> None:
    async def answer(asked: Asked) -> None:
        asked.give([envelope for envelope in THREE_DAYS[:50] for _ in range(3)], per_packet=40)
        asked.complete()

    async with (
        serving(answer) as server,
        catching_up(tmp_path, server.enode, wanted=(NOW - DAY + 1, NOW)) as catchup,
    ):
        (progress,) = await settled(catchup)

    assert_stored(tmp_path, THREE_DAYS[:50])
    assert (progress.fetched, progress.stored) == (150, 50)


@pytest.mark.parametrize("interest", [Interest(topics=frozenset({SPORT})), Interest(bloom=bloom_of([SPORT]))])
async def test_archive_of_some_topics_asks_for_those(tmp_path: Path, interest: Interest) -> None:
    sport = make_envelopes(30, first=1000, topic=SPORT)
    settings = settings_for(interest=interest)

    async with (
        serving(Archive([*THREE_DAYS, *sport])) as server,
        catching_up(tmp_path, server.enode, settings=settings) as catchup,
    ):
        (progress,) = await settled(catchup)

    assert {request.interest for request in server.requests} == {interest}
    assert_stored(tmp_path, sport)
    assert dict(progress.wrong) == {}


async def test_topics_that_only_a_bloom_filter_can_name_are_sorted_out_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages_module, "MAX_REQUEST_TOPICS", 1)
    alike = Topic(SPORT[:2] + NEWS[2:])  # its bits are among those of the two
    interest = Interest(topics=frozenset({SPORT, NEWS}))
    assert Interest(bloom=bloom_of([SPORT, NEWS])).wants(alike)
    others = make_envelopes(200, first=5000, topic=alike)

    async with (
        serving(Archive([*THREE_DAYS, *others])) as server,
        catching_up(tmp_path, server.enode, settings=settings_for(interest=interest)) as catchup,
    ):
        (progress,) = await settled(catchup)

    assert_stored(tmp_path, THREE_DAYS)
    assert progress.state is State.DONE


async def test_long_envelopes_come_in_smaller_pages(tmp_path: Path) -> None:
    envelopes = [make_envelope(number, created=NOW - number, data_bytes=900_000) for number in range(24)]

    async with (
        serving(Archive(envelopes)) as server,
        catching_up(tmp_path, server.enode, wanted=(NOW - DAY + 1, NOW)) as catchup,
    ):
        (progress,) = await settled(catchup)

    assert_stored(tmp_path, envelopes)
    assert server.requests[-1].limit == MIN_PAGE_ENVELOPES
    assert progress.fetched == len(envelopes)


async def test_next_page_is_asked_for_while_the_last_one_is_stored(tmp_path: Path) -> None:
    """Seen from the source: its second request comes although the first page cannot be stored."""
    async with (
        serving(Archive(THREE_DAYS, max_limit=SMALL)) as server,
        catching_up(tmp_path, server.enode, wanted=None) as catchup,
    ):
        change(
            tmp_path / STORE_FILE, "CREATE TRIGGER fail BEFORE INSERT ON envelopes BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
        await catchup.add(*WHOLE)
        await until(lambda: len(server.requests) > 1)

        assert server.requests[1].cursor is not None


# Proof of work of requests


class Strict(Archive):
    """Asks for more proof of work than it announces."""

    async def __call__(self, asked: Asked) -> None:
        if asked.pow < 0.02:
            asked.fail(Rejection.POW_TOO_LOW.value)
        else:
            await super().__call__(asked)


async def test_requests_have_the_work_of_the_setting(tmp_path: Path) -> None:
    async with (
        serving(Strict(THREE_DAYS)) as server,
        catching_up(tmp_path, server.enode, settings=replace(settings_for(), request_pow=0.02)) as catchup,
    ):
        (progress,) = await settled(catchup)

    assert (progress.state, progress.stored) == (State.DONE, len(THREE_DAYS))


async def test_refusal_for_too_little_work_names_the_flag_that_raises_it(tmp_path: Path) -> None:
    settings = replace(settings_for(), request_pow=0.000001, give_up_after=1)

    async with (
        serving(Strict(THREE_DAYS)) as server,
        catching_up(tmp_path, server.enode, settings=settings) as catchup,
    ):
        (progress,) = await settled(catchup)

    problem = f"{Rejection.POW_TOO_LOW.value} (it was sealed with 0.000001); give more by --request-pow"
    assert (progress.state, progress.problem) == (State.GIVEN_UP, problem)


async def test_more_work_than_a_source_may_ask_for_is_done_where_the_operator_says_so(tmp_path: Path) -> None:
    """The source announces more than is done without a word of the operator."""
    status = replace(STATUS, pow_requirement=1.5)
    envelopes = THREE_DAYS[:3]

    async with serving(Archive(envelopes), status=status) as server:
        (tmp_path / "without").mkdir()
        async with catching_up(
            tmp_path / "without", server.enode, settings=replace(settings_for(), give_up_after=1)
        ) as it:
            (without,) = await settled(it)
        settings = replace(settings_for(), request_pow=1.5)
        async with catching_up(tmp_path, server.enode, settings=settings) as it:
            (asked,) = await settled(it)

    assert (without.state, without.problem) == (State.GIVEN_UP, "it asks for a proof of work of 1.5 for a request")
    assert asked.state is State.DONE


# Lies. Each liar is asked together with an honest source.


def wrong_pow(count: int) -> list[Envelope]:
    poor = (make_envelope(number, created=NOW - number) for number in itertools.count())
    return list(itertools.islice((envelope for envelope in poor if envelope.pow() < 0.01), count))


def worthy(count: int) -> list[Envelope]:
    return [mine(NOW - n + 50, 50, NEWS, digest(f"worthy {n}"), target=0.01, first_nonce=n) for n in range(count)]


def gives(envelopes: list[Envelope]) -> Answer:
    async def answer(asked: Asked) -> None:
        asked.give(envelopes)
        asked.complete()

    return answer


async def out_of_range(asked: Asked) -> None:
    lower = asked.request.lower
    asked.give([make_envelope(number, created=lower - 1 - number) for number in range(MAX_WRONG + 1)])
    asked.complete()


async def wrong_topic(asked: Asked) -> None:
    asked.give([make_envelope(number, created=asked.request.lower, topic=SPORT) for number in range(MAX_WRONG + 1)])
    asked.complete()


async def little_by_little(asked: Asked) -> None:
    asked.give([make_envelope(asked.number, created=1)])
    asked.complete(Cursor(asked.number, EnvelopeHash(digest(str(asked.number)))))


async def circular_cursors(asked: Asked) -> None:
    """Three pages, again and again."""
    page = asked.request.cursor.created if asked.request.cursor else 0
    asked.give(THREE_DAYS[10 * page : 10 * page + 10])
    asked.complete(Cursor((page + 1) % 3, EnvelopeHash(digest("circle"))))


async def same_cursor(asked: Asked) -> None:
    asked.give(THREE_DAYS[:10])
    asked.complete(Cursor(5, EnvelopeHash(digest("same"))))


async def endless_empty_pages(asked: Asked) -> None:
    asked.complete(Cursor(asked.number, EnvelopeHash(digest(str(asked.number)))))


async def endless_repetition(asked: Asked) -> None:
    asked.give(random.Random(asked.number).sample(THREE_DAYS[:80], 40))
    asked.complete(Cursor(asked.number, EnvelopeHash(digest(str(asked.number)))))


async def endless_page(asked: Asked) -> None:
    """Goes on and on, as fast as it is read."""
    packet = encode_envelopes([envelope.raw for envelope in THREE_DAYS[:80]] * 100)
    while not asked.peer.writer.is_closing():
        asked.peer.say(PacketCode.P2P_MESSAGE, packet)
        await asked.peer.writer.drain()


async def page_of_8192(asked: Asked) -> None:
    asked.give([THREE_DAYS[0]] * 8192, per_packet=8192)
    asked.complete()


LIARS: list[tuple[Answer, Lie]] = [
    (out_of_range, Lie.WRONG_ENVELOPES),
    (wrong_topic, Lie.WRONG_ENVELOPES),
    (little_by_little, Lie.STANDSTILL),
    (circular_cursors, Lie.STANDSTILL),
    (same_cursor, Lie.STANDSTILL),
    (endless_empty_pages, Lie.STANDSTILL),
    (endless_repetition, Lie.STANDSTILL),
    (endless_page, Lie.ENDLESS_PAGE),
    (page_of_8192, Lie.ENDLESS_PAGE),
]


async def test_liar_is_left_alone_also_when_it_owes_more_by_itself(tmp_path: Path) -> None:
    async with (
        serving(same_cursor, name="liar") as lying,
        catching_up(tmp_path, lying.enode) as catchup,
    ):
        await state_of(catchup, State.SET_ASIDE)
        visits = lying.visits
        await catchup.add_missed(30)
        await turns(20)

        assert catchup.snapshot()[0].state is State.SET_ASIDE
        assert lying.visits == visits


@pytest.mark.parametrize(("liar", "lie"), LIARS, ids=[liar.__name__ for liar, _ in LIARS])
async def test_liar_is_left_alone_and_what_the_honest_source_has_is_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, liar: Answer, lie: Lie
) -> None:
    settings = settings_for(interest=Interest(topics=frozenset({NEWS})))

    async with (
        serving(liar, name="liar") as lying,
        serving(Archive(THREE_DAYS, max_limit=SMALL)) as honest,
        catching_up(tmp_path, lying.enode, honest.enode, settings=settings) as catchup,
    ):
        progress = await state_of(catchup, State.SET_ASIDE)
        await state_of(catchup, State.DONE, 1)

    assert_stored(tmp_path, THREE_DAYS)
    assert progress.problem == lie.value
    assert progress.ranges > 0
    (line,) = lines(caplog, logging.WARNING)
    assert line.startswith(f"catch-up leaves a source alone source={progress.source} reason={lie.value!r} wrong=")


async def test_source_that_gives_envelopes_below_its_own_requirement_lies(tmp_path: Path) -> None:
    settings = settings_for(min_pow=0.01)

    async with (
        serving(gives(wrong_pow(MAX_WRONG + 1)), status=replace(STATUS, pow_requirement=0.01)) as lying,
        serving(Archive(worthy(30)), name="honest") as honest,
        catching_up(tmp_path, lying.enode, honest.enode, settings=settings) as catchup,
    ):
        progress = await state_of(catchup, State.SET_ASIDE)
        await state_of(catchup, State.DONE, 1)

    assert_stored(tmp_path, worthy(30))
    assert progress.wrong == {Wrong.LOW_POW: MAX_WRONG + 1}


async def test_source_that_asks_the_world_for_less_work_is_no_liar(tmp_path: Path) -> None:
    poor = wrong_pow(3 * MAX_WRONG)
    settings = settings_for(min_pow=0.01)

    async with (
        serving(Archive([*poor, *worthy(30)], max_limit=SMALL)) as server,
        catching_up(tmp_path, server.enode, settings=settings) as catchup,
    ):
        (progress,) = await settled(catchup)

    assert_stored(tmp_path, worthy(30))
    assert progress.wrong == {Wrong.LOW_POW: len(poor)}


async def test_some_wrong_envelopes_are_dropped_and_counted(tmp_path: Path) -> None:
    wrong = [make_envelope(number, created=1) for number in range(MAX_WRONG - 2)]
    early = [make_envelope(number, created=NOW + 11) for number in (1, 2)]

    async with (
        serving(gives([*wrong, *early, *THREE_DAYS[:20]])) as server,
        catching_up(tmp_path, server.enode, wanted=(NOW - DAY + 11, NOW + 10)) as catchup,
    ):
        (progress,) = await settled(catchup)

    assert_stored(tmp_path, THREE_DAYS[:20])
    assert progress.state is State.DONE
    assert progress.wrong == {Wrong.OUT_OF_RANGE: MAX_WRONG - 2, Wrong.FROM_THE_FUTURE: 2}


async def test_liar_is_asked_again_after_an_hour_from_the_beginning_of_its_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert source_module.SET_ASIDE_S == 3600
    monkeypatch.setattr(source_module, "SET_ASIDE_S", 0.01)
    honest = Archive(THREE_DAYS, max_limit=SMALL)
    converted = asyncio.Event()

    async def answer(asked: Asked) -> None:
        if not converted.is_set():
            await same_cursor(asked)
        else:
            await honest(asked)

    async with serving(answer) as server, catching_up(tmp_path, server.enode) as catchup:
        await until(lambda: server.visits > 2)
        converted.set()
        await settled(catchup)

    assert_stored(tmp_path, THREE_DAYS)


# Failures


def by_turns(*answers: Answer) -> Answer:
    """Each request is answered by the next of these, the last one answers all others."""

    async def answer(asked: Asked) -> None:
        await answers[min(asked.number, len(answers)) - 1](asked)

    return answer


HONEST = Archive(THREE_DAYS, max_limit=SMALL)


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


async def refuse(asked: Asked) -> None:
    asked.fail("no \x1b[31mroom")


async def silent(asked: Asked) -> None:
    pass


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
    assert (progress.state, progress.problem) == (State.DONE, "")
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
    monkeypatch.setattr(source_module, "PAGE_TIMEOUT_S", 0.2)

    async def drip(asked: Asked) -> None:
        while not asked.peer.writer.is_closing():
            asked.give(THREE_DAYS[:1])
            await asyncio.sleep(0.02)

    async with serving(drip) as server, catching_up(tmp_path, server.enode) as catchup:
        progress = await state_of(catchup, State.SET_ASIDE)

    assert progress.problem == Lie.ENDLESS_PAGE.value
    assert [request.limit for request in server.requests] == [1000, 125, 15, MIN_PAGE_ENVELOPES]


async def test_source_that_is_down_is_tried_until_it_is_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(HONEST) as gone:
        pass

    async with catching_up(tmp_path, gone.enode) as catchup:
        await until(lambda: len(lines(caplog, logging.INFO)) >= 10)
        (progress,) = catchup.snapshot()

        assert progress.state in (State.WAITING, State.FETCHING)
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
        progress = await state_of(catchup, State.WAITING)
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
    monkeypatch.setattr(patience_module, "MAX_BACKOFF_S", 3600.0)
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
        progress = await state_of(catchup, State.WAITING)

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
            faulty.setattr(source_module, "NewEnvelope", None)
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
        assert (progress.state, len(server.requests)) == (State.GIVEN_UP, 4)

        await catchup.add(*WHOLE)
        (progress,) = await settled(catchup)
        assert (progress.state, len(server.requests)) == (State.DONE, 4 + 2 + 14)

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

        assert (progress.state, progress.problem, progress.is_hopeless) == (State.GIVEN_UP, NOT_DECRYPTED, True)
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

    assert (progress.state, progress.failures, progress.is_hopeless) == (State.GIVEN_UP, 6, False)


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

    assert progress.state is State.GIVEN_UP
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

    assert (progress.state, progress.failures, server.visits) == (State.GIVEN_UP, 2, 2)
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

    assert (progress.state, progress.failures) == (State.GIVEN_UP, 4)


async def test_source_is_asked_for_ever_if_nobody_waits(tmp_path: Path) -> None:
    async with (
        serving(by_turns(*[says(NOT_DECRYPTED)] * 10, HONEST)) as server,
        catching_up(tmp_path, server.enode) as catchup,
    ):
        await until(lambda: catchup.snapshot()[0].is_hopeless)
        (progress,) = await settled(catchup)

    assert_stored(tmp_path, THREE_DAYS)
    assert not progress.is_hopeless


async def test_liar_is_given_up_at_once_if_that_is_wanted(tmp_path: Path) -> None:
    settings = replace(settings_for(), give_up_after=3)

    async with (
        serving(same_cursor) as server,
        catching_up(tmp_path, server.enode, settings=settings) as catchup,
    ):
        (progress,) = await settled(catchup)

    assert (progress.state, progress.problem, server.visits) == (State.GIVEN_UP, Lie.STANDSTILL.value, 1)


# Settings that change


async def test_rules_of_the_archive_hold_from_the_next_page_on(tmp_path: Path) -> None:
    """What was asked for before is no lie, though it is not wanted any more."""
    sport = [make_envelope(number, created=NOW - (number - 1000) * 1000, topic=SPORT) for number in range(1000, 1250)]
    settings = settings_for()
    news = make_envelopes(2 * MAX_WRONG)
    archive = Archive([*sport, *news])
    only_sport = Requirements(0.0, Interest(topics=frozenset({SPORT})))

    async def answer(asked: Asked) -> None:
        if asked.number == 1:
            settings.acceptance.change(only_sport, NOW)
        await archive(asked)

    async with serving(answer) as server, catching_up(tmp_path, server.enode, settings=settings) as catchup:
        (progress,) = await settled(catchup)

    assert [request.interest for request in server.requests[1:]] == [only_sport.interest] * 3
    assert_stored(tmp_path, [*sport, *news])
    assert (progress.state, dict(progress.wrong)) == (State.DONE, {})


async def test_length_and_work_that_the_archive_asks_for_are_those_of_the_moment(tmp_path: Path) -> None:
    settings = settings_for()
    long = [make_envelope(number, created=NOW - number, data_bytes=500) for number in range(2 * MAX_WRONG)]
    settings.acceptance.change(Requirements(0.01, max_envelope_bytes=200), NOW)

    async with (
        serving(Archive([*long, *worthy(30)])) as server,
        catching_up(tmp_path, server.enode, settings=settings) as catchup,
    ):
        (progress,) = await settled(catchup)

    assert_stored(tmp_path, worthy(30))
    assert progress.state is State.DONE  # the request cannot say how long, and how dear: it is no lie
    assert progress.wrong == {Wrong.OVERSIZE: len(long)}


# Ending


async def deaf(asked: Asked) -> None:
    """Says nothing, and does not even notice that it is left."""
    asked.peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await asyncio.sleep(60)


@pytest.mark.parametrize("answer", [HONEST, silent, deaf, refuse, endless_page])
async def test_stop_ends_it_within_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Callable[[Asked], Awaitable[None]]
) -> None:
    monkeypatch.undo()  # the times as they are

    async with serving(answer) as server:
        async with catching_up(tmp_path, server.enode) as catchup:
            await until(lambda: len(server.requests) > 0)
            catchup.stop()
            began = time.monotonic()
        took = time.monotonic() - began

    assert took < 1


def test_made_up_envelopes_are_what_they_should_be() -> None:
    assert all(envelope.pow() >= 0.01 for envelope in worthy(30))
    assert place(THREE_DAYS[0]) > place(THREE_DAYS[-1])
