"""What changes the index, in the thread that writes it. Each function is one transaction."""

import sqlite3
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from mailserver.codec.keccak import keccak256
from mailserver.gateway.index.database import synced
from mailserver.gateway.index.mapping import Original, originals_of
from mailserver.gateway.index.schema import ARCHIVED, MESSAGES, PREFIX_BYTES
from mailserver.gateway.index.search import MessageKey
from mailserver.ids.envelopes import NS, message_hashes
from mailserver.ids.waku_message import MessageHash
from mailserver.store.arrivals import Arrived, ArrivedFields
from mailserver.store.message_ids import BEFORE_ALL, Arrival
from mailserver.store.sqlite.connections import transaction
from mailserver.waku.envelope import EnvelopeHash
from mailserver.waku.envelope_rows import read_fields

CURSOR_KEPT_S = 86_400
"""For so long a page can begin behind a message that is gone."""

ORIGINAL_KEPT_S = 30 * 86_400
"""An original whose envelope has not arrived so long after it was created never will, not even from others' history."""

CLEANED_ROWS = 4000
"""Most rows that are removed at once because their time is over."""

_ROWS_AT_ONCE = 100
_INSERT_MANY, _INSERT_ONE = (
    f"""
    INSERT INTO messages (timestamp, hash, rest, topic, arrival, is_original)
    VALUES {", ".join(["(?, ?, ?, ?, ?, ?)"] * count)}
    ON CONFLICT (timestamp, hash) DO UPDATE SET arrival = excluded.arrival, is_original = excluded.is_original
    """
    for count in (_ROWS_AT_ONCE, 1)
)
_INSERT_ARCHIVED = """
    INSERT INTO archived (timestamp, hash, rest, topic, is_original) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (timestamp, hash) DO UPDATE SET is_original = excluded.is_original
    WHERE is_original <> excluded.is_original
"""
_ARRIVED = "UPDATE originals SET arrival = ?, message = ? WHERE envelope = ?"
# The archive may have what is not to be stored: without its original, it would be taken for a message of v1.
_STAYS = f"""
    (
        is_ephemeral IS 1
        OR EXISTS (
            SELECT 1 FROM archived AS a WHERE a.timestamp = originals.timestamp
            AND a.hash = CAST(substr(originals.message, 1, {PREFIX_BYTES}) AS BLOB)
        )
    )
"""
_ADVANCE = "UPDATE progress SET arrival = ? WHERE identity = ? AND network_topic = ? AND arrival = ?"


class IndexProgress(NamedTuple):
    """How far which store was followed."""

    identity: str
    network_topic: str
    arrival: Arrival


class WalkedPeriod(NamedTuple):
    """How much of a period of the archive is indexed: so many row groups; whether that is all."""

    row_groups: int
    is_all: bool


PeriodName = tuple[str, str]
"""A day or a month of the archive, and the run that has written it last."""


class Indexed(NamedTuple):
    """What became of envelopes: how many messages were indexed, and how many envelopes were damaged."""

    messages: int
    damaged: int


class _Row(NamedTuple):
    """A row of `messages`."""

    timestamp: int
    hash: bytes
    rest: bytes
    topic: bytes
    arrival: Arrival
    is_original: bool


_Arrived = tuple[Arrival, MessageHash, bytes]
"""What is noted of an original whose envelope has arrived: where, the message, and what names the original."""


def read_progress(connection: sqlite3.Connection) -> IndexProgress:
    """How far the store was followed."""
    ((identity, network_topic, arrival),) = connection.execute("SELECT identity, network_topic, arrival FROM progress")
    return IndexProgress(identity, network_topic, Arrival(arrival))


def read_swept(connection: sqlite3.Connection) -> str | None:
    """Up to which removals of the store its messages were removed here; None if they never were."""
    ((swept,),) = connection.execute("SELECT swept FROM progress")
    return None if swept is None else str(swept)


def note_swept(connection: sqlite3.Connection, identity: str, removals: str) -> bool:
    """Note that messages were removed up to these removals of a store; return whether that is the one still."""
    with transaction(connection):
        noted = connection.execute("UPDATE progress SET swept = ? WHERE identity = ?", (removals, identity))
    return noted.rowcount > 0


