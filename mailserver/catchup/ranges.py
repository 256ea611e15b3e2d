"""Ranges of creation times: which to ask for, and which of them are still to be asked for, newest first.

All times are Unix seconds, all bounds inclusive. Nothing here knows the source: each has a list of its own.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from mailserver.mail.request import Cursor

WINDOW_S = 86_400
"""How many seconds of creation times one request asks for. The deployed Go server refuses bounds that are more than
24 h apart; with OVERLAP_S they are exactly that far apart."""

OVERLAP_S = 1
"""How far a request reaches beyond its window: some servers leave out the upper bound itself."""

LATE_S = 600
"""How long after its creation an envelope may still be on its way: deployed clients send with a ttl of 10 to 50 s, and
clocks differ. What was created earlier than this has arrived by now."""

MAX_RANGES = 32
"""Most ranges that one source may owe us. More would come up only if new ranges were added again and again while the
source is down."""

MAX_ASIDE = 16
"""Most parts of one source that are set aside. If there are more, the nearest are joined."""


@dataclass(frozen=True, slots=True)
class MissingRange:
    """Envelopes created from `lower` to `upper`; with a cursor, only those that the source has behind it."""

    lower: int
    upper: int
    cursor: Cursor | None = None

    @property
    def seconds(self) -> int:
        """How much time it spans."""
        return self.upper - self.lower + 1

    def covers(self, other: "MissingRange") -> bool:
        """Whether asking for all of this one includes the other one."""
        return self.cursor is None and self.lower <= other.lower and other.upper <= self.upper


def merge(ranges: Iterable[MissingRange]) -> list[MissingRange]:
    """Join ranges without cursors that overlap or touch; newest first."""
    merged: list[MissingRange] = []
    for part in sorted(ranges, key=lambda part: part.lower):
        if merged and part.lower <= merged[-1].upper + 1:
            merged[-1] = MissingRange(merged[-1].lower, max(merged[-1].upper, part.upper))
        else:
            merged.append(part)
    return merged[::-1]


def unite(ranges: Iterable[MissingRange]) -> list[MissingRange]:
    """Put together what is to be asked for, newest first.

    A range with a cursor stays as it is, unless another one covers it. More than MAX_RANGES become a single one that
    spans them all: asking for something twice is harmless.
    """
    ranges = list(ranges)
    whole = merge(part for part in ranges if part.cursor is None)
    begun = {part for part in ranges if part.cursor is not None}
    united = whole + [part for part in begun if not any(other.covers(part) for other in whole)]
    if len(united) > MAX_RANGES:
        return [MissingRange(min(part.lower for part in united), max(part.upper for part in united))]
    return sorted(united, key=lambda part: (part.upper, part.lower), reverse=True)


def join_nearest(ranges: Iterable[MissingRange], most: int) -> list[MissingRange]:
    """Join the nearest of some ranges without cursors, with what is between them, until there are no more than `most`.

    The others stay in their order.
    """
    joined = list(ranges)
    while len(joined) > most:
        in_order = sorted(joined, key=lambda part: part.lower)
        one, other = min(pairwise(in_order), key=lambda pair: pair[1].lower - pair[0].upper)
        joined.remove(one)
        joined[joined.index(other)] = MissingRange(one.lower, max(one.upper, other.upper))
    return joined


def cut_window(newest: MissingRange, span_s: int = WINDOW_S) -> tuple[MissingRange, MissingRange | None]:
    """Cut the newest window, of `span_s` at most, off a range; return it and the rest."""
    lower = newest.upper - span_s + 1
    if newest.cursor is not None or newest.lower >= lower:  # one with a cursor is a window already
        return newest, None
    return MissingRange(lower, newest.upper), MissingRange(newest.lower, lower - 1)


def not_yet_asked(wanted: MissingRange, asked: Iterable[MissingRange]) -> list[MissingRange]:
    """The parts of a range that have not been asked for.

    The last LATE_S of each range in `asked` count as not asked for: it ended at the present of its time, when not all
    of the newest envelopes had arrived at the source.
    """
    parts = [wanted]
    for done in asked:
        remaining: list[MissingRange] = []
        for part in parts:
            if part.upper < done.lower or done.upper < part.lower:
                remaining.append(part)
                continue
            if part.lower < done.lower:
                remaining.append(MissingRange(part.lower, done.lower - 1))
            if done.upper < part.upper:
                remaining.append(MissingRange(max(part.lower, done.upper - LATE_S + 1), part.upper))
        parts = remaining
    return parts


def without(part: MissingRange, done: MissingRange) -> list[MissingRange]:
    """What is left to be asked for of a range, once another one has been given. A cursor stays only if nothing was."""
    upper = part.upper if part.cursor is None else min(part.upper, part.cursor.created)
    if upper < done.lower or done.upper < part.lower:
        return [part]
    left = [MissingRange(part.lower, done.lower - 1)] if part.lower < done.lower else []
    return [*left, MissingRange(done.upper + 1, upper)] if done.upper < upper else left


def missed_range(last_received: int | None, now: int, silent_s: int) -> MissingRange:
    """Which creation times may be missing after a downtime.

    Args:
        last_received: when the store took its last envelope, by our clock; None for an empty store.
        now: Unix seconds.
        silent_s: how long it takes from now on until all peers send us what is new.
    """
    since = 0 if last_received is None else max(last_received - LATE_S, 0)
    return MissingRange(min(since, now), now + silent_s)
