"""`waku-mailserver config`: show the settings in force and where each comes from. Secrets are hidden."""

import argparse
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

from mailserver.app.config import Config
from mailserver.commands.settings import add_settings, config_of, origins_of
from mailserver.commands.terminal import print_table
from mailserver.units import number_text

HIDDEN = "(hidden)"

_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]*:[^@\s]*(?=@)")
"""User and password before the host of a URL. The node ID of an enode URL has no password, so it does not match."""


def add(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `config`, which are those of `run`."""
    add_settings(parser, only={setting.name for setting in fields(Config)})
    parser.add_argument("--json", action="store_true", help="print the settings as one JSON object")
    parser.set_defaults(command=_show)


def _show(arguments: argparse.Namespace) -> None:
    config, origins = config_of(arguments), origins_of(arguments)
    values = {setting.name: shown(config, setting.name) for setting in fields(Config)}
    if arguments.json:
        print(json.dumps({name: {"value": value, "from": origins[name]} for name, value in values.items()}))
        return
    rows = [(name, _as_text(value), origins[name]) for name, value in values.items()]
    print_table(("SETTING", "VALUE", "FROM"), rows, ["dim" if row[2] == "default" else "bold" for row in rows])


def shown(config: Config, name: str) -> Any:
    """The value of a setting for JSON. Secrets are hidden, unless they are the default, which everybody knows."""
    value = getattr(config, name)
    if Config.__dataclass_fields__[name].metadata["secret"] and not config.is_default(name):
        return HIDDEN
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, str):
        return _CREDENTIALS.sub(HIDDEN, value)
    if isinstance(value, tuple):
        return list(value)
    return str(value) if value == float("inf") else value  # JSON has no infinity


def _as_text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, bool):
        return "on" if value else "off"
    return number_text(value) if isinstance(value, float) else str(value) or "-"
