"""What the torrent process has under way: torrents, what is fetched of them, and metadata that is asked for."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from mailserver.torrents import session
from mailserver.torrents.errors import RequestFault
from mailserver.torrents.held import HeldPieces
from mailserver.torrents.info import TorrentInfo
from mailserver.torrents.magnet import Address
from mailserver.torrents.statistics import TorrentStatistics


@dataclass(eq=False, slots=True)
class PieceFetch:
    """A request for pieces, those that are `missing`."""

    missing: set[int]
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    failure: RequestFault | None = None
    report_is_due: bool = False

    def fail(self, failure: RequestFault) -> None:
        """End it."""
        self.failure = failure
        self.ended.set()

    def check(self) -> None:
        """End it if nothing is missing."""
        if not self.missing:
            self.ended.set()


@dataclass(eq=False, slots=True)
class Torrent:
    """A torrent that is seeded or fetched."""

    info: TorrentInfo
    folder: Path
    seed: bool
    trackers: list[str]
    peers: list[Address]
    held: HeldPieces
    handle: session.Handle
    have: set[int]
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    wrong: int = 0
    sent: Counter[int] = field(default_factory=Counter)  # blocks of each piece, since somebody asked
    failed: bool = False
    before: TorrentStatistics | None = None
    fetches: dict[int, PieceFetch] = field(default_factory=dict)
    flushed: asyncio.Event = field(default_factory=asyncio.Event)
    settling: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(eq=False, slots=True)
class MetadataFetch:
    """Metadata that requests wait for."""

    handle: session.Handle
    peers: list[Address]
    answer: asyncio.Future[bytes]
    requests: int = 0
