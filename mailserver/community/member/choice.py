"""What is to be fetched and imported next, the newest first: that is what people read first."""

from collections.abc import Iterable

from mailserver.communities.choosing import Choice, chosen
from mailserver.communities.formats import TimeRange
from mailserver.community.member.records import ArchiveState, KnownArchive


def wanted(archives: Iterable[KnownArchive], choice: Choice) -> list[KnownArchive]:
    """Those of the listed archives that the member has chosen, the newest ranges first."""
    listed = [archive for archive in archives if archive.is_listed]
    entries = {*chosen((archive.entry for archive in listed), choice)}
    return sorted((archive for archive in listed if archive.entry in entries), key=_age, reverse=True)


def missing(archives: Iterable[KnownArchive]) -> list[KnownArchive]:
    """What is to be fetched of these: neither what is here, nor what cannot be used."""
    return [archive for archive in archives if archive.state is ArchiveState.MISSING]


def downloaded_ranges(archives: Iterable[KnownArchive]) -> dict[TimeRange, list[KnownArchive]]:
    """The ranges that can be imported, the newest first, each with what is downloaded of it."""
    found: dict[TimeRange, list[KnownArchive]] = {}
    for archive in sorted(archives, key=_age, reverse=True):
        if archive.state is ArchiveState.DOWNLOADED:
            found.setdefault(archive.time_range, []).append(archive)
    return found


def _age(archive: KnownArchive) -> tuple[int, int]:
    """By this, the latest range comes last."""
    return archive.time_range.upper, archive.time_range.lower
