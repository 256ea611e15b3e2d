"""Finding envelopes: by day, newest first, until a page is full."""

import json
import sqlite3
from array import array
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, compress, pairwise
from typing import NamedTuple

from mailserver.store.schema import HASH_PREFIX_BYTES, SECONDS_PER_DAY
from mailserver.waku.bloom import BLOOM_BYTES, FULL_BLOOM, Interest, as_integer, mask_of
from mailserver.waku.envelope import TOPIC_BYTES, Topic

_SLOTS = (1, 8, 64, 256)
"""How many (day, topic) pairs a statement looks up at once. Few sizes, so that few statements are prepared."""

_MAX_DAYS = 128
"""Most days that are looked at together."""

_MAX_TOPICS = 20_000
"""Most topics that are looked at together. Where a day has more, its envelopes are read in order of time and the
unwanted ones passed over: a filter that admits so many topics finds most of them wanted."""

_SCAN_ROWS = 2000
"""How many envelopes are looked at together when reading in order of time."""

_NEVER = 2**62
"""Above every `created`: below it is everything."""


class Key(NamedTuple):
    """Where an envelope stands in the order (created, hash), and its row. `hash` is the stored prefix."""

    created: int
    hash: bytes
    seq: int


@dataclass(frozen=True, slots=True)
class Query:
    """Envelopes created from `lower` to `upper` (Unix seconds, inclusive) that `interest` wants.

    `below`: only what is strictly below this place (created, whole hash) in the order.
    """

    lower: int
    upper: int
    interest: Interest
    below: tuple[int, bytes] | None = None


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys in order, in columns: a thousand of them as tuples would take 200 kB, and a millisecond to make."""

    created: "array[int]" = field(default_factory=lambda: array("q"))
    hashes: bytes = b""
    seqs: "array[int]" = field(default_factory=lambda: array("q"))

    @classmethod
    def of(cls, keys: Sequence[Key]) -> "Keys":
        """The same in columns."""
        created, seqs = array("q", [key.created for key in keys]), array("q", [key.seq for key in keys])
        return cls(created, b"".join(key.hash for key in keys), seqs)

    def __len__(self) -> int:
        return len(self.seqs)

    def __iter__(self) -> Iterator[Key]:
        return map(Key, self.created, _pieces(self.hashes, HASH_PREFIX_BYTES), self.seqs)

    def __add__(self, others: "Keys") -> "Keys":
        return Keys(self.created + others.created, self.hashes + others.hashes, self.seqs + others.seqs)

    @property
    def last(self) -> Key:
        """The last of them; there is one."""
        return Key(self.created[-1], self.hashes[-HASH_PREFIX_BYTES:], self.seqs[-1])

    def first(self, count: int) -> "Keys":
        """The first `count` of them, or all."""
        return Keys(self.created[:count], self.hashes[: count * HASH_PREFIX_BYTES], self.seqs[:count])


@dataclass(frozen=True, slots=True)
class Page:
    """The first `limit` matches, newest first, and whether there are more.

    `looked_up`: how many pairs (day, topic) it took, 2 us each.
    """

    keys: Keys
    more: bool
    looked_up: int = field(default=0, compare=False)


class _Range(NamedTuple):
    """The bounds as every statement takes them: created from lower to upper, and (created, hash) < below."""

    lower: int
    upper: int
    below_created: int
    below_hash: bytes


# Each statement packs all its rows into one. To fetch a row takes Python's lock, for which a thread waits up to 5 ms
# while the event loop is busy: a page of 1,000 rows would wait for seconds. Numbers are packed as text, with commas
# between them; bytes one after the other. (SQLite puts them together as they are, though it takes them for text.) What
# is packed keeps the order of a subquery that has a LIMIT; -1 is none.


def _packed_numbers(column: str) -> str:
    return f"group_concat({column})"


def _packed_bytes(column: str) -> str:
    return f"CAST(group_concat({column}, '') AS BLOB)"


_KEYS = f"{_packed_numbers('created')}, {_packed_bytes('hash')}, {_packed_numbers('seq')}"


def _by_topic(slots: int) -> str:
    return f"""
        WITH wanted (day, topic) AS (VALUES {", ".join(["(?, ?)"] * slots)})
        SELECT {_KEYS} FROM (
            SELECT e.created, e.hash, e.seq
            FROM wanted AS w CROSS JOIN envelopes AS e INDEXED BY envelopes_by_topic
            WHERE e.created / 86400 = w.day AND e.topic = w.topic
                AND e.created BETWEEN ? AND ? AND (e.created, e.hash) < (?, ?)
            ORDER BY e.created DESC, e.hash DESC LIMIT ?
        )
    """


_BY_TOPIC = {slots: _by_topic(slots) for slots in _SLOTS}
_BY_TIME = """
    SELECT {packed} FROM (
        SELECT created, hash, seq{topic} FROM envelopes INDEXED BY envelopes_by_time
        WHERE created BETWEEN ? AND ? AND (created, hash) < (?, ?)
        ORDER BY created DESC, hash DESC LIMIT ?
    )
