"""mailserver.app.logs: a line for each event on stderr, as text or JSON, from a level on; floods; recent errors."""

import ast
import contextlib
import json
import logging
import os
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.app import logs
from mailserver.app.config import LOG_LEVELS
from mailserver.app.logs import LogFormat, RecentErrors, log_failure, recent_errors, set_up_logging

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO   |WARNING|ERROR  |DEBUG  |CRITICAL) .+")
OURS = logging.getLogger("mailserver.app.daemon")
NOON = 1_792_324_800.25


@contextlib.contextmanager
def logging_at(level: str, form: LogFormat = LogFormat.TEXT, **more: Any) -> Iterator[None]:
    """Log as the daemon does, in place of pytest's handlers, which stand there while a test runs."""
    root, ours = logging.getLogger(), logging.getLogger("mailserver")
    handlers, levels, hook = list(root.handlers), (root.level, ours.level), sys.excepthook
    root.handlers.clear()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            set_up_logging(level, form, **more)
            yield
            logging.captureWarnings(capture=False)
    finally:
        root.handlers[:] = handlers
        root.setLevel(levels[0])
        ours.setLevel(levels[1])
        sys.excepthook = hook


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
    return captured.err.split("\n")[:-1]


def objects(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines(capsys)]


def record(template: str, *values: object, at: float = NOON, level: int = logging.ERROR) -> logging.LogRecord:
    """A record of ours at a moment."""
    made = logging.LogRecord(OURS.name, level, "", 0, template, values, None)
    made.created, made.msecs = at, at % 1 * 1000
    return made


def text_of(template: str, *values: object) -> str:
    """What stands behind time and level."""
    return logs.TextFormatter().format(record(template, *values))[33:]


def object_of(template: str, *values: object) -> dict[str, Any]:
    """What stands behind time, level and logger."""
    read = json.loads(logs.JsonFormatter().format(record(template, *values)))
    return {name: value for name, value in read.items() if name not in ("time", "level", "logger")}


def fail(message: str) -> None:
    raise ZeroDivisionError(message)


# Text


