"""The gateway's files in the data directory: its lock, its key, and the addresses that it can be reached at.

Its index is `gateway.db` (`gateway.index`).
"""

import contextlib
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

from mailserver.data_dir.folder import DataDirInUse, read_secret
from mailserver.errors import StartupError
from mailserver.files import (
    PRIVATE_FOLDER,
    make_folder,
    open_descriptor,
    read_holder,
    try_lock,
    write_atomically,
    write_holder,
)

GATEWAY_LOCK_FILE = "gateway.lock"
GATEWAY_KEY_FILE = "gateway.key"
ADDRESSES_FILE = "gateway"

SEED_BYTES = 32
_SEED = re.compile(rb"[0-9a-fA-F]{64}\s*")


@contextlib.contextmanager
def gateway_locked(data_dir: Path) -> Iterator[None]:
    """Hold the gateway's lock: there is one gateway for each folder. The kernel drops the lock with the process.

    Raises:
        StartupError: another gateway has it, or the folder cannot be written.
    """
    with contextlib.ExitStack() as stack:
        try:
            make_folder(data_dir, PRIVATE_FOLDER)
            descriptor = stack.enter_context(open_descriptor(data_dir / GATEWAY_LOCK_FILE, os.O_RDWR | os.O_CREAT))
            if not try_lock(descriptor):
                holder = read_holder(descriptor)
                raise DataDirInUse(f"another gateway (pid {holder}) uses the data directory {data_dir}")
            write_holder(descriptor)
        except OSError as error:
            raise StartupError(f"cannot write the data directory {data_dir}: {error.strerror}") from error
        yield


def load_or_make_seed(data_dir: Path) -> bytes:
    """Read the seed of the gateway's key, 64 hex digits; at the first start make one, readable by its owner only.

    Raises:
        StartupError: others may read the file, or it holds no seed.
    """
    path = data_dir / GATEWAY_KEY_FILE
    try:
        text = read_secret(path)
    except FileNotFoundError:
        seed = secrets.token_bytes(SEED_BYTES)
        _write(path, f"{seed.hex()}\n")
        return seed
    except OSError as error:
        raise StartupError(f"cannot read {path}: {error.strerror}") from error
    if _SEED.fullmatch(text) is None:
        raise StartupError(f"{path} holds no seed (64 hex digits of an Ed25519 key)")
    return bytes.fromhex(text.decode("ascii"))


def write_addresses(data_dir: Path, addresses: Iterable[str]) -> None:
    """Write the addresses of the gateway, one a line: all of them, or the file is as it was.

    Raises:
        StartupError: they cannot be written.
    """
    _write(data_dir / ADDRESSES_FILE, "".join(f"{address}\n" for address in addresses))


def _write(path: Path, text: str) -> None:
    try:
        write_atomically(path, text)
    except OSError as error:
        raise StartupError(f"cannot write {path}: {error.strerror}") from error
