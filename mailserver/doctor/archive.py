"""The archive: what pruning requires of it, and what answering requests from it requires."""

import os
import stat
from importlib.util import find_spec
from pathlib import Path

from mailserver.app.config import Config
from mailserver.app.history import cause_for_store_only
from mailserver.archive.access.places import files_of
from mailserver.archive.archive import Archive
from mailserver.archive.errors import ArchiveBusy, ArchiveError, ArchiveFault, ArchiveFileUnreadable
from mailserver.archive.files import ReadableFiles, local_folder
from mailserver.archive.holdings import check_day
from mailserver.archive.manifest import PeriodRecord
from mailserver.archive.paths import directory_of
from mailserver.doctor.findings import Finding, ok, problem, warning
from mailserver.errors import StoreError
from mailserver.handoff.archived import Archived, ArchivedError
from mailserver.store.sqlite.handoff import read_archived
from mailserver.store.sqlite.schema import STORE_FILE


def check_archive(config: Config, now: float) -> list[Finding]:
    """Check that archived days are in the archive, and that requests can be answered from it; nothing without one."""
    if not config.archive:
        return []
    findings = []
    try:
        archived = _archived(config)
    except StoreError:  # `doctor.database` says so
        return []
    except ArchivedError as error:
        archived = None
        findings.append(problem("archive", str(error), "nothing is pruned until the compaction has written a new one"))
    else:
        findings.append(_check_holdings(config, archived, now))
    return [*findings, *_check_answers(config, archived, now)]


def _archived(config: Config) -> Archived | None:
    """What the compaction has said of the store, if there is one."""
    if not config.store:
        return read_archived(config.data_dir / STORE_FILE)
    if find_spec("asyncpg") is None:
        raise StoreError("asyncpg is not installed")
    from mailserver.store.postgres.job import StoreDatabase  # noqa: PLC0415 - asyncpg is in an extra

    database = StoreDatabase(config.store)
    with database.connected():
        return database.read_archived() if database.exists() else None


def _check_holdings(config: Config, archived: Archived | None, now: float) -> Finding:
    """Check what pruning requires: the archived days are in the archive, or a run has checked that recently."""
    if archived is None:
        text = f"no run of the compaction has filled {config.archive}: nothing is pruned until one has"
        return warning("archive", text, "make sure that the nightly compaction runs")
    files = files_of(config.archive)
    if files is not None:
        return _look_at_archive(files, archived)
    hours = _hours_since(archived.verified_at, now)
    text = f"cannot be seen from here; the compaction checked it {hours:.0f} hours ago"
    if hours > config.archive_max_age_hours:
        return problem("archive", f"{text}: nothing is pruned", "make sure that the nightly compaction runs")
    return ok("archive", text)


def _look_at_archive(files: ReadableFiles, archived: Archived) -> Finding:
    try:
        for day, seq in sorted(archived.days.items()):
            check_day(files, archived.store_id, day, seq)
    except ArchiveBusy as error:
        return ok("archive", str(error))
    except ArchiveFault as error:
        advice = "mount it where --archive says, and run the compaction, which mends it: docs/archive.md"
        return problem("archive", f"{error}; that day is not pruned", advice)
    return ok(
        "archive", f"{files.where('')} has every file of the {len(archived.days)} days that are recorded as archived"
    )


def _check_answers(config: Config, archived: Archived | None, now: float) -> list[Finding]:
    """Check what answering from the archive requires: pyarrow, files that may be read, and a recent compaction."""
    if not config.answer_from_archive or archived is None:
        return []
    check = "answers from archive"
    cause = cause_for_store_only(config.archive)
    if cause:
        text = f"requests are answered from the store alone: {cause}"
        advice = (
            "install requirements-archive.lock and use a folder, or S3, as --archive, or set --no-answer-from-archive"
        )
        return [warning(check, text, advice)]
    files = files_of(config.archive)
    assert files is not None, "else there is a cause"
    archive = Archive(files)
    try:
        records = archive.records().values()
    except ArchiveBusy as error:
        return [ok(check, str(error))]
    except ArchiveFileUnreadable as error:
        text = f"{error}: requests that need it fail"
        return [problem(check, text, f"{_let_us_read()}; if it is the disk, put the file back from a copy")]
    except ArchiveError as error:
        text = f"{error}: requests that need it fail"
        return [problem(check, text, "run the compaction, which mends records: docs/archive.md")]
    try:
        archive.layout()
    except ArchiveError as error:
        text = f"{error}: requests are answered from it all the same, unless a later version made it"
        return [warning(check, text, "run the compaction, which makes it anew: docs/archive.md")]
    if not records:  # `_check_holdings` says what is missing
        return []
    # On S3, who may read the records may read everything below the same prefix.
    folder = local_folder(config.archive)
    paths = [] if folder is None else [path for record in records for path in _paths_of(folder, record)]
    unreadable = next(filter(_is_unreadable, paths), None)
    if unreadable is not None:
        text = f"{unreadable} cannot be read: requests that need it fail"
        return [problem(check, text, _let_us_read())]
    hours = _hours_since(archived.verified_at, now)
    text = f"all periods can be read ({len(records)}); the compaction checked them {hours:.0f} hours ago"
    if hours > config.archive_max_age_hours:
        return [warning(check, text, "make sure that the nightly compaction runs")]
    return [ok(check, text)]


def _let_us_read() -> str:
    return f"let the user {os.geteuid()} read the archive, with its folders"


def _paths_of(folder: Path, record: PeriodRecord) -> list[Path]:
    """A period's files, and the folders in which they are found."""
    files = [folder / directory_of(record.period) / file.path for file in record.files]
    return [*sorted({file.parent for file in files}), *files]


def _is_unreadable(path: Path) -> bool:
    """Whether a file or folder is there, but not for us. `_check_holdings` finds what is missing."""
    try:
        mode = os.R_OK | os.X_OK if stat.S_ISDIR(path.stat().st_mode) else os.R_OK
    except FileNotFoundError:
        return False
    except PermissionError:
        return True
    return not os.access(path, mode, effective_ids=True)


def _hours_since(then: float, now: float) -> float:
    return (now - then) / 3600
