"""All that is known of how the mailserver is, in one place for whoever asks: Prometheus, commands, the status page."""

from collections.abc import Callable, Iterable

from prometheus_client.registry import CollectorRegistry

from mailserver.metrics import Figures, FiguresCollector, Metrics, NodeFigures, SyncFigures
from mailserver.monitoring.health import Health
from mailserver.monitoring.watch import Watch


class Monitoring:
    """Looks after the figures while `run` runs."""

    def __init__(
        self,
        metrics: Metrics,
        watch: Watch,
        health: Health,
        *,
        node: Callable[[], NodeFigures],
        sync: Callable[[], Iterable[SyncFigures]],
    ) -> None:
        """Put together what looks; `node` and `sync` read the node and how far catching up is."""
        self.health = health
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
        """Look again and again, for ever."""
        await self._watch.run(self._on_look)

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

    def _on_look(self) -> None:
        self.health.judge(self._watch.sight)
