"""Finding messages in the index, in the order (timestamp, hash) or against it.

Every statement packs its rows into one: to fetch a row takes Python's lock, for which a thread waits up to 5 ms while
the event loop is busy (`store.engine.keys`). Several topics are merged by SQLite as it reads them, so what is read is
little more than what is found.
"""

import json
import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from mailserver.errors import DecodeError
from mailserver.gateway.index.mapping import SLOTS, Original, in_slots, read_original
from mailserver.gateway.index.schema import PREFIX_BYTES
from mailserver.gateway.index.values import UnknownCursor
from mailserver.ids.envelopes import NS, topic_of
from mailserver.ids.waku_message import MESSAGE_HASH_BYTES, MessageHash
from mailserver.store.message_ids import BEFORE_ALL, Arrival
from mailserver.waku.envelope import Topic
from mailserver.waku2.store_rules import MAX_QUERY_TOPICS, StoreQuery

_TOPIC_SLOTS = (1, 2, 4, 10, 32, MAX_QUERY_TOPICS)

MessagePlace = tuple[int, bytes]
"""A place in the order of messages: (timestamp, first 16 bytes of the hash)."""

FIRST_PLACE: MessagePlace = (-(2**63), b"")
LAST_PLACE: MessagePlace = (2**63 - 1, b"\xff" * (PREFIX_BYTES + 1))


class MessageKey(NamedTuple):
    """A message that was found. `arrival` names its envelope in the store; BEFORE_ALL: only the archive has it."""

    timestamp: int
    hash: MessageHash
    arrival: Arrival
    is_original: bool

    @property
    def place(self) -> MessagePlace:
        """Where it is in the order."""
        return self.timestamp, self.hash[:PREFIX_BYTES]

    @property
    def created(self) -> int | None:
        """When its envelope was created, in Unix seconds; None: the key does not say. It is a `store.arrivals.Sought`:
        few stores ask for this, and a page has a hundred keys."""
        return None if self.is_original else self.timestamp // NS


@dataclass(frozen=True, slots=True)
class SearchScope:
    """What is searched: messages between two places, both exclusive; of these topics, or all, if None."""

    low: MessagePlace
    high: MessagePlace
    topics: tuple[Topic, ...] | None
    is_forward: bool

    def behind(self, place: MessagePlace) -> "SearchScope":
        """What of it comes after a place, in its direction."""
        if self.is_forward:
            return replace(self, low=max(self.low, place))
        return replace(self, high=min(self.high, place))

    def of(self, keys: Sequence[MessageKey]) -> list[MessageKey]:
        """Those of some messages that are between its places, in its direction; topics count for nothing."""
        return sorted((key for key in keys if self.low < key.place < self.high), reverse=not self.is_forward)


def scope_of(query: StoreQuery) -> SearchScope:
    """What a query searches, but for its cursor."""
    if query.message_hashes:
        return SearchScope(FIRST_PLACE, LAST_PLACE, None, query.is_forward)
    start, end = query.time_start, query.time_end
    topics = None
    if query.content_topics:
        topics = tuple(dict.fromkeys(topic for name in query.content_topics if (topic := _topic(name)) is not None))
    return SearchScope(
        # No hash is empty: all of the second at the start are behind this place, and those at the end as well.
        max(FIRST_PLACE, (start, b"")) if start is not None else FIRST_PLACE,
        min(LAST_PLACE, (end, b"")) if end is not None else LAST_PLACE,
        topics,
        query.is_forward,
    )


def _topic(content_topic: str) -> Topic | None:
    """The topic of envelopes; None for a content topic that no envelope has."""
    try:
        return topic_of(content_topic)
    except DecodeError:
        return None


Where = Sequence[str]
"""In which tables to look: STORED, or EVERYWHERE."""

STORED: Where = ("messages",)
EVERYWHERE: Where = ("messages", "archived")
"""In this order: a message leaves the first only when it is in the second."""

