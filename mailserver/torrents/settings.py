"""How the torrent process behaves. Whoever runs it makes these of its own settings."""

from dataclasses import dataclass

from mailserver.torrents.magnet import Address


@dataclass(frozen=True, slots=True)
class TorrentSettings:
    """Settings of one torrent process. The defaults tell nobody of a torrent but those who ask for it.

    Args:
        listen: an IP address and a port where peers reach us; port 0 takes one that is free. We dial from the same
            address, unless it is the one for all.
        upload_bytes_s: the most that is sent to all peers together.
        download_bytes_s: the most that is taken from all peers together; 0 means no bound.
        max_connections: peers at once, over all torrents.
        trackers: asked for peers of every torrent, and told of us.
        link_trackers: ask the trackers of magnet links, too.
        dht: find peers by the network of all BitTorrent clients, and be found there.
        local_discovery: find peers in the local network, by multicast.
        port_mapping: ask the router for a port, by UPnP and NAT-PMP.
        utp: also use uTP, which gives way to other traffic and is slower.
        peers: connected to for every torrent.
        metadata_timeout_s: how long to wait for the metadata of a link. 61/STATUS has no time; status-go waits 20 s.
        stall_timeout_s: a fetch ends when no piece has come for so long.
    """

    listen: Address = ("0.0.0.0", 6881)  # noqa: S104 - peers come from everywhere
    upload_bytes_s: int = 5_000_000
    download_bytes_s: int = 0
    max_connections: int = 100
    trackers: tuple[str, ...] = ()
    link_trackers: bool = True
    dht: bool = False
    local_discovery: bool = False
    port_mapping: bool = False
    utp: bool = False
    peers: tuple[Address, ...] = ()
    metadata_timeout_s: float = 60.0
    stall_timeout_s: float = 120.0
