"""mailserver.monitoring.health: what is wrong, and whether the mailserver can do its work all the same."""

import logging
import time
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from mailserver.handoff.last_run import EXIT_DAMAGED, Compaction
from mailserver.metrics.figures import CompactionFigures, DiskFigures
from mailserver.metrics.labels import Check, Direction
from mailserver.metrics.registry import Metrics
from mailserver.monitoring.health import (
    CLOCK_WINDOW_S,
    FULL_BYTES,
    LATE_S,
    MIN_REFUSED,
    NEARLY_FULL_BYTES,
    NO_PEERS_S,
    NOT_BEFORE,
    WORKERS_AWAY_S,
    Health,
    Problem,
)
from mailserver.monitoring.watch import Sight
from mailserver.waku.acceptance import Verdict
from tests.mailservers import NOW, Clock

GIB = 1024**3
RUN = Compaction(started_at=NOW - 600, finished_at=NOW - 500, exit_code=0, succeeded_at=NOW - 500)
FIGURES = CompactionFigures(
    finished_at=NOW - 500,
    exit_code=0,
    rows=1,
    seconds=100.0,
    succeeded_at=NOW - 500,
    verified_at=NOW - 500,
    is_running=False,
    has_died=False,
)
WELL = Sight()


@dataclass
class Patient:
    """A mailserver whose health is judged."""

    metrics: Metrics = field(default_factory=Metrics)
    peers: int = 1
    clock: Clock = field(default_factory=Clock)
    uptime_s: float = 0.0
    ahead_s: float = 0.0
    expects_compaction: bool = False
    workers: tuple[int, int] = (1, 1)
    seen_elsewhere_s: float = 0.0

    def __post_init__(self) -> None:
        self.health = Health(
            self.metrics,
            lambda: self.peers,
            expects_compaction=self.expects_compaction,
            clock=self.clock,
            ahead=lambda: self.ahead_s,
            workers=lambda: self.workers,
            seen_by_any=lambda seen_at: max(seen_at, self.seen_elsewhere_s),
            monotonic=lambda: self.uptime_s,
        )

    def judge(self, sight: Sight = WELL) -> tuple[Problem, ...]:
        self.health.judge(sight)
        return self.health.problems

    def problem(self, sight: Sight = WELL) -> Problem:
        (problem,) = self.judge(sight)
        return problem

    def receive(self, count: int, refused: Verdict | None = None) -> None:
        self.metrics.received.inc(count)
        if refused is not None:
            self.metrics.rejected[refused].inc(count)


def compacted(run: Compaction = RUN, **changes: object) -> Sight:
    return Sight(compaction=run, compaction_figures=replace(FIGURES, **changes))  # type: ignore[arg-type]


def test_who_is_well_has_no_problems() -> None:
    patient = Patient()

    assert patient.judge(compacted()) == ()
    assert patient.health.is_ready
    assert patient.health.as_json() == {"problems": []}


def test_store_that_is_not_writable_is_fatal() -> None:
    patient = Patient()

    problem = patient.problem(Sight(store_problem="database or disk is full"))

    assert problem == Problem(Check.STORE, "the store is not writable: database or disk is full", is_fatal=True)
    assert not patient.health.is_ready


@pytest.mark.parametrize(
    ("free", "size", "text", "is_fatal"),
    [
        (4 * GIB, 100 * GIB, "the disk is nearly full: 4 GiB of 100 GiB free", False),
        (FULL_BYTES - 1, 100 * GIB, "the disk is full: 64 MiB of 100 GiB free", True),
    ],
)
def test_disk_without_room_is_a_problem(free: int, size: int, text: str, is_fatal: bool) -> None:
    assert Patient().problem(Sight(disk=DiskFigures(free, size))) == Problem(Check.DISK, text, is_fatal)


@pytest.mark.parametrize(("free", "size"), [(6 * GIB, 100 * GIB), (NEARLY_FULL_BYTES, 10_000 * GIB)])
def test_disk_with_room_is_none(free: int, size: int) -> None:
    assert Patient().judge(Sight(disk=DiskFigures(free, size))) == ()


