"""Finding envelopes: by day, newest first, until a page is full.

A search is a sequence of short statements (`store.engine.lookups`), because strangers choose what is stored and what is
asked for. Between two of them other requests are served (`store.sqlite.reader_pool`). So nothing here may read all that
matches only to find the first of it.

What is wanted of a day is found in one of two ways, whichever is less work as far as that is known: its wanted topics
are looked up, or all its envelopes are scanned in order of time. For a bloom filter, the topics have to be found first,
among those that the day has. If they are too many, the day is scanned, for as long as the request may go on. Then the
page ends early, and the next one continues there. A page of topics ends only when it is full, or all is found.
"""

from collections.abc import Callable, Sequence
from itertools import compress, repeat, takewhile

from mailserver.store.engine import work
from mailserver.store.engine.fitting import first_of
from mailserver.store.engine.keys import HASH_PREFIX_BYTES, FoundKeys, Keys, pieces
from mailserver.store.engine.lookups import MAX_LOOKUPS, Day, Lookups, Pair, PlaceRange
from mailserver.store.interface import GoesOn, Query
from mailserver.units import SECONDS_PER_DAY
from mailserver.waku.bloom import BLOOM_BYTES, FULL_INTEREST, Interest, Matcher, as_integer
from mailserver.waku.envelope import TOPIC_BYTES

MAX_ROWS = 2000
"""Most envelopes that a statement looks at: some 3 ms."""

MIN_ROWS = 64
"""Fewest envelopes that are scanned at once: they take no longer than an empty statement does."""

MAX_TOPICS = 8000
"""Most topics of days that a statement looks at: some 3 ms."""

MAX_TOPICS_OF_DAY = 200_000
"""Most topics of one day that are looked at to find those that a bloom filter admits: half of what a page may take."""

MAX_PAIRS = 8192
"""Most topics that are looked up in some days for a bloom filter: a page cannot end among them. If there are more, the
days are scanned."""

MAX_DAYS = 128
"""Most days that are looked at together."""

MAX_PLACES = 2048
"""Most places in an index, days times values of a third byte, at which a statement looks for topics: some 3 ms."""

DAYS_AT_ONCE = 1024
"""How many days are listed at once. Strangers can store envelopes that claim to have been created long ago."""


