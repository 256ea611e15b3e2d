"""Settings: flags, then MAILSERVER_* environment, then the TOML file, then defaults. Checked in one place."""

import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass, field, fields
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from mailserver.api.waku import Dialect
from mailserver.app.logs import LogFormat
from mailserver.catchup.catchup import MAX_SOURCES
from mailserver.codec.keys import Enode, NodeId, check_public_key
from mailserver.errors import ConfigError, DecodeError
from mailserver.limits.admission import AdmissionLimits
from mailserver.limits.packet_rates import DEFAULT_BYTE_LIMITS, DEFAULT_PACKET_LIMITS, DEFAULT_TOLERANCE_S
from mailserver.limits.request_quotas import ADDRESS_REQUEST_LIMITS, PEER_REQUEST_LIMITS
from mailserver.mail.completion import CompletionFormat
from mailserver.units import number_text
from mailserver.waku.bloom import FULL_INTEREST, Interest
from mailserver.waku.packets import MAX_TOPIC_INTEREST
from mailserver.waku.topics import parse_topic

ENVIRONMENT_PREFIX = "MAILSERVER_"
CONFIG_VARIABLE = "MAILSERVER_CONFIG"

MAX_LIMIT = 100_000
"""Highest `max_request_limit`: the keys of one page are held in memory, 200 bytes each."""

MIN_RETENTION_BYTES = 1024 * 1024
"""Lowest `retention_bytes`, 64 pages: an empty store takes ten. Less is a slip of the unit, and would delete all."""

MAX_DAYS = 36_500.0
"""Highest `retention_days` and `sync_days`, a hundred years: times are computed from them."""

MAX_ARCHIVE_READS = 64
"""Highest `archive_reads`: each is a thread, and may decode a row group of 18 MiB."""

MAX_RATE = 0xFFFF_FFFF
"""Highest rate limit: peers read 4 bytes (10/WAKU-USAGE "Rate limiting")."""

MAX_REQUEST_POW = 100.0
"""Highest `request_pow`: 5 s of work for each request; a mailserver that asks for more hears from nobody."""

LOG_LEVELS = ("debug", "info", "warning", "error")

_ADMISSION_DEFAULTS = AdmissionLimits()  # they say why the defaults are what they are

_MAPPED_BITS = 96
_MAPPED = IPv6Network(f"::ffff:0:0/{_MAPPED_BITS}")
"""IPv4 as addresses of IPv6 (RFC 4291 "IPv4-Mapped IPv6 Address")."""

_PORT = re.compile("[0-9]{1,5}")
_HOST = re.compile("[A-Za-z0-9._-]+|[0-9a-fA-F:.]+")  # what can stand in an enode URL

_T = TypeVar("_T")


def _setting(default: Any, help_text: str, *, reloadable: bool = False, secret: bool = False) -> Any:
    return field(default=default, metadata={"help": help_text, "reloadable": reloadable, "secret": secret})


