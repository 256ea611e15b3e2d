"""Inserting envelopes in groups. A group is one transaction: rows are stored together with what is counted of them.

The rows are copied into a table of the connection's own, which nobody waits for. Then one statement inserts those that
are not there yet, under Lock.COMMIT: that takes a few milliseconds, and the commit as long as the disk, or the standby,
takes to have it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import asyncpg

from mailserver.store.engine.keys import HASH_PREFIX_BYTES
from mailserver.store.interface import NewEnvelope
from mailserver.store.postgres.connections import DriverConnection, take_lock
from mailserver.store.postgres.others import Rows
from mailserver.store.postgres.partitions import Partitions
from mailserver.store.postgres.schema import Lock
from mailserver.units import SECONDS_PER_DAY

COPY_BYTES = 448 * 1024
"""So much is copied at once, and then waited for. What is longer than 512 KiB the driver hands over in pieces. If the
connection is lost between two of them, it does not notice, and leaves an error behind that nobody ever looks at."""

_COPIED_ROW_BYTES = 66
"""How long a row is there besides its envelope."""

MAKE_STAGING = """
    CREATE TEMPORARY TABLE staging (
        number integer NOT NULL, received bigint NOT NULL, created bigint NOT NULL,
        topic bytea NOT NULL, hash bytea NOT NULL, raw bytea NOT NULL
    ) ON COMMIT DELETE ROWS;
    ALTER TABLE staging ALTER COLUMN raw SET STORAGE EXTERNAL
"""
_COLUMNS = ("number", "received", "created", "topic", "hash", "raw")
_INSERT = """
    WITH new AS (
        INSERT INTO envelopes (seq, received, created, topic, hash, raw)
        SELECT nextval('envelope_seq'), received, created, topic, hash, raw
        FROM (SELECT * FROM staging ORDER BY number) AS given
        ON CONFLICT (created, hash) DO NOTHING
        RETURNING seq, received, created, topic, octet_length(raw) AS size
    ), counted AS (
        INSERT INTO counts AS c (day, reception_day, envelopes, bytes, last_received, last_seq)
        SELECT created / 86400, received / 86400, count(*), sum(size), max(received), max(seq)
        FROM new GROUP BY 1, 2
        ON CONFLICT (day, reception_day) DO UPDATE SET
            envelopes = c.envelopes + excluded.envelopes,
            bytes = c.bytes + excluded.bytes,
            last_received = greatest(c.last_received, excluded.last_received),
            last_seq = excluded.last_seq
    ), numbered AS (
        INSERT INTO reception_days AS r (day, first_seq, last_seq)
        SELECT received / 86400, min(seq), max(seq) FROM new GROUP BY 1
        ON CONFLICT (day) DO UPDATE SET last_seq = excluded.last_seq
    ), known_topics AS (
        INSERT INTO day_topics (day, third, topic)
        SELECT DISTINCT created / 86400, get_byte(topic, 2), topic FROM new
        ON CONFLICT DO NOTHING
    )
    SELECT min(seq), max(seq), currval('envelope_seq') FROM new
"""


_Row = tuple[int, int, int, bytes, bytes, bytes]


class Inserted(NamedTuple):
    """What a group has brought that was not there: the number of its last row, 0 if there is none; its live rows."""

    last: int
    live: Rows | None


async def insert_group(
    connection: DriverConnection, envelopes: Sequence[NewEnvelope], partitions: Partitions, live: int = 0
) -> Inserted:
    """Insert envelopes, in their order; those that are there already are left as they are.

    Args:
        live: how many of them, the first ones, are live.
    """
    try:
        return await _insert_group(connection, envelopes, partitions, live)
    except asyncpg.CheckViolationError:
        # They were on their way into the last partition while another mailserver made that of their day: now it is
        # there.
        return await _insert_group(connection, envelopes, partitions, live)


async def _insert_group(
    connection: DriverConnection, envelopes: Sequence[NewEnvelope], partitions: Partitions, live: int
) -> Inserted:
    is_committed = False
    rows = [
        (number, received, created, topic, full_hash[:HASH_PREFIX_BYTES], raw)
        for number, (received, created, topic, full_hash, raw) in enumerate(envelopes)
    ]
    try:
        async with connection.transaction():
            for some in _slices(rows):
                await connection.copy_records_to_table("staging", records=some, columns=_COLUMNS)
            await take_lock(connection, Lock.COMMIT)
            await partitions.make_if_free(connection, {envelope.created // SECONDS_PER_DAY for envelope in envelopes})
            first, last, end = await connection.fetchrow(_INSERT)
        is_committed = True
    finally:
        if not is_committed:
            partitions.forget()
    if first is None:
        return Inserted(0, None)
    # Each envelope has got a number, also those that were there already: the last one's is `end`.
    new = Rows(first, min(last, end - len(envelopes) + live))
    return Inserted(last, new if new.size > 0 else None)


def _slices(rows: Sequence[_Row]) -> Iterator[Sequence[_Row]]:
    """Rows that are copied together. One that is longer goes alone: the driver does not wait before the first piece."""
    first = size = 0
    for number, row in enumerate(rows):
        row_bytes = len(row[-1]) + _COPIED_ROW_BYTES
        if size + row_bytes > COPY_BYTES and number > first:
            yield rows[first:number]
            first, size = number, 0
        size += row_bytes
    yield rows[first:]
