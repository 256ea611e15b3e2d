"""bench.communities: a small community is made, fetched and imported, and the tables say how fast."""

import json
from pathlib import Path

import pytest

from bench.communities_report import communities_text
from bench.communities_results import Communities, FetchingRun, MakingRun, ServingMemory
from tests.bench.test_bench import run_bench


def test_tables_have_the_medians_and_the_worst() -> None:
    making = (MakingRun(9.0, 10.0, 18.0, 10**9), MakingRun(8.0, 5.0, 9.0, 10**9))
    fetching = (FetchingRun(1.0, 4.0, 2.0, 0), FetchingRun(3.0, 2.0, 2.0, 100))
    serving = (ServingMemory(10, 10**8, 2 * 10**8, 3 * 10**8, 4 * 10**8, 20.0, 30.0),)
    measured = Communities(500_000, 52, 300 * 10**6, making, 520, (0.03, 0.04), 50 * 10**6, 80_000, fetching, serving)

    lines = communities_text(measured).splitlines()

    assert lines[0].startswith("A community of 500,000 messages in 52 weeks, 300 MB of archives, made in one run")
    assert lines[2].split() == ["75,000", "(50,000", "-", "100,000)", "7.5", "13.5", "8.5", "1,000"]
    assert lines[4] == "An index of 520 archives is read and checked in 35 ms (40 at most)"
    assert lines[6].startswith("50 MB of it between two torrent processes on loopback, then imported (80,000 messages)")
    assert lines[8].split() == ["2", "(3)", "30,000", "(20,000)", "25", "100"]
    assert lines[10].startswith("Resident memory of `community serve`")
    assert lines[12].split() == ["10", "100", "(300)", "200", "(400)", "20", "30"]


@pytest.mark.spark
@pytest.mark.integration
def test_quick_run_makes_and_fetches_a_community(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"

    done = run_bench("communities", "--quick", "--json", str(file))

    assert "A community of 2,000 messages in 4 weeks" in done.stdout
    (results,) = json.loads(file.read_text())
    (measured,) = results["communities"]
    assert (measured["fetched_messages"], len(measured["making"]), len(measured["index_s"])) == (2000, 1, 1)
    (fetched,) = measured["fetching"]
    assert fetched["twice_bytes"] == 0
    (serving,) = measured["serving"]
    assert serving["communities"] == 2
    assert min(serving.values()) > 0
    assert serving["service_peak_bytes"] >= serving["service_bytes"] * 0.9
    assert min(fetched["fetch_s"], fetched["import_s"]) > 0
