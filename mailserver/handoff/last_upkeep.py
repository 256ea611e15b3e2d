"""How the last merge of the archive went, and the last verification.

Like the compaction's record (`handoff.last_run`) it is for people, and for the daemon, which tells of what failed; all
that it decides is when the next run is due. Where it is kept, and what a run locks, are the engine's
(`store.sqlite.handoff`). Standard library only: the compaction imports this module.
"""

from dataclasses import asdict, dataclass
from enum import Enum

from mailserver.errors import MailserverError
from mailserver.handoff.json_records import Record, count_of, field_of, number_of, number_or_none
from mailserver.handoff.last_run import MAX_ERROR_CHARS

VERSION = 1


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


def encode_upkeep(upkeep: Upkeep) -> dict[str, object]:
    """The record as JSON has it."""
    return {"version": VERSION, **asdict(upkeep), "error": upkeep.error[:MAX_ERROR_CHARS]}


def decode_upkeep(record: Record) -> Upkeep:
    """The record that `encode_upkeep` made.

    Raises:
        ValueError: it is another.
    """
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