def begin_anew(connection: sqlite3.Connection, identity: str, network_topic: str) -> IndexProgress:
    """Forget all messages, and follow this store from its beginning. Originals stay: they may be in it. What is
    archived stays, too, if its hashes belong to the same network topic."""
    execute = connection.execute
    with transaction(connection):
        execute("DROP TABLE messages")
        for statement in MESSAGES:
            execute(statement)
        if read_progress(connection).network_topic != network_topic:
            execute("DROP TABLE archived")
            execute("DROP TABLE archived_periods")
            for statement in ARCHIVED:
                execute(statement)
        execute("DELETE FROM gone")
        execute(f"UPDATE originals SET arrival = iif(arrival IS {BEFORE_ALL} OR {_STAYS}, {BEFORE_ALL}, NULL)")
        execute(
            "UPDATE progress SET identity = ?, network_topic = ?, arrival = ?, swept = NULL",
            (identity, network_topic, BEFORE_ALL),
        )
    return IndexProgress(identity, network_topic, BEFORE_ALL)


def index(connection: sqlite3.Connection, progress: IndexProgress, arrived: Arrived) -> Indexed | None:
    """Index what arrived behind `progress`; None if the index is not there any more, and nothing was done."""
    envelopes, damaged = arrived.fields()
    rows, originals = _rows_of(connection, progress.network_topic, envelopes)
    with transaction(connection):
        moved = connection.execute(_ADVANCE, (arrived.end, *progress))
        if not moved.rowcount:
            return None
        _insert(connection, rows)
        connection.executemany(_ARRIVED, originals)
    return Indexed(len(rows), damaged)


def _rows_of(
    connection: sqlite3.Connection, network_topic: str, envelopes: Sequence[ArrivedFields]
) -> tuple[list[_Row], list[_Arrived]]:
    """The messages of envelopes, in the order of the index, and which of them have an original."""
    known = originals_of(connection, [each.hash for each in envelopes])
    names = message_hashes(network_topic, [each.fields for each in envelopes])
    rows: list[_Row] = []
    arrived: list[_Arrived] = []
    new = tuple.__new__  # half the time of a NamedTuple's own
    for (arrival, whole, (created, _, topic, data, _)), name in zip(envelopes, names, strict=True):
        original = known.get(whole) if known else None
        if original is not None:
            message = original.message(topic, data)
            own = message.hash(network_topic)
            arrived.append((arrival, own, whole[:PREFIX_BYTES]))
            if not message.ephemeral:  # those are not to be stored (14/WAKU2-MESSAGE)
                rows.append(_Row(original.timestamp, own[:PREFIX_BYTES], own[PREFIX_BYTES:], topic, arrival, True))
        elif name is not None:
            row = created * NS, name[:PREFIX_BYTES], name[PREFIX_BYTES:], topic, arrival, False
            rows.append(new(_Row, row))
    rows.sort()  # neighbours are on the same pages
    return rows, arrived


def read_walked(connection: sqlite3.Connection) -> dict[PeriodName, WalkedPeriod]:
    """How much of the archive is indexed."""
    rows = connection.execute("SELECT period, run, row_groups, is_all FROM archived_periods")
    return {(period, run): WalkedPeriod(row_groups, bool(is_all)) for period, run, row_groups, is_all in rows}


def index_archived(
    connection: sqlite3.Connection, network_topic: str, period: PeriodName, walked: WalkedPeriod, raws: Sequence[bytes]
) -> None:
    """Index what was read of a period of the archive, and note how far it is indexed by now."""
    envelopes = [
        ArrivedFields(BEFORE_ALL, EnvelopeHash(keccak256(raw)), fields)
        for raw, fields in zip(raws, read_fields(b"".join(raws), map(len, raws)), strict=True)
        if fields is not None  # its hash is right: the sender has made it so, and it has no message
    ]
    rows, originals = _rows_of(connection, network_topic, envelopes)
    with transaction(connection):
        if read_progress(connection).network_topic != network_topic:
            return
        connection.executemany(_INSERT_ARCHIVED, [(*row[:4], row.is_original) for row in rows])
        connection.executemany(f"{_ARRIVED} AND arrival IS NULL", originals)
        connection.execute("INSERT OR REPLACE INTO archived_periods VALUES (?, ?, ?, ?)", (*period, *walked))


