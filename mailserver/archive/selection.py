"""Which directories of an archive a question needs, by the records alone, and whole while a run changes them."""

from collections.abc import Collection
from dataclasses import dataclass

from mailserver.archive.archive import Archive
from mailserver.archive.layout import Layout
from mailserver.archive.manifest import PeriodRecord
from mailserver.archive.paths import SNAPSHOTS, directory_of, snapshot_of


@dataclass(frozen=True, slots=True)
class SelectedPart:
    """Directories of an archive below the same one, `base`; all by their paths there, "" for the archive itself."""

    base: str
    directories: tuple[str, ...]


def select_parts(
    archive: Archive, layout: Layout, *, start: int | None, end: int | None, topics: Collection[str] | None
) -> list[SelectedPart]:
    """The directories that may hold envelopes of these topics, created from `start` on and before `end`.

    A period's second names are taken where it has them: they stay for a day after a run has replaced the period.

    Args:
        start: Unix seconds; None for no bound, as with `end`.
        topics: 0x and 8 hex digits each; None for all.
    Raises:
        ArchiveError: a record cannot be read.
    """
    records = [record for record in archive.records().values() if may_hold(record, start, end)]
    by_base: dict[str, list[str]] = {SNAPSHOTS: [], "": []}
    for record in records:
        # A copy of the archive may do without second names.
        has_snapshot = record.snapshot and bool(archive.files.names(snapshot_of(record)))
        top = snapshot_of(record) if has_snapshot else directory_of(record.period)
        by_base[SNAPSHOTS if has_snapshot else ""] += [
            f"{top}/{partition}" for partition in partitions_of(record, layout, topics)
        ]
    return [SelectedPart(base, tuple(directories)) for base, directories in by_base.items() if directories]


def may_hold(record: PeriodRecord, start: int | None, end: int | None) -> bool:
    """Whether a period may hold an envelope created from `start` on and before `end`, Unix seconds or None."""
    return any(
        (start is None or start <= day.created_max) and (end is None or day.created_min < end)
        for day in record.days.values()
        if day.fingerprint.rows
    )


def partitions_of(record: PeriodRecord, layout: Layout, topics: Collection[str] | None) -> list[str]:
    """The directories of a period that may hold one of the topics, sorted, by their names there."""
    there = {file.path.partition("/")[0] for file in record.files}
    if topics is not None:
        there &= {f"{layout.column}={layout.value(topic)}" for topic in topics}
    return sorted(there)
