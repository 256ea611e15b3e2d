"""How far the history of a community of ours is."""

from collections.abc import Sequence
from itertools import groupby

from mailserver.communities.index import IndexEntry
from mailserver.communities.progress import CommunityProgress, CommunityRole, Week
from mailserver.community.owner.announcing import Announced
from mailserver.community.owner.folders import CommunityFolder
from mailserver.community.owner.sent import SentPieces
from mailserver.torrents.statistics import TorrentTraffic


def owned_progress(
    folder: CommunityFolder,
    entries: Sequence[IndexEntry],
    *,
    seeded_bytes: int,
    announced: Announced | None,
    sent: SentPieces,
    is_on: bool,
    late_weeks: int | None,
    traffic: TorrentTraffic,
    problem: str,
) -> CommunityProgress:
    """Put it together.

    Args:
        entries: what the published index lists.
        seeded_bytes: how much of `data` is seeded now; 0: nothing.
        announced: what was announced last.
        sent: what peers have got from us.
        late_weeks: None: it is not known.
    """
    posted_bytes = 0 if announced is None else announced.data_bytes
    by_time = sorted(entries, key=lambda entry: entry.time_range)
    weeks = []
    for time_range, of_range in groupby(by_time, key=lambda entry: entry.time_range):
        archives = [*of_range]
        end = max(entry.end for entry in archives)
        fetched = sent.times(piece for entry in archives for piece in entry.pieces)
        weeks.append(
            Week(
                time_range.lower,
                time_range.upper,
                len(archives),
                is_distributed=end <= posted_bytes,
                is_seeding=end <= seeded_bytes,
                is_fetched=fetched.often > 0,
                fetched_times=fetched.often,
                fetched_at=fetched.last,
            )
        )
    return CommunityProgress(
        id=folder.path.name,
        role=CommunityRole.OWNER,
        weeks=tuple(weeks),
        archives={},
        late_weeks=late_weeks,
        is_seeding=bool(seeded_bytes) if is_on and entries else None,
        announced_at=None if announced is None else float(announced.posted_at),
        peers=traffic.peers,
        uploaded=traffic.uploaded_bytes,
        downloaded=traffic.downloaded_bytes,
        problem=problem,
    )
