"""The history of a Go mailserver in its LevelDB, to be moved into a store of ours. Nothing is changed.

status-go (`mailserver/mailserver_db_leveldb.go`) has the RLP of each envelope under its key, and nothing else: see
`store.engine.go_rows`. The mailserver may be running meanwhile.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mailserver.errors import DecodeError, StoreError
from mailserver.leveldb.entries import Entry, UnreadablePiece
from mailserver.leveldb.merge import Items
from mailserver.store.engine.go_rows import EARLY_KEY_BYTES, KEY_BYTES, row_of
from mailserver.store.leveldb.files import TableGone
from mailserver.store.leveldb.folder import LevelDbContents, look_into
from mailserver.store.moving import BEFORE_ALL, NEVER, ReadRow, ReadRows, SourcePlace
from mailserver.waku.envelope import decode_envelope

MAX_LOST_TABLES = 100
"""How often tables may be replaced before the next entry is read."""

_NO_ENTRY_SIGN = b"\x02"
"""Before the place of what is no entry: those of entries begin otherwise (`store.engine.go_rows`)."""


class GoHistory:
    """A `store.moving.MoveSource`, which is read from its beginning to its end. Made by `open_go_history`."""

    message_ids = None
    """It keeps none."""

    def __init__(self, folder: Path, database: LevelDbContents, thread: ThreadPoolExecutor) -> None:
        self._folder = folder
        self._thread = thread
        self._reading = _Reading(folder, database)

    async def identity(self) -> str:
        """Where it is: it has no identity of its own."""
        return str(self._folder.resolve())

    async def envelopes(self) -> int:
        """About how many there are, as far as the rest is like what was read."""
        return self._reading.estimate()

    async def pruned_until(self) -> int:
        """It does not say."""
        return NEVER

    async def after(self, place: SourcePlace, limit: int, max_bytes: int) -> ReadRows:
        """Read on, in the order of keys.

        Args:
            place: where the last rows have ended, or BEFORE_ALL, to begin anew with what is there by then.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._reading.after, place, limit, max_bytes)


class _Reading:
    """Reads a database from its beginning to its end, in one thread."""

    def __init__(self, folder: Path, database: LevelDbContents) -> None:
        self._folder = folder
        self._begin(database, after=None)
        self._end, self._is_all = BEFORE_ALL, False
        self._count = self._fitting = 0
        self._told: set[SourcePlace] = set()

    def _begin(self, database: LevelDbContents, after: bytes | None) -> None:
        self._database = database
        self._items: Items = database.entries(after)
        self._last_key = after

    def estimate(self) -> int:
        """How many entries there are, if the rest is like what was read."""
        read = self._database.read_bytes
        if self._is_all or not read:
            return self._count
        return self._count * max(self._database.total_bytes, read) // read

    def after(self, place: SourcePlace, limit: int, max_bytes: int) -> ReadRows:
        """Read on, or begin anew."""
        if place == BEFORE_ALL:
            self._count, self._fitting, self._is_all = 0, 0, False
            self._told.clear()
            self._begin(look_into(self._folder), after=None)
        else:
            assert place == self._end
        rows: list[ReadRow] = []
        total, now = 0, int(time.time())
        while len(rows) < limit and total < max_bytes and not self._is_all:
            item = self._next()
            if item is None:
                self._is_all = True
            else:
                rows.append(_row(item, now))
                total += len(item.content if isinstance(item, UnreadablePiece) else item.value or b"")
        if self._count and not self._fitting:
            raise StoreError(
                f"the LevelDB in {self._folder} is not a Go mailserver's: "
                f"of its first {self._count} keys none is that of an envelope"
            )
        self._end = rows[-1].place if rows else place
        return ReadRows(rows, is_all=self._is_all)

    def _next(self) -> Entry | UnreadablePiece | None:
        for _ in range(MAX_LOST_TABLES):
            try:
                item = self._following()
            except TableGone:
                self._begin(look_into(self._folder), after=self._last_key)
                continue
            except OSError as error:
                raise StoreError(f"cannot read the LevelDB in {self._folder}: {error.strerror or error}") from error
            if isinstance(item, Entry):
                self._last_key = item.key
                self._count += 1
                self._fitting += len(item.key) in (EARLY_KEY_BYTES, KEY_BYTES)
            return item
        raise StoreError(f"the LevelDB in {self._folder} changes all the time: stop its mailserver, and try again")

    def _following(self) -> Entry | UnreadablePiece | None:
        """What is next, without what was told before tables were replaced."""
        for item in self._items:
            if isinstance(item, Entry):
                return item
            place = _place_of(item)
            if place not in self._told:
                self._told.add(place)
                return item
        return None


def _row(item: Entry | UnreadablePiece, now: int) -> ReadRow:
    if isinstance(item, UnreadablePiece):
        return ReadRow(_place_of(item), [item.file, item.at, item.content], item.why)
    raw = item.value or b""
    return row_of(item.key, item.key[EARLY_KEY_BYTES:] or _topic_in(raw), raw, now)


def _topic_in(raw: bytes) -> bytes:
    """The topic of an envelope, which early keys do not have; b"" if it is none."""
    try:
        return decode_envelope(raw).topic
    except DecodeError:
        return b""


def _place_of(unreadable: UnreadablePiece) -> SourcePlace:
    number, at = unreadable.number.to_bytes(8, "big"), unreadable.at.to_bytes(8, "big")
    return SourcePlace(int.from_bytes(_NO_ENTRY_SIGN + number + at, "big"))


@contextlib.asynccontextmanager
async def open_go_history(folder: Path) -> AsyncIterator[GoHistory]:
    """Read the LevelDB in a folder.

    Raises:
        StoreError: there is none, or not a Go mailserver's; or it cannot be read.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="leveldb") as thread:
        database = await asyncio.get_running_loop().run_in_executor(thread, look_into, folder)
        yield GoHistory(folder, database, thread)
