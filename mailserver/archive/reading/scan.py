"""Looks through the keys of row groups for wanted envelopes. It runs in a thread, and reads nothing itself."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple
from weakref import ref

import numpy as np

from mailserver.archive.index.columns import Numbers
from mailserver.archive.reading.row_groups import GroupKeys, RowGroup
from mailserver.store.interface import Place
from mailserver.waku.bloom import FULL_INTEREST, Interest, Matcher
from mailserver.waku.envelope import HASH_BYTES, EnvelopeHash


class Match(NamedTuple):
    """A wanted envelope: its place in the answer, and where it is. Matches sort by their places."""

    created: int
    hash: EnvelopeHash
    size: int
    row: int
    group: RowGroup

    @property
    def place(self) -> Place:
        """Its place in the order of answers."""
        return self.created, self.hash


_place = itemgetter(0, 1)  # of thousands of matches: a property takes five times as long


class Candidate(NamedTuple):
    """A row group that may have wanted envelopes.

    `created`: no wanted envelope of it was created before the first time or after the second. `runs`: the rows of each
    wanted topic, from the first to the one after the last; None if only the keys tell, or if all topics are wanted.
    """

    group: RowGroup
    created: tuple[int, int]
    runs: Sequence[tuple[int, int]] | None


@dataclass(frozen=True, slots=True)
class WantedEnvelopes:
    """What a search wants: envelopes of some topics, strictly between two places.

    `above`, `below`: the places. `most`: the newest ones are enough, at most so many. `seconds`: only those that were
    created in one of these; None for all.
    """

    interest: Interest
    above: Place
    below: Place
    most: int
    seconds: Numbers | None = None

    def beside(self, best: Sequence[Match]) -> "WantedEnvelopes":
        """Return what is still wanted after these were found. If they fill the page, nothing older than the last is."""
        return replace(self, above=max(self.above, best[-1].place)) if len(best) == self.most else self


def matches(candidate: Candidate, keys: GroupKeys, wanted: WantedEnvelopes) -> list[Match]:
    """Return the newest wanted envelopes of a row group, in no particular order."""
    low, high = wanted.above[0], wanted.below[0]
    if wanted.interest == FULL_INTEREST:
        rows = np.flatnonzero((keys.created >= low) & (keys.created <= high))
    else:
        runs = _runs_of(keys, wanted.interest) if candidate.runs is None else candidate.runs
        parts = [_between(keys, start, end, low, high) for start, end in runs]
        rows = np.concatenate(parts) if parts else np.empty(0, np.int64)
    created = keys.created[rows]
    if wanted.seconds is not None:
        is_wanted = np.isin(created, wanted.seconds)
        rows, created = rows[is_wanted], created[is_wanted]
    # At the two ends hashes decide. There may be any number of envelopes of one second: strangers say when.
    is_end = (created == low) | (created == high)
    if is_end.any():
        is_in = ~is_end
        for at in np.flatnonzero(is_end):
            is_in[at] = wanted.above < (int(created[at]), keys.hashes[rows[at]].tobytes()) < wanted.below
        rows, created = rows[is_in], created[is_in]
    if len(rows) > wanted.most:
        last = np.partition(created, -wanted.most)[-wanted.most]
        newer, of_last = rows[created > last], rows[created == last]
        by_hash = sorted(of_last.tolist(), key=lambda row: keys.hashes[row].tobytes(), reverse=True)
        rows = np.append(newer, by_hash[: wanted.most - len(newer)])
    group = candidate.group
    return [
        Match(int(keys.created[row]), EnvelopeHash(keys.hashes[row].tobytes()), int(keys.sizes[row]), int(row), group)
        for row in rows
    ]


def first(most: int, found: Iterable[Match]) -> list[Match]:
    """Sort what was found and return the first ones. An envelope that is in two periods is returned once."""
    by_place = {_place(match): match for match in found}
    return [by_place[place] for place in sorted(by_place, reverse=True)[:most]]


@lru_cache(maxsize=32)
def matcher_of(bloom: bytes) -> Matcher:
    """Return the matcher of a filter. To make one takes as long as to ask it about a thousand topics."""
    return Matcher(bloom)


def _runs_of(keys: GroupKeys, interest: Interest) -> Iterable[tuple[int, int]]:
    """Return the rows of each wanted topic of a row group, by its keys."""
    ends = keys.topic_ends.tolist()
    runs = zip(keys.topics, [0, *ends], ends, strict=False)
    if interest.topics is None:
        marks = matcher_of(interest.bloom).marks(b"".join(keys.topics))
        return ((start, end) for (_, start, end), mark in zip(runs, marks, strict=True) if mark)
    topics = interest.topics
    return ((start, end) for topic, start, end in runs if topic in topics)


def _between(keys: GroupKeys, start: int, end: int, low: int, high: int) -> Numbers:
    """Return the rows of a topic created from `low` to `high`. Within a topic, rows are in the order of time."""
    created = keys.created[start:end]
    first, last = np.searchsorted(created, low, "left"), np.searchsorted(created, high, "right")
    return np.arange(start + first, start + last, dtype=np.int64)


@dataclass(slots=True)
class WantedMatches:
    """Matches in order, in columns, which take less memory while a slow client reads its page.

    `known`: their row groups. These are kept only as long as somebody else keeps them, as the cache does: with their
    footers, those of a page may take megabytes.
    """

    created: "array[int]" = field(default_factory=lambda: array("q"))
    hashes: bytes = b""
    sizes: "array[int]" = field(default_factory=lambda: array("q"))
    rows: "array[int]" = field(default_factory=lambda: array("q"))
    groups: "array[int]" = field(default_factory=lambda: array("q"))
    known: "tuple[ref[RowGroup], ...]" = ()

    @classmethod
    def of(cls, found: Iterable[Match]) -> "WantedMatches":
        """Put matches into columns."""
        found = [*found]
        numbers: dict[RowGroup, int] = {}
        for match in found:
            numbers.setdefault(match.group, len(numbers))
        return cls(
            array("q", [match.created for match in found]),
            b"".join(match.hash for match in found),
            array("q", [match.size for match in found]),
            array("q", [match.row for match in found]),
            array("q", [numbers[match.group] for match in found]),
            tuple(map(ref, numbers)),
        )

    def __len__(self) -> int:
        return len(self.created)

    def place(self, at: int) -> Place:
        """The place of a match, by its number."""
        return self.created[at], EnvelopeHash(self.hashes[at * HASH_BYTES : (at + 1) * HASH_BYTES])

    def some(self, start: int, end: int) -> list[Match] | None:
        """Some matches, by their numbers; None if one of their row groups is not kept any more."""
        known = {number: self.known[number]() for number in {*self.groups[start:end]}}
        found: list[Match] = []
        for at in range(start, end):
            group = known[self.groups[at]]
            if group is None:
                return None
            found.append(Match(*self.place(at), self.sizes[at], self.rows[at], group))
        return found

    def found_again(self, at: int, found: Iterable[Match]) -> "WantedMatches":
        """Matches of which those from a number on were found again. Those before are read: their places are left."""
        rest = WantedMatches.of(found)
        rest.created = self.created[:at] + rest.created
        rest.hashes = self.hashes[: at * HASH_BYTES] + rest.hashes
        rest.sizes = self.sizes[:at] + rest.sizes
        rest.rows = self.rows[:at] + rest.rows
        rest.groups = array("q", bytes(at * rest.groups.itemsize)) + rest.groups
        return rest
