"""Where settings come from: flags, else environment variables, else the TOML file, else defaults."""

import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, Generic, TypeVar, cast, get_args, get_origin

from mailserver.app.config import Config
from mailserver.app.config_check import check_config
from mailserver.errors import ConfigError

T = TypeVar("T")


class ConfigSources(Generic[T]):
    """Where the settings of one program come from.

    `prefix`: of its environment variables. `config_variable`: names its file.
    """

    def __init__(self, kind: Callable[..., T], prefix: str, check: Callable[[T], None]) -> None:
        """Take a class of settings, the prefix of its variables, and what checks an object of the class."""
        self._kind = kind
        self._check = check
        self._fields = {setting.name: setting for setting in fields(cast(Any, kind))}
        self._names = {variable_of(setting, prefix): name for name, setting in self._fields.items()}
        self.prefix = prefix
        self.config_variable = f"{prefix}CONFIG"

    @property
    def settings(self) -> tuple[Field[Any], ...]:
        """Each setting."""
        return tuple(self._fields.values())

    def load(self, flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None) -> T:
        """Combine the settings of all sources, and check them.

        Args:
            flags: values by field name; None for a flag that was not given.
            environment: all variables. Those with the prefix are read, except the one that names the file, and those of
                other programs that say something to this one, too.
            file: a TOML file whose keys are the field names.
        Raises:
            ConfigError: a key is unknown, a value is of the wrong kind or out of range, or the file cannot be read. The
                message names it.
        """
        values: dict[str, Any] = {}
        for given in self.given(flags, environment, file).values():
            values.update(given)
        config = self._kind(**values)
        self._check(config)
        return config

    def given(
        self, flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None
    ) -> dict[str, dict[str, Any]]:
        """The settings that each source gives, the weakest source first: "file", "environment", "flag".

        As in `load`, but ranges are not checked.
        """
        return {
            "file": {} if file is None else self._from_file(file),
            "environment": self._from_environment(environment),
            "flag": {name: value for name, value in flags.items() if value is not None},
        }

    def file(self, flag: str | None, environment: Mapping[str, str]) -> Path | None:
        """The file to read: the one that the flag names, else the one that the variable names, else none."""
        name = flag or environment.get(self.config_variable)
        return Path(name) if name else None

    def _from_file(self, file: Path) -> dict[str, Any]:
        try:
            table = tomllib.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read {file}: {error.strerror}") from error
        except ValueError as error:  # not TOML, not UTF-8, or an integer of thousands of digits
            raise ConfigError(f"{file} is not valid TOML: {error}") from error
        values = {}
        for name, value in table.items():
            if name not in self._fields:
                raise ConfigError(f"{file}: unknown key {name!r}")
            values[name] = _from_toml(f"{file}: {name}", value, self._fields[name].type)
        return values

    def _from_environment(self, environment: Mapping[str, str]) -> dict[str, Any]:
        values = {}
        for variable, text in sorted(environment.items()):
            name = self._names.get(variable)
            if name is None:
                if variable.startswith(self.prefix) and variable != self.config_variable:
                    raise ConfigError(f"unknown environment variable {variable}")
                continue
            values[name] = parse_value(variable, text, self._fields[name].type)
        return values


def variable_of(setting: Field[Any], prefix: str) -> str:
    """The environment variable of a setting, in a program whose own variables have this prefix."""
    return setting.metadata["variable"] or f"{prefix}{setting.name.upper()}"


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


MAILSERVER = ConfigSources(Config, "MAILSERVER_", check_config)
"""The daemon's settings."""
