"""The short form of the soak, and what its verdict goes by."""

import math
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.data import Distribution, Topics
from docs.evidence import read_records
from mailserver.waku.envelope import Envelope
from tests.mailservers import NEWS, NOW, SPORT, make_envelope
from tests.moved_clock import MovedClock
from tests.recording import NotRecorded, Recorder
from tests.repository import make_repository
from tests.soak.__main__ import QUICK
from tests.soak.model import Model, Wrong, make_envelopes
from tests.soak.month import Result, Settings, Soak
from tests.soak.report import as_text, conclusion, read_json, record, write_json, write_page
from tests.soak.samples import BY_THE_CLOCK, Sample, Verdict, judge, longest_run, percentiles

HOUR = Sample(
    day=0.0,
    run=1,
    rss_mib=100.0,
    fds=30,
    threads=10,
    wal_mib=4.0,
    file_mib=50.0,
    used_mib=45.0,
    stored=1000,
    queued=0,
    request_p50_ms=5.0,
    request_p95_ms=9.0,
    request_p99_ms=12.0,
    request_own_p50_ms=4.0,
    request_own_p95_ms=7.0,
    request_own_p99_ms=9.0,
    confirmation_p50_ms=4.0,
    confirmation_p95_ms=8.0,
    confirmation_p99_ms=10.0,
    confirmation_own_p50_ms=3.0,
    confirmation_own_p95_ms=6.0,
    confirmation_own_p99_ms=8.0,
    cpu_s=1.0,
    envelopes=800,
    lag_mean_ms=1.0,
    load=0.5,
)


def hours(count: int, *, run: int = 1, first: int = 0, growing: str = "") -> list[Sample]:
    """So many hours in which a figure grows evenly, to twenty-one times of what it was."""
    made = []
    for number in range(count):
        figures = {growing: getattr(HOUR, growing) * (1 + 20 * number / count)} if growing else {}
        made.append(replace(HOUR, day=(first + number) / 24, run=run, **figures))
    return made


@pytest.mark.spark
@pytest.mark.integration
async def test_short_soak_loses_nothing(tmp_path: Path) -> None:
    result = await Soak(QUICK, tmp_path, lambda sample: None).run()

    assert result.broken == [], as_text(result)
    assert result.figures["archived"] >= result.figures["envelopes"] > QUICK.envelopes_per_day
    assert (result.figures["kills"], result.figures["restarts"], result.figures["compactions"]) == (2, 2, 2)
    assert result.figures["requests"] > 300
    assert len(result.samples) == QUICK.days * 24


def test_even_figures_are_flat() -> None:
    verdicts = judge(hours(300), retention_days=1)

    assert len(verdicts) == 15
    assert all(verdict.is_flat and verdict.is_judged for verdict in verdicts)


@pytest.mark.parametrize(
    "name", ["rss_mib", "file_mib", "fds", "threads", "cpu_s", "request_own_p50_ms", "confirmation_own_p95_ms"]
)
def test_figure_that_grows_is_not(name: str) -> None:
    verdicts = judge(hours(300, growing=name), retention_days=1)

    assert [verdict.name for verdict in verdicts if not verdict.is_flat] == [
        {"cpu_s": "cpu_us_per_envelope"}.get(name, name)
    ]


@pytest.mark.parametrize("busy", [0, 250])
def test_times_by_the_clock_of_a_busy_machine_are_not_judged_and_that_is_said(busy: int) -> None:
    samples = hours(300, growing="request_p95_ms")
    samples = [replace(sample, load=99.0) if number < busy else sample for number, sample in enumerate(samples)]
    result = Result(Settings(13.0, 800, 5, 7.0, 6), samples)

    result.verdicts = judge(samples, 1)

    unjudged = {verdict.name for verdict in result.verdicts if not verdict.is_judged}
    assert unjudged == (BY_THE_CLOCK if busy else set())
    assert [verdict.name for verdict in result.verdicts if not verdict.is_flat] == ([] if busy else ["request_p95_ms"])
    if busy:
        assert "nothing that could be judged grew. Not judged: request_p50_ms" in conclusion(result)


def test_latency_that_grows_is_found_however_busy_the_machine_is() -> None:
    samples = [replace(sample, load=99.0) for sample in hours(300, growing="request_own_p95_ms")]

    assert [verdict.name for verdict in judge(samples, 1) if not verdict.is_flat] == ["request_own_p95_ms"]


def test_all_that_is_judged_and_flat_is_said_in_a_word() -> None:
    result = Result(Settings(13.0, 800, 5, 7.0, 6), hours(300))
    result.verdicts = judge(result.samples, 1)

    assert conclusion(result) == "Nothing was lost, and nothing grew."
    result.broken = ["7 envelopes were refused"]
    assert conclusion(result) == "Not all was kept."


def test_file_may_grow_until_retention_is_reached() -> None:
    assert all(
        verdict.name != "file_mib" and verdict.is_flat
        for verdict in judge(hours(300, growing="file_mib"), retention_days=7)
    )


