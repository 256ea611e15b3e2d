"""`waku-mailserver stats`: show what is in the store."""

import argparse
import json
from dataclasses import asdict
from datetime import UTC, datetime

import uvloop

from mailserver.commands.settings import add_settings, config_of
from mailserver.commands.terminal import print_table
from mailserver.data_dir.own_store import read_own_stats
from mailserver.units import size_text


def add(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `stats`."""
    add_settings(parser, only={"data_dir", "store"})
    parser.add_argument("--json", action="store_true", help="print one JSON object; times are Unix seconds")
    parser.set_defaults(command=_stats)


def _stats(arguments: argparse.Namespace) -> None:
    config = config_of(arguments)
    stats = uvloop.run(read_own_stats(config.data_dir, config.store))
    if arguments.json:
        print(json.dumps(asdict(stats)))
        return
    print_table((), [(name, _as_text(name, value)) for name, value in asdict(stats).items()])


def _as_text(name: str, value: int | None) -> str:
    if value is None:
        return "-"
    if name in ("oldest", "newest"):
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return size_text(value) if "bytes" in name else f"{value:,}"
