"""Every log call of our packages: a constant template, an event's words and then its fields, and a value for each.

Both formats of `mailserver.app.logs` are made of the template; a call of another shape would be one opaque text in
JSON.
"""

import ast
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


def faults(source: str) -> list[str]:
    return [f"{call.lineno}: {found}" for call in calls(source) if (found := fault(call)) is not None]


def test_log_calls_have_one_shape() -> None:
    sources = {file: file.read_text(encoding="utf-8") for file in FILES}
    found = [f"{file}:{line}" for file, source in sources.items() for line in faults(source)]

    assert not found, "\n".join(found)
    assert sum(1 for source in sources.values() for _ in calls(source)) > 30  # they were looked for where they are


def test_operators_can_look_up_every_event() -> None:
    page = (ROOT / "docs" / "log.md").read_text(encoding="utf-8")
    events = set()
    for file in FILES:
        for call in calls(file.read_text(encoding="utf-8")):
            assert isinstance(call.func, ast.Attribute)
            template = call.args[call.func.attr == "log"]
            assert isinstance(template, ast.Constant)
            read = read_template(template.value)
            if call.func.attr != "debug" and read is not None:
                events.add(read[0])

    assert not [event for event in events if f" {event}" not in page]
    assert len(events) > 30


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
