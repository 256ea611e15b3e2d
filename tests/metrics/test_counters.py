"""mailserver.metrics.counters: what is exposed is what was counted, as the library's own metrics have it."""

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.exposition import generate_latest

from mailserver.metrics.counters import PlainCounter, PlainHistogram

disable_created_metrics()  # type: ignore[no-untyped-call]  # as mailserver.metrics.registry does

BOUNDS = (0.5, 1.0, 2.5)


def text_of(registry: CollectorRegistry) -> str:
    return generate_latest(registry).decode()


def test_counts_are_exposed_as_the_library_does() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    counter = PlainCounter("waku_things_total", "Things.", "of", ("this", "that"))
    ours.register(counter)
    library = Counter("waku_things_total", "Things.", ("of",), registry=theirs)

    for value, amount in (("this", 1), ("that", 20), ("this", 300)):
        counter.counts[value].inc(amount)
        library.labels(value).inc(amount)

    assert text_of(ours) == text_of(theirs)


def test_count_without_labels_is_exposed_as_the_library_does() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    counter = PlainCounter("waku_things_total", "Things.")
    ours.register(counter)
    Counter("waku_things_total", "Things.", registry=theirs).inc(2)

    counter.counts[""].inc()
    counter.counts[""].inc()

    assert text_of(ours) == text_of(theirs)


@pytest.mark.parametrize("values", [[], [0.5], [0.0, 0.4, 0.5, 0.6, 1.0, 2.5, 2.6, 100.0]])
def test_measurements_are_exposed_as_the_library_does(values: list[float]) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    histogram = PlainHistogram("waku_things_seconds", "Things.", BOUNDS)
    ours.register(histogram)
    library = Histogram("waku_things_seconds", "Things.", buckets=BOUNDS, registry=theirs)

    for value in values:
        histogram.observe(value)
        library.observe(value)

    assert text_of(ours) == text_of(theirs)
