"""mailserver.metrics.gateway: what a scrape of the gateway says, and what it must not say."""

from prometheus_client.exposition import generate_latest

from mailserver.metrics.gateway import (
    Bridging,
    ClientProtocol,
    Ending,
    GatewayCollector,
    GatewayFigures,
    GatewayMetrics,
)
from mailserver.metrics.labels import ArchiveRead

FIGURES = GatewayFigures(
    clients={"tcp": 2, "ws": 3},
    handshakes=4,
    subscribers=5,
    criteria=6,
    unread_bytes=7,
    unindexed=8,
    unindexed_periods=11,
    damaged=12,
    is_connected=True,
    feed_missed=9,
    refused_connections={"per_address": 10},
)


def scrape(metrics: GatewayMetrics) -> list[str]:
    return [line for line in generate_latest(metrics.registry).decode().splitlines() if not line.startswith("#")]


def test_state_is_read_when_somebody_asks() -> None:
    metrics = GatewayMetrics()
    metrics.registry.register(GatewayCollector(lambda: FIGURES))

    lines = scrape(metrics)

    assert [line for line in lines if line.startswith("gateway_clients")] == [
        'gateway_clients{transport="tcp"} 2.0',
        'gateway_clients{transport="ws"} 3.0',
    ]
    for line in (
        "gateway_handshakes 4.0",
        "gateway_subscribers 5.0",
        "gateway_criteria 6.0",
        "gateway_unread_bytes 7.0",
        "gateway_unindexed_envelopes 8.0",
        "gateway_unindexed_archive_periods 11.0",
        "gateway_connected 1.0",
        "gateway_feed_missed_envelopes_total 9.0",
        "gateway_damaged_envelopes 12.0",
        'gateway_refused_connections_total{reason="per_address"} 10.0',
    ):
        assert line in lines


def test_what_is_counted_where_it_happens_is_there_from_the_start() -> None:
    lines = scrape(GatewayMetrics())

    for each in Bridging:
        assert f'gateway_sent_messages_total{{result="{each.value}"}} 0.0' in lines
    for ending in Ending:
        assert f'gateway_ended_connections_total{{reason="{ending.value}"}} 0.0' in lines
    for use in ArchiveRead:
        assert f'gateway_archive_row_groups_total{{what="{use.value}"}} 0.0' in lines
    assert "gateway_pushes_total 0.0" in lines
    assert "gateway_internal_errors_total 0.0" in lines
    assert "gateway_dropped_pushes_total 0.0" in lines


def test_no_label_says_who_or_about_what() -> None:
    metrics = GatewayMetrics()
    metrics.registry.register(GatewayCollector(lambda: FIGURES))
    metrics.requests.labels(ClientProtocol.STORE.value, "200").inc()

    labels = {name for family in metrics.registry.collect() for sample in family.samples for name in sample.labels}

    assert labels == {"protocol", "code", "transport", "reason", "result", "le", "what", "cache"}
