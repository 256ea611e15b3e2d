"""mailserver.monitoring.last_day: minutes of a clock that never steps, and their file."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.metrics.figures import NodeFigures
from mailserver.metrics.labels import ClientFamily, Direction, Outcome, RequestKind
from mailserver.metrics.registry import Metrics
from mailserver.monitoring.last_day import (
    BUCKETS,
    MAX_MINUTES,
    MINUTE_S,
    NAMES,
    Column,
    LastDay,
    Minutes,
    answer_times,
    decode_file,
    encode_file,
    encode_shown,
)
from mailserver.waku.acceptance import Verdict
from tests.mailservers import NOW, Clock
from tests.monitoring.samples import NODE, minutes

BOOTED = 1000 * MINUTE_S


@dataclass
class Run:
    """A mailserver that has been started."""

    clock: Clock = field(default_factory=Clock)
    steady_s: float = BOOTED
    metrics: Metrics = field(default_factory=Metrics)
    node: NodeFigures = NODE

    def __post_init__(self) -> None:
        self.last_day = LastDay(self.metrics, self.clock, lambda: self.steady_s)
        self.last_day.begin(self.node)

    def note(self, lag_s: float = 0.0) -> None:
        self.last_day.note(self.node, lag_s)

    def pass_s(self, seconds: float) -> None:
        self.steady_s += seconds
        self.clock.now += seconds

    def column(self, column: Column) -> list[float]:
        return list(self.last_day.minutes().columns[column.value])

    def shown(self) -> Mapping[str, list[float | None]]:
        columns: Mapping[str, list[float | None]] = json.loads(encode_shown(self.last_day.minutes()))["columns"]
        return columns


def test_looks_within_a_minute_add_up_and_the_next_minute_begins_anew() -> None:
    run = Run()
    for _ in range(4):
        run.metrics.new.inc(10)
        run.note()
        run.pass_s(15)
    run.metrics.new.inc(1)
    run.note()

    assert run.column(Column.TAKEN) == [40, 1]


def test_what_was_counted_before_the_start_is_of_no_minute() -> None:
    metrics = Metrics()
    metrics.new.inc(1000)
    run = Run(metrics=metrics)
    run.note()

    assert run.column(Column.TAKEN) == [0]


def test_every_column_is_what_its_name_says() -> None:
    run = Run()
    metrics = run.metrics
    metrics.received.inc(9)
    metrics.new.inc(4)
    metrics.known.inc(2)
    metrics.rejected[Verdict.VERY_OLD].inc(1)
    metrics.rejected[Verdict.FROM_THE_FUTURE].inc(2)
    metrics.stored.inc(3)
    metrics.connections[Direction.IN].inc(20)
    metrics.connections[Direction.OUT].inc(1)
    for outcome, count in zip(Outcome, (5, 6, 7, 8), strict=True):
        for kind in (RequestKind.TOPICS, RequestKind.BLOOM):
            metrics.requests.labels(kind.value, outcome.value).inc(count)
    run.node = replace(NODE, network_bytes={Direction.IN: 1100, Direction.OUT: 2300}, writer_envelopes=17)
    run.note(lag_s=0.25)

    values = {column: run.column(column) for column in Column}
    assert values == {
        Column.RECEIVED: [9],
        Column.TAKEN: [4],
        Column.REFUSED: [3],
        Column.STORED: [3],
        Column.DELIVERED: [10],
        Column.REJECTED: [12],
        Column.FAILED: [14],
        Column.LOST: [16],
        Column.CONNECTED: [21],
        Column.BYTES_IN: [100],
        Column.BYTES_OUT: [300],
        Column.PEERS_IN: [7],
        Column.PEERS_OUT: [1],
        Column.QUEUED: [17],
        Column.LAG_S: [0.25],
    }


def test_peers_are_the_last_seen_and_queue_and_lag_the_worst() -> None:
    run = Run()
    for peers, queued, lag_s in ((5, 9, 0.1), (3, 2, 0.7), (4, 1, 0.2)):
        run.node = replace(NODE, peers={(Direction.IN, ClientFamily.NIM): peers}, writer_envelopes=queued)
        run.note(lag_s)

    assert [run.column(column) for column in (Column.PEERS_IN, Column.QUEUED, Column.LAG_S)] == [[4], [9], [0.7]]


def test_answer_times_are_those_of_delivered_requests_minute_by_minute() -> None:
    run = Run()
    for seconds, outcome in ((0.004, Outcome.DELIVERED), (0.004, Outcome.DELIVERED), (20.0, Outcome.FAILED)):
        run.metrics.delivery_duration.labels("topics", outcome.value).observe(seconds)
    run.note()
    run.pass_s(MINUTE_S)
    run.metrics.delivery_duration.labels("bloom", "delivered").observe(0.7)
    run.note()

    shown = run.shown()
    assert shown["median_s"] == [pytest.approx(0.00375), pytest.approx(0.75)]
    assert shown["p95_s"] == [pytest.approx(0.004875), pytest.approx(0.975)]
    together = run.last_day.minutes().answer_times()
    assert together is not None
    assert together.median_s == pytest.approx(0.004375)


@pytest.mark.parametrize(
    ("counts", "median_s", "p95_s"),
    [
        ([1], 0.0005, 0.00095),
        ([10, 0, 10], 0.001, 0.00475),
        ([0] * 14 + [1], 30.0, 30.0),  # beyond the last bucket
    ],
)
def test_quantiles_are_interpolated_as_prometheus_does(counts: list[float], median_s: float, p95_s: float) -> None:
    times = answer_times(counts + [0.0] * (len(BUCKETS) - len(counts)))

    assert times is not None
    assert times.median_s == pytest.approx(median_s)
    assert times.p95_s == pytest.approx(p95_s)


def test_minute_without_answers_has_no_answer_times() -> None:
    assert answer_times([0.0] * len(BUCKETS)) is None
    assert answer_times([math.nan] * len(BUCKETS)) is None


def test_minutes_in_which_nobody_looked_are_a_gap() -> None:
    run = Run()
    run.note()
    run.pass_s(3 * MINUTE_S)
    run.note()

    shown = run.shown()
    assert shown["taken"] == [0, None, None, 0]
    assert shown["peers_in"] == [7, None, None, 7]
    assert shown["median_s"] == [None] * 4


def test_day_is_all_that_is_kept() -> None:
    run = Run()
    for number in range(MAX_MINUTES + 10):
        run.metrics.new.inc(number)
        run.note()
        run.pass_s(MINUTE_S)

    assert run.column(Column.TAKEN) == list(range(10, MAX_MINUTES + 10))
    run.pass_s(10 * MAX_MINUTES * MINUTE_S)
    run.note()
    assert run.shown()["taken"] == [None] * (MAX_MINUTES - 1) + [0]


@pytest.mark.parametrize("step_s", [-86_400.0, -90.0, 90.0, 86_400.0 * 365])
def test_stepped_clock_moves_all_minutes_and_tears_no_hole(step_s: float) -> None:
    run = Run()
    for number in range(5):
        run.metrics.new.inc(number)
        run.note()
        run.pass_s(MINUTE_S)
        if number == 2:
            run.clock.now += step_s

    seen = run.last_day.minutes()
    assert list(seen.columns["taken"]) == [0, 1, 2, 3, 4]
    assert seen.first_at == run.clock.now - 5 * MINUTE_S


def test_last_whole_minute_is_told_from_the_one_under_way() -> None:
    run = Run()
    run.note()
    assert run.last_day.last_minute() is None
    run.metrics.new.inc(5)
    run.note()
    run.pass_s(MINUTE_S)
    run.metrics.new.inc(1)
    run.note()

    last = run.last_day.last_minute()
    assert last is not None
    assert last.totals()[Column.TAKEN] == 5
    assert last.first_at == NOW
    run.pass_s(2 * MINUTE_S)
    run.note()
    assert run.last_day.last_minute() is None  # nobody looked then


def restart(run: Run, down_s: float, steady_s: float | None = None) -> Run:
    """Save, be down for a while, and go on from what was saved."""
    saved = encode_file(run.last_day.minutes())
    run.pass_s(down_s)
    after = Run(clock=run.clock, steady_s=run.steady_s if steady_s is None else steady_s)
    after.last_day.resume(decode_file(saved.encode()))
    return after


def filled(count: int) -> Run:
    run = Run()
    for number in range(count):
        run.metrics.new.inc(number + 1)
        run.note(0.5)
        if number < count - 1:
            run.pass_s(MINUTE_S)
    return run


def test_restart_within_a_minute_goes_on_with_it() -> None:
    run = restart(filled(3), 10)
    run.metrics.new.inc(10)
    run.note()

    assert run.column(Column.TAKEN) == [1, 2, 13]
    assert run.column(Column.LAG_S) == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("steady_s", [None, 7.0, BOOTED * 1000 + 20.0], ids=["same boot", "new boot", "other machine"])
def test_time_down_is_a_gap(steady_s: float | None) -> None:
    run = restart(filled(3), 4 * MINUTE_S, steady_s)
    run.note()

    assert run.shown()["taken"] == [1, 2, 3, None, None, None, 0]
    assert abs(run.last_day.minutes().first_at - (run.clock.now - 6 * MINUTE_S)) <= MINUTE_S


def test_history_of_more_than_a_day_ago_is_dropped() -> None:
    run = restart(filled(3), (MAX_MINUTES - 2) * MINUTE_S)
    run.note()
    assert run.shown()["taken"][:3] == [2, 3, None]

    run = restart(filled(3), 100 * MAX_MINUTES * MINUTE_S)
    run.note()
    assert {value for value in run.shown()["taken"] if value is not None} == {0}


def test_history_from_the_future_is_dropped_as_far_as_it_is() -> None:
    run = restart(filled(3), -MINUTE_S)
    run.note()
    assert run.shown()["taken"] == [1, 2]

    run = restart(filled(3), -1000 * MINUTE_S)
    run.note()
    assert run.shown()["taken"] == [0]


def test_file_holds_all_and_is_read_again() -> None:
    before = filled(5).last_day.minutes()

    after = decode_file(encode_file(before).encode())

    assert after.first_at == before.first_at
    assert {name: list(column) for name, column in after.columns.items()} == {
        name: list(column) for name, column in before.columns.items()
    }


def test_file_of_an_earlier_version_is_read_and_what_it_lacks_is_not_known() -> None:
    record = json.loads(encode_file(minutes(2, taken=3.0)))
    del record["columns"]["connected"]

    after = decode_file(json.dumps(record | {"version": 1}).encode())

    assert list(after.columns["taken"]) == [3, 3]
    assert list(map(math.isnan, after.columns["connected"])) == [True, True]
    run = Run()
    run.last_day.resume(after)
    run.metrics.connections[Direction.IN].inc(5)
    run.note()
    assert run.last_day.minutes().totals()[Column.CONNECTED] == 5


def broken(**changes: object) -> bytes:
    record = json.loads(encode_file(minutes(2)))
    record["columns"] |= changes.pop("columns", {})
    return json.dumps(record | changes).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"\xff\xfe",
        encode_file(minutes(2)).encode()[:-3],
        broken(version=3),
        broken(first_at="now"),
        broken(first_at=math.nan),
        broken(first_at=-1),
        broken(first_at=2**40),
        broken(version=1),  # which has fewer columns
        broken(version=[1]),
        broken(columns={"more": [1, 2]}),
        broken(columns={"taken": [1]}),
        broken(columns={"taken": {"a": 1}}),
        broken(columns={"taken": [1, "2"]}),
        broken(columns={"taken": [1, -2]}),
        broken(columns={"taken": [1, math.inf]}),
        broken(columns={"taken": [1, math.nan]}),
        encode_file(minutes(MAX_MINUTES + 1)).encode(),
    ],
)
def test_file_that_is_no_history_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever is wrong with it
        decode_file(data)


def test_deeply_nested_file_is_refused() -> None:
    with pytest.raises((ValueError, RecursionError)):
        decode_file(b"[" * 100_000)


@given(st.binary(max_size=100))
def test_random_bytes_are_no_history(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        decode_file(data)


def test_empty_history_is_shown_as_empty() -> None:
    run = Run()

    assert set(run.shown()) == {column.value for column in Column} | {"median_s", "p95_s"}
    assert all(values == [] for values in run.shown().values())
    assert len(run.last_day.minutes()) == 0


def test_sums_leave_gaps_out() -> None:
    seen = minutes(3, taken=2, lag_s=0.5)
    gap = Minutes(NOW, {name: [*seen.columns[name], math.nan] for name in NAMES})

    assert gap.totals()[Column.TAKEN] == 6
    assert gap.worst_lag() == 0.5
