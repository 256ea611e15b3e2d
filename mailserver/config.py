"""Settings: flags, then MAILSERVER_* environment, then the TOML file, then defaults. Checked in one place."""

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from mailserver.errors import ConfigError
from mailserver.mail.completion import CompletionFormat

ENVIRONMENT_PREFIX = "MAILSERVER_"
CONFIG_VARIABLE = "MAILSERVER_CONFIG"

MAX_LIMIT = 100_000
"""Highest `max_request_limit`: the keys of one page are held in memory, 200 bytes each."""

MIN_RETENTION_BYTES = 1024 * 1024
"""Lowest `retention_bytes`, 64 pages: an empty store takes ten. Less is a slip of the unit, and would delete all."""

LOG_LEVELS = ("debug", "info", "warning", "error")

_PORT = re.compile("[0-9]{1,5}")
_HOST = re.compile("[A-Za-z0-9._-]+|[0-9a-fA-F:.]+")  # what can stand in an enode URL


def _setting(default: Any, help_text: str) -> Any:
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True, slots=True)
class Config:
    """All settings of the daemon; each field is a flag, an environment variable and a key of the file."""

    data_dir: Path = _setting(Path("data"), "folder of the store, the node key and the enode file")
    listen: str = _setting("0.0.0.0:30303", "HOST:PORT to accept peers on; port 0 takes any free one")
    advertise: str = _setting("", "host in the enode URL (default: the listen host; for all addresses, 127.0.0.1)")
    password: str = _setting("status-offline-inbox", "password of history requests; no secret: all clients know it")
    min_pow: float = _setting(0.000002, "least proof of work of an envelope, 0.000002 is what clients expect at most")
    min_request_pow: float = _setting(0.0, "least proof of work of a sealed history request; some clients send none")
    max_peers: int = _setting(500, "most connected peers")
    max_request_limit: int = _setting(1000, "most envelopes in the answer to one request; a cursor leads to the next")
    allow_clear_requests: bool = _setting(True, "answer history requests that come in the clear, without an envelope")
    completion_format: str = _setting(
        "bytes", "completions as deployed clients read them: bytes, or as 8/WAKU-MAIL has them: list"
    )
    retention_days: float = _setting(30.0, "how long to keep envelopes after their reception, in days; 0: for ever")
    retention_envelopes: int = _setting(0, "most envelopes to keep, the oldest go first; 0: any number")
    retention_bytes: int = _setting(0, "most bytes of the store file to use, the oldest go first; 0: any number")
    archive: str = _setting("", "path or URL of the archive that the nightly compaction fills: pruning waits for it")
    archive_before_prune: bool = _setting(
        True, "with an archive, never delete what no verified run of the compaction has archived"
    )
    log_level: str = _setting("info", "least level to log: " + ", ".join(LOG_LEVELS))

    @property
    def listen_address(self) -> tuple[str, int]:
        """Host and port to listen on."""
        return parse_address(self.listen)

    @property
    def advertised_host(self) -> str:
        """The host for the enode URL."""
        host = self.listen_address[0]
        return self.advertise or {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104


def parse_address(text: str) -> tuple[str, int]:
    """Read HOST:PORT, or [HOST]:PORT for IPv6.

    Raises:
        ConfigError: another form, or no port from 0 to 65535.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not _PORT.fullmatch(port) or int(port) > 65535:
        raise ConfigError(f"listen: {text!r} is not HOST:PORT")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"listen: {text!r} is not HOST:PORT (write IPv6 as [HOST]:PORT)")
    return host, int(port)


def load_config(flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None) -> Config:
    """Put the settings together and check them.

    Args:
        flags: values by field name; None for a flag that was not given.
        environment: all variables; those that begin with MAILSERVER_ count, but for MAILSERVER_CONFIG.
        file: a TOML file whose keys are the field names.
    Raises:
        ConfigError: an unknown key, a value of the wrong kind or out of range, or an unreadable file. It names them.
    """
    values: dict[str, Any] = {}
    if file is not None:
        values.update(_from_file(file))
    values.update(_from_environment(environment))
    values.update({name: value for name, value in flags.items() if value is not None})
    config = Config(**values)
    _check(config)
    return config


def config_file(flag: str | None, environment: Mapping[str, str]) -> Path | None:
    """Which file to read: the flag's, else MAILSERVER_CONFIG's, else none."""
    name = flag or environment.get(CONFIG_VARIABLE)
    return Path(name) if name else None


_FIELDS = {setting.name: setting for setting in fields(Config)}


def _from_file(file: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except ValueError as error:  # not TOML, not UTF-8, or an integer of thousands of digits
        raise ConfigError(f"{file} is not TOML: {error}") from error
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
    """Read a setting's value from text.

    Raises:
        ConfigError: it is not of that kind; `where` says whose value it is.
    """
    if kind is bool:
        if text.lower() not in _BOOLEANS:
            raise ConfigError(f"{where}: {text!r} is neither true nor false")
        return _BOOLEANS[text.lower()]
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
    if kind is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            return math.inf  # out of every range
    if type(value) is not kind:
        raise ConfigError(f"{where}: {value!r} is not {_KINDS[kind]}")
    return value


def _check(config: Config) -> None:
    if "\0" in str(config.data_dir):
        raise ConfigError(f"data_dir: {str(config.data_dir)!r} is not a path")
    if _HOST.fullmatch(config.advertised_host) is None:
        name = "advertise" if config.advertise else "listen"
        raise ConfigError(f"{name}: {config.advertised_host!r} is neither a host name nor an address")
    for name in ("min_pow", "min_request_pow"):
        value = getattr(config, name)
        if not (math.isfinite(value) and value >= 0):
            raise ConfigError(f"{name}: {value} is not a finite number from 0 on")
    if not (math.isfinite(config.retention_days) and config.retention_days >= 0):
        raise ConfigError(f"retention_days: {config.retention_days} is not a finite number from 0 on")
    if config.retention_envelopes < 0:
        raise ConfigError(f"retention_envelopes: {config.retention_envelopes} is less than 0")
    if config.retention_bytes and config.retention_bytes < MIN_RETENTION_BYTES:
        raise ConfigError(f"retention_bytes: {config.retention_bytes} is neither 0 nor at least {MIN_RETENTION_BYTES}")
    if config.max_peers < 1:
        raise ConfigError(f"max_peers: {config.max_peers} is less than 1")
    if not 1 <= config.max_request_limit <= MAX_LIMIT:
        raise ConfigError(f"max_request_limit: {config.max_request_limit} is not from 1 to {MAX_LIMIT}")
    if config.completion_format not in {form.value for form in CompletionFormat}:
        raise ConfigError(f"completion_format: {config.completion_format!r} is neither 'bytes' nor 'list'")
    if config.log_level not in LOG_LEVELS:
        raise ConfigError(f"log_level: {config.log_level!r} is none of {', '.join(LOG_LEVELS)}")
