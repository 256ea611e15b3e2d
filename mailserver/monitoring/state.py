"""All that is known of how the mailserver is, in one place for whoever asks: Prometheus, commands, the status page."""

import asyncio
import time
from collections.abc import Callable, Iterable

from prometheus_client.registry import CollectorRegistry

from mailserver.codec.keys import Enode
from mailserver.metrics.figures import CatchupFigures, Figures, FiguresCollector, NodeFigures
from mailserver.metrics.registry import Metrics
from mailserver.monitoring.health import Health
from mailserver.monitoring.last_day import LastDay, encode_shown
from mailserver.monitoring.last_day_file import LastDayFile
from mailserver.monitoring.status import (
    Activity,
    CatchupStatus,
    CompactionStatus,
    LoggedError,
    PeersStatus,
    ProblemStatus,
    Queues,
    Status,
    Versions,
    days_of,
)
from mailserver.monitoring.watch import Watch


class Monitoring:
    """Looks after the figures while `run` runs."""

    def __init__(
        self,
        metrics: Metrics,
        watch: Watch,
        health: Health,
        history: LastDay,
        history_file: LastDayFile,
        *,
        enode: Enode,
        node: Callable[[], NodeFigures],
        sync: Callable[[], Iterable[CatchupFigures]],
        errors: Callable[[], Iterable[LoggedError]],
        clock: Callable[[], float],
    ) -> None:
        """Put together what looks; `node`, `sync` and `errors` read the node, how far catching up is, and the log."""
        self.health = health
        self.history = history
        self._history_file = history_file
        self._enode = enode
        self._errors = errors
        self._clock = clock
        self._started = time.monotonic()
        self._shown: str | None = None
        self._shown_turn = asyncio.Lock()
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
        """Look again and again, for ever; keep the history in its file."""
        self.history.begin(self._node())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch.run(self._on_look, self._on_change))
            tasks.create_task(self._history_file.keep())

    def figures(self) -> Figures:
        """What is."""
        sight = self._watch.sight
        return Figures(
            node=self._node(),
            store=sight.store,
            disk=sight.disk,
            compaction=sight.compaction_figures,
            memory_limit=sight.memory_limit,
            problems=frozenset(problem.check for problem in self.health.problems),
            is_ready=self.health.is_ready,
            sync=tuple(self._sync()),
        )

    def status(self) -> Status:
        """What is, and what was, for people."""
        node, sight = self._node(), self._watch.sight
        last_minute = self.history.last_minute()
        archived = {} if sight.compaction is None else sight.compaction.archived
        return Status(
            versions=Versions(),
            time=round(self._clock(), 3),
            uptime_s=round(time.monotonic() - self._started, 3),
            enode=str(self._enode),
            ready=self.health.is_ready,
            problems=tuple(map(ProblemStatus.of, self.health.problems)),
            peers=PeersStatus.of(node),
            minute=None if last_minute is None else Activity.of(last_minute),
            day=Activity.of(self.history.minutes()),
            queues=Queues.of(node),
            store=sight.store,
            disk=sight.disk,
            compaction=CompactionStatus.of(sight),
            catching_up=CatchupStatus.of(self._sync()),
            days=days_of(sight.days, archived),
            errors=tuple(self._errors()),
        )

    async def history_json(self) -> str:
        """The last 24 hours, minute by minute, as JSON; made once for all who ask between two looks."""
        async with self._shown_turn:
            if self._shown is None:
                self._shown = await asyncio.to_thread(encode_shown, self.history.minutes())
            return self._shown

    def _on_change(self) -> None:
        self.health.judge(self._watch.sight)

    def _on_look(self) -> None:
        self._on_change()
        self.history.note(self._node(), self._watch.take_worst_lag())
        self._shown = None
