"""Which archives a member wants: all, the latest, or those of a range of time (61/STATUS "Downloading message
archives")."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from mailserver.communities.formats import TimeRange
from mailserver.community.member.records import KnownArchive, State


class Mode(Enum):
    """What a member has chosen."""

    ALL = "all"
    LATEST = "latest"
    RANGE = "range"


@dataclass(frozen=True, slots=True)
class Choice:
    """`time_range` belongs to Mode.RANGE: archives that have a moment of it are wanted."""

    mode: Mode = Mode.ALL
    time_range: TimeRange | None = None

    def of(self, archives: Iterable[KnownArchive]) -> list[KnownArchive]:
        """Those of the listed archives that are wanted, the newest ranges first.

        A range may have several archives: late messages have one of their own, and so has what was too long for one.
        They are wanted together, or none of them is.
        """
        listed = [archive for archive in archives if archive.is_listed]
        if self.mode is Mode.LATEST and listed:
            latest = max(_age(archive) for archive in listed)
            listed = [archive for archive in listed if _age(archive) == latest]
        elif self.mode is Mode.RANGE:
            assert self.time_range is not None, "a range was chosen"
            listed = [archive for archive in listed if archive.time_range.overlaps(self.time_range)]
        return sorted(listed, key=_age, reverse=True)


def missing(wanted: Iterable[KnownArchive]) -> list[KnownArchive]:
    """What is to be fetched of it."""
    return [archive for archive in wanted if archive.state is State.MISSING]


def downloaded_ranges(archives: Sequence[KnownArchive]) -> dict[TimeRange, list[KnownArchive]]:
    """The ranges that can be imported, newest first, each with what is downloaded of it."""
    found: dict[TimeRange, list[KnownArchive]] = {}
    for archive in sorted(archives, key=_age, reverse=True):
        if archive.state is State.DOWNLOADED:
            found.setdefault(archive.time_range, []).append(archive)
    return found


def _age(archive: KnownArchive) -> tuple[int, int]:
    """By this, the latest range comes last."""
    return archive.time_range.upper, archive.time_range.lower
