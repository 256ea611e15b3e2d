"""How our programs log: one line per event on stderr, as text for people or as JSON for programs, times in UTC.

The template of a call says everything: `log.info("store migrated from=%d to=%d", 1, 2)` is the event "store migrated"
with two fields. Both formats are made from it; `tests/test_log_calls.py` checks that every call has this shape. Values
may come from strangers: in neither format can they begin a line, name a field or command a terminal. A message of a
library is one event as a whole.
"""

import contextlib
import json
import logging
import math
import re
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from types import TracebackType
from typing import NamedTuple, TypeAlias

MAX_VALUE_CHARS = 4096
"""Longest value, or message of a library. A path may be this long."""

MAX_TRACE_CHARS = 16 * 1024
"""Longest trace. The middle of a longer one is left out. Traces usually have 2,000 characters."""

MAX_REPEATS = 60
REPEATS_WINDOW_S = 60.0
"""How often the same warning or error is logged within how many seconds. On a full disk every write fails, and peers go
on sending: without this limit they would fill the log, too."""

MAX_EVENTS = 256
"""Maximum number of events whose repeats are counted, and of templates that are cached. Our programs have some 50."""

MAX_RECENT = 50
MAX_RECENT_CHARS = 500
"""How many events RecentErrors keeps, and the longest text of an event."""

OUR_PACKAGES = ("mailserver", "spark_export")

SHOWN_FIELDS = frozenset({"check", "text", "name"})
"""The fields that RecentErrors shows besides numbers: these hold our own words. Others may hold addresses or words of
peers."""

_TEMPLATE = re.compile(r"([^=%]+)((?: [a-z][a-z0-9_]*=%(?:\.[0-9])?[a-z])*)")
_FIELD = re.compile(r" ([a-z][a-z0-9_]*)=(%\S+)")
_BARE = re.compile(r"[^\s'\"=\\]+")
_NUMBERS = ("d", "f", "g")

_Key: TypeAlias = tuple[str, str, str]

_worker: int | None = None
"""The number of this process, if it is one of several workers."""

log = logging.getLogger(__name__)


class LogFormat(Enum):
    """How lines are written."""

    TEXT = "text"
    JSON = "json"


class Field(NamedTuple):
    """A field of an event: its name, and how its value is formatted, as `%.1f`."""

    name: str
    spec: str


@lru_cache(maxsize=MAX_EVENTS)
def read_template(template: str) -> tuple[str, tuple[Field, ...]] | None:
    """The event and the fields that a template names; None if the template does not have our shape."""
    # A library may have put words of strangers into its template, even a second line.
    match = _TEMPLATE.fullmatch(template) if template.isprintable() else None
    return match and (match[1], tuple(Field(*pair) for pair in _FIELD.findall(match[2])))


def set_up_logging(
    level: str, form: LogFormat = LogFormat.TEXT, package: str = "mailserver", *, all_repeats: bool = False
) -> None:
    """Log events of a package of ours from `level` up. A later call changes level and format.

    Args:
        all_repeats: do not limit how often the same warning or error is logged. For a program that no stranger can
            cause to fail.
    """
    root = logging.getLogger()
    handler = next((handler for handler in root.handlers if isinstance(handler, _LineHandler)), None)
    if handler is None:
        handler = _LineHandler(None if all_repeats else _Repeats())
        root.addHandler(handler)
        root.setLevel(logging.WARNING)
        logging.captureWarnings(capture=True)
        sys.excepthook = _log_uncaught
    handler.setFormatter(JsonFormatter(_worker) if form is LogFormat.JSON else TextFormatter(_worker))
    # Only our own events follow the level: aiosqlite logs the parameters of its statements at debug.
    logging.getLogger(package).setLevel(level.upper())


def name_worker(number: int) -> None:
    """Have each line say which of several workers has logged it, from the next `set_up_logging` on."""
    global _worker  # noqa: PLW0603 - as logging itself is: one for the process
    _worker = number


def log_failure(cause: str) -> bool:
    """If the log is JSON, log why the program ends. Return False if it is not: then people are told in words."""
    is_json = any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers)
    if is_json:
        log.critical("failed cause=%r", cause)
    return is_json


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, Exception):
        log.critical("internal error, the program ends", exc_info=(kind, error, trace))
    else:  # KeyboardInterrupt
        sys.__excepthook__(kind, error, trace)


