"""Telling a store's daemon which of its rows are in the archive, as it deletes no others; and what the records beside a
store know of the archive, in case the archive has lost it."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mailserver.archive.manifest import PeriodRecord, known_seq
from mailserver.errors import MailserverError
from mailserver.handoff.archived import Archived
from mailserver.handoff.last_run import ArchivedDay
from mailserver.store.sqlite.handoff import read_archived, read_compaction, write_archived
from spark_export.errors import ArchiveGone, ExportError
from spark_export.incidents import Incidents
from spark_export.publishing import WritableArchive
from spark_export.store import Store

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LastFound:
    """What is written beside a store of the archive, as the last run that did its work found it.

    Args:
        at: when that run ended, Unix seconds.
        days: the latest days of reception that the archive held, from whatever stores; only so many are written down.
        months: how many rows of each month it held, older ones, too.
        seqs: for each day that is still in the store, the `seq` up to which the archive held its rows; the last one
            where that is no longer known.
    """

    store_id: str
    at: float
    days: Mapping[int, ArchivedDay]
    months: Mapping[str, int]
    seqs: Mapping[int, int]


def hand_over(stores: Sequence[Store], records: Mapping[str, PeriodRecord], archive: str, now: float) -> None:
    """Write the record beside each store, from what the archive says of the days that are still in it.

    Raises:
        ExportError: it cannot be written.
    """
    for store in stores:
        known = {day: known_seq(records, day.day, store.id) for day in store.days}
        # `last_seq` never falls: where the archive knows of more, the store was put back from a backup, and other rows
        # may have those numbers now. The run that looks at that day again says up to where they are archived.
        archived = {day.day: seq for day, seq in known.items() if seq is not None and seq <= day.last_seq}
        _write(store.path, Archived(store.id, archive, int(now), archived))


def withdraw(stores: Sequence[Path], records: Mapping[str, PeriodRecord], archive: str) -> None:
    """Remove from the record beside each store the rows that the archive's own records no longer cover.

    A daemon that cannot see the archive deletes by that record alone. Nothing is added to it: only a compaction does
    that, because it compares the archive with the store.

    Raises:
        ExportError: it cannot be written.
    """
    for store in stores:
        try:
            archived = read_archived(store)
        except MailserverError as error:  # then nothing is pruned
            log.warning("record of the compaction not corrected cause=%r", str(error))
            continue
        if archived is None:
            continue
        if archived.archive != archive:
            log.warning(
                "record of the compaction not corrected, it belongs to another archive store=%s archive=%s",
                store,
                archived.archive,
            )
            continue
        days = {}
        for day, seq in archived.days.items():
            covered = known_seq(records, day, archived.store_id)
            if covered is not None:
                days[day] = min(seq, covered)
        if days != archived.days:
            _write(store, replace(archived, days=days))


def check_archive_is_there(archive: WritableArchive, stores: Sequence[Store]) -> None:
    """Do not take an empty folder for a new archive: its disk may not be mounted.

    Where the archive is empty, but the record beside a store says that it was not, the record no longer says so
    afterwards.

    Raises:
        ArchiveGone: that is so, and no operator has said that the archive is lost.
        ExportError: a record cannot be read or written.
    """
    if not archive.is_empty():
        return
    acknowledged_at = Incidents(archive.storage).whole_archive_lost_at()
    gone = []
    for store in stores:
        try:
            archived, runs = read_archived(store.path), read_compaction(store.path)
        except MailserverError as error:
            raise ExportError(f"{error}; it may name an archive at {archive.url}, where there is none now") from error
        if archived is None or archived.archive != archive.url or archived.verified_at <= (acknowledged_at or -1):
            continue
        if archived.days or (runs is not None and runs.archived):
            gone.append(store)
            _write(store.path, replace(archived, days={}))
    if gone:
        raise ArchiveGone(
            f"there is no archive at {archive.url}, but the record beside {gone[0].path} says that there was: is its "
            "disk mounted? If it is lost, `spark-export acknowledge --all-is-lost` lets a new one begin"
        )


def last_found(archive: WritableArchive, stores: Sequence[Store]) -> list[LastFound]:
    """What is written beside the stores of this archive."""
    found = []
    for store in stores:
        try:
            archived, last = read_archived(store.path), read_compaction(store.path)
        except MailserverError as error:
            log.warning("archive not compared with the record beside a store cause=%r", str(error))
            continue
        if last is None or last.succeeded_at is None or last.archived_in != archive.url:
            continue
        known = archived.days if archived is not None and archived.archive == archive.url else {}
        seqs = {day.day: known.get(day.day, day.last_seq) for day in store.days}
        found.append(LastFound(store.id, last.succeeded_at, last.archived, last.archived_months, seqs))
    return found


def _write(store: Path, archived: Archived) -> None:
    try:
        write_archived(store, archived)
    except OSError as error:
        raise ExportError(f"cannot write beside {store}: {error.strerror or error}") from error
