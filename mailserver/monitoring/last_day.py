"""The last 24 hours, minute by minute: what the status page and `waku-mailserver status` show of the past.

Minutes are those of a clock that never steps. They get times of day only when they are shown or saved, by the wall
clock of that moment. So a step of the wall clock moves all of them together, and makes neither a hole nor an overlap.
A minute in which nothing was recorded, because the mailserver was down, is a gap: NaN in every column. A count is what
a minute added to a counter of `metrics.registry`. Answer times are kept as counts by bucket, so that minutes can be
added up.
"""

import json
import math
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from reprlib import repr as shown

from prometheus_client import Counter, Histogram
from prometheus_client.samples import Sample

from mailserver.metrics.figures import NodeFigures
from mailserver.metrics.labels import Direction, Outcome
from mailserver.metrics.registry import DELAYS_S, Metrics, count_of

MINUTE_S = 60
MAX_MINUTES = 24 * 60

_VERSION = 2
_SINCE_2 = {"connected"}
"""Columns that files of version 1 lack. They are unknown in the minutes of such a file."""

_LATEST = 2**33
"""The latest time that a file may contain: the year 2242."""


class Column(Enum):
    """The figures of a minute. Bytes are those of connections with peers, envelopes are those that peers sent."""

    RECEIVED = "received"
    TAKEN = "taken"
    REFUSED = "refused"
    STORED = "stored"
    DELIVERED = "delivered"
    REJECTED = "rejected"
    FAILED = "failed"
    LOST = "lost"
    CONNECTED = "connected"
    """Peers that connected, however soon they left. Most stay for less than a minute."""
    BYTES_IN = "bytes_in"
    BYTES_OUT = "bytes_out"
    PEERS_IN = "peers_in"
    PEERS_OUT = "peers_out"
    QUEUED = "queued"
    """Envelopes waiting for the disk: the largest number that any look found."""
    LAG_S = "lag_s"
    """The worst lag of the event loop."""


_COUNTS = tuple(Column)[: tuple(Column).index(Column.PEERS_IN)]
_OUTCOMES = {
    Outcome.DELIVERED: Column.DELIVERED,
    Outcome.REJECTED: Column.REJECTED,
    Outcome.FAILED: Column.FAILED,
    Outcome.LOST: Column.LOST,
}
BUCKETS = tuple(f"answers_le_{bound}" for bound in (*DELAYS_S, "inf"))
"""Columns that count answers by how long they took: at most this bound, and more than the bound before."""

NAMES = (*(column.value for column in Column), *BUCKETS)
"""All columns."""

_EMPTY = math.nan


@dataclass(frozen=True, slots=True)
class AnswerTimes:
    """How long answers took, in seconds: half of them took at most `median_s`, and 95 % at most `p95_s`."""

    median_s: float
    p95_s: float


@dataclass(frozen=True, slots=True)
class Minutes:
    """Consecutive minutes, oldest first. NaN stands for a gap.

    Args:
        first_at: when the first one began, in Unix seconds.
        columns: by name, those of Column and the buckets of answer times, all of the same length.
    """

    first_at: float
    columns: Mapping[str, Sequence[float]]

    def __len__(self) -> int:
        return len(self.columns[Column.TAKEN.value])

    def totals(self) -> dict[Column, float]:
        """The sum of each count."""
        return {column: sum(filter(_is_known, self.columns[column.value])) for column in _COUNTS}

    def worst_lag(self) -> float:
        """The worst lag of the event loop, in seconds."""
        return max(filter(_is_known, self.columns[Column.LAG_S.value]), default=0.0)

    def answer_times(self) -> AnswerTimes | None:
        """How long answers took in all of these minutes; None if there were no answers."""
        return answer_times([sum(filter(_is_known, self.columns[name])) for name in BUCKETS])


