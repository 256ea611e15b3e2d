"""libtorrent's session, as the torrent process uses it: what it is told, and its alerts as events.

It says nothing of us: peers and trackers see a client of libtorrent, and in anonymous mode no name of it.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import TypeAlias

import libtorrent as lt

from mailserver.torrents.bans import Bans, Senders
from mailserver.torrents.errors import CannotListen, TorrentRefusal
from mailserver.torrents.info import DATA_FILE, INDEX_FILE, MAX_INFO_BYTES, TorrentInfo
from mailserver.torrents.magnet import Address, encode_address
from mailserver.torrents.settings import TorrentSettings
from mailserver.torrents.statistics import TorrentStatistics

Handle: TypeAlias = lt.torrent_handle

_NOWHERE = "/dev/null"
"""Nothing can be written below this: where the files of a torrent are that nobody has looked at yet."""

_EVERYWHERE = ip_network("0.0.0.0/0"), ip_network("::/0")

_WANTED, _UNWANTED = 4, 0
"""Priorities of pieces."""

_RECONNECT_S = 2
_MAX_FAILURES = 30
"""How soon a peer is dialled again, longer by as much with each failure, and how often. libtorrent waits a minute, and
gives up after three: that is for swarms, and here the owner may be the only one who has it."""

_MAX_METADATA_BYTES = 4 * MAX_INFO_BYTES
"""More than is taken, since libtorrent does not say when it refuses: a history that has outgrown the bound is told from
one that nobody has."""

_UNCHOKED_PEERS = 20
"""How many peers are served at once; with more, they take turns."""

_ALERTS = 10_000
"""How many alerts wait at most: one for each block of 16 KiB that is sent, two for each that is asked for and
comes."""

_LISTENS_S = 5.0
"""How long libtorrent may take to listen, or to say that it cannot."""

_STOP_TRACKERS_S = 2
"""How long to wait for trackers that are told that we leave."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A torrent that was added takes connections."""

    info_hash: bytes


@dataclass(frozen=True, slots=True)
class PieceCame:
    """A piece with the right hash is there; it may still be on its way to the disk."""

    info_hash: bytes
    piece: int


@dataclass(frozen=True, slots=True)
class WrongPieceCame:
    """A piece did not have its hash. If one peer sent all of it, its address is banned."""

    info_hash: bytes


@dataclass(frozen=True, slots=True)
class BlockSent:
    """A block of a piece was sent to a peer."""

    info_hash: bytes
    piece: int


@dataclass(frozen=True, slots=True)
class MetadataCame:
    """A peer has sent an info dictionary, and it has the info hash."""

    info_hash: bytes
    info: bytes


@dataclass(frozen=True, slots=True)
class MetadataUnusable:
    """A peer has sent an info dictionary that has the info hash, and cannot be used."""

    info_hash: bytes
    refusal: TorrentRefusal


@dataclass(frozen=True, slots=True)
class Flushed:
    """What had come of a torrent has been written to its files."""

    info_hash: bytes


@dataclass(frozen=True, slots=True)
class DiskFailed:
    """A file of a torrent could not be read or written. `is_of_system`: whether the system said so, and not libtorrent
    alone, which finds a file too short where it could not write it."""

    info_hash: bytes
    text: str
    is_of_system: bool


@dataclass(frozen=True, slots=True)
class EventsLost:
    """There were more alerts than libtorrent keeps."""


Event: TypeAlias = (
    Ready | PieceCame | WrongPieceCame | BlockSent | MetadataCame | MetadataUnusable | Flushed | DiskFailed | EventsLost
)


