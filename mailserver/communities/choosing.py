"""Which history archives a member fetches: all, the latest, or those of a time (61/STATUS "Downloading")."""

from collections.abc import Iterable
from dataclasses import dataclass

from mailserver.communities.formats import TimeRange
from mailserver.communities.index import IndexEntry


@dataclass(frozen=True, slots=True)
class All:
    """The whole history."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The latest range, for members that have all before."""


@dataclass(frozen=True, slots=True)
class Between:
    """The ranges of which some moment lies in `time`."""

    time: TimeRange


Choice = All | Latest | Between


def chosen(entries: Iterable[IndexEntry], choice: Choice) -> list[IndexEntry]:
    """The entries that are wanted, in the order in which they came.

    A range may have several archives, for it had many messages or some of them came late: they belong together.
    """
    found = [*entries]
    match choice:
        case All():
            return found
        case Latest():
            latest = max((entry.time_range.upper for entry in found), default=0)
            return [entry for entry in found if entry.time_range.upper == latest]
        case Between(time):
            return [entry for entry in found if entry.time_range.overlaps(time)]
