"""The statements of a search in PostgreSQL: a `store.engine.lookups.Lookups`, which says what each method does.

Bounds of `created` stand beside each comparison of places: by them the server leaves out the partitions of other days,
which it does not do by a comparison of two columns. `OFFSET 0` keeps a subquery what it is: it is looked up once for
each row before it, in their order. What is wanted of a topic must be read by the index of topics, however common the
server believes topics to be: so it is told three times that there is one, and expects next to nothing.
"""

from array import array
from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any, NamedTuple

from mailserver.store.engine import work
from mailserver.store.engine.fitting import fitting, longest
from mailserver.store.engine.keys import HASH_PREFIX_BYTES, KeyPlace, Keys
from mailserver.store.engine.lookups import Day, Pair, PlaceRange
from mailserver.store.interface import Raws
from mailserver.store.postgres.readers import REMOVED, PaidReader
from mailserver.store.postgres.rows import MAX_LENGTH
from mailserver.waku.envelope import TOPIC_BYTES

KEYS = "array_agg(created), string_agg(hash, ''::bytea), array_agg(seq)"

_ABOVE_ALL = b"\xff" * (HASH_PREFIX_BYTES + 1)
"""What no stored hash reaches."""


def within(first: int) -> str:
    """SQL: a place is in a range, whose four columns are the parameters from `first` on."""
    low, low_hash, high, high_hash = (f"${number}" for number in range(first, first + 4))
    return (
        f"created >= {low} AND created <= {high} "
        f"AND (created, hash) >= ({low}, {low_hash}) AND (created, hash) < ({high}, {high_hash})"
    )


def bounds(within: PlaceRange) -> PlaceRange:
    """The same range by bounds that no place outside its days is at: the end of a day is not the beginning of the next,
    whose partition would be looked into."""
    if within.high_hash:
        return within
    return within._replace(high_created=within.high_created - 1, high_hash=_ABOVE_ALL)


def _of_topic(topic: str) -> str:
    return f"topic = {topic} AND topic >= {topic} AND topic <= {topic}"


def _by_time(packed: str) -> str:
    return f"""
        SELECT {REMOVED}, {packed} FROM (
            SELECT created, hash, seq, topic FROM envelopes
            WHERE {within(1)} ORDER BY created DESC, hash DESC LIMIT $5
        ) AS found
    """


_KEYS_BY_TIME = _by_time(KEYS)
_KEYS_AND_TOPICS_BY_TIME = _by_time(f"{KEYS}, string_agg(topic, ''::bytea)")
# The envelopes themselves, too; of one that is too long to be read with others, only its length.
_READ_BY_TIME = f"""
    SELECT {REMOVED}, array_agg(created), string_agg(hash, ''::bytea), array_agg(size), string_agg(raw, ''::bytea)
    FROM (
        SELECT created, hash, octet_length(raw) AS size, CASE WHEN octet_length(raw) <= $6 THEN raw END AS raw
        FROM envelopes WHERE {within(1)} ORDER BY created DESC, hash DESC LIMIT $5
    ) AS found
"""
_DAYS = f"""
    SELECT {REMOVED}, array_agg(day), array_agg(envelopes) FROM (
        SELECT day, sum(envelopes)::bigint AS envelopes FROM counts
        WHERE day BETWEEN $1 AND $2 GROUP BY day ORDER BY day DESC LIMIT $3
    ) AS found
"""
# All envelopes of some pairs (day, topic), one pair after the other. Where the limit is reached, what was read of the
# last pair is any part of it, and of no use.
_OF_PAIRS = f"""
    SELECT {REMOVED}, {KEYS}, array_agg(slot) FROM (
        SELECT created, hash, seq, slot FROM (
            SELECT e.created, e.hash, e.seq, w.slot
            FROM unnest($5::bigint[], $6::bytea[]) WITH ORDINALITY AS w (day, topic, slot)
            CROSS JOIN LATERAL (
                SELECT created, hash, seq FROM envelopes
                WHERE {_of_topic("w.topic")} AND created >= w.day * 86400 AND created < (w.day + 1) * 86400
                    AND {within(1)}
                OFFSET 0
            ) AS e
            LIMIT $7
        ) AS looked_up
        ORDER BY created DESC, hash DESC
    ) AS found
"""
_OF_PAIR = f"""
    SELECT {REMOVED}, {KEYS} FROM (
        SELECT created, hash, seq FROM envelopes
        WHERE {_of_topic("$6")} AND created >= $5::bigint * 86400 AND created < ($5::bigint + 1) * 86400 AND {within(1)}
        ORDER BY created DESC, hash DESC LIMIT $7
    ) AS found
"""
_TOPICS = f"""
    SELECT {REMOVED}, array_agg(day), string_agg(topic, ''::bytea) FROM (
        SELECT t.day, t.topic
        FROM unnest($1::bigint[], $2::smallint[], $3::bytea[]) AS w (day, third, above)
        CROSS JOIN LATERAL (
            SELECT day, topic FROM day_topics
            WHERE day = w.day AND third = w.third AND topic > w.above ORDER BY topic OFFSET 0
        ) AS t
        LIMIT $4
    ) AS found
"""


