"""Which ranges of time history archives are made of: the same for every run and every control node.

Range k is [k * period, (k + 1) * period) since 1970 began; the period is seven days. Status-go counts from a
community's first message instead: so two of its control nodes cut the same history differently.
"""

from collections.abc import Collection, Iterable

from mailserver.communities.formats import TimeRange
from mailserver.units import SECONDS_PER_DAY

PERIOD_S = 7 * SECONDS_PER_DAY
"""How long a range is (61/STATUS "Serving community history archives")."""


def range_of(second: int, period_s: int = PERIOD_S) -> TimeRange:
    """The range in which a second lies."""
    lower = second - second % period_s
    return TimeRange(lower, lower + period_s)


def ended_ranges(first: int, now: int, *, settle_s: int = 0, period_s: int = PERIOD_S) -> list[TimeRange]:
    """The ranges from the one of `first` on that have ended, the first one first.

    After 30 days these are four: what has begun waits for its end.

    Args:
        first: Unix seconds, when the history begins.
        settle_s: how long after its end a range waits for late messages.
    """
    begin = range_of(first, period_s).lower
    end = range_of(now - settle_s, period_s).lower
    return [TimeRange(lower, lower + period_s) for lower in range(begin, end, period_s)]


def due_ranges(
    first: int,
    now: int,
    *,
    published: Collection[TimeRange],
    missing: Iterable[TimeRange] = (),
    settle_s: int = 0,
    period_s: int = PERIOD_S,
) -> list[TimeRange]:
    """The ranges of which history archives are to be made, the first one first.

    What was missed is fetched before (61/STATUS "Serving archives for missed messages"). Archives stand in ascending
    order. So the first range of which something is still missing ends the list.

    Args:
        published: those that have one.
        missing: the times of which messages are still being fetched.
    """
    open_times = [*missing]
    due = []
    for each in ended_ranges(first, now, settle_s=settle_s, period_s=period_s):
        if each in published:
            continue
        if any(each.overlaps(time) for time in open_times):
            break
        due.append(each)
    return due