def test_event_is_one_line_with_time_level_and_message(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_at("info"):
        OURS.info("listening port=%d", 30303)

    (line,) = lines(capsys)
    assert LINE.fullmatch(line)
    assert line.endswith(" INFO    listening port=30303")


@pytest.mark.usefixtures("far_from_utc")
@pytest.mark.parametrize("form", LogFormat)
def test_time_is_utc_wherever_the_server_stands(form: LogFormat, capsys: pytest.CaptureFixture[str]) -> None:
    with logging_at("info", form):
        OURS.handle(record("stopped"))

    (line,) = lines(capsys)
    if form is LogFormat.TEXT:
        assert line == "2026-10-18T12:00:00.250Z ERROR   stopped"
    else:
        assert json.loads(line)["time"] == "2026-10-18T12:00:00.250Z"


@pytest.mark.parametrize("level", LOG_LEVELS)
def test_events_below_the_level_are_left_out(level: str, capsys: pytest.CaptureFixture[str]) -> None:
    with logging_at(level):
        for name in LOG_LEVELS:
            logging.getLogger("mailserver.net").log(logging.getLevelNamesMapping()[name.upper()], "event")

    shown = [line.split()[1].lower() for line in lines(capsys)]
    assert shown == list(LOG_LEVELS[LOG_LEVELS.index(level) :])


@pytest.mark.parametrize(
    ("template", "value", "shown"),
    [
        ("peer left peer=%s", "7d2f11aa@[::1]:30303", "7d2f11aa@[::1]:30303"),
        ("peer left cause=%r", "timeout", "'timeout'"),
        ("peer left cause=%s", "no answer", "'no answer'"),
        ("peer left cause=%s", "", "''"),
        ("peer left cause=%s", "a=b", "'a=b'"),
        ("peer left cause=%s", 'say "no"', "'say \"no\"'"),
        ("peer left cause=%s", "it's", '"it\'s"'),
        ("peer left cause=%s", "a\\b", r"'a\\b'"),
        ("peer left cause=%s", "x\n2026-10-18T12:00:00.250Z INFO", r"'x\n2026-10-18T12:00:00.250Z INFO'"),
        ("peer left cause=%s", "\x1b[2J\u202e\x9b\u2028", r"'\x1b[2J\u202e\x9b\u2028'"),
        ("peer left cause=%r", "données", "'données'"),
        ("peer left seconds=%.1f", 3, "3.0"),
        ("peer left pow=%g", 0.000002, "2e-06"),
        ("peer left error=%s", None, "None"),
    ],
)
def test_value_that_is_no_plain_word_is_quoted(template: str, value: object, shown: str) -> None:
    assert text_of(template, value) == template.partition("%")[0] + shown


@given(st.text(), st.sampled_from(["%s", "%r"]))
def test_no_words_of_others_make_another_line_or_field(words: str, spec: str) -> None:
    line = text_of(f"peer connected client={spec} port=%d", words, 7)

    assert line.isprintable()
    shown = re.fullmatch(r"peer connected client=('.*'|\".*\"|[^\s'\"=\\]+) port=7", line)
    assert shown
    assert (shown[1] if shown[1][0] not in "'\"" else ast.literal_eval(shown[1])) == words


def test_words_without_end_are_cut() -> None:
    assert len(text_of("peer left cause=%s", "x" * 100_000)) < logs.MAX_VALUE_CHARS + 20
    assert object_of("peer left cause=%s", "x" * 100_000)["cause"] == "x" * (logs.MAX_VALUE_CHARS - 2) + ".."


def test_each_line_of_a_trace_says_when_and_that_it_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_at("info"):
        try:
            fail("a\n2026-10-18T12:00:00.250Z INFO    forged\x1b[2J")
        except ZeroDivisionError:
            OURS.exception("internal error peer=%s", "7d2f11aa")

    event, *trace = lines(capsys)
    assert event.endswith(" ERROR   internal error peer=7d2f11aa")
    assert all(line.startswith(f"{event[:32]} | ") and line.isprintable() for line in trace)
    assert trace[0].endswith("| Traceback (most recent call last):")
    assert trace[-1].endswith(r"ERROR   | '2026-10-18T12:00:00.250Z INFO    forged\x1b[2J'")


# JSON


def test_event_is_an_object_with_its_fields_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_at("info", LogFormat.JSON):
        OURS.info("caught up source=%s pages=%d seconds=%.1f", "7d2f11aa@a:1", 3, 1.25)

    (line,) = objects(capsys)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert list(line.items()) == [
        ("level", "INFO"),
        ("logger", "mailserver.app.daemon"),
        ("event", "caught up"),
        ("source", "7d2f11aa@a:1"),
        ("pages", 3),
        ("seconds", 1.2),
    ]


@pytest.mark.parametrize(
    ("spec", "value", "typed"),
    [
        ("%s", True, True),
        ("%s", None, None),
        ("%s", 5, 5),
        ("%s", 0.5, 0.5),
        ("%s", float("inf"), "inf"),
        ("%.1f", float("nan"), "nan"),
        ("%.0f", 90_061.2, 90_061),
        ("%d", -3.7, -3),
        ("%g", 0.000002, 0.000002),
        ("%r", "it's\n", "it's\n"),
        ("%s", ("a", 1), "('a', 1)"),
    ],
)
def test_values_keep_their_types(spec: str, value: object, typed: object) -> None:
    shown = object_of(f"event value={spec}", value)["value"]

    assert (shown, type(shown)) == (typed, type(typed))


@given(st.text())
def test_words_of_others_come_out_as_they_were_and_in_ascii(words: str) -> None:
    line = logs.JsonFormatter().format(record("peer connected client=%r", words))

    assert re.fullmatch(r"[ -~]+", line)
    assert json.loads(line)["client"] == words


def test_trace_is_one_string(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_at("info", LogFormat.JSON):
        try:
            fail("of the test")
        except ZeroDivisionError:
            OURS.exception("internal error method=%s", "waku_post")

    (line,) = objects(capsys)
    assert (line["event"], line["method"]) == ("internal error", "waku_post")
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert line["exception"].endswith("\nZeroDivisionError: of the test")


@pytest.mark.parametrize("form", LogFormat)
def test_trace_without_end_loses_its_middle(form: LogFormat, capsys: pytest.CaptureFixture[str]) -> None:
    with logging_at("info", form):
        try:
            fail("x" * 100_000)
        except ZeroDivisionError:
            OURS.exception("internal error in pruning")

    said = "".join(lines(capsys))
    assert "Traceback" in said
    assert "characters left out" in said
    assert len(said) < logs.MAX_TRACE_CHARS + 1000


# What others log


def test_libraries_do_not_follow_our_level(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_at("debug"):
        logging.getLogger("aiosqlite").debug("executing INSERT with every envelope")
        logging.getLogger("asyncio").info("using selector")
        logging.getLogger("asyncio").warning("slow callback")

    (line,) = lines(capsys)
    assert line.endswith("WARNING slow callback logger=asyncio")


def test_message_of_a_library_is_an_event_whatever_its_shape(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_at("info"):
        logging.getLogger("asyncio").error("Task %r\nfuture: \x1b[2J%s", "a", "b=c")

    first, second = lines(capsys)
    assert first.endswith(" ERROR   Task 'a' logger=asyncio")
    assert second == first[:32] + r" | 'future: \x1b[2Jb=c'"


def test_message_of_a_library_is_an_event_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_at("info", LogFormat.JSON):
        logging.getLogger("asyncio").error("Task %r\nfuture: %s", "a", "b=c")
        logging.getLogger("py4j").warning("%(what)s is 100%% wrong", {"what": "it"})

    assert [(line["logger"], line["event"]) for line in objects(capsys)] == [
        ("asyncio", "Task 'a'\nfuture: b=c"),
        ("py4j", "it is 100% wrong"),
    ]


def test_warnings_of_python_are_lines_too(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_at("info", LogFormat.JSON):
        warnings.warn("this is old", DeprecationWarning, stacklevel=1)

    (line,) = objects(capsys)
    assert (line["level"], line["logger"]) == ("WARNING", "py.warnings")
    assert "DeprecationWarning: this is old" in line["event"]


@pytest.mark.parametrize("form", LogFormat)
def test_error_that_nobody_catches_is_a_line_too(form: LogFormat) -> None:
    program = f"from mailserver.app.logs import *\nset_up_logging('info', {form})\n1 / 0"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 1
    event, *rest = done.stderr.splitlines()
    if form is LogFormat.TEXT:
        assert event.endswith(" CRITICAL internal error, the program ends")
        assert rest[-1].endswith(" CRITICAL | ZeroDivisionError: division by zero")
        assert all(LINE.fullmatch(line) for line in rest)
    else:
        assert rest == []
        assert json.loads(event)["exception"].endswith("ZeroDivisionError: division by zero")


# Changes, and the end


def test_level_and_format_change_while_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_at("info"):
        OURS.debug("event number=%d", 1)
        set_up_logging("debug", LogFormat.JSON)
        OURS.debug("event number=%d", 2)
        set_up_logging("warning")
        OURS.info("event number=%d", 3)
        OURS.warning("event number=%d", 4)

    two, four = lines(capsys)
    assert json.loads(two)["number"] == 2
    assert four.endswith(" WARNING event number=4")


def test_why_a_program_ends_is_logged_where_the_log_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_at("info"):
        assert not log_failure("cannot listen")
    assert lines(capsys) == []

    with logging_at("info", LogFormat.JSON):
        assert log_failure("cannot listen")
    (line,) = objects(capsys)
    assert (line["level"], line["event"], line["cause"]) == ("CRITICAL", "failed", "cannot listen")


# Floods


def test_flood_of_one_error_becomes_some_lines_and_a_count(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_at("info"):
        for number in range(1000):
            OURS.handle(record("store write failed envelopes=%d", number, at=NOON + number / 100))
        OURS.handle(record("request failed id=%s", "00", at=NOON + 10))
        for number in range(2):
            OURS.handle(record("store write failed envelopes=%d", number, at=NOON + 60 + number))

    said = [line[33:] for line in lines(capsys)]
    assert said == [
        *[f"store write failed envelopes={number}" for number in range(logs.MAX_REPEATS)],
        "repeats are suppressed for now of='store write failed' seconds=60",
        "request failed id=00",  # what is something else is not held up
        f"repeats were suppressed of='store write failed' count={1000 - logs.MAX_REPEATS}",
        "store write failed envelopes=0",
        "store write failed envelopes=1",
    ]


def test_nothing_is_left_out_of_what_is_no_warning(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_at("info"):
        for _ in range(2 * logs.MAX_REPEATS):
            OURS.handle(record("request served", level=logging.INFO))

    assert len(lines(capsys)) == 2 * logs.MAX_REPEATS


def test_program_that_no_stranger_reaches_says_all(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_at("info", all_repeats=True):
        for _ in range(2 * logs.MAX_REPEATS):
            OURS.handle(record("fault in the archive"))

    assert len(lines(capsys)) == 2 * logs.MAX_REPEATS


def test_clock_that_is_set_back_silences_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_at("info"):
        for _ in range(2 * logs.MAX_REPEATS):
            OURS.handle(record("store write failed"))
        OURS.handle(record("store write failed", at=NOON - 86_400))

    assert lines(capsys)[-1] == "2026-10-17T12:00:00.250Z ERROR   store write failed"


def test_faults_that_differ_in_their_kind_or_only_in_their_task_are_told_apart(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with logging_at("info", LogFormat.JSON):
        for number in range(2 * logs.MAX_REPEATS):
            message = f"Task exception was never retrieved\nfuture: {number}"
            logging.getLogger("asyncio").error(message)
        for kind in (ValueError, KeyError):
            for _ in range(2 * logs.MAX_REPEATS):
                OURS.error("internal error peer=%s", "7d2f11aa", exc_info=kind("of the test"))

    said = [line["event"] for line in objects(capsys)]
    assert sum(event.startswith("Task exception") for event in said) == logs.MAX_REPEATS
    assert said.count("internal error") == 2 * logs.MAX_REPEATS


def test_events_without_end_are_not_all_counted(capsys: pytest.CaptureFixture[str]) -> None:
    repeats = logs._Repeats()  # noqa: SLF001 - its memory shows nowhere else

    for number in range(2 * logs.MAX_EVENTS):
        repeats.judge(record(f"event {number}"))

    assert len(repeats._counts) == logs.MAX_EVENTS  # noqa: SLF001


# Recent errors


@contextlib.contextmanager
def kept() -> Iterator[RecentErrors]:
    with logging_at("debug"), recent_errors() as recent:
        yield recent


def test_last_warnings_and_errors_are_kept_the_latest_first() -> None:
    with kept() as recent:
        OURS.info("listening port=%d", 1)
        OURS.handle(record("store write failed envelopes=%d error=%r", 7, "disk is full", at=NOON))
        logging.getLogger("asyncio").warning("slow callback\nand more")

    slow, failed = recent.snapshot()
    assert (slow.level, slow.text, slow.count) == ("WARNING", "see the log logger=asyncio", 1)
    assert failed == logs.RecentError(NOON, "ERROR", "store write failed envelopes=7", 1)


def test_repeated_error_takes_one_place_and_is_counted() -> None:
    with kept() as recent:
        OURS.handle(record("request failed id=%s", "00"))
        for number in range(200):
            OURS.handle(record("store write failed envelopes=%d", number, at=NOON + number))

    failed, _ = recent.snapshot()
    assert failed == logs.RecentError(NOON + 199, "ERROR", "store write failed envelopes=199", 200)


def test_recent_errors_are_few_short_and_without_traces() -> None:
    with kept() as recent:
        for number in range(2 * logs.MAX_RECENT):
            try:
                fail("of the test")
            except ZeroDivisionError:
                OURS.exception(f"event {number} text=%r", "x" * 10_000)

    snapshot = recent.snapshot()
    assert len(snapshot) == logs.MAX_RECENT
    assert all(len(error.text) == logs.MAX_RECENT_CHARS for error in snapshot)
    assert not any("Traceback" in error.text for error in snapshot)


def test_recent_error_names_what_was_raised_and_nothing_that_others_have_said() -> None:
    with kept() as recent:
        OURS.error("internal error peer=%s seconds=%.1f", "7d2f11aa@192.0.2.1", 1.5, exc_info=KeyError("words"))
        OURS.warning("problem check=%s text=%r", "disk", "the disk is nearly full")
        OURS.warning("words of %s", "192.0.2.1")
        logging.getLogger("aiohttp.server").error("Error handling request from %s", "192.0.2.1")

    assert [error.text for error in recent.snapshot()] == [
        "see the log logger=aiohttp.server",
        "see the log logger=mailserver.app.daemon",
        "problem check=disk text='the disk is nearly full'",
        "internal error seconds=1.5 exception=KeyError",
    ]


def test_errors_are_kept_no_longer_than_asked_for() -> None:
    with kept() as recent:
        pass
    OURS.error("stopped")

    assert recent.snapshot() == ()


def test_lines_of_a_worker_say_its_number(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(logs, "_worker", None)
    with logging_at("info"):
        OURS.info("before x=%d", 1)
        logs.name_worker(3)
        set_up_logging("info")
        OURS.info("after x=%d", 1)
        set_up_logging("info", LogFormat.JSON)
        OURS.info("after x=%d", 1)

    before, text, as_json = lines(capsys)
    assert before.endswith("before x=1")
    assert text.endswith("after x=1 worker=3")
    assert json.loads(as_json)["worker"] == 3
