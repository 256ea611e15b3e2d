"""Where a store in SQLite keeps what daemon and job tell each other, and the locks by which they keep apart.

Beside the store file and named after it:

    mailserver.db-archived.json               what is in the archive (`handoff.archived`)
    mailserver.db-compaction.json             how the last run of the compaction went (`handoff.last_run`)
    mailserver.db-compaction.lock             held while a run reads the store; nothing is pruned then
    mailserver.db-merge.json, -verify.json    how the last of each went (`handoff.last_upkeep`)
    mailserver.db-merge.lock, -verify.lock    held while one is at work

The kernel drops a lock with its process. Standard library only: the compaction imports this module.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from mailserver.files import (
    PRIVATE_FILE,
    lock_after_readers,
    open_descriptor,
    read_holder,
    try_lock,
    write_atomically,
    write_holder,
)
from mailserver.handoff.archived import Archived, CompactionRunning, Mark
from mailserver.handoff.json_records import read_record
from mailserver.handoff.kinds import ARCHIVED, COMPACTION, UPKEEP, RecordKind
from mailserver.handoff.last_run import ENDS, Compaction, CompactionState
from mailserver.handoff.last_upkeep import LastUpkeep, Task

_PRUNING_LIMIT_S = 60.0
"""A batch of deletions that takes longer means that the mailserver hangs, or was stopped in the middle of it."""

_T = TypeVar("_T")


def _read(file: Path, kind: RecordKind[_T]) -> _T | None:
    return read_record(file, kind.decode, version=kind.version, what=kind.what, error=kind.error)


def _write(file: Path, kind: RecordKind[_T], value: _T, mode: int = PRIVATE_FILE) -> None:
    write_atomically(file, kind.text(value), mode)


def archived_file(store: Path) -> Path:
    """Where the record of what is archived is."""
    return store.with_name(f"{store.name}-archived.json")


def read_archived(store: Path) -> Archived | None:
    """Read the record beside a store; None if there is none.

    Raises:
        ArchivedError: it cannot be read, is not whole, or is of a later version.
    """
    return _read(archived_file(store), ARCHIVED)


def write_archived(store: Path, archived: Archived) -> None:
    """Write the record beside a store: complete, or as it was.

    Raises:
        OSError: it cannot be written.
    """
    _write(archived_file(store), ARCHIVED, archived)


def adopt_archived(store: Path, store_id: str, newest: Mark) -> None:
    """Give the record beside a store the store's new identity; without a record, do nothing.

    Args:
        newest: the mark of the newest row that the store has ever had under its earlier identity: what the record says
            of later ones was true of others.
    Raises:
        ArchivedError: it cannot be read.
        OSError: it cannot be written.
    """
    archived = read_archived(store)
    if archived is not None:
        days = {day: min(mark, newest) for day, mark in archived.days.items()}
        write_archived(store, replace(archived, store_id=store_id, days=days, went_back_from=0))


@contextlib.contextmanager
def compaction_lock(store: Path) -> Iterator[None]:
    """Be the one run that reads a store; nothing is pruned meanwhile. The kernel drops the lock with the process.

    If a batch of deletions has begun, its end is awaited first.

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
    """Whether a run of the compaction is reading the store.

    Raises:
        OSError: the lock file cannot be read.
    """
    with pruning_turn(store) as ours:
        return not ours


