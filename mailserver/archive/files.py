"""The files of an archive, to read: on the local file system, or wherever else somebody has them.

Names are relative to the archive. Nothing is changed here.
"""

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from mailserver.archive.errors import ArchiveError, ArchiveFileUnreadable, RecordDamaged

LOCK_FILE = "_lock"
"""Held by a run while it changes the archive."""

_DISK_FAULTS = {errno.EIO, errno.EBADMSG, errno.EUCLEAN}
"""What says that bytes are lost or wrong. Anything else, such as a network that is down, says nothing about the
file."""


class ArchiveFiles(Protocol):
    """Where an archive lies. Every method raises ArchiveError for what the file system refuses."""

    url: str
    """The archive, as a URL."""

    def read(self, name: str) -> str | None:
        """A small file's text, None if there is none."""

    def read_each(self, names: Collection[str]) -> Iterator[tuple[str, "SmallText"]]:
        """Yield small files by name, each with its text. What is wrong with one alone is not raised."""

    def names(self, directory: str) -> list[str]:
        """What is in a directory, sorted; nothing if there is none."""

    def sizes(self, directory: str) -> dict[str, int]:
        """The size of each file below a directory, by its path there; nothing if there is none.

        What begins with a dot or an underscore is left out, as Parquet readers do.
        """

    def size(self, name: str) -> int | None:
        """The size of a file, None if there is none."""

    def chunks(self, name: str) -> Iterator[bytes]:
        """The bytes of a file, however long it is, a part after the other; none if there is no such file."""

    def lines(self, name: str) -> int:
        """How many lines a file has that are not empty, however long it is; 0 if there is none."""

    def digest(self, name: str) -> str:
        """SHA-256 of a file's bytes, in hex.

        Raises:
            ArchiveFileUnreadable: the file is damaged.
        """


SmallText = str | RecordDamaged | ArchiveFileUnreadable | None
"""A small file's text, or what is wrong with that file alone; None if there is none."""

MAX_RECORD_BYTES = 64 * 1024 * 1024
"""A month with a directory for each of its topics may have a hundred thousand files."""

_CHUNK_BYTES = 1024 * 1024
"""How much of a file is in memory, where it is not needed as a whole."""

FileVersion = tuple[int, ...]
"""Identifies one state of a file that is only ever replaced as a whole, or one state of a folder's names."""


class ReadableFiles(ArchiveFiles, Protocol):
    """The files of an archive, for whoever looks into it while runs of the compaction change it.

    What is read whole must be no longer than MAX_RECORD_BYTES: else that raises RecordDamaged. A small file that is
    there, but cannot be read, raises ArchiveFileUnreadable, unless all others could be at fault, too.
    """

    absence: str
    """What to ask an operator whose archive is not there."""

    def where(self, name: str) -> str:
        """Where a file is, for people; "" names the archive."""

    def opened(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """Open a file to read parts of it: a `pyarrow.NativeFile`.

        Raises:
            FileNotFoundError: it is missing.
            OSError: it cannot be read. Its reads raise the same.
        """

    def state(self, directory: str) -> FileVersion | None:
        """Which state the names in a directory are in; None if there is none, or if that takes as long as a listing."""

    def versions(self, directory: str) -> dict[str, FileVersion]:
        """The files in a directory, with the version of each; nothing if there is none."""

    def left_alone(self) -> contextlib.AbstractContextManager[None]:
        """Have no run change the archive in the context.

        Raises:
            ArchiveBusy: one does.
            ArchiveError: the archive is not there.
        """


def local_folder(archive: str) -> Path | None:
    """The folder that the setting `archive` names; None where it names nothing that can be looked at from here."""
    parts = urlsplit(archive)
    if not archive or parts.scheme not in ("", "file") or parts.netloc:
        return None
    return Path(unquote(parts.path) if parts.scheme else archive)


class LocalFiles:
    """An archive in a local folder, or in one that is mounted."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.url = f"file://{self.root}"  # as Hadoop takes it: not percent-encoded

    def read(self, name: str) -> str | None:
        """See ArchiveFiles."""
        with refused("read", self.root / name):
            try:
                # Ours are ASCII. What a damaged disk makes of one is judged by who decodes it.
                return (self.root / name).read_text(encoding="utf-8", errors="replace")
            except FileNotFoundError:
                return None

    def read_each(self, names: Collection[str]) -> Iterator[tuple[str, SmallText]]:
        """See ArchiveFiles."""
        for name in names:
            yield name, text_or_fault(self.read, name)

    def names(self, directory: str) -> list[str]:
        """See ArchiveFiles."""
        with refused("read", self.root / directory):
            try:
                return sorted(os.listdir(self.root / directory))  # noqa: PTH208 - names are all that is wanted
            except FileNotFoundError:
                return []

    def sizes(self, directory: str) -> dict[str, int]:
        """See ArchiveFiles."""
        top = self.root / directory
        found = {}
        with refused("read", top):
            for folder, folders, names in os.walk(top, onerror=_unless_gone):
                folders[:] = [name for name in folders if is_data(name)]
                for name in filter(is_data, names):
                    path = Path(folder, name)
                    found[str(path.relative_to(top))] = path.stat().st_size
        return found

    def size(self, name: str) -> int | None:
        """See ArchiveFiles."""
        with refused("read", self.root / name):
            try:
                return (self.root / name).stat().st_size
            except FileNotFoundError:
                return None

    def chunks(self, name: str) -> Iterator[bytes]:
        """See ArchiveFiles."""
        with refused("read", self.root / name):
            try:
                with (self.root / name).open("rb") as file:
                    yield from iter(lambda: file.read(_CHUNK_BYTES), b"")
            except FileNotFoundError:
                return

    def lines(self, name: str) -> int:
        """See ArchiveFiles."""
        return count_lines(self.chunks(name))

    def digest(self, name: str) -> str:
        """See ArchiveFiles."""
        path = self.root / name
        with refused("read", path):
            try:
                with path.open("rb") as file:
                    return hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                if error.errno in _DISK_FAULTS:
                    raise ArchiveFileUnreadable(f"cannot read {path}: {error.strerror}") from error
                raise


def text_of(content: bytes, where: str) -> str:
    """The text of a small file. Ours are ASCII; what a damaged disk makes of one is judged by who decodes it.

    Raises:
        RecordDamaged: it has more than MAX_RECORD_BYTES.
    """
    if len(content) > MAX_RECORD_BYTES:
        raise RecordDamaged(f"{where} is not a record: it has more than {MAX_RECORD_BYTES} bytes")
    return content.decode(errors="replace")


def text_or_fault(read: Callable[[str], str | None], name: str) -> SmallText:
    """Read a small file; return what is wrong with it instead of raising that."""
    try:
        return read(name)
    except (RecordDamaged, ArchiveFileUnreadable) as error:
        return error


def count_lines(chunks: Iterable[bytes]) -> int:
    """How many lines that are not empty there are in the pieces of a file."""
    lines, is_begun = 0, False
    for chunk in chunks:
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            lines += is_begun or bool(part)
            is_begun = False
        is_begun = is_begun or bool(rest)
    return lines + is_begun


@contextlib.contextmanager
def refused(what: str, path: Path) -> Iterator[None]:
    """Raise ArchiveError for what the file system refuses."""
    try:
        yield
    except OSError as error:
        raise ArchiveError(f"cannot {what} {path}: {error.strerror or error}") from error


def is_data(name: str) -> bool:
    """Whether Parquet readers take a name for data."""
    return not name.startswith((".", "_"))


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
