"""mailserver.metrics.registry: names, units and labels, as Prometheus reads them."""

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from mailserver.errors import DisconnectReason, Rejection
from mailserver.metrics.collector import FiguresCollector
from mailserver.metrics.figures import Figures
from mailserver.metrics.labels import Check, ClientFamily
from mailserver.metrics.registry import Metrics, count_of
from mailserver.waku.acceptance import Verdict
from tests.monitoring.samples import FIGURES, NODE, SYNC, with_figures

UNITS = ("_bytes", "_seconds", "_envelopes", "_total")
UNITLESS = {
    "mailserver_archive_faulty_files",
    "mailserver_archive_lost_rows",
    "mailserver_archive_miscounted_rows",
    "mailserver_archive_quarantined_rows",
    "mailserver_build_info",
    "mailserver_communities",
    "mailserver_compaction_died",
    "mailserver_compaction_last_exit_code",
    "mailserver_compaction_rows",
    "mailserver_compaction_running",
    "mailserver_database_connections",
    "mailserver_database_connections_max",
    "mailserver_database_lock_waits",
    "mailserver_database_notification_queue_ratio",
    "mailserver_database_partitions",
    "mailserver_handshakes",
    "mailserver_gateways",
    "mailserver_peers",
    "mailserver_problem",
    "mailserver_ready",
    "mailserver_requests_waiting",
    "mailserver_sync_set_aside",
    "p2p_peers_max",
}


def families(metrics: Metrics) -> dict[str, Metric]:
    """What is exposed, by name."""
    text = generate_latest(metrics.registry).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def values(family: Metric) -> dict[tuple[str, ...], float]:
    """The values of a family by its labels, in the order of their names."""
    return {tuple(sample.labels[name] for name in sorted(sample.labels)): sample.value for sample in family.samples}


def test_figures_are_exposed_under_their_names() -> None:
    exposed = families(with_figures(FIGURES))

    of = {name: values(exposed[name]) for name in exposed if name.startswith(("mailserver_", "waku_", "p2p_"))}
    assert of["mailserver_peers"]["status-go", "in"] == 7
    assert of["mailserver_peers"]["waku-mailserver", "out"] == 1
    assert of["mailserver_peers"]["geth", "in"] == 0
    assert of["p2p_peers_max"] == {(): 500}
    assert of["mailserver_handshakes"] == {(): 2}
    assert of["mailserver_network_bytes"] == {("in",): 1000, ("out",): 2000}
    assert of["mailserver_queue_envelopes"] == {("store",): 3, ("relay",): 4}
    assert of["mailserver_queue_bytes"] == {("store",): 300, ("relay",): 400}
    assert of["mailserver_requests_waiting"] == {(): 5}
    assert of["mailserver_connections_refused"] == {("too_fast",): 6, ("address_full",): 0}
    assert of["waku_rate_limits_exceeded"] == {("topic",): 8}
    assert of["mailserver_store_envelopes"] == {(): 1000}
    assert of["mailserver_store_bytes"] == {(): 600_000}
    assert of["mailserver_store_file_bytes"] == {(): 700_000}
    assert of["mailserver_store_wal_bytes"] == {(): 80_000}
    assert of["mailserver_store_oldest_timestamp_seconds"] == {(): 1_795_000_000}
    assert of["mailserver_disk_free_bytes"] == {(): 10**9}
    assert of["mailserver_disk_size_bytes"] == {(): 10**11}
    assert of["mailserver_compaction_last_run_timestamp_seconds"] == {(): 1_795_200_000.5}
    assert of["mailserver_compaction_last_exit_code"] == {(): 1}
    assert of["mailserver_compaction_rows"] == {(): 12}
    assert of["mailserver_compaction_duration_seconds"] == {(): 34.5}
    assert of["mailserver_compaction_last_success_timestamp_seconds"] == {(): 1_795_100_000}
    assert of["mailserver_archive_verified_timestamp_seconds"] == {(): 1_795_099_999}
    assert of["mailserver_compaction_running"] == {(): 0}
    assert of["mailserver_compaction_died"] == {(): 1}
    assert of["mailserver_memory_limit_bytes"] == {(): 2**30}
    assert of["mailserver_ready"] == {(): 0}
    assert of["mailserver_problem"] == {(check.value,): check is Check.DISK for check in Check}
    assert of["mailserver_sync_left_seconds"] == {(SYNC.source,): 86_400, ("other",): 86_400}
    assert of["mailserver_sync_set_aside"] == {(SYNC.source,): 0, ("other",): 1}
    assert of["mailserver_sync_pages"][SYNC.source,] == 3
    assert of["mailserver_sync_fetched_envelopes"][SYNC.source,] == 250
    assert of["mailserver_sync_stored_envelopes"][SYNC.source,] == 200
    assert of["mailserver_sync_wrong_envelopes"]["low_pow", SYNC.source] == 7


