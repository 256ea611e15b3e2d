"""Which ranges of time history archives are made of, and when."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from mailserver.communities.formats import TimeRange
from mailserver.communities.ranges import PERIOD_S, due_ranges, ended_ranges, range_of
from mailserver.units import SECONDS_PER_DAY

DAY = SECONDS_PER_DAY
FIRST = 2800 * PERIOD_S
"""A moment at which a range begins."""


def weeks(*places: int) -> list[TimeRange]:
    return [TimeRange(FIRST + place * PERIOD_S, FIRST + (place + 1) * PERIOD_S) for place in places]


def test_ranges_are_seven_days_that_begin_on_thursdays() -> None:
    found = range_of(1_700_000_000)

    assert found.upper - found.lower == 7 * DAY
    assert datetime.fromtimestamp(found.lower, UTC).strftime("%A %H:%M:%S") == "Thursday 00:00:00"


@given(second=st.integers(0, 2**32), period_s=st.integers(1, 10 * PERIOD_S))
def test_every_second_lies_in_the_range_that_is_said(second: int, period_s: int) -> None:
    found = range_of(second, period_s)

    assert found.lower <= second < found.upper
    assert range_of(found.lower, period_s) == range_of(found.upper - 1, period_s) == found
    assert range_of(found.upper, period_s).lower == found.upper


def test_thirty_days_are_four_ranges_and_the_rest_waits() -> None:
    assert ended_ranges(FIRST, FIRST + 30 * DAY) == weeks(0, 1, 2, 3)


def test_history_begins_with_the_range_of_its_first_moment() -> None:
    assert ended_ranges(FIRST + 3 * DAY, FIRST + 8 * DAY) == weeks(0)
    assert ended_ranges(FIRST + 3 * DAY, FIRST + 7 * DAY - 1) == []


def test_range_waits_for_late_messages() -> None:
    assert ended_ranges(FIRST, FIRST + 7 * DAY + 3599, settle_s=3600) == []
    assert ended_ranges(FIRST, FIRST + 7 * DAY + 3600, settle_s=3600) == weeks(0)


def test_published_ranges_are_not_due_again() -> None:
    assert due_ranges(FIRST, FIRST + 30 * DAY, published={*weeks(0, 2)}) == weeks(1, 3)


def test_what_is_still_fetched_holds_up_its_range_and_those_after_it() -> None:
    gap = TimeRange(FIRST + 10 * DAY, FIRST + 11 * DAY)

    assert due_ranges(FIRST, FIRST + 30 * DAY, published=(), missing=[gap]) == weeks(0)
    assert due_ranges(FIRST, FIRST + 30 * DAY, published={*weeks(0, 1)}, missing=[gap]) == weeks(2, 3)


def test_gap_that_ends_where_a_range_begins_does_not_hold_it_up() -> None:
    gap = TimeRange(FIRST + 20 * DAY, FIRST + 21 * DAY)

    assert due_ranges(FIRST + 21 * DAY, FIRST + 28 * DAY, published=(), missing=iter([gap])) == weeks(3)


@given(
    first=st.integers(0, 10**6),
    length=st.integers(0, 10**5),
    period_s=st.integers(100, 10**5),
    published=st.sets(st.integers(0, 20)),
    settle_s=st.integers(0, 1000),
)
def test_due_ranges_are_all_that_have_ended_in_order(
    first: int, length: int, period_s: int, published: set[int], settle_s: int
) -> None:
    now = first + length
    done = {TimeRange(place * period_s, (place + 1) * period_s) for place in published}

    due = due_ranges(first, now, published=done, settle_s=settle_s, period_s=period_s)

    assert due == sorted(due)
    for each in due:
        assert each not in done
        assert each.upper + settle_s <= now
        assert each.upper > first
    assert {*due} | done >= {*ended_ranges(first, now, settle_s=settle_s, period_s=period_s)}
