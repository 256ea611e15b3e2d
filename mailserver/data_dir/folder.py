"""The data folder: its lock, the node key and the enode file.

The folder and each file in it are for their owner only: anybody who could read just the index of the store's log
(`-shm`) could hold a lock on it, and stop every commit.
"""

import contextlib
import logging
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from mailserver.codec.keys import Enode, PrivateKey
from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.errors import DecodeError, StartupError
from mailserver.files import (
    OTHERS_MAY,
    PRIVATE_FILE,
    PRIVATE_FOLDER,
    make_folder,
    open_descriptor,
    read_holder,
    try_lock,
    write_atomically,
    write_holder,
)
from mailserver.net.sessions import random_key
from mailserver.store.sqlite.schema import STORE_FILE

log = logging.getLogger(__name__)

LOCK_FILE = "lock"
KEY_FILE = "nodekey"
ENODE_FILE = "enode"

_MADE_PRIVATE = (f"{STORE_FILE}*", LOCK_FILE, ENODE_FILE, "sync.json", "history.json", "set-aside.jsonl")
"""Files that earlier versions made readable by others, and that are closed to them now. The node key and the token are
not among these: if others can read them they are refused, because somebody may have read them."""

MIN_TOKEN_CHARS = 16
MAX_TOKEN_CHARS = 512
_TOKEN = re.compile("[A-Za-z0-9._~+/=-]+")  # RFC 6750, "b64token"


class DataDirInUse(StartupError):
    """Another daemon has the data directory."""


@contextlib.contextmanager
def locked(data_dir: Path) -> Iterator[None]:
    """Make the data folder if need be, close it to others, and hold its lock: there is one daemon for each folder.

    The kernel drops the lock with the process.

    Raises:
        StartupError: another daemon has it, or the folder cannot be written, or is open to others and not ours.
    """
    with contextlib.ExitStack() as stack:
        try:
            make_folder(data_dir, PRIVATE_FOLDER)
            _close_to_others(data_dir)
            descriptor = stack.enter_context(open_descriptor(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT))
        except OSError as error:
            raise StartupError(f"cannot write the data directory {data_dir}: {error.strerror}") from error
        _lock(descriptor, data_dir)
        yield


@contextlib.contextmanager
def kept_unused(data_dir: Path) -> Iterator[str | None]:
    """Keep a mailserver from starting on a data directory, and write nothing there.

    If one uses it already, yield its pid, or what else it is known by; else None. A folder without a lock may be a
    copy.
    """
    with contextlib.ExitStack() as stack:
        try:
            descriptor = stack.enter_context(open_descriptor(data_dir / LOCK_FILE, os.O_RDONLY))
        except FileNotFoundError:
            yield None
            return
        yield None if try_lock(descriptor) else read_holder(descriptor)


def _lock(descriptor: int, data_dir: Path) -> None:
    try:
        if try_lock(descriptor):
            write_holder(descriptor)
            return
        holder = read_holder(descriptor)
    except OSError as error:  # no flock on this file system, or no space
        raise StartupError(f"cannot lock the data directory {data_dir}: {error.strerror}") from error
    raise DataDirInUse(f"another mailserver (pid {holder}) uses the data directory {data_dir}")


def _close_to_others(data_dir: Path) -> None:
    """Take all permissions on the folder, and on our files in it, from others.

    A folder that may be used by others is left as it is: `--data-dir /srv` by mistake must not lock everybody out.

    Raises:
        StartupError: the operator has to do it.
        OSError: the folder cannot be read.
    """
    status = data_dir.stat()
    mode = stat.S_IMODE(status.st_mode)
    if mode & OTHERS_MAY:
        if mode & stat.S_ISVTX or (not (data_dir / LOCK_FILE).exists() and _has_others_files(data_dir)):
            raise StartupError(
                f"{data_dir} is open to others (mode {mode:04o}), and not only a mailserver's: name a folder of its "
                f"own, or run: chmod 700 {data_dir}"
            )
        try:
            data_dir.chmod(PRIVATE_FOLDER)
        except PermissionError as error:
            raise StartupError(
                f"{data_dir} is open to others (mode {mode:04o}) and belongs to uid {status.st_uid}; run: "
                f"chown {os.geteuid()} {data_dir}"
            ) from error
        log.warning("data directory was open to others, and is closed now mode=%s", f"{mode:04o}")
    # Now nobody else can put links here. Other users' files are not ours to change, but the folder is closed.
    for path in (path for pattern in _MADE_PRIVATE for path in data_dir.glob(pattern)):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode) and status.st_mode & OTHERS_MAY and status.st_uid == os.geteuid():
            path.chmod(PRIVATE_FILE)


