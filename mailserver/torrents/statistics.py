"""What the torrent process tells of itself."""

from dataclasses import dataclass, replace


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
