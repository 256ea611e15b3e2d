"""What a run did, as JSON: printed at its end, and kept in the archive."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from spark_export.days import utc_text
from spark_export.records import PeriodRecord


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

    def add(self, record: PeriodRecord, new_rows: int) -> None:
        """A period was written."""
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

        `miscounted`: days of which a store has more or fewer rows than it has counted; they are not handed over.
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
            "miscounted": self.miscounted,
            "days": self.periods,
        }


def _total(periods: Iterable[dict[str, Any]], name: str) -> int:
    return sum(int(period[name]) for period in periods)
