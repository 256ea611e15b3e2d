"""From a magnet link to the history: its index, what is missing of what is wanted, only the pieces of that.

Everything that was done is on disk, so an attempt may end at any moment, and the next one goes on. What cannot be used
is refused, reported once, and not fetched again.
"""

import asyncio
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from mailserver.communities.checking import check_index
from mailserver.communities.choosing import Choice
from mailserver.communities.index import HistoryIndex, decode_index
from mailserver.community.member.choice import downloaded_ranges, missing, wanted
from mailserver.community.member.downloads import Downloads, content_of
from mailserver.community.member.history import MemberHistory
from mailserver.community.member.importing import Loader
from mailserver.community.member.records import ArchiveState, Attempt, Content, KnownArchive, ListedArchive
from mailserver.community.member.replacing import DownloadLost
from mailserver.errors import DecodeError, MailserverError
from mailserver.files import PRIVATE_FOLDER, make_folder, write_atomically
from mailserver.torrents.client import FetchProgress, TorrentProcess
from mailserver.torrents.errors import LinkRefused, TorrentError, TorrentRefusal, TorrentRefused
from mailserver.torrents.held import HeldPieces
from mailserver.torrents.info import DATA_FILE, INDEX_FILE, TorrentInfo
from mailserver.torrents.magnet import MagnetLink
from mailserver.units import size_text

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)

BATCH_BYTES = 32 * 1024 * 1024
"""How much is fetched before it is imported: archives until they have so many bytes. What they hold is copied, and then
written in one transaction for each range, so a range of any size is cut, too."""

KEPT_FREE_BYTES = 1024**3
"""How much of the disk stays free: a batch has 137 MB at most, and takes that four times, in the torrent, its copy, the
history and its log. The rest is for the mailserver, which may be on the same disk."""

DOWNLOADS = "downloads"
TORRENT = "torrent"
TORRENT_FILE = "torrent.info"

OnProgress = Callable[[str, int, int | None], None]
"""Called with what is being done, how much of it is done, and how much there is; None if that is unknown."""


class CannotFetch(MailserverError):
    """Not all came that is wanted; `cause` says why. `is_final`: this link cannot be used at all."""

    def __init__(self, cause: str, *, is_final: bool) -> None:
        super().__init__(cause, is_final)
        self.cause = cause
        self.is_final = is_final

    def __str__(self) -> str:
        return self.cause


@dataclass(frozen=True, slots=True)
class Fetched:
    """What an attempt has brought. `downloaded` and `imported` count archives, `refused` those that cannot be used."""

    downloaded: int = 0
    imported: int = 0
    messages: int = 0
    refused: int = 0

    def __add__(self, other: "Fetched") -> "Fetched":
        return Fetched(
            self.downloaded + other.downloaded,
            self.imported + other.imported,
            self.messages + other.messages,
            self.refused + other.refused,
        )