@contextlib.contextmanager
def pruning_turn(store: Path) -> Iterator[bool]:
    """Keep any run of the compaction from starting while a batch is deleted; yield False if one is under way.

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


def compaction_file(store: Path) -> Path:
    """Where the record of the last run is."""
    return store.with_name(f"{store.name}-compaction.json")


def read_compaction(store: Path) -> Compaction | None:
    """Read the record beside a store; None if there is none.

    Raises:
        CompactionRecordError: it cannot be read, is not whole, or is of a later version.
    """
    return _read(compaction_file(store), COMPACTION)


def write_compaction(store: Path, compaction: Compaction) -> None:
    """Write the record beside a store: complete, or as it was. Only the holder of the store's lock may do so.

    Raises:
        OSError: it cannot be written.
        ValueError: it would have more than MAX_RECORD_BYTES.
    """
    _write(compaction_file(store), COMPACTION, compaction)


def last_run(store: Path) -> tuple[CompactionState, Compaction | None]:
    """The state of the last run of the compaction, and its record; None if there has been none.

    Raises:
        CompactionRecordError: the record cannot be read.
        OSError: the lock file cannot be read.
    """
    while True:
        compaction = read_compaction(store)
        if compaction is None:
            return CompactionState.NEVER, None
        if compaction.finished_at is not None:
            return ENDS.get(compaction.exit_code or 0, CompactionState.FAILED), compaction
        if compaction_running(store):
            return CompactionState.RUNNING, compaction
        # A run finishes its record before it drops the lock. If it has done both since the record was read, the record
        # has changed.
        if read_compaction(store) == compaction:
            return CompactionState.DIED, compaction


def upkeep_file(store: Path, task: Task) -> Path:
    """Where the record of a task is."""
    return store.with_name(f"{store.name}-{task.value}.json")


def read_upkeep(store: Path, task: Task) -> LastUpkeep | None:
    """Read the record beside a store; None if there is none.

    Raises:
        UpkeepRecordError: it cannot be read, is not whole, or is of a later version.
    """
    return _read(upkeep_file(store, task), UPKEEP[task])


def write_upkeep(store: Path, task: Task, upkeep: LastUpkeep) -> None:
    """Write the record beside a store: complete, or as it was.

    Raises:
        OSError: it cannot be written.
    """
    _write(upkeep_file(store, task), UPKEEP[task], upkeep, 0o644)


def last_upkeep(store: Path, task: Task) -> tuple[CompactionState, LastUpkeep | None]:
    """The state of the last run of a task, and its record.

    Raises:
        UpkeepRecordError: the record cannot be read.
        OSError: the lock file cannot be read.
    """
    while True:
        upkeep = read_upkeep(store, task)
        if upkeep is None or upkeep.started_at is None:
            return CompactionState.NEVER, upkeep
        if upkeep.finished_at is not None:
            return CompactionState.SUCCEEDED if upkeep.exit_code == 0 else CompactionState.FAILED, upkeep
        if _at_work(store, task):
            return CompactionState.RUNNING, upkeep
        if (
            read_upkeep(store, task) == upkeep
        ):  # else it has finished since the record was read, and the loop reads the new one
            return CompactionState.DIED, upkeep


def _at_work(store: Path, task: Task) -> bool:
    try:
        with open_descriptor(upkeep_lock_file(store, task), os.O_RDONLY) as descriptor:
            return not try_lock(descriptor, shared=True)
    except FileNotFoundError:
        return False


def upkeep_lock_file(store: Path, task: Task) -> Path:
    """The file that a run of a task locks."""
    return store.with_name(f"{store.name}-{task.value}.lock")


class SqliteHandoff:
    """A `store.handoff.Handoff`: the files beside one store, read in a thread."""

    def __init__(self, store: Path) -> None:
        self._store = store

    async def archived(self) -> Archived | None:
        """What is in the archive."""
        return await asyncio.to_thread(read_archived, self._store)

    def was_archived(self) -> bool:
        """Whether the compaction has ever archived envelopes of the store: then there is a record, readable or not."""
        return archived_file(self._store).exists()

    async def is_being_compacted(self) -> bool:
        """Whether a run of the compaction is reading the store."""
        return await asyncio.to_thread(compaction_running, self._store)

    @contextlib.asynccontextmanager
    async def pruning_turn(self) -> AsyncIterator[bool]:
        """Keep any run of the compaction from starting while a batch is deleted; yield False if one is under way."""
        with pruning_turn(self._store) as ours:  # not in a thread: it takes microseconds
            yield ours

    async def last_run(self) -> tuple[CompactionState, Compaction | None]:
        """The state of the last run of the compaction, and its record."""
        return await asyncio.to_thread(last_run, self._store)

    async def last_upkeep(self, task: Task) -> tuple[CompactionState, LastUpkeep | None]:
        """The state of the last merge, or verification, and its record."""
        return await asyncio.to_thread(last_upkeep, self._store, task)
