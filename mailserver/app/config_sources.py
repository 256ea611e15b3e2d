"""Where settings come from: flags, else MAILSERVER_* environment variables, else the TOML file, else defaults."""

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_origin

from mailserver.app.config import Config
from mailserver.app.config_check import check_config
from mailserver.errors import ConfigError

ENVIRONMENT_PREFIX = "MAILSERVER_"
CONFIG_VARIABLE = "MAILSERVER_CONFIG"

_FIELDS = {setting.name: setting for setting in fields(Config)}


def load_config(flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None) -> Config:
    """Combine the settings of all sources, and check them.

    Args:
        flags: values by field name; None for a flag that was not given.
        environment: all variables. Those that begin with MAILSERVER_ are read, except MAILSERVER_CONFIG.
        file: a TOML file whose keys are the field names.
    Raises:
        ConfigError: a key is unknown, a value is of the wrong kind or out of range, or the file cannot be read. The
            message names it.
    """
    values: dict[str, Any] = {}
    for given in given_settings(flags, environment, file).values():
        values.update(given)
    config = Config(**values)
    check_config(config)
    return config


def given_settings(
    flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None
) -> dict[str, dict[str, Any]]:
    """The settings that each source gives, the weakest source first: "file", "environment", "flag".

    As in `load_config`, but ranges are not checked.
    """
    return {
        "file": {} if file is None else _from_file(file),
        "environment": _from_environment(environment),
        "flag": {name: value for name, value in flags.items() if value is not None},
    }


def config_file(flag: str | None, environment: Mapping[str, str]) -> Path | None:
    """The file to read: the one that the flag names, else the one that MAILSERVER_CONFIG names, else none."""
    name = flag or environment.get(CONFIG_VARIABLE)
    return Path(name) if name else None


def _from_file(file: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except ValueError as error:  # not TOML, not UTF-8, or an integer of thousands of digits
        raise ConfigError(f"{file} is not valid TOML: {error}") from error
    values = {}
    for name, value in table.items():
        if name not in _FIELDS:
            raise ConfigError(f"{file}: unknown key {name!r}")
        values[name] = _from_toml(f"{file}: {name}", value, _FIELDS[name].type)
    return values


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    values = {}
    for variable, text in sorted(environment.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable == CONFIG_VARIABLE:
            continue
        name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if name not in _FIELDS:
            raise ConfigError(f"unknown environment variable {variable}")
        values[name] = parse_value(variable, text, _FIELDS[name].type)
    return values


def parse_value(where: str, text: str, kind: Any) -> Any:
    """Read the value of a setting from text.

    Args:
        where: the flag or variable, for the error message.
    Raises:
        ConfigError: the text is not of that kind.
    """
    if kind is bool:
        if text.lower() not in _BOOLEANS:
            raise ConfigError(f"{where}: {text!r} is neither true nor false")
        return _BOOLEANS[text.lower()]
    if get_origin(kind) is tuple:
        return tuple(
            parse_value(where, part, get_args(kind)[0]) for part in re.split(r"[,\s]+", text.strip(", ")) if part
        )
    try:
        if kind is str:
            text.encode()
        return kind(text)
    except UnicodeEncodeError as error:
        raise ConfigError(f"{where}: {text!r} is not UTF-8") from error
    except ValueError as error:
        raise ConfigError(f"{where}: {text!r} is not {_KINDS[kind]}") from error


_KINDS = {str: "a string", Path: "a string", int: "a whole number", float: "a number", bool: "true or false"}
_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _from_toml(where: str, value: object, kind: Any) -> Any:
    if kind is Path and isinstance(value, str):
        return Path(value)
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(_from_toml(where, item, get_args(kind)[0]) for item in value)
    if kind is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            return math.inf  # out of every range
    if type(value) is not kind:
        raise ConfigError(f"{where}: {value!r} is not {_KINDS.get(kind, 'a list')}")
    return value