class KeySearch:
    """The search for one page."""

    def __init__(self, lookups: Lookups, query: Query, limit: int, goes_on: GoesOn) -> None:
        """Look for the first `limit` matches.

        Args:
            goes_on: asked where a search by bloom filter could end early. Once it says no, it always does.
        """
        self._lookups = lookups
        self._interest = query.interest
        self._limit = limit
        self._goes_on = goes_on
        self._found = Keys()
        self._read_bytes = query.read_bytes
        self._rest = range_of(query)  # still to be searched: everything at its upper end or above has been
        self._span = 1
        self._marks = topic_marks(query.interest)
        self._thirds, self._chance = b"", 0.0
        if query.interest.topics is None and query.interest != FULL_INTEREST:
            bloom = query.interest.bloom
            self._thirds, self._chance = _admitted_third_bytes(bloom), _chance(bloom)

    async def page(self) -> FoundKeys:
        """Search until the page is full, nothing is left, or it may not go on."""
        is_early = False
        if self._interest == FULL_INTEREST:
            if self._read_bytes and (read := await self._read_at_once()):
                return read
            await self._everything()
        elif self._interest.topics is None or self._interest.topics:
            is_early = await self._by_day()
        if len(self._found) > self._limit:
            return FoundKeys(self._found.first(self._limit), more=True)
        return FoundKeys(self._found, more=is_early, reached=self._rest.high if is_early else None)

    @property
    def _lacking(self) -> int:
        """How many are not found yet. One more than the limit is wanted: it tells whether there are more."""
        return self._limit + 1 - len(self._found)

    @property
    def _must_end(self) -> bool:
        return self._interest.topics is None and not self._goes_on(self._lookups.work)

    async def _read_at_once(self) -> FoundKeys | None:
        """Read the first of all there is, in order of time, with one statement: as much as it may read. None: the first
        envelope is too long for that."""
        rows = min(self._lacking, MAX_ROWS)
        found, raws = await self._lookups.read_by_time(self._rest, rows, self._read_bytes)
        count = min(rows - 1, len(raws.sizes))  # the last row only tells whether there are more
        if found and not count:
            return None
        return FoundKeys(found.first(count), more=len(found) > count, raws=first_of(raws, count))

    async def _everything(self) -> None:
        """Find all there is, in order of time."""
        while self._lacking > 0:
            rows = min(self._lacking, MAX_ROWS)
            keys = await self._lookups.by_time(self._rest, rows)
            self._found += keys
            if len(keys) < rows:
                return
            self._rest = self._rest.below(keys.last_place)

    async def _by_day(self) -> bool:
        """Find what is wanted day by day; return whether it ends before all days were searched."""
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

    async def _days(self) -> list[Day]:
        """The next days that have envelopes, newest first."""
        first = self._rest.low_created // SECONDS_PER_DAY
        last = (self._rest.high_created - (not self._rest.high_hash)) // SECONDS_PER_DAY
        return await self._lookups.days(first, last, DAYS_AT_ONCE)

    async def _by_topics(self, days: Sequence[Day]) -> int:
        """Find what is wanted of the first of these days; return of how many."""
        topics = self._interest.topics or ()
        group = days[: max(1, min(MAX_DAYS, MAX_LOOKUPS // len(topics)))]
        each = len(topics) * work.PAIR
        if sum(day.envelopes for day in group) * work.ROW < each * len(group):
            following = takewhile(lambda day: day.envelopes * work.ROW < each, days[len(group) :])
            return await self._scan([*group, *following])
        return await self._look_up([(day.day, topic) for day in group for topic in topics], group)

    async def _by_bloom(self, days: Sequence[Day]) -> int:
        """Find what is wanted of the first of these days; return of how many, 0 if it ends within the first."""
        dense = [*takewhile(self._is_sooner_scanned, days)]
        if dense:
            return await self._scan(dense)
        group = days[: max(1, min(self._span, MAX_PLACES // max(1, len(self._thirds))))]
        pairs = await self._matching_topics(group)
        if pairs is None and len(group) > 1:
            self._span, group = 1, group[:1]
            pairs = await self._matching_topics(group)
        if pairs is None:
            return await self._scan(group)
        if len(pairs) <= MAX_LOOKUPS // 2:
            self._span = min(MAX_DAYS, 2 * self._span)  # few topics in so many days: look at more together
        # In the order of a set, which nobody can foresee. Strangers choose the order in which topics were filled: each
        # might have newer envelopes than the one before, and all would be read.
        return await self._look_up([*frozenset(pairs)], group)

    def _is_sooner_scanned(self, day: Day) -> bool:
        """Whether it is likely less work to scan a day than to find those of its topics that the filter admits."""
        rows = day.envelopes if not self._chance else min(day.envelopes, self._lacking / self._chance)
        return rows * work.ROW <= len(self._thirds) * (work.PAIR + day.envelopes * work.TOPIC / 256)

    async def _matching_topics(self, group: Sequence[Day]) -> list[Pair] | None:
        """The pairs (day, topic) of these days that the bloom filter admits; None if there are too many of them to find
        or to look up."""
        newest = group[0]
        pairs: list[Pair] = []
        thirds, above, looked_at = self._thirds, b"", 0
        while thirds:
            days, topics = await self._lookups.topics_of_days(group, thirds, above, MAX_TOPICS)
            count = len(topics) // TOPIC_BYTES
            marks = self._marks(topics)
            if any(marks):
                of_days = repeat(newest.day, count) if len(group) == 1 else days()
                pairs += compress(zip(of_days, pieces(topics, TOPIC_BYTES), strict=True), marks)
            looked_at += count
            if len(pairs) > MAX_PAIRS or (len(group) == 1 and len(pairs) * work.PAIR > newest.envelopes * work.ROW):
                return None
            if count < MAX_TOPICS:
                break
            if len(group) > 1 or looked_at >= MAX_TOPICS_OF_DAY or self._must_end:
                return None
            above = topics[-TOPIC_BYTES:]
            thirds = thirds[thirds.index(above[2]) :]
        return pairs

    async def _look_up(self, pairs: Sequence[Pair], group: Sequence[Day]) -> int:
        """Find the first envelopes of these topics on the days of the group; return how many days these are."""
        end = group[-1].day * SECONDS_PER_DAY, b""
        within, want, best, at = self._rest.above(end), self._lacking, Keys(), 0
        while at < len(pairs):
            part = pairs[at : at + MAX_LOOKUPS]
            keys, count = await self._lookups.of_pairs(part, within, MAX_ROWS)
            best = _first(want, best, keys)
            if count < len(part):  # the next pair alone has many
                within = within.above(best.last_place) if len(best) >= want else within
                best = _first(want, best, await self._of_pair(part[count], within, want))
                count += 1
            if len(best) >= want:  # what is older than the last of these is not wanted any more
                within = within.above(best.last_place)
            at += count
        self._found += best
        self._rest = self._rest.below(end)
        return len(group)

    async def _of_pair(self, pair: Pair, within: PlaceRange, want: int) -> Keys:
        """The first envelopes of one pair."""
        found = Keys()
        while len(found) < want:
            rows = min(want - len(found), MAX_ROWS)
            keys = await self._lookups.of_pair(pair, within, rows)
            found += keys
            if len(keys) < rows:
                break
            within = within.below(keys.last_place)
        return found

    async def _scan(self, days: Sequence[Day]) -> int:
        """Find what is wanted of these days by reading their envelopes in order of time; return how many days these
        are, 0 if it ends before."""
        end = days[-1].day * SECONDS_PER_DAY, b""
        while True:
            likely = self._lacking / self._chance if self._chance else MAX_ROWS
            rows = MAX_ROWS if self._interest.topics else int(max(MIN_ROWS, min(MAX_ROWS, 1.2 * likely)))
            packed, topics = await self._lookups.by_time_with_topics(self._rest.above(end), rows)
            marks = self._marks(topics)
            if any(marks):
                self._found += Keys.of([*compress(packed.unpack(), marks)])
            if len(topics) // TOPIC_BYTES < rows:
                self._rest = self._rest.below(end)
                return len(days)
            self._rest = self._rest.below(packed.last_place)
            if self._lacking <= 0 or self._must_end:
                return 0


def range_of(query: Query) -> PlaceRange:
    """Where a query's envelopes can be."""
    within = PlaceRange(query.lower, b"", query.upper + 1, b"")
    if query.below is None:
        return within
    created, prefix = query.below[0], query.below[1][:HASH_PREFIX_BYTES]
    # Zeros stand for no hash: a page can end between two days.
    return within.below((created, prefix if any(prefix) else b""))


def topic_marks(interest: Interest) -> Callable[[bytes], bytes]:
    """What makes a byte for each of some topics, which stand one after the other: not 0 if the topic is wanted."""
    if interest == FULL_INTEREST:
        return lambda topics: b"\1" * (len(topics) // TOPIC_BYTES)
    if interest.topics is None:
        return Matcher(interest.bloom).marks
    wanted = interest.topics
    return lambda topics: bytes(topic in wanted for topic in pieces(topics, TOPIC_BYTES))


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
    """How likely a filter is to admit a topic of three random bits."""
    return float((as_integer(bloom).bit_count() / (8 * BLOOM_BYTES)) ** 3)
