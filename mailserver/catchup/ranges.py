"""Ranges of creation times that are still to be asked for, newest first, and which ranges to ask for at all.

All times are Unix seconds, all bounds inclusive. Nothing here knows the source: what is asked of each is its own list.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from mailserver.mail.request import Cursor

WINDOW_S = 86_400
"""How many seconds of creation times are asked for at once. The deployed Go server refuses bounds that are more than
24 h apart; with OVERLAP_S they are exactly that."""

OVERLAP_S = 1
"""By how much a request reaches beyond its window: some servers leave the upper bound itself out."""

LATE_S = 600
"""How long after its creation an envelope may still be on its way: deployed clients send with a ttl of 10 to 50 s,
and clocks differ. What was created so long before a moment has arrived by then."""

MAX_RANGES = 32
"""Most ranges that one source may owe us. There are more only if ever new stretches are asked for while it is down."""


@dataclass(frozen=True, slots=True)
class Range:
    """Envelopes created from `lower` to `upper`; with a cursor, only what the source has behind it."""

    lower: int
    upper: int
    cursor: Cursor | None = None

    @property
    def seconds(self) -> int:
        """How much time it spans."""
        return self.upper - self.lower + 1

    def covers(self, other: "Range") -> bool:
        """Whether whoever asks for all of this one need not ask for the other one, too."""
        return self.cursor is None and self.lower <= other.lower and other.upper <= self.upper


def merge(ranges: Iterable[Range]) -> list[Range]:
    """Join ranges without cursors that overlap or touch; newest first."""
    merged: list[Range] = []
    for part in sorted(ranges, key=lambda part: part.lower):
        if merged and part.lower <= merged[-1].upper + 1:
            merged[-1] = Range(merged[-1].lower, max(merged[-1].upper, part.upper))
        else:
            merged.append(part)
    return merged[::-1]


def unite(ranges: Iterable[Range]) -> list[Range]:
    """Put together what is to be asked for, newest first.

    A range with a cursor stays as it is, unless another covers it. Of more than MAX_RANGES one is made that spans
    them all: to ask for something twice is harmless.
    """
    ranges = list(ranges)
    whole = merge(part for part in ranges if part.cursor is None)
    begun = {part for part in ranges if part.cursor is not None}
    united = whole + [part for part in begun if not any(other.covers(part) for other in whole)]
    if len(united) > MAX_RANGES:
        return [Range(min(part.lower for part in united), max(part.upper for part in united))]
    return sorted(united, key=lambda part: (part.upper, part.lower), reverse=True)


def cut_window(newest: Range) -> tuple[Range, Range | None]:
    """Cut the newest window, that one request may span, off a range; return it and the rest."""
    lower = newest.upper - WINDOW_S + 1
    if newest.cursor is not None or newest.lower >= lower:  # one with a cursor is a window already
        return newest, None
    return Range(lower, newest.upper), Range(newest.lower, lower - 1)


def not_yet_asked(wanted: Range, asked: Iterable[Range]) -> list[Range]:
    """What of a range has not been asked for; the last LATE_S of each range that was count as not asked.

    Those ended at the present of their time, when not all of the newest envelopes had come.
    """
    parts = [wanted]
    for done in asked:
        remaining: list[Range] = []
        for part in parts:
            if part.upper < done.lower or done.upper < part.lower:
                remaining.append(part)
                continue
            if part.lower < done.lower:
                remaining.append(Range(part.lower, done.lower - 1))
            if done.upper < part.upper:
                remaining.append(Range(max(part.lower, done.upper - LATE_S + 1), part.upper))
        parts = remaining
    return parts


def missed_range(last_received: int | None, now: int, silent_s: int) -> Range:
    """Which creation times may be missing after a downtime.

    Args:
        last_received: when the store took its last envelope, by our clock; None for an empty store.
        now: Unix seconds.
        silent_s: for how long from now on not everybody sends us what is new yet.
    """
    since = 0 if last_received is None else max(last_received - LATE_S, 0)
    return Range(min(since, now), now + silent_s)
