"""The state of the mailserver in one place, for Prometheus, commands and the status page."""

import asyncio
import time
from collections.abc import Callable, Iterable

from prometheus_client.registry import CollectorRegistry

from mailserver.codec.keys import Enode
from mailserver.metrics.collector import FiguresCollector
from mailserver.metrics.figures import CatchupFigures, Figures, NodeFigures
from mailserver.metrics.registry import Metrics
from mailserver.monitoring.health import Health
from mailserver.monitoring.last_day import LastDay, encode_shown
from mailserver.monitoring.last_day_file import LastDayFile
from mailserver.monitoring.status import (
    Activity,
    CatchupStatus,
    CommunitiesStatus,
    CompactionStatus,
    GatewaysStatus,
    LoggedError,
    PeersStatus,
    ProblemStatus,
    Queues,
    Status,
    Versions,
    WorkersStatus,
    days_of,
)
from mailserver.monitoring.watch import Watch


class Monitoring:
    """Collects the figures while `run` runs."""

    def __init__(
        self,
        metrics: Metrics,
        watch: Watch,
        health: Health,
        last_day: LastDay,
        last_day_file: LastDayFile,
        *,
        enode: Enode,
        node: Callable[[], NodeFigures],
        sync: Callable[[], Iterable[CatchupFigures]],
        errors: Callable[[], Iterable[LoggedError]],
        clock: Callable[[], float],
        workers: Callable[[], tuple[int, int]] = lambda: (1, 1),
    ) -> None:
        """Take what collects figures. `node`, `sync` and `errors` read the node, catching up and the log; `workers` how
        many there are, and how many there are to be."""
        self.health = health
        self.last_day = last_day
        self._last_day_file = last_day_file
        self._enode = enode
        self._errors = errors
        self._workers = workers
        self._clock = clock
        self._started = time.monotonic()
        self._history_json: str | None = None
        self._encoding = asyncio.Lock()
        self._metrics = metrics
        self._watch = watch
        self._node = node
        self._sync = sync
        metrics.registry.register(FiguresCollector(self.figures))

    @property
    def registry(self) -> CollectorRegistry:
        """All metrics."""
        return self._metrics.registry

    async def run(self) -> None:
        """Watch forever, and keep the last day in its file."""
        self.last_day.begin(self._node())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch.run(self._on_look, self._on_change))
            tasks.create_task(self._last_day_file.keep())

    def figures(self) -> Figures:
        """The present figures, for Prometheus."""
        sight = self._watch.sight
        return Figures(
            node=self._node(),
            store=sight.store,
            database=sight.database,
            disk=sight.disk,
            compaction=sight.compaction_figures,
            memory_limit=sight.memory_limit,
            problems=frozenset(problem.check for problem in self.health.problems),
            is_ready=self.health.is_ready,
            sync=tuple(self._sync()),
        )

    def status(self) -> Status:
        """The present state and the last day, for people."""
        node, sight = self._node(), self._watch.sight
        last_minute = self.last_day.last_minute()
        archived = {} if sight.compaction is None else sight.compaction.archived
        return Status(
            versions=Versions(),
            time=round(self._clock(), 3),
            uptime_s=round(time.monotonic() - self._started, 3),
            enode=str(self._enode),
            ready=self.health.is_ready,
            problems=tuple(map(ProblemStatus.of, self.health.problems)),
            workers=WorkersStatus(*self._workers()),
            peers=PeersStatus.of(node),
            minute=None if last_minute is None else Activity.of(last_minute),
            day=Activity.of(self.last_day.minutes()),
            queues=Queues.of(node),
            store=sight.store,
            disk=sight.disk,
            compaction=CompactionStatus.of(sight),
            catching_up=CatchupStatus.of(self._sync()),
            gateways=GatewaysStatus.of(self._metrics),
            communities=CommunitiesStatus.of(sight.served, self._clock()),
            days=days_of(sight.days, archived),
            errors=tuple(self._errors()),
        )

    async def history_json(self) -> str:
        """The last 24 hours, minute by minute, as JSON. It is encoded once between two looks, whoever asks."""
        async with self._encoding:
            if self._history_json is None:
                self._history_json = await asyncio.to_thread(encode_shown, self.last_day.minutes())
            return self._history_json

    def _on_change(self) -> None:
        self.health.judge(self._watch.sight)

    def _on_look(self) -> None:
        self._on_change()
        self.last_day.note(self._node(), self._watch.take_worst_lag())
        self._history_json = None