"""
_KEYS_BY_TIME = _BY_TIME.format(packed=_KEYS, topic="")
_KEYS_AND_TOPICS_BY_TIME = _BY_TIME.format(packed=f"{_KEYS}, {_packed_bytes('topic')}", topic=", topic")
_DAYS = f"""
    SELECT {_packed_numbers("day")} FROM (
        SELECT day FROM days WHERE day BETWEEN ? AND ? ORDER BY day DESC LIMIT -1
    )
"""


def _admitted_topics(slots: int) -> str:
    return f"""
        WITH third (byte) AS (VALUES {", ".join(["(?)"] * slots)})
        SELECT {_packed_numbers("day")}, {_packed_bytes("topic")} FROM (
            SELECT t.day, t.topic
            FROM days AS d CROSS JOIN third CROSS JOIN day_topics AS t INDEXED BY day_topics_by_third_byte
            WHERE d.day BETWEEN ? AND ? AND t.day = d.day AND substr(t.topic, 3, 1) = third.byte
                AND instr(?, substr(t.topic, 1, 1)) AND instr(?, substr(t.topic, 2, 1))
            LIMIT ?
        )
    """


# Only topics whose bytes the bloom filter admits, each by itself: for a filter of few topics few more than those.
# The third byte leads, because `waku.bloom.mask_of` asks for its bit whatever the others are: so most of a day's
# topics are not even looked at.
_ADMITTED_TOPICS = {slots: _admitted_topics(slots) for slots in _SLOTS}


def _present(slots: int) -> str:
    return f"""
        WITH asked (created, hash) AS (VALUES {", ".join(["(?, ?)"] * slots)})
        SELECT {_packed_numbers("created")}, {_packed_bytes("hash")} FROM (
            SELECT e.created, e.hash
            FROM asked AS a CROSS JOIN envelopes AS e INDEXED BY envelopes_by_time
            WHERE e.created = a.created AND e.hash = a.hash
            LIMIT -1
        )
    """


_PRESENT = {slots: _present(slots) for slots in _SLOTS}
# Lengths without the envelopes they are of, where these are too long: SQLite then reads no more of them than where they
# begin.
_RAWS = f"""
    SELECT {_packed_numbers("size")}, {_packed_bytes("raw")} FROM (
        SELECT coalesce(length(e.raw), 0) AS size, CASE WHEN j.key = 0 OR length(e.raw) <= ? THEN e.raw END AS raw
        FROM json_each(?) AS j LEFT JOIN envelopes AS e ON e.seq = j.value LIMIT -1
    )
