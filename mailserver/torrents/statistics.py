"""What the torrent process tells of itself."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class TorrentStatistics:
    """One torrent, since it was added.

    Args:
        info_hash: 20 bytes.
        held: how many of its pieces are here.
        pieces: how many it has.
        complete: whether all of it is here, and so is offered to everybody.
        peers: connected now.
        seeds: those of them that have all of it.
        uploaded_bytes: of its files, sent to peers.
        downloaded_bytes: of its files, taken from peers, wrong ones included.
        wrong_bytes: taken, and not those of the torrent.
    """

    info_hash: bytes
    held: int
    pieces: int
    complete: bool
    peers: int
    seeds: int
    uploaded_bytes: int
    downloaded_bytes: int
    wrong_bytes: int

    def after(self, before: "TorrentStatistics | None") -> "TorrentStatistics":
        """These, with the bytes of an earlier connection to the same torrent."""
        if before is None:
            return self
        return replace(
            self,
            uploaded_bytes=before.uploaded_bytes + self.uploaded_bytes,
            downloaded_bytes=before.downloaded_bytes + self.downloaded_bytes,
            wrong_bytes=before.wrong_bytes + self.wrong_bytes,
        )


@dataclass(frozen=True, slots=True)
class Statistics:
    """The process and its torrents.

    Args:
        port: where it listens.
        restarts: how often it ended by itself, and was started again.
        memory_bytes: of the process, as resident.
        torrents: those that are seeded or fetched. One that is just being added is not among them, be it new or after a
            restart.
    """

    port: int
    restarts: int
    memory_bytes: int
    torrents: tuple[TorrentStatistics, ...]


@dataclass(slots=True)
class TorrentTraffic:
    """The traffic of the torrents that one after the other were those of a community, also over restarts.

    Args:
        peers: connected now.
        uploaded_bytes: of files, sent to peers since this was made.
        downloaded_bytes: of files, taken from peers.
    """

    peers: int = 0
    uploaded_bytes: int = 0
    downloaded_bytes: int = 0
    _last: TorrentStatistics | None = field(default=None)

    def see(self, torrents: Iterable[TorrentStatistics], info_hash: bytes | None) -> None:
        """Take what a look has found.

        Args:
            info_hash: of the community's present torrent; None if it has none.
        """
        found = next((each for each in torrents if each.info_hash == info_hash), None)
        self.peers = 0 if found is None else found.peers
        if found is None:
            return
        last = self._last
        if last is None or not _goes_on(last, found):
            last = None  # another torrent, or the process began anew: it counts from zero
        self.uploaded_bytes += found.uploaded_bytes - (last.uploaded_bytes if last else 0)
        self.downloaded_bytes += found.downloaded_bytes - (last.downloaded_bytes if last else 0)
        self._last = found


def _goes_on(last: TorrentStatistics, found: TorrentStatistics) -> bool:
    return (
        last.info_hash == found.info_hash
        and last.uploaded_bytes <= found.uploaded_bytes
        and last.downloaded_bytes <= found.downloaded_bytes
    )
