"""Opening the two stores of a move: one in a file, one in a database. The engines are chosen here.

A folder has a Go mailserver's LevelDB, which is only moved from, to either of them.

A file that is moved from may have a daemon that writes it. One that is moved to must have none, and gets none
meanwhile. A database may be used by any number of mailservers.
"""

import contextlib
import stat
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from typing import TypeGuard

from mailserver.data_dir.folder import kept_unused, locked
from mailserver.data_dir.own_store import check_driver, known_store
from mailserver.errors import ConfigError, StartupError
from mailserver.moving.aside import SetAside
from mailserver.moving.move import Show, StoreMove
from mailserver.moving.report import MoveReport
from mailserver.store.moving import MoveSource, MoveTarget
from mailserver.store.sqlite.moving import open_source as open_source_file
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store

ASIDE_ENDING = "-set-aside.jsonl"
"""What is set aside is beside the store in a file, whichever way it is moved, and named after it. If a folder is moved
to a database, it is beside the folder."""


async def move(source: Path | str, target: Path | str, network_topic: str, show: Show) -> MoveReport:
    """Move all of one store into another, and compare them.

    Args:
        source, target: the path of a file, or the URL of a database; one of each. Or from the path of a folder.
        network_topic: to which the message ids of envelopes belong.
    Raises:
        ConfigError: they are not one of each, or the file to move to is not named as a store is.
        StartupError: a mailserver uses the folder of the file that is moved to, or something is not installed.
        StoreError: a store cannot be opened, read or written.
    """
    aside = aside_of(source, target)
    async with _open_source(source, network_topic) as read, _open_target(target, network_topic) as written:
        begun = await StoreMove.begin(read, written, SetAside(aside, await read.identity()), show)
        return await begun.run()


def aside_of(source: Path | str, target: Path | str) -> Path:
    """The file in which rows are set aside.

    Raises:
        ConfigError: the two are not a file and a database, and the source is no folder.
        StartupError: it may be meant to be one, but is not there, or out of reach.
    """
    if isinstance(target, Path):
        if isinstance(source, Path) and not _is_folder(source):
            if not source.exists():  # a folder of a Go mailserver's, perhaps
                raise StartupError(f"there is nothing at {source}")
            raise ConfigError("both are files: waku-mailserver backup copies a store")
        if target.name != STORE_FILE:
            raise ConfigError(f"{target}: a mailserver finds its store only by the name {STORE_FILE}")
        beside = target
    elif isinstance(source, Path):
        beside = source.resolve() if _is_folder(source) else source
    else:
        raise ConfigError("both are databases: pg_dump copies one")
    return beside.with_name(beside.name + ASIDE_ENDING)


def _is_folder(place: Path | str) -> TypeGuard[Path]:
    """Whether it is one that is there. Raises StartupError: it cannot be told."""
    if not isinstance(place, Path):
        return False
    try:
        return stat.S_ISDIR(place.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise StartupError(f"cannot look at {place}: {error.strerror}") from error


@contextlib.asynccontextmanager
async def _open_source(place: Path | str, network_topic: str) -> AsyncIterator[MoveSource]:
    if _is_folder(place):
        if find_spec("google_crc32c") is None:
            raise StartupError("google-crc32c is not installed: pip install -r requirements-leveldb.lock")
        from mailserver.store.leveldb.go_history import open_go_history as open_leveldb  # noqa: PLC0415 - in an extra

        async with open_leveldb(place) as leveldb:
            yield leveldb
        return
    if isinstance(place, Path):
        with kept_unused(place.parent) as holder:
            async with open_source_file(place, network_topic, is_alone=holder is None) as file:
                yield file
        return
    check_driver()
    from mailserver.store.postgres.go_history import has_go_history, open_go_history  # noqa: PLC0415 - in an extra
    from mailserver.store.postgres.migration import NoStore  # noqa: PLC0415
    from mailserver.store.postgres.moving import open_source as open_source_database  # noqa: PLC0415

    if await has_go_history(place):
        async with open_go_history(place) as history:
            yield history
        return
    async with contextlib.AsyncExitStack() as stack:
        try:
            database = await stack.enter_async_context(open_source_database(place, network_topic))
        except NoStore as error:
            raise StartupError(str(error)) from error
        yield database


@contextlib.asynccontextmanager
async def _open_target(place: Path | str, network_topic: str) -> AsyncIterator[MoveTarget]:
    if isinstance(place, Path):
        with locked(place.parent):
            async with open_store(place, network_topic, known=known_store(place.parent)) as file:
                yield file
        return
    check_driver()
    from mailserver.store.postgres.ahead import make_all_days  # noqa: PLC0415 - asyncpg is in an extra
    from mailserver.store.postgres.store import open_store as open_in_database  # noqa: PLC0415 - asyncpg is in an extra

    async with open_in_database(place, network_topic) as database:
        await make_all_days(place)
        yield database