class TorrentSession:
    """The session.

    Args:
        alert_fd: gets a byte when there are events.
    """

    def __init__(self, settings: TorrentSettings, alert_fd: int) -> None:
        self._session = lt.session(_settings(settings))
        self._session.set_peer_class_filter(self._all_bounded())
        self._session.set_alert_fd(alert_fd)
        self._bans = Bans()
        self._senders = Senders()

    def _all_bounded(self) -> lt.ip_filter:
        """Bounds hold for peers everywhere: by default, those in local networks are an exception."""
        bounded = 1 << lt.session.global_peer_class_id
        classes = lt.ip_filter()
        for network in _EVERYWHERE:
            classes.add_rule(str(network.network_address), str(network.broadcast_address), bounded)
        return classes

    def port(self, timeout_s: float = _LISTENS_S) -> int:
        """Wait until the session listens; return the port.

        Raises:
            CannotListen: it does not, or not in time.
        """
        give_up = time.monotonic() + timeout_s
        while (left_s := give_up - time.monotonic()) > 0 and self._session.wait_for_alert(int(1000 * left_s)):
            for alert in self._session.pop_alerts():
                match alert:
                    case lt.listen_failed_alert():
                        where = encode_address((alert.address, alert.port))
                        raise CannotListen(f"cannot listen on {where}: {alert.error.message()}")
                    case lt.listen_succeeded_alert() if alert.socket_type == lt.socket_type_t.tcp:
                        return alert.port
                    case lt.alert() if alert.what() == "session_error":  # Python has no class for it
                        raise CannotListen(alert.message())
        raise CannotListen("no answer of the system")

    def ask_for_metadata(self, info_hash: bytes, trackers: Iterable[str], peers: Iterable[Address]) -> Handle:
        """Ask peers for an info dictionary."""
        params = lt.add_torrent_params()
        params.info_hashes = lt.info_hash_t(lt.sha1_hash(info_hash))
        params.save_path = _NOWHERE
        params.flags = lt.torrent_flags.default_dont_download | lt.torrent_flags.apply_ip_filter
        return self._add(params, trackers, peers)

    def seed(self, info: TorrentInfo, folder: Path, trackers: Iterable[str], peers: Iterable[Address]) -> Handle:
        """Offer a torrent. A piece is checked when it is sent for the first time."""
        params = _params(info, folder)
        params.flags |= lt.torrent_flags.seed_mode | lt.torrent_flags.upload_mode
        return self._add(params, trackers, peers)

    def fetch(
        self, info: TorrentInfo, folder: Path, have: set[int], trackers: Iterable[str], peers: Iterable[Address]
    ) -> Handle:
        """Have a torrent of which some pieces are there; none is wanted yet."""
        params = _params(info, folder)
        params.have_pieces = [piece in have for piece in info.pieces]
        params.piece_priorities = [_UNWANTED] * len(info.pieces)
        params.flags |= lt.torrent_flags.no_verify_files
        self._senders.follow(info)
        return self._add(params, trackers, peers)

    def _add(self, params: lt.add_torrent_params, trackers: Iterable[str], peers: Iterable[Address]) -> Handle:
        params.trackers = list(trackers)
        params.peers = [(host, port) for host, port in peers]
        handle: Handle = self._session.add_torrent(params)
        return handle

    def lift_bans(self) -> None:
        """Let those in again whose time is over."""
        if self._bans.expire(time.monotonic()):
            self._set_filter()

    def remove(self, handle: Handle) -> None:
        """Leave a torrent. It may be added again at once."""
        self._senders.leave(_info_hash(handle))
        self._session.remove_torrent(handle)

    def events(self) -> Iterator[Event]:
        """What has happened since the last call."""
        for alert in self._session.pop_alerts():
            match alert:
                case lt.torrent_checked_alert():
                    yield Ready(_info_hash(alert.handle))
                case lt.block_finished_alert():
                    self._senders.on_block(_info_hash(alert.handle), alert.piece_index, alert.block_index, alert.ip[0])
                case lt.piece_finished_alert():
                    self._senders.on_piece(_info_hash(alert.handle), alert.piece_index)
                    yield PieceCame(_info_hash(alert.handle), alert.piece_index)
                case lt.hash_failed_alert():
                    if (liar := self._senders.on_piece(_info_hash(alert.handle), alert.piece_index)) is not None:
                        self._bans.add(liar, time.monotonic())
                        self._set_filter()
                    yield WrongPieceCame(_info_hash(alert.handle))
                case lt.block_uploaded_alert():
                    yield BlockSent(_info_hash(alert.handle), alert.piece_index)
                case lt.metadata_received_alert():
                    yield from _metadata(alert.handle)
                case lt.torrent_error_alert() if alert.handle.torrent_file() is None:
                    yield MetadataUnusable(_info_hash(alert.handle), TorrentRefusal.MALFORMED)
                case lt.cache_flushed_alert():
                    yield Flushed(_info_hash(alert.handle))
                case lt.file_error_alert() | lt.torrent_error_alert():
                    error = alert.error
                    yield DiskFailed(_info_hash(alert.handle), error.message(), error.category().name() in _OF_SYSTEM)
                case lt.alerts_dropped_alert():
                    self._senders.clear()
                    yield EventsLost()

    def _set_filter(self) -> None:
        blocked = lt.ip_filter()
        for address in self._bans.addresses():
            blocked.add_rule(address, address, 1)
        self._session.set_ip_filter(blocked)


