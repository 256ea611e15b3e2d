"""Unix sockets in a data directory, which only the directory's owner may use: so they need no port and no token."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from mailserver.errors import StartupError
from mailserver.files import PRIVATE_FILE


def bind_private(path: Path) -> socket.socket:
    """Make a socket at a path; nobody can connect before it listens. One that a killed daemon has left is removed: we
    hold the directory's lock.

    Raises:
        StartupError: it cannot be made.
    """
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        os.fchmod(bound.fileno(), PRIVATE_FILE)  # before it has a name, so that nobody else can ever connect
        with short_path(path) as short:
            bound.bind(short)
    except OSError as error:
        bound.close()
        raise StartupError(f"cannot create {path}: {error.strerror or error}") from error
    return bound


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A short path to a socket, for as long as the context is entered: the kernel allows 107 bytes, and data
    directories may lie deep.

    Raises:
        OSError: there is no such directory.
    """
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)
