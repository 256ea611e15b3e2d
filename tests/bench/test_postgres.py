"""bench.postgres: a file and a database are measured alike, and the tables say how."""

import json
from pathlib import Path

import pytest

from bench.history_results import History, HistoryRun
from bench.postgres_report import postgres_text
from bench.postgres_results import BothIngest, BothIngestRun, DayRetention, PostgresComparison, StoreSide
from tests.bench.test_bench import run_bench


def test_table_says_how_many_times_as_long_the_database_takes() -> None:
    file = HistoryRun(0.001, 0.004, 200, 1, 0.003, 90_000_000)
    database = HistoryRun(0.002, 0.01, 200, 1, 0.004, 95_000_000)
    measured = PostgresComparison(
        "15.1",
        (
            StoreSide("a file", 1000, 6, 700_000, (History("one topic", 1, (file,)),), 0.0, 0),
            StoreSide("PostgreSQL", 1000, 6, 900_000, (History("one topic", 1, (database,)),), 1.5, 80_000_000),
        ),
        (
            BothIngest("one, a file", 4, 100, 1000, (BothIngestRun(0.1, 0.03, 0.0, 70_000_000),)),
            BothIngest("two, PostgreSQL", 4, 100, 1000, (BothIngestRun(0.2, 0.04, 0.02, 140_000_000),)),
        ),
        (DayRetention("a file", 160, (0.3, 0.5), 0.006), DayRetention("PostgreSQL", 160, (0.02, 0.04), 0.03)),
    )

    lines = postgres_text(measured).splitlines()

    cells = {line.split("  ")[0]: line.split() for line in lines}
    assert cells["one topic"][2:] == ["200", "1", "4", "10", "2.5", "1", "2"]
    assert cells["two, PostgreSQL"][2:] == ["4", "100", "5,000", "(5,000", "-", "5,000)", "40", "20", "140"]
    assert cells["one, a file"][-3:] == ["30", "-", "70"]
    assert "a file: 700 bytes on disk an envelope" in "\n".join(lines)
    assert "PostgreSQL: 1.5 s of CPU, warm-up included, 80 MB (PSS)" in "\n".join(lines)
    assert lines[-1].split()[1:] == ["160", "30", "(40)", "30"]


@pytest.mark.integration
def test_quick_run_measures_both(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"

    done = run_bench("postgres", "--quick", "--density", "0.01", "--json", str(file))

    assert "PostgreSQL ms" in done.stdout
    (results,) = json.loads(file.read_text())
    measured = results["postgres"]
    ours, theirs = measured["sides"]
    assert (ours["days"], theirs["days"]) == (6, 6)
    assert [len(each["runs"]) for each in ours["questions"]] == [1] * 6
    for one, other in zip(ours["questions"], theirs["questions"], strict=True):
        assert one["runs"][0]["found"] == other["runs"][0]["found"]
        assert one["runs"][0]["pages"] == other["runs"][0]["pages"]
    assert theirs["questions"][-1]["runs"][0]["found"] > 2000  # of eight clients
    assert ours["server_cpu_s"] == 0 < theirs["server_cpu_s"]
    assert [ingest["runs"][0]["server_cpu_s"] > 0 for ingest in measured["ingests"]] == [False, True, True]
    assert [len(each["seconds"]) for each in measured["retentions"]] == [3, 3]
    assert all(seconds > 0 for each in measured["retentions"] for seconds in each["seconds"])
