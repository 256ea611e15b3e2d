"""docs/metrics.md has every metric that there is, with its type, labels and meaning, and no other."""

import re

from tests.monitoring.prometheus import ROOT
from tests.monitoring.samples import FIGURES, GATEWAY_FIGURES, of_communities, of_gateway, with_figures

DOCUMENT = ROOT / "docs" / "metrics.md"

_ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| (.+?) \| (.+?) \| .+ \|$", re.MULTILINE)

Described = dict[str, tuple[str, tuple[str, ...], str]]
"""Type, labels in the order of the alphabet, meaning; by name."""


def exposed() -> Described:
    """What is there to scrape, of a mailserver, its gateway and `community serve`."""
    metrics = with_figures(FIGURES)
    for by_request in (
        metrics.delivery_duration.labels("topics", "delivered"),
        metrics.delivery_first_packet.labels("topics", "delivered"),
    ):
        by_request.observe(1.0)
    metrics.delivered.labels("topics", "delivered").inc()
    metrics.delivered_bytes.labels("topics", "delivered").inc()
    found: Described = {}
    for registry in (metrics.registry, of_gateway(GATEWAY_FIGURES).registry, of_communities()):
        for family in registry.collect():
            name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            found[name] = (family.type, tuple(sorted(labels)), family.documentation)
    return found


def test_document_has_every_metric_and_no_other() -> None:
    text = DOCUMENT.read_text(encoding="utf-8").partition("\n## Labels\n")[0]
    described = {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)), meaning)
        for name, kind, labels, meaning in _ROW.findall(text)
    }

    assert described == exposed()


def test_document_has_every_value_of_the_labels() -> None:
    text = DOCUMENT.read_text(encoding="utf-8").partition("\n## Labels\n")[2]
    registries = (with_figures(FIGURES).registry, of_gateway(GATEWAY_FIGURES).registry, of_communities())
    families = [family for registry in registries for family in registry.collect()]

    values = {
        value
        for family in families
        if family.type in ("counter", "gauge")
        for sample in family.samples
        for label, value in sample.labels.items()
        if label not in ("source", "community")
    }
    assert {value for value in values if f"`{value}`" not in text} == set()
