"""Telling a store's daemon which of its rows are safe in the archive: it deletes no others."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mailserver.errors import MailserverError
from mailserver.store.compaction import read_compaction
from mailserver.store.handover import Handover, read_handover, write_handover
from spark_export.archive import Archive
from spark_export.errors import ArchiveGone, ExportError
from spark_export.faults import Incidents
from spark_export.records import PeriodRecord, known_seq
from spark_export.store import Store


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
        _write(store, Handover(store.id, archive, int(now), archived))


def check_archive_is_there(archive: Archive, stores: Sequence[Store]) -> None:
    """Take no empty folder, of a disk that is not mounted, say, for a new archive.

    Where the archive has nothing, but the record beside a store says that it had, that no longer says so afterwards.

    Raises:
        ArchiveGone: that is so, and no operator has said that it is right.
        ExportError: a record cannot be read or written.
    """
    if not archive.is_empty():
        return
    acknowledged_at = Incidents(archive.storage).whole_archive_lost_at()
    gone = []
    for store in stores:
        try:
            handover, runs = read_handover(store.path), read_compaction(store.path)
        except MailserverError as error:
            raise ExportError(
                f"{error}; it may have spoken of an archive at {archive.url}, and there is none"
            ) from error
        if handover is None or handover.archive != archive.url or handover.verified_at <= (acknowledged_at or -1):
            continue
        if handover.days or (runs is not None and runs.archived):
            gone.append(store)
            _write(store, replace(handover, days={}))
    if gone:
        raise ArchiveGone(
            f"there is no archive at {archive.url}, but the record beside {gone[0].path} says that there was: is its "
            "disk mounted? If it is lost, `spark-export acknowledge --all-is-lost` lets a new one begin"
        )


def _write(store: Store, handover: Handover) -> None:
    try:
        write_handover(store.path, handover)
    except OSError as error:
        raise ExportError(f"cannot write beside {store.path}: {error.strerror or error}") from error
