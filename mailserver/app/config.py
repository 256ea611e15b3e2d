"""The settings: name, meaning and default of each, and the objects that lists and addresses among them stand for.

`config_sources` reads them; `config_check` says which values are allowed.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any, TypeVar

from mailserver.codec.keys import Enode, NodeId, check_public_key
from mailserver.errors import ConfigError, DecodeError
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.limits.admission import AdmissionLimits
from mailserver.limits.packet_rates import DEFAULT_BYTE_LIMITS, DEFAULT_PACKET_LIMITS, DEFAULT_TOLERANCE_S
from mailserver.limits.request_quotas import ADDRESS_REQUEST_LIMITS, PEER_REQUEST_LIMITS
from mailserver.waku.bloom import FULL_INTEREST, Interest
from mailserver.waku.topics import parse_topic

LOG_LEVELS = ("debug", "info", "warning", "error")

_ADMISSION_DEFAULTS = AdmissionLimits()  # which gives the reasons for these defaults

_MAPPED_BITS = 96
_MAPPED = IPv6Network(f"::ffff:0:0/{_MAPPED_BITS}")
"""The IPv6 addresses that stand for IPv4 (RFC 4291 "IPv4-Mapped IPv6 Address")."""

_PORT = re.compile("[0-9]{1,5}")

_T = TypeVar("_T")


STORE_VARIABLE = "MAILSERVER_STORE"
"""The variable by which all programs of a data directory hear where its store is: a password is in one place, then."""


def setting(default: Any, help_text: str, *, reloadable: bool = False, secret: bool = False, variable: str = "") -> Any:
    """A field of a class of settings.

    Args:
        secret: it is not shown. variable: that of another program, which says it to this one, too; "": one of our own.
    """
    about = {"help": help_text, "reloadable": reloadable, "secret": secret, "variable": variable}
    return field(default=default, metadata=about)


@dataclass(frozen=True, slots=True)
class Config:
    """All settings of the daemon. Each field is a flag, an environment variable and a key of the file."""

    data_dir: Path = setting(Path("data"), "directory of the store, the node key and the enode file")
    store: str = setting(
        "",
        "URL of the PostgreSQL database to keep the store in, postgresql://USER@HOST/DATABASE (default: a file in the "
        "data directory)",
        secret=True,
    )
    listen: str = setting("0.0.0.0:30303", "HOST:PORT to accept peers on; port 0 picks a free port")
    workers: int = setting(
        1, "number of processes that serve peers on this port; each may use a core of its own; Linux only"
    )
    advertise: str = setting(
        "", "host in the enode URL (default: the host of --listen, or 127.0.0.1 if that is every address)"
    )
    password: str = setting(
        "status-offline-inbox",
        "password that history requests are sealed with; not a secret: all clients know the default",
        secret=True,
    )
    min_pow: float = setting(
        0.000002, "lowest proof of work to accept in an envelope; clients expect 0.000002 or less", reloadable=True
    )
    archive_topics: tuple[str, ...] = setting(
        (),
        "accept, store and announce only these topics: names, or 0x and 8 hex digits (default: all topics)",
        reloadable=True,
    )
    network_topic: str = setting(
        DEFAULT_NETWORK_TOPIC,
        "pubsub topic of Waku v2 to which message ids belong; to change it, run waku-mailserver reindex",
    )
    light_node: bool = setting(False, "do not relay what peers send, but still store it and answer requests")
    static_peers: tuple[str, ...] = setting((), "enode URLs of peers to stay connected to", reloadable=True)
    trusted_peers: tuple[str, ...] = setting(
        (), "enode URLs of mailservers to accept history from; missed envelopes are fetched from them", reloadable=True
    )
    sync_days: float = setting(30.0, "how many days back to fetch missed envelopes from trusted peers; 0: do not fetch")
    min_request_pow: float = setting(
        0.0, "lowest proof of work to accept in a sealed history request; some clients do no work"
    )
    request_pow: float = setting(
        0.0, "lowest proof of work of the history requests sent from here; more if a mailserver announces more"
    )
    max_peers: int = setting(
        500,
        "maximum number of connected peers, shared between subnets; static and trusted peers are always let in",
        reloadable=True,
    )
    max_peers_per_address: int = setting(
        _ADMISSION_DEFAULTS.max_per_address,
        "maximum number of connections from one address (IPv6: from one /64); 0: no limit",
        reloadable=True,
    )
    max_peers_per_subnet: int = setting(
        _ADMISSION_DEFAULTS.max_per_subnet,
        "maximum number of connections from one /24 (IPv6: from one /48); 0: no limit",
        reloadable=True,
    )
    connections_per_second: float = setting(
        _ADMISSION_DEFAULTS.per_second,
        "new connections per second from all unknown addresses together, and as many again from known ones; "
        "bursts of 5 s' worth; 0: no limit",
        reloadable=True,
    )
    connections_per_second_per_address: float = setting(
        _ADMISSION_DEFAULTS.per_second_per_address,
        "new connections per second from one address, twice as many from one subnet; bursts of 10 s' worth; "
        "0: no limit",
        reloadable=True,
    )
    max_handshake_failures: int = setting(
        _ADMISSION_DEFAULTS.max_failures,
        "how many handshakes of an address may fail within a minute before it is refused for a minute; 0: any number",
        reloadable=True,
    )
    packet_rate_limits: tuple[int, ...] = setting(
        tuple(DEFAULT_PACKET_LIMITS),
        "packets per second from one address, packets per second from one peer, envelopes per second of one topic; "
        "0: no limit",
        reloadable=True,
    )
    byte_rate_limits: tuple[int, ...] = setting(
        tuple(DEFAULT_BYTE_LIMITS),
        "bytes per second from one address, from one peer, of one topic; 0: no limit",
        reloadable=True,
    )
    rate_limit_tolerance_s: float = setting(
        DEFAULT_TOLERANCE_S,
        "how many seconds a peer may stay at its limit, slowed down, before it is disconnected; 0: none, inf: forever",
        reloadable=True,
    )
    peer_request_limits: tuple[int, ...] = setting(
        tuple(map(int, astuple(PEER_REQUEST_LIMITS))),
        "for one peer: history requests per minute, envelopes per minute, requests at once; 0: no limit",
        reloadable=True,
    )
    address_request_limits: tuple[int, ...] = setting(
        tuple(map(int, astuple(ADDRESS_REQUEST_LIMITS))), "the same three limits for one address", reloadable=True
    )
    allowed_addresses: tuple[str, ...] = setting(
        (),
        "addresses and networks to exempt from all limits; limits left at their defaults exempt loopback, too",
        reloadable=True,
    )
    allowed_peers: tuple[str, ...] = setting(
        (), "enode URLs or node IDs of peers to exempt from all limits on packets and requests", reloadable=True
    )
    max_request_limit: int = setting(1000, "maximum number of envelopes in one answer; a cursor leads to the rest")
    allow_clear_requests: bool = setting(True, "answer history requests that arrive unencrypted, not in an envelope")
    completion_format: str = setting(
        "bytes", "format of completions: bytes, which deployed clients read, or list, as in 8/WAKU-MAIL"
    )
    retention_days: float = setting(
        30.0, "how many days to keep envelopes after their reception; 0: forever", reloadable=True
    )
    retention_envelopes: int = setting(
        0, "maximum number of envelopes to keep; the oldest are deleted first; 0: no limit", reloadable=True
    )
    retention_bytes: int = setting(
        0,
        "maximum number of bytes to use in the store file; the oldest envelopes are deleted first; 0: no limit",
        reloadable=True,
    )
    archive: str = setting(
        "", "path or URL of the archive that the nightly compaction writes; only what is seen there is deleted here"
    )
    archive_max_age_hours: float = setting(
        48.0,
        "if the archive cannot be seen from here: go on deleting for this long after the compaction last checked it",
        reloadable=True,
    )
    archive_before_prune: bool = setting(
        True, "with an archive, delete only what a verified run of the compaction has archived", reloadable=True
    )
    answer_from_archive: bool = setting(
        True,
        "if the archive is in a folder or on S3, answer requests from it for what the store has deleted; needs pyarrow",
    )
    archive_reads: int = setting(
        0,
        "maximum number of threads that read the archive for requests; 0: 4 if it is on S3, otherwise one fewer than "
        "there are CPUs, from 1 to 4",
    )
    archive_cache_bytes: int = setting(
        64 * 1024 * 1024, "maximum number of bytes read from the archive to keep in memory; 0: none"
    )
    rpc: str = setting("", "HOST:PORT to serve JSON-RPC on, over HTTP and WebSocket (default: off)")
    rpc_token_file: str = setting(
        "", "file with the bearer token that JSON-RPC demands; required for any address but loopback (default: none)"
    )
    rpc_dialect: str = setting(
        "specification", "what waku_post returns: specification: true; deployed: the hash of the envelope"
    )
    feed_socket: bool = setting(
        False, "let gateways connect to the socket `feed` in the data directory: they get what is live, and post"
    )
    metrics: str = setting("", "HOST:PORT to serve metrics, health and the status page on (default: off)")
    log_level: str = setting("info", "lowest level to log: " + ", ".join(LOG_LEVELS), reloadable=True)
    log_format: str = setting(
        "text", "text: one line of key=value per event; json: one JSON object per event", reloadable=True
    )

    @property
    def listen_address(self) -> tuple[str, int]:
        """Host and port to listen on."""
        return parse_address("listen", self.listen)

    @property
    def interest(self) -> Interest:
        """The topics to accept: those named, or all."""
        if not self.archive_topics:
            return FULL_INTEREST
        return Interest(topics=frozenset(_each("archive_topics", parse_topic, self.archive_topics)))

    @property
    def static_enodes(self) -> tuple[Enode, ...]:
        """The peers to stay connected to."""
        return _each("static_peers", Enode.parse, self.static_peers)

    @property
    def trusted_enodes(self) -> tuple[Enode, ...]:
        """The mailservers whose history is accepted."""
        return _each("trusted_peers", Enode.parse, self.trusted_peers)

    @property
    def allowed_networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """The addresses that are exempt from limits."""
        return networks("allowed_addresses", self.allowed_addresses)

    @property
    def allowed_node_ids(self) -> frozenset[NodeId]:
        """The peers that are exempt from limits."""
        return frozenset(_each("allowed_peers", _node_id, self.allowed_peers))

    def is_default(self, *names: str) -> bool:
        """Whether all these settings have their defaults."""
        return all(getattr(self, name) == self.__dataclass_fields__[name].default for name in names)

    @property
    def advertised_host(self) -> str:
        """The host in the enode URL."""
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


def networks(name: str, texts: Iterable[str]) -> tuple[IPv4Network | IPv6Network, ...]:
    """Read addresses and networks.

    Args:
        name: of the setting.
    Raises:
        ConfigError: one of them is neither.
    """
    return _each(name, _network, texts)


def _network(text: str) -> IPv4Network | IPv6Network:
    """Read a network. An IPv4 network written as IPv4-mapped IPv6 becomes the IPv4 network."""
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
        ConfigError: the text has another form, or the port is not between 0 and 65535.
    """
    host, colon, port = text.rpartition(":")
    if not colon or "\0" in host or not _PORT.fullmatch(port) or int(port) > 65535:
        raise ConfigError(f"{name}: {text!r} is not HOST:PORT")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"{name}: {text!r} is not HOST:PORT (write IPv6 as [HOST]:PORT)")
    return host, int(port)
