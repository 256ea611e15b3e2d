"""The file that keeps what was wrong with an archive until an operator has acknowledged it.

    _incidents.json    an incident for each period that was found faulty: when, which files, and what became of them

The periods' records say how many rows are lost (`mailserver.archive.manifest.lost_of`): they change in one step with
the files. An incident says which files the rows were in.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mailserver.archive.days import day_name, parse_day, utc_text
from mailserver.archive.errors import ArchiveError, RecordDamaged
from mailserver.archive.faults import Fault, FaultKind
from mailserver.archive.manifest import Lost, PeriodRecord, lost_of
from spark_export.storage import WritableFiles

INCIDENTS_FILE = "_incidents.json"
INCIDENTS_VERSION = 1

MAX_CLOSED_INCIDENTS = 1000
"""How many closed incidents are kept: the latest ones."""

WHOLE_ARCHIVE = ""
"""The period of an incident that is the loss of everything."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Rows of a day of reception that were archived and are no longer in any file or store.

    `files`: those that were missing or damaged. The rows may have been in any of them.
    """

    day: int
    rows: int
    bytes: int
    files: tuple[str, ...]

    def __str__(self) -> str:
        return f"{day_name(self.day)}: {self.rows} rows lost, of {', '.join(self.files) or 'unknown files'}"

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {"day": day_name(self.day), "rows": self.rows, "bytes": self.bytes, "files": list(self.files)}


@dataclass(frozen=True, slots=True)
class Incident:
    """A period that was found faulty, as a run had written it. Times are Unix seconds.

    Args:
        run: the run that had written it; `mending.NO_RECORD` where no record mentioned it.
        days: the days of reception in its record.
        taken_in: whether every whole row of the files that were set aside is in the archive.
        acknowledged_at: when an operator took note of what is lost; None until then.
        lost_rows: how many were lost then.
    """

    period: str
    run: str
    found_at: int
    days: tuple[int, ...]
    faults: tuple[Fault, ...]
    taken_in: bool = False
    acknowledged_at: int | None = None
    lost_rows: int = 0


class Incidents:
    """The incidents of an archive. Every change is on disk when its method returns."""

    def __init__(self, storage: WritableFiles, now: float) -> None:
        """Read them.

        Args:
            now: Unix seconds. What was acknowledged later than that, by a clock that was ahead, is known; but nobody
                can tell what has happened since.
        Raises:
            RecordDamaged: the file is not whole.
            ArchiveError: they cannot be read.
        """
        self._storage = storage
        self._now = now
        text = storage.read(INCIDENTS_FILE)
        self.all: tuple[Incident, ...] = ()
        self.quarantined_acknowledged = 0
        """How many of the rows in `_quarantine` an operator knows of."""
        if text is not None:
            self.all, self.quarantined_acknowledged = _decode(text, f"{storage.url}/{INCIDENTS_FILE}")

    def add(self, period: str, run: str, days: Iterable[int], faults: Sequence[Fault], now: float) -> None:
        """Add what was found to the open incident of this period and run, or begin one.

        An incident that an operator has acknowledged is closed: what is found later begins another.
        """
        open_ = (one for one in self.all if one.acknowledged_at is None)
        known = next((one for one in open_ if (one.period, one.run) == (period, run)), None)
        seen = {fault.file for fault in known.faults} if known is not None else set()
        new = tuple(fault for fault in faults if fault.file not in seen)
        if known is None:
            self._write((*self.all, Incident(period, run, int(now), tuple(sorted(days)), new)))
        elif new or known.taken_in:
            faults = (*known.faults, *new)
            self._replace(known, replace(known, faults=tuple(faults), taken_in=False))

    def begin(self, found: Iterable[Incident]) -> None:
        """Begin with these, where none were known."""
        self._write(found)

    def take_in(self, incident: Incident) -> None:
        """Note that every whole row of the files that were set aside has been taken in."""
        self._replace(incident, replace(incident, taken_in=True))

    def acknowledge(self, lost: Mapping[int, Lost], quarantined: int, now: float) -> None:
        """Note that an operator knows of all mended incidents, of what is lost, and of how many rows were set aside."""
        self.quarantined_acknowledged = quarantined
        self._write(
            replace(one, acknowledged_at=int(now), lost_rows=sum(lost[day].rows for day in one.days if day in lost))
            if one.taken_in and one.acknowledged_at is None
            else one
            for one in self.all
        )

    def all_is_lost(self, now: float) -> None:
        """Note that an operator has said that all is lost: a new archive may begin here."""
        self.quarantined_acknowledged = 0
        gone = Incident(WHOLE_ARCHIVE, "", int(now), (), (), taken_in=True, acknowledged_at=int(now))
        self._write((*self.all, gone))

    def losses(self, records: Iterable[PeriodRecord]) -> tuple[Loss, ...]:
        """What is lost and not acknowledged, by day."""
        return tuple(Loss(day, one.rows, one.bytes, self._files_of(day)) for day, one in lost_of(records).items())

    def damaged_records(self) -> tuple[Fault, ...]:
        """Damaged records that nobody has acknowledged: what was lost with them is in no count."""
        return tuple(
            fault
            for one in self.all
            if one.acknowledged_at is None
            for fault in one.faults
            if fault.kind is FaultKind.RECORD
        )

    def files_taken_in(self) -> set[str]:
        """Files that were faulty, in periods that a run has mended, and that nobody has acknowledged."""
        return {fault.file for one in self.all if one.taken_in and one.acknowledged_at is None for fault in one.faults}

    def acknowledged_rows(self, day: int, since: float) -> float:
        """How many lost rows of a day an operator may have acknowledged at `since`, Unix seconds, or later."""
        known = [one for one in self.all if self._is_acknowledged_since(one, since)]
        if any(one.period == WHOLE_ARCHIVE for one in known):
            return math.inf
        return sum(one.lost_rows for one in known if day in one.days)

    def is_acknowledged(self, period: str, since: float) -> bool:
        """Whether an operator has acknowledged what happened to a period, or to all, at `since` (Unix seconds) or
        later."""
        return any(
            one.period in (period, WHOLE_ARCHIVE) and self._is_acknowledged_since(one, since) for one in self.all
        )

    def whole_archive_lost_at(self) -> int | None:
        """When an operator last said that the whole archive is gone, Unix seconds, at most now; None if never."""
        gone = [one for one in self.all if one.period == WHOLE_ARCHIVE and self._is_acknowledged_since(one, 0)]
        return max((one.acknowledged_at for one in gone if one.acknowledged_at is not None), default=None)

    def _is_acknowledged_since(self, one: Incident, since: float) -> bool:
        return one.acknowledged_at is not None and since <= one.acknowledged_at <= self._now

    def _files_of(self, day: int) -> tuple[str, ...]:
        return tuple(
            fault.file
            for one in self.all
            if day in one.days and one.acknowledged_at is None
            for fault in one.faults
            if fault.kind is not FaultKind.UNRECORDED
        )

    def _replace(self, old: Incident, new: Incident) -> None:
        self._write(new if one is old else one for one in self.all)

    def _write(self, incidents: Iterable[Incident]) -> None:
        found = tuple(incidents)
        closed = [one for one in found if one.taken_in and one.acknowledged_at is not None]
        dropped = {id(one) for one in closed[: max(0, len(closed) - MAX_CLOSED_INCIDENTS)]}
        self.all = tuple(one for one in found if id(one) not in dropped)
        value = {
            "version": INCIDENTS_VERSION,
            "quarantined_acknowledged": self.quarantined_acknowledged,
            "incidents": [_encode_incident(one) for one in self.all],
        }
        self._storage.write(INCIDENTS_FILE, json.dumps(value, indent=1) + "\n")


def summary(faults: Sequence[Fault], losses: Sequence[Loss]) -> str:
    """Faults and losses in one line: all numbers, and the first few names."""
    parts = []
    damaged = [fault for fault in faults if fault.kind is not FaultKind.RECORD]
    records = [fault.period for fault in faults if fault.kind is FaultKind.RECORD]
    if damaged:
        periods = list(dict.fromkeys(fault.period for fault in damaged))
        files = "1 file of the archive is" if len(damaged) == 1 else f"{len(damaged)} files of the archive are"
        parts.append(f"{files} missing or damaged ({_some(periods)}): {_some(damaged)}")
    if records:
        parts.append(
            f"records of the archive were damaged ({_some(records)}), and nobody knows what is lost with them: run "
            "`spark-export compact`, look at what `spark-export verify` says, then run `spark-export acknowledge`"
        )
    if losses:
        rows = sum(loss.rows for loss in losses)
        parts.append(
            f"{rows} rows that were in the archive are lost ({_some([day_name(loss.day) for loss in losses])}): "
            "put their files back and run `spark-export compact`, or run `spark-export acknowledge`"
        )
    return "; ".join(parts)


def _some(things: Sequence[object]) -> str:
    shown = ", ".join(str(thing) for thing in things[:3])
    return shown if len(things) <= 3 else f"{shown} and {len(things) - 3} more"


def _encode_incident(one: Incident) -> dict[str, Any]:
    return {
        "period": one.period,
        "run": one.run,
        "found_at": one.found_at,
        "found": utc_text(one.found_at),
        "days": [day_name(day) for day in one.days],
        "faults": [fault.as_json() for fault in one.faults],
        "taken_in": one.taken_in,
        "acknowledged_at": one.acknowledged_at,
        "lost_rows": one.lost_rows,
    }


def _decode(text: str, where: str) -> tuple[tuple[Incident, ...], int]:
    try:
        value = json.loads(text)
        if value["version"] != INCIDENTS_VERSION:
            raise ArchiveError(f"{where} has version {value['version']!r}, this program knows {INCIDENTS_VERSION}")
        return tuple(map(_decode_incident, value["incidents"])), int(value["quarantined_acknowledged"])
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise RecordDamaged(f"{where} is damaged: {error!r}") from error


def _decode_incident(value: Any) -> Incident:
    acknowledged = value["acknowledged_at"]
    return Incident(
        period=str(value["period"]),
        run=str(value["run"]),
        found_at=int(value["found_at"]),
        days=tuple(map(parse_day, value["days"])),
        faults=tuple(
            Fault(str(f["period"]), str(f["file"]), FaultKind(f["kind"]), int(f["rows"]), str(f["cause"]))
            for f in value["faults"]
        ),
        taken_in=bool(value["taken_in"]),
        acknowledged_at=None if acknowledged is None else int(acknowledged),
        lost_rows=int(value["lost_rows"]),
    )
