"""What the compaction hands over to the daemon: which rows are in the archive, and whether it is reading the store.

Both lie beside the store file and are named after it. The record is JSON and written only by a run that has verified
what it says; the lock is held while a run reads the store, and pruning keeps out of its way. Standard library only:
the compaction imports this module.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from mailserver.errors import MailserverError
from mailserver.files import lock_after_readers, open_descriptor, read_holder, try_lock, write_atomically, write_holder
from mailserver.handoff.json_records import Record, count_of, day_of, day_text, field_of, read_record

_VERSION = 1
_PRUNING_LIMIT_S = 60.0
"""Then the mailserver hangs, or is stopped in its middle."""


class ArchivedError(MailserverError):
    """The record cannot be read or understood. `str()` is one line for the operator."""


class CompactionRunning(MailserverError):
    """Another run of the compaction reads the store; `pid` is its process id as it wrote it down."""

    def __init__(self, pid: str) -> None:
        super().__init__(pid)
        self.pid = pid

    def __str__(self) -> str:
        return f"another compaction (pid {self.pid}) reads this store"


@dataclass(frozen=True, slots=True)
class Archived:
    """What verified runs of the compaction have archived from one store.

    `store_id` is the store's `identity.id`, `archive` a path or URL for people, `verified_at` the end of the run that
    wrote this, in Unix seconds. `days`: of each day of reception (Unix seconds / 86400), every row with a `seq` up to
    this one is in the archive.
    """

    store_id: str
    archive: str
    verified_at: int
    days: Mapping[int, int]


def archived_file(store: Path) -> Path:
    """Where the record of a store lies."""
    return store.with_name(f"{store.name}-archived.json")


def read_archived(store: Path) -> Archived | None:
    """Read the record beside a store; None if there is none.

    Raises:
        ArchivedError: it cannot be read, is not whole, or is of a later version.
    """
    return read_record(
        archived_file(store), _decode, version=_VERSION, what="record of the compaction", error=ArchivedError
    )


def write_archived(store: Path, handover: Archived) -> None:
    """Write the record beside a store: complete, or as it was.

    Raises:
        OSError: it cannot be written.
    """
    record = {
        "version": _VERSION,
        "store_id": handover.store_id,
        "archive": handover.archive,
        "verified_at": handover.verified_at,
        "days": {day_text(day): seq for day, seq in sorted(handover.days.items())},
    }
    write_atomically(archived_file(store), json.dumps(record, indent=1) + "\n")


def adopt_archived(store: Path, store_id: str) -> None:
    """Let the record beside a store that has another identity now speak of that one; without a record, do nothing.

    Raises:
        ArchivedError: it cannot be read.
        OSError: it cannot be written.
    """
    handover = read_archived(store)
    if handover is not None:
        write_archived(store, replace(handover, store_id=store_id))


@contextlib.contextmanager
def compaction_lock(store: Path) -> Iterator[None]:
    """Be the one run that reads a store; nothing is pruned meanwhile. The kernel drops the lock with the process.

    A batch of deletions that has begun is waited for.

    Raises:
        CompactionRunning: another run holds the lock.
        OSError: the lock file cannot be written, or the batch does not end.
    """
    with open_descriptor(_lock_file(store), os.O_RDWR | os.O_CREAT) as descriptor:
        _lock(descriptor)
        write_holder(descriptor)
        yield


def _lock(descriptor: int) -> None:
    try:
        alone = lock_after_readers(descriptor, _PRUNING_LIMIT_S)
    except TimeoutError as error:
        raise TimeoutError(f"the mailserver has been deleting one batch for {_PRUNING_LIMIT_S:.0f} s") from error
    if not alone:
        raise CompactionRunning(read_holder(descriptor))


def compaction_running(store: Path) -> bool:
    """Whether a run of the compaction reads the store.

    Raises:
        OSError: the lock file cannot be read.
    """
    with pruning_turn(store) as ours:
        return not ours


@contextlib.contextmanager
def pruning_turn(store: Path) -> Iterator[bool]:
    """Keep a run of the compaction from starting while a batch is deleted; yield whether none is under way.

    Raises:
        OSError: the lock file cannot be read.
    """
    with contextlib.ExitStack() as stack:
        try:
            descriptor = stack.enter_context(open_descriptor(_lock_file(store), os.O_RDONLY))
        except FileNotFoundError:  # there has never been a run
            yield True
            return
        yield try_lock(descriptor, shared=True)


def _lock_file(store: Path) -> Path:
    return store.with_name(f"{store.name}-compaction.lock")


def _decode(record: Record) -> Archived:
    days = field_of(record, "days", dict)
    return Archived(
        store_id=field_of(record, "store_id", str),
        archive=field_of(record, "archive", str),
        verified_at=field_of(record, "verified_at", int),
        days=MappingProxyType({day_of(text): count_of(text, seq) for text, seq in days.items()}),
    )
