"""mailserver.community.owner.progress: what is told of a community of ours, from what is on disk and what is seeded."""

from pathlib import Path

import pytest

from mailserver.communities.index import IndexEntry
from mailserver.communities.progress import CommunityProgress, Role, Week
from mailserver.community.owner.announcing import Announced
from mailserver.community.owner.folders import CommunityFolder
from mailserver.community.owner.progress import owned_progress
from mailserver.torrents.statistics import TorrentTraffic
from tests.community.owner.samples import made_in, week

SIZE = 102_400


def entry(number: int, of_week: int) -> IndexEntry:
    return IndexEntry(f"0x{number:064x}", week(of_week), (), number * SIZE, SIZE, 0)


ENTRIES = (entry(0, 0), entry(1, 1), entry(2, 0), entry(3, 2))
"""The third one is of what turned up late in the first week."""


@pytest.fixture
def folder(tmp_path: Path) -> CommunityFolder:
    return made_in(tmp_path)


def progress_of(
    folder: CommunityFolder,
    entries: tuple[IndexEntry, ...] = ENTRIES,
    *,
    seeded: int = 0,
    announced: int | None = None,
    is_on: bool = True,
) -> CommunityProgress:
    return owned_progress(
        folder,
        entries,
        seeded_bytes=seeded * SIZE,
        announced=None if announced is None else Announced(bytes(20), announced * SIZE, 1, 77),
        is_on=is_on,
        late_weeks=3,
        traffic=TorrentTraffic(peers=2, uploaded_bytes=5, downloaded_bytes=6),
        problem="the disk is full",
    )


def test_week_is_as_far_as_the_last_of_its_archives(folder: CommunityFolder) -> None:
    progress = progress_of(folder, seeded=3, announced=2)

    assert progress.weeks == (
        Week(*week(0), archives=2, is_distributed=False, is_seeding=True, is_fetched=None),
        Week(*week(1), archives=1, is_distributed=True, is_seeding=True, is_fetched=None),
        Week(*week(2), archives=1, is_distributed=False, is_seeding=False, is_fetched=None),
    )
    assert progress.newest == week(2).upper


def test_rest_is_told_as_it_is(folder: CommunityFolder) -> None:
    progress = progress_of(folder, seeded=4, announced=4)

    assert (progress.id, progress.role, progress.archives) == (folder.path.name, Role.OWNER, {})
    assert (progress.late_weeks, progress.announced_at, progress.problem) == (3, 77.0, "the disk is full")
    assert (progress.peers, progress.uploaded, progress.downloaded) == (2, 5, 6)


@pytest.mark.parametrize(
    ("entries", "seeded", "is_on", "is_seeding"),
    [((), 0, True, None), (ENTRIES, 0, False, None), (ENTRIES, 0, True, False), (ENTRIES, 4, True, True)],
    ids=["nothing published", "switched off", "not seeded", "seeded"],
)
def test_seeding_is_told_when_there_is_something_to_seed(
    folder: CommunityFolder, entries: tuple[IndexEntry, ...], seeded: int, is_on: bool, is_seeding: bool | None
) -> None:
    progress = progress_of(folder, entries, seeded=seeded, is_on=is_on)

    assert progress.is_seeding is is_seeding
    assert progress.announced_at is None
