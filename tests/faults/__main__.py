"""`python -m tests.faults [--quick] [--json FILE] [--record] [PART [arguments of the part]]`: runs all parts, or one.

A part is a module of this folder with SUMMARY, QUICK, `add_arguments` and `run`. Its tests run it with the settings of
--quick. The exit code is 1 if any promise was broken. A run with the default settings is full, whatever the seed.
"""

import argparse
import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

from tests.faults.report import Report, as_json, as_text
from tests.recording import add_argument, new_seed, recorder_for, shown

PARTS = ("kills", "power", "disk", "peers", "network", "clock", "database")


class Part(Protocol):
    """What a module of a part has."""

    SUMMARY: str
    QUICK: Mapping[str, object]
    """What --quick sets instead of the defaults."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Say what may be given; the defaults are the full size."""

    def run(self, arguments: argparse.Namespace) -> Report:
        """Do it; what was not kept is in the report, and not raised."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one part, or all; print what was found; return the exit code."""
    parser = argparse.ArgumentParser(prog="faults", description="Put the mailserver through faults.")
    parser.add_argument("--quick", action="store_true", help="the short form")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    add_argument(parser)
    parts = {name: load(name) for name in PARTS}
    commands = parser.add_subparsers(dest="part", metavar="PART")
    for name, part in parts.items():
        part.add_arguments(commands.add_parser(name, help=part.SUMMARY))
    given = parser.parse_args(argv)
    recorder = recorder_for(parser, given)

    reports = []
    for name in [given.part] if given.part else PARTS:
        arguments = given if given.part else _defaults(parts[name])
        if given.quick:
            vars(arguments).update(parts[name].QUICK)
        if arguments.seed is None:
            arguments.seed = new_seed()
        recording = recorder and recorder.begin(name)
        report = parts[name].run(arguments)
        print(as_text(report), flush=True)
        reports.append(report)
        if recording:
            recording.end(
                seed=arguments.seed,
                arguments=shown(argv),
                is_full=_is_full(parts[name], arguments),
                rows={row.name: row.figures for row in report.rows},
                broken=report.broken,
            )
    if given.json:
        given.json.write_text(json.dumps(as_json(reports), indent=2) + "\n")
    return 1 if any(report.broken for report in reports) else 0


def load(name: str) -> Part:
    """The module of a part."""
    return cast(Part, importlib.import_module(f"tests.faults.{name}"))


def _is_full(part: Part, arguments: argparse.Namespace) -> bool:
    """Whether nothing but the seed is other than usual."""
    usual = {**vars(_defaults(part)), "seed": arguments.seed}
    return all(getattr(arguments, name) == value for name, value in usual.items())


def _defaults(part: Part) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    part.add_arguments(parser)
    return parser.parse_args([])


if __name__ == "__main__":
    sys.exit(main())
