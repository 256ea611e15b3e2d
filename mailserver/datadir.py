"""The data folder: its lock, the node key and the enode file."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from mailserver.codec.keys import Enode, PrivateKey
from mailserver.errors import DecodeError, StartupError
from mailserver.files import open_descriptor, read_holder, try_lock, write_atomically, write_holder
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
    with contextlib.ExitStack() as stack:
        try:
            data_dir.mkdir(parents=True, exist_ok=True)
            descriptor = stack.enter_context(open_descriptor(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT))
        except OSError as error:
            raise StartupError(f"cannot write the data directory {data_dir}: {error.strerror}") from error
        _lock(descriptor, data_dir)
        yield


def _lock(descriptor: int, data_dir: Path) -> None:
    try:
        if try_lock(descriptor):
            write_holder(descriptor)
            return
        holder = read_holder(descriptor)
    except OSError as error:  # no flock on this file system, or no space
        raise StartupError(f"cannot lock the data directory {data_dir}: {error.strerror}") from error
    raise StartupError(f"another mailserver (pid {holder}) uses the data directory {data_dir}")


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
        _write(path, f"{key.secret.hex()}\n", 0o600)
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
    _write(data_dir / ENODE_FILE, f"{enode}\n", 0o644)


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


def _write(path: Path, text: str, mode: int) -> None:
    try:
        write_atomically(path, text, mode)
    except OSError as error:
        raise StartupError(f"cannot write {path}: {error.strerror}") from error
