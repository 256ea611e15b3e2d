"""`spark-export last`: how the last run went, when the next is due, and whether all is well. It is the health check of
the compaction's container: it needs no Spark, and only some milliseconds more than Python's own start.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from mailserver.archive.days import utc_text
from mailserver.errors import StoreError
from mailserver.handoff.last_run import Compaction, CompactionRecordError, CompactionState
from mailserver.handoff.last_upkeep import LastUpkeep, Task, UpkeepRecordError
from mailserver.units import SECONDS_PER_DAY
from spark_export.errors import ExportError
from spark_export.options import OFF, next_due
from spark_export.overdue import waiting_since
from spark_export.places import StorePlace, last_run, last_upkeep, place_of

_SECONDS_PER_HOUR = 3600


_RUN_OF = {Task.MERGE: "merge", Task.VERIFY: "verification", Task.COMMUNITIES: "run for communities"}


@dataclass(frozen=True, slots=True)
class _Limits:
    """What is too old, and what takes too long, in hours; and by which schedule each task is due."""

    age: float
    run: float
    schedules: dict[Task, str]


@dataclass(frozen=True, slots=True)
class _Look:
    """The state of a store; `faults` is empty if all is well."""

    store: StorePlace
    state: CompactionState
    record: Compaction | None
    upkeep: dict[Task, tuple[CompactionState, LastUpkeep | None]]
    faults: tuple[str, ...]


def last(arguments: argparse.Namespace) -> int:
    """Print it; return 1 if a run failed, died or does not end, or none has succeeded for too long, else 0."""
    now = time.time()
    schedules = {Task.MERGE: arguments.merge_schedule, Task.VERIFY: arguments.verify_schedule}
    schedules = {task: expression for task, expression in schedules.items() if expression != OFF}
    limits = _Limits(float(arguments.max_age_hours), float(arguments.max_run_hours), schedules)
    found = []
    for store in arguments.store:
        try:
            found.append(_look(place_of(store), limits, now))
        except (ExportError, StoreError, CompactionRecordError, UpkeepRecordError, OSError) as error:
            print(f"spark-export: {error}", file=sys.stderr)
            return 1
    upcoming = {"run": arguments.schedule, **{task.value: expression for task, expression in schedules.items()}}
    upcoming = {name: utc_text(next_due(expression, now)) for name, expression in upcoming.items()}
    if arguments.json:
        print(json.dumps({"next": upcoming, "stores": [_as_json(one) for one in found]}, indent=1))
    else:
        for one in found:
            for words in _words(one):
                print(f"{one.store}: {words}")
        for name, moment in upcoming.items():
            print(f"next {name} {moment}")
    for one in found:
        for fault in one.faults:
            print(f"spark-export: {one.store}: {fault}", file=sys.stderr)
    return 1 if any(one.faults for one in found) else 0


def _look(store: StorePlace, limits: _Limits, now: float) -> _Look:
    state, record = last_run(store)
    upkeep = {task: last_upkeep(store, task) for task in Task}
    at_work = CompactionState.RUNNING in (state, *(task_state for task_state, _ in upkeep.values()))
    # A late task is no fault while a run is at work, as runs are made one after another; nor if nothing is archived
    # yet.
    may_be_late = not at_work and record is not None and bool(record.archived)
    faults = [_fault(store, state, record, limits, now), "" if record is None else record.damage]
    for task, (task_state, run) in upkeep.items():
        if run is not None:
            late = _lateness(task, run, limits, now) if may_be_late else ""
            faults.append(_upkeep_fault(task, task_state, run, limits, now) or late)
    return _Look(store, state, record, upkeep, tuple(filter(None, faults)))


def _fault(store: StorePlace, state: CompactionState, record: Compaction | None, limits: _Limits, now: float) -> str:
    """What is wrong with the compaction itself, apart from what it found in the archive; "" if nothing is."""
    since = waiting_since(store, record)
    if state is CompactionState.RUNNING and record is not None:
        # Not late: it is working on what waits, be it a month of a store that was restored or moved.
        return _hanging("run", record.started_at, limits, now)
    if state is CompactionState.FAILED and record is not None:
        return f"the last run failed: {record.error}"
    if state is CompactionState.DIED:
        return "the last run was killed, or the machine went down: is there enough memory?"
    succeeded_at = None if record is None else record.succeeded_at
    if succeeded_at is not None and succeeded_at > now + SECONDS_PER_DAY:
        return _in_the_future("run", succeeded_at)
    if since is not None and now - since > limits.age * _SECONDS_PER_HOUR:
        return f"no run has succeeded{' yet, and rows wait' if succeeded_at is None else ''} since {utc_text(since)}"
    return ""


def _upkeep_fault(task: Task, state: CompactionState, run: LastUpkeep, limits: _Limits, now: float) -> str:
    """What is wrong with how a merge or verification went; "" if nothing is."""
    name = _RUN_OF[task]
    if state is CompactionState.RUNNING and run.started_at is not None:
        return _hanging(name, run.started_at, limits, now)
    if state is CompactionState.FAILED:
        return f"the last {name} failed: {run.error}"
    if state is CompactionState.DIED:
        return f"the last {name} was killed, or the machine went down: is there enough memory?"
    if run.succeeded_at is not None and run.succeeded_at > now + SECONDS_PER_DAY:
        return _in_the_future(name, run.succeeded_at)
    return ""


def _lateness(task: Task, run: LastUpkeep, limits: _Limits, now: float) -> str:
    expression = limits.schedules.get(task)
    due = None if expression is None else next_due(expression, run.waits_since)
    if due is None or now - due <= limits.age * _SECONDS_PER_HOUR:
        return ""
    return f"no {_RUN_OF[task]} has succeeded since {utc_text(run.waits_since)}: one was due at {utc_text(due)}"


def _hanging(name: str, began: float, limits: _Limits, now: float) -> str:
    if now - began <= limits.run * _SECONDS_PER_HOUR:
        return ""
    return f"the {name} that began at {utc_text(began)} has not ended within {limits.run:g} h: does it hang?"


def _in_the_future(name: str, succeeded_at: float) -> str:
    ended = f"the last {name} that succeeded ended at {utc_text(succeeded_at)}"
    return f"{ended}, which is in the future: the clock was wrong then, or is wrong now"


def _words(one: _Look) -> Iterator[str]:
    yield _compaction_words(one)
    for task, (state, run) in one.upkeep.items():
        if run is not None and run.started_at is not None:
            began = f"the {_RUN_OF[task]} of {utc_text(run.started_at)}"
            match state:
                case CompactionState.SUCCEEDED:
                    yield f"{began} succeeded in {_seconds(run):.0f} s"
                case CompactionState.FAILED:
                    yield f"{began} failed after {_seconds(run):.0f} s with exit code {run.exit_code}"
                case CompactionState.RUNNING:
                    yield f"a {_RUN_OF[task]} has been at work since {utc_text(run.started_at)}"
                case _:
                    yield f"{began} did not end: it was killed"


def _compaction_words(one: _Look) -> str:
    if one.record is None:
        return "no run yet"
    began = utc_text(one.record.started_at)
    counts = f"rows={one.record.rows} days={one.record.days} bytes={one.record.bytes}"
    match one.state:
        case CompactionState.SUCCEEDED:
            return f"the run of {began} succeeded in {one.record.seconds:.0f} s, {counts}{_set_aside(one.record)}"
        case CompactionState.DAMAGED:
            wrong = f"faults={one.record.archive.faults} lost={one.record.archive.lost_rows}"
            return f"the run of {began} found the archive damaged, {wrong} {counts}{_set_aside(one.record)}"
        case CompactionState.FAILED:
            return f"the run of {began} failed after {one.record.seconds:.0f} s with exit code {one.record.exit_code}"
        case CompactionState.RUNNING:
            return f"a run has been at work since {began}"
        case _:
            return f"the run of {began} did not end: it was killed"


def _as_json(one: _Look) -> dict[str, Any]:
    said: dict[str, Any] = {"store": str(one.store), "state": one.state.value, "faults": list(one.faults)}
    if one.record is not None:
        said |= _times(one.record)
        for name in ("exit_code", "error", "rows", "bytes", "days", "seconds"):
            said[name] = getattr(one.record, name)
        said["archive"] = asdict(one.record.archive)
    for task, (state, run) in one.upkeep.items():
        said[task.value] = {"state": state.value}
        if run is not None:
            said[task.value] |= {**_times(run), "exit_code": run.exit_code, "error": run.error}
    return said


def _times(run: Compaction | LastUpkeep) -> dict[str, str | None]:
    moments = {name: getattr(run, name) for name in ("started_at", "finished_at", "succeeded_at")}
    return {name: None if moment is None else utc_text(moment) for name, moment in moments.items()}


def _seconds(run: LastUpkeep) -> float:
    assert run.started_at is not None
    return max(0.0, (run.finished_at or run.started_at) - run.started_at)  # the clock may have been stepped


def _set_aside(record: Compaction) -> str:
    """How many rows of the stores did not go into the archive; "" if none."""
    figures = record.archive
    counts = {"quarantined": figures.quarantined_rows, "miscounted": figures.miscounted_rows}
    return "".join(f" {name}={rows}" for name, rows in counts.items() if rows)
