"""The ids of a store as a set to compare: a `reconcile.Storage` that is read, as far as it is needed, from `id_sums`.

The set is divided as the sums are: into days, these into hours, these into minutes, and a minute into pieces of some
hundred ids. What is asked for descends to one piece: to one statement at each level, or none if the part was read
before. So a fingerprint costs little, however many ids it is of. Parts are kept as long as the message is worked on,
up to a bound for each level: a message goes through the set in its order, and returns to no part.

Anybody can put any number of envelopes into one minute. Its ids are then read once, to add them up; what is kept of
them is a sum for each piece. Every statement reads no more rows than the bound.

Where a part is read, it must have as many ids as the sum says of it, and the same sum. So damage in what is used is
noticed; what lies between is for `check` to find.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol, TypeVar

from mailserver.reconcile.storage import fingerprint_of
from mailserver.reconcile.wire import TIMESTAMP_BYTES, bound_between
from mailserver.store.engine import work
from mailserver.store.engine.id_sums import ID_BYTES, MODULUS, SPANS, SumOfIds, as_numbers, sum_of_ids
from mailserver.store.engine.index_state import IndexDamaged
from mailserver.store.engine.keys import pieces

ROWS_AT_ONCE = 2000
"""Most rows that a statement reads: some 3 ms, with what is done with them."""

PIECE_IDS = 512
"""How many ids of a minute are added up to one sum, and read at once."""

KEPT_PARTS = 256
"""Of how many days, hours and minutes the parts are kept, and how many pieces: these take up to 10 MB."""

_PIECES = len(SPANS)
"""The level of a minute's pieces; that of the days is 0."""

_NO_STORE_HAS = 1 << 40
"""So many ids: a larger count is damaged, and might not be one that Python takes for a length."""


class IdTables(Protocol):
    """The tables of ids and of their sums, as a snapshot has them."""

    def sums(self, span: int, first: int, last: int, limit: int) -> tuple[list[int], list[int], bytes]:
        """The first `limit` buckets of a span from `first` to `last`, inclusive: bucket, count, and the sums, one after
        the other. Where a row is damaged, the columns may not fit each other."""

    def ids(self, created: int, item_id: bytes, end: int, limit: int) -> tuple[list[int], bytes]:
        """The first `limit` ids from a place on, created before `end`: seconds, and the ids, one after the other."""

    def spend(self, work: int) -> None:
        """Say how much work there was beside running statements."""


class _Parts(NamedTuple):
    """The parts of a time, in order.

    `starts`: the seconds in which they begin. `firsts`: for the pieces of a minute, their first keys instead.
    `counts[n]` and `sums[n]`: how many ids there are in the first n parts, and their sum, not reduced.
    """

    starts: Sequence[int]
    firsts: Sequence[bytes]
    counts: Sequence[int]
    sums: Sequence[int]

    @classmethod
    def of_times(cls, starts: Sequence[int], counts: Iterable[int], totals: Iterable[int]) -> "_Parts":
        """Make those of a time of how many ids each has, and of the sum of these."""
        return cls(starts, (), [*accumulate(counts, initial=0)], [*accumulate(totals, initial=0)])

    @classmethod
    def of_pieces(cls, firsts: Sequence[bytes], sums: Sequence[SumOfIds]) -> "_Parts":
        """Make those of a minute."""
        counts, totals = (each.ids for each in sums), (each.total for each in sums)
        return cls((), firsts, [*accumulate(counts, initial=0)], [*accumulate(totals, initial=0)])

    @property
    def whole(self) -> SumOfIds:
        """What all parts have."""
        return SumOfIds(self.counts[-1], self.sums[-1] % MODULUS)

    def part(self, at: int) -> SumOfIds:
        """What one of them has."""
        return SumOfIds(
            self.counts[at + 1] - self.counts[at],
            (self.sums[at + 1] - self.sums[at]) % MODULUS,
        )

    def with_index(self, index: int) -> int:
        """Which part the item with this index is in."""
        return bisect_right(self.counts, index) - 1


_Start = TypeVar("_Start", int, bytes)
_Part = TypeVar("_Part", _Parts, list[bytes])


