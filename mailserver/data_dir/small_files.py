"""The small files of a data directory that nobody could make again: keys, and what was said.

They are the node's key, the gateway's, what is still to be fetched and from whom; and of each community its key, its
record, and the last link that was posted, or what was said when it was joined. What is published of a community, and
the history of one that was joined, are not among them: they can be made, or fetched, again.
"""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from mailserver.catchup.ledger import MAX_FILE_BYTES, PROGRESS_FILE
from mailserver.community.folder import COMMUNITIES_FOLDER, MAX_COMMUNITIES, OWNED_FILE
from mailserver.community.member.joined import MEMBER_FOLDER, RECORD_FILE
from mailserver.community.owner import folders
from mailserver.data_dir.folder import KEY_FILE
from mailserver.data_dir.gateway_files import GATEWAY_KEY_FILE
from mailserver.errors import MailserverError
from mailserver.files import PRIVATE_FOLDER, make_folder, sync_folder, write_new
from mailserver.units import size_text

log = logging.getLogger(__name__)

_OF_A_COMMUNITY = (OWNED_FILE, folders.KEY_FILE, folders.ANNOUNCED_FILE, f"{MEMBER_FOLDER}/{RECORD_FILE}")


class FileTooLong(MailserverError):
    """A small file is longer than it can be. `str()` is one line for the operator."""


def read_small_files(data_dir: Path, *more: str) -> dict[str, bytes]:
    """Read those that are there, and `more` files; each by its path in the data directory.

    Raises:
        OSError: one of them cannot be read.
        FileTooLong: one of them is longer than MAX_FILE_BYTES.
    """
    return _read(data_dir, [KEY_FILE, GATEWAY_KEY_FILE, PROGRESS_FILE, *_of_communities(data_dir), *more])


def read_what_is_left(data_dir: Path) -> dict[str, bytes]:
    """Read those of a damaged data directory: as `read_small_files`, but what cannot be read of communities is left
    out, and logged. The store is worth more.

    Raises:
        OSError, FileTooLong: as `read_small_files`, for all others.
    """
    contents = _read(data_dir, [KEY_FILE, GATEWAY_KEY_FILE, PROGRESS_FILE])
    try:
        names = [*_of_communities(data_dir)]
    except OSError as error:
        log.warning("file not saved file=%s error=%r", COMMUNITIES_FOLDER, str(error))
        return contents
    for name in names:
        try:
            contents |= _read(data_dir, [name])
        except (OSError, FileTooLong) as error:
            log.warning("file not saved file=%s error=%r", name, str(error))
    return contents


def _read(data_dir: Path, names: Iterable[str]) -> dict[str, bytes]:
    contents = {}
    for name in names:
        with contextlib.suppress(FileNotFoundError), (data_dir / name).open("rb") as file:
            contents[name] = file.read(MAX_FILE_BYTES + 1)
            if len(contents[name]) > MAX_FILE_BYTES:
                raise FileTooLong(f"{data_dir / name} is longer than it can be: {size_text(MAX_FILE_BYTES)}")
    return contents


def write_small_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write them into a new data directory, and have them on disk, but for the names in the directory itself.

    Raises:
        OSError: one of them is there already, or cannot be written.
    """
    for name, content in contents.items():
        path = folder / name
        if path.parent != folder:
            for parent in reversed(path.relative_to(folder).parents[:-1]):
                make_folder(folder / parent, PRIVATE_FOLDER)
        write_new(path, content)
        if path.parent != folder:
            sync_folder(path.parent)


def _of_communities(data_dir: Path) -> Iterator[str]:
    for folder in islice(sorted((data_dir / COMMUNITIES_FOLDER).glob("0x*")), MAX_COMMUNITIES):
        for name in _OF_A_COMMUNITY:
            yield f"{COMMUNITIES_FOLDER}/{folder.name}/{name}"
