"""docker/grafana/dashboards/mailserver.json: whole, and about the metrics that there are."""

import itertools
import re

from tests.monitoring.prometheus import ALERTS, dashboard, metrics_in, panels, queries
from tests.monitoring.test_metrics_documentation import DOCUMENT, exposed

DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
LEFT_OUT = {
    "mailserver_envelopes_timely_total",
    "mailserver_sent_envelope_batch_size_bytes",
    "process_virtual_memory_bytes",
}
"""docs/metrics.md says why."""


def shown() -> set[str]:
    """The metrics in panels and alerts."""
    alerts = "".join(line for line in ALERTS.read_text(encoding="utf-8").splitlines(True) if "#" not in line[:9])
    return metrics_in(alerts).union(*(metrics_in(query.expression) for query in queries()))


def test_every_metric_has_a_panel_or_an_alert() -> None:
    assert shown() | LEFT_OUT == set(exposed())
    assert not shown() & LEFT_OUT
    reasons = DOCUMENT.read_text(encoding="utf-8").partition("\n## What no panel and no alert uses\n")[2]
    assert metrics_in(reasons) == LEFT_OUT


def test_counters_are_shown_as_rates_and_others_are_not() -> None:
    types = {name: kind for name, (kind, _, _) in exposed().items()}

    for query in queries():
        rated = {name for match in re.findall(r"rate\((\w+)", query.expression) for name in metrics_in(match)}
        counted = {name for name in metrics_in(query.expression) if types[name] in ("counter", "histogram")}
        assert rated == counted, query


def test_labels_in_queries_are_those_of_the_metric() -> None:
    labels = {name: set(of) | {"instance", "le", "job"} for name, (_, of, _) in exposed().items()}

    for query in queries():
        for name, selector in re.findall(r"(\w+)\{(.*?)\}", query.expression):
            (metric,) = metrics_in(name)
            assert set(re.findall(r"(\w+)=", selector)) <= labels[metric], query
        for grouping in re.findall(r"by \((.*?)\)", query.expression):
            assert set(grouping.split(", ")) <= set().union(*(labels[name] for name in metrics_in(query.expression)))


def test_each_query_is_of_the_process_that_is_chosen() -> None:
    for query in queries():
        kinds = {name.partition("_")[0] for name in metrics_in(query.expression)}
        selected = re.findall(r'\{instance="\$(\w+)"', query.expression)
        assert len(selected) == len(re.findall(r"\w+\{", query.expression)) > 0, query
        if kinds != {"process"}:  # which all have
            (kind,) = kinds if len(kinds) == 1 else {"mailserver"}
            assert set(selected) == {{"gateway": "gateway", "community": "communities"}.get(kind, "instance")}, query


def test_each_panel_has_a_title_a_unit_and_says_what_to_do() -> None:
    for panel in panels():
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["type"] == "state-timeline" or panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"] == DATA_SOURCE


def test_panels_have_ids_and_places_of_their_own() -> None:
    everything = dashboard()["panels"]
    places = [panel["gridPos"] for panel in everything]

    assert [panel["id"] for panel in everything] == list(range(1, len(everything) + 1))
    assert [(place["y"], place["x"]) for place in places if place["h"] == 1] == sorted(
        (place["y"], place["x"]) for place in places if place["h"] == 1
    )
    assert all(0 <= place["x"] < place["x"] + place["w"] <= 24 for place in places)
    for one, other in itertools.combinations(places, 2):
        assert (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )


def test_it_is_found_by_its_id_and_chooses_the_provisioned_data_source() -> None:
    board = dashboard()

    assert (board["uid"], board["schemaVersion"]) == ("waku-mailserver", 41)
    data_source, *chosen = board["templating"]["list"]
    assert data_source["current"]["value"] == "prometheus"
    assert [(each["name"], each["datasource"]) for each in chosen] == [
        ("instance", DATA_SOURCE),
        ("gateway", DATA_SOURCE),
        ("communities", DATA_SOURCE),
    ]