_OF_SYSTEM = ("system", "generic")
"""The categories of errors that the system names."""


def want(handle: Handle, pieces: set[int], count: int) -> None:
    """Fetch these pieces, and no others, of so many."""
    handle.prioritize_pieces([_WANTED if piece in pieces else _UNWANTED for piece in range(count)])


def disconnect(handle: Handle) -> None:
    """Take nothing more from anybody, and send nothing."""
    handle.pause()


def dial(handle: Handle, peers: Iterable[Address]) -> None:
    """Connect to peers that are not connected yet."""
    for host, port in peers:
        handle.connect_peer((host, port))


def flush(handle: Handle) -> None:
    """Write what has come; `Flushed` follows."""
    handle.flush_cache()


def pieces_there(handle: Handle) -> set[int]:
    """Which pieces the session has."""
    return {piece for piece, there in enumerate(handle.status(lt.status_flags_t.query_pieces).pieces) if there}


def statistics(info_hash: bytes, handle: Handle, pieces: int) -> TorrentStatistics:
    """What happens with a torrent."""
    status = handle.status(0)
    return TorrentStatistics(
        info_hash,
        status.num_pieces,
        pieces,
        status.num_pieces == pieces,
        status.num_peers,
        status.num_seeds,
        status.total_payload_upload,
        status.total_payload_download,
        status.total_failed_bytes,
    )


def _settings(settings: TorrentSettings) -> "lt.settings_pack":
    category = lt.alert_category
    return {
        "listen_interfaces": encode_address(settings.listen),
        "outgoing_interfaces": "" if ip_address(settings.listen[0]).is_unspecified else settings.listen[0],
        "listen_system_port_fallback": False,
        "max_retry_port_bind": 0,
        "user_agent": "",
        "anonymous_mode": True,
        "enable_dht": settings.dht,
        "enable_lsd": settings.local_discovery,
        "enable_upnp": settings.port_mapping,
        "enable_natpmp": settings.port_mapping,
        "enable_outgoing_utp": settings.utp,
        "enable_incoming_utp": settings.utp,
        "webtorrent_stun_server": "",
        "upload_rate_limit": settings.upload_bytes_s,
        "download_rate_limit": settings.download_bytes_s,
        "connections_limit": settings.max_connections,
        "allow_multiple_connections_per_ip": True,  # members behind one router, or all behind a proxy of ours
        "unchoke_slots_limit": _UNCHOKED_PEERS,
        "max_metadata_size": _MAX_METADATA_BYTES,
        "min_reconnect_time": _RECONNECT_S,
        "max_failcount": _MAX_FAILURES,
        "close_redundant_connections": False,  # who has all that we want now may have what we want next
        "stop_tracker_timeout": _STOP_TRACKERS_S,
        "alert_queue_size": _ALERTS,
        "alert_mask": category.error
        | category.status
        | category.storage
        | category.piece_progress
        | category.block_progress  # who sent what
        | category.upload,
    }


def _params(info: TorrentInfo, folder: Path) -> lt.add_torrent_params:
    """A torrent whose files are in the folder itself, whatever its name."""
    params = lt.load_torrent_buffer(b"d4:info%se" % info.info)
    params.save_path = str(folder)
    params.renamed_files = {0: str(folder / DATA_FILE), 1: str(folder / INDEX_FILE)}
    params.flags = lt.torrent_flags.apply_ip_filter
    return params


def _info_hash(handle: Handle) -> bytes:
    return handle.info_hashes().v1.to_bytes()


def _metadata(handle: Handle) -> Iterator[MetadataCame | MetadataUnusable]:
    if (torrent := handle.torrent_file()) is not None:
        info_hash, info = _info_hash(handle), torrent.info_section()
        if len(info) > MAX_INFO_BYTES:
            yield MetadataUnusable(info_hash, TorrentRefusal.TOO_LARGE)
        else:
            yield MetadataCame(info_hash, info)
