"""A backup of a data directory: a folder that is one itself.

It has the store, the small files that nobody could make again (`small_files`), and the records of the compaction; of a
gateway, the originals of what its clients have sent: the rest of its index is made anew. All are of one moment, as a
crash would have left them. The folder is made under another name and renamed when it is on disk: it is complete, or
does not exist.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from mailserver.data_dir.small_files import FileTooLong, read_small_files, write_small_files
from mailserver.errors import MailserverError
from mailserver.files import PRIVATE_FOLDER, make_folder, open_descriptor, sync_folder, try_lock
from mailserver.gateway.index.copying import copy_originals
from mailserver.gateway.index.schema import INDEX_FILE
from mailserver.store.sqlite.backup import OnStep, Snapshot, snapshot
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.units import size_text

MOMENT_ATTEMPTS = 100
"""How often to try to find a moment at which none of the small files changes. They change once a second at most, and an
attempt takes a millisecond."""

MIN_SPARE_BYTES = 64 * 1024 * 1024
"""What must stay free on the backup's disk, because the daemon may use it, too."""

_RECORDS = f"{STORE_FILE}-*.json"
"""What the engine keeps beside a store: records of the compaction, and of the time."""


class BackupError(MailserverError):
    """The backup cannot be made. `str()` is one line for the operator."""


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup that was made: its folder and files, how many envelopes its store has, and the store file's bytes."""

    folder: Path
    files: tuple[str, ...]
    envelopes: int
    bytes: int


def back_up(data_dir: Path, destination: Path, on_step: OnStep) -> Backup:
    """Make a backup; the daemon may run or not.

    Raises:
        BackupError: `destination` is there already, or cannot be written.
        StoreError: there is no store, it cannot be read, or is damaged; or the gateway's index cannot be read.
    """
    check_destination(destination)
    try:
        with new_folder(destination) as folder:
            with _moment(data_dir) as (small, store):
                _check_space(store.bytes, destination)
                envelopes = store.copy(folder / STORE_FILE, on_step)
            originals = copy_originals(data_dir / INDEX_FILE, folder / INDEX_FILE)
            write_small_files(folder, small)
            size = (folder / STORE_FILE).stat().st_size
            sync_folder(folder)
            folder.rename(destination)  # this replaces an empty folder, and nothing else
        sync_folder(destination.parent)
    except OSError as error:
        raise BackupError(f"cannot write the backup {destination}: {error.strerror or error}") from error
    files = (STORE_FILE, *([INDEX_FILE] if originals else []), *small)
    return Backup(destination, files, envelopes, size)


@contextlib.contextmanager
def _moment(data_dir: Path) -> Iterator[tuple[Mapping[str, bytes], Snapshot]]:
    """The small files and the store as they were at one moment.

    A range of time leaves the progress file when its envelopes are stored. So a store that is older than its progress
    file would have gaps, and one that is younger would not know that it was ever away.
    """
    for _ in range(MOMENT_ATTEMPTS):
        before = _small_files(data_dir)
        with snapshot(data_dir / STORE_FILE) as store:
            if _small_files(data_dir) == before:
                yield before, store
                return
    raise BackupError(f"the files in {data_dir} change faster than they can be read")


def _small_files(data_dir: Path) -> dict[str, bytes]:
    try:
        return read_small_files(data_dir, *sorted(path.name for path in data_dir.glob(_RECORDS)))
    except FileTooLong as error:
        raise BackupError(str(error)) from error


def check_destination(destination: Path) -> None:
    """Check that a folder can be made there.

    Raises:
        BackupError: something is there already.
    """
    try:
        if destination.is_symlink() or (destination.exists() and not destination.is_dir()):
            raise BackupError(f"{destination} exists and is not a folder: nothing is overwritten")
        if destination.is_dir() and any(destination.iterdir()):
            raise BackupError(f"{destination} is not empty: nothing is overwritten")
        if destination.is_mount():
            raise BackupError(f"{destination} is a mount point: name a new folder in it")
    except OSError as error:
        raise BackupError(f"cannot look at {destination}: {error.strerror}") from error


def _check_space(size: int, destination: Path) -> None:
    free = shutil.disk_usage(destination.parent).free
    if free < size + MIN_SPARE_BYTES:
        raise BackupError(
            f"the disk of {destination} has {size_text(free)} free, and the backup takes {size_text(size)}"
        )


@contextlib.contextmanager
def new_folder(destination: Path) -> Iterator[Path]:
    """A temporary folder beside `destination`, for its owner only; deleted at the end, unless it was renamed.

    What a kill has left in it is deleted first.

    Raises:
        BackupError: another command is using it, or it belongs to another user.
    """
    folder = destination.with_name(f".{destination.name}.partial")
    make_folder(destination.parent)
    folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    with open_descriptor(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW) as descriptor:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise BackupError(f"{folder} belongs to another user: delete it, or choose another folder")
        os.fchmod(descriptor, PRIVATE_FOLDER)
        if not try_lock(descriptor):
            raise BackupError(f"another command is making {destination}")
        for left in folder.iterdir():
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            else:
                left.unlink()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