class LastDay:
    """The last MAX_MINUTES. The latest of them is still under way."""

    def __init__(
        self,
        metrics: Metrics,
        clock: Callable[[], float],
        steady: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        """Begin with nothing.

        Args:
            clock: Unix seconds.
            steady: seconds since any moment, of a clock that does not stop while the machine sleeps.
        """
        self._metrics = metrics
        self._clock = clock
        self._steady = steady
        self._columns = {name: array("d") for name in NAMES}
        self._last = 0  # the number of the last minute
        self._counted: dict[str, float] | None = None

    def begin(self, node: NodeFigures) -> None:
        """Take the present values of the counters for zero: what was counted before belongs to no minute."""
        self._counted = self._count(node)

    def note(self, node: NodeFigures, lag_s: float) -> None:
        """Add what has happened since the last call to the present minute. `lag_s` is the worst lag since then."""
        if self._counted is None:
            self.begin(node)
        assert self._counted is not None
        counted = self._count(node)
        self._move_to(int(self._steady() // MINUTE_S))
        for name, count in counted.items():
            self._columns[name][-1] = _or_zero(self._columns[name][-1]) + max(count - self._counted[name], 0.0)
        self._counted = counted
        peers = {Direction.IN: 0, Direction.OUT: 0}
        for (direction, _), count in node.peers.items():
            peers[direction] += count
        self._columns[Column.PEERS_IN.value][-1] = peers[Direction.IN]
        self._columns[Column.PEERS_OUT.value][-1] = peers[Direction.OUT]
        self._raise(Column.QUEUED, node.writer_envelopes)
        self._raise(Column.LAG_S, lag_s)

    def minutes(self) -> Minutes:
        """All minutes, including the one under way."""
        return Minutes(self._time_of_first(), {name: array("d", column) for name, column in self._columns.items()})

    def last_minute(self) -> Minutes | None:
        """The last complete minute; None if there is none, or if it is a gap."""
        if len(self) < 2 or math.isnan(self._columns[Column.TAKEN.value][-2]):
            return None
        return Minutes(
            self._time_of_first() + (len(self) - 2) * MINUTE_S,
            {name: column[-2:-1] for name, column in self._columns.items()},
        )

    def resume(self, before: Minutes) -> None:
        """Take what an earlier run saved, except what is too old or in the future. Call it before any `note`."""
        now = self._steady()
        begun = now - (self._clock() - before.first_at)
        first = math.floor(begun / MINUTE_S + 0.5)  # within half a minute: no minute is lost or occurs twice
        kept = min(len(before), int(now // MINUTE_S) - first + 1)
        if kept < 1:
            return
        self._columns = {name: array("d", before.columns[name][:kept]) for name in NAMES}
        self._last = first + kept - 1
        self._move_to(int(now // MINUTE_S))

    def __len__(self) -> int:
        return len(self._columns[Column.TAKEN.value])

    def _time_of_first(self) -> float:
        if not len(self):
            return self._clock()
        age_s = self._steady() - (self._last - len(self) + 1) * MINUTE_S
        return round(self._clock() - age_s, 3)

    def _move_to(self, minute: int) -> None:
        """Advance to a minute, leaving a gap if need be, and drop what is too old."""
        fresh = 1 if len(self) == 0 else min(minute - self._last, MAX_MINUTES)
        self._last = minute
        for column in self._columns.values():
            column.extend([_EMPTY] * fresh)
            del column[:-MAX_MINUTES]

    def _raise(self, column: Column, value: float) -> None:
        values = self._columns[column.value]
        values[-1] = max(_or_zero(values[-1]), value)

    def _count(self, node: NodeFigures) -> dict[str, float]:
        """The present values of everything that is counted."""
        metrics = self._metrics
        counts = {
            Column.RECEIVED.value: count_of(metrics.received),
            Column.TAKEN.value: count_of(metrics.new),
            Column.REFUSED.value: sum(map(count_of, metrics.rejected.values())),
            Column.STORED.value: count_of(metrics.stored),
            Column.CONNECTED.value: sum(map(count_of, metrics.connections.values())),
            Column.BYTES_IN.value: node.network_bytes[Direction.IN],
            Column.BYTES_OUT.value: node.network_bytes[Direction.OUT],
        }
        counts.update({column.value: 0.0 for column in _OUTCOMES.values()})
        for sample in _samples(metrics.requests):
            counts[_OUTCOMES[Outcome(sample.labels["outcome"])].value] += sample.value
        counts.update(zip(BUCKETS, _by_bucket(metrics.delivery_duration), strict=True))
        return counts


def _samples(metric: Counter | Histogram) -> Iterable[Sample]:
    return (sample for family in metric.collect() for sample in family.samples)


def _by_bucket(durations: Histogram) -> list[float]:
    """How many requests were answered, by the bucket of their duration."""
    up_to = dict.fromkeys((*DELAYS_S, math.inf), 0.0)
    for sample in _samples(durations):
        if "le" in sample.labels and sample.labels["outcome"] == Outcome.DELIVERED.value:
            up_to[float(sample.labels["le"])] += sample.value
    sums = list(up_to.values())
    return [count - before for before, count in zip((0.0, *sums), sums, strict=False)]


def answer_times(counts: Sequence[float]) -> AnswerTimes | None:
    """Median and 95th percentile of answers, counted by bucket of DELAYS_S and beyond; None if there are none."""
    if not sum(counts) > 0:  # true of a gap, too, whose sum is NaN
        return None
    return AnswerTimes(_quantile(counts, 0.5), _quantile(counts, 0.95))


def _quantile(counts: Sequence[float], share: float) -> float:
    """As histogram_quantile of Prometheus: even distribution within a bucket; what is beyond the last is its bound."""
    rank, lower = share * sum(counts), 0.0
    for count, upper in zip(counts, DELAYS_S, strict=False):
        if count and rank <= count:
            return lower + (upper - lower) * rank / count
        rank -= count
        lower = upper
    return DELAYS_S[-1]


def encode_file(minutes: Minutes) -> str:
    """The text of the file."""
    columns = {name: _numbers(column) for name, column in minutes.columns.items()}
    return _encode({"version": _VERSION, "first_at": minutes.first_at}, columns)


def decode_file(data: bytes) -> Minutes:
    """Read what `encode_file` wrote.

    Raises:
        ValueError: the data is something else.
        RecursionError: the data is something else, and deeply nested.
    """
    record = json.loads(data)
    version = record.get("version") if isinstance(record, dict) else None
    if version not in (1, _VERSION):
        raise ValueError(f"not a history of version 1 or {_VERSION}")
    first_at, columns = record.get("first_at"), record.get("columns")
    if (
        not isinstance(first_at, int | float) or not 0 <= first_at <= _LATEST
    ):  # excludes NaN, which Python's JSON allows
        raise ValueError(f"first_at is {shown(first_at)}")
    missing = _SINCE_2 if version == 1 else set()
    if not isinstance(columns, dict) or columns.keys() != set(NAMES) - missing:
        raise ValueError("other columns")
    decoded = {name: _decode_column(name, columns[name]) for name in columns}
    if len({len(column) for column in decoded.values()}) != 1:
        raise ValueError("columns of different lengths")
    unknown = [_EMPTY] * len(decoded[Column.TAKEN.value])
    return Minutes(float(first_at), {name: decoded.get(name, array("d", unknown)) for name in NAMES})


def encode_shown(minutes: Minutes) -> str:
    """The text of /history.json (docs/status.md)."""
    columns = {column.value: _numbers(minutes.columns[column.value]) for column in Column}
    times = [answer_times(counts) for counts in zip(*(minutes.columns[name] for name in BUCKETS), strict=True)]
    columns["median_s"] = _numbers(_EMPTY if each is None else each.median_s for each in times)
    columns["p95_s"] = _numbers(_EMPTY if each is None else each.p95_s for each in times)
    return _encode({"first_at": minutes.first_at, "step_s": MINUTE_S}, columns)


def _encode(head: Mapping[str, object], columns: Mapping[str, list[float | None]]) -> str:
    # One column at a time: the encoder holds Python's lock while it works, and the whole text takes milliseconds.
    body = ",\n".join(f"{json.dumps(name)}: {json.dumps(column)}" for name, column in columns.items())
    return f'{json.dumps(head)[:-1]}, "columns": {{\n{body}}}}}\n'


def _numbers(column: Iterable[float]) -> list[float | None]:
    """Numbers for JSON: null for a gap, and counts without a decimal point."""
    return [
        None if math.isnan(value) else int(value) if value.is_integer() else round(value, 6)
        for value in map(float, column)
    ]


def _decode_column(name: str, values: object) -> "array[float]":
    if not isinstance(values, list) or len(values) > MAX_MINUTES:
        raise ValueError(f"{name} is no column")
    column = array("d")
    for value in values:
        if value is not None and (not isinstance(value, int | float) or not 0 <= value < 2**63):
            raise ValueError(f"{name} has {shown(value)}")
        column.append(_EMPTY if value is None else value)
    return column


def _is_known(value: float) -> bool:
    return not math.isnan(value)


def _or_zero(value: float) -> float:
    return 0.0 if math.isnan(value) else value
