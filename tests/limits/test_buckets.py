"""mailserver.limits.buckets: a bucket against one that is filled tick by tick, entries and counts against models."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mailserver.errors import LocalProtocolError
from mailserver.limits.buckets import MIN_WAIT_S, Buckets, Counts, LruMap, TokenBucket, take_all
from tests.properties import settings

TICK_S = 0.125
"""Times, rates and costs of the models are whole numbers of it or of tokens: floats hold them exactly."""

KEYS = st.integers(0, 12)
MAX_KEYS = 5


class TickingBucket:
    """A bucket that someone pours tokens into at each tick, and that spills over."""

    def __init__(self, per_tick: int, capacity: int) -> None:
        self.per_tick = per_tick
        self.capacity = capacity
        self.level = capacity

    def tick(self, times: int) -> None:
        for _ in range(times):
            self.level = min(self.capacity, self.level + self.per_tick)

    def seconds_to(self, level: int) -> float:
        return float(Fraction(max(0, level - self.level), self.per_tick) * Fraction(TICK_S))


@given(
    per_tick=st.integers(1, 20),
    capacity=st.integers(1, 100),
    steps=st.lists(st.tuples(st.integers(0, 30), st.booleans(), st.integers(0, 150)), max_size=40),
)
def test_bucket_is_as_one_that_is_filled_tick_by_tick(
    per_tick: int, capacity: int, steps: list[tuple[int, bool, int]]
) -> None:
    now = 1000.0
    bucket = TokenBucket(per_tick / TICK_S, capacity, now)
    model = TickingBucket(per_tick, capacity)

    for ticks, takes, cost in steps:
        now += ticks * TICK_S
        model.tick(ticks)
        if takes:
            model.level -= cost
            assert bucket.take(cost, now) == pytest.approx(model.seconds_to(0))
        else:
            assert bucket.wait(cost, now) == pytest.approx(model.seconds_to(min(cost, capacity)))
        assert bucket.is_full(now) == (model.level == capacity)


@settings(max_examples=300)
@given(
    rate=st.floats(1e-3, 1e8),
    burst_s=st.floats(1e-6, 1e4),
    costs_s=st.lists(st.floats(1e-9, 1e7), min_size=1, max_size=10),
    start=st.floats(0, 1e9),
)
@example(rate=0.1, burst_s=30.0, costs_s=[10.0] * 10, start=0.0)
@example(rate=1e8, burst_s=1e-8, costs_s=[1.0], start=1e9)
def test_caller_that_comes_back_after_the_wait_is_served(
    rate: float, burst_s: float, costs_s: list[float], start: float
) -> None:
    """Costs are given as the seconds that they take to come in; a clock can have run for decades."""
    bucket, now = TokenBucket(rate, rate * burst_s, start), start

    for cost in (rate * seconds for seconds in costs_s):
        now += bucket.wait(cost, now)
        assert bucket.wait(cost, now) == 0.0

        now += bucket.take(cost, now)
        assert bucket.take(0, now) == 0.0


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), max_size=60))
def test_caller_that_takes_only_what_is_there_never_has_more_than_the_rate_and_one_burst(
    steps: list[tuple[int, int]],
) -> None:
    rate, capacity = 8.0, 12
    bucket, now = TokenBucket(rate, capacity, 0.0), 0.0
    taken: list[tuple[float, int]] = []

    for ticks, cost in steps:
        now += ticks * TICK_S
        if not bucket.wait(cost, now):
            bucket.take(cost, now)
            taken.append((now, cost))

    for first, (since, _) in enumerate(taken):
        total = 0
        for until, cost in taken[first:]:
            total += cost
            assert total <= capacity + rate * (until - since)


def test_new_bucket_is_full_and_holds_its_capacity_exactly() -> None:
    bucket = TokenBucket(10.0, 50, 7.0)

    assert bucket.is_full(7.0)
    assert [bucket.take(1, 7.0) for _ in range(51)] == [0.0] * 50 + [0.1]
    assert not bucket.is_full(7.0)


def test_to_ask_takes_nothing() -> None:
    bucket = TokenBucket(1.0, 2.0, 0.0)
    bucket.take(2, 0.0)

    assert [bucket.wait(1, 0.0) for _ in range(3)] == [1.0] * 3


def test_debt_is_paid_back_before_anything_is_there() -> None:
    bucket = TokenBucket(2.0, 10.0, 0.0)

    assert bucket.take(30, 0.0) == 10.0
    assert bucket.take(0, 4.0) == 6.0
    assert bucket.wait(1, 4.0) == 6.5


def test_more_than_it_can_hold_is_there_when_it_is_full() -> None:
    bucket = TokenBucket(1.0, 0.5, 0.0)  # of one token in two seconds, say, with a burst of one second

    assert bucket.wait(1, 0.0) == 0.0
    bucket.take(1, 0.0)
    assert bucket.wait(1, 0.0) == 1.0


def test_wait_that_no_clock_can_tell_is_none() -> None:
    bucket = TokenBucket(1.0, 1.0, 0.0)

    assert bucket.take(1 + MIN_WAIT_S / 2, 0.0) == 0.0
    assert bucket.take(MIN_WAIT_S, 0.0) > 0.0


@given(st.lists(st.tuples(KEYS, st.integers(0, 16), st.integers(0, 8)), max_size=60))
def test_debts_of_the_last_used_keys_are_remembered(steps: list[tuple[int, int, int]]) -> None:
    buckets: Buckets[int] = Buckets(1 / TICK_S, 4, max_keys=MAX_KEYS)
    models = {key: TickingBucket(1, 4) for key in range(13)}
    used: list[int] = []
    now = 0.0

    for key, ticks, cost in steps:
        now += ticks * TICK_S
        for model in models.values():
            model.tick(ticks)
        may_be_forgotten = key not in list(dict.fromkeys(reversed(used)))[:MAX_KEYS]
        if may_be_forgotten and buckets.find(key) is None:
            models[key] = TickingBucket(1, 4)
        used.append(key)

        models[key].level -= cost
        assert buckets.of(key, now).take(cost, now) == pytest.approx(models[key].seconds_to(0))
        assert len(buckets) <= MAX_KEYS


def test_full_buckets_are_forgotten_before_the_bound_is_reached() -> None:
    buckets: Buckets[int] = Buckets(1.0, 1.0, max_keys=1000)
    for key in range(100):
        buckets.of(key, 0.0).take(1, 0.0)

    for key in range(100, 150):
        buckets.of(key, 10.0).take(1, 10.0)

    assert len(buckets) == 50
    assert buckets.find(0) is None


def test_full_bucket_makes_room_before_the_longest_unused() -> None:
    buckets: Buckets[str] = Buckets(1.0, 1.0, max_keys=2)
    buckets.of("in debt", 0.0).take(100, 0.0)
    buckets.of("full again", 0.0).take(1, 0.0)

    buckets.of("new", 1.0)

    assert buckets.find("in debt") is not None
    assert buckets.find("full again") is None


def test_at_the_bound_the_longest_unused_is_forgotten() -> None:
    buckets: Buckets[str] = Buckets(1.0, 1.0, max_keys=3)
    for key in "abca":
        buckets.of(key, 0.0).take(1, 0.0)

    buckets.of("d", 0.0)

    assert [key for key in "abcd" if buckets.find(key)] == ["a", "c", "d"]


def test_what_one_kind_lacks_is_taken_from_none() -> None:
    packets: Buckets[str] = Buckets(1.0, 3.0, max_keys=9)
    sizes: Buckets[str] = Buckets(1.0, 10.0, max_keys=9)

    taken = [take_all("a", ((packets, 1), (sizes, size)), 0.0) for size in (8, 8, 2)]

    assert taken == [True, False, True]
    assert packets.of("a", 0.0).wait(1, 0.0) == 0.0  # two of three are taken, not three
    assert packets.of("a", 0.0).wait(2, 0.0) == 1.0
    assert sizes.of("a", 0.0).wait(1, 0.0) == 1.0


def test_each_key_has_its_own_and_where_there_is_no_limit_nothing_lacks() -> None:
    packets: Buckets[str] = Buckets(1.0, 1.0, max_keys=9)

    assert [take_all(key, ((packets, 1), (None, 99)), 0.0) for key in "aba"] == [True, True, False]
    assert take_all("a", ((None, 1), (None, 1)), 0.0)


def test_to_look_is_not_to_use() -> None:
    made: list[float] = []
    entries: LruMap[str, list[float]] = LruMap(lambda now: made, lambda entry, now: False, max_keys=2)

    assert entries.find("a") is None
    entries.of("a", 1.0)
    entries.of("b", 2.0)
    assert entries.find("a") is made
    entries.of("c", 3.0)

    assert entries.find("a") is None
    assert len(entries) == 2


def test_entry_is_made_at_its_time_and_stays_the_same() -> None:
    entries: LruMap[str, list[float]] = LruMap(lambda now: [now], lambda entry, now: False, max_keys=9)

    assert entries.of("a", 5.0) == [5.0]
    assert entries.of("a", 6.0) is entries.of("a", 7.0)
    assert entries.of("a", 8.0) == [5.0]


@given(st.lists(st.tuples(KEYS, st.booleans()), max_size=60))
def test_counts_are_those_of_a_counter(steps: list[tuple[int, bool]]) -> None:
    counts: Counts[int] = Counts()
    model: Counter[int] = Counter()

    for key, adds in steps:
        if adds:
            counts.add(key)
            model[key] += 1
        elif model[key]:
            counts.remove(key)
            model[key] -= 1
        else:
            with pytest.raises(LocalProtocolError):
                counts.remove(key)

    assert {key: counts.of(key) for key in range(13)} == {key: model[key] for key in range(13)}
    assert len(counts) == len(+model)