def _has_others_files(data_dir: Path) -> bool:
    """Whether the folder has files, and none of a mailserver. Communities may be there before it."""
    names = {path.name for path in data_dir.iterdir()} - {COMMUNITIES_FOLDER}
    return bool(names) and not names & {KEY_FILE, STORE_FILE}


def load_or_make_key(data_dir: Path) -> PrivateKey:
    """Read the node key, 64 hex digits; at the first start make one, readable by its owner only.

    An enode file of an earlier key is removed with that: nobody answers there as that node any more.

    Raises:
        StartupError: others may read the file, or it holds no key.
    """
    path = data_dir / KEY_FILE
    try:
        text = read_secret(path)
    except FileNotFoundError:
        key = random_key()
        _remove_enode(data_dir)
        _write(path, f"{key.secret.hex()}\n")
        return key
    except OSError as error:
        raise StartupError(f"cannot read {path}: {error.strerror}") from error
    return _private_key(path, text, "node key")


def read_private_key(path: Path) -> PrivateKey:
    """Read a private key, 64 hex digits.

    Raises:
        StartupError: others may read the file, or it holds no key.
    """
    try:
        text = read_secret(path)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise StartupError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    return _private_key(path, text, "private key")


def _private_key(path: Path, text: bytes, what: str) -> PrivateKey:
    try:
        return PrivateKey(bytes.fromhex(text.decode("ascii").strip()))
    except (ValueError, DecodeError) as error:
        raise StartupError(f"{path} holds no {what} (64 hex digits of a secp256k1 private key)") from error


def read_token(path: Path) -> str:
    """Read the token for JSON-RPC: the file's first line, at least MIN_TOKEN_CHARS characters that a header can hold.

    Raises:
        StartupError: others may read the file, or it holds no such line.
    """
    try:
        lines = read_secret(path).splitlines()
    except OSError as error:
        raise StartupError(f"cannot read {path}: {error.strerror}") from error
    token = lines[0].decode("ascii", "replace").strip() if lines else ""
    if not MIN_TOKEN_CHARS <= len(token) <= MAX_TOKEN_CHARS or _TOKEN.fullmatch(token) is None:
        what = f"{MIN_TOKEN_CHARS} to {MAX_TOKEN_CHARS} letters, digits or -._~+/="
        raise StartupError(f"{path} holds no token in its first line: {what}")
    return token


def read_secret(path: Path) -> bytes:
    """Read the first 1,024 bytes of a file that nobody else may read. It may belong to root, who can read any file.

    Raises:
        StartupError: others may read it.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid not in (os.geteuid(), 0):
            raise StartupError(
                f"{path} belongs to another user (uid {status.st_uid}); run: chown {os.geteuid()} {path}"
            )
        mode = stat.S_IMODE(status.st_mode)
        if mode & 0o077:
            raise StartupError(f"{path} is readable by others (mode {mode:04o}); run: chmod 600 {path}")
        return file.read(1024)


def write_enode(data_dir: Path, enode: Enode) -> None:
    """Write the enode file: complete, or as it was. A file that says the same is left: that takes no room. One of
    another node is removed first: it is worse than none.

    Raises:
        StartupError: it cannot be written.
    """
    with contextlib.suppress(StartupError):
        before = read_enode(data_dir)
        if before == enode:
            return
        if before.node_id != enode.node_id:
            _remove_enode(data_dir)
    _write(data_dir / ENODE_FILE, f"{enode}\n")


def _remove_enode(data_dir: Path) -> None:
    with _writing(data_dir / ENODE_FILE):
        (data_dir / ENODE_FILE).unlink(missing_ok=True)


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
    except OSError as error:
        raise StartupError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, DecodeError) as error:
        raise StartupError(f"cannot read {path}: {error}") from error


def _write(path: Path, text: str) -> None:
    with _writing(path):
        write_atomically(path, text)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StartupError(f"cannot write {path}: {error.strerror}") from error