class StoredIds:
    """A `reconcile.Storage`, which says what each method does: the ids of a time, as a snapshot has them.

    A timestamp is the second of creation. All methods raise IndexDamaged.
    """

    def __init__(self, tables: IdTables, lower: int, upper: int) -> None:
        """Read what days there are.

        Args:
            lower, upper: when envelopes were created, in Unix seconds, inclusive.
        Raises:
            IndexDamaged: what it says of the days cannot be read.
        """
        self._tables = tables
        self._lower, self._upper = lower, upper
        self._kept_parts: tuple[dict[int, _Parts], ...] = tuple({} for _ in SPANS)
        self._kept_pieces: dict[bytes, list[bytes]] = {}
        self._days = self._buckets(0, lower, upper)
        self._last_sum = 0, 0

    def __len__(self) -> int:
        return self._days.counts[-1]

    def key(self, index: int) -> bytes:
        """The key of an item: timestamp (8 bytes, big-endian), id."""
        piece, at = self._piece_with(index, self._days)
        return piece[at]

    def ids(self, start: int, stop: int) -> list[bytes]:
        """The ids of some items."""
        ids: list[bytes] = []
        while start + len(ids) < stop:
            piece, at = self._piece_with(start + len(ids), self._days)
            ids += (key[TIMESTAMP_BYTES:] for key in piece[at : at + stop - start - len(ids)])
        return ids

    def find(self, bound: bytes, start: int, stop: int) -> int:
        """The index of the first item from `start` on that is not below the bound, or `stop`."""
        second = int.from_bytes(bound[:TIMESTAMP_BYTES], "big")
        return min(max(self._count_below(bound, second, self._days), start), stop)

    def fingerprint(self, start: int, stop: int) -> bytes:
        """The fingerprint of some items, from the sums of those before them."""
        index, before = self._last_sum
        if index != start:
            before = self._sum_before(start, self._days)
        after = self._sum_before(stop, self._days)
        self._last_sum = stop, after  # the next range begins here
        return fingerprint_of(after - before, stop - start)

    def cut(self, index: int, slack: int) -> tuple[int, bytes]:
        """At the start of a day, an hour or a minute, if one is near: then no side reads what it is divided into."""
        parts, before = self._days, 0
        for level in range(len(SPANS)):
            at = parts.with_index(index - before)
            before += parts.counts[at]
            if index - before <= slack:
                return before, parts.starts[at].to_bytes(TIMESTAMP_BYTES, "big")
            parts = self._parts_of(parts, at, level)
        return index, bound_between(self.key(index - 1), self.key(index))

    def _count_below(self, bound: bytes, second: int, parts: _Parts, level: int = 0) -> int:
        """How many items of these parts are below a bound, which is in this second."""
        at = (bisect_right(parts.firsts, bound) if level == _PIECES else bisect_right(parts.starts, second)) - 1
        if at < 0:
            return 0
        count = parts.counts[at]
        if level == _PIECES:
            return count if parts.firsts[at] == bound else count + bisect_left(self._piece(parts, at), bound)
        start = parts.starts[at]
        if start == second and len(bound) == TIMESTAMP_BYTES:
            return count
        if second >= start + SPANS[level]:
            return parts.counts[at + 1]
        return count + self._count_below(bound, second, self._parts_of(parts, at, level), level + 1)

    def _sum_before(self, index: int, parts: _Parts, level: int = 0) -> int:
        """The sum of so many ids, the first of these parts."""
        at = parts.with_index(index)
        total, index = parts.sums[at], index - parts.counts[at]
        if not index:
            return total
        if level == _PIECES:
            return total + _sum_of_keys(self._piece(parts, at)[:index]).total
        return total + self._sum_before(index, self._parts_of(parts, at, level), level + 1)

    def _piece_with(self, index: int, parts: _Parts, level: int = 0) -> tuple[list[bytes], int]:
        """The piece of these parts that has an item, and where in it."""
        at = parts.with_index(index)
        index -= parts.counts[at]
        if level == _PIECES:
            return self._piece(parts, at), index
        return self._piece_with(index, self._parts_of(parts, at, level), level + 1)

    def _parts_of(self, parts: _Parts, at: int, level: int) -> _Parts:
        """The hours of a day, the minutes of an hour, or the pieces of a minute, whose span is SPANS[level]."""
        inner = self._kept_parts[level].get(parts.starts[at])
        if inner is None:
            inner = self._inside(level, parts.starts[at])
            if inner.whole != parts.part(at):
                raise IndexDamaged
        return inner

    def _inside(self, level: int, start: int) -> _Parts:
        kept = self._kept_parts[level]
        if start not in kept:
            first, last = max(start, self._lower), min(start + SPANS[level] - 1, self._upper)
            is_minute = level == len(SPANS) - 1
            _keep(kept, start, self._pieces(first, last) if is_minute else self._buckets(level + 1, first, last))
        return kept[start]

    def _buckets(self, level: int, first: int, last: int) -> _Parts:
        """What `id_sums` has of the seconds from `first` to `last`, in buckets of SPANS[level]."""
        span = SPANS[level]
        buckets, counts, totals = self._sums(span, first // span, last // span)
        for at in (-1, 0) if len(buckets) > 1 else range(len(buckets)):
            start = buckets[at] * span
            if start < first or start + span - 1 > last:  # the set has a part of it
                counts[at], totals[at] = self._inside(level, start).whole
        return _Parts.of_times([bucket * span for bucket in buckets], counts, totals)

    def _sums(self, span: int, first: int, last: int) -> tuple[list[int], list[int], list[int]]:
        """The rows of some buckets, by columns."""
        columns: tuple[list[int], list[int], list[int]] = [], [], []
        while True:
            buckets, counts, sums = self._tables.sums(span, first, last, ROWS_AT_ONCE)
            if not len(buckets) == len(counts) == len(sums) / ID_BYTES:
                raise IndexDamaged
            if counts and not 0 < min(counts) <= max(counts) < _NO_STORE_HAS:
                raise IndexDamaged
            totals = as_numbers(pieces(sums, ID_BYTES))
            self._tables.spend(len(buckets) * work.SUM)
            for column, more in zip(columns, (buckets, counts, totals), strict=True):
                column.extend(more)
            if len(buckets) < ROWS_AT_ONCE:
                return columns
            first = buckets[-1] + 1

    def _pieces(self, first: int, last: int) -> _Parts:
        """The pieces of a minute, or of what is wanted of it: its seconds from `first` to `last`."""
        firsts, sums = list[bytes](), list[SumOfIds]()
        created, after = first, b""
        while True:
            keys = self._keys(created, after, last, ROWS_AT_ONCE)
            for at in range(0, len(keys), PIECE_IDS):
                piece = keys[at : at + PIECE_IDS]
                firsts.append(piece[0])
                sums.append(_sum_of_keys(piece))
                _keep(self._kept_pieces, piece[0], piece)
            if len(keys) < ROWS_AT_ONCE:
                return _Parts.of_pieces(firsts, sums)
            created, after = _place(keys[-1])
            after += b"\0"  # above this id, and not above the next

    def _piece(self, parts: _Parts, at: int) -> list[bytes]:
        """The keys of a piece."""
        first = parts.firsts[at]
        if first not in self._kept_pieces:
            keys = self._keys(*_place(first), self._upper, parts.counts[at + 1] - parts.counts[at])
            if _sum_of_keys(keys) != parts.part(at):
                raise IndexDamaged
            _keep(self._kept_pieces, first, keys)
        return self._kept_pieces[first]

    def _keys(self, created: int, item_id: bytes, last: int, limit: int) -> list[bytes]:
        """The first keys from a place on, up to the second `last`."""
        seconds, packed = self._tables.ids(created, item_id, last + 1, limit)
        if len(packed) != ID_BYTES * len(seconds):
            raise IndexDamaged
        ids = pieces(packed, ID_BYTES)
        self._tables.spend(len(seconds) * work.ROW)
        return [second.to_bytes(TIMESTAMP_BYTES, "big") + each for second, each in zip(seconds, ids, strict=True)]


def _keep(kept: dict[_Start, _Part], start: _Start, part: _Part) -> None:
    if len(kept) >= KEPT_PARTS:
        del kept[next(iter(kept))]
    kept[start] = part


def _place(key: bytes) -> tuple[int, bytes]:
    return int.from_bytes(key[:TIMESTAMP_BYTES], "big"), key[TIMESTAMP_BYTES:]


def _sum_of_keys(keys: Sequence[bytes]) -> SumOfIds:
    return sum_of_ids([key[TIMESTAMP_BYTES:] for key in keys])
