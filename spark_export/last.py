"""`spark-export last`: how the last run went, when the next is due, and whether all is well. The health check of the
compaction's container: no Spark, and some milliseconds beyond Python's own start.
"""

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mailserver.store.compaction import Compaction, CompactionRecordError, CompactionState, look
from spark_export.days import utc_text
from spark_export.due import waiting_since
from spark_export.errors import ExportError
from spark_export.options import next_due

_SECONDS_PER_HOUR = 3600
_SECONDS_PER_DAY = 86_400


@dataclass(frozen=True, slots=True)
class _Look:
    """A store as it stands; `fault` is "" where all is well."""

    store: Path
    state: CompactionState
    record: Compaction | None
    fault: str


def last(arguments: argparse.Namespace) -> int:
    """Print it; return 1 if a run failed or died, or none has succeeded for too long, else 0."""
    now = time.time()
    found = []
    for store in arguments.store:
        try:
            found.append(_look(Path(store), float(arguments.max_age_hours), now))
        except (ExportError, CompactionRecordError, OSError) as error:
            print(f"spark-export: {error}", file=sys.stderr)
            return 1
    next_run = utc_text(next_due(arguments.schedule, now))
    if arguments.json:
        print(json.dumps({"next": next_run, "stores": [_as_json(one) for one in found]}, indent=1))
    else:
        for one in found:
            print(f"{one.store}: {_words(one)}")
        print(f"next run {next_run}")
    faulty = [one for one in found if one.fault]
    for one in faulty:
        print(f"spark-export: {one.store}: {one.fault}", file=sys.stderr)
    return 1 if faulty else 0


def _look(store: Path, max_age_hours: float, now: float) -> _Look:
    state, record = look(store)
    since = waiting_since(store, record)
    fault = ""
    if state is CompactionState.FAILED and record is not None:
        fault = f"the last run failed: {record.error}"
    elif state is CompactionState.DAMAGED and record is not None:
        fault = record.error
    elif state is CompactionState.DIED:
        fault = "the last run was killed, or the machine went down: is there memory enough?"
    elif record is not None and record.succeeded_at is not None and record.succeeded_at > now + _SECONDS_PER_DAY:
        fault = f"the last run that succeeded ended at {utc_text(record.succeeded_at)}, which is yet to come: the clock"
        fault += " was off, or is"
    elif since is not None and now - since > max_age_hours * _SECONDS_PER_HOUR:
        succeeded = record is not None and record.succeeded_at is not None
        fault = f"no run has succeeded {'since' if succeeded else 'yet, and rows wait since'} {utc_text(since)}"
    return _Look(store, state, record, fault)


def _words(one: _Look) -> str:
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
    said: dict[str, Any] = {"store": str(one.store), "state": one.state.value, "fault": one.fault}
    if one.record is not None:
        for name in ("started_at", "finished_at", "succeeded_at"):
            moment = getattr(one.record, name)
            said[name] = None if moment is None else utc_text(moment)
        for name in ("exit_code", "error", "rows", "bytes", "days", "seconds"):
            said[name] = getattr(one.record, name)
        said["archive"] = asdict(one.record.archive)
    return said


def _set_aside(record: Compaction) -> str:
    """Rows that are in no archive, and not by the daemon's doing; "" if there are none."""
    figures = record.archive
    counts = {"quarantined": figures.quarantined_rows, "miscounted": figures.miscounted_rows}
    return "".join(f" {name}={rows}" for name, rows in counts.items() if rows)