def forget_periods(connection: sqlite3.Connection, periods: Iterable[PeriodName]) -> None:
    """Forget how far periods were indexed that were replaced. Their messages are those of others now."""
    with transaction(connection):
        connection.executemany("DELETE FROM archived_periods WHERE period = ? AND run = ?", periods)


def remove_archived(connection: sqlite3.Connection, keys: Iterable[MessageKey], now: int) -> None:
    """Remove messages that neither store nor archive has any more, and remember for a while where they were. Originals
    stay: somebody may put back what was taken out of the archive."""
    with transaction(connection):
        for key in keys:
            connection.execute("DELETE FROM archived WHERE timestamp = ? AND hash = ?", key.place)
            _note_gone(connection, key, now)


def _note_gone(connection: sqlite3.Connection, key: MessageKey, now: int) -> None:
    row = (*key.place, now + CURSOR_KEPT_S)
    connection.execute("INSERT OR REPLACE INTO gone (timestamp, hash, until) VALUES (?, ?, ?)", row)


def _insert(connection: sqlite3.Connection, rows: Sequence[_Row]) -> None:
    at = 0
    # Many rows in one statement: see `store.sqlite.insertion`.
    while len(rows) - at >= _ROWS_AT_ONCE:
        connection.execute(_INSERT_MANY, [*chain.from_iterable(rows[at : at + _ROWS_AT_ONCE])])
        at += _ROWS_AT_ONCE
    connection.executemany(_INSERT_ONE, rows[at:])


def keep(
    connection: sqlite3.Connection, envelope: EnvelopeHash, created: int, message: MessageHash, original: Original
) -> None:
    """Keep what an envelope does not say of the message that it was made from. It is on disk when this returns."""
    with synced(connection):
        connection.execute(
            "INSERT OR IGNORE INTO originals VALUES (?, ?, ?, ?, ?, ?, ?, NULL)",
            (
                envelope[:PREFIX_BYTES],
                message,
                created,
                original.timestamp,
                original.meta,
                original.version,
                original.ephemeral,
            ),
        )


def forget(connection: sqlite3.Connection, envelope: EnvelopeHash) -> None:
    """Forget the original of an envelope that was refused; one that has arrived stays."""
    with transaction(connection):
        connection.execute("DELETE FROM originals WHERE envelope = ? AND arrival IS NULL", (envelope[:PREFIX_BYTES],))


def remove(connection: sqlite3.Connection, identity: str, keys: Iterable[MessageKey], now: int) -> None:
    """Remove messages whose envelopes are gone from this store, and remember for a while where they were. Originals of
    what is archived stay, and of what was not to be stored."""
    with transaction(connection):
        if read_progress(connection).identity != identity:
            return
        for key in keys:
            removed = connection.execute(
                "DELETE FROM messages WHERE timestamp = ? AND hash = ? AND arrival = ?", (*key.place, key.arrival)
            )
            if removed.rowcount:
                _note_gone(connection, key, now)
            if key.is_original:
                of_key = key.hash, key.arrival
                connection.execute(
                    f"UPDATE originals SET arrival = {BEFORE_ALL} WHERE message = ? AND arrival = ? AND {_STAYS}",
                    of_key,
                )
                connection.execute("DELETE FROM originals WHERE message = ? AND arrival = ?", of_key)


def clean(connection: sqlite3.Connection, now: int) -> None:
    """Forget what was kept long enough; the rest of it the next time, if it is much."""
    with transaction(connection):
        connection.execute(
            "DELETE FROM gone WHERE hash IN (SELECT hash FROM gone WHERE until <= ? LIMIT ?)", (now, CLEANED_ROWS)
        )
        connection.execute(
            "DELETE FROM originals WHERE envelope IN "
            "(SELECT envelope FROM originals WHERE arrival IS NULL AND created < ? LIMIT ?)",
            (now - ORIGINAL_KEPT_S, CLEANED_ROWS),
        )
