"""mailserver.catchup.ranges: arithmetic of times, compared with sets of seconds."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.catchup.ranges import (
    LATE_S,
    MAX_RANGES,
    OVERLAP_S,
    WINDOW_S,
    MissingRange,
    cut_window,
    merge,
    missed_range,
    not_yet_asked,
    unite,
)
from mailserver.mail.request import Cursor
from mailserver.waku.envelope import EnvelopeHash

DAY = 86_400
NOW = 1_795_236_010
CURSOR = Cursor(NOW, EnvelopeHash(bytes(32)))

some_ranges = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda at: MissingRange(at[0], at[0] + at[1]))
)


def seconds(*parts: MissingRange) -> set[int]:
    """Every second of some ranges."""
    return {second for part in parts for second in range(part.lower, part.upper + 1)}


# Putting together


@given(some_ranges)
def test_merged_ranges_span_the_same_and_touch_nowhere(ranges: list[MissingRange]) -> None:
    merged = merge(ranges)

    assert seconds(*merged) == seconds(*ranges)
    for newer, older in itertools.pairwise(merged):
        assert older.upper + 1 < newer.lower


def test_range_with_a_cursor_stays_unless_another_covers_it() -> None:
    begun = MissingRange(100, 199, CURSOR)

    assert unite([begun, MissingRange(0, 99), MissingRange(150, 300)]) == [
        MissingRange(150, 300),
        begun,
        MissingRange(0, 99),
    ]
    assert unite([begun, begun]) == [begun]
    assert unite([begun, MissingRange(50, 120), MissingRange(121, 199)]) == [MissingRange(50, 199)]


def test_too_many_ranges_become_one() -> None:
    ranges = [MissingRange(10 * number, 10 * number + 5) for number in range(MAX_RANGES)]
    begun = MissingRange(5000, 5100, CURSOR)

    assert unite(ranges) == ranges[::-1]
    assert unite([*ranges, begun]) == [MissingRange(0, 5100)]


# Windows


@pytest.mark.parametrize("span", [1, 2, WINDOW_S - 1, WINDOW_S, WINDOW_S + 1, 5 * WINDOW_S])
def test_windows_are_cut_newest_first_until_nothing_is_left(span: int) -> None:
    rest: MissingRange | None = MissingRange(NOW - span + 1, NOW)
    windows = []

    while rest is not None:
        window, rest = cut_window(rest)
        windows.append(window)

    assert windows[0].upper == NOW
    assert windows[-1].lower == NOW - span + 1
    assert sum(window.seconds for window in windows) == span
    for newer, older in itertools.pairwise(windows):
        assert older.upper == newer.lower - 1
    for window in windows:
        assert window.upper + OVERLAP_S - window.lower <= DAY


def test_window_that_was_begun_is_not_cut_again() -> None:
    begun = MissingRange(0, WINDOW_S, CURSOR)

    assert cut_window(begun) == (begun, None)


# What has been asked for already


def test_what_has_been_asked_for_is_not_asked_again_but_for_its_end() -> None:
    asked = [MissingRange(NOW - 9 * DAY, NOW - 8 * DAY), MissingRange(NOW - 5 * DAY, NOW - 2 * DAY)]

    parts = not_yet_asked(MissingRange(NOW - 10 * DAY, NOW), asked)

    assert merge(parts) == [
        MissingRange(NOW - 2 * DAY - LATE_S + 1, NOW),
        MissingRange(NOW - 8 * DAY - LATE_S + 1, NOW - 5 * DAY - 1),
        MissingRange(NOW - 10 * DAY, NOW - 9 * DAY - 1),
    ]


@pytest.mark.parametrize(
    "wanted", [MissingRange(100, 200), MissingRange(120, 150), MissingRange(100, 150), MissingRange(150, 200)]
)
def test_part_of_what_has_been_asked_for_is_nothing_new(wanted: MissingRange) -> None:
    assert not_yet_asked(wanted, [MissingRange(100, 200)]) == []


@given(st.tuples(st.integers(0, 60), st.integers(0, 30)), some_ranges)
def test_what_is_not_yet_asked_and_what_was_is_all_that_is_wanted(
    at: tuple[int, int], ranges: list[MissingRange]
) -> None:
    wanted = MissingRange(at[0], at[0] + at[1])

    parts = not_yet_asked(wanted, ranges)

    assert seconds(wanted) - seconds(*ranges) <= seconds(*parts) <= seconds(wanted)


# After a downtime


def test_missed_is_what_came_since_the_last_reception_was_on_its_way_then_and_comes_soon() -> None:
    assert missed_range(NOW - 5000, NOW, 60) == MissingRange(NOW - 5000 - LATE_S, NOW + 60)
    assert missed_range(5, NOW, 60) == MissingRange(0, NOW + 60)
    assert missed_range(None, NOW, 60) == MissingRange(0, NOW + 60)