_COLUMNS = {
    "messages": "m.timestamp, m.hash, m.rest, m.arrival, m.is_original",
    "archived": f"m.timestamp, m.hash, m.rest, {BEFORE_ALL} AS arrival, m.is_original",
}
_PACKED = """
    SELECT group_concat(timestamp), CAST(group_concat(hash || rest, '') AS BLOB), group_concat(arrival),
        group_concat(is_original)
"""
_WITHIN = "(timestamp, hash) > (?1, ?2) AND (timestamp, hash) < (?3, ?4)"


def _of_all(table: str, order: str) -> str:
    return f"""
        {_PACKED} FROM (
            SELECT {_COLUMNS[table]} FROM {table} AS m
            WHERE {_WITHIN} ORDER BY timestamp {order}, hash {order} LIMIT ?5
        )
    """


def _of_topics(table: str, slots: int, order: str) -> str:
    found = " UNION ALL ".join(
        f"SELECT {_COLUMNS[table]} FROM {table} AS m INDEXED BY {table}_by_topic "
        f"WHERE topic = ?{6 + slot} AND {_WITHIN}"
        for slot in range(slots)
    )
    return f"{_PACKED} FROM ({found} ORDER BY timestamp {order}, hash {order} LIMIT ?5)"


_ORDERS = ((True, "ASC"), (False, "DESC"))
_OF_ALL = {(table, is_forward): _of_all(table, order) for table in EVERYWHERE for is_forward, order in _ORDERS}
_OF_TOPICS = {
    (table, slots, is_forward): _of_topics(table, slots, order)
    for table in EVERYWHERE
    for slots in _TOPIC_SLOTS
    for is_forward, order in _ORDERS
}
_OF_HASHES = {
    (table, slots): f"""
        {_PACKED} FROM (
            SELECT {_COLUMNS[table]} FROM {table} AS m INDEXED BY {table}_by_hash
            WHERE hash IN ({", ".join("?" * slots)}) LIMIT -1
        )
    """
    for table in EVERYWHERE
    for slots in SLOTS
}
_OF_GONE = "SELECT timestamp FROM gone WHERE hash = ?"
_ARRIVED_ORIGINALS = """
    SELECT timestamp, message, arrival FROM originals WHERE arrival > ? AND created <= ? ORDER BY arrival LIMIT ?
"""
_WITH_META = """
    SELECT DISTINCT message FROM originals WHERE meta = ? AND meta <> x'' AND message > ? ORDER BY message LIMIT ?
"""
_ORIGINAL = "SELECT created, timestamp, meta, version, is_ephemeral FROM originals WHERE message = ? AND arrival = ?"


def find(connection: sqlite3.Connection, scope: SearchScope, count: int, where: Where = STORED) -> list[MessageKey]:
    """The first `count` messages of a scope, in its direction."""
    bounds = *scope.low, *scope.high, count
    if scope.topics is None:
        found = [_unpacked(connection.execute(_OF_ALL[table, scope.is_forward], bounds).fetchone()) for table in where]
    elif scope.topics:
        slots = next(slots for slots in _TOPIC_SLOTS if slots >= len(scope.topics))
        topics = *scope.topics, *[None] * (slots - len(scope.topics))  # these match nothing
        found = [
            _unpacked(connection.execute(_OF_TOPICS[table, slots, scope.is_forward], (*bounds, *topics)).fetchone())
            for table in where
        ]
    else:
        return []
    return found[0] if len(found) == 1 else sorted(_each_once(found), reverse=not scope.is_forward)[:count]


def find_hashes(
    connection: sqlite3.Connection, hashes: Sequence[MessageHash], where: Where = STORED
) -> list[MessageKey]:
    """The messages of these hashes, in order."""
    wanted = set(hashes)
    parts = [*in_slots([*{name[:PREFIX_BYTES] for name in wanted}])]
    found = [
        _unpacked(connection.execute(_OF_HASHES[table, len(part)], part).fetchone())
        for table in where
        for part in parts
    ]
    return sorted(key for key in _each_once(found) if key.hash in wanted)


