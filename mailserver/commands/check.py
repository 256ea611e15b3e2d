"""`waku-mailserver check`: look for damage in the store."""

import argparse
import json

from mailserver.commands.output import counted, printable
from mailserver.commands.settings import add_settings, config_of
from mailserver.commands.terminal import progress_bar
from mailserver.data_dir.own_store import check_it_is_a_file
from mailserver.store.sqlite.repair.check import check_store
from mailserver.store.sqlite.repair.report import CheckReport
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.units import size_text


def add(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `check`."""
    add_settings(parser, only={"data_dir", "store"})
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.set_defaults(command=_check)


def _check(arguments: argparse.Namespace) -> int:
    config = config_of(arguments)
    check_it_is_a_file(config.store, "check it by pg_amcheck")
    path = config.data_dir / STORE_FILE
    with progress_bar() as bar:
        report = check_store(path, bar)
    print(json.dumps(_as_json(report)) if arguments.json else _as_text(report))
    return 0 if report.is_sound else 1


def _as_json(report: CheckReport) -> dict[str, object]:
    damage = [
        {"kind": kind.name.lower(), "count": count, "what": report.shown[kind], "advice": kind.value}
        for kind, count in report.found.items()
    ]
    left = {"saved": report.saved, "lost": report.lost}
    return {"sound": report.is_sound, "envelopes": report.envelopes, "bytes": report.bytes, **left, "damage": damage}


def _as_text(report: CheckReport) -> str:
    lines = []
    for kind, count in report.found.items():
        lines += [printable(text) for text in report.shown[kind]]
        if count > len(report.shown[kind]):
            lines.append(f".. and {count - len(report.shown[kind])} more")
        lines.append(f"{counted(count, 'fault')} of this kind: {kind.value}")
    read = f"{counted(report.envelopes, 'envelope')}, {size_text(report.bytes)}"
    return "\n".join([*lines, f"{read}: sound" if report.is_sound else _left(report)])


def _left(report: CheckReport) -> str:
    """How much of a damaged store can be salvaged."""
    if report.saved is None:
        return (
            f"{counted(report.envelopes, 'envelope')} read, all undamaged"
            if report.envelopes
            else "no envelope was read"
        )
    if report.lost is None:
        return f"{counted(report.saved, 'envelope')} can be salvaged; how many there were is unknown"
    return f"{report.saved} of {counted(report.expected or 0, 'envelope')} can be salvaged, {report.lost} are lost"