class Fetcher:
    """Fetches the history of one community, one link at a time."""

    def __init__(
        self,
        name: str,
        folder: Path,
        history: MemberHistory,
        torrents: TorrentProcess,
        choice: Choice,
        network_topic: str,
        wall_clock: Callable[[], float],
    ) -> None:
        """Begin.

        Args:
            name: the community's id, as `id_text` writes it: that of its torrents, too (61/STATUS "Torrents").
            folder: the member's, where `history` is.
        """
        self._name = name
        self._folder = folder
        self._history = history
        self._torrents = torrents
        self._choice = choice
        self._network_topic = network_topic
        self._wall_clock = wall_clock
        self._downloads = Downloads(folder / DOWNLOADS)
        self._torrent: TorrentInfo | None = None

    @property
    def torrent(self) -> TorrentInfo | None:
        """The torrent that is fetched, or offered to peers; None if there is none."""
        return self._torrent

    def offered(self) -> set[int] | None:
        """Which pieces of `data` peers get from us; None if no torrent is offered. Blocks.

        What was imported need not be among them: a control node may have put it into another place, or the torrent's
        files were removed when the community was left.

        Raises:
            OSError: what is here cannot be read.
        """
        info = self._torrent
        return None if info is None else HeldPieces(info, self._folder / TORRENT).recorded()

    async def resume(self) -> Fetched:
        """Import what was downloaded before a restart, and offer again to peers what they may have from us.

        Raises:
            StoreError: the history cannot be read or written.
        """
        archives = (await self._history.known()).archives
        downloaded = [archive.content for archive in archives if archive.state is ArchiveState.DOWNLOADED]
        await self._history.note_lost(await on_disk(self._downloads.lost, downloaded))
        fetched = await self._import()
        info = await on_disk(self._load_torrent)
        if info is not None:
            try:
                await self._enter(info)
                await self._torrents.fetch(info, self._folder / TORRENT, [])
            except (TorrentError, OSError) as error:
                log.warning("torrent not offered again community=%s cause=%r", self._name, str(error))
        return fetched

    async def fetch(self, uri: str, on_progress: OnProgress) -> Fetched:
        """Fetch and import what is wanted of a link's torrent.

        Raises:
            CannotFetch: not all of it came. What came is kept.
            StoreError: the history cannot be read or written.
        """
        try:
            fetched = await self._fetch(uri, on_progress)
        except CannotFetch as error:
            if await self._history.note_attempt(Attempt(uri, int(self._wall_clock()), error.cause)):
                log.warning("history not fetched community=%s cause=%r", self._name, error.cause)
            raise
        await self._history.note_attempt(Attempt(uri, int(self._wall_clock()), None))
        return fetched

    async def leave(self) -> None:
        """Leave the torrent: peers get nothing from us any more."""
        if self._torrent is not None:
            await self._torrents.drop(self._torrent.info_hash)
            self._torrent = None

    async def _fetch(self, uri: str, on_progress: OnProgress) -> Fetched:
        if (reason := await self._history.refused_link(uri)) is not None:
            raise CannotFetch(reason, is_final=True)
        try:
            link = MagnetLink.decode(uri)
            on_progress("looking for the torrent", 0, None)
            info = await self._torrents.metadata(link)
            if info.name != self._name:  # else a community could have us take the torrent of another for its own
                raise TorrentRefused(TorrentRefusal.COMMUNITY)
            await self._enter(info)
            await self._check_disk()
            await self._fetch_pieces(info, link, [info.index_pieces], "fetching the index", on_progress)
            index = await on_disk(self._read_index, info)
            await self._list(info, index)
            return await self._fetch_missing(info, link, on_progress)
        except (LinkRefused, TorrentRefused, _IndexRefused) as error:
            await self._history.refuse_link(uri, str(error))
            raise CannotFetch(str(error), is_final=True) from error
        except (TorrentError, DownloadLost) as error:
            raise CannotFetch(str(error), is_final=False) from error
        except OSError as error:
            raise CannotFetch(f"cannot write the download: {error.strerror}", is_final=False) from error

    async def _enter(self, info: TorrentInfo) -> None:
        """Leave the torrent before, and take this one into the folder."""
        if self._torrent is not None and self._torrent.info_hash == info.info_hash:
            return
        await self.leave()
        await on_disk(write_atomically, self._folder / TORRENT_FILE, info.info.hex())
        await on_disk(make_folder, self._folder / TORRENT, PRIVATE_FOLDER)
        self._torrent = info

    def _load_torrent(self) -> TorrentInfo | None:
        """The torrent before the restart; None if there was none, or it cannot be read."""
        try:
            return TorrentInfo.decode(bytes.fromhex((self._folder / TORRENT_FILE).read_text(encoding="ascii")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TorrentRefused) as error:
            log.warning("torrent not offered again community=%s cause=%r", self._name, str(error))
            return None

    async def _fetch_pieces(
        self, info: TorrentInfo, link: MagnetLink, pieces: Sequence[range], step: str, on_progress: OnProgress
    ) -> None:
        def show(progress: FetchProgress) -> None:
            on_progress(step, progress.wanted - progress.missing, progress.wanted)

        await self._torrents.fetch(info, self._folder / TORRENT, pieces, link=link, on_progress=show)

    async def _check_disk(self) -> None:
        """Check that there is room for a batch.

        Raises:
            CannotFetch: there is not.
            OSError: that cannot be found out.
        """
        if (await asyncio.to_thread(shutil.disk_usage, self._folder)).free < KEPT_FREE_BYTES:
            raise CannotFetch(f"less than {size_text(KEPT_FREE_BYTES)} is free on the disk", is_final=False)

    def _read_index(self, info: TorrentInfo) -> HistoryIndex:
        """Read the index of the torrent, and check it.

        Raises:
            _IndexRefused: it does not parse, or does not fit the torrent.
        """
        try:
            index = decode_index((self._folder / TORRENT / INDEX_FILE).read_bytes())
        except DecodeError as error:
            raise _IndexRefused(f"index: {error}") from error
        if findings := check_index(index, info.data_bytes):
            raise _IndexRefused(f"index: {findings[0].fault.value} ({findings[0].detail})")
        return index

    async def _list(self, info: TorrentInfo, index: HistoryIndex) -> None:
        def listed() -> list[ListedArchive]:
            return [
                ListedArchive(content_of(info.hashes_of(entry.pieces)), index.format_name, entry)
                for entry in index.entries
            ]

        await self._history.list_archives(await asyncio.to_thread(listed))

    async def _fetch_missing(self, info: TorrentInfo, link: MagnetLink, on_progress: OnProgress) -> Fetched:
        archives = (await self._history.known()).archives
        to_fetch = await asyncio.to_thread(lambda: missing(wanted(archives, self._choice)))
        total, done = sum(len(archive.entry.pieces) for archive in to_fetch), 0
        fetched = await self._import()  # what is left of an attempt before
        for batch in batches(to_fetch):

            def show(_: str, pieces: int, __: int | None, before: int = done) -> None:
                on_progress("fetching", before + pieces, total)

            await self._check_disk()
            await self._fetch_pieces(info, link, [archive.entry.pieces for archive in batch], "", show)
            await self._keep(batch)
            done += sum(len(archive.entry.pieces) for archive in batch)
            on_progress("importing", done, total)
            fetched += Fetched(downloaded=len(batch)) + await self._import()
        return fetched

    async def _keep(self, batch: Sequence[KnownArchive]) -> None:
        """Copy archives out of the torrent."""
        data = self._folder / TORRENT / DATA_FILE
        for archive in batch:
            entry = archive.entry
            await on_disk(self._downloads.keep, archive.content, data, entry.offset, entry.size)
        await self._history.note_downloaded([archive.content for archive in batch], int(self._wall_clock()))

    async def _import(self) -> Fetched:
        """Import what is downloaded."""
        archives = (await self._history.known()).archives
        known = {archive.content: archive for archive in archives}
        loader = Loader(self._downloads, known, self._network_topic)
        fetched = Fetched()
        for time_range, downloaded in (await asyncio.to_thread(downloaded_ranges, archives)).items():
            contents = [archive.content for archive in downloaded]
            done = await self._history.replace(time_range, contents, loader.load, int(self._wall_clock()))
            self._report(done.refused)
            fetched += Fetched(
                imported=len(done.imported), messages=sum(done.imported.values()), refused=len(done.refused)
            )
        await self._history.replace_whole()
        try:
            await on_disk(self._downloads.clear)
        except OSError as error:
            log.warning("downloads not removed community=%s error=%r", self._name, error.strerror)
        return fetched

    def _report(self, refused: dict[Content, str]) -> None:
        for content, reason in refused.items():
            log.warning("archive refused community=%s content=%s cause=%r", self._name, content.hex()[:16], reason)


async def on_disk(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do some work in a thread. Whoever is cancelled waits for its end: nobody else uses the same files meanwhile."""
    working = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait([working])
        raise


class _IndexRefused(MailserverError):
    """An index cannot be used."""


def batches(archives: Sequence[KnownArchive]) -> Iterator[list[KnownArchive]]:
    """Cut what is to be fetched into batches."""
    batch: list[KnownArchive] = []
    size = 0
    for archive in archives:
        batch.append(archive)
        size += archive.entry.size
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