def test_clock_from_before_this_program_is_fatal() -> None:
    patient = Patient(clock=Clock(NOT_BEFORE.timestamp() - 1))

    assert patient.problem() == Problem(Check.CLOCK, "the clock is wrong: it shows 2025-12-31T23:59:59Z", is_fatal=True)


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (Verdict.FROM_THE_FUTURE, "came from the future: the clock here may be slow"),
        (Verdict.VERY_OLD, "had long expired: the clock here may be fast"),
    ],
)
def test_clock_that_most_envelopes_contradict_is_a_problem(verdict: Verdict, words: str) -> None:
    patient = Patient()
    patient.judge()
    patient.receive(MIN_REFUSED, verdict)
    patient.receive(MIN_REFUSED - 1)

    problem = patient.problem()

    assert problem.check is Check.CLOCK
    assert problem.text == f"{MIN_REFUSED} of the last {2 * MIN_REFUSED - 1} envelopes {words}"
    assert not problem.is_fatal  # who sends us nonsense must not be able to take us out of service


@pytest.mark.parametrize(("refused", "taken"), [(MIN_REFUSED - 1, 0), (MIN_REFUSED, MIN_REFUSED)])
def test_few_envelopes_with_a_wrong_time_are_their_senders_fault(refused: int, taken: int) -> None:
    patient = Patient()
    patient.judge()
    patient.receive(refused, Verdict.FROM_THE_FUTURE)
    patient.receive(taken)

    assert patient.judge() == ()


def test_clock_is_well_again_when_the_contradictions_are_long_ago() -> None:
    patient = Patient()
    patient.judge()
    patient.receive(MIN_REFUSED, Verdict.VERY_OLD)
    assert patient.judge()

    patient.uptime_s += CLOCK_WINDOW_S + 1
    assert patient.judge() == ()


@pytest.mark.parametrize(
    ("days", "text"),
    [
        (
            365,
            (
                "the clock is 365.0 days ahead of the time known to have passed; "
                "that is what ages are measured by until peers agree"
            ),
        ),
        (-1, "the clock is 1.0 days behind the time that peers last agreed with"),
    ],
)
def test_clock_that_has_leapt_is_a_problem_and_not_fatal(days: int, text: str) -> None:
    assert Patient(ahead_s=days * 86_400.0).problem() == Problem(Check.CLOCK, text)


@pytest.mark.parametrize("hours", [-23, 23])
def test_night_without_the_mailserver_is_no_problem(hours: int) -> None:
    assert Patient(ahead_s=hours * 3600.0).judge() == ()


def test_compaction_that_ended_in_the_future_is_a_problem() -> None:
    patient = Patient(clock=Clock(NOW - 30 * 86_400))

    assert "which is in the future: the clock is wrong, or it was" in patient.problem(compacted()).text


def test_compaction_that_has_never_run_is_a_problem_after_a_night_if_there_should_be_one() -> None:
    patient = Patient(expects_compaction=True)
    assert patient.judge() == ()

    patient.uptime_s = LATE_S + 1

    assert patient.problem() == Problem(Check.COMPACTION, "the compaction has never run")
    assert Patient(expects_compaction=False, uptime_s=LATE_S + 1).judge() == ()


@pytest.mark.parametrize(
    ("sight", "text"),
    [
        (Sight(compaction_problem="x is no record"), "x is no record"),
        (compacted(replace(RUN, exit_code=1, error="no Java")), "the last compaction failed: no Java"),
        (compacted(replace(RUN, exit_code=137)), "the last compaction failed: 137"),
        (
            compacted(replace(RUN, finished_at=None, exit_code=None), has_died=True),
            f"the compaction that began at {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(NOW - 600))} was killed",
        ),
        (
            compacted(replace(RUN, succeeded_at=NOW - LATE_S - 1)),
            "the compaction is late: the last successful run ended at "
            + time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(NOW - LATE_S - 1)),
        ),
    ],
)
def test_compaction_that_does_not_go_well_is_a_problem(sight: Sight, text: str) -> None:
    patient = Patient()

    assert patient.problem(sight) == Problem(Check.COMPACTION, text)
    assert patient.health.is_ready


