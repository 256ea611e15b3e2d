"""Deleting envelopes: a whole day at once, by dropping its partition, or some rows in a batch.

By age, days that have a partition are only ever dropped, once all of what they have is too old: it stays for up to a
day longer than it must, and longer if some of it came late. Rows are deleted one by one only in the last partition.
By number or size, rows are deleted everywhere, oldest by reception first, unless a whole day is too much. And as long
as too many ids of a day are in the last partition of ids, where one statement would have to delete them, its rows are
deleted with theirs.

A batch holds Lock.UPKEEP and Lock.COMMIT: nothing is stored, indexed or deleted meanwhile, by any mailserver.
While the nightly job reads the store, nothing is deleted; and it does not begin to read while a batch is being deleted.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import asyncpg

from mailserver.handoff.archived import Mark
from mailserver.store.interface import Deleted
from mailserver.store.postgres.connections import DriverConnection, keep_compaction_away, take_lock
from mailserver.store.postgres.id_index import IndexedRow, forget, forget_day, has_many_elsewhere
from mailserver.store.postgres.partitions import drop, partition, partitioned_days
from mailserver.store.postgres.schema import Lock
from mailserver.store.retention import BATCH_BYTES, BATCH_ROWS, END_OF_TIME, Surplus
from mailserver.units import SECONDS_PER_DAY

LEFT_OVER_TOPICS = 5000
"""How many topics of days that were dropped are removed at once: some 10 ms."""

DROP_TRIES = 12
DROP_PAUSE_S = 0.5
"""How often, and after what pause, to try to drop a day again whose ids are being compared: comparisons take up to
`store.engine.snapshots.SNAPSHOT_S`."""

_MAX_SEQ = 2**63 - 1

_HELD = "SELECT coalesce(sum(envelopes), 0)::bigint FROM counts"
_DAYS = """
    SELECT day, array_agg(reception_day), array_agg(last_seq), sum(envelopes)::bigint, sum(bytes)::bigint,
        max(last_received)
    FROM counts WHERE day = ANY($1) GROUP BY day
"""
_RECEPTION_DAYS = """
    SELECT DISTINCT reception_day FROM counts
    WHERE reception_day <= $1 AND NOT day = ANY($2) ORDER BY reception_day
"""


def _doomed(table: str) -> str:
    return f"""
        SELECT seq, received, created, hash, topic, size, CASE WHEN seq <= (SELECT until_seq FROM id_index) THEN raw END
        FROM (
            SELECT *, sum(size) OVER (ORDER BY received, seq ROWS UNBOUNDED PRECEDING) AS total FROM (
                SELECT seq, received, created, hash, topic, octet_length(raw) AS size, raw FROM {table}
                WHERE received >= $1 AND received < $2 AND seq <= $3 ORDER BY received, seq LIMIT $4
            ) AS oldest
        ) AS summed
        WHERE total - size < {BATCH_BYTES}
    """


_DELETE = """
    DELETE FROM envelopes AS e USING unnest($1::bigint[], $2::bytea[]) AS d (created, hash)
    WHERE e.created = d.created AND e.hash = d.hash
"""
_UNCOUNT = """
    UPDATE counts AS c SET envelopes = c.envelopes - d.envelopes, bytes = c.bytes - d.bytes
    FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS d (day, envelopes, bytes)
    WHERE c.day = d.day AND c.reception_day = $4
"""
_FORGET_COUNTS = "DELETE FROM counts WHERE day = ANY($1) AND envelopes = 0"
_FORGET_TOPICS = """
    DELETE FROM day_topics AS t USING unnest($1::bigint[], $2::bytea[]) AS d (day, topic)
    WHERE t.day = d.day AND t.third = get_byte(d.topic, 2) AND t.topic = d.topic AND NOT EXISTS (
        SELECT 1 FROM envelopes AS e
        WHERE e.topic = d.topic AND e.created >= d.day * 86400 AND e.created < (d.day + 1) * 86400
    )
"""
NOTE_REMOVED = "UPDATE removed SET until = greatest(until, $1), pruned = greatest(pruned, $1)"
# The days one by one, each from the index: there may be hundreds of thousands of topics of each.
_GONE_DAYS = """
    WITH RECURSIVE noted (day) AS (
        SELECT min(day) FROM day_topics
        UNION ALL
        SELECT (SELECT min(t.day) FROM day_topics AS t WHERE t.day > noted.day) FROM noted WHERE noted.day IS NOT NULL
    )
    SELECT array_agg(day) FROM noted
    WHERE day IS NOT NULL AND NOT EXISTS (SELECT 1 FROM counts WHERE counts.day = noted.day)
