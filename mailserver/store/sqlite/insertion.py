"""Inserting envelopes in groups. A group is one transaction: rows are stored together with what is counted of them."""

import sqlite3
from collections.abc import Sequence

from mailserver.store.interface import NewEnvelope
from mailserver.store.sqlite.connections import counted_transaction
from mailserver.store.sqlite.schema import HASH_PREFIX_BYTES

_ROW_COUNTS = (100, 10, 1)
_COLUMNS = "(received, created, topic, hash, raw)"
# Many rows in one statement instead of `executemany`: SQLite then inserts them without taking Python's lock for each,
# which a busy event loop does not give up at once. A thousand rows in one statement are no faster.
_INSERTS = {
    count: f"INSERT OR IGNORE INTO envelopes {_COLUMNS} VALUES " + ", ".join(["(?, ?, ?, ?, ?)"] * count)
    for count in _ROW_COUNTS
}
# What the new rows add to `days` and `reception_days`, read once for both: an array for each pair of days. There is
# nearly always one pair, and nothing to sort.
_SUMS_OF_ONE_DAY = """
    SELECT
        json_array(
            json_array(min(received) / 86400, min(created) / 86400, count(*), sum(length(raw)), min(seq), max(seq))
        ),
        min(received) / 86400 = max(received) / 86400 AND min(created) / 86400 = max(created) / 86400
    FROM envelopes WHERE seq > ?
"""
# LIMIT -1 keeps SQLite from merging the SELECTs, and so from sorting whole envelopes only for their lengths.
_SUMS = """
    SELECT json_group_array(json_array(reception_day, day, envelopes, bytes, first_seq, last_seq))
    FROM (
        SELECT reception_day, day, count(*) AS envelopes, sum(size) AS bytes,
            min(seq) AS first_seq, max(seq) AS last_seq
        FROM (
            SELECT received / 86400 AS reception_day, created / 86400 AS day, length(raw) AS size, seq
            FROM envelopes WHERE seq > ? LIMIT -1
        )
        GROUP BY reception_day, day
    )
"""
_COUNT_DAYS = """
    INSERT INTO days (day, envelopes, bytes)
    SELECT json_extract(value, '$[1]') AS day, sum(json_extract(value, '$[2]')), sum(json_extract(value, '$[3]'))
    FROM json_each(?) GROUP BY day
    ON CONFLICT (day) DO UPDATE SET envelopes = envelopes + excluded.envelopes, bytes = bytes + excluded.bytes
"""
_COUNT_RECEPTION_DAYS = """
    INSERT INTO reception_days (day, envelopes, bytes, first_seq, last_seq)
    SELECT json_extract(value, '$[0]') AS day, sum(json_extract(value, '$[2]')), sum(json_extract(value, '$[3]')),
        min(json_extract(value, '$[4]')), max(json_extract(value, '$[5]'))
    FROM json_each(?) GROUP BY day
    ON CONFLICT (day) DO UPDATE
    SET envelopes = envelopes + excluded.envelopes, bytes = bytes + excluded.bytes, last_seq = excluded.last_seq
"""
_NOTE_TOPICS = """
    INSERT OR IGNORE INTO day_topics (day, topic) SELECT created / 86400, topic FROM envelopes WHERE seq > ?
"""


def insert_group(connection: sqlite3.Connection, envelopes: Sequence[NewEnvelope]) -> int | None:
    """Insert envelopes, in their order; those that are there already are left as they are.

    Returns:
        The number of the newest row; None if nothing is new.
    """
    execute = connection.execute
    newest = None
    with counted_transaction(connection):
        ((last_seq,),) = execute("SELECT coalesce(max(seq), 0) FROM envelopes").fetchall()
        at = 0
        for count in _ROW_COUNTS:
            while len(envelopes) - at >= count:
                rows = envelopes[at : at + count]
                inserted = execute(_INSERTS[count], [value for row in rows for value in _columns(row)])
                if inserted.rowcount:
                    newest = inserted.lastrowid  # of what is inserted, the last row has the highest number
                at += count
        ((sums, right),) = execute(_SUMS_OF_ONE_DAY, (last_seq,)).fetchall()
        if not right:  # there are several days, or nothing is new
            ((sums,),) = execute(_SUMS, (last_seq,)).fetchall()
        execute(_COUNT_DAYS, (sums,))
        execute(_COUNT_RECEPTION_DAYS, (sums,))
        execute(_NOTE_TOPICS, (last_seq,))
    return newest


def _columns(envelope: NewEnvelope) -> tuple[int, int, bytes, bytes, bytes]:
    received, created, topic, full_hash, raw = envelope
    return received, created, topic, full_hash[:HASH_PREFIX_BYTES], raw
