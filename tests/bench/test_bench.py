"""The benchmark: what it generates is what it says, its tables are readable, and a small run works end to end."""

import asyncio
import json
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from bench.addresses import LIMITED, MANY, address, source_to
from bench.arguments import parse_arguments
from bench.data import (
    ENVELOPE_BYTES,
    ROWS_PER_PUT,
    SPREAD_S,
    TTL_S,
    Distribution,
    Sizes,
    Topics,
    history,
    live_envelopes,
    packets,
)
from bench.flood import flood_specs
from bench.history_results import History, HistoryRun
from bench.plot import draw_growth
from bench.receivers import Receivers, interest_of
from bench.relay import RelayFailed, check_receivers
from bench.report import as_json, as_text
from bench.results import (
    Busy,
    BusyRun,
    Environment,
    Flood,
    FloodPhase,
    Handshakes,
    HandshakesRun,
    Idle,
    IdleRun,
    Ingest,
    IngestRun,
    Relay,
    RelayRun,
    Results,
    StoreFacts,
    StoreHistory,
    median_of,
    percentile,
)
from bench.store import StoreSpec, StoreUnusable, copied, prepare_store
from bench.tables import table
from mailserver.app import policy
from mailserver.app.config import Config
from mailserver.codec.keys import Enode
from mailserver.limits.admission import groups_of
from mailserver.limits.packet_rates import DEFAULT_BYTE_LIMITS, DEFAULT_PACKET_LIMITS
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.waku.acceptance import Acceptance, Requirements, Verdict
from mailserver.waku.envelope import decode_envelope, decode_envelopes, encode_envelopes
from mailserver.waku.packets import PacketCode
from tests.integration.daemons import running_daemon
from tests.pairs import private_key
from tests.waiting import DEADLINE_S, turns

ROOT = Path(__file__).parents[2]
NOW = 1_790_000_000

ENVIRONMENT = Environment("2026-01-01 00:00 UTC", "3.11.0", "3.40.1", 2, (0.5, 1.5), ("--runs", "3"))


def results_in(file: Path) -> dict[str, Any]:
    """What was measured of the one mailserver."""
    results: list[dict[str, Any]] = json.loads(file.read_text())
    assert len(results) == 1
    return results[0]


def topics_of(count: int, distribution: Distribution = Distribution.UNIFORM) -> Topics:
    return Topics(count, distribution)


def test_live_envelopes_are_accepted_by_a_daemon_with_default_settings() -> None:
    acceptance = Acceptance(Requirements(Config().min_pow))

    raws = live_envelopes(100, topics_of(10), NOW, min_pow=Config().min_pow, rng=random.Random(1))

    envelopes = [decode_envelope(raw) for raw in raws]
    assert {len(raw) for raw in raws} == {ENVELOPE_BYTES}
    assert {envelope.ttl for envelope in envelopes} == {TTL_S}
    assert all(NOW - SPREAD_S < envelope.created <= NOW for envelope in envelopes)
    assert {acceptance.judge(envelope, float(NOW)) for envelope in envelopes} == {Verdict.ACCEPTED}
    assert len(set(raws)) == len(raws)


def test_live_envelopes_are_mined_where_chance_does_not_do() -> None:
    raws = live_envelopes(20, topics_of(10), NOW, min_pow=0.0002, rng=random.Random(1))

    assert {len(raw) for raw in raws} == {ENVELOPE_BYTES}
    assert all(decode_envelope(raw).pow() >= 0.0002 for raw in raws)


@pytest.mark.parametrize("min_pow", [0, 0.000002, 0.0001])
def test_padded_envelopes_have_many_lengths_each_half_as_often_as_the_half_of_it(min_pow: float) -> None:
    raws = live_envelopes(600, topics_of(10), NOW, min_pow=min_pow, rng=random.Random(1), sizes=Sizes.PADDED)

    lengths = Counter(len(raw) for raw in raws)
    assert sorted(lengths) == [ENVELOPE_BYTES - 512 + 256 * 2**doubled for doubled in range(6)]
    counts = [count for _, count in sorted(lengths.items())]
    assert all(0.3 * before < count < 0.75 * before for before, count in pairwise(counts[:4]))
    assert all(decode_envelope(raw).pow() >= min_pow for raw in raws)


