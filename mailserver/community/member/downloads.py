"""Archives that are downloaded and not imported yet, as files of their own: `downloads/<content in hex>`.

They are copied out of the torrent's files, because these change: the torrent of another control node may have other
bytes in their place. Each is written whole and synced before the history says that it is downloaded, and is hashed
again when it is read.
"""

import hashlib
from collections.abc import Collection
from pathlib import Path

from mailserver.communities.formats import PIECE_BYTES
from mailserver.community.member.records import Content
from mailserver.community.member.replacing import DownloadLost
from mailserver.files import PRIVATE_FOLDER, make_folder, sync_folder, write_new

PARTIAL = ".part"


def content_of(piece_hashes: bytes) -> Content:
    """What names an archive, from the SHA-1 hashes of its pieces, joined."""
    return Content(hashlib.sha256(piece_hashes).digest())


class Downloads:
    """The folder of a community's downloads. Methods block, for as long as the disk takes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, content: Content, data: Path, offset: int, size: int) -> None:
        """Copy an archive out of the torrent's file `data`; it is on disk when this returns.

        Raises:
            DownloadLost: what is there is not that archive.
            OSError: it cannot be read or written.
        """
        with data.open("rb") as file:
            file.seek(offset)
            archive = file.read(size)
        _check(content, archive)
        make_folder(self._folder, PRIVATE_FOLDER)
        path = self._path(content)
        partial = path.with_suffix(PARTIAL)
        partial.unlink(missing_ok=True)  # left by a crash
        write_new(partial, archive)
        partial.replace(path)
        sync_folder(self._folder)

    def read(self, content: Content) -> bytes:
        """An archive.

        Raises:
            DownloadLost: it is not there, or has changed.
        """
        try:
            archive = self._path(content).read_bytes()
        except OSError as error:
            raise DownloadLost(f"download {content.hex()} cannot be read: {error.strerror}") from error
        _check(content, archive)
        return archive

    def lost(self, contents: Collection[Content]) -> list[Content]:
        """Which of these are not there."""
        return [content for content in contents if not self._path(content).exists()]

    def clear(self) -> None:
        """Remove all that is there: it is imported, refused, or was being written.

        Raises:
            OSError: something cannot be removed.
        """
        if not self._folder.exists():
            return
        for path in self._folder.iterdir():
            path.unlink()

    def _path(self, content: Content) -> Path:
        return self._folder / content.hex()


def _check(content: Content, archive: bytes) -> None:
    view = memoryview(archive)
    hashes = (
        hashlib.sha1(view[at : at + PIECE_BYTES], usedforsecurity=False).digest()
        for at in range(0, len(archive), PIECE_BYTES)
    )
    if content_of(b"".join(hashes)) != content:
        raise DownloadLost(f"download {content.hex()} has changed on the disk")
