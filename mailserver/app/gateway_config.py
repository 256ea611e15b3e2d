"""The settings of the gateway: name, meaning and default of each, and which values are allowed."""

import math
import re
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

from mailserver.app.config import LOG_LEVELS, STORE_VARIABLE, networks, parse_address, setting
from mailserver.app.config_check import MAX_ARCHIVE_READS, check_store
from mailserver.app.config_sources import ConfigSources
from mailserver.app.logs import LogFormat
from mailserver.errors import ConfigError, DecodeError
from mailserver.gateway.limits import HostLimits
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.libp2p.multiaddr import Multiaddr
from mailserver.limits.admission import AdmissionLimits
from mailserver.units import number_text

_SHARD = re.compile("/waku/2/rs/([0-9]{1,5})/([0-9]{1,4})")

_LIMITS = HostLimits()  # which gives the reasons for these defaults

_FROM_ZERO = (
    "connections_per_second",
    "connections_per_second_per_address",
    "filter_requests_per_second",
    "store_queries_per_second",
    "sent_messages_per_second",
    "pow_share",
)
_COUNTS = ("archive_cache_bytes", "max_clients_per_address", "max_clients_per_subnet", "max_handshake_failures")
MAX_CLIENTS = 100_000
"""Highest `max_clients`, `max_subscribers` and `max_criteria`."""

MAX_TTL_S = 7 * 86_400
"""Highest `ttl`: a week, as long as a node keeps a live envelope at most."""


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """All settings of the gateway. Each field is a flag, an environment variable and a key of the file."""

    data_dir: Path = setting(Path("data"), "data directory of the mailserver, which must run with --feed-socket")
    store: str = setting(
        "",
        "URL of the PostgreSQL database that the mailserver keeps its store in; the environment variable is the "
        f"mailserver's, {STORE_VARIABLE} (default: a file in the data directory)",
        secret=True,
        variable=STORE_VARIABLE,
    )
    network_topic: str = setting(
        DEFAULT_NETWORK_TOPIC, "pubsub topic of all messages here, the same as the mailserver's"
    )
    archive: str = setting(
        "",
        "path or URL of the archive that the nightly compaction writes, the same as the mailserver's; history that the "
        "store has deleted is answered from it, if it is in a folder or on S3; needs pyarrow",
    )
    archive_reads: int = setting(
        0,
        "maximum number of threads that read the archive; 0: 4 if it is on S3, otherwise one fewer than there are "
        "CPUs, from 1 to 4",
    )
    archive_cache_bytes: int = setting(
        32 * 1024 * 1024, "maximum number of bytes read from the archive to keep in memory; 0: none"
    )
    listen: str = setting(
        "0.0.0.0:60000", "HOST:PORT to accept clients on over TCP; port 0 picks a free port; empty: none"
    )
    websocket: str = setting("0.0.0.0:8000", "HOST:PORT to accept clients on over WebSocket; empty: none")
    advertise: tuple[str, ...] = setting(
        (),
        "multiaddrs to show and announce, instead of those of the addresses listened on, such as "
        "/dns4/HOST/tcp/443/wss",
    )
    max_clients: int = setting(_LIMITS.max_clients, "maximum number of connected clients")
    max_clients_per_address: int = setting(
        _LIMITS.admission.max_per_address, "maximum number of connections from one address (IPv6: one /64); 0: no limit"
    )
    max_clients_per_subnet: int = setting(
        _LIMITS.admission.max_per_subnet, "maximum number of connections from one /24 (IPv6: one /48); 0: no limit"
    )
    connections_per_second: float = setting(
        _LIMITS.admission.per_second,
        "new connections per second from all unknown addresses together, and as many again from known ones; "
        "bursts of 5 s' worth; 0: no limit",
    )
    connections_per_second_per_address: float = setting(
        _LIMITS.admission.per_second_per_address,
        "new connections per second from one address, twice as many from one subnet; bursts of 10 s' worth; "
        "0: no limit",
    )
    max_handshake_failures: int = setting(
        _LIMITS.admission.max_failures,
        "how many handshakes of an address may fail within a minute before it is refused for a minute; 0: any number",
    )
    trusted_proxies: tuple[str, ...] = setting(
        (), "addresses and networks of proxies before --websocket whose X-Forwarded-For is believed"
    )
    allowed_addresses: tuple[str, ...] = setting((), "addresses and networks to exempt from all limits by address")
    max_subscribers: int = setting(1000, "maximum number of clients with subscriptions")
    max_criteria: int = setting(1000, "maximum number of content topics that one client may subscribe to")
    filter_requests_per_second: float = setting(
        20.0, "filter requests per second from one address; bursts of 10 s' worth; 0: no limit"
    )
    store_queries_per_second: float = setting(
        20.0, "store queries per second from one address; bursts of 10 s' worth; 0: no limit"
    )
    sent_messages_per_second: float = setting(
        5.0, "messages per second that clients of one address may send; bursts of 10 s' worth; 0: no limit"
    )
    ttl: int = setting(60, "time to live, in seconds, of the envelopes made of what clients send")
    pow_share: float = setting(
        0.2, "share of one processor that may be spent on the proof of work of what clients send; 0: no message is sent"
    )
    metrics: str = setting("", "HOST:PORT to serve metrics and health on (default: off)")
    log_level: str = setting("info", "lowest level to log: " + ", ".join(LOG_LEVELS))
    log_format: str = setting("text", "text: one line of key=value per event; json: one JSON object per event")

    @property
    def shard(self) -> tuple[int, int] | None:
        """Cluster and shard of the network topic (51/WAKU2-RELAY-SHARDING); None if it is of another form."""
        found = _SHARD.fullmatch(self.network_topic)
        return None if found is None else (int(found[1]), int(found[2]))

    @property
    def host_limits(self) -> HostLimits:
        """How many clients may connect."""
        return HostLimits(
            max_clients=self.max_clients,
            trusted_proxies=self.proxy_networks,
            admission=AdmissionLimits(
                self.max_clients_per_address,
                self.max_clients_per_subnet,
                self.connections_per_second,
                self.connections_per_second_per_address,
                self.max_handshake_failures,
            ),
        )

    @property
    def announced(self) -> tuple[Multiaddr, ...]:
        """The addresses to announce; none: those that are listened on.

        Raises:
            ConfigError: one is no multiaddr.
        """
        try:
            return tuple(map(Multiaddr.parse, self.advertise))
        except DecodeError as error:
            raise ConfigError(f"advertise: {error}") from error

    @property
    def proxy_networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """Whose `X-Forwarded-For` is believed."""
        return networks("trusted_proxies", self.trusted_proxies)

    @property
    def allowed_networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """The addresses that are exempt from limits."""
        return networks("allowed_addresses", self.allowed_addresses)


