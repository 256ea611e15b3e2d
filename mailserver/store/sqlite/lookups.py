"""The statements of a search: each is run, paid for and unpacked here; `store.engine.search` decides which is next.

Every statement looks at no more rows than it is told to, and finds both ends of its range in an index. It is paid for
as if it had looked at all of them; when it is done, what it has not looked at is given back (`store.engine.work`).
"""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import compress
from typing import Protocol

from mailserver.store.engine import work
from mailserver.store.engine.fitting import fitting, longest
from mailserver.store.engine.keys import Keys
from mailserver.store.engine.lookups import Day, Pair, PlaceRange
from mailserver.store.interface import Raws
from mailserver.store.sqlite.packing import SLOTS, PackedKeys, numbers, packed_bytes, packed_numbers, slots_for
from mailserver.waku.envelope import TOPIC_BYTES


class ReadConnection(Protocol):
    """What statements are run on: some read-only connection.

    Each statement runs in a read transaction of its own. None stays open while a client takes its time: the WAL could
    not be reset.
    """

    async def run(
        self, sql: str, parameters: Sequence[object], work: int, likely: int | None = None
    ) -> Iterable[sqlite3.Row]:
        """Run a statement and return its rows.

        Args:
            work: how much work it is, as far as that is known before.
            likely: how much it likely is, where `work` is the most that it can be.
        """

    def correct(self, work: int) -> None:
        """The statement before was so much more work; less if below 0."""


_KEYS = f"{packed_numbers('created')}, {packed_bytes('hash')}, {packed_numbers('seq')}"
WITHIN = "(created, hash) >= (?, ?) AND (created, hash) < (?, ?)"


def _of_pairs(slots: int) -> str:
    return f"""
        WITH wanted (slot, day, topic) AS (VALUES {", ".join(f"(x'{slot:02x}', ?, ?)" for slot in range(slots))})
        SELECT {_KEYS}, {packed_bytes("slot")} FROM (
            SELECT created, hash, seq, slot FROM (
                SELECT e.created, e.hash, e.seq, w.slot
                FROM wanted AS w CROSS JOIN envelopes AS e INDEXED BY envelopes_by_topic
                WHERE e.created / 86400 = w.day AND e.topic = w.topic
                    AND (e.created, e.hash) >= (?, ?) AND (e.created, e.hash) < (?, ?)
                LIMIT ?
            )
            ORDER BY created DESC, hash DESC LIMIT -1
        )
    """


# All envelopes of some pairs (day, topic), one pair after the other. Where the limit is reached, what was read of the
# last pair is its oldest part, and of no use.
_OF_PAIRS = {slots: _of_pairs(slots) for slots in SLOTS}
_OF_PAIR = f"""
    SELECT {_KEYS} FROM (
        SELECT created, hash, seq FROM envelopes INDEXED BY envelopes_by_topic
        WHERE created / 86400 = ? AND topic = ? AND {WITHIN}
        ORDER BY created DESC, hash DESC LIMIT ?
    )
"""
_BY_TIME = """
    SELECT {packed} FROM (
        SELECT created, hash, seq{topic} FROM envelopes INDEXED BY envelopes_by_time
        WHERE {within} ORDER BY created DESC, hash DESC LIMIT ?
    )
"""
_KEYS_BY_TIME = _BY_TIME.format(packed=_KEYS, topic="", within=WITHIN)
_KEYS_AND_TOPICS_BY_TIME = _BY_TIME.format(packed=f"{_KEYS}, {packed_bytes('topic')}", topic=", topic", within=WITHIN)
# The envelopes themselves, too; of one that is too long to be read with others, only its length. Their rows need no
# other name: nothing of them is read again.
_READ_BY_TIME = f"""
    SELECT {packed_numbers("created")}, {packed_bytes("hash")}, {packed_numbers("size")}, {packed_bytes("raw")} FROM (
        SELECT created, hash, coalesce(length(raw), 0) AS size, CASE WHEN length(raw) <= ? THEN raw END AS raw
        FROM envelopes INDEXED BY envelopes_by_time
        WHERE {WITHIN} ORDER BY created DESC, hash DESC LIMIT ?
    )
"""
_DAYS = f"""
    SELECT {packed_numbers("day")}, {packed_numbers("envelopes")} FROM (
        SELECT day, envelopes FROM days WHERE day BETWEEN ? AND ? ORDER BY day DESC LIMIT ?
    )
"""


def _topics(slots: int) -> str:
    return f"""
        WITH third (byte, above) AS (VALUES {", ".join(["(?, ?)"] * slots)})
        SELECT {packed_numbers("day")}, {packed_bytes("topic")} FROM (
            SELECT t.day, t.topic
            FROM days AS d CROSS JOIN third CROSS JOIN day_topics AS t INDEXED BY day_topics_by_third_byte
            WHERE d.day BETWEEN ? AND ?
                AND t.day = d.day AND substr(t.topic, 3, 1) = third.byte AND t.topic > third.above
            LIMIT ?
        )
    """


# The topics on some days whose third byte has one of some values: by day, then by that byte in the order given, then by
# topic. The third byte leads because `waku.bloom.mask_of` asks for its bit whatever the other bytes are: so most of a
# day's topics are not even looked at.
_TOPICS = {slots: _topics(slots) for slots in SLOTS}


