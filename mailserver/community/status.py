"""How far the histories of communities are, of ours and of those that were joined: for commands and JSON-RPC.

What is on disk is read from there. What `community serve` does at this moment, it says in a record.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mailserver.communities.channels import CommunityId
from mailserver.communities.progress import CommunityProgress, CommunityRole, Week
from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.community.member.joined import Joined, MemberFolder, membership, memberships
from mailserver.community.member.progress import joined_progress
from mailserver.community.member.records import Overview
from mailserver.community.member.showing import joined_as_json, overview_of
from mailserver.community.owner.announcing import read_announced
from mailserver.community.owner.appending import read_published_index
from mailserver.community.owner.folders import CommunityFolder, folder_of, owned
from mailserver.community.owner.progress import owned_progress
from mailserver.community.owner.record import CommunityError
from mailserver.community.owner.sent import SentPieces
from mailserver.errors import DecodeError
from mailserver.handoff.communities import read_served
from mailserver.torrents.statistics import TorrentTraffic

_NO_TRAFFIC = TorrentTraffic()

ServedByRole = dict[tuple[str, CommunityRole], CommunityProgress]


@dataclass(frozen=True, slots=True)
class OwnedStatus:
    """A community of ours, as far as it is known. `is_served`: whether `community serve` works for it."""

    progress: CommunityProgress
    is_served: bool
    name: str


@dataclass(frozen=True, slots=True)
class JoinedStatus:
    """A community that was joined, as far as it is known.

    `joined` is what the member has said. `overview`: None if nothing was fetched yet. `is_served`: see `OwnedStatus`.
    """

    progress: CommunityProgress
    is_served: bool
    folder: MemberFolder
    joined: Joined
    overview: Overview | None


def read_status(data_dir: Path, community: CommunityId | None, now: float) -> list[OwnedStatus | JoinedStatus]:
    """What there is of one community, or of all: of ours first.

    Args:
        now: Unix seconds.
    Raises:
        CommunityError, MembershipError, ServedError: a record cannot be read, or this community was not joined.
        StoreError: the history of a member cannot be read.
    """
    communities = data_dir / COMMUNITIES_FOLDER
    record = read_served(communities)
    current = record.communities if record is not None and record.is_current(now) else ()
    served = {(each.id, each.role): each for each in current}
    if community is None:
        return [
            *(_owned_status(folder, served) for folder in owned(communities)),
            *(_joined_status(folder, served) for folder in memberships(data_dir)),
        ]
    folder = folder_of(communities, community)
    if folder.is_owned:
        return [_owned_status(folder, served)]
    return [_joined_status(membership(data_dir, community), served)]


def status_as_json(status: OwnedStatus | JoinedStatus) -> dict[str, Any]:
    """The status as a JSON object; times in Unix seconds.

    `late_weeks` and `announced` are of a community of ours; of one that was joined, there is all of `joined_as_json`.
    """
    progress = status.progress
    if isinstance(status, OwnedStatus):
        said = {
            "id": progress.id,
            "name": status.name,
            "late_weeks": progress.late_weeks,
            "announced": None if progress.announced_at is None else int(progress.announced_at),
        }
    else:
        said = joined_as_json(status.folder, status.joined, status.overview)
    return {
        **said,
        "role": progress.role.value,
        "weeks": [_week_as_json(week) for week in progress.weeks],
        "served": status.is_served,
        "seeding": bool(progress.is_seeding),
        "peers": progress.peers,
        "uploaded": progress.uploaded,
        "downloaded": progress.downloaded,
        "problem": progress.problem or None,
    }


def _owned_status(folder: CommunityFolder, served: ServedByRole) -> OwnedStatus:
    record = folder.read()
    try:
        index = read_published_index(folder)
    except OSError as error:
        raise CommunityError(f"cannot read {folder.index}: {error.strerror or error}") from error
    except DecodeError as error:
        raise CommunityError(f"{folder.index} is damaged: {error}") from error
    try:
        sent = SentPieces.read(folder.sent)
    except OSError as error:
        raise CommunityError(f"cannot read {folder.sent}: {error.strerror or error}") from error
    except DecodeError:
        sent = SentPieces()  # `community serve` counts anew
    progress = owned_progress(
        folder,
        () if index is None else index.entries,
        seeded_bytes=0,
        announced=read_announced(folder.announced),
        sent=sent,
        is_on=record.is_enabled,
        late_weeks=None,
        traffic=_NO_TRAFFIC,
        problem="",
    )
    live = served.get((progress.id, progress.role))
    return OwnedStatus(_with_live(progress, live), live is not None, record.name)


def _joined_status(folder: MemberFolder, served: ServedByRole) -> JoinedStatus:
    joined, overview = folder.read(), overview_of(folder)
    progress = joined_progress(
        folder.community,
        () if overview is None else overview.archives,
        link=None if overview is None else overview.link,
        offered=None,
        traffic=_NO_TRAFFIC,
        problem="" if overview is None else overview.problem or "",
    )
    live = served.get((progress.id, progress.role))
    return JoinedStatus(_with_live(progress, live), live is not None, folder, joined, overview)


def _with_live(progress: CommunityProgress, live: CommunityProgress | None) -> CommunityProgress:
    """Add what `community serve` says of it. Its record has the newest weeks: those before are seeded with them.

    What is wrong with a member's history is on disk, and newer there.
    """
    if live is None:
        return progress
    seeding = {(week.lower, week.upper): week.is_seeding for week in live.weeks}
    is_seeding, is_owner = bool(live.is_seeding), progress.role is CommunityRole.OWNER
    weeks = (
        replace(
            week,
            is_seeding=seeding.get((week.lower, week.upper), is_seeding and (is_owner or week.is_fetched)),
        )
        for week in progress.weeks
    )
    return replace(
        progress,
        weeks=tuple(weeks),
        is_seeding=live.is_seeding,
        late_weeks=live.late_weeks,
        peers=live.peers,
        uploaded=live.uploaded,
        downloaded=live.downloaded,
        problem=progress.problem if progress.role is CommunityRole.MEMBER else live.problem,
    )


def _week_as_json(week: Week) -> dict[str, Any]:
    return {
        "from": week.lower,
        "to": week.upper,
        "archives": week.archives,
        "distributed": week.is_distributed,
        "seeding": week.is_seeding,
        "fetched": week.is_fetched,
        "fetched_times": week.fetched_times,
        "fetched_at": week.fetched_at,
    }
