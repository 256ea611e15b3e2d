"""What is wrong with an archive, as values."""

from dataclasses import dataclass
from enum import Enum
from typing import Any


class FaultKind(Enum):
    """What is wrong. The value is for programs."""

    MISSING = "missing"
    DAMAGED = "damaged"
    UNRECORDED = "unrecorded"
    """It is there, but in no record."""
    RECORD = "record"
    """A period's record is not whole: nobody knows which files and rows it spoke of."""


_ADVICE = {
    FaultKind.MISSING: "run `spark-export compact`, which archives again what a store still has; "
    "put the file back from a copy, if there is one",
    FaultKind.DAMAGED: "run `spark-export compact`, which keeps every whole row of it; look after the disk",
    FaultKind.UNRECORDED: "run `spark-export compact`, which takes in the rows that the archive lacks",
    FaultKind.RECORD: "run `spark-export compact`, which keeps all rows that are there of that period; compare them "
    "with the last report in `_runs` that names it, then run `spark-export acknowledge`",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is not as its record says.

    Args:
        file: relative to the archive; of a whole period, its directory.
        rows: how many rows it has by the record; 0 where there is no record.
        cause: what differs, one line.
    """

    period: str
    file: str
    kind: FaultKind
    rows: int
    cause: str

    @property
    def advice(self) -> str:
        """What the operator can do."""
        return _ADVICE[self.kind]

    def __str__(self) -> str:
        return f"{self.file}: {self.cause}"

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "period": self.period,
            "file": self.file,
            "kind": self.kind.value,
            "rows": self.rows,
            "cause": self.cause,
            "advice": self.advice,
        }
