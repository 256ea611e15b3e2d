"""How far the history of a community is that was joined."""

from collections import Counter
from collections.abc import Container, Iterable
from itertools import groupby

from mailserver.communities.channels import CommunityId, id_text
from mailserver.communities.links import AnnouncedLink
from mailserver.communities.progress import CommunityProgress, CommunityRole, Week
from mailserver.community.member.records import ArchiveState, KnownArchive
from mailserver.torrents.statistics import TorrentTraffic


def joined_progress(
    community: CommunityId,
    archives: Iterable[KnownArchive],
    *,
    link: AnnouncedLink | None,
    offered: Container[int] | None,
    traffic: TorrentTraffic,
    problem: str,
) -> CommunityProgress:
    """Put it together.

    Args:
        archives: what is known of them, in the order of time. Those that the newest index does not list do not count.
        offered: which pieces of its torrent peers get from us; None if it is not in the torrent process.
    """
    listed = [archive for archive in archives if archive.is_listed]
    weeks = []
    for time_range, of_range in groupby(listed, key=lambda archive: archive.time_range):
        of_week = [*of_range]
        is_fetched = all(archive.state is ArchiveState.IMPORTED for archive in of_week)
        pieces = (piece for archive in of_week for piece in archive.entry.pieces)
        is_seeding = is_fetched and offered is not None and all(piece in offered for piece in pieces)
        weeks.append(Week(time_range.lower, time_range.upper, len(of_week), True, is_seeding, is_fetched))
    counts = Counter(archive.state for archive in listed)
    return CommunityProgress(
        id=id_text(community),
        role=CommunityRole.MEMBER,
        weeks=tuple(weeks),
        archives={state.value: counts[state] for state in ArchiveState},
        late_weeks=None,
        is_seeding=offered is not None if listed else None,
        announced_at=None if link is None else link.clock / 1000,
        peers=traffic.peers,
        uploaded=traffic.uploaded_bytes,
        downloaded=traffic.downloaded_bytes,
        problem=problem,
    )
