"""Merging and verifying on a schedule: since when each has been waiting, and its record
(`mailserver.handoff.last_upkeep`).

No Spark is imported here.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from mailserver.archive.errors import ArchiveBusy, NoArchive
from mailserver.errors import StoreError
from mailserver.handoff.last_run import CompactionRecordError
from mailserver.handoff.last_upkeep import LastUpkeep, Task, UpkeepRecordError
from spark_export.errors import ExportError
from spark_export.places import StorePlace, read_compaction, read_upkeep, upkeep_lock, write_upkeep

log = logging.getLogger(__name__)


def waits_since(stores: Sequence[StorePlace], task: Task, current: float) -> float:
    """Since when a run of a task has been waiting, in Unix seconds: for a new task `current`, which is written down."""
    since = current
    for store in stores:
        try:
            if not store.exists():  # as at a first start: a database has no table of records then
                continue
            upkeep = read_upkeep(store, task)
            if upkeep is not None:
                since = min(since, upkeep.waits_since)
            else:
                _write(store, task, LastUpkeep(current))
        except (UpkeepRecordError, StoreError) as error:
            log.warning("last run unknown cause=%r", str(error))
    return since


def put_off(stores: Sequence[StorePlace], task: Task, current: float) -> None:
    """Have a task that was due, but has nothing to do yet, wait anew from `current` on."""
    for store in stores:
        with contextlib.suppress(UpkeepRecordError, StoreError):
            upkeep = read_upkeep(store, task)
            if upkeep is not None:
                _write(store, task, replace(upkeep, waits_since=current))


def anything_archived(stores: Sequence[StorePlace]) -> bool:
    """Whether the compaction has archived anything of these stores yet.

    Raises:
        CompactionRecordError: the record of its last run cannot be read.
        StoreError: the database that has it cannot be reached.
    """
    return any(record is not None and record.archived for record in map(read_compaction, stores))


@contextlib.contextmanager
def recorded_upkeep(
    stores: Sequence[StorePlace], task: Task, explain: Callable[[BaseException], tuple[int, str]]
) -> Iterator[None]:
    """Write beside each store that a run of a task has begun, and how it has ended. Without stores, do nothing.

    Args:
        explain: the exit code that an error leads to, and one line on what it is.
    Raises:
        ExportError: another run of the task is at work for one of the stores, or its lock file cannot be written.
    """
    with contextlib.ExitStack() as stack:
        for store in stores:
            stack.enter_context(_locked(store, task))
        began = _now()
        before = {store: _last(store, task, began) for store in stores}
        records = {
            store: replace(last, started_at=began, finished_at=None, exit_code=None, error="")
            for store, last in before.items()
        }
        for store, record in records.items():
            _write(store, task, record)
        try:
            yield
        except BaseException as error:
            if _has_not_begun(error, stores):  # the last run is still what it was
                for store, last in before.items():
                    _write(store, task, last)
                raise
            exit_code, cause = explain(error)
            for store, record in records.items():
                _write(store, task, replace(record, finished_at=_now(), exit_code=exit_code, error=cause))
            raise
        for store, record in records.items():
            now = _now()
            _write(store, task, replace(record, waits_since=now, finished_at=now, exit_code=0, succeeded_at=now))


def _has_not_begun(error: BaseException, stores: Sequence[StorePlace]) -> bool:
    """Whether a run has ended with nothing done, and no fault: another task's was at work, or there is no archive, and
    none is expected."""
    if not isinstance(error, NoArchive):
        return isinstance(error, ArchiveBusy)
    try:
        return not anything_archived(stores)
    except (CompactionRecordError, StoreError):  # then nobody knows that none is expected
        return False


@contextlib.contextmanager
def _locked(store: StorePlace, task: Task) -> Iterator[None]:
    with upkeep_lock(store, task) as other:
        if other is not None:
            raise ExportError(f"{store}: another run of {task.value} (pid {other}) is at work")
        yield


def _last(store: StorePlace, task: Task, began: float) -> LastUpkeep:
    try:
        return read_upkeep(store, task) or LastUpkeep(began)
    except UpkeepRecordError as error:
        log.warning("unreadable record of runs replaced cause=%r", str(error))
        return LastUpkeep(began)


def _write(store: StorePlace, task: Task, upkeep: LastUpkeep) -> None:
    try:
        write_upkeep(store, task, upkeep)
    except (OSError, StoreError) as error:  # it is for people: a run goes on without
        cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        log.warning("record of runs not written store=%s cause=%r", store, cause)


def _now() -> float:
    return round(time.time(), 3)
