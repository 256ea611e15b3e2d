"""Settings as flags of commands, and how they combine with the environment and the file."""

import argparse
import os
from pathlib import Path
from typing import Any

from mailserver.app.config import Config
from mailserver.app.config_sources import MAILSERVER, ConfigSources, T, parse_value
from mailserver.codec.keys import Enode
from mailserver.commands.arguments import checked
from mailserver.units import number_text


def add_settings(
    parser: argparse.ArgumentParser, only: set[str] | None = None, sources: ConfigSources[Any] = MAILSERVER
) -> None:
    """Add --config, and a flag for each of these settings, or for all. Values stay text, so that one parser reads all
    sources."""
    parser.add_argument("--config", metavar="FILE", help="TOML file of settings (default: none)")
    for setting in sources.settings:
        if only is not None and setting.name not in only:
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
    return settings_of(arguments, MAILSERVER)


def settings_of(arguments: argparse.Namespace, sources: ConfigSources[T]) -> T:
    """The same for any program's settings."""
    file = sources.file(arguments.config, os.environ)
    return sources.load(_flags(arguments, sources), os.environ, file)


def origins_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Where each setting in force comes from: "default", "file", "environment" or "flag".

    Raises:
        ConfigError: a setting cannot be read.
    """
    origins = {setting.name: "default" for setting in MAILSERVER.settings}
    file = MAILSERVER.file(arguments.config, os.environ)
    given = MAILSERVER.given(_flags(arguments, MAILSERVER), os.environ, file)
    for place, values in given.items():
        origins |= dict.fromkeys(values, place)
    return origins


def _flags(arguments: argparse.Namespace, sources: ConfigSources[Any]) -> dict[str, Any]:
    flags: dict[str, Any] = {}
    for setting in sources.settings:
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