class ScannedRows(NamedTuple):
    """A `store.engine.lookups.Scanned`; each column is None if there are no rows."""

    created: list[int] | None
    hashes: bytes | None
    seqs: list[int] | None

    def unpack(self) -> Keys:
        """The same as keys."""
        return Keys(array("q", self.created or ()), self.hashes or b"", array("q", self.seqs or ()))

    @property
    def last_place(self) -> KeyPlace:
        """The place of the last of them; there is one."""
        assert self.created is not None
        assert self.hashes is not None
        return self.created[-1], self.hashes[-HASH_PREFIX_BYTES:]


class PostgresLookups:
    """Runs statements for one search. `work` is what they have taken so far."""

    def __init__(self, reader: PaidReader) -> None:
        self.work = 0
        self._reader = reader

    async def by_time(self, within: PlaceRange, rows: int) -> Keys:
        """Find the first `rows` envelopes of a range."""
        keys = ScannedRows(
            *await self._run(_KEYS_BY_TIME, (*bounds(within), rows), work.STATEMENT + rows * work.ROW)
        ).unpack()
        self._give_back((rows - len(keys)) * work.ROW)
        return keys

    async def read_by_time(self, within: PlaceRange, rows: int, max_bytes: int) -> tuple[Keys, Raws]:
        """Find the first `rows` envelopes of a range, and read those that fit."""
        likely = work.STATEMENT + rows * (work.ROW + work.ENVELOPE) + max_bytes // work.UNIT_BYTES
        parameters = (*bounds(within), rows, min(longest(rows, max_bytes), MAX_LENGTH))
        created, hashes, sizes, raws = await self._run(_READ_BY_TIME, parameters, likely)
        keys, body = ScannedRows(created, hashes, None).unpack(), raws or b""
        self._give_back((rows - len(keys)) * (work.ROW + work.ENVELOPE) + (max_bytes - len(body)) // work.UNIT_BYTES)
        return keys, fitting(body, sizes or [], rows, max_bytes, at_least=0)

    async def by_time_with_topics(self, within: PlaceRange, rows: int) -> tuple[ScannedRows, bytes]:
        """Find the first `rows` envelopes of a range, and their topics, one after the other."""
        most = work.STATEMENT + rows * work.ROW
        *packed, topics = await self._run(_KEYS_AND_TOPICS_BY_TIME, (*bounds(within), rows), most)
        topics = topics or b""
        self._give_back((rows - len(topics) // TOPIC_BYTES) * work.ROW)
        return ScannedRows(*packed), topics

    async def days(self, first: int, last: int, count: int) -> list[Day]:
        """List days that have envelopes, newest first, `count` at most."""
        most = max(0, min(last - first + 1, count))
        days, envelopes = await self._run(_DAYS, (first, last, count), work.STATEMENT + most * work.DAY)
        found = [Day(*row) for row in zip(days or (), envelopes or (), strict=True)]
        self._give_back((most - len(found)) * work.DAY)
        return found

    async def topics_of_days(
        self, group: Sequence[Day], thirds: bytes, above: bytes, count: int
    ) -> tuple[Callable[[], Sequence[int]], bytes]:
        """List topics of days whose third byte is one of `thirds`, `count` at most."""
        bounds = [above, *[b""] * (len(thirds) - 1)]
        asked = [day.day for day in group for _ in thirds], [*thirds] * len(group), bounds * len(group)
        places = work.STATEMENT + len(group) * len(thirds) * work.PAIR
        days, topics = await self._run(_TOPICS, (*asked, count), places + count * work.TOPIC)
        topics = topics or b""
        self._give_back((count - len(topics) // TOPIC_BYTES) * work.TOPIC)
        return lambda: days or (), topics

    async def of_pairs(self, pairs: Sequence[Pair], within: PlaceRange, rows: int) -> tuple[Keys, int]:
        """Find all envelopes of the first of these pairs; return them, and of how many pairs they are."""
        if len(pairs) == 1:
            return Keys(), 0
        # Most topics have few envelopes a day. If a phone's request were queued by the most that it can take, it would
        # wait behind all that ask for whole pages.
        least = work.STATEMENT + len(pairs) * work.PAIR
        most = least + rows * work.ROW
        days, topics = [day for day, _ in pairs], [topic for _, topic in pairs]
        *packed, slots = await self._run(_OF_PAIRS, (*bounds(within), days, topics, rows), most, least)
        keys = ScannedRows(*packed).unpack()
        self._give_back((rows - len(keys)) * work.ROW)
        if len(keys) < rows:
            return keys, len(pairs)
        last = max(slots)
        self._give_back((len(pairs) - last) * work.PAIR)
        return Keys.of([*compress(keys, [slot < last for slot in slots])]), last - 1  # slots count from 1

    async def of_pair(self, pair: Pair, within: PlaceRange, rows: int) -> Keys:
        """Find the first `rows` envelopes of one pair."""
        least = work.STATEMENT + work.PAIR
        most = least + rows * work.ROW
        keys = ScannedRows(*await self._run(_OF_PAIR, (*bounds(within), *pair, rows), most, least)).unpack()
        self._give_back((rows - len(keys)) * work.ROW)
        return keys

    async def _run(
        self, sql: str, parameters: Sequence[object], most: int, likely: int | None = None
    ) -> tuple[Any, ...]:
        row = await self._reader.search(sql, parameters, most, likely)
        self.work += most
        return row

    def _give_back(self, unused: int) -> None:
        """The statement before has looked at so much less than it was paid for."""
        self.work -= unused
        self._reader.correct(-unused)
