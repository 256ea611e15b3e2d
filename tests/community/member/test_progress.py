"""mailserver.community.member.progress: what is told of a community that was joined."""

from collections.abc import Container

from mailserver.communities.channels import id_text
from mailserver.communities.index import SPEC
from mailserver.communities.links import AnnouncedLink
from mailserver.communities.progress import CommunityProgress, CommunityRole, Week
from mailserver.community.member.progress import joined_progress
from mailserver.community.member.records import ArchiveState, KnownArchive
from mailserver.torrents.statistics import TorrentTraffic
from tests.community.member.test_following import COMMUNITY
from tests.community.member.worlds import content, listed, week


def archive(name: str, number: int, state: ArchiveState, *, is_listed: bool = True) -> KnownArchive:
    return KnownArchive(content(name), SPEC, listed(name, number).entry, is_listed, state)


ARCHIVES = (
    archive("a", 5, ArchiveState.IMPORTED),
    archive("b", 5, ArchiveState.IMPORTED),
    archive("c", 6, ArchiveState.IMPORTED),
    archive("d", 6, ArchiveState.REFUSED),
    archive("e", 7, ArchiveState.DOWNLOADED),
    archive("f", 8, ArchiveState.MISSING, is_listed=False),
)


def progress_of(*archives: KnownArchive, offered: Container[int] | None = range(1)) -> CommunityProgress:
    return joined_progress(
        COMMUNITY,
        archives,
        link=AnnouncedLink(5500, "magnet:?a"),
        offered=offered,
        traffic=TorrentTraffic(peers=2, uploaded_bytes=5, downloaded_bytes=6),
        problem="",
    )


def test_week_is_fetched_once_all_of_its_archives_are_imported() -> None:
    progress = progress_of(*ARCHIVES)

    assert progress.weeks == (
        Week(*week(5), archives=2, is_distributed=True, is_seeding=True, is_fetched=True),
        Week(*week(6), archives=2, is_distributed=True, is_seeding=False, is_fetched=False),
        Week(*week(7), archives=1, is_distributed=True, is_seeding=False, is_fetched=False),
    )
    assert progress.newest == week(5).upper
    assert progress.archives == {"missing": 0, "downloaded": 1, "imported": 3, "refused": 1}


def test_week_that_is_here_and_not_in_the_torrent_is_not_seeded() -> None:
    progress = progress_of(*ARCHIVES, offered=range(1, 5))

    assert (progress.weeks[0].is_fetched, progress.weeks[0].is_seeding) == (True, False)
    assert progress.is_seeding is True


def test_rest_is_told_as_it_is() -> None:
    progress = progress_of(*ARCHIVES)

    assert (progress.id, progress.role, progress.late_weeks) == (id_text(COMMUNITY), CommunityRole.MEMBER, None)
    assert (progress.announced_at, progress.is_seeding) == (5.5, True)
    assert (progress.peers, progress.uploaded, progress.downloaded) == (2, 5, 6)


def test_what_is_not_offered_is_not_seeded_and_nothing_is_before_an_index_came() -> None:
    progress = progress_of(*ARCHIVES, offered=None)

    assert progress.is_seeding is False
    assert not any(each.is_seeding for each in progress.weeks)
    assert progress_of().is_seeding is None
