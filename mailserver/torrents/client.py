"""The service's side of the torrent process: starts it, keeps it running, asks it for things.

libtorrent is C++ that talks to anybody, so it runs in a process of its own. If that ends by itself, or does not answer,
it is started again, and gets back what it was to seed and to fetch: callers notice nothing but the time it takes.
"""

import asyncio
import importlib.util
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from mailserver.errors import LocalProtocolError, StartupError
from mailserver.torrents.child import Child
from mailserver.torrents.errors import (
    FetchStalled,
    RequestFault,
    StaleLink,
    TorrentDiskError,
    TorrentError,
    TorrentFault,
    TorrentRefusal,
    TorrentRefused,
    TorrentSuperseded,
    WrongPieces,
)
from mailserver.torrents.frames import Frame, decode_bytes, encode_bytes, encode_pieces
from mailserver.torrents.info import TorrentInfo
from mailserver.torrents.magnet import Address, MagnetLink
from mailserver.torrents.settings import TorrentSettings
from mailserver.torrents.statistics import Statistics, TorrentStatistics


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """How far a fetch has come.

    Args:
        missing: how many of the pieces that were asked for are not here.
        wanted: how many were asked for.
        wrong: how many wrong ones came, from whomever.
    """

    missing: int
    wanted: int
    wrong: int


@dataclass(frozen=True, slots=True)
class _Added:
    info: TorrentInfo
    folder: Path
    seed: bool
    trackers: tuple[str, ...]
    peers: tuple[Address, ...]

    def request(self) -> Frame:
        return {
            "op": "add",
            "info": encode_bytes(self.info.info),
            "folder": str(self.folder),
            "seed": self.seed,
            "trackers": self.trackers,
            "peers": self.peers,
        }


