"""mailserver.catchup.source: sources that answer slowly, hang or crash at some place, or allow few requests."""

import asyncio
import itertools
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from mailserver.catchup import pace as pace_module
from mailserver.catchup import source as source_module
from mailserver.catchup.catchup import Catchup
from mailserver.catchup.command import run_once
from mailserver.catchup.ledger import open_ledger
from mailserver.catchup.patience import MIN_SPAN_S
from mailserver.catchup.progress import SourceState
from mailserver.catchup.ranges import WINDOW_S
from mailserver.client import mail_client as client_module
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from tests.catchup.running import WHOLE, assert_stored, catching_up, settled
from tests.catchup.servers import DAY, THREE_DAYS, Answer, Archive, Asked, make_envelopes, serving, settings_for, silent
from tests.mailservers import NOW, Clock
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("quick")]

MONTH = make_envelopes(259, step_s=10_000)
"""Over thirty days."""

OF_MONTH = (NOW - 30 * DAY, NOW)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "ANSWER_TIMEOUT_S", 0.3)


class Slow(Archive):
    """Walks through its history as the deployed server does: it does not come to the end of more than three hours."""

    async def __call__(self, asked: Asked) -> None:
        if asked.request.upper - asked.request.lower <= DAY // 8 + 1:
            await super().__call__(asked)


class Damaged(Archive):
    """Does not answer where one moment lies within the range, unless it is mended."""

    def __init__(self, damage: Answer, moment: int) -> None:
        super().__init__(MONTH, like_go=True)
        self._damage = damage
        self.moment = moment
        self.met: list[int] = []
        self.is_mended = False

    async def __call__(self, asked: Asked) -> None:
        lower, upper = asked.request.lower, asked.request.upper
        if lower <= self.moment <= upper and not self.is_mended:
            self.met.append(upper - lower)
            await self._damage(asked)
        else:
            await super().__call__(asked)


async def crash(asked: Asked) -> None:
    await asked.peer.close()


@pytest.mark.usefixtures("impatient")
async def test_source_that_is_too_slow_for_a_day_gives_all_in_parts(tmp_path: Path) -> None:
    async with (
        serving(Slow(THREE_DAYS, like_go=True)) as server,
        catching_up(tmp_path, server.enode) as catchup,
    ):
        (progress,) = await settled(catchup)

    assert_stored(tmp_path, THREE_DAYS)
    assert (progress.state, progress.ranges, progress.problem) == (SourceState.DONE, 0, "")


async def test_sync_takes_all_of_a_source_that_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "ANSWER_TIMEOUT_S", 1.0)  # if there is no answer twice in a row, it is given up
    async with serving(Slow(THREE_DAYS)) as server, open_store(tmp_path / STORE_FILE) as store:
        (progress,) = await run_once(store, tmp_path, settings_for(server.enode), *WHOLE, clock=Clock())

    assert_stored(tmp_path, THREE_DAYS)
    assert progress.state is SourceState.DONE


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("damage", [silent, crash])
async def test_part_at_which_a_source_hangs_or_crashes_holds_up_nothing_else(tmp_path: Path, damage: Answer) -> None:
    archive = Damaged(damage, NOW - 5 * DAY - 1234)

    async with (
        serving(archive) as server,
        catching_up(tmp_path, server.enode, wanted=OF_MONTH) as catchup,
    ):
        await until(lambda: catchup.snapshot()[0].left_s <= 2 * MIN_SPAN_S)
        await until(lambda: len(archive.met) > 10)
        (progress,) = catchup.snapshot()
        assert progress.stored >= len(MONTH) - 1
        assert progress.problem

        archive.is_mended = True
        (progress,) = await settled(catchup)

    assert_stored(tmp_path, MONTH)
    assert (progress.state, progress.problem) == (SourceState.DONE, "")


async def test_long_damage_is_passed_in_few_steps(tmp_path: Path) -> None:
    """Of ten days, which would be a thousand of the shortest parts."""
    damaged = range(NOW - 15 * DAY, NOW - 5 * DAY)
    older = [envelope for envelope in MONTH if envelope.created < damaged.start - DAY]
    archive = Archive(MONTH)
    met = 0

    async def answer(asked: Asked) -> None:
        nonlocal met
        if asked.request.lower < damaged.stop and damaged.start <= asked.request.upper:
            met += 1
            await asked.peer.close()
        else:
            await archive(asked)

    async with serving(answer) as server, catching_up(tmp_path, server.enode, wanted=OF_MONTH) as catchup:
        await until(lambda: catchup.snapshot()[0].stored >= len(older) + 40)
        met_before = met

    assert met_before < 100


def owes_no_more_than_it_cannot_give(catchup: Catchup) -> bool:
    (progress,) = catchup.snapshot()
    return progress.state is SourceState.WAITING and progress.left_s <= 2 * MIN_SPAN_S


