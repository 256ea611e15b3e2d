"""bench.workers: peers are spread evenly, and a small run works end to end."""

from collections import Counter

import pytest

from bench.workers import main, sources
from mailserver.limits.admission import groups_of
from mailserver.net.shared_port import index_of


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_each_worker_gets_its_share_of_peers_from_different_subnets(workers: int) -> None:
    places = sources(12, workers)

    assert Counter(index_of(place, workers) for place in places) == dict.fromkeys(range(workers), 12 // workers)
    assert len({groups_of(place).subnet for place in places}) == 12


@pytest.mark.integration
def test_small_run_measures_each_number_of_workers(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--workers", "1", "2", "--packets", "10", "--envelopes", "400", "--connections", "4", "--runs", "1")

    assert main(arguments) == 0

    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("file")]
    assert [row[:3] for row in rows] == [["file", "10", "1"], ["file", "10", "2"]]
    assert all(float(figure.replace(",", "")) > 0 for row in rows for figure in row[3:])
