"""What a run has to do: which days of which stores, in which order, into which layout."""

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from mailserver.archive.days import day_of
from mailserver.archive.layout import Layout, choose_layout
from mailserver.archive.manifest import PeriodRecord, days_elsewhere, known_seq
from spark_export.config import CompactConfig
from spark_export.store import StoreDay, StoreSnapshot

GROUP_BYTES = 4 * 1024**3
"""About how many bytes of envelopes are written before they are verified and published. Until then, their keys may take
half as much room on the disk for temporary files."""


@dataclass(frozen=True, slots=True)
class Group:
    """Days that are written together: of each store, those with rows that the archive lacks."""

    wanted: tuple[tuple[StoreDay, ...], ...]

    @property
    def days(self) -> list[int]:
        """All days of the group, oldest first."""
        return sorted({day.day for days in self.wanted for day in days})

    @property
    def rows(self) -> int:
        """Rows to read, at most."""
        return sum(day.envelopes for days in self.wanted for day in days)

    @property
    def bytes(self) -> int:
        """Bytes of envelopes to read, at most."""
        return sum(day.bytes for days in self.wanted for day in days)


def last_day(config: CompactConfig, now: float) -> int:
    """The last day of reception that is to be archived; `now` in Unix seconds."""
    last = day_of(int(now)) - (0 if config.keep_open_day else 1)
    return last if config.until is None else min(last, config.until)


LEARNED_DAYS = 2
"""Of so many days, the oldest, that an earlier version has archived, each run finds out which other days have rows of
them (`DayRecord.elsewhere`), by reading them again. The mailserver deletes about a day a day, beginning with the
oldest; and to read all of them in one night might take longer than the night."""


def newest_known(records: Mapping[str, PeriodRecord], store_id: str) -> int:
    """The newest `seq` of a store that the archive knows, whether or not it still has that row; 0 if it knows none."""
    days = [day for record in records.values() for day in record.days.values()]
    return max((seqs.get(store_id, 0) for day in days for seqs in (day.stores, day.stores_before)), default=0)


def was_put_back(store: StoreSnapshot, records: Mapping[str, PeriodRecord]) -> bool:
    """Whether a store went back to an earlier moment: the archive knows rows that came after its newest."""
    return store.newest < newest_known(records, store.id)


def plan_groups(
    stores: Sequence[StoreSnapshot], records: Mapping[str, PeriodRecord], last: int, put_back: Container[str] = ()
) -> list[Group]:
    """The days with rows that the archive lacks, in groups of about GROUP_BYTES, oldest first; and LEARNED_DAYS.

    Args:
        put_back: the ids of stores that went back to an earlier moment. All of their days are read: rows may have the
            numbers of others that are archived.
    """
    by_day: dict[int, dict[int, StoreDay]] = defaultdict(dict)
    unknown: dict[int, dict[int, StoreDay]] = defaultdict(dict)
    for index, store in enumerate(stores):
        for day in store.days:
            if day.day > last:
                continue
            if store.id in put_back or known_seq(records, day.day, store.id) != day.last_seq:
                by_day[day.day][index] = day
            elif days_elsewhere(records, day.day, store.id) is None:
                unknown[day.day][index] = day
    for number in sorted(unknown)[:LEARNED_DAYS]:
        by_day[number] |= unknown[number]
    groups: list[list[dict[int, StoreDay]]] = []
    size = GROUP_BYTES
    for _, wanted in sorted(by_day.items()):
        day_bytes = sum(day.bytes for day in wanted.values())
        if size + day_bytes > GROUP_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(wanted)
        size += day_bytes
    return [
        Group(tuple(tuple(day[index] for day in group if index in day) for index in range(len(stores))))
        for group in groups
    ]


def new_layout(config: CompactConfig, stores: Sequence[StoreSnapshot], groups: Sequence[Group]) -> Layout:
    """What a new archive is to be partitioned by."""
    topics = max((store.topics_of_a_day for store in stores), default=0)
    days = sum(len(group.days) for group in groups)
    size = sum(group.bytes for group in groups)
    return choose_layout(config.partition_by, config.prefix_digits, topics=topics, day_bytes=size // max(1, days))