async def test_part_that_was_set_aside_is_not_asked_for_whenever_something_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be what the source crashes at."""
    monkeypatch.setattr(source_module, "ASIDE_S", 3600.0)
    archive = Damaged(crash, NOW - 5 * DAY - 1234)
    clock = Clock()

    async with (
        serving(archive) as server,
        catching_up(tmp_path, server.enode, wanted=OF_MONTH, clock=clock) as catchup,
    ):
        await until(lambda: owes_no_more_than_it_cannot_give(catchup))
        met, asked = len(archive.met), len(server.requests)
        for later in range(1, 6):
            clock.now = NOW + later * DAY
            await catchup.add(NOW + (later - 1) * DAY, NOW + later * DAY)
            await until(lambda: owes_no_more_than_it_cannot_give(catchup))

    assert len(archive.met) == met
    assert len(server.requests) >= asked + 5


@pytest.mark.usefixtures("impatient")
async def test_part_that_was_set_aside_is_so_after_a_restart(tmp_path: Path) -> None:
    archive = Damaged(silent, NOW - 5 * DAY - 1234)

    async with serving(archive) as server:
        async with catching_up(tmp_path, server.enode, wanted=OF_MONTH) as catchup:
            await until(lambda: owes_no_more_than_it_cannot_give(catchup))
        aside = open_ledger(tmp_path).account(server.enode.node_id).aside
        assert any(part.lower <= archive.moment <= part.upper for part in aside)
        archive.is_mended = True
        async with catching_up(tmp_path, server.enode, wanted=None) as catchup:
            await settled(catchup)

    assert_stored(tmp_path, MONTH)
    assert open_ledger(tmp_path).account(server.enode.node_id).pending == []


@pytest.mark.usefixtures("impatient")
async def test_sync_ends_where_a_source_hangs_and_has_all_else(tmp_path: Path) -> None:
    archive = Damaged(silent, NOW - DAY - 1234)

    async with serving(archive) as server, open_store(tmp_path / STORE_FILE) as store:
        (progress,) = await run_once(store, tmp_path, settings_for(server.enode), *OF_MONTH, clock=Clock())

    assert progress.state is SourceState.GIVEN_UP
    assert "no answer within" in progress.problem
    assert progress.stored >= len(MONTH) - 1


async def test_line_that_is_cut_once_costs_no_more_than_a_connection(tmp_path: Path) -> None:
    archive = Archive(MONTH)

    async def answer(asked: Asked) -> None:
        await (crash(asked) if asked.number == 5 else archive(asked))

    async with (
        serving(answer) as server,
        catching_up(tmp_path, server.enode, wanted=OF_MONTH) as catchup,
    ):
        await settled(catchup)

    assert_stored(tmp_path, MONTH)
    assert len(server.requests) == 31 + 1
    assert all(request.upper - request.lower >= WINDOW_S - 1 for request in server.requests[:-1])


class Rationed(Archive):
    """Refuses some requests, with the words of the deployed server."""

    def __init__(self, refusals: Iterable[bool]) -> None:
        super().__init__(THREE_DAYS, max_limit=20, like_go=True)
        self._refusals = iter(refusals)

    async def __call__(self, asked: Asked) -> None:
        if next(self._refusals, False):
            asked.fail("rate limit exceeded")
        else:
            await super().__call__(asked)


async def test_source_that_allows_few_requests_is_asked_more_slowly_on_the_same_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace_module, "MAX_APART_S", 3600.0)
    monkeypatch.setattr(pace_module, "MIN_APART_S", 1e-12)

    async with (
        serving(Rationed(itertools.cycle([True, False]))) as server,
        catching_up(tmp_path, server.enode) as catchup,
    ):
        (progress,) = await settled(catchup)

    assert_stored(tmp_path, THREE_DAYS)
    assert (server.visits, progress.failures) == (1, 0)


async def test_source_that_refuses_the_slowest_pace_is_left_and_asked_again(tmp_path: Path) -> None:
    async with (
        serving(Rationed([True] * 8)) as server,
        catching_up(tmp_path, server.enode, settings=replace(settings_for(), give_up_after=0)) as catchup,
    ):
        await settled(catchup)

    assert_stored(tmp_path, THREE_DAYS)
    assert server.visits > 1


async def test_stop_does_not_wait_for_the_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace_module, "MIN_APART_S", 3600.0)
    monkeypatch.setattr(pace_module, "MAX_APART_S", 3600.0)
    loop = asyncio.get_running_loop()

    async with serving(Rationed(itertools.cycle([True, False]))) as server:
        async with catching_up(tmp_path, server.enode):
            await until(lambda: len(server.requests) > 0)
            began = loop.time()
        took_s = loop.time() - began

    assert took_s < 5
