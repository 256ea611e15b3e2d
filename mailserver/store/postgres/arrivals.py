"""The rows of a store in PostgreSQL in the order of arrival, read from another process: a `store.arrivals.ArrivalLog`.

`seq` rises in the order of commits (`store.postgres.schema`), so whoever has read a row has read all below it. What was
removed is never counted for this: `removed` has one row, which every deletion writes anew.

A database that is restored from a backup, or fails over to a standby that lacks something, is the same store at an
earlier moment: its numbers end before those that were read. Whoever follows it begins anew then. If it has gone on
since, nobody sees that; its mailservers have given what came since numbers beyond all that was read
(`store.postgres.presence`).
"""

import contextlib
from collections.abc import AsyncIterator, Container, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import asyncpg

from mailserver.errors import StoreError
from mailserver.handoff.kinds import ARCHIVED
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
from mailserver.store.interface import OURSELVES, Payer
from mailserver.store.message_ids import Arrival, OtherNetworkTopic
from mailserver.store.postgres.connections import DriverConnection, check_primary, open_links
from mailserver.store.postgres.failures import FollowerFailures
from mailserver.store.postgres.migration import NoStore, check_known
from mailserver.store.postgres.readers import ReaderPool, Removed
from mailserver.store.postgres.schema import SCHEMA_TABLE
from mailserver.store.postgres.urls import shown_url

_LAST_CREATED = 2**62
"""Later than anything may have been created."""

_IDENTITY = "(SELECT id FROM identity)"
_FACTS = f"""
    SELECT
        (SELECT version FROM {SCHEMA_TABLE}),
        {_IDENTITY},
        (SELECT network_topic FROM id_index),
        (SELECT coalesce(min(seq), 0) FROM envelopes),
        (SELECT coalesce(max(last_seq), 0) FROM reception_days),
        (SELECT xmin::text FROM removed),
        (SELECT until FROM removed),
        EXISTS (SELECT 1 FROM records WHERE name = '{ARCHIVED.name}')
"""
# Sizes come first, and by themselves: only the envelopes that are wanted are read.
_AFTER = f"""
    SELECT {_IDENTITY}, max(following), array_agg(seq), array_agg(size), array_agg(hash), string_agg(raw, ''::bytea)
    FROM (
        SELECT * FROM (
            SELECT *, sum(size) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) AS total, count(*) OVER () AS following
            FROM (
                SELECT seq, hash, raw, octet_length(raw) AS size FROM envelopes
                WHERE seq > $1 AND seq <= $2 ORDER BY seq LIMIT $3
            ) AS next
        ) AS summed
        WHERE total - size < {MAX_ARRIVALS_BYTES} ORDER BY seq
    ) AS found
"""
# The bounds of `created` leave out the partitions of other days.
_SOUGHT = """
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) WITH ORDINALITY AS a (seq, first, last, n)
    LEFT JOIN LATERAL (
        SELECT seq, raw FROM envelopes WHERE seq = a.seq AND created BETWEEN a.first AND a.last OFFSET 0
    ) AS e ON true
"""
_RAWS = f"""
    SELECT {_IDENTITY}, array_agg(size),
        string_agg(raw, ''::bytea) FILTER (WHERE is_wanted AND (total <= $5 OR total = size))
    FROM (
        SELECT n, raw, size, is_wanted, sum(size) OVER (ORDER BY n ROWS UNBOUNDED PRECEDING) AS total FROM (
            SELECT a.n, e.raw, coalesce(octet_length(e.raw), 0) AS size, coalesce(($4::bool[])[a.n], false) AS is_wanted
            {_SOUGHT}
        ) AS looked_up
        ORDER BY n
    ) AS summed
"""
_MISSING = f"SELECT {_IDENTITY}, array_agg(a.seq ORDER BY a.n) {_SOUGHT} WHERE e.seq IS NULL"


class _Rows(NamedTuple):
    """Rows as columns: see `store.engine.arrivals.decode_arrived`."""

    seqs: Sequence[int]
    sizes: Sequence[int]
    prefixes: Sequence[bytes]
    raws: bytes


_NO_ROWS = _Rows((), (), (), b"")


@dataclass(frozen=True, slots=True)
class PostgresArrived:
    """A `store.arrivals.Arrived`: rows as they were read."""

    end: Arrival
    first: Arrival
    last: Arrival
    removals: str
    removed_until: int
    rows: _Rows

    def up_to_known(self, known: Container[bytes]) -> "PostgresArrived | None":
        """The same up to the last envelope that is known; None if none is."""
        seqs, sizes, prefixes, raws = self.rows
        count = count_to_known(prefixes, known)
        if not count:
            return None
        rows = _Rows(seqs[:count], sizes[:count], prefixes[:count], raws)
        return replace(self, end=Arrival(seqs[count - 1]), rows=rows)

    def fields(self, known: Container[bytes] = ()) -> tuple[list[ArrivedFields], int]:
        """What the envelopes say, in order, but for those that are known or damaged; and how many are damaged."""
        return read_arrived(*self.rows, known)

    def decode(self) -> tuple[list[ArrivedEnvelope], int]:
        """The envelopes in order, but for those that are damaged; and how many these are."""
        return decode_arrived(*self.rows)