@dataclass(frozen=True, slots=True)
class Config:
    """All settings of the daemon; each field is a flag, an environment variable and a key of the file."""

    data_dir: Path = _setting(Path("data"), "folder of the store, the node key and the enode file")
    listen: str = _setting("0.0.0.0:30303", "HOST:PORT to accept peers on; port 0 takes any free one")
    advertise: str = _setting("", "host in the enode URL (default: the listen host; for all addresses, 127.0.0.1)")
    password: str = _setting(
        "status-offline-inbox", "password of history requests; no secret: all clients know it", secret=True
    )
    min_pow: float = _setting(
        0.000002, "least proof of work of an envelope, 0.000002 is what clients expect at most", reloadable=True
    )
    archive_topics: tuple[str, ...] = _setting(
        (), "the only topics to take, keep and announce: names, or 0x and 8 hex digits (default: all)", reloadable=True
    )
    light_node: bool = _setting(False, "relay nothing that others send; still keep it and answer requests")
    static_peers: tuple[str, ...] = _setting((), "enode URLs of peers to stay connected to", reloadable=True)
    trusted_peers: tuple[str, ...] = _setting(
        (), "enode URLs of mailservers to take history from: what was missed is fetched from them", reloadable=True
    )
    sync_days: float = _setting(30.0, "how far back to fetch what was missed from trusted peers, in days; 0: nothing")
    min_request_pow: float = _setting(0.0, "least proof of work of a sealed history request; some clients send none")
    request_pow: float = _setting(
        0.0,
        "least proof of work of the history requests made here; more where a mailserver announces more",
    )
    max_peers: int = _setting(
        500, "most connected peers, shared between subnets; static and trusted ones always find room", reloadable=True
    )
    max_peers_per_address: int = _setting(
        _ADMISSION_DEFAULTS.max_per_address, "most connections of one address, or /64; 0: any number", reloadable=True
    )
    max_peers_per_subnet: int = _setting(
        _ADMISSION_DEFAULTS.max_per_subnet, "most connections of one /24, or /48; 0: any number", reloadable=True
    )
    connections_per_second: float = _setting(
        _ADMISSION_DEFAULTS.per_second,
        "new connections per second of all strangers, as many of known addresses; 5 s' worth at once; 0: any number",
        reloadable=True,
    )
    connections_per_second_per_address: float = _setting(
        _ADMISSION_DEFAULTS.per_second_per_address,
        "the same of one address, after a burst of 10 s' worth, and twice that of one subnet; 0: any number",
        reloadable=True,
    )
    max_handshake_failures: int = _setting(
        _ADMISSION_DEFAULTS.max_failures,
        "failed handshakes within a minute after which an address is refused for a minute; 0: never",
        reloadable=True,
    )
    packet_rate_limits: tuple[int, ...] = _setting(
        tuple(DEFAULT_PACKET_LIMITS),
        "packets per second of one address, of one peer, and envelopes of one topic; 0: any",
        reloadable=True,
    )
    byte_rate_limits: tuple[int, ...] = _setting(
        tuple(DEFAULT_BYTE_LIMITS),
        "bytes per second of one address, of one peer, of one topic; 0: any",
        reloadable=True,
    )
    rate_limit_tolerance_s: float = _setting(
        DEFAULT_TOLERANCE_S,
        "how long a peer may stay at its limit, slowed, before it is disconnected; 0: at once, inf: ever",
        reloadable=True,
    )
    peer_request_limits: tuple[int, ...] = _setting(
        tuple(map(int, astuple(PEER_REQUEST_LIMITS))),
        "history requests and envelopes per minute, and requests at once, of one peer; 0: any",
        reloadable=True,
    )
    address_request_limits: tuple[int, ...] = _setting(
        tuple(map(int, astuple(ADDRESS_REQUEST_LIMITS))), "the same of one address", reloadable=True
    )
    allowed_addresses: tuple[str, ...] = _setting(
        (),
        "addresses or networks that are never limited; the defaults of all limits leave out loopback",
        reloadable=True,
    )
    allowed_peers: tuple[str, ...] = _setting(
        (), "enode URLs or node ids that may send and ask without limits", reloadable=True
    )
    max_request_limit: int = _setting(1000, "most envelopes in the answer to one request; a cursor leads to the next")
    allow_clear_requests: bool = _setting(True, "answer history requests that come in the clear, without an envelope")
    completion_format: str = _setting(
        "bytes", "completions as deployed clients read them: bytes, or as 8/WAKU-MAIL has them: list"
    )
    retention_days: float = _setting(
        30.0, "how long to keep envelopes after their reception, in days; 0: for ever", reloadable=True
    )
    retention_envelopes: int = _setting(
        0, "most envelopes to keep, the oldest go first; 0: any number", reloadable=True
    )
    retention_bytes: int = _setting(
        0, "most bytes of the store file to use, the oldest go first; 0: any number", reloadable=True
    )
    archive: str = _setting(
        "", "path or URL of the archive that the nightly compaction fills: what is not seen to be there is not deleted"
    )
    archive_max_age_hours: float = _setting(
        48.0,
        "where the archive cannot be seen from here, how old the compaction's last look at it may be to delete",
        reloadable=True,
    )
    archive_before_prune: bool = _setting(
        True, "with an archive, never delete what no verified run of the compaction has archived", reloadable=True
    )
    answer_from_archive: bool = _setting(
        True, "with an archive in a local folder, answer requests from it for what the store has no more; takes pyarrow"
    )
    archive_reads: int = _setting(2, "how many threads read the archive for requests at most")
    archive_cache_bytes: int = _setting(
        64 * 1024 * 1024, "how much of what was read of the archive is kept in memory, in bytes; 0: nothing"
    )
    rpc: str = _setting("", "HOST:PORT to serve JSON-RPC on, over HTTP and WebSocket (default: not at all)")
    rpc_token_file: str = _setting(
        "", "file with the bearer token that JSON-RPC asks for; a must for any address but loopback (default: none)"
    )
    rpc_dialect: str = _setting(
        "specification", "what waku_post returns: specification: true, deployed: the hash of the envelope"
    )
    metrics: str = _setting("", "HOST:PORT to serve metrics on, for Prometheus (default: not at all)")
    log_level: str = _setting("info", "least level to log: " + ", ".join(LOG_LEVELS), reloadable=True)
    log_format: str = _setting("text", "text: a line of key=value for each event; json: an object", reloadable=True)

    @property
    def listen_address(self) -> tuple[str, int]:
        """Host and port to listen on."""
        return parse_address("listen", self.listen)

    @property
    def interest(self) -> Interest:
        """What is taken: the topics named, or everything."""
        if not self.archive_topics:
            return FULL_INTEREST
        return Interest(topics=frozenset(_each("archive_topics", parse_topic, self.archive_topics)))

    @property
    def static_enodes(self) -> tuple[Enode, ...]:
        """The peers to stay connected to."""
        return _each("static_peers", Enode.parse, self.static_peers)

    @property
    def trusted_enodes(self) -> tuple[Enode, ...]:
        """The mailservers to take history from."""
        return _each("trusted_peers", Enode.parse, self.trusted_peers)

    @property
    def allowed_networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """The addresses that are never limited."""
        return _each("allowed_addresses", _network, self.allowed_addresses)

    @property
    def allowed_node_ids(self) -> frozenset[NodeId]:
        """The peers that are never limited."""
        return frozenset(_each("allowed_peers", _node_id, self.allowed_peers))

    def is_default(self, *names: str) -> bool:
        """Whether all these settings have their defaults."""
        return all(getattr(self, name) == _FIELDS[name].default for name in names)

    @property
    def advertised_host(self) -> str:
        """The host for the enode URL."""
        host = self.listen_address[0]
        return self.advertise or {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104


def _each(name: str, parse: Callable[[str], _T], texts: Iterable[str]) -> tuple[_T, ...]:
    parsed = []
    for text in texts:
        try:
            parsed.append(parse(text))
        except (DecodeError, ValueError) as error:
            raise ConfigError(f"{name}: {text!r}: {error}") from error
    return tuple(parsed)


def _network(text: str) -> IPv4Network | IPv6Network:
    """Read a network; one of IPv4 mapped into IPv6 is the one of IPv4 that it means."""
    network = ip_network(text)
    if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
        mapped = network.network_address.ipv4_mapped
        assert mapped is not None
        return IPv4Network((mapped, network.prefixlen - _MAPPED_BITS))
    return network


def _node_id(text: str) -> NodeId:
    if text.startswith("enode:"):
        return Enode.parse(text).node_id
    return check_public_key(bytes.fromhex(text))


def parse_address(name: str, text: str) -> tuple[str, int]:
    """Read HOST:PORT, or [HOST]:PORT for IPv6.

    Raises:
        ConfigError: another form, or no port from 0 to 65535.
    """
    host, colon, port = text.rpartition(":")
    if not colon or "\0" in host or not _PORT.fullmatch(port) or int(port) > 65535:
        raise ConfigError(f"{name}: {text!r} is not HOST:PORT")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"{name}: {text!r} is not HOST:PORT (write IPv6 as [HOST]:PORT)")
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
    for given in given_settings(flags, environment, file).values():
        values.update(given)
    config = Config(**values)
    _check(config)
    return config


