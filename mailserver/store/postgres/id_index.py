"""Keeping `ids` and `id_sums`: which rows have which ids, and how many ids and what sum each bucket has.

One batch of rows at a time is indexed, by whichever mailserver comes to it, behind the last row that is: that is right
because `seq` rises in the order of commits. A batch, and the deletion of rows, hold Lock.UPKEEP. So a sum is changed by
one transaction at a time, none of which stores envelopes: nobody who waits for a confirmation waits for these rows. If
the index is found not to fit the rows, or the network topic has changed, it is made anew.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mailserver.ids.envelopes import joined_muids
from mailserver.ids.muid import sync_id
from mailserver.store.engine.id_sums import (
    BATCH_BYTES,
    BATCH_ROWS,
    ID_BYTES,
    SPANS,
    SumOfIds,
    Sums,
    added,
    subtracted,
    sums_of,
)
from mailserver.store.postgres.connections import DriverConnection, take_lock
from mailserver.store.postgres.partitions import Partitions, drop, wait_no_longer
from mailserver.store.postgres.schema import Lock
from mailserver.units import SECONDS_PER_DAY

log = logging.getLogger(__name__)


MANY_ELSEWHERE = 20_000
"""How many ids of a day may be in the last partition for one statement to delete them: some tenths of a second, of the
10 s that it may take. A day of which more came while a backup was read is not forgotten as a whole."""


class Item(NamedTuple):
    """The id of a row: `id` is 32 bytes, SHA-256 of its MUID; `hash` and `seq` name the row."""

    created: int
    id: bytes
    hash: bytes
    seq: int


class IndexedRow(NamedTuple):
    """What a row's id is made of."""

    created: int
    hash: bytes
    seq: int
    raw: bytes


_STATE = "SELECT network_topic, until_seq, (SELECT coalesce(max(seq), 0) FROM envelopes) FROM id_index"
# Sizes come first, and by themselves: only the envelopes of the batch are read.
_NEXT = """
    SELECT created, hash, seq, raw FROM (
        SELECT *, sum(size) OVER (ORDER BY seq ROWS UNBOUNDED PRECEDING) AS total FROM (
            SELECT created, hash, seq, raw, octet_length(raw) AS size FROM envelopes
            WHERE seq > $1 AND seq <= $2 ORDER BY seq LIMIT $3
        ) AS following
    ) AS summed
    WHERE total - size < $4 ORDER BY seq
"""
_NEXT_DAYS = """
    SELECT array_agg(DISTINCT created / 86400)
    FROM (SELECT created FROM envelopes WHERE seq > $1 ORDER BY seq LIMIT $2) AS following
"""
_ELSEWHERE = """
    SELECT count(*) FROM (SELECT 1 FROM ids_rest WHERE created >= $1 AND created < $2 LIMIT $3) AS counted
"""
_INSERT_IDS = """
    INSERT INTO ids (created, id, hash, seq) SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::bytea[], $4::bigint[])
    ON CONFLICT DO NOTHING RETURNING created, id
"""
_DELETE_IDS = """
    DELETE FROM ids AS i USING unnest($1::bigint[], $2::bytea[], $3::bigint[]) AS gone (created, id, seq)
    WHERE i.created = gone.created AND i.id = gone.id AND i.seq = gone.seq RETURNING i.created, i.id
"""
# Of rows that were damaged since they were indexed: their ids cannot be computed any more.
_FORGET_ROWS = "DELETE FROM ids WHERE created = ANY($1) AND seq = ANY($2) RETURNING created, id"
_READ_SUMS = """
    SELECT s.span, s.bucket, s.count, s.sum FROM unnest($1::int[], $2::bigint[]) AS w (span, bucket)
    CROSS JOIN LATERAL (SELECT * FROM id_sums WHERE span = w.span AND bucket = w.bucket OFFSET 0) AS s
"""
_WRITE_SUMS = """
    INSERT INTO id_sums SELECT * FROM unnest($1::int[], $2::bigint[], $3::bigint[], $4::bytea[])
    ON CONFLICT (span, bucket) DO UPDATE SET count = excluded.count, sum = excluded.sum
"""
_DELETE_SUMS = """
    DELETE FROM id_sums AS s USING unnest($1::int[], $2::bigint[]) AS gone (span, bucket)
    WHERE s.span = gone.span AND s.bucket = gone.bucket
"""
_SET_STATE = "UPDATE id_index SET network_topic = $1, until_seq = $2"


async def advance(connection: DriverConnection, network_topic: str, partitions: Partitions) -> int:
    """Index the next rows, or remove ids of another network topic; return how many rows are not indexed yet, at most.

    A removed row may count. If it is 0, all rows are indexed.

    Raises:
        asyncpg.LockNotAvailableError: somebody compares ids for too long.
    """
    topic, until_seq, last_seq = await connection.fetchrow(_STATE)
    if topic == network_topic and until_seq >= last_seq:
        return 0
    days = await connection.fetchval(_NEXT_DAYS, until_seq, BATCH_ROWS)
    await partitions.make_patiently(connection, {*(days or ())})
    async with connection.transaction():
        await take_lock(connection, Lock.UPKEEP)
        topic, until_seq, last_seq = await connection.fetchrow(_STATE)
        if topic != network_topic:
            await wait_no_longer(connection)
            await connection.execute("TRUNCATE ids, id_sums")
            await connection.execute(_SET_STATE, network_topic, 0)
            return int(last_seq)
        rows = [IndexedRow(*row) for row in await connection.fetch(_NEXT, until_seq, last_seq, BATCH_ROWS, BATCH_BYTES)]
        items = await asyncio.to_thread(_items, network_topic, rows)
        await _add(connection, items)
        until_seq = max((row.seq for row in rows), default=last_seq)
        await connection.execute(_SET_STATE, network_topic, until_seq)
    return int(last_seq - until_seq)


