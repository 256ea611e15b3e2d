"""Settings as flags of commands, and how they combine with the environment and the file."""

import argparse
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from mailserver.app.config import Config
from mailserver.app.config_sources import config_file, given_settings, load_config, parse_value
from mailserver.codec.keys import Enode
from mailserver.commands.arguments import checked
from mailserver.units import number_text


def add_settings(parser: argparse.ArgumentParser, only: set[str]) -> None:
    """Add --config, and a flag for each of these settings. Values stay text, so that one parser reads all sources."""
    parser.add_argument("--config", metavar="FILE", help="TOML file of settings (default: none)")
    for setting in fields(Config):
        if setting.name not in only:
            continue
        flag = "--" + setting.name.replace("_", "-")
        help_text = setting.metadata["help"].replace("%", "%%")
        if setting.default not in ("", ()):  # for these, the help text itself says what the default means
            help_text += f" (default: {_as_text(setting.default)})"
        if setting.type is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=None, help=help_text)
        else:
            parser.add_argument(flag, metavar=str(setting.name).upper(), help=help_text)


def _as_text(default: Any) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    return number_text(default) if isinstance(default, float) else str(default)


def add_node(parser: argparse.ArgumentParser) -> None:
    """Add the argument that names a node."""
    parser.add_argument(
        "enode", metavar="ENODE", type=checked(Enode.parse), help="the node's URL: enode://<128 hex digits>@host:port"
    )


def config_of(arguments: argparse.Namespace) -> Config:
    """The settings in force for a command.

    Raises:
        ConfigError: a setting is wrong.
    """
    return load_config(_flags(arguments), os.environ, config_file(arguments.config, os.environ))


def origins_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Where each setting in force comes from: "default", "file", "environment" or "flag".

    Raises:
        ConfigError: a setting cannot be read.
    """
    origins = {setting.name: "default" for setting in fields(Config)}
    given = given_settings(_flags(arguments), os.environ, config_file(arguments.config, os.environ))
    for place, values in given.items():
        origins |= dict.fromkeys(values, place)
    return origins


def _flags(arguments: argparse.Namespace) -> dict[str, Any]:
    flags: dict[str, Any] = {}
    for setting in fields(Config):
        value = getattr(arguments, setting.name, None)
        if isinstance(value, str):
            value = parse_value("--" + setting.name.replace("_", "-"), value, setting.type)
        flags[setting.name] = value
    return flags


def add_destination(parser: argparse.ArgumentParser) -> None:
    """Take the directory that a command creates."""
    parser.add_argument(
        "destination", metavar="DEST", type=Path, help="the directory to create; nothing is overwritten"
    )


def destination_of(arguments: argparse.Namespace) -> Path:
    """The absolute path of that directory."""
    return Path(os.path.abspath(arguments.destination))  # noqa: PTH100 - `resolve` would follow a link at its end