def test_what_is_not_known_is_left_out() -> None:
    exposed = families(with_figures(Figures(node=NODE)))

    assert not [name for name in exposed if name.startswith(("mailserver_store", "mailserver_disk"))]
    assert not [name for name in exposed if name.startswith(("mailserver_compaction", "mailserver_archive"))]
    assert "mailserver_memory_limit_bytes" not in exposed


def test_names_have_units_and_help() -> None:
    exposed = families(with_figures(FIGURES))

    ours = {name for name in exposed if not name.startswith(("process_", "python_"))}
    assert ours > UNITLESS
    for name in ours:
        family = exposed[name]
        assert family.documentation.endswith(".")
        for sample in family.samples:
            if family.type == "counter":
                assert sample.name.endswith("_total")
            elif family.type == "gauge" and name not in UNITLESS:
                assert sample.name.endswith(UNITS[:3])
                assert not sample.name.endswith("_total")


def test_figures_are_read_when_somebody_asks() -> None:
    asked = []

    def read() -> Figures:
        asked.append(1)
        return FIGURES

    metrics = Metrics()
    metrics.registry.register(FiguresCollector(read))
    before = len(asked)
    generate_latest(metrics.registry)

    assert len(asked) == before + 1


def test_series_of_closed_labels_are_there_before_anything_happens() -> None:
    exposed = families(Metrics())

    assert set(values(exposed["waku_envelopes_rejected"])) == {
        (verdict.name.lower(),) for verdict in Verdict if verdict is not Verdict.ACCEPTED
    }
    assert set(values(exposed["mailserver_requests_rejected"])) == {(reason.name.lower(),) for reason in Rejection}
    assert set(values(exposed["mailserver_disconnects"])) == {(reason.name.lower(),) for reason in DisconnectReason}
    assert len(values(exposed["mailserver_requests"])) == 4 * 4


def test_daemons_of_one_process_are_apart() -> None:
    one, other = Metrics(), Metrics()

    one.received.inc(3)

    assert count_of(one.received) == 3
    assert count_of(other.received) == 0


def test_sizes_are_counted_in_buckets_that_double() -> None:
    metrics = Metrics()

    for size in (1, 256, 257, 512, 1024 * 1024, 1024 * 1024 + 1):
        metrics.sizes.observe(size)

    samples = {
        (sample.name, sample.labels.get("le")): sample.value
        for sample in families(metrics)["waku_envelopes_size_bytes"].samples
    }
    assert samples["waku_envelopes_size_bytes_bucket", "256.0"] == 2
    assert samples["waku_envelopes_size_bytes_bucket", "512.0"] == 4
    assert samples["waku_envelopes_size_bytes_bucket", "1048576.0"] == 5
    assert samples["waku_envelopes_size_bytes_bucket", "+Inf"] == 6
    assert samples["waku_envelopes_size_bytes_count", None] == 6
    assert samples["waku_envelopes_size_bytes_sum", None] == 1 + 256 + 257 + 512 + 2 * 1024 * 1024 + 1


@pytest.mark.parametrize(
    ("client_id", "family"),
    [
        ("StatusIM/v0.77.0/linux-amd64/go1.18", ClientFamily.STATUS_GO),
        ("statusd/v0.100.0/linux-amd64/go1.18", ClientFamily.STATUS_GO),
        ("nim-waku/v0.1", ClientFamily.NIM),
        ("Nimbus", ClientFamily.NIM),
        ("waku-mailserver/v0.1.0/linux/python3.11", ClientFamily.OURS),
        ("Geth/v1.10", ClientFamily.GETH),
        ("x" * 1000, ClientFamily.OTHER),
        ("", ClientFamily.OTHER),
    ],
)
def test_client_is_told_by_the_beginning_of_its_name(client_id: str, family: ClientFamily) -> None:
    assert ClientFamily.of(client_id) is family
