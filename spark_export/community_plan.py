"""Which history archives a run makes: of which communities and ranges, in which order. Times are Unix seconds. No I/O.

Of the time since a community was registered, each range that has ended gets an archive, with messages or without. What
was before is made from what is there, range by range. A forged time of creation must not give a community fifty years
of history: what claims to be much older than the first envelope that was received here is left out.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mailserver.communities.formats import TimeRange
from mailserver.communities.index import DEPLOYED
from mailserver.communities.ranges import PERIOD_S, range_of
from mailserver.community.owner.record import Community
from mailserver.units import SECONDS_PER_DAY
from mailserver.waku.envelope import Topic
from spark_export.community_encoding import RangeWork

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

    @property
    def awaited(self) -> list[TimeRange]:
        """What is missing, and may still be fetched."""
        return [each for each in self.missing if each.upper > self.now - KEPT_ELSEWHERE_S]


@dataclass(frozen=True, slots=True)
class Found:
    """What sources have of one range of a community: how many envelopes `new` to its history, and when the first of all
    was received."""

    new: int
    first_received: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be made of one community, in the order of `data`, and what waits for messages that are missing."""

    works: tuple[RangeWork, ...] = ()
    waiting: tuple[TimeRange, ...] = ()
    forged: int = 0
    """How many envelopes were left out, as they claim to be too old."""


def plan_community(
    number: int, community: Community, published: frozenset[TimeRange], found: Mapping[int, Found], due: Due
) -> Plan:
    """Plan one community.

    Args:
        number: of the community in the run.
        published: the ranges that have an archive.
        found: by the lower bound of each range.
    """
    if not community.channels:
        return Plan()
    first_received = min((each.first_received for each in found.values()), default=due.now)
    floor = range_of(max(0, first_received - KEPT_ELSEWHERE_S), due.period_s).lower
    forged = sum(each.new for lower, each in found.items() if lower < floor)
    lowers = {lower for lower, each in found.items() if each.new and floor <= lower < due.end}
    if community.format_name != DEPLOYED:  # which has no archives without messages
        lowers |= {*range(range_of(community.registered, due.period_s).lower, due.end, due.period_s)}
    works: list[RangeWork] = []
    waiting: list[TimeRange] = []
    awaited = due.awaited
    for lower in sorted(lowers):
        time_range = TimeRange(lower, lower + due.period_s)
        is_further, content_topics = time_range in published, community.content_topics(time_range)
        if not content_topics or (is_further and not (lower in found and found[lower].new)):
            continue
        # Archives stand in the order of time: those after a range that waits wait, too.
        if waiting or any(each.overlaps(time_range) for each in awaited):
            waiting.append(time_range)
            continue
        works.append(
            RangeWork(
                number,
                time_range,
                community.format_name,
                community.network_topic,
                content_topics,
                _keys(community),
                is_further,
            )
        )
    return Plan(tuple(works), tuple(waiting), forged)


def spans(works: Sequence[RangeWork]) -> list[TimeRange]:
    """The times of creation that some work needs, as few spans as there are, in order."""
    merged: list[TimeRange] = []
    for each in sorted({work.time_range for work in works}):
        if merged and merged[-1].upper >= each.lower:
            merged[-1] = TimeRange(merged[-1].lower, max(merged[-1].upper, each.upper))
        else:
            merged.append(each)
    return merged


def _keys(community: Community) -> Mapping[Topic, tuple[bytes, ...]]:
    """What opens the messages of each topic: the keys of all channels that had it, the newest one first."""
    if community.format_name != DEPLOYED:
        return {}
    keys: dict[Topic, list[bytes]] = defaultdict(list)
    for channel in reversed(community.channels):
        if channel.key is not None and channel.key not in keys[channel.topic]:
            keys[channel.topic].append(channel.key)
    return {topic: tuple(each) for topic, each in keys.items()}


def missing_ranges(missed: Iterable[tuple[int, int]]) -> tuple[TimeRange, ...]:
    """What the mailservers say that they have missed: (first, last) times of creation, both included."""
    return tuple(TimeRange(lower, upper + 1) for lower, upper in missed)