class TorrentProcess:
    """The torrent process, while the context is entered.

    Raises:
        StartupError: on entering: libtorrent is not installed, or the address to listen on cannot be used.
    """

    def __init__(self, settings: TorrentSettings) -> None:
        self._settings = settings
        self._torrents: dict[bytes, _Added] = {}
        self._child = Child(settings, self._adding)

    async def __aenter__(self) -> Self:
        if importlib.util.find_spec("libtorrent") is None:
            raise StartupError("libtorrent is not installed: pip install -r requirements-communities.lock")
        await self._child.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._child.stop()

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._child.port

    @property
    def restarts(self) -> int:
        """How often it ended by itself, or did not answer, and was started again."""
        return self._child.restarts

    @property
    def process_id(self) -> int | None:
        """Of the process that runs now, if one does."""
        return self._child.process_id

    async def seed(self, info: TorrentInfo, folder: Path) -> None:
        """Offer a torrent, whose `data` and `index` are in the folder, to everybody, until it is dropped.

        `data` may be longer than the torrent's: it may grow. Nothing is checked here: a piece is before it is sent.

        Raises:
            TorrentDiskError: the files are not there, or shorter than the torrent's.
            LocalProtocolError: the folder has another torrent, which has to be dropped first.
        """
        await self._add(_Added(info, folder, True, self._settings.trackers, self._settings.peers))

    async def drop(self, info_hash: bytes) -> None:
        """Leave a torrent; its files stay, and are not open any more. Whoever fetches it gets TorrentSuperseded."""
        self._torrents.pop(info_hash, None)
        await self._ask_unless_it_fails({"op": "drop", "info_hash": info_hash.hex()})  # it is left all the same

    async def metadata(self, link: MagnetLink, timeout_s: float | None = None) -> TorrentInfo:
        """Ask peers for the metadata of a link's torrent.

        Args:
            timeout_s: how long at most, if not as the settings say.
        Raises:
            StaleLink: nobody had it in time.
            TorrentRefused: it is not the torrent of a community.
            TorrentError: libtorrent cannot take the link.
        """
        if (added := self._torrents.get(link.info_hash)) is not None:
            return added.info
        limit_s = self._settings.metadata_timeout_s if timeout_s is None else timeout_s
        trackers, peers = self._of_link(link)
        request = {"op": "metadata", "info_hash": link.info_hash.hex(), "trackers": trackers, "peers": peers}
        try:
            async with asyncio.timeout(limit_s):
                answer = await self._child.ask(request)
        except TimeoutError as error:
            raise StaleLink(link.info_hash, limit_s) from error
        except RequestFault as error:
            if error.fault is TorrentFault.METADATA:
                raise TorrentRefused(TorrentRefusal[error.text]) from error
            raise _translated(link.info_hash, error) from error
        return TorrentInfo.decode(decode_bytes(answer["info"]))

    async def fetch(
        self,
        info: TorrentInfo,
        folder: Path,
        pieces: Sequence[range],
        *,
        link: MagnetLink | None = None,
        on_progress: Callable[[FetchProgress], None] | None = None,
        stall_s: float | None = None,
    ) -> None:
        """Have these pieces in `data` and `index` of the folder, on disk and with the right hashes.

        What is there already is not fetched, be it from an earlier fetch or from another torrent with the same pieces.
        The torrent stays until it is dropped: peers get from us what we have.

        Args:
            folder: exists, and belongs to this torrent alone; `held` in it says which pieces are there. `data` may be
                longer than the torrent's, `index` is not afterwards.
            link: whose trackers and peers are asked.
            stall_s: how long no piece may come, if not as the settings say.
        Raises:
            FetchStalled: none came for so long; WrongPieces, if some were wrong. What came is kept.
            TorrentDiskError: the files cannot be read or written.
            TorrentSuperseded: the torrent was dropped meanwhile.
            LocalProtocolError: the folder has another torrent, which has to be dropped first; or this one is seeded.
        """
        trackers, peers = self._of_link(link or MagnetLink(info.info_hash))
        await self._add(_Added(info, folder, False, trackers, peers))
        limit_s = self._settings.stall_timeout_s if stall_s is None else stall_s
        wanted = sum(map(len, pieces))
        last = FetchProgress(wanted, wanted, 0)
        loop = asyncio.get_running_loop()

        def on_event(event: Frame) -> None:
            nonlocal last
            progress = FetchProgress(event["missing"], wanted, event["wrong"])
            if progress.missing < last.missing and not timeout.expired():
                timeout.reschedule(loop.time() + limit_s)
            last = progress
            if on_progress is not None:
                on_progress(progress)

        request = {"op": "fetch", "info_hash": info.info_hash.hex(), "pieces": encode_pieces(pieces)}
        try:
            async with asyncio.timeout(limit_s) as timeout:
                await self._child.ask(request, on_event)
        except TimeoutError as error:
            stalled = WrongPieces if last.wrong else FetchStalled
            raise stalled(info.info_hash, last.missing, limit_s) from error
        except RequestFault as error:
            raise _translated(info.info_hash, error) from error

    async def statistics(self) -> Statistics:
        """What the process does now; nothing, if it fails to say so. While it is being started again, this waits."""
        answer = await self._ask_unless_it_fails({"op": "statistics"})
        if answer is None:
            return Statistics(self.port, self.restarts, 0, ())
        torrents = tuple(
            TorrentStatistics(**{**each, "info_hash": bytes.fromhex(each["info_hash"])}) for each in answer["torrents"]
        )
        return Statistics(self.port, self.restarts, answer["memory_bytes"], torrents)

    async def sent(self, info_hash: bytes) -> dict[int, int]:
        """How many blocks of each piece were sent to peers since this was asked last, or the process began.

        Blocks have BLOCK_BYTES, the last one of a piece what is left. If more is sent at once than libtorrent tells
        of, some are left out.
        """
        answer = await self._ask_unless_it_fails({"op": "sent", "info_hash": info_hash.hex()})
        return {} if answer is None else dict(answer["pieces"])

    async def _ask_unless_it_fails(self, request: Frame) -> Frame | None:
        """Ask for something that depends on no link; None: it has failed, and has said where on its error stream.

        That is a bug of ours, and no reason for callers to end.
        """
        try:
            return await self._child.ask(request)
        except RequestFault as error:
            if error.fault is not TorrentFault.FAILED:
                raise
            return None

    def _of_link(self, link: MagnetLink) -> tuple[tuple[str, ...], tuple[Address, ...]]:
        """Trackers and peers, ours and the link's."""
        trackers = self._settings.trackers + (link.trackers if self._settings.link_trackers else ())
        return tuple(dict.fromkeys(trackers)), tuple(dict.fromkeys(self._settings.peers + link.peers))

    async def _add(self, torrent: _Added) -> None:
        info_hash = torrent.info.info_hash
        for each in self._torrents.values():
            if (each.folder == torrent.folder) != (each.info.info_hash == info_hash) or (
                each.info.info_hash == info_hash and each.seed != torrent.seed
            ):
                raise LocalProtocolError(f"torrent {each.info.info_hash.hex()} has to be dropped first")
        self._torrents[info_hash] = torrent
        try:
            await self._child.ask(torrent.request())
        except RequestFault as error:
            self._torrents.pop(info_hash, None)
            raise _translated(info_hash, error) from error

    def _adding(self) -> Iterable[Frame]:
        return [each.request() for each in self._torrents.values()]


def _translated(info_hash: bytes, error: RequestFault) -> TorrentError:
    match error.fault:
        case TorrentFault.DROPPED:
            return TorrentSuperseded(info_hash)
        case TorrentFault.FAILED:
            return TorrentError(f"torrent {info_hash.hex()}: the torrent process failed: {error.text}")
        case _:
            return TorrentDiskError(info_hash, error.text)
