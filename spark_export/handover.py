"""Telling a store's daemon which of its rows are safe in the archive: it deletes no others."""

from collections.abc import Mapping, Sequence

from mailserver.store.handover import Handover, write_handover
from spark_export.errors import ExportError
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
        try:
            write_handover(store.path, Handover(store.id, archive, int(now), archived))
        except OSError as error:
            raise ExportError(f"cannot write beside {store.path}: {error.strerror or error}") from error
