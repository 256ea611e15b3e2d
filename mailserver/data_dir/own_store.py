"""The store of a data directory: opened if there is one, and made if there never was one. The engine is chosen here.

It is a file in the directory, or in a PostgreSQL database; all else of a mailserver is in the directory in any case.
`store.json` says whether there was one, and which. A store that has gone is not silently replaced by an empty one: its
disk may not be mounted, or somebody has deleted it.
"""

import contextlib
import json
import logging
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path

from mailserver.data_dir.folder import ENODE_FILE
from mailserver.errors import StartupError
from mailserver.files import write_atomically
from mailserver.handoff.json_records import field_of, read_record
from mailserver.store.arrivals import ArrivalLog
from mailserver.store.interface import StoreStats
from mailserver.store.message_ids import StoreWithIds
from mailserver.store.sqlite.arrivals import open_arrivals
from mailserver.store.sqlite.damage import how_it_is_gone
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store, read_stats

log = logging.getLogger(__name__)

RECORD_FILE = "store.json"

_VERSION = 1


@contextlib.asynccontextmanager
async def open_own_store(
    data_dir: Path, network_topic: str, url: str = "", *, reindex: bool = False
) -> AsyncIterator[StoreWithIds]:
    """Open the store of a data directory whose lock we hold.

    Args:
        url: that of the database that it is in; "": it is a file.
        network_topic: to which the message ids of envelopes belong.
        reindex: whether it may be another than before. Then all ids are made anew, while the store is in use.
    Raises:
        OtherNetworkTopic: it is another than before, and may not be.
        StartupError: there was a store, and it is gone.
        StoreError: it cannot be opened.
    """
    if url:
        async with _open_in_database(data_dir, network_topic, url, reindex=reindex) as in_database:
            _note(data_dir, await in_database.identity())
            yield in_database
        return
    _check_it_is_left(data_dir)
    async with open_store(data_dir / STORE_FILE, network_topic, reindex=reindex) as store:
        _note(data_dir, await store.identity())
        yield store


async def read_own_stats(data_dir: Path, url: str = "") -> StoreStats:
    """Read what is in the store of a data directory, whether a daemon has it open or not.

    Args:
        url: as for `open_own_store`.
    Raises:
        StartupError: the driver for the database is not installed.
        StoreError: there is no store, or it cannot be read.
    """
    if not url:
        return await read_stats(data_dir / STORE_FILE)
    check_driver()
    from mailserver.store.postgres.store import read_stats as read_in_database  # noqa: PLC0415 - as below

    return await read_in_database(url)


@contextlib.asynccontextmanager
async def follow_own_store(data_dir: Path, network_topic: str, url: str = "") -> AsyncIterator[ArrivalLog]:
    """Follow the store of a data directory from another process than the daemon, whether that runs or not, and whether
    there is a store yet or not.

    Args:
        url: as for `open_own_store`.
        network_topic: to which the message ids of envelopes must belong.
    Raises:
        StartupError: the driver for the database is not installed.
    """
    if not url:
        async with open_arrivals(data_dir / STORE_FILE, network_topic) as of_file:
            yield of_file
        return
    check_driver()
    from mailserver.store.postgres.arrivals import open_arrivals as open_arrivals_in_database  # noqa: PLC0415 - as below

    async with open_arrivals_in_database(url, network_topic) as of_database:
        yield of_database


def check_it_is_a_file(url: str, instead: str) -> None:
    """Check that a store is a file, for what works on files only.

    Args:
        url: as for `open_own_store`.
        instead: what to use for a database.
    Raises:
        StartupError: it is in a database.
    """
    if url:
        raise StartupError(f"the store is in a database: {instead}, see docs/operating/postgresql.md")


def check_driver() -> None:
    """Check that the driver for databases is installed.

    Raises:
        StartupError: it is not.
    """
    if find_spec("asyncpg") is None:
        raise StartupError("asyncpg is not installed: pip install 'waku-mailserver[postgres]'")


@contextlib.asynccontextmanager
async def _open_in_database(
    data_dir: Path, network_topic: str, url: str, *, reindex: bool
) -> AsyncIterator[StoreWithIds]:
    check_driver()
    from mailserver.store.postgres.migration import NoStore  # noqa: PLC0415 - asyncpg is in an extra
    from mailserver.store.postgres.store import open_store as open_in_database  # noqa: PLC0415

    file = data_dir / STORE_FILE
    if not how_it_is_gone(file):
        raise StartupError(
            f"{file} is a store, too, which nobody would look into: move it out of the data directory, when "
            "waku-mailserver migrate has moved what it has; or leave out --store"
        )
    async with contextlib.AsyncExitStack() as stack:
        signs = _signs(data_dir)
        try:
            store = await stack.enter_async_context(
                open_in_database(url, network_topic, reindex=reindex, must_exist=bool(signs))
            )
        except NoStore as error:
            raise StartupError(
                f"{error}, but there was a store before: name the right database or restore a backup; "
                f"to begin with an empty one, delete {' and '.join(signs)}"
            ) from error
        yield store


def _signs(data_dir: Path) -> list[str]:
    """What says that there was a store. Earlier versions did not write the record, but always the enode."""
    return [str(data_dir / name) for name in (RECORD_FILE, ENODE_FILE) if (data_dir / name).exists()]


def _check_it_is_left(data_dir: Path) -> None:
    """Check that the store is not gone. An empty file may be left by a first start that was killed; later it is a loss.

    Raises:
        StartupError: there was a store, and it is empty or not there.
    """
    store = data_dir / STORE_FILE
    gone = how_it_is_gone(store)
    if not gone:
        return
    signs = _signs(data_dir)
    if signs:
        raise StartupError(
            f"{store} is {gone}, but there was a store before: mount its disk or restore a backup; "
            f"to begin with an empty one, delete {' and '.join(signs)}"
        )


def _note(data_dir: Path, identity: str) -> None:
    """Record that there is a store, and which; log if it is a different one than before."""
    path = data_dir / RECORD_FILE
    try:
        before = read_record(
            path,
            lambda record: field_of(record, "identity", str),
            version=_VERSION,
            what="record of the store",
            error=StartupError,
        )
    except StartupError as error:
        before = None
        log.warning("record of the store started anew cause=%r", str(error))
    if before == identity:  # then nothing is written, which a full disk may not take
        return
    if before is not None:
        log.warning("store is not the same as before was=%s is=%s", before, identity)
    try:
        write_atomically(path, json.dumps({"version": _VERSION, "identity": identity}) + "\n")
    except OSError as error:
        log.error("record of the store not written error=%r", error.strerror or str(error))
