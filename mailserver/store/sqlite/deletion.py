"""Deleting envelopes in batches, and giving back the pages that come free.

Both work on the writer's connection between two commits, and take some milliseconds at a time. A batch is one
transaction: rows are deleted together with what is counted of them, and with their ids. All of it is of one day of
reception.
"""

import sqlite3
from collections.abc import Callable, Mapping

from mailserver.handoff.archived import Mark
from mailserver.store.interface import Deleted
from mailserver.store.retention import BATCH_BYTES, BATCH_ROWS, Surplus
from mailserver.store.sqlite.connections import counted_transaction, pragma
from mailserver.store.sqlite.id_index import forget_doomed
from mailserver.units import SECONDS_PER_DAY

VACUUM_PAGES = 64
"""How many pages, 1 MiB, are given back at once. Each may need a page moved from the end of the file: 2 ms for all, and
15 ms when SQLite adds a checkpoint."""

RESERVE_PAGES = 1024
"""How many free pages, 16 MiB, stay in the file for new rows. While as much arrives as is deleted, nothing is moved."""

_NEIGHBOURS = 1000
"""How many rows to read in search of the next row of a day, before it is looked up in the index of `received`."""

_MAX_SEQ = 2**63 - 1

_MAKE_DOOMED = """
    CREATE TEMP TABLE IF NOT EXISTS doomed (
        seq INTEGER PRIMARY KEY, received INTEGER, created INTEGER, day INTEGER, topic BLOB, bytes INTEGER
    )
"""
_FORGET = "DELETE FROM temp.doomed"
_CANDIDATES = "SELECT day, first_seq FROM reception_days WHERE day <= ? ORDER BY day"
_DOOM = f"""
    INSERT INTO temp.doomed
    SELECT seq, received, created, day, topic, size
    FROM (
        SELECT seq, received, created, created / 86400 AS day, topic, length(raw) AS size,
            sum(length(raw)) OVER (ORDER BY received, seq ROWS UNBOUNDED PRECEDING) AS total
        FROM envelopes INDEXED BY envelopes_by_reception
        WHERE received >= ? AND received < ? AND seq <= ?
        ORDER BY received, seq
        LIMIT ?
    )
    WHERE total - size < {BATCH_BYTES}
"""
_SUM = "SELECT count(*), coalesce(sum(bytes), 0) FROM temp.doomed"
_DELETE = (
    "DELETE FROM envelopes WHERE seq IN (SELECT seq FROM temp.doomed)",
    """
    UPDATE days SET envelopes = days.envelopes - gone.envelopes, bytes = days.bytes - gone.bytes
    FROM (SELECT day, count(*) AS envelopes, sum(bytes) AS bytes FROM temp.doomed GROUP BY day) AS gone
    WHERE days.day = gone.day
    """,
    "DELETE FROM days WHERE envelopes = 0",
    # One condition for each column, so that the primary key is used; the plus because the index of an expression has no
    # affinity.
    """
    DELETE FROM day_topics
    WHERE day IN (SELECT day FROM temp.doomed) AND topic IN (SELECT topic FROM temp.doomed) AND NOT EXISTS (
        SELECT 1 FROM envelopes WHERE created / 86400 = +day_topics.day AND envelopes.topic = day_topics.topic
    )
    """,
)
_NOTE_REMOVED = """
    UPDATE removed SET until = max(until, newest), pruned = max(pruned, newest)
    FROM (SELECT max(created) AS newest FROM temp.doomed) RETURNING until, pruned
"""
_COUNT_DAY = "UPDATE reception_days SET envelopes = envelopes - ?, bytes = bytes - ? WHERE day = ?"
_DROP_DAY = "DELETE FROM reception_days WHERE day = ? AND envelopes = 0"
_ADVANCE = f"""
    UPDATE reception_days
    SET first_seq = coalesce(
        (
            SELECT seq FROM (SELECT seq, received FROM envelopes WHERE seq > ? ORDER BY seq LIMIT {_NEIGHBOURS})
            WHERE received >= ? AND received < ? LIMIT 1
        ),
        (SELECT min(seq) FROM envelopes INDEXED BY envelopes_by_reception WHERE received >= ? AND received < ?)
    )
    WHERE day = ? AND first_seq IN (SELECT seq FROM temp.doomed)
"""


def delete_batch(
    connection: sqlite3.Connection,
    surplus: Surplus,
    archived: Mapping[int, Mark] | None,
    *,
    removing: Callable[[int, int], None],
) -> Deleted:
    """Delete a batch of the oldest by reception; return what was deleted: 0 if nothing may be.

    Args:
        archived: for each day of reception, the highest `seq` that may be deleted; a day not named is kept. None: any
            may be deleted.
        removing: called before anybody can see that rows are gone, with the newest `created` that was ever removed, in
            whatever way, and the newest that was pruned.
    """
    execute = connection.execute
    execute(_MAKE_DOOMED)
    with counted_transaction(connection):
        for day, first_seq in execute(_CANDIDATES, ((surplus.before - 1) // SECONDS_PER_DAY,)).fetchall():
            last_seq = _MAX_SEQ if archived is None else archived.get(day, 0)
            if last_seq < first_seq:
                continue
            start, end = day * SECONDS_PER_DAY, (day + 1) * SECONDS_PER_DAY
            execute(_FORGET)
            limit = min(surplus.envelopes, BATCH_ROWS)
            execute(_DOOM, (start, min(end, surplus.before), last_seq, limit))
            ((envelopes, size),) = execute(_SUM)
            if not envelopes:
                continue
            forget_doomed(execute)
            for statement in _DELETE:
                execute(statement)
            execute(_COUNT_DAY, (envelopes, size, day))
            execute(_DROP_DAY, (day,))
            execute(_ADVANCE, (first_seq, start, end, start, end, day))
            ((until, pruned),) = execute(_NOTE_REMOVED).fetchall()
            removing(until, pruned)
            return Deleted(envelopes, size)
    return Deleted(0, 0)


def give_back_pages(connection: sqlite3.Connection) -> int:
    """Take a few free pages beyond the reserve from the end of the file; return how many.

    The next checkpoint makes the file shorter. A file that version 1 of the schema made gives none back.
    """
    free = pragma(connection, "freelist_count")
    if free <= RESERVE_PAGES:
        return 0
    # Each step gives back one page. `execute` would stop after the first, because there are no columns to fetch.
    connection.executescript(f"PRAGMA incremental_vacuum({min(VACUUM_PAGES, free - RESERVE_PAGES)})")
    return free - pragma(connection, "freelist_count")
