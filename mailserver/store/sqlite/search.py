"""Finding envelopes: by day, newest first, until a page is full.

A search is a row of statements, each of which looks at a bounded number of rows: strangers choose what is stored, and
what is asked for. Between two of them others are served (`store.sqlite.reader_pool`). So nothing here may read all that
matches to find what is first of it, and each statement finds both ends of what it reads in an index. What a statement
has looked at is counted when it is done (`store.sqlite.work`).

What is wanted of a day is found in one of two ways, by what takes less work as far as it is known: its wanted topics
are looked up, or all its envelopes are gone through in order of time. For a bloom filter the topics have to be found
first, among those that the day has. Where they are too many, the day is gone through, for as long as the request may
take. Then the page ends early, and the next one goes on there; a page of topics ends only when it is full, or all is
found.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from itertools import compress, repeat, takewhile
from typing import NamedTuple, Protocol

from mailserver.store.interface import GoesOn, Query
from mailserver.store.sqlite import work
from mailserver.store.sqlite.keys import (
    SLOTS,
    Found,
    KeyPlace,
    Keys,
    numbers,
    packed_bytes,
    packed_numbers,
    pieces,
    slots_for,
)
from mailserver.store.sqlite.schema import HASH_PREFIX_BYTES
from mailserver.units import SECONDS_PER_DAY
from mailserver.waku.bloom import BLOOM_BYTES, FULL_INTEREST, Matcher, as_integer
from mailserver.waku.envelope import TOPIC_BYTES

MAX_ROWS = 2000
"""Most envelopes that a statement looks at: some 3 ms."""

LEAST_ROWS = 64
"""Fewest envelopes that are gone through at once: they take no longer than a statement does by itself."""

MAX_TOPICS = 8000
"""Most topics of days that a statement looks at: some 3 ms."""

MAX_TOPICS_OF_DAY = 200_000
"""Most topics of one day that are looked at to find those that a bloom filter admits: half of what a page may take."""

MAX_PAIRS = 8192
"""Most topics that a bloom filter has us look up in some days: a page cannot end among them. With more, the days are
gone through."""

MAX_DAYS = 128
"""Most days that are looked at together."""

MAX_PLACES = 2048
"""Most places in an index, days times values of a third byte, at which a statement looks for topics: some 3 ms."""

DAYS_AT_ONCE = 1024
"""How many days are listed at once. Strangers can store envelopes that say that they were created long ago."""


class Connection(Protocol):
    """What statements are run on: some read-only connection.

    Each runs in a read transaction of its own: none stays open while a client takes its time, or the WAL could not be
    reset.
    """

    async def run(
        self, sql: str, parameters: Sequence[object], work: int, likely: int | None = None
    ) -> Iterable[sqlite3.Row]:
        """Run a statement and return its rows.

        Args:
            work: what it takes, as far as it is known before.
            likely: what it likely takes, where `work` is the most that it may take.
        """

    def correct(self, work: int) -> None:
        """The statement before took so much more work, or less if it is below 0."""


class _Range(NamedTuple):
    """What lies from the place `low`, inclusive, to below the place `high`, each as two columns.

    As the comparison of two columns SQLite finds both in its index. Given bounds of `created` and a place beside, it
    would read all envelopes of the second of that place, and there can be any number of them.
    """

    low_created: int
    low_hash: bytes
    high_created: int
    high_hash: bytes

    @property
    def high(self) -> KeyPlace:
        return self.high_created, self.high_hash

    def above(self, low: KeyPlace) -> "_Range":
        return self._replace(low_created=low[0], low_hash=low[1]) if low > self[:2] else self

    def below(self, high: KeyPlace) -> "_Range":
        return self._replace(high_created=high[0], high_hash=high[1]) if high < self.high else self


_KEYS = f"{packed_numbers('created')}, {packed_bytes('hash')}, {packed_numbers('seq')}"
_WITHIN = "(created, hash) >= (?, ?) AND (created, hash) < (?, ?)"


def _by_topics(slots: int) -> str:
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


# All of some pairs (day, topic), one pair after the other. Where the limit is met, what is there of the last pair is
# the oldest of it, and of no use.
_BY_TOPICS = {slots: _by_topics(slots) for slots in SLOTS}
_BY_TOPIC = f"""
    SELECT {_KEYS} FROM (
        SELECT created, hash, seq FROM envelopes INDEXED BY envelopes_by_topic
        WHERE created / 86400 = ? AND topic = ? AND {_WITHIN}
        ORDER BY created DESC, hash DESC LIMIT ?
    )
