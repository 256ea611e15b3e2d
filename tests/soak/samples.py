"""What is measured every simulated hour, and what must be flat in the end."""

import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Sample:
    """How the daemon was in one simulated hour. `day` counts from the start; times are of the real clock."""

    day: float
    run: int
    """The number of the daemon's process: restarts are told from leaks."""
    rss_mib: float
    fds: int
    threads: int
    wal_mib: float
    file_mib: float
    used_mib: float
    stored: int
    queued: int
    request_p50_ms: float
    """Of a page of history, from request to completion. The `own` times are less what the daemon and the soak waited
    for a processor; both may wait at the same time, so they are the least that it can have been."""
    request_p95_ms: float
    request_p99_ms: float
    request_own_p50_ms: float
    request_own_p95_ms: float
    request_own_p99_ms: float
    confirmation_p50_ms: float
    confirmation_p95_ms: float
    confirmation_p99_ms: float
    confirmation_own_p50_ms: float
    confirmation_own_p95_ms: float
    confirmation_own_p99_ms: float
    cpu_s: float
    envelopes: int
    lag_mean_ms: float
    load: float
    """Of the whole machine: processes that want a core. What others do to it shows in every time."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How much a figure may grow: by a share of what it was, or by `least` where that is more."""

    name: str
    share: float
    least: float


RULES = (
    Rule("rss_mib", 0.10, 10.0),
    Rule("fds", 0.0, 4.0),
    Rule("threads", 0.0, 2.0),
    Rule("wal_mib", 0.25, 8.0),
    Rule("file_mib", 0.15, 32.0),
    Rule("request_own_p50_ms", 0.5, 5.0),
    Rule("request_own_p95_ms", 0.5, 15.0),
    Rule("confirmation_own_p50_ms", 0.5, 5.0),
    Rule("confirmation_own_p95_ms", 0.5, 15.0),
    Rule("request_p50_ms", 0.5, 5.0),
    Rule("request_p95_ms", 0.5, 15.0),
    Rule("confirmation_p50_ms", 0.5, 5.0),
    Rule("confirmation_p95_ms", 0.5, 15.0),
    Rule("lag_mean_ms", 0.5, 5.0),
)
"""Of times the shares are wide: they differ from hour to hour."""

BY_THE_CLOCK = frozenset(rule.name for rule in RULES if rule.name.endswith("_ms") and "_own_" not in rule.name)
"""Times with what was waited for a processor. Of hours in which too many wanted one they say nothing of the mailserver;
where there are too few others, they are not judged, and that is said."""

MAX_LOAD_PER_CORE = 1.5
"""Processes that want a core, for each of them: of hours with more, BY_THE_CLOCK is left out, and nothing else."""

STEADY_ONLY = frozenset({"file_mib"})
"""Grows until retention is reached."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One figure: its medians before and after, and the most that it may be. NaN where it could not be judged."""

    name: str
    before: float
    after: float
    most: float

    @property
    def is_flat(self) -> bool:
        """Whether it has not grown, as far as can be said."""
        return not self.is_judged or self.after <= self.most

    @property
    def is_judged(self) -> bool:
        """Whether there were hours enough."""
        return not math.isnan(self.most)


def longest_run(samples: Sequence[Sample]) -> list[Sample]:
    """The samples of the process that ran longest."""
    runs = {sample.run for sample in samples}
    return max(([sample for sample in samples if sample.run == run] for run in runs), key=len)


def thirds(samples: Sequence[Sample]) -> tuple[list[Sample], list[Sample]]:
    """The second and the last third of the longest run: what the verdict compares."""
    run = longest_run(samples)
    return run[len(run) // 3 : 2 * len(run) // 3], run[2 * len(run) // 3 :]


def judge(samples: Sequence[Sample], retention_days: float) -> list[Verdict]:
    """Compare the last third of the longest run with the second one: the first is to warm up."""
    second, last = thirds(samples)
    verdicts = []
    for rule in RULES:
        if rule.name in STEADY_ONLY and second[0].day < retention_days + 1:
            continue
        before, after = (_median(part, rule.name) for part in (second, last))
        most = math.nan if math.isnan(after) else before + max(before * rule.share, rule.least)
        verdicts.append(Verdict(rule.name, before, after, most))
    before, after = cpu_us_per_envelope(second), cpu_us_per_envelope(last)
    return [*verdicts, Verdict("cpu_us_per_envelope", before, after, before * 1.25 + 500)]


def cpu_us_per_envelope(samples: Sequence[Sample]) -> float:
    """What the daemon took for an envelope, all else that it did included: requests, relay, being looked at."""
    return sum(sample.cpu_s for sample in samples) * 1e6 / max(1, sum(sample.envelopes for sample in samples))


def _median(samples: Sequence[Sample], name: str) -> float:
    """Over the hours of which something can be said; NaN where they are too few."""
    most = MAX_LOAD_PER_CORE * (os.cpu_count() or 1) if name in BY_THE_CLOCK else math.inf
    values: list[float] = [getattr(sample, name) for sample in samples if sample.load <= most]
    values = [value for value in values if not math.isnan(value)]
    return statistics.median(values) if len(values) * 3 >= len(samples) else math.nan


def percentiles(seconds: Sequence[float]) -> tuple[float, float, float]:
    """Median, 95th and 99th percentile in ms; NaN of nothing."""
    if not seconds:
        return (math.nan,) * 3
    ordered = sorted(seconds)
    p50, p95, p99 = (ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000 for share in (0.5, 0.95, 0.99))
    return p50, p95, p99


def process_figures(pid: int) -> tuple[float, int, int]:
    """Resident memory in MiB, open files and threads of a process."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    fds = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return int(status["VmRSS"].split()[0]) / 1024, fds, int(status["Threads"])
