"""How far the history of a community is that was joined."""

from collections import Counter
from collections.abc import Iterable
from itertools import groupby

from mailserver.communities.channels import CommunityId, id_text
from mailserver.communities.links import MagnetLink
from mailserver.communities.progress import CommunityProgress, Role, Week
from mailserver.community.member.records import KnownArchive, State
from mailserver.torrents.statistics import TorrentTraffic


def joined_progress(
    community: CommunityId,
    archives: Iterable[KnownArchive],
    *,
    link: MagnetLink | None,
    is_offered: bool,
    traffic: TorrentTraffic,
    problem: str,
) -> CommunityProgress:
    """Put it together.

    Args:
        archives: what is known of them, in the order of time. Those that the newest index does not list do not count.
        is_offered: whether its torrent is in the torrent process, so that peers get what is here.
    """
    listed = [archive for archive in archives if archive.is_listed]
    weeks = []
    for time_range, of_range in groupby(listed, key=lambda archive: archive.time_range):
        states = [archive.state for archive in of_range]
        is_fetched = all(state is State.IMPORTED for state in states)
        is_seeding = is_offered and is_fetched
        weeks.append(Week(time_range.lower, time_range.upper, len(states), True, is_seeding, is_fetched))
    counts = Counter(archive.state for archive in listed)
    return CommunityProgress(
        id=id_text(community),
        role=Role.MEMBER,
        weeks=tuple(weeks),
        archives={state.value: counts[state] for state in State},
        late_weeks=None,
        is_seeding=is_offered if listed else None,
        announced_at=None if link is None else link.clock / 1000,
        peers=traffic.peers,
        uploaded=traffic.uploaded_bytes,
        downloaded=traffic.downloaded_bytes,
        problem=problem,
    )
