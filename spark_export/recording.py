"""The locks on the stores of a run, and the record that it leaves beside each (`mailserver.handoff.last_run`).

The record is for people and for the daemon's metrics: if it cannot be written, a run says so and goes on.
"""

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mailserver.archive.days import month_of
from mailserver.archive.errors import ArchiveBusy
from mailserver.errors import StoreError
from mailserver.handoff.archived import CompactionRunning
from mailserver.handoff.last_run import (
    EXIT_DAMAGED,
    MAX_ARCHIVED_DAYS,
    ArchivedDay,
    ArchiveFigures,
    Compaction,
    CompactionRecordError,
)
from spark_export.errors import ExportError
from spark_export.places import StorePlace, compaction_lock, is_same_place, read_compaction, write_compaction

log = logging.getLogger(__name__)

_LISTS = ("days", "miscounted", "faults", "lost")
"""Lists of the report, which grow with the run. The archive keeps them whole, in `_runs/`."""


class Recording:
    """What a run reports; `succeeded` is called once it has done everything."""

    def __init__(self) -> None:
        self.report: Mapping[str, Any] = {}
        self.archived: Mapping[int, ArchivedDay] = {}
        self.figures = ArchiveFigures()
        self.damage = ""

    def succeeded(
        self,
        report: Mapping[str, Any],
        archived: Mapping[int, ArchivedDay],
        figures: ArchiveFigures,
        *,
        damage: str = "",
    ) -> None:
        """Keep the report, as it is printed, and what is in the archive now.

        Args:
            damage: what is missing or damaged there, or lost, in one line; "" if nothing is.
        """
        self.report = report
        self.archived = archived
        self.figures = figures
        self.damage = damage


@contextlib.contextmanager
def locked_stores(stores: Sequence[StorePlace]) -> Iterator[list[StorePlace]]:
    """Keep other runs and the daemons' pruning away from the stores; yield those that exist.

    Raises:
        ExportError: another run holds the lock of one, or it cannot be locked, or one is named twice.
    """
    locked = []
    with contextlib.ExitStack() as stack:
        for number, store in enumerate(stores):
            if any(is_same_place(store, other) for other in stores[:number]):
                raise ExportError(f"the store {store} is named twice")
            try:
                if store.exists():  # else `describe` says so
                    stack.enter_context(compaction_lock(store))
                    locked.append(store)
            except CompactionRunning as error:
                raise ExportError(f"{store}: {error}") from error
            except StoreError as error:
                raise ExportError(f"cannot lock {store}: {error}") from error
            except OSError as error:
                raise ExportError(f"cannot lock {store}: {error.strerror or error}") from error
        yield locked


@contextlib.contextmanager
def recorded(stores: Sequence[StorePlace], explain: Callable[[BaseException], tuple[int, str]]) -> Iterator[Recording]:
    """Lock the stores for a run, and write beside each that it has begun, and how it has ended.

    Args:
        explain: the exit code that an error leads to, and one line on what it is.
    Raises:
        ExportError: see `locked_stores`; or the run succeeded, but its record cannot be written.
    """
    recording = Recording()
    with locked_stores(stores) as locked:
        began = _now()
        before = {store: _last(store) for store in locked}
        records = {store: _begin(store, last, began) for store, last in before.items()}
        try:
            yield recording
            _end(records, lambda record: _succeeded(record, recording))
        except ArchiveBusy as error:  # another run is at work on the archive: this one leaves what is said of the last
            for store, record in records.items():
                _write(store, before[store] or _failed(record, *explain(error)))
            raise
        except BaseException as error:
            for store, record in records.items():  # the run's own error is what is raised
                _write(store, _failed(record, *explain(error)))
            raise


def _last(store: StorePlace) -> Compaction | None:
    try:
        return read_compaction(store)
    except CompactionRecordError as error:
        log.warning("unreadable record of runs replaced cause=%r", str(error))
        return None


def _begin(store: StorePlace, last: Compaction | None, began: float) -> Compaction:
    last = last if last is not None else Compaction(began)
    record = replace(
        Compaction(began),
        succeeded_at=last.succeeded_at,
        archived=last.archived,
        archived_months=last.archived_months,
        archived_in=last.archived_in,
        archive=last.archive,
        damage=last.damage,
    )
    _write(store, record)
    return record


def _succeeded(record: Compaction, recording: Recording) -> Compaction:
    now = _now()
    return replace(
        record,
        finished_at=now,
        exit_code=EXIT_DAMAGED if recording.damage else 0,
        error=recording.damage,
        rows=recording.report["rows"],
        bytes=recording.report["bytes"],
        days=len(recording.report["days"]),
        seconds=_since(record.started_at, now),
        report={
            **recording.report,
            **{name: recording.report[name][-MAX_ARCHIVED_DAYS:] for name in _LISTS if name in recording.report},
        },
        succeeded_at=now,
        archived=recording.archived,
        archived_months=_rows_of_months(recording.archived),
        archived_in=recording.report["archive"],
        archive=recording.figures,
        damage=recording.damage,
    )


def _rows_of_months(archived: Mapping[int, ArchivedDay]) -> dict[str, int]:
    rows: Counter[str] = Counter()
    for day, known in archived.items():
        rows[month_of(day)] += known.rows
    return dict(rows)


def _end(records: Mapping[StorePlace, Compaction], ended: Callable[[Compaction], Compaction]) -> None:
    for store, record in records.items():
        try:
            write_compaction(store, ended(record))
        except (OSError, StoreError, ValueError) as error:
            cause = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise ExportError(
                f"the archive is up to date, but no record can be written beside {store}: {cause}"
            ) from error


def _failed(record: Compaction, exit_code: int, cause: str) -> Compaction:
    now = _now()
    return replace(record, finished_at=now, exit_code=exit_code, error=cause, seconds=_since(record.started_at, now))


def _write(store: StorePlace, record: Compaction) -> None:
    try:
        write_compaction(store, record)
    except (OSError, StoreError) as error:  # a full disk, perhaps: pruning, which this run allows, makes room
        cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        log.warning("record of runs not written store=%s cause=%r", store, cause)


def _now() -> float:
    return round(time.time(), 3)


def _since(began: float, now: float) -> float:
    return round(max(0.0, now - began), 3)  # the clock may have been stepped