"""
_LEFT_OVER = f"""
    DELETE FROM day_topics WHERE (day, third, topic) IN (
        SELECT t.day, t.third, t.topic
        FROM (SELECT unnest($1::bigint[]) AS day EXCEPT SELECT day FROM counts WHERE day = ANY($1)) AS gone
        CROSS JOIN LATERAL (SELECT day, third, topic FROM day_topics WHERE day = gone.day OFFSET 0) AS t
        LIMIT {LEFT_OVER_TOPICS}
    )
"""


class _Day(NamedTuple):
    """What a partition has; by day of reception, the last `seq`."""

    day: int
    last_seqs: Mapping[int, int]
    envelopes: int
    bytes: int
    last_received: int


class Doomed(NamedTuple):
    """A row to delete. `raw`: None if its id is not indexed."""

    seq: int
    received: int
    created: int
    hash: bytes
    topic: bytes
    size: int
    raw: bytes | None


async def delete_batch(connection: DriverConnection, surplus: Surplus, archived: Mapping[int, Mark] | None) -> Deleted:
    """Delete a day, or a batch, of the oldest by reception; return what was deleted: 0 if nothing may be, or
    the nightly job is reading.

    Args:
        archived: for each day of reception, the highest `seq` that may be deleted; a day not named is kept. None: any
            may be deleted.
    """
    for left in reversed(range(DROP_TRIES)):
        try:
            async with connection.transaction():
                await take_lock(connection, Lock.UPKEEP)
                if not await keep_compaction_away(connection):
                    return Deleted(0, 0)
                rest = await _rest_of(connection, surplus)
                if rest.envelopes <= 0:
                    return Deleted(0, 0)
                return await _delete_day(connection, rest, archived) or await _delete_rows(connection, rest, archived)
        except asyncpg.LockNotAvailableError:
            if not left:
                raise
        await asyncio.sleep(DROP_PAUSE_S)
    raise AssertionError("the last try returns or raises")


async def _rest_of(connection: DriverConnection, surplus: Surplus) -> Surplus:
    """What is still too much: other mailservers may have deleted some since this was computed."""
    held = await connection.fetchval(_HELD)
    return surplus._replace(envelopes=surplus.envelopes - max(0, surplus.of - held))


async def _delete_day(
    connection: DriverConnection, surplus: Surplus, archived: Mapping[int, Mark] | None
) -> Deleted | None:
    """Drop a day that may go as a whole; None if there is none."""
    days = await _days(connection)
    if surplus.before >= END_OF_TIME:  # by number: nothing that was received before may stay
        oldest = await connection.fetchval("SELECT min(received) FROM envelopes_rest")
        days = [day for day in days[:1] if oldest is None or oldest >= day.last_received]
    for day in days:
        if not _may_go(day, surplus, archived):
            continue
        if await has_many_elsewhere(connection, day.day):
            await take_lock(connection, Lock.COMMIT)
            table = partition("envelopes", day.day)
            return await _delete_some(connection, table, sorted(day.last_seqs), surplus, archived)
        # Ids first: whoever compares them may have to be waited for, and meanwhile envelopes can be stored.
        await forget_day(connection, day.day)
        await take_lock(connection, Lock.COMMIT)
        if day not in await _days(connection):  # more has come
            raise asyncpg.LockNotAvailableError
        newest = await connection.fetchval(f"SELECT max(created) FROM {partition('envelopes', day.day)}")
        await connection.execute(NOTE_REMOVED, newest)
        await drop(connection, "envelopes", day.day)
        await connection.execute("DELETE FROM counts WHERE day = $1", day.day)
        return Deleted(day.envelopes, day.bytes)
    return None


async def _delete_rows(connection: DriverConnection, surplus: Surplus, archived: Mapping[int, Mark] | None) -> Deleted:
    """Delete a batch of rows: by age only of the last partition."""
    await take_lock(connection, Lock.COMMIT)
    # By number or size, no part of the store is left out.
    kept = [*(await partitioned_days(connection))[0]] if surplus.before < END_OF_TIME else []
    table = "envelopes_rest" if surplus.before < END_OF_TIME else "envelopes"
    days = await connection.fetch(_RECEPTION_DAYS, (surplus.before - 1) // SECONDS_PER_DAY, kept)
    return await _delete_some(connection, table, [day for (day,) in days], surplus, archived)


async def _delete_some(
    connection: DriverConnection,
    table: str,
    reception_days: Sequence[int],
    surplus: Surplus,
    archived: Mapping[int, Mark] | None,
) -> Deleted:
    """Delete a batch of a table's rows of the first of these days of which any may go."""
    for day in reception_days:
        last_seq = _MAX_SEQ if archived is None else archived.get(day, 0)
        if last_seq <= 0:  # nothing may go: without this, all of the day would be walked through to find that
            continue
        start, end = day * SECONDS_PER_DAY, min((day + 1) * SECONDS_PER_DAY, surplus.before)
        rows = await connection.fetch(_doomed(table), start, end, last_seq, min(surplus.envelopes, BATCH_ROWS))
        if rows:
            doomed = [Doomed(*row) for row in rows]
            await _delete(connection, day, doomed)
            return Deleted(len(doomed), sum(row.size for row in doomed))
    return Deleted(0, 0)


