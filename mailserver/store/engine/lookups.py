"""What a search asks of the rows of a store, one statement at a time: `store.engine.search` decides which is next.

Every statement looks at no more rows than it is told to, and finds both ends of its range in an index. It is paid for
as if it had looked at all of them; when it is done, what it has not looked at is given back (`store.engine.work`).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from mailserver.store.engine.keys import KeyPlace, Keys
from mailserver.store.interface import Raws

MAX_LOOKUPS = 256
"""Most things that a statement looks up at once."""


class PlaceRange(NamedTuple):
    """All places from `low`, inclusive, to `high`, exclusive; each place as two columns.

    A database finds both ends in its index because two columns are compared at once. Given bounds of `created` and a
    place beside them, it would read all envelopes of that place's second, and there can be any number of them.
    """

    low_created: int
    low_hash: bytes
    high_created: int
    high_hash: bytes

    @property
    def high(self) -> KeyPlace:
        """The end: all places of the range are below it."""
        return self.high_created, self.high_hash

    def above(self, low: KeyPlace) -> "PlaceRange":
        """What of it is at `low` or above."""
        return self._replace(low_created=low[0], low_hash=low[1]) if low > self[:2] else self

    def below(self, high: KeyPlace) -> "PlaceRange":
        """What of it is below `high`."""
        return self._replace(high_created=high[0], high_hash=high[1]) if high < self.high else self


class Day(NamedTuple):
    """A day of creation (Unix seconds / 86400) and how many envelopes it has."""

    day: int
    envelopes: int


Pair = tuple[int, bytes]
"""A day, and a topic on it."""


class Scanned(Protocol):
    """Keys as a statement brings them: they are only made usable where some of them are wanted."""

    def unpack(self) -> Keys:
        """The same as keys."""

    @property
    def last_place(self) -> KeyPlace:
        """The place of the last of them; there is one."""


class Lookups(Protocol):
    """Runs statements for one search, and pays for them. All methods raise StoreError."""

    @property
    def work(self) -> int:
        """What the statements have taken so far."""

    async def by_time(self, within: PlaceRange, rows: int) -> Keys:
        """Find the first `rows` envelopes of a range."""

    async def read_by_time(self, within: PlaceRange, rows: int, max_bytes: int) -> tuple[Keys, Raws]:
        """Find the first `rows` envelopes of a range, and read the first of these, as long as all of them fit into
        `max_bytes`.

        It may be fewer than fit, and none: one that is far longer than the mean is not read with others.
        """

    async def by_time_with_topics(self, within: PlaceRange, rows: int) -> tuple[Scanned, bytes]:
        """Find the first `rows` envelopes of a range, and their topics, one after the other."""

    async def days(self, first: int, last: int, count: int) -> list[Day]:
        """List days that have envelopes, newest first, `count` at most."""

    async def topics_of_days(
        self, group: Sequence[Day], thirds: bytes, above: bytes, count: int
    ) -> tuple[Callable[[], Sequence[int]], bytes]:
        """List topics of days whose third byte is one of `thirds`, `count` at most: by day, then by that byte in the
        order given, then by topic.

        Args:
            group: the days, newest first; all that have envelopes, from the first to the last of them.
            above: of the first of `thirds`, only topics that are higher than this.
        Returns:
            What says the day of each, and the topics, one after the other.
        """

    async def of_pairs(self, pairs: Sequence[Pair], within: PlaceRange, rows: int) -> tuple[Keys, int]:
        """Find all envelopes of the first of these pairs, MAX_LOOKUPS at most; return them, and of how many pairs they
        are.

        A pair of which there are too many for `rows` ends it, and has none among them.
        """

    async def of_pair(self, pair: Pair, within: PlaceRange, rows: int) -> Keys:
        """Find the first `rows` envelopes of one pair."""
