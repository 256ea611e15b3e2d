"""The index of message ids: rows get into it some time after they were confirmed, and leave it as they are deleted.

To compute and index an id takes some microseconds, for which nobody who waits for a confirmation has to wait. So the
writer calls `advance` when it has nothing else to do: it indexes one batch of rows, those behind the last that are
indexed. The same builds the index of a store that had none, and builds it anew if the network topic has changed.

A row has no id, and is not indexed, if its envelope is damaged, says another time than the row, or was created before
1970 had begun. If the index is found not to fit the rows, it is built anew; what a row leaves behind that was damaged
since is looked for as the row is deleted. A batch is one transaction: whoever reads
sees rows up to `until_seq` in all tables, and no others.
"""

import logging
import sqlite3
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TypeVar

from mailserver.ids.envelopes import joined_muids
from mailserver.ids.muid import sync_id
from mailserver.store.engine.id_sums import (
    BATCH_BYTES,
    BATCH_ROWS,
    ID_BYTES,
    MODULUS,
    SPANS,
    SumOfIds,
    Sums,
    added,
    subtracted,
    sum_of_ids,
    sums_of,
)
from mailserver.store.engine.keys import pieces
from mailserver.store.sqlite.connections import counted_transaction
from mailserver.store.sqlite.packing import numbers, packed_bytes, packed_numbers

log = logging.getLogger(__name__)

MENDED_IDS = 50_000
"""Of how many ids of a minute the sum is made anew, in the transaction that deletes a damaged envelope: 0.1 s."""

EMPTIED_ROWS = 10_000
"""Most rows of `ids`, or of `id_sums`, that are removed in one transaction when all are."""

_AT_ONCE = (100, 10, 1)
"""How many rows a statement inserts, reads or deletes: few sizes, so that few statements are prepared."""

Execute = Callable[..., sqlite3.Cursor]


Item = tuple[int, bytes, int]
"""The id of a row: created, the id (32 bytes, SHA-256 of its MUID), and `seq`."""


_STATE = "SELECT network_topic, until_seq, (SELECT coalesce(max(seq), 0) FROM envelopes) FROM id_index"
_ROWS = f"""
    {packed_numbers("seq")}, {packed_numbers("created")}, {packed_numbers("size")}, {packed_bytes("raw")}
"""
# For damaged rows: their values may be of any type, or be missing.
_BYTES = "coalesce(CAST(e.raw AS BLOB), x'')"
_COLUMNS = f"""
    e.seq, coalesce(CAST(e.created AS INTEGER), 0) AS created, length({_BYTES}) AS size, {_BYTES} AS raw
"""
# Sizes come first, and by themselves: only the envelopes of the batch are read.
_SIZES = f"""
    SELECT {packed_numbers("seq")}, {packed_numbers("size")} FROM (
        SELECT seq, coalesce(length(raw), 0) AS size FROM envelopes WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?
    )
"""
_NEXT = f"""
    SELECT {_ROWS} FROM (
        SELECT {_COLUMNS} FROM envelopes AS e WHERE e.seq > ? AND e.seq <= ? ORDER BY e.seq LIMIT -1
    )
"""
_DOOMED = f"""
    SELECT {_ROWS} FROM (
        SELECT {_COLUMNS} FROM temp.doomed AS d CROSS JOIN envelopes AS e ON e.seq = d.seq WHERE d.seq <= ? LIMIT -1
    )
"""
_EMPTY = (
    "DELETE FROM ids WHERE (created, id) IN (SELECT created, id FROM ids LIMIT ?)",
    "DELETE FROM id_sums WHERE (span, bucket) IN (SELECT span, bucket FROM id_sums LIMIT ?)",
)


def _values(columns: int, count: int) -> str:
    return ", ".join([f"({', '.join('?' * columns)})"] * count)


