"""Whether the files that SQLite has open are still the ones that bear the store's names.

SQLite goes on writing into files that were removed or replaced, and reports success, but nobody will ever find what it
wrote. So the names are compared with what is open before anything is confirmed. That takes some microseconds and opens
nothing: `mailserver.store.sqlite.connections` says why it must not.
"""

import errno
import os
from pathlib import Path

from mailserver.errors import StoreError
from mailserver.store.sqlite.wal import index_file, wal_file

_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class StoreLost(StoreError):
    """The open files are no longer the store at its path. That stays so until the program is started again."""


class Presence:
    """The files of one store that was just opened. Only the thread that writes it uses this."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # SQLite follows links in the store's name, and puts log and index beside the file that it finds.
        given, real = path.absolute(), path.resolve()
        names = dict.fromkeys((given, real, wal_file(real), index_file(real)))
        # On a file system without shared memory, SQLite works without log and index.
        self._files = {str(name): found for name in names if (found := _identity(name, None)) is not None}
        self._lost = ""

    def look(self) -> str:
        """Why the store is lost; "" if it is not."""
        if not self._lost:
            changed = [(name, now) for name, was in self._files.items() if (now := _identity(name, was)) != was]
            if changed:
                what = ", ".join(f"{name} {'was removed' if now is None else 'was replaced'}" for name, now in changed)
                self._lost = (
                    f"{what}: what was stored is only in files that vanish with this process; "
                    "docs/operating/recipes.md says how to copy them"
                )
        return self._lost

    def check(self) -> None:
        """Check that what was written is in the store.

        Raises:
            StoreLost: it is not, and nothing will be any more.
        """
        if self.look():
            raise StoreLost(self._lost)


_Identity = tuple[int, int]


def _identity(name: Path | str, unknown: _Identity | None) -> _Identity | None:
    """Which file has a name, without following links; None if there is none, `unknown` if the disk does not say.

    A disk that fails for a moment has lost no file. If it fails for longer, SQLite reports it.
    """
    try:
        status = os.lstat(name)
    except OSError as error:
        return None if error.errno in _GONE else unknown
    return status.st_dev, status.st_ino
