"""bench.gateway: a run through daemon, feed socket and gateway; pushes are compared with what was posted."""

import random
from pathlib import Path

import pytest

from bench.data import envelope
from bench.gateway_report import gateway_text
from bench.gateway_results import (
    GatewayResults,
    IdleClientsRun,
    LightHandshakesRun,
    MessageHistory,
    Pushes,
    PushesRun,
    Queries,
    QueriesRun,
    SentRun,
)
from bench.light_clients import compare, posted_of
from mailserver.ids.envelopes import message_of
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.waku.envelope import Topic, decode_envelope
from mailserver.waku2.filter_packets import encode_message_push
from tests.bench.test_bench import NOW, results_in, run_bench

TOPICS = [Topic(b"aaaa"), Topic(b"bbbb")]


def push_of(raw: bytes) -> bytes:
    return encode_message_push(message_of(decode_envelope(raw)).encode(), DEFAULT_NETWORK_TOPIC)


def test_what_is_lacking_repeated_or_unwanted_is_found() -> None:
    rng = random.Random(1)
    first, second, third = raws = [envelope(NOW, topic, rng) for topic in (*TOPICS, TOPICS[1])]
    unknown = envelope(NOW, TOPICS[0], rng)
    of_first = [(1.0, [push_of(first), push_of(second)]), (2.0, [push_of(unknown)])]
    of_second = [(3.0, [push_of(third), push_of(third)])]

    found = compare([of_first, of_second], TOPICS, [*map(posted_of, raws)], late=1)

    assert found == {"lacking": 1, "repeated": 1, "unwanted": 2, "arrivals": [[3.0, 3.0]]}


def test_nothing_is_found_where_each_client_got_its_own() -> None:
    rng = random.Random(1)
    raws = [envelope(NOW, topic, rng) for topic in TOPICS]

    found = compare([[(1.0, [push_of(raw)])] for raw in raws], TOPICS, [*map(posted_of, raws)], late=0)

    assert found == {"lacking": 0, "repeated": 0, "unwanted": 0, "arrivals": []}


def test_tables_have_rates_times_and_costs() -> None:
    run = PushesRun(2.0, 40_000, 3, 0.8, 1.0, 0.4, 70_000_000, 80_000_000, (0.002, 0.004))
    history = MessageHistory(
        1000, 0.5, 400_000, 90_000_000, (Queries("any", 25, (QueriesRun((0.01, 0.03), 200, 0.004),)),)
    )
    results = GatewayResults(
        (Pushes("one client", 1, "mplex", 20_000, (run,)),),
        history,
        (LightHandshakesRun(2.0, 500, 0.4, 0.5),),
        (IdleClientsRun(1000, 70_000_000, 110_000_000, 112_000_000),),
        (SentRun(2.0, 16, (0.03,) * 100, 0.1, 0.05),),
    )

    rows = [line.split() for line in gateway_text(results).splitlines()]

    pushes = ["one", "client", "1", "mplex", "20,000", "20,000", "(20,000", "-", "20,000)"]
    assert [*pushes, "3", "20", "25", "10", "2", "4", "4", "70", "80"] in rows
    assert ["any", "25", "100", "2", "10", "30", "30", "2"] in rows
    assert ["500", "250", "800", "1,000"] in rows
    assert ["1,000", "70", "110", "40", "112", "42"] in rows
    assert ["100", "16", "50", "30", "30", "30", "1,000", "500"] in rows


@pytest.mark.integration
def test_quick_run_measures_a_gateway(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    fewer = ("--gateway-store", "2000", "--topics", "20", "--pushes", "200", "--light-clients", "10")

    done = run_bench("gateway", "--quick", *fewer, "--json", str(file))

    assert done.returncode == 0, done.stderr
    [gateway] = results_in(file)["gateways"]
    runs = {(row["name"], row["muxer"]): row["runs"][0] for row in gateway["pushes"]}
    assert {name for name, _ in runs} == {"one client", "a topic each", "one topic for all"}
    assert {muxer for _, muxer in runs} == {"yamux", "mplex"}
    for run in runs.values():
        assert (run["pushes"], run["dropped"]) == (200, 0)
        assert run["seconds"] > 0.15  # 1,000 a second were offered
        assert min(run["gateway_cpu_s"], run["daemon_cpu_s"], run["clients_cpu_s"], *run["late_s"]) > 0
    assert len(runs["one topic for all", "mplex"]["late_s"]) == 10 * len(runs["one client", "mplex"]["late_s"])
    assert [(row["clients"], len(row["runs"][0]["times_s"])) for row in gateway["history"]["questions"]] == [
        (1, 50),
        (1, 50),
        (1, 50),
        (25, 50),
    ]
    assert gateway["history"]["questions"][0]["runs"][0]["found"] == 50 * 100
    assert gateway["handshakes"][0]["handshakes"] == 40
    assert gateway["idle"][0]["idle_bytes"] > 0
    assert len(gateway["sent"][0]["times_s"]) == 32
    assert "gateway CPU us/push" in done.stdout