# Statements of many rows instead of `executemany`: see `store.sqlite.insertion`.
_INSERT_IDS = {count: f"INSERT OR IGNORE INTO ids VALUES {_values(3, count)}" for count in _AT_ONCE}
# `rowcount` is known only of statements that begin with what they do.
_DELETE_IDS = {
    count: f"""
        DELETE FROM ids WHERE (created, id) IN (
            SELECT i.created, i.id FROM (VALUES {_values(3, count)}) AS gone CROSS JOIN ids AS i
            WHERE i.created = gone.column1 AND i.id = gone.column2 AND i.seq = gone.column3
        )
    """
    for count in _AT_ONCE
}
_FORGET_ROWS = "DELETE FROM ids WHERE seq IN (SELECT seq FROM temp.doomed) RETURNING created"
_IDS_OF_TIME = f"""
    SELECT count(*), {packed_bytes("id")} FROM (
        SELECT id FROM ids WHERE created >= ? AND created < ? ORDER BY created, id LIMIT ?
    )
"""
_SUMS_OF_TIME = """
    SELECT CAST(count AS INTEGER), CAST(sum AS BLOB) FROM id_sums WHERE span = ? AND bucket >= ? AND bucket < ?
"""
_READ_SUMS = {
    count: f"""
        WITH wanted (span, bucket) AS (VALUES {_values(2, count)})
        SELECT {packed_numbers("span")}, {packed_numbers("bucket")}, {packed_numbers("count")}, {packed_bytes("sum")}
        FROM (
            SELECT s.span, s.bucket, s.count, s.sum FROM wanted AS w CROSS JOIN id_sums AS s
            WHERE s.span = w.span AND s.bucket = w.bucket AND length(s.sum) = {ID_BYTES} LIMIT -1
        )
    """
    for count in _AT_ONCE
}
_WRITE_SUMS = {count: f"INSERT OR REPLACE INTO id_sums VALUES {_values(4, count)}" for count in _AT_ONCE}
_DELETE_SUMS = {
    count: f"""
        DELETE FROM id_sums WHERE (span, bucket) IN (
            SELECT s.span, s.bucket FROM (VALUES {_values(2, count)}) AS gone CROSS JOIN id_sums AS s
            WHERE s.span = gone.column1 AND s.bucket = gone.column2
        )
    """
    for count in _AT_ONCE
}


def advance(connection: sqlite3.Connection, network_topic: str) -> int:
    """Index the next rows, or remove ids of another network topic; return how many rows are not indexed yet, at most.

    A removed row may count. If it is 0, all rows are indexed.
    """
    execute = connection.execute
    state = execute(_STATE).fetchone()
    if state is not None and state[0] == network_topic and state[1] >= state[2]:
        return 0
    with counted_transaction(connection):
        if state is None or state[0] != network_topic:
            if state is None or state[0]:
                _begin_anew(execute)
            if not any(execute(statement, (EMPTIED_ROWS,)).rowcount for statement in _EMPTY):
                execute("UPDATE id_index SET network_topic = ?", (network_topic,))
            return max(1, state[2]) if state else 1
        _, until_seq, last_seq = state
        items, until_seq = next_items(execute, network_topic, until_seq, last_seq)
        _add(execute, items)
        execute("UPDATE id_index SET until_seq = ?", (until_seq,))
        return int(last_seq - until_seq)


def next_items(execute: Execute, network_topic: str, after_seq: int, last_seq: int) -> tuple[list[Item], int]:
    """The ids of a batch of rows behind `after_seq`, in the order of the index, and up to which row they are."""
    seqs, sizes = map(numbers, execute(_SIZES, (after_seq, last_seq, BATCH_ROWS)).fetchone())
    if not seqs:
        return [], last_seq
    before = [*accumulate(sizes, initial=0)]  # of each row, how many bytes the rows before it have
    until_seq = seqs[bisect_left(before, BATCH_BYTES, hi=len(seqs)) - 1]
    return _items(network_topic, execute(_NEXT, (after_seq, until_seq)).fetchone()), until_seq


def forget_doomed(execute: Execute) -> None:
    """Remove the rows of `temp.doomed` from the index, in the transaction that deletes them, and before they are."""
    state = execute(_STATE).fetchone()
    if state is None or not state[1]:
        return
    network_topic, until_seq, _ = state
    packed = execute(_DOOMED, (until_seq,)).fetchone()
    items = _items(network_topic, packed)
    expected = sum(created > 0 for created in numbers(packed[1]))  # a row that was damaged since has an id there, too
    deleted = sum(execute(_DELETE_IDS[len(part)], _flat(part)).rowcount for part in _parts(items))
    if deleted == expected and _subtract(execute, items):
        return
    if deleted != expected and _mend(execute, numbers(packed[1])):
        log.warning("message ids of damaged envelopes removed deleted=%d expected=%d", deleted, expected)
        return
    log.warning("message ids do not fit the store, indexing it anew deleted=%d expected=%d", deleted, expected)
    _begin_anew(execute)


