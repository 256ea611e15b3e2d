"""The rows of a store in the order of arrival, read from another process: a `store.arrivals.ArrivalLog`.

The daemon may be running, or stop, or start again; or somebody may put another file in the place of the store. So the
names of the files are compared with what is open each time that new rows are read (`store.sqlite.presence`).
"""

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Container, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from mailserver.errors import StoreError
from mailserver.store.arrivals import ArrivedEnvelope, ArrivedFields, Bodies, OtherStore, Sought
from mailserver.store.engine import work as costs
from mailserver.store.engine.arrivals import (
    MAX_ARRIVALS_BYTES,
    READERS,
    count_to_known,
    decode_arrived,
    fitting,
    read_arrived,
)
from mailserver.store.engine.fair_pool import FairPool
from mailserver.store.engine.keys import pieces
from mailserver.store.interface import OURSELVES, Payer
from mailserver.store.message_ids import Arrival, OtherNetworkTopic
from mailserver.store.sqlite.connections import connect_follower
from mailserver.store.sqlite.damage import explain
from mailserver.store.sqlite.handoff import SqliteHandoff
from mailserver.store.sqlite.packing import numbers, packed_bytes, packed_numbers
from mailserver.store.sqlite.presence import Presence
from mailserver.store.sqlite.schema import HASH_PREFIX_BYTES, SCHEMA_VERSION
from mailserver.store.sqlite.worker import ConnectionThread

# For damaged rows: their values may be of any type, or be missing.
_BYTES = "coalesce(CAST(e.raw AS BLOB), x'')"
_PADDED_HASH = f"CAST(coalesce(CAST(e.hash AS BLOB), x'') || zeroblob({HASH_PREFIX_BYTES}) AS BLOB)"
_HASH = f"substr({_PADDED_HASH}, 1, {HASH_PREFIX_BYTES})"
# Sizes come first, and by themselves: only the envelopes that are wanted are read.
# Only the last day of reception gets new rows. The first of it goes first when it is pruned.
_REMOVALS = """
    (
        SELECT coalesce(max(day) || ' ' || first_seq || ' ' || (
            SELECT coalesce(sum(envelopes), 0) FROM reception_days WHERE day < (SELECT max(day) FROM reception_days)
        ), '')
        FROM reception_days
    )
"""
_AFTER = f"""
    SELECT
        (SELECT user_version FROM pragma_user_version),
        (SELECT id FROM identity),
        (SELECT network_topic FROM id_index),
        (SELECT coalesce(min(seq), 0) FROM envelopes),
        (SELECT coalesce(max(seq), 0) FROM envelopes),
        {_REMOVALS},
        (SELECT until FROM removed),
        {packed_numbers("seq")}, {packed_numbers("size")}, {packed_bytes("hash")}, {packed_bytes("raw")}
    FROM (
        SELECT e.seq, length({_BYTES}) AS size, {_HASH} AS hash, {_BYTES} AS raw
        FROM (
            SELECT seq, size, sum(size) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) AS total
            FROM (
                SELECT seq, coalesce(length(raw), 0) AS size FROM envelopes WHERE seq > ? ORDER BY seq LIMIT ?
            )
        ) AS next CROSS JOIN envelopes AS e ON e.seq = next.seq
        WHERE next.total - next.size < {MAX_ARRIVALS_BYTES}
        LIMIT -1
    )
"""
# What is not bytes is damaged: as if it was not there. Of what is too long, only the length is read. The list of places
# is read in its order, and each place looked up once: to read a page from the disk's cache takes most of the time.
_BODIES = f"""
    SELECT {packed_numbers("size")}, {packed_bytes("raw")} FROM (
        SELECT
            iif(typeof(e.raw) = 'blob', length(e.raw), 0) AS size,
            iif(
                j.key < ? AND typeof(e.raw) = 'blob' AND length(e.raw) <= ?
                    AND j.value NOT IN (SELECT value FROM json_each(?)),
                e.raw,
                NULL
            ) AS raw
        FROM json_each(?) AS j LEFT JOIN envelopes AS e ON e.seq = j.value
        LIMIT -1
    )
"""
_MISSING = f"""
    SELECT {packed_numbers("seq")} FROM (
        SELECT j.value AS seq FROM json_each(?) AS j LEFT JOIN envelopes AS e ON e.seq = j.value
        WHERE e.seq IS NULL ORDER BY j.key LIMIT -1
    )
"""

R = TypeVar("R")


class _Replaced(StoreError):
    """The open files are not the store at its path any more."""


