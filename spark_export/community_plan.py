"""Which ranges of which communities a run looks at, and what it makes of each. Times are Unix seconds.

Of the time since a community was registered, each range that has ended gets an archive, with messages or without. Of
the time before, those that have messages. A forged time of creation must not give a community fifty years of history:
the history begins no earlier than the first envelope that was received here may have been created.
"""

from collections import Counter
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mailserver.catchup.ledger import open_ledger
from mailserver.communities.formats import MAX_CHUNK_BYTES, TimeRange
from mailserver.communities.index import DEPLOYED, IndexEntry
from mailserver.communities.ranges import PERIOD_S, range_of
from mailserver.community.owner.record import Community
from mailserver.data_dir.running import is_running, was_run
from mailserver.units import SECONDS_PER_DAY
from spark_export.community_encoding import RangeWork
from spark_export.places import StorePlace
from spark_export.store import last_reception

SETTLE_S = 3600
"""How long after its end a range waits for late envelopes, if the settings say nothing else: clocks differ."""

KEPT_ELSEWHERE_S = 30 * SECONDS_PER_DAY
"""Other nodes keep messages for so long (61/STATUS "Requirements"): what was missed before is not to be had any more,
and nothing that is older than the first envelope here by more than this came from them."""


@dataclass(frozen=True, slots=True)
class Due:
    """When ranges are due: those that ended `settle_s` before `now`, but for what is `missing`."""

    now: int
    settle_s: int = SETTLE_S
    period_s: int = PERIOD_S
    missing: tuple[TimeRange, ...] = ()

    @property
    def end(self) -> int:
        """Where the last range that has ended and settled ends."""
        return range_of(self.now - self.settle_s, self.period_s).lower

    def is_awaited(self, time_range: TimeRange) -> bool:
        """Whether messages of a range are missing, and may still be fetched."""
        since = self.now - KEPT_ELSEWHERE_S
        return any(each.overlaps(time_range) and min(each.upper, time_range.upper) > since for each in self.missing)


def late_ranges(entries: Collection[IndexEntry], now: int) -> frozenset[TimeRange]:
    """The ranges with archives that get a further one if something has come late.

    Each further archive doubles the age from which a range gets the next one, in days: 1, 3, 7, 15 .. So a week of ten
    years ago has twelve at most, though anybody may post something for it each day. The archives of a week with many
    messages do not count, but for the last one: they are larger.
    """
    counts = Counter({entry.time_range: 0 for entry in entries})
    counts.update(entry.time_range for entry in entries if entry.size < MAX_CHUNK_BYTES // 2)
    return frozenset(
        time_range
        for time_range, count in counts.items()
        if now - time_range.upper >= (2 ** max(0, count - 1) - 1) * SECONDS_PER_DAY
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run looks at of one community, in the order of `data`; and the ranges that wait for what is missing."""

    works: tuple[RangeWork, ...] = ()
    waiting: tuple[TimeRange, ...] = ()


def plan_community(
    number: int,
    community: Community,
    published: Mapping[TimeRange, bytes],
    late: Container[TimeRange],
    first_received: int | None,
    due: Due,
) -> Plan:
    """Plan one community.

    Args:
        number: of the community in the run.
        published: the keys of the envelopes of each range that has an archive.
        late: which of these are looked at for what has come late.
        first_received: when the first envelope was received of all that there are; None if there are none.
    """
    begin = registered = range_of(community.registered, due.period_s).lower
    if first_received is not None:
        begin = min(begin, range_of(max(0, first_received - KEPT_ELSEWHERE_S), due.period_s).lower)
    works: list[RangeWork] = []
    waiting: list[TimeRange] = []
    for lower in range(begin, due.end, due.period_s):
        time_range = TimeRange(lower, lower + due.period_s)
        content_topics = community.content_topics(time_range)
        if not content_topics:
            continue
        # Archives stand in the order of time: those after a range that waits wait, too.
        if waiting or due.is_awaited(time_range):
            waiting.append(time_range)
            continue
        is_further = time_range in published
        if is_further and time_range not in late:
            continue
        works.append(
            RangeWork(
                number,
                time_range,
                community.format_name,
                community.network_topic,
                content_topics,
                community.keys,
                community.channels,
                needs_messages=is_further or lower < registered or community.format_name == DEPLOYED,
                published=published.get(time_range, b""),
            )
        )
    return Plan(tuple(works), tuple(waiting))


def missing_of(stores: Sequence[StorePlace], data_dir: Path, now: int) -> tuple[TimeRange, ...]:
    """The times of creation of which the mailservers of some stores still fetch envelopes, or will.

    What was missed is fetched first, and archived then (61/STATUS "Serving archives for missed messages"). While no
    mailserver runs, none has what is posted since the last reception of all, and they fetch that when they run again.

    Args:
        data_dir: that of the communities. Of the mailservers that share a database, its own is asked.
    Raises:
        CatchupError: what one of them says cannot be read.
        ExportError: a store cannot be read.
    """
    folders = {store: store.parent if isinstance(store, Path) else data_dir for store in stores}
    awaited = [each for folder in dict.fromkeys(folders.values()) for each in open_ledger(folder).awaited]
    missing = [TimeRange(each.lower, each.upper + 1) for each in awaited]
    of_mailservers = [store for store, folder in folders.items() if was_run(folder)]
    if not any(is_running(folders[store]) for store in of_mailservers):
        received = [last for store in of_mailservers if (last := last_reception(store)) is not None]
        if received and max(received) < now:
            missing.append(TimeRange(max(received), now))
    return tuple(missing)