class TextFormatter(logging.Formatter):
    """`TIME LEVEL   event words key=value`. A value that is not a plain word is quoted and escaped as in Python.

    Each further line, as of a trace, repeats time and level and then has `| `, with which no event begins. If there are
    several workers, the first line ends with `worker=NUMBER`.
    """

    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self._worker = "" if worker is None else f" worker={worker}"

    def format(self, record: logging.LogRecord) -> str:
        """One line, or several."""
        head = f"{_utc(record)} {record.levelname:<7} "
        event, *rest = _lines(record)
        if record.exc_info:
            rest += _trace(self, record).splitlines()
        return "\n".join([head + event + self._worker, *(f"{head}| {_printable(line.expandtabs())}" for line in rest)])


class JsonFormatter(logging.Formatter):
    """One object per line: `time`, `level`, `logger`, `worker` if there are several, `event`, the event's fields, and
    `exception` if there is one."""

    def __init__(self, worker: int | None = None) -> None:
        super().__init__()
        self._worker: dict[str, object] = {} if worker is None else {"worker": worker}

    def format(self, record: logging.LogRecord) -> str:
        """One line of ASCII."""
        line: dict[str, object] = {
            "time": _utc(record),
            "level": record.levelname,
            "logger": record.name,
            **self._worker,
        }
        read = _read(record)
        if read is None:
            line["event"] = _cut(record.getMessage())
        else:
            line["event"], fields = read
            line.update({field.name: _typed(field.spec, value) for field, value in fields})
        if record.exc_info:
            line["exception"] = _trace(self, record)
        return json.dumps(line)


def _utc(record: logging.LogRecord) -> str:
    """ISO 8601 with milliseconds."""
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


def _read(record: logging.LogRecord) -> tuple[str, list[tuple[Field, object]]] | None:
    """The event, and its fields with their values; None if the record does not have our shape."""
    read = read_template(record.msg) if isinstance(record.msg, str) else None
    values = record.args or ()
    if read is None or not isinstance(values, tuple) or len(values) != len(read[1]):
        return None
    return read[0], list(zip(read[1], values, strict=True))


def _lines(record: logging.LogRecord) -> list[str]:
    """The record as lines of text. Only messages of other libraries have more than one."""
    read = _read(record)
    if read is None:
        lines = [_printable(line) for line in _cut(record.getMessage()).splitlines()] or [""]
    else:
        event, fields = read
        lines = [event + "".join(f" {field.name}={_shown(field.spec, value)}" for field, value in fields)]
    if record.name.partition(".")[0] not in OUR_PACKAGES:
        lines[0] += f" logger={_shown('%s', record.name)}"
    return lines


def _public(record: logging.LogRecord) -> str:
    """The record without words of strangers."""
    read = _read(record)
    if read is None or record.name.partition(".")[0] not in OUR_PACKAGES:
        return f"see the log logger={_shown('%s', record.name)}"
    event, fields = read
    shown = (each for each in fields if each[0].spec[-1] in _NUMBERS or each[0].name in SHOWN_FIELDS)
    return event + "".join(f" {field.name}={_shown(field.spec, value)}" for field, value in shown)


def _shown(spec: str, value: object) -> str:
    """A value as text: a plain word, or quoted."""
    if spec[-1] in _NUMBERS:
        return spec % value
    text = _cut(str(value))
    is_bare = spec != "%r" and text.isprintable() and _BARE.fullmatch(text)
    return text if is_bare else repr(text)


def _typed(spec: str, value: object) -> str | float | bool | None:
    """A value as JSON. Numbers stay numbers, with as many digits as in text."""
    if spec[-1] in _NUMBERS:
        text = spec % value
        value = int(text) if text.lstrip("-").isdecimal() else float(text)
    if value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return _cut(str(value))


def _printable(line: str) -> str:
    return line if line.isprintable() else repr(line)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 2] + ".."


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    assert record.exc_info
    text = formatter.formatException(record.exc_info)
    if len(text) <= MAX_TRACE_CHARS:
        return text
    half = MAX_TRACE_CHARS // 2
    return f"{text[:half]}\n.. {len(text) - 2 * half} characters left out ..\n{text[-half:]}"


