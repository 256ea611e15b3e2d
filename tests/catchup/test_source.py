"""mailserver.catchup.source: honest sources, proof of work of requests, settings that change, and ending."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from mailserver.catchup import page_rules as pages_module
from mailserver.catchup.page_rules import MIN_PAGE_ENVELOPES, Wrong
from mailserver.catchup.progress import SourceState
from mailserver.catchup.taking import MAX_WRONG
from mailserver.errors import Rejection
from mailserver.mail.request import Cursor
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.waku.acceptance import Requirements
from mailserver.waku.bloom import Interest, bloom_of
from mailserver.waku.envelope import Envelope, EnvelopeHash, Topic
from tests.catchup.answers import HONEST, endless_page, refuse, worthy
from tests.catchup.running import WHOLE, assert_stored, catching_up, settled
from tests.catchup.servers import (
    DAY,
    SMALL,
    STATUS,
    THREE_DAYS,
    Archive,
    Asked,
    make_envelopes,
    place,
    serving,
    settings_for,
    silent,
)
from tests.mailservers import NEWS, NOW, SPORT, Clock, make_envelope
from tests.store.samples import change, rows
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("quick")]


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
    assert progress.state is SourceState.DONE
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
    assert progress.state is SourceState.DONE


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

    assert (progress.state, progress.stored) == (SourceState.DONE, len(THREE_DAYS))


async def test_refusal_for_too_little_work_names_the_flag_that_raises_it(tmp_path: Path) -> None:
    settings = replace(settings_for(), request_pow=0.000001, give_up_after=1)

    async with (
        serving(Strict(THREE_DAYS)) as server,
        catching_up(tmp_path, server.enode, settings=settings) as catchup,
    ):
        (progress,) = await settled(catchup)

    problem = f"{Rejection.POW_TOO_LOW.value} (it was sealed with 0.000001); give more by --request-pow"
    assert (progress.state, progress.problem) == (SourceState.GIVEN_UP, problem)


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

    assert (without.state, without.problem) == (
        SourceState.GIVEN_UP,
        "it asks for a proof of work of 1.5 for a request",
    )
    assert asked.state is SourceState.DONE


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
    assert (progress.state, dict(progress.wrong)) == (SourceState.DONE, {})


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
    assert progress.state is SourceState.DONE  # the request cannot say how long, and how dear: it is no lie
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