"""

_SPREAD = 16
"""How many times longer than the mean of what was asked for an envelope may be that is read with it. So what is read in
vain is at most as many times what is wanted, should all of them be so long."""


class Raws(NamedTuple):
    """Envelopes one after the other, as a packet holds them, and the length of each; 0 of one that is gone."""

    body: bytes
    sizes: Sequence[int]

    @property
    def last(self) -> bytes:
        """The last of them; there is one."""
        size = next(size for size in reversed(self.sizes) if size)
        return self.body[len(self.body) - size :]

    def split(self) -> list[bytes]:
        """Each that is there, by itself."""
        return [self.body[start:end] for start, end in pairwise(accumulate(self.sizes, initial=0)) if end > start]


Statement = Callable[[str, Sequence[object]], Awaitable[Iterable[sqlite3.Row]]]
"""Runs one statement on some read-only connection and returns its rows. Each runs in a read transaction of its
own: none stays open while a client takes its time, or the WAL could not be reset."""


class Finder:
    """Answers queries by statements that each are short, whatever the query."""

    def __init__(self, run: Statement) -> None:
        self._run = run

    async def find(self, query: Query, limit: int) -> Page:
        """Find the first `limit` matches."""
        below = query.below
        bounds = _Range(
            query.lower,
            query.upper if below is None else min(query.upper, below[0]),
            *((_NEVER, b"") if below is None else (below[0], below[1][:HASH_PREFIX_BYTES])),
        )
        wanted = limit + 1  # one more tells whether there are more
        if query.interest.topics is None and query.interest.bloom == FULL_BLOOM:
            keys, looked_up = _keys(*await self._run_packed(_KEYS_BY_TIME, (*bounds, wanted))), 0
        else:
            keys, looked_up = await self._find_by_day(query.interest, bounds, wanted)
        return Page(keys.first(limit), len(keys) > limit, looked_up)

    async def read(self, seqs: Sequence[int], max_bytes: int) -> Raws:
        """The envelopes of the first of these rows: of one at least, and of more as long as all are within `max_bytes`.

        They may be fewer than that: none with one before it that is far longer than `max_bytes` would have each be.
        """
        longest = _SPREAD * max_bytes // max(1, len(seqs))
        packed, raws = await self._run_packed(_RAWS, (longest, json.dumps([*seqs])))
        sizes = _numbers(packed)
        count = total = 0
        for size in sizes:
            if count and (size > longest or total + size > max_bytes):
                break
            count += 1
            total += size
        return Raws((raws or b"")[:total], sizes[:count])

    async def present(self, places: Sequence[tuple[int, bytes]]) -> set[tuple[int, bytes]]:
        """Which of these places (created, prefix of the hash) an envelope stands at."""
        found: set[tuple[int, bytes]] = set()
        for at in range(0, len(places), _SLOTS[-1]):
            part = places[at : at + _SLOTS[-1]]
            slots = _slots(len(part))
            parameters: list[object] = [value for place in part for value in place]
            parameters += [None] * (2 * slots - len(parameters))  # places that match nothing
            created, hashes = await self._run_packed(_PRESENT[slots], parameters)
            found.update(zip(_numbers(created), _pieces(hashes, HASH_PREFIX_BYTES), strict=True))
        return found

    async def _run_packed(self, sql: str, parameters: Sequence[object]) -> sqlite3.Row:
        """Run a statement that packs its rows; return the one it makes of them. Its columns are NULL for none."""
        (row,) = await self._run(sql, parameters)
        return row

    async def _find_by_day(self, interest: Interest, bounds: _Range, wanted: int) -> tuple[Keys, int]:
        """The first `wanted` envelopes, and how many pairs (day, topic) were looked up."""
        first, last = bounds.lower // SECONDS_PER_DAY, bounds.upper // SECONDS_PER_DAY
        (packed,) = await self._run_packed(_DAYS, (first, last))
        days = _numbers(packed)
        found = Keys()
        looked_up = 0
        span = 1 if interest.topics is None else max(1, min(_MAX_DAYS, _SLOTS[-1] // max(1, len(interest.topics))))
        at = 0
        while at < len(days) and len(found) < wanted:
            group = days[at : at + span]
            pairs = await self._wanted_topics(interest, group)
            if pairs is None and len(group) > 1:
                span = 1
                continue
            within = bounds._replace(
                lower=max(bounds.lower, group[-1] * SECONDS_PER_DAY),
                upper=min(bounds.upper, group[0] * SECONDS_PER_DAY + SECONDS_PER_DAY - 1),
            )
            if pairs is None:
                found += await self._scan(interest, within, wanted - len(found))
            else:
                looked_up += len(pairs)
                found += await self._look_up(pairs, within, wanted - len(found))
                if interest.topics is None and len(pairs) <= _SLOTS[-1] // 2:
                    span = min(_MAX_DAYS, 2 * span)  # few topics in so many days: look at more together
            at += len(group)
        return found, looked_up

    async def _wanted_topics(self, interest: Interest, days: Sequence[int]) -> list[tuple[int, bytes]] | None:
        """The pairs (day, topic) to look up, of days newest first; None if there are too many."""
        if interest.topics is not None:
            return [(day, topic) for day in days for topic in interest.topics]
        thirds = _admitted_third_bytes(interest.bloom)
        slots = _slots(len(thirds))
        others = _admitted_other_bytes(interest.bloom)
        padding = [None] * (slots - len(thirds))
        parameters = (*(bytes([byte]) for byte in thirds), *padding, days[-1], days[0], others, others, _MAX_TOPICS)
        of_days, topics = await self._run_packed(_ADMITTED_TOPICS[slots], parameters)
        pairs = [*zip(_numbers(of_days), _pieces(topics, TOPIC_BYTES), strict=True)]
        if len(pairs) >= _MAX_TOPICS:
            return None
        bits = as_integer(interest.bloom)
        return [(day, topic) for day, topic in pairs if bits & (mask := mask_of(topic)) == mask]

    async def _look_up(self, pairs: Sequence[tuple[int, bytes]], bounds: _Range, wanted: int) -> Keys:
        """The first `wanted` envelopes of these topics on these days."""
        found = Keys()
        for at in range(0, len(pairs), _SLOTS[-1]):
            part = pairs[at : at + _SLOTS[-1]]
            slots = _slots(len(part))
            parameters: list[object] = [value for pair in part for value in pair]
            parameters += [None] * (2 * slots - len(parameters))  # pairs that match nothing
            found += _keys(*await self._run_packed(_BY_TOPIC[slots], (*parameters, *bounds, wanted)))
            if at:
                found = Keys.of(sorted(found, reverse=True)[:wanted])
            if len(found) >= wanted:  # what is older than the last of these is not wanted any more
                bounds = bounds._replace(lower=found.last.created)
        return found

    async def _scan(self, interest: Interest, bounds: _Range, wanted: int) -> Keys:
        """The first `wanted` envelopes of the interest, by reading all in order of time."""
        found: list[Key] = []
        while len(found) < wanted:
            *packed, topics = await self._run_packed(_KEYS_AND_TOPICS_BY_TIME, (*bounds, _SCAN_ROWS))
            keys = _keys(*packed)
            wants = [interest.wants(Topic(topic)) for topic in _pieces(topics, TOPIC_BYTES)]
            found += compress(keys, wants)
            if len(keys) < _SCAN_ROWS:
                break
            created, key, _ = keys.last
            bounds = bounds._replace(upper=created, below_created=created, below_hash=key)
        return Keys.of(found[:wanted])


def _numbers(packed: str | None) -> list[int]:
    numbers: list[int] = [] if packed is None else json.loads(f"[{packed}]")
    return numbers


def _pieces(packed: bytes | None, size: int) -> list[bytes]:
    return [] if packed is None else [packed[at : at + size] for at in range(0, len(packed), size)]


def _keys(created: str | None, hashes: bytes | None, seqs: str | None) -> Keys:
    return Keys(array("q", _numbers(created)), hashes or b"", array("q", _numbers(seqs)))


def _admitted_third_bytes(bloom: bytes) -> bytes:
    """Which values the third byte of a matching topic can have: its bit is itself, plus 256 for half of the topics."""
    half = BLOOM_BYTES // 2
    return bytes(byte for byte in range(256) if (bloom[byte // 8] | bloom[half + byte // 8]) >> byte % 8 & 1)


def _admitted_other_bytes(bloom: bytes) -> bytes:
    """Which values the first and second byte can have: any whose bit lies in a byte of the filter that is not 0."""
    half = BLOOM_BYTES // 2
    return bytes(byte for byte in range(256) if bloom[byte // 8] | bloom[half + byte // 8])


def _slots(count: int) -> int:
    """The smallest of _SLOTS that holds `count`, at most _SLOTS[-1]."""
    return next(slots for slots in _SLOTS if slots >= count)