@dataclass(frozen=True, slots=True)
class SqliteArrived:
    """A `store.arrivals.Arrived`: rows as they were read, packed."""

    end: Arrival
    first: Arrival
    last: Arrival
    removals: str
    removed_until: int
    seqs: str | None
    sizes: str | None
    hashes: bytes | None
    raws: bytes | None

    def up_to_known(self, known: Container[bytes]) -> "SqliteArrived | None":
        """The same up to the last envelope that is known; None if none is."""
        count = count_to_known(pieces(self.hashes, HASH_PREFIX_BYTES), known)
        if not count:
            return None
        seqs, sizes = numbers(self.seqs)[:count], numbers(self.sizes)[:count]
        assert self.hashes is not None
        return replace(
            self,
            end=Arrival(seqs[-1]),
            seqs=",".join(map(str, seqs)),
            sizes=",".join(map(str, sizes)),
            hashes=self.hashes[: count * HASH_PREFIX_BYTES],
        )

    def fields(self, known: Container[bytes] = ()) -> tuple[list[ArrivedFields], int]:
        """What the envelopes say, in order, but for those that are known or damaged; and how many are damaged."""
        return read_arrived(*self._columns, known)

    def decode(self) -> tuple[list[ArrivedEnvelope], int]:
        """The envelopes in order, but for those that are damaged; and how many these are."""
        return decode_arrived(*self._columns)

    @property
    def _columns(self) -> tuple[Sequence[int], Sequence[int], Sequence[bytes], bytes]:
        return numbers(self.seqs), numbers(self.sizes), pieces(self.hashes, HASH_PREFIX_BYTES), self.raws or b""


class _Reader(NamedTuple):
    worker: ConnectionThread
    presence: Presence


class _Readers:
    """The connections to one file."""

    def __init__(self, readers: Sequence[_Reader]) -> None:
        self.pool = FairPool(readers)
        self._readers = readers

    async def close(self) -> None:
        """Close them, after all that was begun."""
        for _ in self._readers:
            reader = await self.pool.take(OURSELVES, 0)
            await reader.worker.close()


