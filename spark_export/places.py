"""Where a store is: a file, or a database; and what is read and written beside it, wherever that is.

Whatever is asked of a database raises StoreError if it cannot be reached. No Spark is imported here.
"""

import contextlib
from collections.abc import Iterator, Sequence
from os import O_CREAT, O_RDWR
from pathlib import Path
from typing import TYPE_CHECKING, Union

from mailserver.files import open_descriptor, read_holder, try_lock, write_holder
from mailserver.handoff.archived import Archived
from mailserver.handoff.last_run import Compaction, CompactionState
from mailserver.handoff.last_upkeep import LastUpkeep, Task
from mailserver.store.sqlite import handoff as beside
from spark_export.errors import ExportError

if TYPE_CHECKING:  # asyncpg is in an extra
    from mailserver.store.postgres.job import StoreDatabase

StorePlace = Union[Path, "StoreDatabase"]
"""The file of a store, or its database."""

_SCHEMES = ("postgresql://", "postgres://")


def is_url(text: str) -> bool:
    """Whether a text names a database."""
    return text.startswith(_SCHEMES)


def place_of(text: str) -> StorePlace:
    """The place that a text names: a path, or a URL.

    Raises:
        ExportError: it is a URL, and the driver of PostgreSQL is not installed.
    """
    return database_at(text) if is_url(text) else Path(text)


def places_of(texts: Sequence[str] | None) -> list[StorePlace]:
    """The places that these texts name."""
    return [place_of(text) for text in texts or ()]


def database_at(url: str) -> "StoreDatabase":
    """The database at a URL.

    Raises:
        ExportError: the driver of PostgreSQL is not installed.
    """
    try:
        from mailserver.store.postgres.job import StoreDatabase  # noqa: PLC0415 - asyncpg is in an extra
    except ModuleNotFoundError as error:
        raise ExportError(
            "a store in PostgreSQL needs a driver that is not installed: pip install -r requirements-postgres.lock"
        ) from error
    return StoreDatabase(url)


def address_of(place: StorePlace) -> str:
    """What a task is told: the path from the root, or the URL with its password."""
    return str(place.absolute()) if isinstance(place, Path) else place.url


def is_same_place(place: StorePlace, other: StorePlace) -> bool:
    """Whether two name one store, as far as names tell."""
    if isinstance(place, Path):
        return isinstance(other, Path) and place.resolve() == other.resolve()
    return not isinstance(other, Path) and place.url == other.url


def compaction_lock(place: StorePlace) -> contextlib.AbstractContextManager[None]:
    """Be the one run that reads a store; nothing is pruned meanwhile.

    Raises:
        CompactionRunning: another run holds the lock.
        OSError, StoreError: it cannot be had.
    """
    return beside.compaction_lock(place) if isinstance(place, Path) else place.compaction_lock()


@contextlib.contextmanager
def upkeep_lock(place: StorePlace, task: Task) -> Iterator[str | None]:
    """Be the one run of a task for a store; yield the process that another run is, None if there is none.

    Raises:
        ExportError: it cannot be locked.
    """
    with contextlib.ExitStack() as stack:
        if not isinstance(place, Path):
            holder = stack.enter_context(place.upkeep_lock(task))
            yield None if holder is None else f"{holder} of the database"
            return
        file = beside.upkeep_lock_file(place, task)
        other = None
        try:
            descriptor = stack.enter_context(open_descriptor(file, O_RDWR | O_CREAT, 0o644))
            if try_lock(descriptor):
                write_holder(descriptor)
            else:
                other = read_holder(descriptor)
        except OSError as error:
            raise ExportError(f"cannot lock {file}: {error.strerror or error}") from error
        yield other


def read_archived(place: StorePlace) -> Archived | None:
    """What is in the archive, as the last run has said; raises ArchivedError."""
    return beside.read_archived(place) if isinstance(place, Path) else place.read_archived()


def write_archived(place: StorePlace, archived: Archived) -> None:
    """Say what is in the archive; raises OSError or StoreError."""
    if isinstance(place, Path):
        beside.write_archived(place, archived)
    else:
        place.write_archived(archived)


def read_compaction(place: StorePlace) -> Compaction | None:
    """The record of the last run; raises CompactionRecordError."""
    return beside.read_compaction(place) if isinstance(place, Path) else place.read_compaction()


def write_compaction(place: StorePlace, compaction: Compaction) -> None:
    """Write the record of a run; raises OSError, StoreError, or ValueError if it is too long."""
    if isinstance(place, Path):
        beside.write_compaction(place, compaction)
    else:
        place.write_compaction(compaction)


def last_run(place: StorePlace) -> tuple[CompactionState, Compaction | None]:
    """The state of the last run of the compaction, and its record; raises CompactionRecordError or OSError."""
    return beside.last_run(place) if isinstance(place, Path) else place.last_run()


def read_upkeep(place: StorePlace, task: Task) -> LastUpkeep | None:
    """The record of a task; raises UpkeepRecordError."""
    return beside.read_upkeep(place, task) if isinstance(place, Path) else place.read_upkeep(task)


def write_upkeep(place: StorePlace, task: Task, upkeep: LastUpkeep) -> None:
    """Write the record of a task; raises OSError or StoreError."""
    if isinstance(place, Path):
        beside.write_upkeep(place, task, upkeep)
    else:
        place.write_upkeep(task, upkeep)


def last_upkeep(place: StorePlace, task: Task) -> tuple[CompactionState, LastUpkeep | None]:
    """The state of the last run of a task, and its record; raises UpkeepRecordError or OSError."""
    return beside.last_upkeep(place, task) if isinstance(place, Path) else place.last_upkeep(task)
