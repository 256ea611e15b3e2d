"""Looking through the keys of one row group for what a search wants. Runs in a thread; nothing is read here."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from mailserver.archive.index.columns import Numbers
from mailserver.archive.reading.row_groups import GroupKeys, RowGroup
from mailserver.store.interface import Place
from mailserver.waku.bloom import FULL_INTEREST, Interest, Matcher
from mailserver.waku.envelope import HASH_BYTES, EnvelopeHash


class Match(NamedTuple):
    """An envelope that a search wants: its place, and where it is. They sort by their places."""

    created: int
    hash: EnvelopeHash
    size: int
    row: int
    group: RowGroup

    @property
    def place(self) -> Place:
        """Where it stands in the order of answers."""
        return self.created, self.hash


_place = itemgetter(0, 1)  # of thousands of matches: a property takes five times as long


class Candidate(NamedTuple):
    """A row group that may have something of what is wanted.

    `created`: from when to when that was created, inclusive, as far as it is known beforehand. `runs`: from which row
    to before which its wanted topics go, one after the other; None where only its keys tell, or where all are wanted.
    """

    group: RowGroup
    created: tuple[int, int]
    runs: Sequence[tuple[int, int]] | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a search wants: of these topics, and strictly between two places.

    `above`, `below`: the places. `most`: no more than so many, the newest.
    """

    interest: Interest
    above: Place
    below: Place
    most: int

    def beside(self, best: Sequence[Match]) -> "Wanted":
        """What is still wanted once these were found: nothing that is older than all of a full page."""
        return replace(self, above=max(self.above, best[-1].place)) if len(best) == self.most else self


def matches(candidate: Candidate, keys: GroupKeys, wanted: Wanted) -> list[Match]:
    """The newest envelopes of a row group that are wanted, in no order."""
    low, high = wanted.above[0], wanted.below[0]
    if wanted.interest == FULL_INTEREST:
        rows = np.flatnonzero((keys.created >= low) & (keys.created <= high))
    else:
        runs = _runs_of(keys, wanted.interest) if candidate.runs is None else candidate.runs
        parts = [_between(keys, start, end, low, high) for start, end in runs]
        rows = np.concatenate(parts) if parts else np.empty(0, np.int64)
    created = keys.created[rows]
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
    """The first of what was found, in order, each once: what is in two periods is one envelope."""
    by_place = {_place(match): match for match in found}
    return [by_place[place] for place in sorted(by_place, reverse=True)[:most]]


@lru_cache(maxsize=32)
def matcher_of(bloom: bytes) -> Matcher:
    """What tells which topics a filter matches; to make one takes as long as to ask it about a thousand topics."""
    return Matcher(bloom)


def _runs_of(keys: GroupKeys, interest: Interest) -> Iterable[tuple[int, int]]:
    """Where the rows of a row group's wanted topics are, by its keys."""
    ends = keys.topic_ends.tolist()
    runs = zip(keys.topics, [0, *ends], ends, strict=False)
    if interest.topics is None:
        marks = matcher_of(interest.bloom).marks(b"".join(keys.topics))
        return ((start, end) for (_, start, end), mark in zip(runs, marks, strict=True) if mark)
    topics = interest.topics
    return ((start, end) for topic, start, end in runs if topic in topics)


def _between(keys: GroupKeys, start: int, end: int, low: int, high: int) -> Numbers:
    """The rows of a topic that were created from `low` to `high`; within a topic they are in the order of time."""
    created = keys.created[start:end]
    first, last = np.searchsorted(created, low, "left"), np.searchsorted(created, high, "right")
    return np.arange(start + first, start + last, dtype=np.int64)


@dataclass(slots=True)
class Matches:
    """Matches in order, in columns: a page of them is kept while its client takes its time."""

    created: "array[int]" = field(default_factory=lambda: array("q"))
    hashes: bytes = b""
    sizes: "array[int]" = field(default_factory=lambda: array("q"))
    rows: "array[int]" = field(default_factory=lambda: array("q"))
    groups: "array[int]" = field(default_factory=lambda: array("q"))
    known: tuple[RowGroup, ...] = ()

    @classmethod
    def of(cls, found: Iterable[Match]) -> "Matches":
        """The same in columns."""
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
            tuple(numbers),
        )

    def __len__(self) -> int:
        return len(self.created)

    def __getitem__(self, at: int) -> Match:
        full_hash = EnvelopeHash(self.hashes[at * HASH_BYTES : (at + 1) * HASH_BYTES])
        return Match(self.created[at], full_hash, self.sizes[at], self.rows[at], self.known[self.groups[at]])
