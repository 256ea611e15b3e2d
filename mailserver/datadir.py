"""The data folder: its lock, the node key and the enode file."""

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from mailserver.codec.keys import Enode, PrivateKey
from mailserver.errors import DecodeError, StartupError
from mailserver.net.connection import random_key

LOCK_FILE = "lock"
KEY_FILE = "nodekey"
ENODE_FILE = "enode"


@contextlib.contextmanager
def locked(data_dir: Path) -> Iterator[None]:
    """Make the data folder if need be and hold its lock: one daemon per folder. The kernel drops it with the process.

    Raises:
        StartupError: another daemon has it, or the folder cannot be written.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StartupError(f"cannot write the data directory {data_dir}: {error.strerror}") from error
    try:
        _lock(descriptor, data_dir)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, data_dir: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
    except BlockingIOError as error:
        pid = os.read(descriptor, 32).decode(errors="replace").strip()
        raise StartupError(f"another mailserver (pid {pid}) uses the data directory {data_dir}") from error
    except OSError as error:  # no flock on this file system, or no space
        raise StartupError(f"cannot lock the data directory {data_dir}: {error.strerror}") from error


def load_or_make_key(data_dir: Path) -> PrivateKey:
    """Read the node key, 64 hex digits; make one at the first start, readable by its owner only.

    Raises:
        StartupError: others may read the file, or it holds no key.
    """
    path = data_dir / KEY_FILE
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise StartupError(f"{path} is readable by others (mode {mode:04o}); run: chmod 600 {path}")
            text = file.read(1024)
    except FileNotFoundError:
        key = random_key()
        _write_atomically(path, f"{key.secret.hex()}\n", 0o600)
        return key
    except OSError as error:
        raise StartupError(f"cannot read {path}: {error.strerror}") from error
    try:
        return PrivateKey(bytes.fromhex(text.decode("ascii").strip()))
    except (ValueError, DecodeError) as error:
        raise StartupError(f"{path} holds no node key (64 hex digits of a secp256k1 private key)") from error


def write_enode(data_dir: Path, enode: Enode) -> None:
    """Write the enode file: complete, or as it was.

    Raises:
        StartupError: it cannot be written.
    """
    _write_atomically(data_dir / ENODE_FILE, f"{enode}\n", 0o644)


def read_enode(data_dir: Path) -> Enode:
    """Read the enode file that a daemon has written.

    Raises:
        StartupError: there is none, or it holds no enode URL.
    """
    path = data_dir / ENODE_FILE
    try:
        return Enode.parse(path.read_text(encoding="ascii"))
    except FileNotFoundError as error:
        raise StartupError(f"no enode at {path}: no mailserver has been started with this data directory") from error
    except (OSError, ValueError, DecodeError) as error:
        raise StartupError(f"cannot read {path}: {error}") from error


def _write_atomically(path: Path, text: str, mode: int) -> None:
    """Write beside, sync, and rename: a crash leaves the old file or the new one."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        temporary.unlink(missing_ok=True)  # of a crash: its mode would stay
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            os.fchmod(descriptor, mode)  # a file left by a crash may have another
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise StartupError(f"cannot write {path}: {error.strerror}") from error