class PostgresArrivalLog:
    """A `store.arrivals.ArrivalLog`, which says what each method does and raises. Made by `open_arrivals`."""

    def __init__(self, readers: ReaderPool, where: str, network_topic: str) -> None:
        self._readers = readers
        self._where = where
        self._network_topic = network_topic
        self._identity: str | None = None
        self._was_archived = False

    async def after(self, arrival: Arrival, limit: int, *, of: str) -> PostgresArrived:
        """Read the first `limit` envelopes after a place, fewer if they are long."""
        version, identity, network_topic, first, last, removals, until, was_archived = await self._readers.run(_FACTS)
        check_known(version, self._where)
        if network_topic and network_topic != self._network_topic:
            raise OtherNetworkTopic(network_topic, self._network_topic)
        self._identity, self._was_archived = identity, was_archived
        if identity != of or last < arrival:
            raise OtherStore(identity)
        following, rows = 0, _NO_ROWS
        if last > arrival and limit:
            # Usually there is little. What was read counts afterwards, so that its turn comes soon.
            found, *columns = await self._read(_AFTER, (int(arrival), last, limit))
            following, rows = (found, _Rows(*columns)) if found else (0, _NO_ROWS)
            self._readers.correct(len(rows.raws) // costs.UNIT_BYTES)
        # The rows of the last places may have been removed: if those that are left are read, all is.
        is_all = following < limit and len(rows.seqs) == following
        end = last if is_all else rows.seqs[-1] if rows.seqs else arrival
        return PostgresArrived(Arrival(end), Arrival(first), Arrival(last), removals, until, rows)

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
        wanted = [place.arrival not in known for place in places[:whole]]
        found, body = await self._read(_RAWS, (*_sought(places), wanted, max_bytes), most, payer)
        self._readers.correct((len(body or b"") - max_bytes) // costs.UNIT_BYTES, payer)
        sizes: list[int] = found or []
        count = fitting(sizes[:whole], max_bytes)
        raws, at = {}, 0
        for place, size, is_wanted in zip(places[:count], sizes, wanted, strict=False):
            if size and is_wanted:
                raws[place.arrival] = body[at : at + size]
                at += size
        return Bodies(sizes, count, raws)

    async def missing(self, places: Sequence[Sought], *, payer: Payer = OURSELVES) -> list[Arrival]:
        """Which of these envelopes are not there."""
        most = costs.STATEMENT + costs.ENVELOPE * len(places)
        (found,) = await self._read(_MISSING, _sought(places), most, payer)
        return [Arrival(seq) for seq in found or ()]

    def was_archived(self) -> bool:
        """Whether envelopes of the store were ever archived, as far as it was read."""
        return self._was_archived

    async def _read(
        self, sql: str, parameters: Sequence[object], work: int = costs.STATEMENT, payer: Payer = OURSELVES
    ) -> list[Any]:
        """Run a statement; return the columns behind the identity of the store that it has read."""
        identity, *columns = await self._readers.run(sql, parameters, work, payer)
        if self._identity not in (None, identity):
            raise StoreError(f"{self._where} has just become another store: try again")
        return columns


def _sought(places: Sequence[Sought]) -> tuple[list[int], list[int], list[int]]:
    """Places as columns: `seq`, and the bounds of `created`."""
    first = [0 if place.created is None else place.created for place in places]
    last = [_LAST_CREATED if place.created is None else place.created for place in places]
    return [int(place.arrival) for place in places], first, last


@contextlib.asynccontextmanager
async def open_arrivals(url: str, network_topic: str) -> AsyncIterator[PostgresArrivalLog]:
    """Follow the store in the database at `url`, which is connected to when it is first read; close it at the end.

    Args:
        network_topic: to which its message ids must belong, once it has any.
    """
    where = shown_url(url)

    async def check(connection: DriverConnection) -> None:
        await check_primary(connection)
        try:
            check_known(await connection.fetchval(f"SELECT version FROM {SCHEMA_TABLE}"), where)
        except asyncpg.UndefinedTableError:
            raise NoStore from None

    failures = FollowerFailures()
    async with open_links(url, READERS, failures, check) as links:
        yield PostgresArrivalLog(ReaderPool(links, failures, Removed(-1, -1)), where, network_topic)