async def count_held(connection: DriverConnection, surplus: Surplus) -> int:
    """How many envelopes of the surplus there are, without those that only wait for the rest of their day."""
    if surplus.before >= END_OF_TIME:
        held = await connection.fetchval(_HELD)
        return int(min(held, surplus.envelopes))
    days = await _days(connection)
    whole = sum(day.envelopes for day in days if day.last_received < surplus.before)
    ((rest,),) = await connection.fetch(
        "SELECT count(*) FROM (SELECT 1 FROM envelopes_rest WHERE received < $1 ORDER BY received LIMIT $2) AS old",
        surplus.before,
        surplus.envelopes,
    )
    return int(min(whole + rest, surplus.envelopes))


async def forget_left_over(connection: DriverConnection) -> bool:
    """Remove some topics of days that were dropped; return whether there were any."""
    gone = await connection.fetchval(_GONE_DAYS)
    if not gone:
        return False
    async with connection.transaction():
        await take_lock(connection, Lock.UPKEEP)
        await take_lock(connection, Lock.COMMIT)
        status = await connection.execute(_LEFT_OVER, gone)  # except those that have come again
    return not status.endswith(" 0")


async def _days(connection: DriverConnection) -> list[_Day]:
    """What the partitions have, oldest by reception first."""
    there, _ = await partitioned_days(connection)
    days = []
    for day, reception_days, last_seqs, *counted in await connection.fetch(_DAYS, [*there]):
        days.append(_Day(day, dict(zip(reception_days, last_seqs, strict=True)), *counted))
    return sorted(days, key=lambda day: day.last_received)


def _may_go(day: _Day, surplus: Surplus, archived: Mapping[int, Mark] | None) -> bool:
    if day.last_received >= surplus.before or day.envelopes > surplus.envelopes:
        return False
    return archived is None or all(last_seq <= archived.get(on, 0) for on, last_seq in day.last_seqs.items())


def _day_of(created: int) -> int:
    """The day under which an envelope is counted, as SQL divides: towards zero, also before 1970."""
    return created // SECONDS_PER_DAY if created >= 0 else -(-created // SECONDS_PER_DAY)


async def _delete(connection: DriverConnection, reception_day: int, doomed: Sequence[Doomed]) -> None:
    """Delete rows of one day of reception, with their ids and what is counted of them."""
    await forget(
        connection, [IndexedRow(row.created, row.hash, row.seq, row.raw) for row in doomed if row.raw is not None]
    )
    await connection.execute(_DELETE, [row.created for row in doomed], [row.hash for row in doomed])
    days: dict[int, list[int]] = {}
    for row in doomed:
        sums = days.setdefault(_day_of(row.created), [0, 0])
        sums[0] += 1
        sums[1] += row.size
    counts = [sums[0] for sums in days.values()], [sums[1] for sums in days.values()]
    await connection.execute(_UNCOUNT, [*days], *counts, reception_day)
    await connection.execute(_FORGET_COUNTS, [*days])
    topics = {(_day_of(row.created), row.topic) for row in doomed}
    await connection.execute(_FORGET_TOPICS, [day for day, _ in topics], [topic for _, topic in topics])
    await connection.execute(NOTE_REMOVED, max(row.created for row in doomed))
