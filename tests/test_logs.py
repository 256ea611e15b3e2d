"""mailserver.logs: one line per event on stderr, in UTC, from the chosen level on."""

import contextlib
import logging
import os
import re
import time
from collections.abc import Iterator

import pytest

from mailserver.config import LOG_LEVELS
from mailserver.logs import set_up_logging

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO   |WARNING|ERROR  |DEBUG  ) .+")


@contextlib.contextmanager
def logging_at(level: str) -> Iterator[None]:
    """Log as the daemon does, in place of pytest's handlers, which stand there while a test runs."""
    root, ours = logging.getLogger(), logging.getLogger("mailserver")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    root.handlers.clear()
    try:
        set_up_logging(level)
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(levels[0])
        ours.setLevel(levels[1])


@pytest.fixture
def far_from_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setitem(os.environ, "TZ", "XYZ-11:30")
        time.tzset()
        yield
    time.tzset()


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def test_event_is_one_line_with_time_level_and_message(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_at("info"):
        logging.getLogger("mailserver.daemon").info("listening port=%d", 30303)

    (line,) = lines(capsys)
    assert LINE.fullmatch(line)
    assert line.endswith(" INFO    listening port=30303")


@pytest.mark.usefixtures("far_from_utc")
def test_time_is_utc_wherever_the_server_stands(capsys: pytest.CaptureFixture[str]) -> None:
    record = logging.makeLogRecord({"name": "mailserver", "levelno": logging.INFO, "levelname": "INFO", "msg": "x"})
    record.created, record.msecs = 1_792_324_800.25, 250

    with logging_at("info"):
        logging.getLogger("mailserver").handle(record)

    assert lines(capsys) == ["2026-10-18T12:00:00.250Z INFO    x"]


@pytest.mark.parametrize("level", LOG_LEVELS)
def test_events_below_the_level_are_left_out(level: str, capsys: pytest.CaptureFixture[str]) -> None:
    with logging_at(level):
        for name in LOG_LEVELS:
            logging.getLogger("mailserver.net").log(logging.getLevelNamesMapping()[name.upper()], "event")

    shown = [line.split()[1].lower() for line in lines(capsys)]
    assert shown == list(LOG_LEVELS[LOG_LEVELS.index(level) :])


def test_libraries_do_not_follow_our_level(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_at("debug"):
        logging.getLogger("aiosqlite").debug("executing INSERT with every envelope")
        logging.getLogger("asyncio").info("using selector")
        logging.getLogger("asyncio").warning("slow callback")

    (line,) = lines(capsys)
    assert line.endswith("WARNING slow callback")