class SqliteArrivalLog:
    """A `store.arrivals.ArrivalLog`, which says what each method does and raises. Made by `open_arrivals`."""

    def __init__(self, path: Path, network_topic: str) -> None:
        self._path = path
        self._network_topic = network_topic
        self._readers: _Readers | None = None
        self._opening = asyncio.Lock()

    async def after(self, arrival: Arrival, limit: int, *, of: str) -> SqliteArrived:
        """Read the first `limit` envelopes after a place, fewer if they are long."""
        row = await self._newest((int(arrival), limit))
        version, identity, network_topic, first, last, removals, removed_until, seqs, *packed = row
        if version != SCHEMA_VERSION:
            raise StoreError(f"{self._path} has schema version {version}, this program knows {SCHEMA_VERSION}")
        if not isinstance(identity, str):
            raise StoreError(f"{self._path} was restored from a backup: start the mailserver on it once")
        if network_topic and network_topic != self._network_topic:
            raise OtherNetworkTopic(network_topic, self._network_topic)
        if identity != of:
            raise OtherStore(identity)
        end = max(numbers(seqs), default=int(arrival))
        return SqliteArrived(Arrival(end), Arrival(first), Arrival(last), removals, removed_until, seqs, *packed)

    async def read(
        self,
        places: Sequence[Sought],
        whole: int,
        max_bytes: int,
        *,
        known: Container[Arrival] = (),
        payer: Payer = OURSELVES,
    ) -> Bodies:
        """Look for envelopes; read some of the first `whole` as they are."""
        most = costs.STATEMENT + costs.ENVELOPE * (len(places) + whole) + max_bytes // costs.UNIT_BYTES
        arrivals = [place.arrival for place in places]
        readers = await self._open()
        read = partial(_read, arrivals=arrivals, whole=whole, max_bytes=max_bytes, known=known)
        bodies = await self._run(readers, lambda _, connection: read(connection), most, payer)
        unused = (sum(map(len, bodies.raws.values())) - max_bytes) // costs.UNIT_BYTES
        payer.charge(unused)
        readers.pool.correct(unused, payer)
        return bodies

    async def missing(self, places: Sequence[Sought], *, payer: Payer = OURSELVES) -> list[Arrival]:
        """Which of these envelopes are not there."""
        find = partial(_row, sql=_MISSING, parameters=(json.dumps([place.arrival for place in places]),))
        work = costs.STATEMENT + costs.ENVELOPE * len(places)
        readers = await self._open()
        (found,) = await self._run(readers, lambda _, connection: find(connection), work, payer)
        return [Arrival(seq) for seq in numbers(found)]

    def was_archived(self) -> bool:
        """Whether envelopes of the store were ever archived: the record lies beside it."""
        return SqliteHandoff(self._path).was_archived()

    async def close(self) -> None:
        """Close all connections."""
        async with self._opening:
            await self._close()

    async def _newest(self, parameters: tuple[int, int]) -> tuple[Any, ...]:
        """What the store at the path says now, even if it has just taken the place of another."""

        def look_and_read(reader: _Reader, connection: sqlite3.Connection) -> tuple[Any, ...]:
            if reader.presence.look():
                raise _Replaced(f"{self._path} was just replaced: try again")
            return _row(connection, _AFTER, parameters)

        # Usually there is little. What was read counts afterwards, so that its turn comes soon.
        readers = await self._open()
        try:
            row = await self._run(readers, look_and_read, costs.STATEMENT, OURSELVES)
        except _Replaced:
            readers = await self._open(instead_of=readers)
            row = await self._run(readers, look_and_read, costs.STATEMENT, OURSELVES)
        readers.pool.correct(len(row[-1] or b"") // costs.UNIT_BYTES, OURSELVES)
        return row

    async def _open(self, *, instead_of: _Readers | None = None) -> _Readers:
        """The connections; open them if there are none, or if these are not of the store at the path."""
        if self._readers is not None and self._readers is not instead_of:
            return self._readers
        async with self._opening:
            if self._readers is instead_of:
                await self._close()
            if self._readers is None:
                self._readers = await self._connect()
            return self._readers

    async def _connect(self) -> _Readers:
        async with contextlib.AsyncExitStack() as unless_opened:
            readers = []
            for _ in range(READERS):
                # Before it is opened: whatever takes its place meanwhile is noticed later.
                presence = await asyncio.to_thread(Presence, self._path)
                worker = await ConnectionThread.start(partial(connect_follower, self._path), "store-arrivals")
                unless_opened.push_async_callback(worker.close)
                readers.append(_Reader(worker, presence))
            unless_opened.pop_all()
        return _Readers(readers)

    async def _close(self) -> None:
        readers, self._readers = self._readers, None
        if readers is not None:
            await readers.close()

    async def _run(
        self, readers: _Readers, job: Callable[[_Reader, sqlite3.Connection], R], work: int, payer: Payer
    ) -> R:
        """Do something in a reader's thread, when it is the payer's turn."""
        reader = await readers.pool.take(payer, work)
        try:
            payer.charge(work)
            return await reader.worker.run(partial(job, reader))
        except sqlite3.Error as error:
            raise StoreError(f"cannot read the store: {explain(error, self._path)}") from error
        finally:
            readers.pool.give_back(reader)


def _row(connection: sqlite3.Connection, sql: str, parameters: Sequence[object]) -> tuple[Any, ...]:
    row: tuple[Any, ...] = connection.execute(sql, parameters).fetchone()
    return row


def _read(
    connection: sqlite3.Connection,
    arrivals: Sequence[Arrival],
    whole: int,
    max_bytes: int,
    known: Container[Arrival],
) -> Bodies:
    """What `SqliteArrivalLog.read` reads.

    Envelopes that take no more than their share of `max_bytes` are read at once: as a rule, these are all. What else
    fits is known when the lengths are.
    """
    held = [each for each in arrivals[:whole] if each in known]
    share = max_bytes // max(whole, 1)
    sizes, body = _bodies(connection, arrivals, whole, share, held)
    count = fitting(sizes[:whole], max_bytes)
    raws: dict[Arrival, bytes] = {}
    longer: dict[Arrival, int] = {}  # and where they are among all
    at = 0
    for number, (each, size) in enumerate(zip(arrivals[:count], sizes, strict=False)):
        if not size or each in known:
            continue
        if size > share:
            longer[each] = number
        else:
            raws[each] = body[at : at + size]
            at += size
    if longer:
        sizes_now, body = _bodies(connection, [*longer], len(longer), max(sizes), ())
        at = 0
        for (each, number), size in zip(longer.items(), sizes_now, strict=True):
            sizes[number] = size  # 0, if it was removed meanwhile
            if size:
                raws[each] = body[at : at + size]
                at += size
    return Bodies(sizes, count, raws)


def _bodies(
    connection: sqlite3.Connection, arrivals: Sequence[Arrival], whole: int, longest: int, held: Sequence[Arrival]
) -> tuple[list[int], bytes]:
    """The lengths of envelopes, and, one after the other, those of the first `whole` that are no longer than
    `longest`, but for those that are `held`."""
    parameters = whole, longest, json.dumps(held), json.dumps(arrivals)
    packed_sizes, packed_raws = _row(connection, _BODIES, parameters)
    return numbers(packed_sizes), packed_raws or b""


@contextlib.asynccontextmanager
async def open_arrivals(path: Path, network_topic: str) -> AsyncIterator[SqliteArrivalLog]:
    """Follow the store at `path`, which is opened when it is first read; close it at the end.

    Args:
        network_topic: to which its message ids must belong, once it has any.
    """
    log = SqliteArrivalLog(path, network_topic)
    try:
        yield log
    finally:
        await log.close()
