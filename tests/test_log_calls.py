"""Every log call of our packages: a constant template, an event's words and then its fields, and a value for each.

Both formats of `mailserver.app.logs` are made of the template; a call of another shape would be one opaque text in
JSON.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mailserver.app.logs import read_template

ROOT = Path(__file__).parent.parent
FILES = sorted(file for package in ("mailserver", "spark_export") for file in (ROOT / package).rglob("*.py"))

METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
OTHER_METHODS = {"warn", "fatal", "handle"}
RESERVED = {"time", "level", "logger", "event", "exception"}
"""What a line of JSON has of its own."""

LEVELS = "(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)"
EVENT = re.compile(r"[A-Za-z][A-Za-z-]*(,? [A-Za-z-]+)*")
SPEC = re.compile(r"%(s|r|d|g|\.[0-9]f)")


def calls(source: str) -> Iterator[ast.Call]:
    """What is called on `log`, by whatever name a logger has in the file, or on the module `logging` itself."""
    tree = ast.parse(source)
    loggers = {"log", "logging"}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Attribute(attr="getLogger"))):
                loggers.add(name)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)):
                if name in loggers and attr in METHODS | OTHER_METHODS:
                    yield node
            case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Attribute(attr="getLogger")), attr=attr)):
                if attr in METHODS | OTHER_METHODS:
                    yield node


def fault(call: ast.Call) -> str | None:
    """What is wrong with a call, or None."""
    assert isinstance(call.func, ast.Attribute)
    if call.func.attr in OTHER_METHODS or (isinstance(call.func.value, ast.Name) and call.func.value.id == "logging"):
        return "not a method of `log` that is named for a level"
    arguments = call.args
    if call.func.attr == "log":  # for a level that depends
        level, *arguments = arguments
        if isinstance(level, ast.Constant):
            return "a level that has a name"
    match arguments:
        case [ast.Constant(value=str(template)), *values]:
            pass
        case _:
            return "no constant template"
    read = read_template(template)
    if read is None or not EVENT.fullmatch(read[0]):
        return f"{template!r} is not an event's words and then its fields"
    names = [field.name for field in read[1]]
    if len(set(names)) != len(names) or RESERVED & set(names):
        return f"a field's name is there twice, or what every line has: {names}"
    if not all(SPEC.fullmatch(field.spec) for field in read[1]):
        return f"{template!r} formats a value in another way than the others"
    if len(values) != len(names) or any(isinstance(value, ast.Starred) for value in values):
        return f"{len(names)} fields, {len(values)} values"
    if {keyword.arg for keyword in call.keywords} - {"exc_info"}:
        return "keywords that no format shows"
    return None


@functools.cache
def calls_of_ours() -> list[tuple[Path, ast.Call]]:
    """Every log call of our packages, and its file."""
    return [(file, call) for file in FILES for call in calls(file.read_text(encoding="utf-8"))]


def faults(source: str) -> list[str]:
    return [found for call in calls(source) if (found := fault(call)) is not None]


def test_log_calls_have_one_shape() -> None:
    found = [f"{file}:{call.lineno}: {what}" for file, call in calls_of_ours() if (what := fault(call)) is not None]

    assert not found, "\n".join(found)
    assert len(calls_of_ours()) > 30  # they were looked for where they are


def events_of(*, with_debug: bool) -> set[str]:
    """The words of every event that is logged."""
    events = set()
    for _, call in calls_of_ours():
        assert isinstance(call.func, ast.Attribute)
        template = call.args[call.func.attr == "log"]
        assert isinstance(template, ast.Constant)
        read = read_template(template.value)
        if read is not None and (with_debug or call.func.attr != "debug"):
            events.add(read[0])
    return events


def lines_of(page: str) -> list[str]:
    """The lines of the log that a page shows, from their level on: in code of a row, or in an example."""
    return [
        inline or example
        for inline, example in re.findall(rf"`({LEVELS} [^`]+)`|^(?:[-0-9T:.]+Z )?({LEVELS} +.+)$", page, re.MULTILINE)
    ]


def event_of(line: str) -> str:
    """The words of a line, without its level, and without its fields or what stands for them."""
    return re.split(r" \w+=| \.\.", line.split(maxsplit=1)[1])[0].strip()


def test_operators_can_look_up_every_event() -> None:
    page = (ROOT / "docs" / "log.md").read_text(encoding="utf-8")
    events = events_of(with_debug=False)

    assert not [event for event in events if f" {event}" not in page]
    assert len(events) > 30


def test_lines_that_the_docs_show_are_logged() -> None:
    events = events_of(with_debug=True)
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = [(page.name, line) for page in pages for line in lines_of(page.read_text(encoding="utf-8"))]

    assert [(page, line) for page, line in shown if event_of(line) not in events] == []
    assert len({line for page, line in shown if page == "log.md"}) > 100
    assert {"README.md", "gateway.md"} <= {page for page, _ in shown}


def test_no_line_has_two_rows_in_one_section() -> None:
    for section in (ROOT / "docs" / "log.md").read_text(encoding="utf-8").split("\n## "):
        lines = lines_of(section)
        assert [line for line in set(lines) if lines.count(line) > 1] == []


@pytest.mark.parametrize(
    "call",
    [
        'log.info(f"listening port={port}")',
        'log.info("listening port=%d" % port)',
        'log.info("listening " + "port=%d", port)',
        "log.info(error)",
        'log.info("listening on %s", port)',
        'log.info("listening: port=%d", port)',
        'log.info("listening port=%d now", port)',
        'log.info("port=%d", port)',
        'log.info("listening port=%d")',
        'log.info("listening port=%d", port, host)',
        'log.info("listening port=%d", *ports)',
        'log.info("listening port=%d port=%d", port, port)',
        'log.info("listening Port=%d", port)',
        'log.info("listening port=%5d", port)',
        'log.info("listening port=%(port)d", port)',
        'log.info("listening time=%d", port)',
        'log.info("listening event=%s", port)',
        'log.info("listening", extra={"port": port})',
        'log.log(10, "listening")',
        'log.log(level, "listening on %s", port)',
        'logging.info("listening")',
        'logging.getLogger("mailserver").info("listening on %s", port)',
        'other = logging.getLogger("other")\nother.info("listening on %s", port)',
    ],
)
def test_call_of_another_shape_is_found(call: str) -> None:
    assert faults(call)


@pytest.mark.parametrize(
    "call",
    [
        'log.info("stopped")',
        'log.info("serving JSON-RPC port=%d token=%s", port, "no")',
        'log.warning("clock leapt ahead, what was sent meanwhile is missed seconds=%.0f", leap_s)',
        'log.log(level, "listening port=%d", port)',
        'log.exception("internal error in pruning")',
        'log.error("internal error subscription=%s", subscription, exc_info=error)',
        "math.log(2)",
    ],
)
def test_call_of_our_shape_passes(call: str) -> None:
    assert faults(call) == []
