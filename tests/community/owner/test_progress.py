"""mailserver.community.owner.progress: what is told of a community of ours, from what is on disk and what is seeded."""

from pathlib import Path

import pytest

from mailserver.communities.index import IndexEntry
from mailserver.communities.progress import CommunityProgress, CommunityRole, Week
from mailserver.community.owner.announcing import Announced
from mailserver.community.owner.folders import CommunityFolder
from mailserver.community.owner.progress import owned_progress
from mailserver.community.owner.sent import SentPieces
from mailserver.torrents.info import BLOCKS_PER_PIECE
from mailserver.torrents.statistics import TorrentTraffic
from tests.community.owner.samples import made_in, week

SIZE = 102_400


def entry(number: int, of_week: int) -> IndexEntry:
    return IndexEntry(f"0x{number:064x}", week(of_week), (), number * SIZE, SIZE, 0)


ENTRIES = (entry(0, 0), entry(1, 1), entry(2, 0), entry(3, 2))
"""The third one is of what turned up late in the first week."""


NOTHING_SENT = SentPieces()


@pytest.fixture
def folder(tmp_path: Path) -> CommunityFolder:
    return made_in(tmp_path)


def progress_of(
    folder: CommunityFolder,
    entries: tuple[IndexEntry, ...] = ENTRIES,
    *,
    seeded: int = 0,
    announced: int | None = None,
    sent: SentPieces = NOTHING_SENT,
    is_on: bool = True,
) -> CommunityProgress:
    return owned_progress(
        folder,
        entries,
        seeded_bytes=seeded * SIZE,
        announced=None if announced is None else Announced(bytes(20), announced * SIZE, 1, 77),
        sent=sent,
        is_on=is_on,
        late_weeks=3,
        traffic=TorrentTraffic(peers=2, uploaded_bytes=5, downloaded_bytes=6),
        problem="the disk is full",
    )


def test_week_is_as_far_as_the_last_of_its_archives(folder: CommunityFolder) -> None:
    progress = progress_of(folder, seeded=3, announced=2)

    assert progress.weeks == (
        Week(*week(0), archives=2, is_distributed=False, is_seeding=True, is_fetched=False, fetched_times=0),
        Week(*week(1), archives=1, is_distributed=True, is_seeding=True, is_fetched=False, fetched_times=0),
        Week(*week(2), archives=1, is_distributed=False, is_seeding=False, is_fetched=False, fetched_times=0),
    )
    assert progress.newest == week(2).upper


def test_week_was_fetched_as_often_as_the_least_of_the_pieces_of_its_archives(folder: CommunityFolder) -> None:
    blocks = {0: 3 * BLOCKS_PER_PIECE, 1: 2 * BLOCKS_PER_PIECE - 1, 2: 2 * BLOCKS_PER_PIECE, 4: 1}
    sent = SentPieces()
    sent.add(blocks, 100, 4)  # piece 4 is of the index
    sent.add({1: 0, 2: 1}, 200, 4)

    weeks = progress_of(folder, sent=sent).weeks

    assert [(each.is_fetched, each.fetched_times, each.fetched_at) for each in weeks] == [
        (True, 2, 200),
        (True, 1, 200),
        (False, 0, None),
    ]


def test_rest_is_told_as_it_is(folder: CommunityFolder) -> None:
    progress = progress_of(folder, seeded=4, announced=4)

    assert (progress.id, progress.role, progress.archives) == (folder.path.name, CommunityRole.OWNER, {})
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
