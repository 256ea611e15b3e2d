"""How the last merge of the archive went, the last verification, and the last run for communities.

Like the compaction's record (`handoff.last_run`) it is for people, and for the daemon, which reports what failed. It
decides only when the next run is due. The engine keeps it, and has the lock that a run holds (`store.sqlite.handoff`).
Standard library only: the compaction imports this module.
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
    """What is done to a whole archive, or made of it, now and then. The values are the names of the commands."""

    MERGE = "merge"
    VERIFY = "verify"
    COMMUNITIES = "communities"


@dataclass(frozen=True, slots=True)
class LastUpkeep:
    """The state of one task. Times are Unix seconds, None if that has not happened.

    Args:
        waits_since: a run that was due after this, and before now, was missed. It is the end of the last run that
            succeeded; before the first one, the time when the schedule first looked for the task.
        finished_at: None while a run is at work, and for ever if it was killed; so is `exit_code`.
        error: why it failed, in one line; "" if it did not.
    """

    waits_since: float
    started_at: float | None = None
    finished_at: float | None = None
    exit_code: int | None = None
    error: str = ""
    succeeded_at: float | None = None


def encode_upkeep(upkeep: LastUpkeep) -> dict[str, object]:
    """The record as a JSON object."""
    return {"version": VERSION, **asdict(upkeep), "error": upkeep.error[:MAX_ERROR_CHARS]}


def decode_upkeep(record: Record) -> LastUpkeep:
    """The record that `encode_upkeep` made.

    Raises:
        ValueError: it is something else.
    """
    exit_code = record.get("exit_code")
    upkeep = LastUpkeep(
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