"""
_BY_TIME = """
    SELECT {packed} FROM (
        SELECT created, hash, seq{topic} FROM envelopes INDEXED BY envelopes_by_time
        WHERE {within} ORDER BY created DESC, hash DESC LIMIT ?
    )
"""
_KEYS_BY_TIME = _BY_TIME.format(packed=_KEYS, topic="", within=_WITHIN)
_KEYS_AND_TOPICS_BY_TIME = _BY_TIME.format(packed=f"{_KEYS}, {packed_bytes('topic')}", topic=", topic", within=_WITHIN)
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


# The topics whose third byte has one of some values, on some days: by day, then by that byte as it is given, then by
# topic. The third byte leads, because `waku.bloom.mask_of` asks for its bit whatever the others are: so most of a day's
# topics are not even looked at.
_TOPICS = {slots: _topics(slots) for slots in SLOTS}

_Pair = tuple[int, bytes]
_Day = tuple[int, int]  # and how many envelopes it has


class Search:
    """The search for one page. `work` is what it has been so far."""

    def __init__(self, connection: Connection, query: Query, limit: int, goes_on: GoesOn) -> None:
        """Look for the first `limit` matches.

        Args:
            goes_on: asked where a search by bloom filter could end early. Once it says no, it always does.
        """
        self.work = 0
        self._connection = connection
        self._interest = query.interest
        self._limit = limit
        self._goes_on = goes_on
        self._found = Keys()
        # What remains to be looked at: all that is at its upper end or above has been.
        self._rest = _Range(query.lower, b"", query.upper + 1, b"")
        if query.below is not None:
            created, prefix = query.below[0], query.below[1][:HASH_PREFIX_BYTES]
            # Zeros stand for no hash: a page can end between two days.
            self._rest = self._rest.below((created, prefix if any(prefix) else b""))
        self._span = 1
        self._matcher: Matcher | None = None
        self._thirds, self._chance = b"", 0.0
        if query.interest.topics is None and query.interest != FULL_INTEREST:
            bloom = query.interest.bloom
            self._matcher, self._thirds, self._chance = Matcher(bloom), _admitted_third_bytes(bloom), _chance(bloom)

    async def page(self) -> Found:
        """Search until the page is full, nothing is left, or it may not go on."""
        is_early = False
        if self._interest == FULL_INTEREST:
            await self._everything()
        elif self._interest.topics is None or self._interest.topics:
            is_early = await self._by_day()
        if len(self._found) > self._limit:
            return Found(self._found.first(self._limit), more=True)
        return Found(self._found, more=is_early, reached=self._rest.high if is_early else None)

    @property
    def _lacking(self) -> int:
        """How many are not found yet: with one more than the limit, which tells whether there are more."""
        return self._limit + 1 - len(self._found)

    @property
    def _must_end(self) -> bool:
        return self._interest.topics is None and not self._goes_on(self.work)

    async def _run(self, sql: str, parameters: Sequence[object], most: int, likely: int | None = None) -> sqlite3.Row:
        """Run a statement that packs its rows; return the one it makes of them. Its columns are NULL for none."""
        (row,) = await self._connection.run(sql, parameters, most, likely)
        self.work += most
        return row

    def _spare(self, unused: int) -> None:
        """The statement before has looked at so much less than it might have."""
        self.work -= unused
        self._connection.correct(-unused)

    async def _everything(self) -> None:
        """Find all there is, in order of time."""
        while self._lacking > 0:
            rows = min(self._lacking, MAX_ROWS)
            packed = await self._run(_KEYS_BY_TIME, (*self._rest, rows), work.STATEMENT + rows * work.ROW)
            keys = Keys.unpacked(*packed)
            self._spare((rows - len(keys)) * work.ROW)
            self._found += keys
            if len(keys) < rows:
                return
            self._rest = self._rest.below(keys.last[:2])

    async def _by_day(self) -> bool:
        """Find what is wanted day by day; return whether it ends before all days were looked at."""
        take = self._by_bloom if self._interest.topics is None else self._by_topics
        is_last = False
        while not is_last:
            days = await self._days()
            is_last = len(days) < DAYS_AT_ONCE
            while days:
                days = days[await take(days) :]
                if self._lacking <= 0 or (is_last and not days):
                    return False
                if self._must_end:
                    return True
        return False

    async def _days(self) -> list[_Day]:
        """The next days that have envelopes, newest first."""
        rest = self._rest
        first = rest.low_created // SECONDS_PER_DAY
        last = (rest.high_created - (not rest.high_hash)) // SECONDS_PER_DAY
        most = max(0, min(last - first + 1, DAYS_AT_ONCE))
        days, envelopes = await self._run(_DAYS, (first, last, DAYS_AT_ONCE), work.STATEMENT + most * work.DAY)
        found = [*zip(numbers(days), numbers(envelopes), strict=True)]
        self._spare((most - len(found)) * work.DAY)
        return found

    async def _by_topics(self, days: Sequence[_Day]) -> int:
        """Find what is wanted of the first of these days; return of how many."""
        topics = self._interest.topics or ()
        group = days[: max(1, min(MAX_DAYS, SLOTS[-1] // len(topics)))]
        each = len(topics) * work.PAIR
        if sum(envelopes for _, envelopes in group) * work.ROW < each * len(group):
            following = takewhile(lambda day: day[1] * work.ROW < each, days[len(group) :])
            return await self._go_through([*group, *following])
        return await self._look_up([(day, topic) for day, _ in group for topic in topics], group)

    async def _by_bloom(self, days: Sequence[_Day]) -> int:
        """Find what is wanted of the first of these days; return of how many, 0 if it ends within the first."""
        dense = [*takewhile(self._is_sooner_gone_through, days)]
        if dense:
            return await self._go_through(dense)
        group = days[: max(1, min(self._span, MAX_PLACES // max(1, len(self._thirds))))]
        pairs = await self._matching_topics(group)
        if pairs is None and len(group) > 1:
            self._span, group = 1, group[:1]
            pairs = await self._matching_topics(group)
        if pairs is None:
            return await self._go_through(group)
        if len(pairs) <= SLOTS[-1] // 2:
            self._span = min(MAX_DAYS, 2 * self._span)  # few topics in so many days: look at more together
        # In the order of a set, which nobody can foresee: of topics in the order in which strangers have filled them,
        # each might have newer envelopes than the one before, and all would be read.
        return await self._look_up([*frozenset(pairs)], group)

    def _is_sooner_gone_through(self, day: _Day) -> bool:
        """Whether it likely takes less to go through a day than to find those of its topics that the filter admits."""
        _, envelopes = day
        rows = envelopes if not self._chance else min(envelopes, self._lacking / self._chance)
        return rows * work.ROW <= len(self._thirds) * (work.PAIR + envelopes * work.TOPIC / 256)

    async def _matching_topics(self, group: Sequence[_Day]) -> list[_Pair] | None:
        """The pairs (day, topic) of these days that the bloom filter admits; None if they are too many to be found, or
        to be looked up."""
        newest, envelopes = group[0]
        pairs: list[_Pair] = []
        thirds, above, looked_at = self._thirds, b"", 0
        while thirds:
            slots = slots_for(len(thirds))
            bytes_and_above = [(bytes([byte]), b"") for byte in thirds]
            bytes_and_above[0] = thirds[:1], above
            parameters: list[object] = [value for each in bytes_and_above for value in each]
            parameters += [None] * (2 * slots - len(parameters))  # what matches nothing
            places = work.STATEMENT + len(group) * len(thirds) * work.PAIR
            days, topics = await self._run(
                _TOPICS[slots], (*parameters, group[-1][0], newest, MAX_TOPICS), places + MAX_TOPICS * work.TOPIC
            )
            topics = topics or b""
            count = len(topics) // TOPIC_BYTES
            self._spare((MAX_TOPICS - count) * work.TOPIC)
            marks = self._marks(topics)
            if any(marks):
                of_days = repeat(newest, count) if len(group) == 1 else numbers(days)
                pairs += compress(zip(of_days, pieces(topics, TOPIC_BYTES), strict=True), marks)
            looked_at += count
            if len(pairs) > MAX_PAIRS or (len(group) == 1 and len(pairs) * work.PAIR > envelopes * work.ROW):
                return None
            if count < MAX_TOPICS:
                break
            if len(group) > 1 or looked_at >= MAX_TOPICS_OF_DAY or self._must_end:
                return None
            above = topics[-TOPIC_BYTES:]
            thirds = thirds[thirds.index(above[2]) :]
        return pairs

    async def _look_up(self, pairs: Sequence[_Pair], group: Sequence[_Day]) -> int:
        """Find the first envelopes of these topics on the days of the group; return how many days these are."""
        end = group[-1][0] * SECONDS_PER_DAY, b""
        within, want, best, at = self._rest.above(end), self._lacking, Keys(), 0
        while at < len(pairs):
            part = pairs[at : at + SLOTS[-1]]
            keys, count = await self._of_topics(part, within)
            best = _first(want, best, keys)
            if count < len(part):  # the next one has many by itself
                within = within.above(best.last[:2]) if len(best) >= want else within
                best = _first(want, best, await self._of_topic(part[count], within, want))
                count += 1
            if len(best) >= want:  # what is older than the last of these is not wanted any more
                within = within.above(best.last[:2])
            at += count
        self._found += best
        self._rest = self._rest.below(end)
        return len(group)

    async def _of_topics(self, pairs: Sequence[_Pair], within: _Range) -> tuple[Keys, int]:
        """All envelopes of the first of these pairs, and of how many: not of one that has too many."""
        if len(pairs) == 1:
            return Keys(), 0
        slots = slots_for(len(pairs))
        parameters: list[object] = [value for pair in pairs for value in pair]
        parameters += [None] * (2 * slots - len(parameters))  # pairs that match nothing
        # Most topics have few envelopes a day. Taken for what it may be at most, a phone's request would wait for all
        # that ask for whole pages.
        least = work.STATEMENT + len(pairs) * work.PAIR
        most = least + MAX_ROWS * work.ROW
        *packed, numbers_of_pairs = await self._run(_BY_TOPICS[slots], (*parameters, *within, MAX_ROWS), most, least)
        keys = Keys.unpacked(*packed)
        self._spare((MAX_ROWS - len(keys)) * work.ROW)
        if len(keys) < MAX_ROWS:
            return keys, len(pairs)
        last = max(numbers_of_pairs)
        self._spare((len(pairs) - last - 1) * work.PAIR)
        return Keys.of([*compress(keys, [number < last for number in numbers_of_pairs])]), last

    async def _of_topic(self, pair: _Pair, within: _Range, want: int) -> Keys:
        """The first envelopes of one pair."""
        found = Keys()
        while len(found) < want:
            rows = min(want - len(found), MAX_ROWS)
            least = work.STATEMENT + work.PAIR
            most = least + rows * work.ROW
            keys = Keys.unpacked(*await self._run(_BY_TOPIC, (*pair, *within, rows), most, least))
            self._spare((rows - len(keys)) * work.ROW)
            found += keys
            if len(keys) < rows:
                break
            within = within.below(keys.last[:2])
        return found

    async def _go_through(self, days: Sequence[_Day]) -> int:
        """Find what is wanted of these days by going through their envelopes in order of time; return how many days
        these are, 0 if it ends before."""
        end = days[-1][0] * SECONDS_PER_DAY, b""
        while True:
            likely = self._lacking / self._chance if self._chance else MAX_ROWS
            rows = MAX_ROWS if self._interest.topics else int(max(LEAST_ROWS, min(MAX_ROWS, 1.2 * likely)))
            most = work.STATEMENT + rows * work.ROW
            *packed, topics = await self._run(_KEYS_AND_TOPICS_BY_TIME, (*self._rest.above(end), rows), most)
            topics = topics or b""
            count = len(topics) // TOPIC_BYTES
            self._spare((rows - count) * work.ROW)
            marks = self._marks(topics)
            if any(marks):
                self._found += Keys.of([*compress(Keys.unpacked(*packed), marks)])
            if count < rows:
                self._rest = self._rest.below(end)
                return len(days)
            created, hashes, _ = packed
            self._rest = self._rest.below((int(created.rpartition(",")[2]), hashes[-HASH_PREFIX_BYTES:]))
            if self._lacking <= 0 or self._must_end:
                return 0

    def _marks(self, topics: bytes) -> bytes:
        """Which of these topics, one after the other, are wanted: not 0."""
        if self._matcher is not None:
            return self._matcher.marks(topics)
        wanted = self._interest.topics or ()
        return bytes(topic in wanted for topic in pieces(topics, TOPIC_BYTES))


def _first(count: int, found: Keys, more: Keys) -> Keys:
    """The first of both, in order."""
    if not found:
        return more.first(count)
    return Keys.of(sorted((*found, *more), reverse=True)[:count]) if more else found


def _admitted_third_bytes(bloom: bytes) -> bytes:
    """Which values the third byte of a matching topic can have: its bit is itself, plus 256 for half of the topics."""
    half = BLOOM_BYTES // 2
    return bytes(byte for byte in range(256) if (bloom[byte // 8] | bloom[half + byte // 8]) >> byte % 8 & 1)


def _chance(bloom: bytes) -> float:
    """How likely a filter admits a topic whose three bits are any."""
    return float((as_integer(bloom).bit_count() / (8 * BLOOM_BYTES)) ** 3)