def test_only_the_longest_run_is_judged() -> None:
    samples = [*hours(20, run=1), *hours(100, run=2, first=20), *hours(30, run=3, first=120)]

    assert {sample.run for sample in longest_run(samples)} == {2}


def test_percentiles_are_of_what_there_is() -> None:
    assert percentiles([0.001 * number for number in range(1, 101)]) == pytest.approx((51.0, 96.0, 100.0))
    assert all(math.isnan(value) for value in percentiles([]))


def test_report_is_written_from_what_was_kept(tmp_path: Path) -> None:
    samples = [*hours(20), *hours(300, run=2, first=20)]
    result = Result(Settings(13.0, 800, 5, 7.0, 6), [replace(samples[0], request_p50_ms=math.nan), *samples[1:]])
    result.verdicts, result.figures["envelopes"] = judge(samples, 7.0), 1234
    result.verdicts.append(Verdict("a figure of no hours", math.nan, math.nan, math.nan))
    write_json(result, tmp_path / "soak.json")

    read = read_json(tmp_path / "soak.json")
    write_page(read, tmp_path)

    assert as_text(read) == as_text(result)
    page = (tmp_path / "soak.md").read_text()
    assert "13 days, seed 6, retention of 7 days: envelopes 1,234." in page
    assert "days 5 to 9 and days 9 to 13" in page
    assert "| rss_mib | 100.0 | 100.0 | 110.0 |" in page
    assert "| a figure of no hours | - | - | - |" in page
    assert (tmp_path / "soak.png").stat().st_size > 10_000


def test_run_that_is_recorded_has_its_page_and_one_that_may_not_be_has_none(tmp_path: Path) -> None:
    root, docs = make_repository(tmp_path), tmp_path / "docs"
    recorder = Recorder(root, docs / "evidence")
    month = Result(Settings(30.0, 800, 5, 7.0, 6), hours(300), figures={"envelopes": 1234})
    short = Result(Settings(13.0, 800, 5, 7.0, 6), hours(300))

    record(month, recorder.begin("soak"), [], is_full=True, folder=docs)
    with pytest.raises(NotRecorded, match="a full run, which a shorter one does not replace"):
        record(short, recorder.begin("soak"), ["--days", "13"], is_full=False, folder=docs)

    assert read_records(docs / "evidence")["soak"].rows["the month"]["envelopes"] == 1234
    assert "30 days, seed 6, retention of 7 days: envelopes 1,234." in (docs / "soak.md").read_text()
    assert (docs / "soak.png").stat().st_size > 10_000


def posted(*numbers: int) -> list[Envelope]:
    return [make_envelope(number, created=NOW + number) for number in numbers]


def test_model_finds_what_is_lacking_repeated_and_foreign() -> None:
    model, there = Model(), posted(0, 1, 2, 3)
    model.confirm(there, day=7)
    model.doubt(posted(4), day=7)

    assert model.compare(there, [NEWS], NOW, NOW + 9) == Wrong(0, 0, 0)
    assert model.compare([*there, *posted(4)], [NEWS], NOW, NOW + 9) == Wrong(0, 0, 0)
    assert model.compare([*there[1:], there[1], *posted(5)], [NEWS], NOW, NOW + 9) == Wrong(1, 1, 1)
    assert model.compare(there[1:3], [NEWS], NOW + 1, NOW + 2) == Wrong(0, 0, 0)
    assert model.compare([], [SPORT], NOW, NOW + 9) == Wrong(0, 0, 0)
    assert (model.by_day[7], model.unsure_by_day[7]) == (4, 1)


def test_envelopes_of_a_seed_are_always_the_same() -> None:

    topics = Topics(100, Distribution.ZIPF)
    first, second = (make_envelopes(50, topics, NOW, random.Random(1)) for _ in range(2))

    assert first == second
    assert all(NOW - 2 < envelope.created <= NOW for envelope in first)


@pytest.mark.parametrize("machine_sleeps", [False, True])
def test_clock_moves_for_a_process_at_work(tmp_path: Path, machine_sleeps: bool) -> None:

    clock = MovedClock(tmp_path, machine_sleeps=machine_sleeps)
    code = (
        "import time\nfor _ in range(2): input(); print(*map(time.clock_gettime, (0, 1, 7)), time.time(), flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **clock.environment()},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        shown = []
        for seconds in (0, -31_536_000):
            clock.step(seconds)
            process.stdin.write("\n")
            process.stdin.flush()
            shown.append([float(text) for text in process.stdout.readline().split()])

    wall, monotonic, boot, python = (after - before for before, after in zip(*shown, strict=True))
    assert wall == pytest.approx(-31_536_000, abs=60)
    assert python == pytest.approx(-31_536_000, abs=60)
    assert monotonic == pytest.approx(0, abs=60)
    assert boot == pytest.approx(wall if machine_sleeps else 0, abs=60)
