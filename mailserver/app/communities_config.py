"""The settings of `community serve` and `community fetch`: name, meaning and default of each, and what is allowed."""

from dataclasses import dataclass
from pathlib import Path

from mailserver.app.config import LOG_LEVELS, STORE_VARIABLE, Config, parse_address, setting
from mailserver.app.config_check import check_store
from mailserver.app.config_sources import ConfigSources
from mailserver.app.logs import LogFormat
from mailserver.errors import ConfigError
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.torrents.magnet import MAX_PEERS, Address, decode_address, is_tracker
from mailserver.torrents.settings import TorrentSettings
from mailserver.units import number_text

_DEFAULTS = TorrentSettings()  # which gives the reasons for these defaults

MAX_CONNECTIONS = 10_000
MAX_ANNOUNCE_HOURS = 30 * 24.0
"""Mailservers keep a link for so long: a member that joins must find one (61/STATUS "Fetching")."""

MAX_WAIT_S = 86_400.0
"""The longest that a member may wait for a torrent's metadata, or for a piece: a day."""


@dataclass(frozen=True, slots=True)
class CommunitiesConfig:
    """All settings of the process. Each field is a flag, an environment variable and a key of the file."""

    data_dir: Path = setting(Path("data"), "data directory, of which the folder communities has what is kept of them")
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
    password: str = setting(
        Config().password, "password of the mailservers that are asked for history; all clients know it", secret=True
    )
    torrent_listen: str = setting(
        "0.0.0.0:6881", "IP address and port for BitTorrent peers; port 0 picks a free port; IPv6 in brackets"
    )
    torrent_upload: int = setting(
        _DEFAULTS.upload_bytes_s, "bytes per second that are sent to all BitTorrent peers together, at most"
    )
    torrent_download: int = setting(
        _DEFAULTS.download_bytes_s, "bytes per second that are taken from all of them, at most; 0: no limit"
    )
    torrent_connections: int = setting(_DEFAULTS.max_connections, "maximum number of connected BitTorrent peers")
    trackers: tuple[str, ...] = setting((), "URLs of trackers that are asked for peers, and told of us")
    link_trackers: bool = setting(_DEFAULTS.link_trackers, "ask the trackers of magnet links, too")
    torrent_peers: tuple[str, ...] = setting((), "IP addresses and ports of peers to connect to for every torrent")
    dht: bool = setting(_DEFAULTS.dht, "find peers by the network of all BitTorrent clients, and be found there")
    local_discovery: bool = setting(_DEFAULTS.local_discovery, "find peers in the local network, by multicast")
    port_mapping: bool = setting(_DEFAULTS.port_mapping, "ask the router for a port, by UPnP and NAT-PMP")
    utp: bool = setting(_DEFAULTS.utp, "also use uTP, which gives way to other traffic and is slower")
    metadata_timeout_s: float = setting(
        _DEFAULTS.metadata_timeout_s, "how long to wait, in seconds, until somebody has the torrent of a magnet link"
    )
    stall_timeout_s: float = setting(
        _DEFAULTS.stall_timeout_s, "how long no piece may come, in seconds, before a download is given up for now"
    )
    announce_hours: float = setting(
        8.0, "hours after which the magnet link of a community that we own is announced again"
    )
    advertise: tuple[str, ...] = setting(
        (), "IP addresses and ports of ours that these magnet links name, for members without a tracker"
    )
    rpc: str = setting("", "HOST:PORT to serve JSON-RPC of communities on, over HTTP and WebSocket (default: off)")
    rpc_token_file: str = setting(
        "", "file with the bearer token that JSON-RPC demands; required for any address but loopback (default: none)"
    )
    metrics: str = setting("", "HOST:PORT to serve metrics and health on (default: off)")
    log_level: str = setting("info", "lowest level to log: " + ", ".join(LOG_LEVELS))
    log_format: str = setting("text", "text: one line of key=value per event; json: one JSON object per event")

    @property
    def torrents(self) -> TorrentSettings:
        """How the torrent process behaves.

        Raises:
            ConfigError: an address is none.
        """
        return TorrentSettings(
            listen=_address("torrent_listen", self.torrent_listen, is_port_free=True),
            upload_bytes_s=self.torrent_upload,
            download_bytes_s=self.torrent_download,
            max_connections=self.torrent_connections,
            trackers=self.trackers,
            link_trackers=self.link_trackers,
            dht=self.dht,
            local_discovery=self.local_discovery,
            port_mapping=self.port_mapping,
            utp=self.utp,
            peers=tuple(_address("torrent_peers", peer) for peer in self.torrent_peers),
            metadata_timeout_s=self.metadata_timeout_s,
            stall_timeout_s=self.stall_timeout_s,
        )

    @property
    def advertised(self) -> tuple[Address, ...]:
        """The addresses that our magnet links name.

        Raises:
            ConfigError: one is none.
        """
        return tuple(_address("advertise", address) for address in self.advertise)