def given_settings(
    flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None
) -> dict[str, dict[str, Any]]:
    """What each place says, the weakest first: "file", "environment", "flag". As `load_config`, but not yet checked."""
    return {
        "file": {} if file is None else _from_file(file),
        "environment": _from_environment(environment),
        "flag": {name: value for name, value in flags.items() if value is not None},
    }


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


_LIMITS = ("packet_rate_limits", "byte_rate_limits", "peer_request_limits", "address_request_limits")
_FROM_ZERO = (
    "min_pow",
    "min_request_pow",
    "request_pow",
    "retention_days",
    "sync_days",
    "connections_per_second",
    "connections_per_second_per_address",
)
_COUNTS = (
    "retention_envelopes",
    "archive_cache_bytes",
    "max_peers_per_address",
    "max_peers_per_subnet",
    "max_handshake_failures",
)
_CHOICES = {
    "completion_format": tuple(form.value for form in CompletionFormat),
    "rpc_dialect": tuple(dialect.value for dialect in Dialect),
    "log_level": LOG_LEVELS,
    "log_format": tuple(form.value for form in LogFormat),
}


def _check(config: Config) -> None:
    for name in ("data_dir", "rpc_token_file"):
        if "\0" in str(getattr(config, name)):
            raise ConfigError(f"{name}: {str(getattr(config, name))!r} is not a path")
    if _HOST.fullmatch(config.advertised_host) is None:
        name = "advertise" if config.advertise else "listen"
        raise ConfigError(f"{name}: {config.advertised_host!r} is neither a host name nor an address")
    for name in _FROM_ZERO:
        value = getattr(config, name)
        if not (math.isfinite(value) and value >= 0):
            raise ConfigError(f"{name}: {number_text(value)} is not a finite number from 0 on")
    for name in ("retention_days", "sync_days"):
        if getattr(config, name) > MAX_DAYS:
            raise ConfigError(f"{name}: {getattr(config, name)} is more than {MAX_DAYS:.0f}")
    if config.request_pow > MAX_REQUEST_POW:
        raise ConfigError(f"request_pow: {number_text(config.request_pow)} is more than {MAX_REQUEST_POW:.0f}")
    if not 0 < config.archive_max_age_hours <= MAX_DAYS * 24:
        raise ConfigError(
            f"archive_max_age_hours: {config.archive_max_age_hours} is not a number of hours above 0, "
            f"up to {MAX_DAYS * 24:.0f}"
        )
    if not config.rate_limit_tolerance_s >= 0:  # infinity is for ever
        raise ConfigError(
            f"rate_limit_tolerance_s: {number_text(config.rate_limit_tolerance_s)} is not a number from 0 on"
        )
    for name in _COUNTS:
        if getattr(config, name) < 0:
            raise ConfigError(f"{name}: {getattr(config, name)} is less than 0")
    if config.retention_bytes and config.retention_bytes < MIN_RETENTION_BYTES:
        raise ConfigError(f"retention_bytes: {config.retention_bytes} is neither 0 nor at least {MIN_RETENTION_BYTES}")
    if config.max_peers < 1:
        raise ConfigError(f"max_peers: {config.max_peers} is less than 1")
    if not 1 <= config.archive_reads <= MAX_ARCHIVE_READS:
        raise ConfigError(f"archive_reads: {config.archive_reads} is not from 1 to {MAX_ARCHIVE_READS}")
    if not 1 <= config.max_request_limit <= MAX_LIMIT:
        raise ConfigError(f"max_request_limit: {config.max_request_limit} is not from 1 to {MAX_LIMIT}")
    for name in _LIMITS:
        limits = getattr(config, name)
        if len(limits) != 3 or not all(0 <= limit <= MAX_RATE for limit in limits):
            shown = ", ".join(map(str, limits)) or "nothing"
            raise ConfigError(f"{name}: {shown} is not three numbers from 0 to {MAX_RATE}")
    if len(config.archive_topics) > MAX_TOPIC_INTEREST:
        raise ConfigError(f"archive_topics: {len(config.archive_topics)} topics are more than {MAX_TOPIC_INTEREST}")
    if len(config.trusted_peers) > MAX_SOURCES:
        raise ConfigError(f"trusted_peers: {len(config.trusted_peers)} mailservers are more than {MAX_SOURCES}")
    for name, choices in _CHOICES.items():
        if getattr(config, name) not in choices:
            raise ConfigError(f"{name}: {getattr(config, name)!r} is none of {', '.join(choices)}")
    for name in ("rpc", "metrics"):
        if getattr(config, name):
            parse_address(name, getattr(config, name))
    for name in ("interest", "static_enodes", "trusted_enodes", "allowed_networks", "allowed_node_ids"):
        getattr(config, name)  # raises what is wrong with it
