"""`waku-mailserver migrate`: move all envelopes of a store from a file to a database, or back; or a Go mailserver's."""

import argparse
import json
from pathlib import Path

import uvloop

from mailserver.app.config_check import STORE_SCHEMES
from mailserver.app.logs import set_up_logging
from mailserver.commands.output import counted, printable
from mailserver.commands.settings import add_settings, config_of
from mailserver.commands.terminal import progress_bar
from mailserver.data_dir.moving import aside_of, move
from mailserver.moving.report import MoveReport, StoreDifference

MAX_SHOWN = 20
"""How many message ids are shown of those that differ; JSON has more."""


def add(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `migrate`."""
    parser.add_argument(
        "--from",
        dest="source",
        metavar="STORE",
        type=_place,
        required=True,
        help="the store to read: a file, such as data/mailserver.db, the URL of a database, "
        "or the folder of a Go mailserver's LevelDB",
    )
    parser.add_argument(
        "--to",
        dest="target",
        metavar="STORE",
        type=_place,
        required=True,
        help="the store to write: a file or the URL of a database; it is made if it is not there",
    )
    parser.add_argument("--json", action="store_true", help="print what was moved as one JSON object")
    add_settings(parser, only={"network_topic"})
    parser.set_defaults(command=_migrate)


def _place(text: str) -> Path | str:
    return text if text.startswith(STORE_SCHEMES) else Path(text)


def _migrate(arguments: argparse.Namespace) -> int:
    config = config_of(arguments)
    set_up_logging("warning")
    aside = aside_of(arguments.source, arguments.target)
    with progress_bar() as bar:
        report = uvloop.run(move(arguments.source, arguments.target, config.network_topic, bar))
    print(json.dumps(_as_json(report, aside)) if arguments.json else _as_text(report, aside))
    return 0 if report.is_whole else 1


def _as_json(report: MoveReport, aside: Path) -> dict[str, object]:
    return {
        "envelopes": report.compared,
        "moved": report.moved,
        "there": report.there,
        "set_aside": report.set_aside,
        "set_aside_file": str(aside) if report.set_aside else None,
        "missing": report.missing.as_json(),
        "pruned": report.pruned,
        "more": None if report.more is None else report.more.as_json(),
    }


def _as_text(report: MoveReport, aside: Path) -> str:
    lines = [f"{counted(report.moved, 'envelope')} moved, {report.there} were there before"]
    if report.set_aside:
        lines.append(f"{counted(report.set_aside, 'damaged piece')} set aside in {aside}")
    lines += _named(report.missing, "missing there")
    if report.pruned:
        lines.append(f"{counted(report.pruned, 'envelope')} not there: as old as what was pruned there")
    if report.more is not None:
        lines += _named(report.more, "only there")
    if not report.missing.count:
        how = "read again" if report.more is None else "message ids compared"
        lines.append(f"{how}: all of {counted(report.compared, 'envelope')} are there")
    return "\n".join(map(printable, lines))


def _named(difference: StoreDifference, what: str) -> list[str]:
    if not difference.count:
        return []
    least = "" if difference.is_all else "at least "
    lines = [f"{least}{counted(difference.count, 'envelope')} {what}:"]
    lines += [f"  {muid.hex()}" for muid in difference.muids[:MAX_SHOWN]]
    if difference.count > MAX_SHOWN:
        lines.append(f"  .. and {difference.count - MAX_SHOWN} more, which --json names")
    return lines
