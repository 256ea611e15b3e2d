"""Small files that processes share: written whole or not at all, and locks that the kernel drops with their holder.

All belong to their owner alone, whatever the umask, because anybody who can read a file can also lock it. Standard
library only, and no texts for people: callers know what could not be written or locked.
"""

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

_READERS_POLL_S = 0.005
"""How often to check whether those who share a lock are done: they take some milliseconds."""

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The errors that say that a disk, or a user's quota of it, is full."""

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700
OTHERS_MAY = stat.S_IRWXG | stat.S_IRWXO


def write_atomically(path: Path, text: str, mode: int = PRIVATE_FILE) -> None:
    """Write ASCII text as `write_whole` does.

    Raises:
        OSError: it cannot be written; what was there is still there.
    """
    write_whole(path, text.encode("ascii"), mode)


def write_whole(path: Path, content: bytes, mode: int = PRIVATE_FILE) -> None:
    """Write beside, sync, and rename: a crash leaves the old file or the new one.

    Args:
        mode: permissions, whatever the umask.
    Raises:
        OSError: it cannot be written; what was there is still there.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.unlink(missing_ok=True)  # left by a crash: its permissions would stay
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            _own(descriptor, path.parent, mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)  # leave the room to others on a full disk
        raise
    sync_folder(path.parent)


def write_new(path: Path, content: bytes) -> None:
    """Write a file that is not there yet, for its owner only, and have it on disk.

    Raises:
        OSError: it cannot be written.
    """
    with open_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.fsync(descriptor)


def _own(descriptor: int, folder: Path, mode: int) -> None:
    """Give an open file its permissions; if root makes it in a user's folder, give it to that user.

    Otherwise a command that root has run would leave files that the daemon cannot open. (SQLite does the same.)
    """
    status = os.fstat(descriptor)
    if stat.S_IMODE(status.st_mode) != mode and status.st_uid == os.geteuid():
        os.fchmod(descriptor, mode)
    if status.st_uid == os.geteuid() == 0 and (owner := folder.stat()).st_uid != 0:
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Make a folder, and the parents that are missing; have its name on disk.

    Files in a folder are lost if the folder's name is not on disk, even when they are synced. So the parent is synced,
    too, even if the folder exists: its maker may have been killed before that. If we may not read the parent, we have
    to trust that somebody has synced it.

    Args:
        mode: permissions of the folder itself, less the umask.
    Raises:
        OSError: it cannot be made, or there is a file of that name.
    """
    if not folder.parent.exists():
        make_folder(folder.parent)
    folder.mkdir(mode, exist_ok=True)
    with contextlib.suppress(PermissionError):
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on disk.

    Raises:
        OSError: it cannot be read, or synced.
    """
    with open_descriptor(folder, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        os.fsync(descriptor)


@contextlib.contextmanager
def open_descriptor(path: Path, flags: int, mode: int = PRIVATE_FILE) -> Iterator[int]:
    """Open a file as `os.open` does, but not for child processes; close it at the end, which drops its lock.

    A link is not followed, unless `flags` ask for a folder.

    Args:
        mode: with O_CREAT, permissions whatever the umask, even of a file that exists and is ours.
    Raises:
        OSError: it cannot be opened, or is a link.
    """
    no_link = 0 if flags & os.O_DIRECTORY else os.O_NOFOLLOW
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | no_link, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, f"{path.name} is a symbolic link", str(path)) from error
        raise
    try:
        if flags & os.O_CREAT:
            _own(descriptor, path.parent, mode)
        yield descriptor
    finally:
        os.close(descriptor)


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file unless another process holds it; return whether it is ours now.

    Raises:
        OSError: there are no locks on this file system.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_after_readers(descriptor: int, limit_s: float) -> bool:
    """Lock an open file for us alone, once those who share it briefly are done; False if another has it alone.

    Raises:
        TimeoutError: they are not done within `limit_s`.
        OSError: there are no locks on this file system.
    """
    give_up = time.monotonic() + limit_s
    while not try_lock(descriptor):
        if not try_lock(descriptor, shared=True):  # a reader would share it
            return False
        unlock(descriptor)
        if time.monotonic() > give_up:
            raise TimeoutError(f"it has been read for {limit_s:.0f} s")
        time.sleep(_READERS_POLL_S)
    return True


def unlock(descriptor: int) -> None:
    """Drop a lock before the file is closed."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def write_holder(descriptor: int) -> None:
    """Write into a file that this process holds its lock. On a full disk that is left out: the lock holds anyway.

    Raises:
        OSError: it cannot be written for another reason.
    """
    holder = f"{os.getpid()}\n".encode()
    try:
        os.pwrite(descriptor, holder, 0)
        os.ftruncate(descriptor, len(holder))
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise


def read_holder(descriptor: int) -> str:
    """Read which process holds the lock on a file: its id, or whatever the file says.

    Raises:
        OSError: it cannot be read.
    """
    return os.pread(descriptor, 32, 0).decode(errors="replace").strip()
