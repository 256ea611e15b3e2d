"""Publishing: what the job has made becomes the one torrent of the community that is seeded.

`index.next` becomes `index`, the torrent of `data` and `index` is made, and seeded in place of the one before. A kill
at any moment leaves either index; the next start makes the same torrent of it again. `data` may be longer than the
torrent says, because the job appends to it meanwhile.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterator

from mailserver.communities.index import IndexEntry
from mailserver.community.owner.appending import read_next_index, read_published_index
from mailserver.community.owner.folders import CommunityFolder
from mailserver.community.owner.record import CommunityError
from mailserver.errors import DecodeError
from mailserver.files import sync_folder
from mailserver.torrents.client import TorrentProcess
from mailserver.torrents.errors import TorrentError
from mailserver.torrents.info import TorrentInfo
from mailserver.torrents.making import make_torrent

log = logging.getLogger(__name__)


class Publisher:
    """Seeds the torrent of one community.

    `seeded`: the torrent that is seeded; None while there is none. `entries`: what the published index lists, as far as
    it is known.
    """

    def __init__(self, folder: CommunityFolder, torrents: TorrentProcess) -> None:
        self.seeded: TorrentInfo | None = None
        self.entries: tuple[IndexEntry, ...] = ()
        self._folder = folder
        self._torrents = torrents
        self._last: TorrentInfo | None = None

    async def publish(self) -> bool:
        """Seed the newest torrent, if it is not seeded; return whether that has changed.

        Raises:
            CommunityError: files cannot be used, or are damaged.
        """
        with _explained(self._folder):
            upcoming = await asyncio.to_thread(read_next_index, self._folder)
            if self.seeded is not None:
                if upcoming is None:
                    return False
                await self.stop()
            if upcoming is not None:
                await asyncio.to_thread(take_next_index, self._folder)
            info = await asyncio.to_thread(self._make)
            if info is None:
                return False
            await self._torrents.seed(info, self._folder.path)
        self.seeded = self._last = info
        log.info(
            "history published community=%s torrent=%s pieces=%d",
            self._folder.path.name,
            info.info_hash.hex(),
            len(info.pieces),
        )
        return True

    async def stop(self) -> None:
        """Seed nothing.

        Raises:
            CommunityError: the torrent process cannot do it.
        """
        if self.seeded is not None:
            with _explained(self._folder):
                await self._torrents.drop(self.seeded.info_hash)
            self.seeded = None

    def _make(self) -> TorrentInfo | None:
        """Make the newest torrent; None if nothing was made yet."""
        index = read_published_index(self._folder)
        if index is None or not index.entries:
            return None
        self.entries = index.entries
        return make_torrent(self._folder.path, self._folder.path.name, self._last, index.entries[-1].end)


def take_next_index(folder: CommunityFolder) -> bool:
    """Make `index` of `index.next`; return whether there was one. A kill leaves the one or the other.

    Raises:
        OSError: it cannot be renamed.
    """
    try:
        folder.next_index.replace(folder.index)
    except FileNotFoundError:
        return False
    sync_folder(folder.path)
    return True


@contextlib.contextmanager
def _explained(folder: CommunityFolder) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CommunityError(f"cannot use {error.filename or folder.path}: {error.strerror or error}") from error
    except DecodeError as error:
        raise CommunityError(f"{folder.index} is damaged: {error}") from error
    except TorrentError as error:
        raise CommunityError(f"cannot seed {folder.path}: {error}") from error
