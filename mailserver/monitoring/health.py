"""Whether the mailserver is well, in words for the operator.

A fatal problem keeps the mailserver from its work, and `/ready` answers 503. Any other problem is a warning: the
mailserver works, and somebody should look.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from mailserver.handoff.last_run import EXIT_DAMAGED
from mailserver.metrics.labels import Check
from mailserver.metrics.registry import Metrics, count_of
from mailserver.monitoring.watch import Sight
from mailserver.units import size_text
from mailserver.waku.acceptance import Verdict

log = logging.getLogger(__name__)

LATE_S = 26 * 3600.0
"""The nightly compaction is late if the last successful run is older: a day, and two hours for a long run."""

NO_PEERS_S = 300.0
"""How long it is normal that nobody is connected or connects. Phones come and go, but a network has somebody."""

WORKERS_AWAY_S = 60.0
"""How long some of the workers may be away: one that has died once is back within a second or so."""

NEARLY_FULL_SHARE = 0.05
NEARLY_FULL_BYTES = 10 * 1024**3
"""A disk is nearly full if less is free than this share of it, and less than this many bytes."""

FULL_BYTES = 64 * 1024**2
"""A disk with less free space counts as full: SQLite's log alone may grow by as much."""

CLOCK_WINDOW_S = 300.0
"""How far back refusals of envelopes for their time are counted."""

MIN_REFUSED = 20
"""Fewer refused envelopes say nothing about our clock: the clocks of some peers are wrong."""

NOTABLE_S = 86_400.0
"""How much our clock may differ from the time that has passed for certain before we warn. A machine that was off for a
night stays below it."""

NOT_BEFORE = datetime(2026, 1, 1, tzinfo=UTC)
"""A clock that shows an earlier time is wrong: this program is younger."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something is wrong. `text` is one line. If `is_fatal`, the mailserver cannot do its work."""

    check: Check
    text: str
    is_fatal: bool = False


@dataclass(frozen=True, slots=True)
class _Refusals:
    """Counts at one moment: envelopes received, refused as too old, and refused as from the future."""

    at: float
    received: float
    too_old: float
    from_future: float


