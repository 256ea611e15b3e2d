"""What a run did, as JSON: printed at its end, and kept in the archive."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mailserver.archive.days import utc_text
from mailserver.archive.faults import Fault
from mailserver.archive.manifest import PeriodRecord
from mailserver.handoff.last_run import ArchivedDay, ArchiveFigures
from spark_export.incidents import Loss, summary


@dataclass(slots=True)
class RunReport:
    """Filled in as the run goes on. Times are Unix seconds."""

    command: str
    run: str
    archive: str
    started: float
    stores: list[str] = field(default_factory=list)
    rows: int = 0
    quarantined: int = 0
    miscounted: list[dict[str, Any]] = field(default_factory=list)
    periods: list[dict[str, Any]] = field(default_factory=list)
    archived: dict[int, ArchivedDay] = field(default_factory=dict)
    """By day, all that is in the archive at the end. Not in the JSON: the archive's own records say it."""
    faults: list[Fault] = field(default_factory=list)
    losses: tuple[Loss, ...] = ()
    quarantined_in_all: int = 0
    went_back: list[str] = field(default_factory=list)

    def archive_figures(self) -> ArchiveFigures:
        """What is wrong with the archive, in numbers."""
        return ArchiveFigures(
            faults=len(self.faults),
            lost_rows=sum(loss.rows for loss in self.losses),
            quarantined_rows=self.quarantined_in_all,
            miscounted_rows=sum(abs(int(day["rows"])) for day in self.miscounted),
        )

    @property
    def damage(self) -> str:
        """What was found wrong with the archive, and what of it is lost, in one line; "" if all is well."""
        return summary(self.faults, self.losses)

    def add(self, record: PeriodRecord, new_rows: int) -> None:
        """Add a period that was written."""
        self.rows += new_rows
        self.periods.append(
            {
                "period": record.period,
                "new_rows": new_rows,
                "rows": record.fingerprint.rows,
                "envelope_bytes": record.fingerprint.bytes,
                "files": len(record.files),
                "bytes": sum(file.bytes for file in record.files),
            }
        )

    def as_json(self, now: float) -> dict[str, Any]:
        """The report of a run that ends now. `bytes` are of files, `envelope_bytes` of envelopes in them.

        `faults`: files of the archive that this run found missing or damaged, before it mended what it could; records
        of periods that were damaged, until an operator has acknowledged them. `lost`: rows that were archived and are
        not there any more, until that is acknowledged, too. `quarantined` is of this run, `quarantined_in_all` what
        nobody has acknowledged. `miscounted`: days of which a store has more or fewer rows than it has counted; they
        are not handed over. `went_back`: stores that were put back to an earlier moment.
        """
        seconds = now - self.started
        return {
            "command": self.command,
            "run": self.run,
            "archive": self.archive,
            "stores": self.stores,
            "started": utc_text(self.started),
            "seconds": round(seconds, 3),
            "rows": self.rows,
            "rows_per_second": round(self.rows / seconds) if seconds > 0 else 0,
            "files": _total(self.periods, "files"),
            "bytes": _total(self.periods, "bytes"),
            "envelope_bytes": _total(self.periods, "envelope_bytes"),
            "quarantined": self.quarantined,
            "quarantined_in_all": self.quarantined_in_all,
            "faults": [fault.as_json() for fault in self.faults],
            "lost": [loss.as_json() for loss in self.losses],
            "miscounted": self.miscounted,
            "went_back": self.went_back,
            "days": self.periods,
        }


def as_words(report: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a report for people: the totals, each period, and what they should know."""
    counts = " ".join(f"{name}={report[name]}" for name in ("rows", "files", "bytes", "seconds"))
    yield f"{report['command']} done periods={len(report['days'])} {counts}"
    for period in report["days"]:
        names = ("new_rows", "rows", "files", "bytes")
        yield f"{period['period']} " + " ".join(f"{name}={period[name]}" for name in names)
    for fault in report["faults"]:
        yield f"{fault['file']}: {fault['cause']}"
    for loss in report["lost"]:
        yield f"{loss['day']}: {loss['rows']} rows lost"
    if report["quarantined"]:
        yield f"rows that are no longer envelopes set aside rows={report['quarantined']}"
    for differs in report["miscounted"]:
        yield f"store differs from its counts store={differs['store']} day={differs['day']} rows={differs['rows']:+d}"
    for store in report["went_back"]:
        yield f"store went back in time store={store}: restart its mailserver, which then gives it another identity"


def archived_days(records: Mapping[str, PeriodRecord]) -> dict[int, ArchivedDay]:
    """What an archive holds of each day of reception. Late rows of a merged month lie in a period of their own."""
    archived: dict[int, ArchivedDay] = {}
    for record in records.values():
        for day, said in record.days.items():
            known = archived.get(day, ArchivedDay(0, 0))
            archived[day] = ArchivedDay(known.rows + said.fingerprint.rows, known.bytes + said.fingerprint.bytes)
    return archived


def _total(periods: Iterable[dict[str, Any]], name: str) -> int:
    return sum(int(period[name]) for period in periods)
