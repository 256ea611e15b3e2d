"""What of a store is in the archive. The compaction says so, and the daemon relies on it before it deletes anything.

JSON, written only by a run that has verified it. The engine keeps it, and has the lock that a run holds
(`store.sqlite.handoff`). Standard library only: the compaction imports this module.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mailserver.errors import MailserverError
from mailserver.handoff.json_records import Record, count_of, day_of, day_text, field_of

VERSION = 1

Mark = int
"""How far into what a store received on a day: an engine's own number, which others only keep and compare.

Every envelope has one. An envelope that is stored after a mark was read gets a higher one, and no mark is used twice:
so "archived up to this mark" stays true, whatever is stored or deleted later. In SQLite it is a row's `seq`.
"""


class ArchivedError(MailserverError):
    """The record cannot be read or understood. `str()` is one line for the operator."""


class CompactionRunning(MailserverError):
    """Another run of the compaction is reading the store; `pid` is the process id that it has written down."""

    def __init__(self, pid: str) -> None:
        super().__init__(pid)
        self.pid = pid

    def __str__(self) -> str:
        return f"another compaction (pid {self.pid}) reads this store"


@dataclass(frozen=True, slots=True)
class Archived:
    """What verified runs of the compaction have archived from one store.

    `store_id` is the store's `identity.id`, `archive` a path or URL for people, `verified_at` the end of the run that
    wrote this, in Unix seconds. `days`: for each day of reception (Unix seconds / 86400), up to which mark all
    envelopes that the store received on it are in the archive. `went_back_from`: up to which mark the archive knows
    rows of a store that has lost some of these, because it went back to an earlier moment; 0 if it has not. A daemon
    gives such a store another identity when it is started.
    """

    store_id: str
    archive: str
    verified_at: int
    days: Mapping[int, Mark]
    went_back_from: Mark = 0


def encode_archived(archived: Archived) -> dict[str, object]:
    """The record as a JSON object."""
    record: dict[str, object] = {
        "version": VERSION,
        "store_id": archived.store_id,
        "archive": archived.archive,
        "verified_at": archived.verified_at,
        "days": {day_text(day): mark for day, mark in sorted(archived.days.items())},
    }
    if archived.went_back_from:
        record["went_back_from"] = archived.went_back_from
    return record


def decode_archived(record: Record) -> Archived:
    """The record that `encode_archived` made.

    Raises:
        ValueError: it is something else.
    """
    days = field_of(record, "days", dict)
    return Archived(
        store_id=field_of(record, "store_id", str),
        archive=field_of(record, "archive", str),
        verified_at=field_of(record, "verified_at", int),
        days=MappingProxyType({day_of(text): count_of(text, mark) for text, mark in days.items()}),
        went_back_from=count_of("went_back_from", record.get("went_back_from", 0)),
    )