def check_gateway_config(config: GatewayConfig) -> None:
    """Check every setting.

    Raises:
        ConfigError: one has a value that is not allowed. It names the setting.
    """
    if "\0" in str(config.data_dir):
        raise ConfigError(f"data_dir: {str(config.data_dir)!r} is not a path")
    check_store(config.store)
    if config.shard is None:
        raise ConfigError(
            f"network_topic: {config.network_topic!r} is not /waku/2/rs/CLUSTER/SHARD, which clients are told"
        )
    if not config.listen and not config.websocket:
        raise ConfigError("listen: one of --listen and --websocket is needed")
    for name in ("listen", "websocket", "metrics"):
        if text := getattr(config, name):
            parse_address(name, text)
    for name in _FROM_ZERO:
        value = getattr(config, name)
        if not (math.isfinite(value) and value >= 0):
            raise ConfigError(f"{name}: {number_text(value)} is not a finite number of at least 0")
    for name in _COUNTS:
        if getattr(config, name) < 0:
            raise ConfigError(f"{name}: {getattr(config, name)} is below 0")
    for name, most in (
        ("max_clients", MAX_CLIENTS),
        ("max_subscribers", MAX_CLIENTS),
        ("max_criteria", MAX_CLIENTS),
        ("ttl", MAX_TTL_S),
    ):
        if not 1 <= getattr(config, name) <= most:
            raise ConfigError(f"{name}: {getattr(config, name)} is not between 1 and {most}")
    if not 0 <= config.archive_reads <= MAX_ARCHIVE_READS:
        raise ConfigError(f"archive_reads: {config.archive_reads} is not between 0 and {MAX_ARCHIVE_READS}")
    if config.pow_share > 1:
        raise ConfigError(f"pow_share: {number_text(config.pow_share)} is more than 1, a whole processor")
    _ = config.announced, config.proxy_networks, config.allowed_networks
    for name, choices in (("log_level", LOG_LEVELS), ("log_format", tuple(form.value for form in LogFormat))):
        if getattr(config, name) not in choices:
            raise ConfigError(f"{name}: {getattr(config, name)!r} is not one of {', '.join(choices)}")


GATEWAY = ConfigSources(GatewayConfig, "GATEWAY_", check_gateway_config)
"""Where these settings come from."""
