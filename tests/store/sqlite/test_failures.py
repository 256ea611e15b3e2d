"""mailserver.store.sqlite.failures: failures are remembered for a while, and said once."""

import logging
import sqlite3
from pathlib import Path

import pytest

from mailserver.store.engine.failures import LOG_INTERVAL_S, REMEMBERED_S
from mailserver.store.sqlite.failures import StoreFailures
from mailserver.store.sqlite.schema import STORE_FILE
from tests.mailservers import Clock


def failure(code: int, text: str = "it failed") -> sqlite3.Error:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


FULL = failure(sqlite3.SQLITE_FULL, "database or disk is full")


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture
def failures(tmp_path: Path, clock: Clock) -> StoreFailures:
    return StoreFailures(tmp_path / STORE_FILE, clock)


def test_failure_to_store_counts_until_something_is_stored(failures: StoreFailures) -> None:
    assert failures.writing == ""

    failures.not_stored(3, FULL)
    assert failures.writing == "database or disk is full"

    failures.stored()
    assert failures.writing == ""


def test_failure_that_nobody_repeats_is_forgotten(failures: StoreFailures, clock: Clock) -> None:
    failures.not_stored(3, FULL)

    clock.now += REMEMBERED_S

    assert failures.writing == ""


def test_change_is_told_when_it_begins_and_when_it_is_over(failures: StoreFailures, clock: Clock) -> None:
    told: list[tuple[str, str]] = []
    failures.tell(lambda: told.append((failures.writing, failures.damage)))

    for _ in range(3):
        failures.not_stored(2, FULL)
    failures.stored()
    failures.stored()
    for _ in range(2):
        failures.checkpointed(FULL)
        failures.not_read(failure(sqlite3.SQLITE_CORRUPT, "malformed"))

    full = "database or disk is full"
    assert told[:3] == [(full, ""), ("", ""), ("", f"its log cannot be written back: {full}")]
    assert len(told) == 4


def test_failure_that_was_forgotten_is_told_again(failures: StoreFailures, clock: Clock) -> None:
    told: list[str] = []
    failures.tell(lambda: told.append(failures.writing))
    failures.not_stored(2, FULL)
    clock.now += REMEMBERED_S

    failures.not_stored(2, FULL)

    assert told == ["database or disk is full"] * 2


def test_store_that_is_lost_stays_so_whatever_else_happens(
    failures: StoreFailures, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        failures.lost("it was removed")
    failures.stored()
    clock.now += REMEMBERED_S

    assert (failures.writing, failures.is_lost) == ("it was removed", True)
    assert caplog.messages == ["store lost, nothing is stored until a restart error='it was removed'"]


def test_failures_are_one_line_a_minute(
    failures: StoreFailures, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(100):
        failures.not_stored(2, FULL)
    clock.now += LOG_INTERVAL_S
    failures.not_stored(2, FULL)
    failures.stored()
    failures.stored()

    assert [record.getMessage() for record in caplog.records] == [
        "store write failed envelopes=2 error='database or disk is full'",
        "store write failed envelopes=202 error='database or disk is full'",
        "store can be written again envelopes=202",
    ]


def test_other_cause_is_another_line(failures: StoreFailures, caplog: pytest.LogCaptureFixture) -> None:
    failures.not_stored(1, FULL)
    failures.not_stored(1, failure(sqlite3.SQLITE_IOERR, "disk I/O error"))

    assert len(caplog.records) == 2
    assert "disk I/O error: check the disk" in caplog.text


def test_what_could_not_be_read_is_damage_from_then_on(failures: StoreFailures) -> None:
    failures.not_read(failure(sqlite3.SQLITE_INTERRUPT))  # the client had gone away
    assert failures.damage == ""

    failures.not_read(failure(sqlite3.SQLITE_CORRUPT, "database disk image is malformed"))

    assert failures.damage == ("some of it cannot be read: database disk image is malformed; run waku-mailserver check")


def test_log_that_is_not_written_back_is_damage_until_it_is(
    failures: StoreFailures, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        failures.checkpointed(failure(sqlite3.SQLITE_IOERR, "disk I/O error"))
    assert failures.damage.startswith("its log cannot be written back: disk I/O error")

    failures.checkpointed(None)

    assert failures.damage == ""
