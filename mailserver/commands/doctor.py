"""`waku-mailserver doctor`: check whether this machine and these settings are suitable."""

import argparse
import asyncio
import json
import time
from dataclasses import asdict, fields

from mailserver.app.config import Config
from mailserver.commands.settings import add_settings, config_of
from mailserver.commands.terminal import print_table
from mailserver.doctor.archive import check_archive
from mailserver.doctor.database import check_database
from mailserver.doctor.disk import check_data_dir, check_secrets, check_store_clock
from mailserver.doctor.findings import Finding, FindingVerdict
from mailserver.doctor.host import check_clock, check_memory, check_open_files
from mailserver.doctor.ports import check_ports
from mailserver.doctor.versions import check_versions

_COLOURS = {FindingVerdict.OK: "green", FindingVerdict.WARNING: "yellow", FindingVerdict.PROBLEM: "bold red"}


def add(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `doctor`, which are those of `run`."""
    add_settings(parser, only={setting.name for setting in fields(Config)})
    parser.add_argument("--json", action="store_true", help="print the findings as a JSON array")
    parser.set_defaults(command=_look)


def _look(arguments: argparse.Namespace) -> int:
    findings = _findings(config_of(arguments))
    if arguments.json:
        print(json.dumps([asdict(finding) | {"verdict": finding.verdict.value} for finding in findings]))
    else:
        rows = [(found.verdict.value, found.check, _text(found)) for found in findings]
        print_table(("VERDICT", "CHECK", "FOUND"), rows, [_COLOURS[found.verdict] for found in findings])
    return 1 if any(finding.verdict is FindingVerdict.PROBLEM for finding in findings) else 0


def _findings(config: Config) -> list[Finding]:
    now = time.time()
    return [
        *check_versions(),
        *asyncio.run(check_ports(config)),
        check_clock(now),
        *check_store_clock(config.data_dir, now),
        *check_data_dir(config.data_dir),
        *check_database(config),
        *check_secrets(config),
        *check_archive(config, now),
        check_open_files(config.max_peers),
        check_memory(),
    ]


def _text(finding: Finding) -> str:
    return f"{finding.text}. {finding.advice[0].upper()}{finding.advice[1:]}" if finding.advice else finding.text