def test_history_of_padded_envelopes_decodes() -> None:
    (rows,) = history(500, topics_of(5), end=NOW, span_s=1000, rng=random.Random(1), sizes=Sizes.PADDED)

    assert len({len(row.raw) for row in rows}) == 6
    assert [decode_envelope(row.raw).hash() for row in rows] == [row.hash for row in rows]


def test_packets_hold_all_envelopes_in_order() -> None:
    raws = live_envelopes(25, topics_of(10), NOW, min_pow=0, rng=random.Random(1))

    decoded = [decode_envelopes(payload) for payload in packets(raws, 10)]

    assert [len(envelopes) for envelopes in decoded] == [10, 10, 5]
    assert [envelope.raw for envelopes in decoded for envelope in envelopes] == raws


def test_history_is_even_over_its_span_and_decodes() -> None:
    count, span_s = 2 * ROWS_PER_PUT + 500, 86_400

    batches = list(history(count, topics_of(50), end=NOW, span_s=span_s, rng=random.Random(1)))

    rows = [row for batch in batches for row in batch]
    envelopes = [decode_envelope(row.raw) for row in rows]
    assert [len(batch) for batch in batches] == [ROWS_PER_PUT, ROWS_PER_PUT, 500]
    assert [row.created for row in rows] == sorted(row.created for row in rows)
    assert NOW - span_s < rows[0].created < NOW - span_s + 60
    assert rows[-1].created == NOW
    assert [(row.created, row.topic, row.hash) for row in rows] == [(e.created, e.topic, e.hash()) for e in envelopes]
    half = sum(row.created <= NOW - span_s // 2 for row in rows)
    assert abs(half - count // 2) <= 1


def test_topics_are_the_same_for_the_same_count() -> None:
    assert topics_of(100).all == topics_of(100, Distribution.ZIPF).all
    assert len(set(topics_of(100).all)) == 100


def test_uniform_topics_are_used_equally_and_zipf_by_rank() -> None:
    uniform = Counter(topics_of(100).choose(100_000, random.Random(1)))
    zipf_topics = topics_of(100, Distribution.ZIPF)
    zipf = Counter(zipf_topics.choose(100_000, random.Random(1)))

    assert max(uniform.values()) < 2 * min(uniform.values())
    assert zipf[zipf_topics.all[0]] / zipf[zipf_topics.all[9]] == pytest.approx(10, rel=0.2)


def test_topics_asked_for_are_distinct_and_never_more_than_there_are() -> None:
    assert len(topics_of(5000).choose_distinct(100, random.Random(1))) == 100
    assert len(topics_of(5).choose_distinct(100, random.Random(1))) == 5


def test_store_is_filled_once_and_used_again_if_it_is_the_same(tmp_path: Path) -> None:
    spec = StoreSpec(envelopes=1500, topics=20, days=30, distribution="uniform")

    first = prepare_store(tmp_path, spec)
    second = prepare_store(tmp_path, spec)

    assert first.fill_s is not None
    assert second.fill_s is None
    assert second.end == first.end
    assert first.disk_bytes() > 1500 * ENVELOPE_BYTES
    with pytest.raises(StoreUnusable):
        prepare_store(tmp_path, StoreSpec(envelopes=1501, topics=20, days=30, distribution="uniform"))


def test_store_whose_filling_was_interrupted_is_not_used(tmp_path: Path) -> None:
    spec = StoreSpec(envelopes=100, topics=20, days=30, distribution="uniform")
    prepare_store(tmp_path, spec)
    (tmp_path / "bench.json").unlink()

    with pytest.raises(StoreUnusable):
        prepare_store(tmp_path, spec)


def test_copy_of_a_store_is_as_large_and_changes_nothing_of_it(tmp_path: Path) -> None:
    store = prepare_store(tmp_path / "kept", StoreSpec(envelopes=100, topics=20, days=30, distribution="uniform"))
    kept = (store.data_dir / STORE_FILE).read_bytes()

    with copied(store) as data_dir:
        assert (data_dir / STORE_FILE).read_bytes() == kept
        (data_dir / STORE_FILE).write_bytes(b"")

    assert (store.data_dir / STORE_FILE).read_bytes() == kept
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


MARK = b"of a run"


def marked(count: int) -> list[bytes]:
    return live_envelopes(count, topics_of(4), NOW, min_pow=0, rng=random.Random(1), mark=MARK)


def hear(receivers: Receivers, peer: int, raws: list[bytes]) -> None:
    receivers.all[peer].on_packet(PacketCode.MESSAGES, encode_envelopes(raws))


def test_receivers_find_nothing_wrong_where_each_has_what_it_wants_once() -> None:
    raws = marked(10)
    interest = frozenset(topics_of(4).all[:2])
    wanted = [raw for raw in raws if decode_envelope(raw).topic in interest]
    receivers = Receivers(MARK, (None, interest))

    hear(receivers, 0, raws[:5])
    hear(receivers, 0, raws[5:])
    hear(receivers, 1, wanted)

    checked = receivers.check(raws, late=2)
    check_receivers(checked)
    assert [receiver.count for receiver in receivers.all] == [10, len(wanted)]
    assert [len(moments) for moments in checked["arrivals"]] == [1 + (raw in wanted) for raw in raws[-2:]]


def test_receivers_find_what_is_lacking_repeated_and_unwanted_at_whom() -> None:
    raws = marked(10)
    interest = frozenset(topics_of(4).all[:2])
    unwanted = [raw for raw in raws if decode_envelope(raw).topic not in interest]
    receivers = Receivers(MARK, (None, None, interest))

    hear(receivers, 0, raws[:8])
    hear(receivers, 1, raws)
    hear(receivers, 1, raws[3:4])
    hear(receivers, 2, raws)

    checked = receivers.check(raws, late=0)
    assert [checked[kind] for kind in ("lacking", "repeated", "unwanted")] == [
        (2, 0, 0),
        (0, 1, 0),
        (0, 0, len(unwanted)),
    ]
    with pytest.raises(RelayFailed, match=r"2 envelopes lacking, 1 envelopes repeated, .* at 3 peers"):
        check_receivers(checked)


def test_receivers_count_only_envelopes_of_their_run() -> None:
    receivers = Receivers(MARK, (None,))
    others = live_envelopes(3, topics_of(4), NOW, min_pow=0, rng=random.Random(2))

    hear(receivers, 0, [*others, *marked(2)])
    receivers.all[0].on_packet(PacketCode.P2P_MESSAGE, encode_envelopes(marked(4)))

    assert receivers.all[0].count == 2
    check_receivers(receivers.check(marked(2), late=0))


async def test_receivers_wait_until_the_last_has_all_that_it_is_to_get() -> None:
    raws = marked(3)
    receivers = Receivers(MARK, (None, None))
    hear(receivers, 0, raws)
    waiting = asyncio.create_task(receivers.wait([3, 2]))

    hear(receivers, 1, raws[:1])
    await turns()
    assert not waiting.done()
    hear(receivers, 1, raws[1:2])

    await asyncio.wait_for(waiting, DEADLINE_S)


def test_interest_of_a_peer_is_always_the_same_and_not_that_of_another() -> None:
    assert interest_of(0, 50, topics_of(100)) == interest_of(0, 50, topics_of(100))
    assert interest_of(0, 50, topics_of(100)) != interest_of(1, 50, topics_of(100))


def test_flood_of_small_packets_is_bound_by_their_number_and_of_large_ones_by_bytes() -> None:
    small, large, tolerated = flood_specs(5, 10, is_quick=False)

    assert small.packets_per_s == DEFAULT_PACKET_LIMITS.peer
    assert small.envelopes_per_s == 5 * DEFAULT_PACKET_LIMITS.peer
    assert large.packets_per_s * large.packet_bytes == DEFAULT_BYTE_LIMITS.peer
    assert large.packet_bytes == len(packets(marked(100), 100)[0])
    assert tolerated.seconds[-1] > tolerated.tolerance_s == Config().rate_limit_tolerance_s


def test_addresses_to_come_from_are_of_a_subnet_each_or_neighbours_on_loopback() -> None:
    addresses = [address(number) for number in range(MANY)]
    neighbours = [address(number, subnet=7) for number in range(250)]

    assert len({groups_of(each).subnet for each in addresses}) == MANY
    assert len({groups_of(each).address for each in neighbours}) == 250
    assert {groups_of(each).subnet for each in neighbours} == {groups_of(address(7)).subnet}
    assert all(ip_address(each).is_loopback for each in (*addresses, *neighbours))


@pytest.mark.parametrize(
    ("host", "source"),
    [("127.0.0.1", address(3)), ("127.9.9.9", address(3)), ("::1", None), ("192.0.2.1", None), ("localhost", None)],
)
def test_many_addresses_dial_only_what_they_reach(host: str, source: str | None) -> None:
    node = Enode(private_key("node").public_key, host, 30303)

    assert source_to(node, MANY + 3) == source


def test_percentile_is_a_value_that_was_measured() -> None:
    values = [float(value) for value in range(1, 101)]

    assert [percentile(values, share) for share in (0.5, 0.99, 1)] == [50, 99, 100]
    assert percentile([3, 1, 2], 0.99) == 3
    assert percentile([], 0.5) is None


def test_median_leaves_out_what_is_unknown() -> None:
    assert median_of([3, None, 1, 2]) == 2
    assert median_of([None, None]) is None


def test_table_aligns_names_left_and_numbers_right() -> None:
    assert table(["name", "n"], [["a", "10,000"], ["long name", "1"]]) == (
        "name            n\n"  # comments keep the columns together
        "a          10,000\n"
        "long name       1"
    )


def history_of(envelopes: int, *done_s: float) -> StoreHistory:
    """What was asked of a store, and how long it took each time."""
    runs = tuple(HistoryRun(0.0012, seconds, 13, 1, 0.001, 50_000_000) for seconds in done_s)
    facts = StoreFacts(envelopes, 30, 680 * envelopes, envelopes / 50_000, (0.25, 0.31, 0.3), (0.2, 0.21, 0.28))
    return StoreHistory(facts, (History("one topic", 1, runs),))


def test_growth_with_the_store_is_a_table_and_a_picture(tmp_path: Path) -> None:
    histories = (history_of(10_000, 0.001), history_of(1_000_000, 0.002, 0.0041, 0.1))

    text = as_text(Results(ENVIRONMENT, (), histories))
    draw_growth(histories, tmp_path / "growth.svg")

    assert ["request", "10,000", "1,000,000"] in [line.split() for line in text.splitlines()]
    assert ["one", "topic", "1", "4.1"] in [line.split() for line in text.splitlines()]
    assert "one topic" not in as_text(Results(ENVIRONMENT, (), ()))
    assert (tmp_path / "growth.svg").read_text().startswith("<?xml")


def test_report_shows_medians_in_people_s_units() -> None:
    results = Results(
        ENVIRONMENT,
        (Ingest(4, 100, 1000, tuple(IngestRun(s, 0.01, 0.02, 90_000_000) for s in (0.1, 0.05, 0.2))),),
        (history_of(1_000_000, 0.25, 0.0151, 0.01),),
    )

    text = as_text(results)

    lines = [line.split() for line in text.splitlines()]
    assert ["4", "100", "10,000", "(5,000", "-", "20,000)", "20", "10", "90"] in lines
    assert ["one", "topic", "13", "1", "1.2", "15.1", "(250)", "1", "50"] in lines
    assert "filled at 50,000/s: 680 MB on disk per million; 300 ms from start until listening, 210 ms of CPU" in text
    assert "load 0.5 before and 1.5 after" in text


def test_report_of_a_mailserver_elsewhere_leaves_its_cpu_and_memory_open() -> None:
    results = Results(ENVIRONMENT, (Ingest(1, 1, 100, (IngestRun(0.1, 0.01, None, None),)),))

    assert as_text(results).splitlines()[-1].split()[-3:] == ["-", "100", "-"]


def test_json_holds_every_run() -> None:
    results = Results(ENVIRONMENT, (Ingest(1, 1, 100, (IngestRun(0.1, 0.01, None, None),) * 3),))

    (parsed,) = json.loads(as_json([results]))

    assert [run["seconds"] for run in parsed["ingest"][0]["runs"]] == [0.1, 0.1, 0.1]
    assert parsed["histories"] == []


def test_report_shows_what_relay_and_a_flood_did() -> None:
    run = RelayRun(10_000, 0.5, 0.25, 0.01, 0.02, 90_000_000, (0.001, 0.002), (0.003, 0.3))
    phase = FloodPhase("no flood", 2.0, 0, 0, 0.5, 80_000_000, (0.002, 0.003, 0.5), (0.004,))
    results = Results(
        ENVIRONMENT,
        (),
        relays=(Relay(None, 50, 200, (run, run)), Relay(500, 50, 200, (run,))),
        floods=(Flood(5, 100, 93_450.0, 9345.0, None, (phase,)), Flood(5, 1, 25_000.0, 2500.0, 60.0, ())),
    )

    text = as_text(results)

    lines = [line.split() for line in text.splitlines()]
    assert [
        "everything",
        "50",
        "20,000",
        "(20,000",
        "-",
        "20,000)",
        "800",
        "2",
        "1",
        "1",
        "2",
        "3",
        "300",
        "90",
    ] in lines
    assert ["500", "topics", "50"] in [line[:3] for line in lines]
    assert "5 peers, packets of 100, slowed: 93,450 envelopes/s offered, 9,345/s allowed" in text
    assert ["no", "flood", "0", "0", "25", "80", "3", "3", "500", "500", "1", "4", "4", "4"] in lines
    assert "packets of 1, slowed for 60 s, then disconnected: 25,000 envelopes/s offered" in text


def test_report_of_a_busy_mailserver_shows_medians_of_runs_and_the_longest_of_all() -> None:
    many = tuple(value / 1000 for value in range(1, 101))
    quiet = BusyRun(20.0, 100_000, many, tuple(2 * each for each in many), 700, 6.0, 90_000_000)
    runs = (quiet, quiet, replace(quiet, confirmed=60_000, first_s=(0.7,), done_s=(0.8,), found=7, daemon_cpu_s=9.0))

    text = as_text(
        Results(ENVIRONMENT, (), busy=(Busy("one topic", 1_000_000, 5000.0, runs), Busy("one", None, 1, runs)))
    )

    lines = [line.split() for line in text.splitlines()]
    assert lines[-2] == [
        *("one", "topic", "1,000,000", "5,000", "5,000", "20", "6", "100", "7"),
        *("50", "99", "700", "100", "198", "800", "90"),
    ]
    assert lines[-1][:3] == ["one", "-", "1"]


def test_report_shows_handshakes_and_what_each_costs() -> None:
    runs = tuple(HandshakesRun(seconds, 1.5, 2.0, 60_000_000) for seconds in (2.5, 2.0, 4.0))
    text = as_text(Results(ENVIRONMENT, (), handshakes=(Handshakes(1000, 16, 3, runs),)))

    assert text.splitlines()[-1].split() == [
        *("16", "3", "400", "(250", "-", "500)"),
        *("2.5", "2", "2,000", "1,500", "60"),
    ]


def test_report_shares_the_growth_out_among_idle_connections() -> None:
    runs = tuple(IdleRun(2.5, 0.5, 20.0, 0.25, 50_000_000, after) for after in (65_000_000, 75_000_000, 70_000_000))
    text = as_text(Results(ENVIRONMENT, (), idle=(Idle(500, runs),)))

    assert text.splitlines()[-1].split() == ["500", "40", "(30", "-", "50)", "50", "70", "2.5", "0.5", "20", "0.2"]


def test_medians_are_of_five_runs_unless_it_is_said_otherwise() -> None:
    assert parse_arguments([]).runs == 5
    assert parse_arguments(["--quick"]).runs == 1
    assert parse_arguments(["--quick", "--runs", "7"]).runs == 7


NOBODY = f"enode://{'79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798'}"
NOBODY += "483ada7726a3c4655da4fbfc0e1108a8fd17b448a68554199c47d08ffb10d4b8@127.0.0.1:1"


def run_bench(*arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """Run the benchmark as `make bench` does."""
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@pytest.mark.integration
def test_quick_run_measures_relay_and_a_flood(tmp_path: Path) -> None:
    file = tmp_path / "results.json"

    done = run_bench("relay", "flood", "--quick", "--json", str(file))

    assert done.returncode == 0, done.stderr
    parsed = results_in(file)
    assert [(row["interest"], row["peers"]) for row in parsed["relays"]] == [(None, 5), (500, 5)]
    assert [row["runs"][0]["deliveries"] for row in parsed["relays"]] == [2000, 2000]  # 200 topics: all want all
    assert [len(row["runs"][0]["last_s"]) for row in parsed["relays"]] == [5, 5]
    assert [flood["per_packet"] for flood in parsed["floods"]] == [1, 100]
    for flood in parsed["floods"]:
        quiet, *flooded = flood["phases"]
        assert quiet["flood"] == 0
        assert all(phase["flood"] > 0 for phase in flooded)
        assert all(phase["answers_s"] for phase in flood["phases"])
    assert "deliveries/s" in done.stdout


@pytest.mark.integration
def test_quick_run_measures_ingest_and_history(tmp_path: Path) -> None:
    file = tmp_path / "results.json"

    done = run_bench("ingest", "history", "--quick", "--json", str(file))

    assert done.returncode == 0, done.stderr
    parsed = results_in(file)
    assert [(row["connections"], row["per_packet"]) for row in parsed["ingest"]] == [
        (connections, per_packet) for connections in (1, 4) for per_packet in (1, 10, 100)
    ]
    (history,) = parsed["histories"]
    assert [row["runs"][0]["found"] > 0 for row in history["questions"][1:]] == [True] * 5  # the first may find none
    assert history["store"]["envelopes"] == 2000
    assert history["store"]["start_s"][0] > 0
    assert history["store"]["start_cpu_s"][0] > 0
    assert "envelopes/s" in done.stdout


@pytest.mark.integration
def test_quick_run_asks_while_envelopes_come_in_and_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    file, kept = tmp_path / "results.json", tmp_path / "kept"
    store = prepare_store(kept / "2000", StoreSpec(envelopes=2000, topics=200, days=1, distribution="uniform"))
    before = {path.name: path.read_bytes() for path in store.data_dir.iterdir()}

    done = run_bench("busy", "--quick", "--runs", "2", "--store", str(kept), "--json", str(file))

    assert done.returncode == 0, done.stderr
    (row,) = results_in(file)["busy"]
    assert (row["question"], row["envelopes"], row["rate"]) == ("one topic, 24 h", 2000, 500)
    for run in row["runs"]:
        assert run["confirmed"] > 0
        assert run["seconds"] >= 1
        assert len(run["first_s"]) == len(run["done_s"]) > 0
        assert all(first <= last for first, last in zip(run["first_s"], run["done_s"], strict=True))
        assert run["found"] > 0
    assert "confirmed/s" in done.stdout
    assert {path.name: path.read_bytes() for path in store.data_dir.iterdir()} == before
    assert [path.name for path in kept.iterdir()] == ["2000"]


@pytest.mark.integration
def test_envelopes_that_are_refused_while_others_ask_are_one_line_on_stderr(tmp_path: Path) -> None:
    with running_daemon(tmp_path, "--archive-topics", "0x00000001") as daemon:
        done = run_bench("busy", "--quick", "--enode", str(daemon.enode))

    assert done.returncode == 1
    assert "envelopes of a packet were refused" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.integration
def test_another_mailserver_is_measured_beside_ours_in_the_same_run(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    what = ("ingest", "history", "--quick", "--sizes", "padded", "--packets", "10", "--connections", "1")

    with running_daemon(tmp_path / "other") as daemon:
        enode, pid = str(daemon.enode), str(daemon.process.pid)
        done = run_bench(*what, "--enode", enode, "--pid", pid, "--beside-ours", "--json", str(file))

    assert done.returncode == 0, done.stderr
    ours, other = json.loads(file.read_text())
    assert [each["environment"]["mailserver"] for each in (ours, other)] == ["ours", enode]
    assert [each["ingest"][0]["envelopes"] for each in (ours, other)] == [400, 400]
    assert [len(each["histories"]) for each in (ours, other)] == [1, 1]
    assert [each["histories"][0]["store"] is None for each in (ours, other)] == [False, True]
    assert done.stdout.index("mailserver: ours") < done.stdout.index(f"mailserver: {enode}")


@pytest.mark.integration
def test_strangers_limits_are_the_default_ones_less_one_of_each_kind_and_so_leave_out_nobody() -> None:
    given = {
        name.removeprefix("--").replace("-", "_"): value
        for name, value in zip(LIMITED[::2], LIMITED[1::2], strict=True)
    }
    defaults = {name: getattr(Config(), name) for name in given}
    limited: dict[str, Any] = {
        name: tuple(map(int, value.split(","))) if isinstance(defaults[name], tuple) else int(value)
        for name, value in given.items()
    }

    assert limited == {
        name: (value[0] - 1, *value[1:]) if isinstance(value, tuple) else value - 1 for name, value in defaults.items()
    }
    config = replace(Config(), **limited)
    for allowed in (
        policy.admission(config)[1],
        policy.rate_limits(config).allowed,
        policy.request_limits(config).allowed,
    ):
        assert allowed.networks == ()


def usage_error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the benchmark says of arguments that it does not take."""
    with pytest.raises(SystemExit, match=r"\A2\Z"):
        main(arguments)
    return capsys.readouterr().err


def test_stranger_is_asked_of_ours_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--stranger is for ours" in usage_error(capsys, "ingest", "--quick", "--stranger", "--enode", NOBODY)


def test_stranger_posts_no_more_than_arrives_before_it_expires() -> None:
    packets_per_s = Config().packet_rate_limits[1]

    assert parse_arguments(["--stranger"]).ingest_envelopes / packets_per_s < TTL_S
    assert parse_arguments(["--stranger", "--ingest-envelopes", "7"]).ingest_envelopes == 7


@pytest.mark.integration
def test_density_says_of_how_many_days_the_envelopes_are_and_a_stranger_asks_for_them(tmp_path: Path) -> None:
    file = tmp_path / "all.json"
    what = ("history", "--quick", "--envelopes", "3000", "--density", "0.04", "--stranger", "--store", str(tmp_path))

    done = run_bench(*what, "--json", str(file))

    assert done.returncode == 0, done.stderr
    (results,) = json.loads(file.read_text())
    assert results["histories"][0]["store"]["days"] == 2  # with the usual density, 1
    assert "Store of 3,000 envelopes, 2 days," in done.stdout
    assert (tmp_path / "3000-dense-0.04" / "mailserver.db").exists()


def test_nothing_is_measured_beside_ours_where_nothing_else_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--beside-ours is for an --enode" in usage_error(capsys, "ingest", "--quick", "--beside-ours")


@pytest.mark.integration
def test_quick_run_measures_handshakes(tmp_path: Path) -> None:
    file = tmp_path / "results.json"

    done = run_bench("handshakes", "--quick", "--runs", "2", "--json", str(file))

    assert done.returncode == 0, done.stderr
    (row,) = results_in(file)["handshakes"]
    assert (row["handshakes"], row["dialers"]) == (40, 4)
    assert len(row["runs"]) == 2
    assert all(run["seconds"] > 0 and run["daemon_cpu_s"] > 0 and run["dialers_cpu_s"] > 0 for run in row["runs"])
    assert "handshakes/s" in done.stdout


@pytest.mark.integration
def test_handshakes_meet_no_limit_of_an_address_or_a_subnet(tmp_path: Path) -> None:
    limits = (
        *("--max-peers-per-address", "1", "--max-peers-per-subnet", "1"),
        *("--connections-per-second", "0", "--connections-per-second-per-address", "0.1"),  # once in 10 s
    )

    with running_daemon(tmp_path, *limits) as daemon:
        enode, pid = str(daemon.enode), str(daemon.process.pid)
        done = run_bench("handshakes", "--quick", "--runs", "2", "--enode", enode, "--pid", pid)

    assert done.returncode == 0, done.stderr
    assert "handshakes/s" in done.stdout


@pytest.mark.integration
def test_quick_run_measures_what_idle_connections_take(tmp_path: Path) -> None:
    file = tmp_path / "results.json"

    done = run_bench("idle", "--quick", "--idle-connections", "510", "--json", str(file))  # more than by default

    assert done.returncode == 0, done.stderr
    (row,) = results_in(file)["idle"]
    (run,) = row["runs"]
    assert row["connections"] == 510
    assert 10_000 < (run["after_bytes"] - run["before_bytes"]) / 510 < 100_000
    assert run["daemon_cpu_s"] > run["idle_cpu_s"] > 0
    assert "kB each" in done.stdout


@pytest.mark.integration
@pytest.mark.spark
def test_quick_run_measures_the_compaction_by_each_layout(tmp_path: Path) -> None:
    file = tmp_path / "results.json"

    done = run_bench("compaction", "--quick", "--days", "1", "--topics", "10", "--json", str(file), timeout_s=300)

    assert done.returncode == 0, done.stderr
    parsed = results_in(file)
    by = {row["partition_by"]: row["runs"] for row in parsed["compactions"]}
    assert set(by) == {"topic-prefix", "topic"}
    for runs in by.values():
        (run,) = runs
        assert run["topic_rows"] > 0
        assert run["file_bytes"] > run["envelope_bytes"] > 0
        assert 0 <= run["night_rows"] <= 2000  # none, if it is midnight
        assert run["night_s"] > 0
    assert "2nd night's rows" in done.stdout
    assert [plain["envelopes"] for plain in parsed["plain_exports"]] == [2000]
    assert "rows/s" in done.stdout


@pytest.mark.integration
@pytest.mark.spark
def test_quick_run_asks_an_archive_cold_and_warm(tmp_path: Path) -> None:
    file = tmp_path / "results.json"

    done = run_bench("archive", "--quick", "--topics", "10", "--json", str(file), timeout_s=300)

    assert done.returncode == 0, done.stderr
    (archive,) = results_in(file)["archives"]
    assert archive["envelopes"] == 2000
    assert archive["file_bytes"] > 2000 * ENVELOPE_BYTES
    for rows in (archive["warm"], archive["cold"]):
        assert [len(row["runs"]) for row in rows] == [1, 1, 1, 1]
        assert all(run["found"] > 0 for row in rows for run in row["runs"])
    hundred_topics = archive["warm"][2]["runs"][0]
    assert hundred_topics["found"] == 2000  # all there are
    assert len(archive["alone_s"]) == len(archive["beside_s"]) == 5
    assert archive["peak_bytes"] > archive["without_bytes"] > 0
    assert "cold: completion ms" in done.stdout


@pytest.mark.parametrize("arguments", [("ingest",), ("history", "--enode", NOBODY)], ids=["not asked", "not ours"])
def test_growth_of_what_is_not_asked_or_not_ours_is_not_drawn(
    arguments: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "growth.svg"

    assert "--plot draws the history part" in usage_error(capsys, *arguments, "--quick", "--plot", str(plot))
    assert not plot.exists()


@pytest.mark.integration
@pytest.mark.parametrize("part", ["ingest", "busy", "relay", "handshakes"])
def test_mailserver_that_is_not_there_is_one_line_on_stderr(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([part, "--quick", "--enode", NOBODY]) == 1

    said = capsys.readouterr().err
    assert said.splitlines()[-1].startswith("bench: ")
    assert "Traceback" not in said