def _each_once(found: Sequence[Sequence[MessageKey]]) -> Collection[MessageKey]:
    """Messages of several tables; one that is in the store as well names its envelope there."""
    return {key.hash: key for keys in reversed(found) for key in keys}.values()


def place_of(connection: sqlite3.Connection, name: MessageHash, where: Where = STORED) -> MessagePlace:
    """Where a message is, or was if it is gone.

    Raises:
        UnknownCursor: there is none of this hash.
    """
    keys = find_hashes(connection, [name], where)
    if keys:
        return keys[0].place
    gone = connection.execute(_OF_GONE, (name[:PREFIX_BYTES],)).fetchone()
    if gone is None:
        raise UnknownCursor
    return gone[0], name[:PREFIX_BYTES]


def find_with_meta(
    connection: sqlite3.Connection, metas: Sequence[bytes], after: tuple[bytes, bytes], count: int
) -> list[tuple[bytes, MessageHash]]:
    """The first `count` messages of v2 with one of some metas, as (meta, hash), in this order; they may be gone.

    Args:
        metas: not empty, in order. after: the last one before these; (b"", b"") for the first.
    """
    found: list[tuple[bytes, MessageHash]] = []
    for meta in metas:
        if meta >= after[0] and len(found) < count:
            behind = after[1] if meta == after[0] else b""
            rows = connection.execute(_WITH_META, (meta, behind, count - len(found)))
            found += [(meta, MessageHash(name)) for (name,) in rows]
    return found


class Whereabouts(NamedTuple):
    """What leads to a message in the archive: when its envelope was created, in Unix seconds, and its topic."""

    created: int
    topic: Topic


_TOPIC_OF = "SELECT topic FROM {} WHERE timestamp = ? AND hash = ?"
_CREATED_OF = "SELECT created FROM originals WHERE message = ?"


def whereabouts(connection: sqlite3.Connection, keys: Sequence[MessageKey]) -> list[tuple[MessageKey, Whereabouts]]:
    """Where in the archive to look for messages. One that was posted in several envelopes has several; one that has
    left the index has none."""
    found: list[tuple[MessageKey, Whereabouts]] = []
    for key in keys:
        rows = (connection.execute(_TOPIC_OF.format(table), key.place).fetchone() for table in EVERYWHERE)
        topic = next((row[0] for row in rows if row is not None), None)
        if topic is None:
            continue
        seconds = [key.timestamp // NS]
        if key.is_original:
            seconds = [created for (created,) in connection.execute(_CREATED_OF, (key.hash,))]
        found += [(key, Whereabouts(second, Topic(topic))) for second in seconds]
    return found


def original_of(connection: sqlite3.Connection, key: MessageKey) -> tuple[int, Original] | None:
    """When the envelope of a message was created, in Unix seconds, and what the message says beyond it; None if that is
    gone."""
    row = connection.execute(_ORIGINAL, (key.hash, key.arrival)).fetchone()
    return None if row is None else (row[0], read_original(row[1:]))


def find_originals(connection: sqlite3.Connection, until: int, after: Arrival, count: int) -> list[MessageKey]:
    """The messages of v2 whose envelopes are in the index and were created no later than `until`, in the order of
    arrival."""
    rows = connection.execute(_ARRIVED_ORIGINALS, (after, until, count))
    return [
        MessageKey(timestamp, MessageHash(name), Arrival(arrival), is_original=True)
        for timestamp, name, arrival in rows
    ]


def _unpacked(packed: tuple[str | None, bytes | None, str | None, str | None]) -> list[MessageKey]:
    timestamps, hashes, arrivals, originals = packed
    if timestamps is None or hashes is None:
        return []
    names = [hashes[at : at + MESSAGE_HASH_BYTES] for at in range(0, len(hashes), MESSAGE_HASH_BYTES)]
    times, places, are_originals = (json.loads(f"[{column}]") for column in (timestamps, arrivals, originals))
    new = tuple.__new__  # half the time of a NamedTuple's own
    return [new(MessageKey, row) for row in zip(times, names, places, map(bool, are_originals), strict=True)]