async def forget(connection: DriverConnection, rows: Sequence[IndexedRow]) -> None:
    """Remove indexed rows from the index, in the transaction that deletes them. It must hold Lock.UPKEEP."""
    topic, _, _ = await connection.fetchrow(_STATE)
    items = await asyncio.to_thread(_items, topic, rows)
    columns = [item.created for item in items], [item.id for item in items], [item.seq for item in items]
    removed = [tuple(row) for row in await connection.fetch(_DELETE_IDS, *columns)]
    if len(removed) < sum(row.created > 0 for row in rows):
        seconds, seqs = [*{row.created for row in rows}], [row.seq for row in rows]
        removed += [tuple(row) for row in await connection.fetch(_FORGET_ROWS, seconds, seqs)]
    sums = sums_of(sorted(removed))
    left = subtracted(await _read(connection, sums), sums)
    if left is None:
        log.warning(
            "message ids do not fit the store, indexing it anew deleted=%d expected=%d", len(removed), len(rows)
        )
        await begin_anew(connection)
        return
    await _delete_sums(connection, [key for key, each in left.items() if not each.ids])
    await _write(connection, {key: each for key, each in left.items() if each.ids})


async def has_many_elsewhere(connection: DriverConnection, day: int) -> bool:
    """Whether too many of a day's ids are in the last partition for `forget_day`."""
    start = day * SECONDS_PER_DAY
    elsewhere = await connection.fetchval(_ELSEWHERE, start, start + SECONDS_PER_DAY, MANY_ELSEWHERE + 1)
    return bool(elsewhere > MANY_ELSEWHERE)


async def forget_day(connection: DriverConnection, day: int) -> None:
    """Remove a day from the index. The transaction must hold Lock.UPKEEP. Not many of its ids may be elsewhere.

    Raises:
        asyncpg.LockNotAvailableError: somebody compares ids for too long.
    """
    start = day * SECONDS_PER_DAY
    await wait_no_longer(connection)
    await drop(connection, "ids", day)
    # Some may have been there before the day had a partition.
    await connection.execute("DELETE FROM ids WHERE created >= $1 AND created < $2", start, start + SECONDS_PER_DAY)
    for span in SPANS:
        first = day * SECONDS_PER_DAY // span
        await connection.execute(
            "DELETE FROM id_sums WHERE span = $1 AND bucket >= $2 AND bucket < $3",
            span,
            first,
            first + SECONDS_PER_DAY // span,
        )


async def give_up(connection: DriverConnection, until_seq: int) -> None:
    """Index all rows anew: what was read of the index, when it went up to `until_seq` or further, does not fit them.

    If it does not go as far now, others have said so before.
    """
    async with connection.transaction():
        await take_lock(connection, Lock.UPKEEP)
        topic, until, _ = await connection.fetchrow(_STATE)
        if topic and until >= until_seq:
            log.warning("index of message ids is damaged, indexing the store anew until_seq=%d", until)
            await begin_anew(connection)


async def begin_anew(connection: DriverConnection) -> None:
    """Say that nothing is indexed; `advance` then removes what there is, and begins with the first row."""
    await connection.execute(_SET_STATE, "", 0)


def _items(network_topic: str, rows: Sequence[IndexedRow]) -> list[Item]:
    """The ids of rows, in the order of the index."""
    raws, created = [row.raw for row in rows], (row.created for row in rows)
    names = joined_muids(network_topic, b"".join(raws), map(len, raws), created)
    return sorted(
        Item(row.created, sync_id(name), row.hash, row.seq)
        for name, row in zip(names, rows, strict=True)
        if name is not None
    )


async def _add(connection: DriverConnection, items: Sequence[Item]) -> None:
    """Put ids into `ids`, and add them to the sums. One that another row has, of which this is a copy, is left."""
    columns = (
        [item.created for item in items],
        [item.id for item in items],
        [item.hash for item in items],
        [item.seq for item in items],
    )
    new = sorted(tuple(row) for row in await connection.fetch(_INSERT_IDS, *columns))
    sums = sums_of(new)
    await _write(connection, added(await _read(connection, sums), sums))


async def _read(connection: DriverConnection, keys: Iterable[tuple[int, int]]) -> Sums:
    asked = [*keys]
    rows = await connection.fetch(_READ_SUMS, [span for span, _ in asked], [bucket for _, bucket in asked])
    return {(span, bucket): SumOfIds(count, int.from_bytes(total, "little")) for span, bucket, count, total in rows}


async def _write(connection: DriverConnection, sums: Sums) -> None:
    rows = [(*key, count, total.to_bytes(ID_BYTES, "little")) for key, (count, total) in sorted(sums.items())]
    if rows:
        await connection.execute(_WRITE_SUMS, *map(list, zip(*rows, strict=True)))


async def _delete_sums(connection: DriverConnection, keys: Sequence[tuple[int, int]]) -> None:
    if keys:
        await connection.execute(_DELETE_SUMS, [span for span, _ in keys], [bucket for _, bucket in keys])