def _mend(execute: Execute, created: Iterable[int]) -> bool:
    """Remove what is left in `ids` of the rows of `temp.doomed`, and make the sums anew of the minutes, hours and days
    of that, and of these times of creation: those that the rows have.

    An envelope that was damaged since has its id in `ids` all the same, but it cannot be computed any more. To look for
    it by its row takes 0.1 s in a million; to index these anew takes most of a minute. Return whether there were so few
    ids that it could be done.
    """
    seconds = {second for (second,) in execute(_FORGET_ROWS)}
    minutes = {second // SPANS[-1] for second in seconds.union(created) if second > 0}
    sums: Sums = {}
    for minute in minutes:
        start = minute * SPANS[-1]
        count, packed = execute(_IDS_OF_TIME, (start, start + SPANS[-1], MENDED_IDS + 1)).fetchone()
        if count > MENDED_IDS:
            return False
        sums[SPANS[-1], minute] = sum_of_ids(pieces(packed, ID_BYTES))
    _replace(execute, sums)
    for span, part in ((SPANS[-2], SPANS[-1]), (SPANS[-3], SPANS[-2])):
        sums = {}
        for bucket in {minute * SPANS[-1] // span for minute in minutes}:
            parts = execute(_SUMS_OF_TIME, (part, bucket * span // part, (bucket + 1) * span // part)).fetchall()
            total = sum(int.from_bytes(each, "little") for _, each in parts)
            sums[span, bucket] = SumOfIds(sum(count for count, _ in parts), total % MODULUS)
        _replace(execute, sums)
    return True


def give_up(connection: sqlite3.Connection, until_seq: int) -> None:
    """Index all rows anew: what was read of the index, when it went up to `until_seq` or further, does not fit them.

    If it does not go as far now, others have said so before.
    """
    execute = connection.execute
    with counted_transaction(connection):
        state = execute(_STATE).fetchone()
        if state is not None and state[0] and state[1] >= until_seq:
            log.warning("index of message ids is damaged, indexing the store anew until_seq=%d", state[1])
            _begin_anew(execute)


def _begin_anew(execute: Execute) -> None:
    """Say that nothing is indexed; `advance` then removes what there is, and begins with the first row."""
    execute("DELETE FROM id_index")
    execute("INSERT INTO id_index VALUES ('', 0)")


def _items(network_topic: str, packed: tuple[str | None, str | None, str | None, bytes | None]) -> list[Item]:
    """The ids of rows, in the order of the index."""
    seqs, created, sizes = map(numbers, packed[:3])
    names = joined_muids(network_topic, packed[3] or b"", sizes, created)
    return sorted(
        (second, sync_id(name), seq) for name, second, seq in zip(names, created, seqs, strict=True) if name is not None
    )


def _add(execute: Execute, items: Sequence[Item]) -> None:
    """Put ids into `ids`, and add them to the sums. One that another row has, of which this is a copy, is left."""
    new: list[Item] = []
    for part in _parts(items):
        if execute(_INSERT_IDS[len(part)], _flat(part)).rowcount == len(part):
            new += part
        else:
            new += (item for item in part if execute(_SEQ_OF, item[:2]).fetchone() == (item[2],))
    sums = sums_of(new)
    _write(execute, added(_read(execute, sums), sums))


def _subtract(execute: Execute, items: Sequence[Item]) -> bool:
    """Take ids out of the sums; return whether they were in them, as far as counts tell."""
    sums = sums_of(items)
    left = subtracted(_read(execute, sums), sums)
    if left is None:
        return False
    _replace(execute, left)
    return True


_SEQ_OF = "SELECT seq FROM ids WHERE created = ? AND id = ?"


def _replace(execute: Execute, sums: Sums) -> None:
    """Put sums in place of what there is; those of nothing are removed."""
    for part in _parts([*sums]):
        execute(_DELETE_SUMS[len(part)], _flat(part))
    _write(execute, {key: each for key, each in sums.items() if each.ids})


def _read(execute: Execute, keys: Iterable[tuple[int, int]]) -> Sums:
    there: Sums = {}
    for part in _parts([*keys]):
        spans, buckets, counts, sums = execute(_READ_SUMS[len(part)], _flat(part)).fetchone()
        totals = (int.from_bytes(each, "little") for each in pieces(sums, ID_BYTES))
        there.update(
            zip(
                zip(numbers(spans), numbers(buckets), strict=True),
                map(SumOfIds, numbers(counts), totals),
                strict=True,
            )
        )
    return there


def _write(execute: Execute, sums: Sums) -> None:
    rows = [(*key, count, total.to_bytes(ID_BYTES, "little")) for key, (count, total) in sorted(sums.items())]
    for part in _parts(rows):
        execute(_WRITE_SUMS[len(part)], _flat(part))


_Row = TypeVar("_Row", bound=tuple[object, ...])


def _parts(rows: Sequence[_Row]) -> Iterator[Sequence[_Row]]:
    """Rows in parts for which there are statements."""
    at = 0
    for count in _AT_ONCE:
        while len(rows) - at >= count:
            yield rows[at : at + count]
            at += count


def _flat(rows: Iterable[tuple[object, ...]]) -> list[object]:
    return [value for row in rows for value in row]