class _LineHandler(logging.StreamHandler):  # type: ignore[type-arg]  # not generic at run time
    """Writes to stderr."""

    def __init__(self, repeats: "_Repeats | None") -> None:
        super().__init__()
        self._repeats = repeats

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, unless it has been repeated too often; log how many were suppressed."""
        for each in [record] if self._repeats is None else self._repeats.judge(record):
            super().emit(each)


@dataclass(slots=True)
class _Count:
    since: float
    count: int = 0


class _Repeats:
    """Counts warnings and errors. Of each, MAX_REPEATS may pass within REPEATS_WINDOW_S."""

    def __init__(self) -> None:
        self._counts: OrderedDict[_Key, _Count] = OrderedDict()

    def judge(self, record: logging.LogRecord) -> list[logging.LogRecord]:
        """The records to log when this one arrives: itself, notes about repeats, or nothing."""
        if record.levelno < logging.WARNING:
            return [record]
        said = []
        count = self._counts.get(_key(record))
        if count is None or not 0 <= record.created - count.since < REPEATS_WINDOW_S:
            if count is not None and count.count > MAX_REPEATS:
                said = [_note(record, "repeats were suppressed of=%r count=%d", count.count - MAX_REPEATS)]
            count = self._begin(record)
        count.count += 1
        if count.count <= MAX_REPEATS:
            said.append(record)
        if count.count == MAX_REPEATS:
            said.append(_note(record, "repeats are suppressed for now of=%r seconds=%d", round(REPEATS_WINDOW_S)))
        return said

    def _begin(self, record: logging.LogRecord) -> _Count:
        self._counts.pop(_key(record), None)
        while len(self._counts) >= MAX_EVENTS:
            self._counts.popitem(last=False)
        count = self._counts[_key(record)] = _Count(record.created)
        return count


def _key(record: logging.LogRecord) -> _Key:
    """What two records of the same event have in common."""
    # asyncio says in the first line what has happened, and in the next in which of many tasks.
    return record.name, str(record.msg).partition("\n")[0][:MAX_VALUE_CHARS], _kind(record)


def _kind(record: logging.LogRecord) -> str:
    """The name of the exception, or nothing."""
    return record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""


def _note(record: logging.LogRecord, template: str, figure: int) -> logging.LogRecord:
    """A record about another, with its time and level."""
    read = _read(record)
    event = record.getMessage() if read is None else read[0]
    note = logging.LogRecord(__name__, record.levelno, __file__, 0, template, (event, figure), None)
    note.created, note.msecs = record.created, record.msecs
    return note


@dataclass(frozen=True, slots=True)
class RecentError:
    """A warning or an error: when it last occurred (Unix seconds), its level, its text, and how often it occurred.

    The text is that of the last occurrence, one line of at most MAX_RECENT_CHARS. Everybody who can reach the status
    page sees it. So it contains only numbers and SHOWN_FIELDS of an event, only the logger's name of a library's
    message, and no trace.
    """

    time: float
    level: str
    text: str
    count: int


class RecentErrors(logging.Handler):
    """Keeps the last MAX_RECENT warnings and errors. One that is repeated takes one place."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._events: OrderedDict[_Key, RecentError] = OrderedDict()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        before = self._events.pop(_key(record), None)
        kind = _kind(record)
        text = (_public(record) + (f" exception={kind}" if kind else ""))[:MAX_RECENT_CHARS]
        count = 1 if before is None else before.count + 1
        self._events[_key(record)] = RecentError(record.created, record.levelname, text, count)
        if len(self._events) > MAX_RECENT:
            self._events.popitem(last=False)

    def snapshot(self) -> tuple[RecentError, ...]:
        """The kept events, the latest first."""
        self.acquire()
        try:
            return tuple(reversed(self._events.values()))
        finally:
            self.release()


@contextlib.contextmanager
def recent_errors() -> Iterator[RecentErrors]:
    """Keep warnings and errors, those of libraries included, as long as the context is entered."""
    recent = RecentErrors()
    logging.getLogger().addHandler(recent)
    try:
        yield recent
    finally:
        logging.getLogger().removeHandler(recent)
