"""mailserver.reconcile.sums: what a responder says of sums is true of its items."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.errors import DecodeError
from mailserver.reconcile.sides import Responder, run
from mailserver.reconcile.storage import MemoryStorage, sum_of
from mailserver.reconcile.sums import MAX_SUMS, TimeSum, ask_about, differing
from mailserver.reconcile.wire import MAX_MESSAGE_BYTES, MIN_FRAME_BYTES
from tests.properties import settings

Items = list[tuple[int, bytes]]

IDS = [number.to_bytes(2, "big").ljust(32, b".") for number in range(400)]


def sum_in(items: Items, lower: int, upper: int) -> TimeSum:
    ids = [item_id for timestamp, item_id in items if lower <= timestamp <= upper]
    return TimeSum(lower, upper, len(ids), sum_of(ids))


@settings(max_examples=200)
@given(st.data())
def test_exactly_the_sums_that_differ_are_named(data: st.DataObject) -> None:
    timestamps = st.integers(0, 30)
    items = [(data.draw(timestamps), item_id) for item_id in IDS[: data.draw(st.integers(0, 60))]]
    theirs = [item for item in items if data.draw(st.booleans(), label="is theirs")]
    theirs += [(data.draw(timestamps), item_id) for item_id in IDS[100 : 100 + data.draw(st.integers(0, 3))]]
    bounds = sorted(data.draw(st.sets(timestamps, min_size=2)))
    times = [(lower, upper - 1) for lower, upper in pairwise(bounds)]
    asked = [sum_in(items, *time) for time in times if data.draw(st.booleans(), label="is known")]

    answer = run(Responder(MemoryStorage(theirs)).respond(ask_about(asked)))

    there = {time: [item for item in theirs if time[0] <= item[0] <= time[1]] for time in times}
    ours = {time: [item for item in items if time[0] <= item[0] <= time[1]] for time in times}
    apart = {time for time in times if {one for _, one in there[time]} != {one for _, one in ours[time]}}
    assert differing(asked, answer) == [one for one in asked if (one.lower, one.upper) in apart]


def test_what_an_answer_has_no_room_for_counts_as_different() -> None:
    items = [(number, item_id) for number, item_id in enumerate(IDS)]
    asked = [TimeSum(number, number, 1, 0) for number in range(300)] + [sum_in(items, 300, 399)]

    answer = run(Responder(MemoryStorage(items), MIN_FRAME_BYTES).respond(ask_about(asked)))

    assert differing(asked, answer) == asked


def test_as_many_sums_as_may_be_fit_into_a_message() -> None:
    asked = [TimeSum(at, at, 1, at) for at in range(2**32 - 1000 * MAX_SUMS, 2**32, 1000)]

    assert len(ask_about(asked)) <= MAX_MESSAGE_BYTES
    with pytest.raises(ValueError, match="are more than"):
        ask_about([*asked, TimeSum(2**32 + 5, 2**32 + 5, 0, 0)])


def test_answer_that_is_none_is_refused() -> None:
    with pytest.raises(DecodeError):
        differing([TimeSum(0, 9, 1, 1)], b"\x61\x05\x00\x09")
