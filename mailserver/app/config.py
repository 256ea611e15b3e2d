"""The settings: what there is, what each means and its default, and what texts among them stand for.

`config_sources` reads them, `config_check` says which values are allowed.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any, TypeVar

from mailserver.codec.keys import Enode, NodeId, check_public_key
from mailserver.errors import ConfigError, DecodeError
from mailserver.limits.admission import AdmissionLimits
from mailserver.limits.packet_rates import DEFAULT_BYTE_LIMITS, DEFAULT_PACKET_LIMITS, DEFAULT_TOLERANCE_S
from mailserver.limits.request_quotas import ADDRESS_REQUEST_LIMITS, PEER_REQUEST_LIMITS
from mailserver.waku.bloom import FULL_INTEREST, Interest
from mailserver.waku.topics import parse_topic

LOG_LEVELS = ("debug", "info", "warning", "error")

_ADMISSION_DEFAULTS = AdmissionLimits()  # they say why the defaults are what they are

_MAPPED_BITS = 96
_MAPPED = IPv6Network(f"::ffff:0:0/{_MAPPED_BITS}")
"""IPv4 as addresses of IPv6 (RFC 4291 "IPv4-Mapped IPv6 Address")."""

_PORT = re.compile("[0-9]{1,5}")

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
        return all(getattr(self, name) == self.__dataclass_fields__[name].default for name in names)

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