def check_communities_config(config: CommunitiesConfig) -> None:
    """Check every setting.

    Raises:
        ConfigError: one has a value that is not allowed. It names the setting.
    """
    for name in ("data_dir", "rpc_token_file"):
        if "\0" in str(getattr(config, name)):
            raise ConfigError(f"{name}: {str(getattr(config, name))!r} is not a path")
    check_store(config.store)
    if config.rpc:
        parse_address("rpc", config.rpc)
    if not config.network_topic:
        raise ConfigError("network_topic: it is empty")
    if not config.password:
        raise ConfigError("password: it is empty")
    if config.torrent_upload < 1:  # to libtorrent, 0 means that there is no bound
        raise ConfigError(f"torrent_upload: {config.torrent_upload} is below 1")
    if config.torrent_download < 0:
        raise ConfigError(f"torrent_download: {config.torrent_download} is below 0")
    if not 1 <= config.torrent_connections <= MAX_CONNECTIONS:
        raise ConfigError(f"torrent_connections: {config.torrent_connections} is not between 1 and {MAX_CONNECTIONS}")
    for url in config.trackers:
        if not is_tracker(url):
            raise ConfigError(f"trackers: {url!r} is no URL of a tracker")
    for name in ("metadata_timeout_s", "stall_timeout_s"):
        value = getattr(config, name)
        if not 0 < value <= MAX_WAIT_S:
            raise ConfigError(f"{name}: {number_text(value)} is not above 0, and at most {number_text(MAX_WAIT_S)}")
    if not 0 < config.announce_hours <= MAX_ANNOUNCE_HOURS:
        hours = f"{number_text(config.announce_hours)} is not above 0, and at most {number_text(MAX_ANNOUNCE_HOURS)}"
        raise ConfigError(f"announce_hours: {hours}")
    if len(config.advertise) > MAX_PEERS:
        raise ConfigError(f"advertise: {len(config.advertise)} addresses are more than {MAX_PEERS}")
    if config.metrics:
        parse_address("metrics", config.metrics)
    _ = config.torrents, config.advertised
    for name, choices in (("log_level", LOG_LEVELS), ("log_format", tuple(form.value for form in LogFormat))):
        if getattr(config, name) not in choices:
            raise ConfigError(f"{name}: {getattr(config, name)!r} is not one of {', '.join(choices)}")


def _address(name: str, text: str, *, is_port_free: bool = False) -> Address:
    """An IP address and a port; a port of 0 is one that is free, where that makes sense."""
    try:
        host, port = decode_address(f"{text[:-2]}:1" if is_port_free and text.endswith(":0") else text)
    except ValueError as error:
        raise ConfigError(f"{name}: {text!r} is no IP address with a port") from error
    return (host, 0) if is_port_free and text.endswith(":0") else (host, port)


COMMUNITIES = ConfigSources(CommunitiesConfig, "COMMUNITIES_", check_communities_config)
"""Where these settings come from."""
