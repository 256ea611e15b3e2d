"""What is printed of a part."""

from tests.faults.report import Report, Row, as_json, as_text

REPORT = Report("kills", (Row("ingest", {"rounds": 1200, "p99_ms": 3.25, "seed": "7"}),), ("round 3: one is missing",))


def test_each_scenario_and_each_broken_promise_has_a_line() -> None:
    assert as_text(REPORT).splitlines() == [
        "kills",
        "  ingest: rounds 1,200, p99_ms 3.2, seed 7",
        "  BROKEN round 3: one is missing",
    ]


def test_json_has_the_figures_as_they_are() -> None:
    assert as_json([REPORT]) == {
        "kills": {
            "scenarios": {"ingest": {"rounds": 1200, "p99_ms": 3.25, "seed": "7"}},
            "broken": ["round 3: one is missing"],
        }
    }