@pytest.mark.parametrize(
    ("changes", "also"),
    [
        ({"exit_code": EXIT_DAMAGED}, []),
        ({"finished_at": None, "exit_code": None}, []),  # the next run is at work
        ({"exit_code": 1, "error": "no Java"}, [Check.COMPACTION]),
    ],
)
def test_damaged_archive_is_a_problem_until_a_run_finds_it_whole(changes: dict[str, Any], also: list[Check]) -> None:
    patient = Patient()
    damaged = replace(RUN, damage="2 files are missing", **changes)

    problems = patient.judge(compacted(damaged, is_running=damaged.finished_at is None))

    assert [problem.check for problem in problems] == [*also, Check.ARCHIVE]
    assert problems[-1].text == "the archive is damaged: 2 files are missing"
    assert patient.judge(compacted(RUN)) == ()


def test_archive_that_could_not_be_read_for_a_request_is_a_warning() -> None:
    cause = "requests could not be answered from the archive: part-1.parquet is missing"
    health = Health(Metrics(), lambda: 1, expects_compaction=False, clock=Clock(), reading_problem=lambda: cause)

    health.judge(WELL)

    assert health.problems == (Problem(Check.ARCHIVE, cause),)
    assert health.is_ready


def test_what_a_verification_found_is_a_problem_of_the_archive() -> None:
    sight = replace(compacted(), upkeep_problem="the last verification failed: 1 file is missing")

    problem = Patient().problem(sight)

    assert problem == Problem(Check.ARCHIVE, "the archive: the last verification failed: 1 file is missing")


def test_compaction_at_work_for_the_first_time_is_not_late() -> None:
    run = Compaction(started_at=NOW - 60)

    assert Patient().judge(compacted(run, is_running=True)) == ()
    assert Patient().problem(compacted(replace(run, started_at=NOW - LATE_S - 1), is_running=True)).check is (
        Check.COMPACTION
    )


def test_compaction_at_work_after_days_without_one_is_not_late_unless_it_hangs() -> None:
    run = Compaction(started_at=NOW - 60, succeeded_at=NOW - 5 * 86_400)

    assert Patient().judge(compacted(run, is_running=True)) == ()
    hanging = compacted(replace(run, started_at=NOW - LATE_S - 1), is_running=True)
    assert "the compaction is late" in Patient().problem(hanging).text


def test_nobody_connected_for_a_while_is_a_problem_until_somebody_is() -> None:
    patient = Patient(peers=0)
    assert patient.judge() == ()

    patient.uptime_s = NO_PEERS_S
    problem = patient.problem()
    assert problem.text == "no peer has been connected for 5 min: is the port reachable?"
    assert not problem.is_fatal

    patient.peers = 1
    assert patient.judge() == ()
    patient.peers, patient.uptime_s = 0, 2 * NO_PEERS_S - 1
    assert patient.judge() == ()


@pytest.mark.parametrize("direction", Direction)
def test_peers_that_come_and_go_between_two_looks_have_been_connected(direction: Direction) -> None:
    patient = Patient(peers=0)
    for _ in range(100):
        patient.uptime_s += NO_PEERS_S / 2
        patient.metrics.connections[direction].inc()
        assert patient.judge() == ()

    patient.uptime_s += NO_PEERS_S
    assert patient.problem().check is Check.PEERS


def test_peers_of_other_workers_have_been_connected() -> None:
    patient = Patient(peers=0)
    patient.uptime_s, patient.seen_elsewhere_s = NO_PEERS_S + 5, 6

    assert patient.judge() == ()

    patient.uptime_s += 1
    assert patient.problem().check is Check.PEERS


def test_workers_that_are_away_for_a_while_are_a_problem_until_all_serve_peers() -> None:
    patient = Patient(workers=(1, 3))
    assert patient.judge() == ()

    patient.uptime_s = WORKERS_AWAY_S
    problem = patient.problem()
    assert (problem.check, problem.is_fatal) == (Check.WORKERS, False)
    assert problem.text == "only 1 of 3 workers serve peers: the log says why the others end"

    patient.workers = (3, 3)
    assert patient.judge() == ()
    patient.workers = (2, 3)
    assert patient.judge() == ()


def test_problem_is_logged_when_it_begins_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    patient = Patient()

    patient.judge(Sight(store_problem="no room"))
    patient.judge(Sight(store_problem="still no room", disk=DiskFigures(GIB, 100 * GIB)))
    patient.judge()

    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("ERROR", "problem check=store text='the store is not writable: no room'"),
        ("WARNING", "problem check=disk text='the disk is nearly full: 1 GiB of 100 GiB free'"),
        ("INFO", "problem is over check=disk"),
        ("INFO", "problem is over check=store"),
    ]
