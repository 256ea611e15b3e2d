"""What merges and verifications of the archive leave beside a store: how the last one of each went.

    mailserver.db-merge.json, -verify.json    how the last run went, and when one last succeeded
    mailserver.db-merge.lock, -verify.lock    held while one is at work; the kernel drops it with the process

Like the compaction's record (`mailserver.handoff.last_run`) it is for people, and for the daemon, which tells of what
failed; all that it decides is when the next run is due. Standard library only: the compaction imports this module.
"""

import json
import os
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

from mailserver.errors import MailserverError
from mailserver.files import open_descriptor, try_lock, write_atomically
from mailserver.handoff.json_records import Record, count_of, field_of, number_of, number_or_none, read_record
from mailserver.handoff.last_run import MAX_ERROR_CHARS, CompactionState

_VERSION = 1


class UpkeepRecordError(MailserverError):
    """The record cannot be read or understood. `str()` is one line for the operator."""


class Task(Enum):
    """What is done to a whole archive now and then. The value is the command's name."""

    MERGE = "merge"
    VERIFY = "verify"


@dataclass(frozen=True, slots=True)
class Upkeep:
    """How one task stands. Times are Unix seconds, None if that has not happened.

    Args:
        waits_since: a run that was due later than this, and before now, has been missed: the end of the last one that
            succeeded; before the first, when the task was first looked for.
        finished_at: None while a run is at work, and for ever if it was killed; `exit_code`, too.
        error: why it failed, one line; "" if it did not.
    """

    waits_since: float
    started_at: float | None = None
    finished_at: float | None = None
    exit_code: int | None = None
    error: str = ""
    succeeded_at: float | None = None


def upkeep_file(store: Path, task: Task) -> Path:
    """Where the record of a task lies."""
    return store.with_name(f"{store.name}-{task.value}.json")


def read_upkeep(store: Path, task: Task) -> Upkeep | None:
    """Read the record beside a store; None if there is none.

    Raises:
        UpkeepRecordError: it cannot be read, is not whole, or is of a later version.
    """
    return read_record(
        upkeep_file(store, task),
        _decode,
        version=_VERSION,
        what=f"record of {task.value}",
        error=UpkeepRecordError,
    )


def write_upkeep(store: Path, task: Task, upkeep: Upkeep) -> None:
    """Write the record beside a store: complete, or as it was.

    Raises:
        OSError: it cannot be written.
    """
    record = {"version": _VERSION, **asdict(upkeep), "error": upkeep.error[:MAX_ERROR_CHARS]}
    write_atomically(upkeep_file(store, task), json.dumps(record, indent=1) + "\n", 0o644)


def look_at(store: Path, task: Task) -> tuple[CompactionState, Upkeep | None]:
    """How the last run of a task stands, and its record.

    Raises:
        UpkeepRecordError: the record cannot be read.
        OSError: the lock file cannot be read.
    """
    while True:
        upkeep = read_upkeep(store, task)
        if upkeep is None or upkeep.started_at is None:
            return CompactionState.NEVER, upkeep
        if upkeep.finished_at is not None:
            return CompactionState.SUCCEEDED if upkeep.exit_code == 0 else CompactionState.FAILED, upkeep
        if _at_work(store, task):
            return CompactionState.RUNNING, upkeep
        if read_upkeep(store, task) == upkeep:  # else it has finished since the record was read
            return CompactionState.DIED, upkeep


def _at_work(store: Path, task: Task) -> bool:
    try:
        with open_descriptor(upkeep_lock_file(store, task), os.O_RDONLY) as descriptor:
            return not try_lock(descriptor, shared=True)
    except FileNotFoundError:
        return False


def upkeep_lock_file(store: Path, task: Task) -> Path:
    """What a run of a task holds."""
    return store.with_name(f"{store.name}-{task.value}.lock")


def _decode(record: Record) -> Upkeep:
    exit_code = record.get("exit_code")
    upkeep = Upkeep(
        waits_since=number_of("waits_since", record.get("waits_since")),
        started_at=number_or_none(record, "started_at"),
        finished_at=number_or_none(record, "finished_at"),
        exit_code=None if exit_code is None else count_of("exit_code", exit_code),
        error=field_of(record, "error", str),
        succeeded_at=number_or_none(record, "succeeded_at"),
    )
    if (upkeep.exit_code is None) != (upkeep.finished_at is None):
        raise ValueError("finished_at and exit_code do not go together")
    return upkeep