class Lookups:
    """A `store.engine.lookups.Lookups`, which says what each method does. `work` is what they have taken so far."""

    def __init__(self, connection: ReadConnection) -> None:
        self.work = 0
        self._connection = connection

    async def by_time(self, within: PlaceRange, rows: int) -> Keys:
        """Find the first `rows` envelopes of a range."""
        keys = PackedKeys(*await self._run(_KEYS_BY_TIME, (*within, rows), work.STATEMENT + rows * work.ROW)).unpack()
        self._give_back((rows - len(keys)) * work.ROW)
        return keys

    async def read_by_time(self, within: PlaceRange, rows: int, max_bytes: int) -> tuple[Keys, Raws]:
        """Find the first `rows` envelopes of a range, and read those that fit."""
        likely = work.STATEMENT + rows * (work.ROW + work.ENVELOPE) + max_bytes // work.UNIT_BYTES
        parameters = (longest(rows, max_bytes), *within, rows)
        created, hashes, packed, raws = await self._run(_READ_BY_TIME, parameters, likely)
        keys, body = PackedKeys(created, hashes, None).unpack(), raws or b""
        self._give_back((rows - len(keys)) * (work.ROW + work.ENVELOPE) + (max_bytes - len(body)) // work.UNIT_BYTES)
        return keys, fitting(body, numbers(packed), rows, max_bytes, at_least=0)

    async def by_time_with_topics(self, within: PlaceRange, rows: int) -> tuple[PackedKeys, bytes]:
        """Find the first `rows` envelopes of a range, and their topics, one after the other."""
        most = work.STATEMENT + rows * work.ROW
        *packed, topics = await self._run(_KEYS_AND_TOPICS_BY_TIME, (*within, rows), most)
        topics = topics or b""
        self._give_back((rows - len(topics) // TOPIC_BYTES) * work.ROW)
        return PackedKeys(*packed), topics

    async def days(self, first: int, last: int, count: int) -> list[Day]:
        """List days that have envelopes, newest first, `count` at most."""
        most = max(0, min(last - first + 1, count))
        days, envelopes = await self._run(_DAYS, (first, last, count), work.STATEMENT + most * work.DAY)
        found = [Day(*row) for row in zip(numbers(days), numbers(envelopes), strict=True)]
        self._give_back((most - len(found)) * work.DAY)
        return found

    async def topics_of_days(
        self, group: Sequence[Day], thirds: bytes, above: bytes, count: int
    ) -> tuple[Callable[[], Sequence[int]], bytes]:
        """List topics of days whose third byte is one of `thirds`, `count` at most.

        Args:
            group: the days, newest first; all that have envelopes, from the first to the last of them.
            above: of the first of `thirds`, only topics that are higher than this.
        Returns:
            What says the day of each, and the topics, one after the other.
        """
        slots = slots_for(len(thirds))
        bytes_and_above = [(thirds[:1], above), *((bytes([byte]), b"") for byte in thirds[1:])]
        parameters: list[object] = [value for each in bytes_and_above for value in each]
        parameters += [None] * (2 * slots - len(parameters))  # these match nothing
        places = work.STATEMENT + len(group) * len(thirds) * work.PAIR
        days, topics = await self._run(
            _TOPICS[slots], (*parameters, group[-1].day, group[0].day, count), places + count * work.TOPIC
        )
        topics = topics or b""
        self._give_back((count - len(topics) // TOPIC_BYTES) * work.TOPIC)
        return partial(numbers, days), topics

    async def of_pairs(self, pairs: Sequence[Pair], within: PlaceRange, rows: int) -> tuple[Keys, int]:
        """Find all envelopes of the first of these pairs; return them, and of how many pairs they are.

        A pair of which there are too many for `rows` ends it, and has none among them.
        """
        if len(pairs) == 1:
            return Keys(), 0
        slots = slots_for(len(pairs))
        parameters: list[object] = [value for pair in pairs for value in pair]
        parameters += [None] * (2 * slots - len(parameters))  # these match nothing
        # Most topics have few envelopes a day. If a phone's request were queued by the most that it can take, it would
        # wait behind all that ask for whole pages.
        least = work.STATEMENT + len(pairs) * work.PAIR
        most = least + rows * work.ROW
        *packed, slots_found = await self._run(_OF_PAIRS[slots], (*parameters, *within, rows), most, least)
        keys = PackedKeys(*packed).unpack()
        self._give_back((rows - len(keys)) * work.ROW)
        if len(keys) < rows:
            return keys, len(pairs)
        last = max(slots_found)
        self._give_back((len(pairs) - last - 1) * work.PAIR)
        return Keys.of([*compress(keys, [slot < last for slot in slots_found])]), last

    async def of_pair(self, pair: Pair, within: PlaceRange, rows: int) -> Keys:
        """Find the first `rows` envelopes of one pair."""
        least = work.STATEMENT + work.PAIR
        most = least + rows * work.ROW
        keys = PackedKeys(*await self._run(_OF_PAIR, (*pair, *within, rows), most, least)).unpack()
        self._give_back((rows - len(keys)) * work.ROW)
        return keys

    async def _run(self, sql: str, parameters: Sequence[object], most: int, likely: int | None = None) -> sqlite3.Row:
        """Run a statement that packs its rows; return the one that it makes of them. NULL columns stand for no rows."""
        (row,) = await self._connection.run(sql, parameters, most, likely)
        self.work += most
        return row

    def _give_back(self, unused: int) -> None:
        """The statement before has looked at so much less than it was paid for."""
        self.work -= unused
        self._connection.correct(-unused)
