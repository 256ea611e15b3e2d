"""The kinds of records: how each is written as text and read again. The engine decides where they are.

Standard library only: the compaction imports this module.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from mailserver.errors import MailserverError
from mailserver.handoff import archived as archived_format
from mailserver.handoff import last_run as last_run_format
from mailserver.handoff import last_upkeep as last_upkeep_format
from mailserver.handoff.archived import ArchivedError, decode_archived, encode_archived
from mailserver.handoff.json_records import MAX_RECORD_BYTES, Record, decode_text
from mailserver.handoff.last_run import CompactionRecordError, decode_compaction, encode_compaction
from mailserver.handoff.last_upkeep import Task, UpkeepRecordError, decode_upkeep, encode_upkeep

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RecordKind(Generic[_T]):
    """One kind of record. `name`: unlike that of any other kind; `what`: what it is called in errors; `max_bytes`: what
    is longer is not written."""

    name: str
    what: str
    version: int
    error: type[MailserverError]
    encode: Callable[[_T], dict[str, object]]
    decode: Callable[[Record], _T]
    max_bytes: int | None = None

    def text(self, value: _T) -> str:
        """A record as it is kept.

        Raises:
            ValueError: it would have more than `max_bytes`.
        """
        text = json.dumps(self.encode(value), indent=1) + "\n"
        if self.max_bytes is not None and len(text) > self.max_bytes:
            raise ValueError(f"the record would have {len(text)} bytes, more than {self.max_bytes}")
        return text

    def value(self, text: bytes, where: str) -> _T:
        """What a text says that was found at `where`; raises `error` if it is no such record."""
        return decode_text(text, where, self.decode, version=self.version, what=self.what, error=self.error)


ARCHIVED = RecordKind(
    name="archived",
    what="record of the compaction",
    version=archived_format.VERSION,
    error=ArchivedError,
    encode=encode_archived,
    decode=decode_archived,
)
COMPACTION = RecordKind(
    name="compaction",
    what="record of the compaction's runs",
    version=last_run_format.VERSION,
    error=CompactionRecordError,
    encode=encode_compaction,
    decode=decode_compaction,
    max_bytes=MAX_RECORD_BYTES,  # its report and its lists grow; a longer record would not be read
)
UPKEEP = {
    task: RecordKind(
        name=task.value,
        what=f"record of {task.value}",
        version=last_upkeep_format.VERSION,
        error=UpkeepRecordError,
        encode=encode_upkeep,
        decode=decode_upkeep,
    )
    for task in Task
}
