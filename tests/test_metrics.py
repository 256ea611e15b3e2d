"""mailserver.metrics: names, units and labels, as Prometheus reads them."""

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from mailserver.metrics import SyncCollector, SyncFigures, new_registry

ONE = SyncFigures("abcd1234@192.0.2.1:30303", 86_400, 3, 250, 200, {"low_pow": 7, "oversize": 1}, False)
OTHER = SyncFigures("ef567890@[2001:db8::1]:30303", 0, 0, 0, 0, {}, True)


def exposed(*figures: SyncFigures) -> dict[tuple[str, tuple[str, ...]], float]:
    """What is exposed: values by name and labels."""
    registry = new_registry()
    registry.register(SyncCollector(lambda: figures))
    text = generate_latest(registry).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.values()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_every_figure_has_a_name_with_its_unit() -> None:
    assert exposed(ONE) == {
        ("mailserver_sync_left_seconds", (ONE.source,)): 86_400,
        ("mailserver_sync_set_aside", (ONE.source,)): 0,
        ("mailserver_sync_pages_total", (ONE.source,)): 3,
        ("mailserver_sync_fetched_envelopes_total", (ONE.source,)): 250,
        ("mailserver_sync_stored_envelopes_total", (ONE.source,)): 200,
        ("mailserver_sync_wrong_envelopes_total", (ONE.source, "low_pow")): 7,
        ("mailserver_sync_wrong_envelopes_total", (ONE.source, "oversize")): 1,
    }


def test_each_source_has_its_own_figures() -> None:
    figures = exposed(ONE, OTHER)

    assert figures["mailserver_sync_set_aside", (OTHER.source,)] == 1
    assert figures["mailserver_sync_pages_total", (OTHER.source,)] == 0
    assert figures["mailserver_sync_pages_total", (ONE.source,)] == 3


def test_figures_are_read_when_somebody_asks() -> None:
    asked = []

    def figures() -> list[SyncFigures]:
        asked.append(1)
        return []

    registry = new_registry()
    registry.register(SyncCollector(figures))
    before = len(asked)
    generate_latest(registry)

    assert len(asked) == before + 1


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mailserver_sync_left_seconds", "gauge"),
        ("mailserver_sync_set_aside", "gauge"),
        ("mailserver_sync_pages", "counter"),
        ("mailserver_sync_fetched_envelopes", "counter"),
        ("mailserver_sync_stored_envelopes", "counter"),
        ("mailserver_sync_wrong_envelopes", "counter"),
    ],
)
def test_counters_end_in_total_and_gauges_do_not(name: str, kind: str) -> None:
    families = {family.name: family for family in SyncCollector(lambda: [ONE]).collect()}

    assert families[name].type == kind
    assert families[name].documentation.endswith(".")


def test_registries_are_apart() -> None:
    registry = new_registry()
    registry.register(SyncCollector(lambda: [ONE]))

    assert generate_latest(new_registry()) == b""
