"""bench.sync: two copies of a small store are compared, and the tables say how."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import sync
from bench.data import Distribution, Topics, history
from bench.results import FetchRun, Sync, SyncRun
from bench.store import FilledStore, StoreSpec, prepare_store
from bench.sync import GAP, SCATTERED, SyncFailed, measure_sync
from bench.sync_report import fetch_table, sync_line, sync_table
from mailserver.store.interface import NewEnvelope
from tests.bench.test_bench import run_bench

TOPICS = Topics(10, Distribution.UNIFORM)
PASSWORD = "secret"


@pytest.fixture
def store(tmp_path: Path) -> FilledStore:
    """A store of 500 envelopes of a day."""
    return prepare_store(tmp_path / "store", StoreSpec(500, 10, 1, Distribution.UNIFORM.value))


def test_each_difference_is_found_in_few_trips(store: FilledStore) -> None:
    measured = measure_sync(store, 500, TOPICS, runs=2, password=PASSWORD)

    same, missed, scattered = measured.cases.values()
    assert (measured.envelopes, measured.days) == (500, 1)
    assert [len(runs) for runs in (same, missed, scattered)] == [2, 2, 2]
    assert same[0].trips == 1
    assert same[0].sent_bytes < 1000
    assert missed[0].sent_bytes > 32 * GAP
    assert scattered[0].sent_bytes > 32 * SCATTERED
    assert all(0 < run.responding_s < run.seconds for run in (*same, *missed, *scattered))
    assert [run.envelopes for run in measured.fetches.values()] == [500, 500, 500]


def test_other_differences_than_there_are_fail(store: FilledStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fewer(count: int, *others: Any, **named: Any) -> Iterator[list[NewEnvelope]]:
        return history(count - 1, *others, **named)

    monkeypatch.setattr(sync, "history", fewer)

    with pytest.raises(SyncFailed, match=r"0 and 1000 differ, 0 and 999 were found"):
        measure_sync(store, 500, TOPICS, runs=1, password=PASSWORD)


def test_table_has_a_line_for_each_difference() -> None:
    runs = (SyncRun(1, 338, 0.0051, 0.002), SyncRun(1, 338, 0.0079, 0.003))
    fetched = {"page by page": FetchRun(1_000_000, 50.0, 30.0, 12.0)}
    measured = Sync(1_000_000, 30, {"the same": runs}, fetched)

    assert sync_line(measured) == "Comparison of two stores of 1,000,000 envelopes, 30 days, in one process (medians)"
    assert sync_table(measured).splitlines() == [
        "difference  trips  bytes  both sides ms  (slowest)  responder ms",
        "the same        1    338            6.5      (7.9)           2.5",
    ]
    line = fetch_table(measured).splitlines()[1]
    assert line.split() == ["page", "by", "page", "1,000,000", "50", "20,000", "30", "12"]


@pytest.mark.integration
def test_quick_run_compares_stores(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"

    done = run_bench("sync", "--quick", "--topics", "10", "--json", str(file))

    assert "scattered" in done.stdout
    (results,) = json.loads(file.read_text())
    (measured,) = results["syncs"]
    assert measured["envelopes"] == 2000
    assert [len(runs) for runs in measured["cases"].values()] == [1, 1, 1]
    assert [run["envelopes"] for run in measured["fetches"].values()] == [2000, 2000, 2000]
