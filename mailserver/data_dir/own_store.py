"""The store of a data directory: opened if there is one, and made if there never was one. The engine is chosen here.

It is a file in the directory, or in a PostgreSQL database; all else of a mailserver is in the directory in any case.
`store.json` says whether there was one, and which. A store that has gone is not silently replaced by an empty one: its
disk may not be mounted, or somebody has deleted it. It also says which row was the last that was seen: so it is noticed
if the store is put back to an earlier moment.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from mailserver.data_dir.folder import ENODE_FILE
from mailserver.errors import StartupError, StoreError
from mailserver.files import write_atomically
from mailserver.handoff.json_records import count_of, field_of, read_record
from mailserver.store.arrivals import ArrivalLog
from mailserver.store.interface import StoreStats
from mailserver.store.message_ids import StoreWithIds
from mailserver.store.sqlite.arrivals import open_arrivals
from mailserver.store.sqlite.damage import how_it_is_gone
from mailserver.store.sqlite.followed import open_followed
from mailserver.store.sqlite.identity import NOTHING_KNOWN, KnownStore
from mailserver.store.sqlite.reading import read_stats
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import SqliteStore, open_store
from mailserver.worker_socket.client import open_remote_writer

if TYPE_CHECKING:  # asyncpg is in an extra
    from mailserver.store.postgres.store import PostgresStore

log = logging.getLogger(__name__)

RECORD_FILE = "store.json"

NOTE_INTERVAL_S = 10.0
"""How often the last row is written down, if there is a new one."""

_VERSION = 1


@contextlib.asynccontextmanager
async def open_own_store(
    data_dir: Path, network_topic: str, url: str = "", *, reindex: bool = False, is_first: bool = True
) -> AsyncIterator[StoreWithIds]:
    """Open the store of a data directory whose lock we hold.

    Args:
        is_first: whether this is the process that notes which store there is, and how far it was seen, and that writes
            a file. Of several workers, one is.
        url: that of the database that it is in; "": it is a file.
        network_topic: to which the message ids of envelopes belong.
        reindex: whether it may be another than before. Then all ids are made anew, while the store is in use.
    Raises:
        OtherNetworkTopic: it is another than before, and may not be.
        StartupError: there was a store, and it is gone.
        StoreError: it cannot be opened.
    """
    if url:
        async with _open_in_database(data_dir, network_topic, url, reindex=reindex, is_first=is_first) as in_database:
            yield in_database
        return
    if not is_first:
        async with (
            open_remote_writer(data_dir) as writer,
            open_followed(data_dir / STORE_FILE, network_topic, writer) as followed,
        ):
            yield followed
        return
    _check_it_is_left(data_dir)
    note = _Note(data_dir)
    async with contextlib.AsyncExitStack() as stack:
        opening = open_store(data_dir / STORE_FILE, network_topic, reindex=reindex, known=note.noted or NOTHING_KNOWN)
        store = await stack.enter_async_context(opening)
        async with note.kept(store, stack):
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
        raise StartupError("asyncpg is not installed: pip install -r requirements-postgres.lock")


@contextlib.asynccontextmanager
async def _open_in_database(
    data_dir: Path, network_topic: str, url: str, *, reindex: bool, is_first: bool
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
    note = _Note(data_dir)
    async with contextlib.AsyncExitStack() as stack:
        signs = _signs(data_dir)
        try:
            store = await stack.enter_async_context(
                open_in_database(
                    url, network_topic, reindex=reindex, must_exist=bool(signs), known=note.noted or NOTHING_KNOWN
                )
            )
        except NoStore as error:
            raise StartupError(
                f"{error}, but there was a store before: name the right database or restore a backup; "
                f"to begin with an empty one, delete {' and '.join(signs)}"
            ) from error
        if not is_first:
            yield store
            return
        async with note.kept(store, stack):
            yield store


def _signs(data_dir: Path) -> list[str]:
    """What says that there was a store. Earlier versions did not write the record, but always the enode."""
    return [str(data_dir / name) for name in (RECORD_FILE, ENODE_FILE) if (data_dir / name).exists()]


def check_there_is_one(data_dir: Path) -> None:
    """Check that the file of a store is there, for a command that should not make one.

    Raises:
        StartupError: there was a store, and it is gone.
        StoreError: there is none.
    """
    _check_it_is_left(data_dir)
    store = data_dir / STORE_FILE
    if not store.exists():
        raise StoreError(f"cannot open the store {store}: there is none")


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


def read_note(data_dir: Path) -> KnownStore | None:
    """Read the record of which store there was; None if there is none.

    Raises:
        StartupError: it cannot be read, or is something else.
    """
    return read_record(
        data_dir / RECORD_FILE,
        lambda record: KnownStore(field_of(record, "identity", str), count_of("seq", record.get("seq", 0))),
        version=_VERSION,
        what="record of the store",
        error=StartupError,
    )


def known_store(data_dir: Path) -> KnownStore:
    """What the record says of the store; a record that cannot be read says nothing."""
    try:
        return read_note(data_dir) or NOTHING_KNOWN
    except StartupError:  # whoever writes it says so
        return NOTHING_KNOWN


class _Note:
    """The record of which store there is, and how far it was seen."""

    def __init__(self, data_dir: Path) -> None:
        """Read it."""
        self._path = data_dir / RECORD_FILE
        self._is_failing = False
        self.noted: KnownStore | None = None
        try:
            self.noted = read_note(data_dir)
        except StartupError as error:
            log.warning("record of the store started anew cause=%r", str(error))

    @contextlib.asynccontextmanager
    async def kept(
        self, store: "SqliteStore | PostgresStore", closing: contextlib.AsyncExitStack
    ) -> AsyncIterator[None]:
        """Record which store it is, and, again and again, which row was the last.

        Args:
            closing: closes the store at the end; then the last row is recorded once more.
        """
        identity = await store.identity()
        self.write(KnownStore(identity, store.newest_seen))
        ending = asyncio.Event()
        following = asyncio.create_task(self._follow(store, identity, ending), name="record of the store")
        try:
            yield
        finally:
            ending.set()
            await following
            await closing.aclose()
            self.write(KnownStore(identity, store.newest_seen))  # now all that was put is stored

    def write(self, found: KnownStore) -> None:
        """Record that there is a store, and which; log if it is a different one than before."""
        if self.noted == found:  # then nothing is written, which a full disk may not take
            return
        if self.noted is not None and self.noted.identity != found.identity:
            log.warning("store is not the same as before was=%s is=%s", self.noted.identity, found.identity)
        record: dict[str, object] = {"version": _VERSION, "identity": found.identity}
        if found.seq:
            record["seq"] = found.seq
        try:
            write_atomically(self._path, json.dumps(record) + "\n")
        except OSError as error:
            if not self._is_failing:
                log.error("record of the store not written error=%r", error.strerror or str(error))
            self._is_failing = True
            return
        self.noted, self._is_failing = found, False

    async def _follow(self, store: "SqliteStore | PostgresStore", identity: str, ending: asyncio.Event) -> None:
        """No write is left amidst."""
        while not ending.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(NOTE_INTERVAL_S):
                    await ending.wait()
            await asyncio.to_thread(self.write, KnownStore(identity, store.newest_seen))
