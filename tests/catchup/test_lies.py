"""mailserver.catchup.source: sources that lie, each beside an honest one."""

import asyncio
import itertools
import logging
import random
from dataclasses import replace
from pathlib import Path

import pytest

from mailserver.catchup import source as source_module
from mailserver.catchup.page_rules import Lie, Wrong
from mailserver.catchup.progress import SourceState
from mailserver.catchup.taking import MAX_WRONG
from mailserver.mail.request import Cursor
from mailserver.waku.bloom import Interest
from mailserver.waku.envelope import Envelope, EnvelopeHash
from tests.catchup.answers import endless_page, lines, worthy
from tests.catchup.running import assert_stored, catching_up, settled, state_of
from tests.catchup.servers import DAY, SMALL, STATUS, THREE_DAYS, Answer, Archive, Asked, serving, settings_for
from tests.mailservers import NEWS, NOW, SPORT, make_envelope
from tests.pairs import digest
from tests.waiting import turns, until

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("quick")]


def wrong_pow(count: int) -> list[Envelope]:
    poor = (make_envelope(number, created=NOW - number) for number in itertools.count())
    return list(itertools.islice((envelope for envelope in poor if envelope.pow() < 0.01), count))


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
        await state_of(catchup, SourceState.SET_ASIDE)
        visits = lying.visits
        await catchup.add_missed(30)
        await turns(20)

        assert catchup.snapshot()[0].state is SourceState.SET_ASIDE
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
        progress = await state_of(catchup, SourceState.SET_ASIDE)
        await state_of(catchup, SourceState.DONE, 1)

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
        progress = await state_of(catchup, SourceState.SET_ASIDE)
        await state_of(catchup, SourceState.DONE, 1)

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
    assert progress.state is SourceState.DONE
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


async def test_liar_is_given_up_at_once_if_that_is_wanted(tmp_path: Path) -> None:
    settings = replace(settings_for(), give_up_after=3)

    async with (
        serving(same_cursor) as server,
        catching_up(tmp_path, server.enode, settings=settings) as catchup,
    ):
        (progress,) = await settled(catchup)

    assert (progress.state, progress.problem, server.visits) == (SourceState.GIVEN_UP, Lie.STANDSTILL.value, 1)
