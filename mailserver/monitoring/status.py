"""The state of a running mailserver as one value, for /status.json, the status page and `waku-mailserver status`.

`docs/status.md` describes each field. Everybody who can reach the metrics address can read it, so it identifies no
peer: no address, no node ID but our own, no topic, and only our own words of logged errors.
"""

import platform
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from prometheus_client import Counter, Gauge

from mailserver import __version__
from mailserver.communities.progress import CommunityProgress
from mailserver.handoff.communities import Served
from mailserver.handoff.last_run import ENDS, MAX_ARCHIVED_DAYS, ArchivedDay, CompactionState
from mailserver.metrics.figures import CatchupFigures, DiskFigures, NodeFigures, StoreFigures
from mailserver.metrics.labels import Direction, PostResult
from mailserver.metrics.registry import Metrics
from mailserver.monitoring.health import Problem
from mailserver.monitoring.last_day import Minutes
from mailserver.monitoring.watch import Sight
from mailserver.store.interface import ReceptionDay
from mailserver.units import SECONDS_PER_DAY


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions of what is running."""

    mailserver: str = __version__
    python: str = platform.python_version()
    sqlite: str = sqlite3.sqlite_version


@dataclass(frozen=True, slots=True)
class ProblemStatus:
    """Something is wrong. If `fatal`, the mailserver cannot do its work."""

    check: str
    fatal: bool
    text: str

    @classmethod
    def of(cls, problem: Problem) -> "ProblemStatus":
        """Show a problem."""
        return cls(problem.check.value, problem.is_fatal, problem.text)


@dataclass(frozen=True, slots=True)
class WorkersStatus:
    """How many processes serve peers, and how many there are to be."""

    running: int
    expected: int


@dataclass(frozen=True, slots=True)
class PeersStatus:
    """Connected peers, by who dialled and by program."""

    inbound: dict[str, int]
    outbound: dict[str, int]
    max: int
    handshakes: int

    @classmethod
    def of(cls, node: NodeFigures) -> "PeersStatus":
        """Show who is connected."""

        def dialled(direction: Direction) -> dict[str, int]:
            return {client.value: count for (way, client), count in node.peers.items() if way is direction}

        return cls(dialled(Direction.IN), dialled(Direction.OUT), node.max_peers, node.handshakes)


@dataclass(frozen=True, slots=True)
class Activity:
    """What happened in a span of minutes. Answer times are None if there were no answers."""

    received: int
    taken: int
    refused: int
    stored: int
    delivered: int
    rejected: int
    failed: int
    lost: int
    connected: int
    bytes_in: int
    bytes_out: int
    median_s: float | None
    p95_s: float | None
    lag_s: float

    @classmethod
    def of(cls, minutes: Minutes) -> "Activity":
        """Add up minutes."""
        totals = {column.value: int(total) for column, total in minutes.totals().items()}
        times = minutes.answer_times()
        return cls(
            **totals,
            median_s=None if times is None else round(times.median_s, 6),
            p95_s=None if times is None else round(times.p95_s, 6),
            lag_s=round(minutes.worst_lag(), 6),
        )


@dataclass(frozen=True, slots=True)
class Queues:
    """What is waiting: for the disk, for peers, for its turn."""

    store_envelopes: int
    store_bytes: int
    relay_envelopes: int
    relay_bytes: int
    requests: int

    @classmethod
    def of(cls, node: NodeFigures) -> "Queues":
        """Show what is waiting."""
        return cls(
            node.writer_envelopes, node.writer_bytes, node.relay_envelopes, node.relay_bytes, node.requests_waiting
        )


@dataclass(frozen=True, slots=True)
class CompactionStatus:
    """The last run of the compaction."""

    state: str
    started_at: float
    finished_at: float | None
    exit_code: int | None
    rows: int
    seconds: float
    succeeded_at: float | None
    verified_at: float | None

    @classmethod
    def of(cls, sight: Sight) -> "CompactionStatus | None":
        """Show the last run; None if there has been none, or its record cannot be read."""
        run, figures = sight.compaction, sight.compaction_figures
        if run is None or figures is None:
            return None
        if figures.is_running:
            state = CompactionState.RUNNING
        elif figures.has_died:
            state = CompactionState.DIED
        else:
            state = ENDS.get(run.exit_code or 0, CompactionState.FAILED)
        return cls(
            state=state.value,
            started_at=run.started_at,
            finished_at=run.finished_at,
            exit_code=run.exit_code,
            rows=run.rows,
            seconds=run.seconds,
            succeeded_at=run.succeeded_at,
            verified_at=figures.verified_at,
        )


@dataclass(frozen=True, slots=True)
class CatchupStatus:
    """The progress of catching up, with all sources together."""

    sources: int
    set_aside: int
    left_s: int
    fetched: int
    stored: int

    @classmethod
    def of(cls, sources: Iterable[CatchupFigures]) -> "CatchupStatus":
        """Combine sources. `left_s` is that of the source with the most left to fetch."""
        known = list(sources)
        return cls(
            sources=len(known),
            set_aside=sum(source.is_set_aside for source in known),
            left_s=max((source.left_s for source in known), default=0),
            fetched=sum(source.fetched for source in known),
            stored=sum(source.stored for source in known),
        )


@dataclass(frozen=True, slots=True)
class GatewaysStatus:
    """The gateways at the feed socket, all together, since the start. `communities`: services for communities there."""

    connected: int
    communities: int
    sent: int
    missed: int
    posts_stored: int
    posts_refused: int
    posts_failed: int

    @classmethod
    def of(cls, metrics: Metrics) -> "GatewaysStatus":
        """Show what has been counted."""
        posts = {result: _total(counter) for result, counter in metrics.gateway_posts.items()}
        return cls(
            connected=_total(metrics.gateways),
            communities=_total(metrics.communities),
            sent=_total(metrics.gateway_envelopes),
            missed=_total(metrics.gateway_missed),
            posts_stored=posts[PostResult.STORED],
            posts_refused=posts[PostResult.REFUSED] + posts[PostResult.MALFORMED],
            posts_failed=posts[PostResult.FAILED],
        )


def _total(metric: Counter | Gauge) -> int:
    """What a metric of the library stands at."""
    (family,) = metric.collect()
    return int(family.samples[0].value)


@dataclass(frozen=True, slots=True)
class WeekStatus:
    """A week of a community that has history archives: from `lower` to `upper`.

    `fetched`: whether a member has it all, or peers have got it all from us. `fetched_times`, `fetched_at`: how often
    at least, and when something of it last; None for a member.
    """

    lower: int
    upper: int
    archives: int
    distributed: bool
    seeding: bool
    fetched: bool
    fetched_times: int | None
    fetched_at: int | None


@dataclass(frozen=True, slots=True)
class CommunityStatus:
    """A community that is ours, or was joined."""

    id: str
    role: str
    weeks: tuple[WeekStatus, ...]
    late_weeks: int | None
    announced_at: float | None
    peers: int
    uploaded: int
    downloaded: int
    problem: str | None

    @classmethod
    def of(cls, community: CommunityProgress, *, is_served: bool) -> "CommunityStatus":
        """Show a community. Nothing is seeded, and nobody is connected, while it is not served."""
        weeks = (
            WeekStatus(
                week.lower,
                week.upper,
                week.archives,
                week.is_distributed,
                week.is_seeding and is_served,
                week.is_fetched,
                week.fetched_times,
                week.fetched_at,
            )
            for week in community.weeks
        )
        return cls(
            id=community.id,
            role=community.role.value,
            weeks=tuple(weeks),
            late_weeks=community.late_weeks,
            announced_at=community.announced_at,
            peers=community.peers if is_served else 0,
            uploaded=community.uploaded,
            downloaded=community.downloaded,
            problem=community.problem or None,
        )


@dataclass(frozen=True, slots=True)
class CommunitiesStatus:
    """What `community serve` has said last, at `at`. `running`: whether that was just now."""

    at: float | None
    running: bool
    known: tuple[CommunityStatus, ...]

    @classmethod
    def of(cls, served: Served | None, now: float) -> "CommunitiesStatus":
        """Show what was served."""
        if served is None:
            return cls(None, False, ())
        is_served = served.is_current(now)
        known = (CommunityStatus.of(each, is_served=is_served) for each in served.communities)
        return cls(served.at, is_served, tuple(known))


@dataclass(frozen=True, slots=True)
class DayStatus:
    """One reception day. None means that the store, or the archive, has nothing of it."""

    day: str
    store_envelopes: int | None
    store_bytes: int | None
    archive_envelopes: int | None
    archive_bytes: int | None


@dataclass(frozen=True, slots=True)
class LoggedError:
    """A warning or an error of the log: its last occurrence. `text` contains no words of strangers."""

    time: float
    level: str
    text: str
    count: int


@dataclass(frozen=True, slots=True)
class Status:
    """The state of the mailserver."""

    versions: Versions
    time: float
    uptime_s: float
    enode: str
    ready: bool
    problems: tuple[ProblemStatus, ...]
    workers: WorkersStatus
    peers: PeersStatus
    minute: Activity | None
    day: Activity
    queues: Queues
    store: StoreFigures | None
    disk: DiskFigures | None
    compaction: CompactionStatus | None
    catching_up: CatchupStatus
    gateways: GatewaysStatus
    communities: CommunitiesStatus
    days: tuple[DayStatus, ...]
    errors: tuple[LoggedError, ...]

    def as_json(self) -> dict[str, object]:
        """The state, for JSON."""
        return asdict(self)


def days_of(stored: Iterable[ReceptionDay], archived: Mapping[int, ArchivedDay]) -> tuple[DayStatus, ...]:
    """What store and archive have of each day, the oldest first: the last MAX_ARCHIVED_DAYS of which either has any."""
    by_day = {day.day: day for day in stored}
    days = []
    for day in sorted(by_day.keys() | archived.keys())[-MAX_ARCHIVED_DAYS:]:
        here, there = by_day.get(day), archived.get(day)
        days.append(
            DayStatus(
                day=datetime.fromtimestamp(day * SECONDS_PER_DAY, UTC).date().isoformat(),
                store_envelopes=None if here is None else here.envelopes,
                store_bytes=None if here is None else here.bytes,
                archive_envelopes=None if there is None else there.rows,
                archive_bytes=None if there is None else there.bytes,
            )
        )
    return tuple(days)
