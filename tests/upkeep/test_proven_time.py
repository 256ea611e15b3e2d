"""mailserver.upkeep.proven_time: what of our clock is believed, on real stores and records; clocks are the test's."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from mailserver.metrics.registry import Metrics
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.store.sqlite.time_record import SqliteTimeRecord, time_file
from mailserver.upkeep.proven_time import (
    MAX_DRIFT_S,
    MIN_ENVELOPES,
    NOTABLE_S,
    SAVE_INTERVAL_S,
    ProvenTime,
)
from mailserver.waku.acceptance import Verdict
from tests.mailservers import NOW
from tests.simulated_time import in_simulated_time, pass_time
from tests.store.samples import make_store, new_envelope

DAY = 86_400.0
YEAR = 365 * DAY


class Machine:
    """A machine with a wall clock, a steady clock, and peers; and the service on it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / STORE_FILE
        self.wall = float(NOW)
        self.steady = 5000.0
        self.metrics = Metrics()
        self.service = self.start()

    def start(self) -> ProvenTime:
        """The service anew."""
        self.service = ProvenTime(
            SqliteTimeRecord(self.path), lambda: self.wall, metrics=self.metrics, steady=lambda: self.steady
        )
        return self.service

    async def begin(self) -> None:
        async with open_store(self.path) as store:
            await self.service.begin(store)

    def pass_time(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds

    def hear(self, *, agreeing: int = 0, very_old: int = 0, from_the_future: int = 0) -> None:
        """Peers have sent so many envelopes."""
        self.metrics.timely.inc(agreeing)
        self.metrics.rejected[Verdict.VERY_OLD].inc(very_old)
        self.metrics.rejected[Verdict.FROM_THE_FUTURE].inc(from_the_future)

    def record(self) -> object:
        return json.loads(time_file(self.path).read_text())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_clock_that_goes_on_evenly_is_believed(machine: Machine) -> None:
    for _ in range(100):
        machine.pass_time(3600)
        machine.service.look()
        assert machine.service.now() == machine.wall


@pytest.mark.parametrize("step", [5.0, 3600.0, DAY, YEAR])
def test_time_that_a_step_forward_adds_has_not_passed(machine: Machine, step: float) -> None:
    machine.wall += step
    machine.pass_time(60)
    machine.service.look()

    assert machine.service.now() == NOW + 60
    assert machine.service.ahead_s == step


@pytest.mark.parametrize("step", [1.0, 5.0, 3600.0, DAY, YEAR])
def test_clock_that_is_stepped_back_is_followed_at_once(machine: Machine, step: float) -> None:
    machine.wall -= step
    machine.pass_time(60)
    machine.service.look()

    assert machine.service.now() == machine.wall


def test_clock_that_is_stepped_forward_and_back_is_believed_again(machine: Machine) -> None:
    for step in (YEAR, -YEAR):
        machine.wall += step
        machine.pass_time(60)
        machine.service.look()

    assert machine.service.now() == NOW + 120


def test_clock_is_believed_once_most_envelopes_agree_with_it(machine: Machine) -> None:
    machine.wall += YEAR
    machine.service.look()
    machine.hear(agreeing=MIN_ENVELOPES + 1, very_old=MIN_ENVELOPES)
    machine.service.look()

    assert machine.service.now() == NOW + YEAR


def test_clock_that_most_envelopes_contradict_is_not_believed(machine: Machine) -> None:
    machine.wall += YEAR
    for _ in range(10):
        machine.service.look()
        machine.hear(agreeing=MIN_ENVELOPES, very_old=MIN_ENVELOPES)

    assert machine.service.now() == NOW


def test_few_envelopes_tell_nothing_however_long_they_take_to_be_enough(machine: Machine) -> None:
    machine.wall += YEAR
    machine.service.look()
    for _ in range(MIN_ENVELOPES - 1):
        machine.hear(agreeing=1)
        machine.service.look()
    assert machine.service.now() == NOW

    machine.hear(agreeing=1)
    machine.service.look()
    assert machine.service.now() == NOW + YEAR


def test_envelopes_from_before_the_step_say_nothing_of_the_clock_after_it(machine: Machine) -> None:
    machine.hear(agreeing=1000)
    machine.wall += YEAR
    machine.service.look()

    assert machine.service.now() == NOW


def test_contradictions_from_before_the_clock_was_set_right_do_not_count(machine: Machine) -> None:
    machine.wall += YEAR
    machine.service.look()
    machine.hear(very_old=10_000)
    machine.service.look()
    machine.hear(very_old=10_000)
    machine.wall -= YEAR - 2 * DAY  # two days have passed meanwhile
    machine.service.look()
    machine.hear(agreeing=MIN_ENVELOPES)
    machine.service.look()

    assert machine.service.now() == NOW + 2 * DAY


def test_clock_that_drifts_is_believed_as_it_drifts(machine: Machine) -> None:
    for _ in range(100):
        machine.wall += MAX_DRIFT_S / 2
        machine.hear(agreeing=MIN_ENVELOPES)
        machine.service.look()
        assert machine.service.now() == machine.wall


def test_peers_set_back_what_was_believed_wrongly(machine: Machine) -> None:
    machine.wall += YEAR
    machine.service.look()
    machine.hear(agreeing=MIN_ENVELOPES)
    machine.service.look()
    machine.wall -= YEAR
    machine.service.look()
    machine.hear(agreeing=MIN_ENVELOPES)
    machine.service.look()
    machine.wall += YEAR

    assert machine.service.now() == NOW


async def test_restart_goes_on_from_the_record(machine: Machine) -> None:
    await machine.service.save()
    machine.wall += YEAR  # nobody knows whether it was off
    machine.steady = 7.0
    machine.start()
    await machine.begin()
    machine.pass_time(60)

    assert machine.service.now() == NOW + 60


async def test_restarts_while_the_clock_is_behind_forget_nothing(machine: Machine) -> None:
    machine.wall -= YEAR
    for _ in range(3):
        await machine.service.save()
        machine.start()
        await machine.begin()
    machine.wall += YEAR

    assert machine.service.now() == NOW


async def test_without_a_record_time_goes_on_from_the_last_reception_that_is_not_in_the_future(
    machine: Machine,
) -> None:
    times = (NOW - 3 * int(DAY), NOW - 2 * int(DAY), NOW + int(YEAR))
    make_store(machine.path, [new_envelope(n)._replace(received=at) for n, at in enumerate(times)])

    await machine.begin()

    assert machine.service.now() == NOW - 2 * DAY


async def test_clock_is_believed_where_there_is_nothing_to_keep(machine: Machine) -> None:
    await machine.begin()

    assert machine.service.now() == NOW


async def test_record_from_the_future_holds_nothing_up(machine: Machine) -> None:
    machine.wall += YEAR
    await machine.start().save()
    machine.wall -= YEAR
    machine.start()
    await machine.begin()

    assert machine.service.now() == NOW
    assert machine.service.ahead_s == -YEAR


@pytest.mark.parametrize("content", ["", "{}", '{"version": 1, "proven_at": -1}', '{"version": 2, "proven_at": 5}'])
async def test_damaged_record_is_told_and_replaced(
    machine: Machine, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    time_file(machine.path).write_text(content)

    await machine.begin()
    await machine.service.save()

    assert "record of the time started anew" in caplog.text
    assert machine.record() == {"version": 1, "proven_at": NOW}


async def test_record_that_cannot_be_written_is_said_once(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    blocked = time_file(machine.path).with_name(f"{time_file(machine.path).name}.tmp")
    (blocked / "full").mkdir(parents=True)
    for _ in range(2):
        await machine.service.save()

    assert caplog.text.count("record of the time not written") == 1


@in_simulated_time
async def test_time_is_looked_at_and_saved_while_it_runs_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(work: Callable[..., object], *arguments: object) -> object:  # simulated time has no threads
        return work(*arguments)

    monkeypatch.setattr(asyncio, "to_thread", at_once)
    path, loop = tmp_path / STORE_FILE, asyncio.get_running_loop()
    service = ProvenTime(
        SqliteTimeRecord(path), lambda: NOW + loop.time(), metrics=Metrics(), steady=lambda: 1000 + loop.time()
    )
    running = asyncio.create_task(service.run())

    def saved() -> float:
        return float(json.loads(time_file(path).read_text())["proven_at"]) - NOW

    await pass_time(10 * SAVE_INTERVAL_S + 1)
    assert saved() >= 9 * SAVE_INTERVAL_S
    await pass_time(20)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert saved() == 10 * SAVE_INTERVAL_S + 21


def test_clock_that_is_ahead_is_told_once_and_when_it_is_believed(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mailserver")
    machine.wall += NOTABLE_S
    machine.service.look()
    assert not caplog.records

    machine.wall += YEAR
    machine.service.look()
    machine.service.look()
    (line,) = [record.message for record in caplog.records]
    assert line.startswith("clock is ahead of the time that has passed")

    machine.hear(agreeing=MIN_ENVELOPES)
    machine.service.look()
    assert caplog.records[-1].message == "clock is believed, pruning goes by it"