class Health:
    """Judges what `Watch` sees. Times are Unix seconds of `clock`, which is judged, too."""

    def __init__(
        self,
        metrics: Metrics,
        peer_count: Callable[[], int],
        *,
        expects_compaction: bool,
        clock: Callable[[], float],
        ahead: Callable[[], float] = lambda: 0.0,
        archive_problem: Callable[[], str] = lambda: "",
        reading_problem: Callable[[], str] = lambda: "",
        workers: Callable[[], tuple[int, int]] = lambda: (1, 1),
        seen_by_any: Callable[[float], float] = lambda seen_at: seen_at,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take what to judge by.

        Args:
            expects_compaction: whether a compaction is set up, even if it has never run.
            ahead: how many seconds our clock is ahead of the time that has passed for certain.
            archive_problem: why the archive keeps anything from being deleted, on one line; "" if it does not.
            reading_problem: what was wrong with answering requests from the archive, on one line; "" if nothing was.
            workers: how many of the processes behind our port serve peers, and how many should.
            seen_by_any: is told when a peer was last connected here, in seconds of `monotonic`; returns when one last
                was to any of these processes.
        """
        self._metrics = metrics
        self._peer_count = peer_count
        self._expects_compaction = expects_compaction
        self._clock = clock
        self._ahead = ahead
        self._archive_problem = archive_problem
        self._reading_problem = reading_problem
        self._workers = workers
        self._seen_by_any = seen_by_any
        self._monotonic = monotonic
        self._started = monotonic()
        self._peers_seen = self._started
        self._workers_seen = self._started
        self._connections = self._count_connections()
        self._refusals: deque[_Refusals] = deque()
        self.problems: tuple[Problem, ...] = ()

    @property
    def is_ready(self) -> bool:
        """Whether the mailserver can do its work."""
        return not any(problem.is_fatal for problem in self.problems)

    def as_json(self) -> dict[str, object]:
        """The problems, for JSON."""
        problems = [
            {"check": problem.check.value, "fatal": problem.is_fatal, "text": problem.text} for problem in self.problems
        ]
        return {"problems": problems}

    def judge(self, sight: Sight) -> None:
        """Find the present problems; log what has changed."""
        found = (*self._store(sight), *self._disk(sight), *self._time(), *self._upkeep(sight), *self._peers())
        found += self._workers_away()
        before = {problem.check for problem in self.problems}
        for problem in found:
            if problem.check not in before:
                level = logging.ERROR if problem.is_fatal else logging.WARNING
                log.log(level, "problem check=%s text=%r", problem.check.value, problem.text)
        for check in sorted(before - {problem.check for problem in found}, key=lambda check: check.value):
            log.info("problem is over check=%s", check.value)
        self.problems = found

    def _store(self, sight: Sight) -> list[Problem]:
        problems = []
        if sight.store_problem:
            problems.append(Problem(Check.STORE, f"the store is not writable: {sight.store_problem}", is_fatal=True))
        if sight.store_damage:  # not fatal: what is undamaged is served
            problems.append(Problem(Check.DAMAGE, f"the store is damaged: {sight.store_damage}"))
        return problems

    def _disk(self, sight: Sight) -> list[Problem]:
        disk = sight.disk
        if disk is None or disk.free >= min(disk.size * NEARLY_FULL_SHARE, NEARLY_FULL_BYTES):
            return []
        what = "full" if disk.free < FULL_BYTES else "nearly full"
        text = f"the disk is {what}: {size_text(disk.free)} of {size_text(disk.size)} free"
        return [Problem(Check.DISK, text, is_fatal=disk.free < FULL_BYTES)]

    def _time(self) -> list[Problem]:
        """Judge our clock by the time that it shows, and by what peers send: they would not all be wrong."""
        now = self._clock()
        if now < NOT_BEFORE.timestamp():
            return [Problem(Check.CLOCK, f"the clock is wrong: it shows {_moment(now)}", is_fatal=True)]
        rejected = self._metrics.rejected
        latest = _Refusals(
            self._monotonic(),
            count_of(self._metrics.received),
            count_of(rejected[Verdict.VERY_OLD]),
            count_of(rejected[Verdict.FROM_THE_FUTURE]),
        )
        self._refusals.append(latest)
        while latest.at - self._refusals[0].at > CLOCK_WINDOW_S:
            self._refusals.popleft()
        first = self._refusals[0]
        received = latest.received - first.received
        for count, hand in (
            (latest.from_future - first.from_future, "came from the future: the clock here may be slow"),
            (latest.too_old - first.too_old, "had long expired: the clock here may be fast"),
        ):
            if count >= MIN_REFUSED and count * 2 > received:
                text = f"{count:.0f} of the last {received:.0f} envelopes {hand}"
                return [Problem(Check.CLOCK, text)]
        return self._leap()

    def _leap(self) -> list[Problem]:
        """Judge our clock by what it showed before."""
        days = self._ahead() / NOTABLE_S
        if days >= 1:
            text = (
                f"the clock is {days:.1f} days ahead of the time known to have passed; "
                "that is what ages are measured by until peers agree"
            )
        elif days <= -1:
            text = f"the clock is {-days:.1f} days behind the time that peers last agreed with"
        else:
            return []
        return [Problem(Check.CLOCK, text)]

    def _upkeep(self, sight: Sight) -> list[Problem]:
        return [*self._compaction(sight), *self._archive(sight)]

    def _archive(self, sight: Sight) -> list[Problem]:
        run = sight.compaction
        if run is not None and run.damage:  # however later runs went
            return [Problem(Check.ARCHIVE, f"the archive is damaged: {run.damage}")]
        if sight.upkeep_problem:
            return [Problem(Check.ARCHIVE, f"the archive: {sight.upkeep_problem}")]
        if reading := self._reading_problem():
            return [Problem(Check.ARCHIVE, reading)]
        problem = self._archive_problem()
        return [Problem(Check.ARCHIVE, f"envelopes beyond retention stay in the store: {problem}")] if problem else []

    def _compaction(self, sight: Sight) -> list[Problem]:
        run, figures = sight.compaction, sight.compaction_figures
        if sight.compaction_problem:
            return [Problem(Check.COMPACTION, sight.compaction_problem)]
        if run is None or figures is None:
            age = self._monotonic() - self._started
            is_late = self._expects_compaction and age > LATE_S
            return [Problem(Check.COMPACTION, "the compaction has never run")] if is_late else []
        if figures.has_died:
            return [Problem(Check.COMPACTION, f"the compaction that began at {_moment(run.started_at)} was killed")]
        if run.exit_code not in (None, 0, EXIT_DAMAGED):
            return [Problem(Check.COMPACTION, f"the last compaction failed: {run.error or run.exit_code}")]
        done = run.started_at if run.succeeded_at is None else run.succeeded_at
        age = self._clock() - done
        if age < -LATE_S:  # until then, no run would ever be late
            text = (
                f"the last successful compaction ended at {_moment(done)}, which is in the future: "
                "the clock is wrong, or it was"
            )
            return [Problem(Check.COMPACTION, text)]
        # A run at work makes up for missed ones, so it is late only if it hangs.
        if age > LATE_S and not (run.exit_code is None and self._clock() - run.started_at <= LATE_S):
            return [
                Problem(Check.COMPACTION, f"the compaction is late: the last successful run ended at {_moment(done)}")
            ]
        return []

    def _peers(self) -> list[Problem]:
        """Judge by who is connected, and by who has connected since the last look: most clients stay for seconds."""
        now = self._monotonic()
        before, self._connections = self._connections, self._count_connections()
        if self._peer_count() or self._connections > before:
            self._peers_seen = now
        self._peers_seen = max(self._peers_seen, self._seen_by_any(self._peers_seen))
        if now - self._peers_seen < NO_PEERS_S:
            return []
        text = f"no peer has been connected for {(now - self._peers_seen) / 60:.0f} min: is the port reachable?"
        return [Problem(Check.PEERS, text)]

    def _workers_away(self) -> tuple[Problem, ...]:
        running, expected = self._workers()
        now = self._monotonic()
        if running >= expected:
            self._workers_seen = now
        if now - self._workers_seen < WORKERS_AWAY_S:
            return ()
        text = f"only {running} of {expected} workers serve peers: the log says why the others end"
        return (Problem(Check.WORKERS, text),)

    def _count_connections(self) -> int:
        return sum(count.value for count in self._metrics.connections.values())


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
