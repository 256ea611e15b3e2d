"""The record beside a store that tells its daemon which rows are archived: it deletes no others. And what the records
beside a store know of the archive, in case the archive has lost it."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from mailserver.archive.access.places import is_same_archive
from mailserver.archive.errors import RecordDamaged
from mailserver.archive.manifest import PeriodRecord, known_seq
from mailserver.errors import MailserverError, StoreError
from mailserver.handoff.archived import Archived
from mailserver.handoff.last_run import ArchivedDay
from spark_export.errors import ArchiveGone, ExportError
from spark_export.incidents import Incidents
from spark_export.places import StorePlace, read_archived, read_compaction, write_archived
from spark_export.plan import newest_known, was_put_back
from spark_export.publishing import WritableArchive
from spark_export.store import StoreSnapshot, translated

log = logging.getLogger(__name__)

NONE_PUT_BACK: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class LastFound:
    """What the last successful run found in the archive, as it is written beside a store.

    Args:
        at: when that run ended, Unix seconds.
        days: the latest days of reception that the archive held, of all its stores; only a limited number is written
            down.
        months: how many rows the archive held of each month, older months included.
        seqs: for each day that is still in the store, the `seq` up to which the archive held its rows; the day's last
            one if that is no longer known.
    """

    store_id: str
    at: float
    days: Mapping[int, ArchivedDay]
    months: Mapping[str, int]
    seqs: Mapping[int, int]


def hand_over(
    stores: Sequence[StoreSnapshot],
    records: Mapping[str, PeriodRecord],
    archive: str,
    now: float,
    put_back: Mapping[str, int] = NONE_PUT_BACK,
) -> None:
    """Write the record beside each store: how far the archive has the days that are still in the store.

    Args:
        put_back: see `keep_numbers_apart`.
    Raises:
        ExportError: it cannot be written.
    """
    for store in stores:
        known = {day: known_seq(records, day.day, store.id) for day in store.days}
        # `last_seq` never falls. If the archive knows a higher one, the store was put back to an earlier moment, and
        # other rows may have those numbers now. The next run that reads that day says how far it is archived.
        archived = {day.day: seq for day, seq in known.items() if seq is not None and seq <= day.last_seq}
        _write(store.place, Archived(store.id, archive, int(now), archived, put_back.get(store.id, 0)))


def has_record(store: StorePlace) -> bool:
    """Whether there is a record beside a store, readable or not, of this archive or of another."""
    try:
        return read_archived(store) is not None
    except MailserverError:
        return True


def keep_numbers_apart(stores: Sequence[StoreSnapshot], records: Mapping[str, PeriodRecord]) -> dict[str, int]:
    """Have no store give a number again that the archive knows as another row's, as one that was put back to an earlier
    moment would.

    A database goes on beyond those numbers. Of a file, the record says that it was put back, until the mailserver gives
    it another identity. (It does so by itself if the file alone was put back, or comes from a backup.)

    Returns:
        Of each file that was put back, by its store's id, the newest number that the archive knew.
    Raises:
        ExportError: a database cannot be asked.
    """
    put_back = {}
    for store in stores:
        known = newest_known(records, store.id)
        if not isinstance(store.place, Path):
            with translated():
                store.place.keep_beyond(known)
            continue
        known = max(known if was_put_back(store, records) else 0, _noticed_before(store))
        if known:
            put_back[store.id] = known
            log.error("store went back in time store=%s seen=%d found=%d", store.place, known, store.newest)
    return put_back


def _noticed_before(store: StoreSnapshot) -> int:
    """What an earlier run has said of a store that was put back, and that has gone on since; 0 if it was not."""
    try:
        archived = read_archived(store.place)
    except MailserverError:  # it is about to be written anew
        return 0
    return archived.went_back_from if archived is not None and archived.store_id == store.id else 0


def withdraw(stores: Sequence[StorePlace], records: Mapping[str, PeriodRecord], archive: str) -> None:
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
        if not is_same_archive(archived.archive, archive):
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


def check_archive_is_there(archive: WritableArchive, stores: Sequence[StoreSnapshot], now: float) -> None:
    """Make sure that an empty folder is not the place of an archive whose disk is not mounted.

    If the record beside a store names days of an archive that is empty, it no longer names them afterwards. Nor does it
    say that a run has seen them later than `now` (Unix seconds), as it may by a clock that was ahead: what an operator
    acknowledges from now on is later than what it says.

    Raises:
        ArchiveGone: a record names days of an archive that is empty, and no operator has said that it is lost.
        ExportError: a record cannot be read or written.
    """
    if not archive.is_empty():
        return
    try:
        acknowledged_at = Incidents(archive.storage, now).whole_archive_lost_at()
    except RecordDamaged as error:  # then nobody knows that an operator has said so
        log.warning("incidents of the archive not readable cause=%r", str(error))
        acknowledged_at = None
    gone = []
    for store in stores:
        try:
            archived, runs = read_archived(store.place), read_compaction(store.place)
        except MailserverError as error:
            raise ExportError(f"{error}; it may name an archive at {archive.url}, where there is none now") from error
        if archived is None or not is_same_archive(archived.archive, archive.url):
            continue
        if archived.verified_at <= (acknowledged_at or -1):
            continue
        if archived.days or (runs is not None and runs.archived):
            gone.append(store)
            _write(store.place, replace(archived, days={}, verified_at=min(archived.verified_at, int(now))))
    if gone:
        raise ArchiveGone(
            f"there is no archive at {archive.url}, but the record beside {gone[0].place} says that there was: is its "
            "disk mounted? If it is lost, `spark-export acknowledge --all-is-lost` lets a new one begin"
        )


def last_found(archive: WritableArchive, stores: Sequence[StoreSnapshot]) -> list[LastFound]:
    """What is written beside the stores about this archive."""
    found = []
    for store in stores:
        try:
            archived, last = read_archived(store.place), read_compaction(store.place)
        except MailserverError as error:
            log.warning("archive not compared with the record beside a store cause=%r", str(error))
            continue
        if last is None or last.succeeded_at is None or not is_same_archive(last.archived_in, archive.url):
            continue
        is_of_this = archived is not None and is_same_archive(archived.archive, archive.url)
        known = archived.days if archived is not None and is_of_this else {}
        seqs = {day.day: known.get(day.day, day.last_seq) for day in store.days}
        found.append(LastFound(store.id, last.succeeded_at, last.archived, last.archived_months, seqs))
    return found


def _write(store: StorePlace, archived: Archived) -> None:
    try:
        write_archived(store, archived)
    except StoreError as error:
        raise ExportError(f"cannot write beside {store}: {error}") from error
    except OSError as error:
        raise ExportError(f"cannot write beside {store}: {error.strerror or error}") from error
