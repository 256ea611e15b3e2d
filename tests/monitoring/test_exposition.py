"""mailserver.monitoring.exposition: metrics are true as long as there is time to write them."""

from collections.abc import Iterable

from prometheus_client import Counter
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from mailserver.monitoring.exposition import BURST_S, MAX_SHARE, Exposition

WRITING_S = 0.02
"""How long it takes to write the metrics of a world."""


class World(Collector):
    """Metrics that take a time to write, a clock, and how long this thread has worked."""

    def __init__(self, waiting_s: float = 0.0) -> None:
        self.now = self.worked = 1000.0
        self.waiting_s = waiting_s
        registry = CollectorRegistry()
        self.count = Counter("things", "Things.", registry=registry)
        self.exposition = Exposition(registry, clock=lambda: self.now, worked=lambda: self.worked)
        registry.register(self)  # which collects once
        self.written = 0

    def collect(self) -> Iterable[Metric]:
        self.written += 1
        self.now += WRITING_S + self.waiting_s
        self.worked += WRITING_S
        return ()

    def counted(self) -> float:
        """What is told of the count."""
        lines = self.exposition.text().decode().splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith("things_total "))


def test_each_text_is_of_its_moment_while_few_are_asked_for() -> None:
    world = World()

    for number in range(1, 100):
        world.count.inc()
        world.now += WRITING_S / MAX_SHARE
        assert world.counted() == number


def test_whoever_asks_without_a_pause_takes_no_more_than_its_share_of_the_time() -> None:
    world = World()

    asked = 0
    while world.now < 1100:
        world.exposition.text()
        world.now += 0.001
        asked += 1

    assert asked > 90_000
    assert world.written * WRITING_S <= BURST_S + 101 * MAX_SHARE
    assert world.written * WRITING_S >= 100 * MAX_SHARE


def test_text_is_of_the_present_again_as_soon_as_there_is_time() -> None:
    world = World()
    for _ in range(100):  # more than there is time for
        world.exposition.text()
    world.count.inc()

    assert world.counted() == 0
    world.now += BURST_S / MAX_SHARE
    assert world.counted() == 1


def test_time_that_is_spent_waiting_for_others_does_not_count() -> None:
    world = World(waiting_s=1.0)

    for number in range(1, 100):
        world.count.inc()
        assert world.counted() == number
