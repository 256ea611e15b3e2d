"""`waku-mailserver community status`: how far the histories of our communities and of those that were joined are.

What is on disk is read from there. What `community serve` does at this moment, it says in a record.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mailserver.app.communities_config import COMMUNITIES
from mailserver.commands.community_member import add_community
from mailserver.commands.settings import add_settings, settings_of
from mailserver.commands.terminal import print_table
from mailserver.communities.channels import CommunityId
from mailserver.communities.progress import CommunityProgress, Role, Week
from mailserver.community.member.history import read_overview
from mailserver.community.member.joined import Joined, membership, memberships
from mailserver.community.member.progress import joined_progress
from mailserver.community.member.records import KnownArchive, Overview, State
from mailserver.community.owner.announcing import read_announced
from mailserver.community.owner.appending import read_published_index
from mailserver.community.owner.folders import COMMUNITIES_FOLDER, CommunityFolder, folder_of, owned
from mailserver.community.owner.progress import owned_progress
from mailserver.community.owner.record import CommunityError
from mailserver.errors import DecodeError
from mailserver.handoff.communities import read_served
from mailserver.ids.envelopes import NS
from mailserver.torrents.statistics import TorrentTraffic
from mailserver.units import size_text, span_text

_NO_TRAFFIC = TorrentTraffic()


@dataclass(frozen=True, slots=True)
class _Shown:
    """A community, as far as it is known. `name`: what its owner calls it; `joined`: what a member has said.

    `overview`: None if nothing was fetched yet. `is_served`: whether `community serve` works for it.
    """

    progress: CommunityProgress
    is_served: bool
    name: str | None = None
    joined: Joined | None = None
    overview: Overview | None = None


def _add_status(parser: argparse.ArgumentParser) -> None:
    add_community(parser, may_be_all=True)
    parser.add_argument("--json", action="store_true", help="print one JSON object for each community, one a line")
    add_settings(parser, only={"data_dir"}, sources=COMMUNITIES)
    parser.set_defaults(command=_status)


def _status(arguments: argparse.Namespace) -> int:
    shown = _read(settings_of(arguments, COMMUNITIES).data_dir, arguments.community)
    if arguments.json:
        for each in shown:
            print(json.dumps(_as_json(each)))
    elif arguments.community is not None:
        _print_one(*shown)
    elif shown:
        titles = ("COMMUNITY", "ROLE", "ARCHIVES", "MESSAGES", "UNTIL", "LINK", "SEEDING", "PEERS", "PROBLEM")
        print_table(titles, list(map(_row, shown)))
    return 0


def _read(data_dir: Path, community: CommunityId | None) -> list[_Shown]:
    """What there is of one community, or of all."""
    communities = data_dir / COMMUNITIES_FOLDER
    record = read_served(communities)
    current = record.communities if record is not None and record.is_current(time.time()) else ()
    served = {(each.id, each.role): each for each in current}
    if community is None:
        folders, joined = [*owned(communities)], memberships(data_dir)
    elif (folder := folder_of(communities, community)).is_owned:
        folders, joined = [folder], []
    else:
        folders, joined = [], [membership(data_dir, community)]
    shown = []
    for folder in folders:
        progress = _owned(folder)
        live = served.get((progress.id, Role.OWNER))
        shown.append(_Shown(_with_live(progress, live), live is not None, name=folder.read().name))
    for member in joined:
        said = member.read()
        overview = read_overview(member.history) if member.history.exists() else None
        progress = joined_progress(
            member.community,
            () if overview is None else overview.archives,
            link=None if overview is None else overview.link,
            is_offered=False,
            traffic=_NO_TRAFFIC,
            problem="" if overview is None else overview.problem or "",
        )
        live = served.get((progress.id, Role.MEMBER))
        shown.append(_Shown(_with_live(progress, live), live is not None, joined=said, overview=overview))
    return shown


def _owned(folder: CommunityFolder) -> CommunityProgress:
    try:
        index = read_published_index(folder)
    except OSError as error:
        raise CommunityError(f"cannot read {folder.index}: {error.strerror or error}") from error
    except DecodeError as error:
        raise CommunityError(f"{folder.index} is damaged: {error}") from error
    return owned_progress(
        folder,
        () if index is None else index.entries,
        seeded_bytes=0,
        announced=read_announced(folder.announced),
        is_on=folder.read().is_enabled,
        late_weeks=None,
        traffic=_NO_TRAFFIC,
        problem="",
    )


def _with_live(progress: CommunityProgress, live: CommunityProgress | None) -> CommunityProgress:
    """Add what `community serve` says of it. Its record has the newest weeks: those before are seeded with them."""
    if live is None:
        return progress
    seeding = {(week.lower, week.upper): week.is_seeding for week in live.weeks}
    is_seeding = bool(live.is_seeding)
    weeks = (
        replace(
            week,
            is_seeding=seeding.get((week.lower, week.upper), is_seeding and week.is_fetched is not False),
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
        problem=live.problem or progress.problem,
    )


def _as_json(shown: _Shown) -> dict[str, Any]:
    progress = shown.progress
    said: dict[str, Any] = {"id": progress.id, "role": progress.role.value}
    if shown.joined is None:
        said |= {"name": shown.name, "late_weeks": progress.late_weeks, "announced_at": progress.announced_at}
    else:
        said |= _member_as_json(shown.joined, shown.overview)
    return {
        **said,
        "weeks": [_week_as_json(week) for week in progress.weeks],
        "served": shown.is_served,
        "seeding": bool(progress.is_seeding),
        "peers": progress.peers,
        "uploaded": progress.uploaded,
        "downloaded": progress.downloaded,
        "problem": progress.problem or None,
    }


def _week_as_json(week: Week) -> dict[str, Any]:
    return {
        "from": week.lower,
        "to": week.upper,
        "archives": week.archives,
        "distributed": week.is_distributed,
        "seeding": week.is_seeding,
        "fetched": week.is_fetched,
    }


def _member_as_json(joined: Joined, overview: Overview | None) -> dict[str, Any]:
    record = joined.to_json()
    said: dict[str, Any] = {name: record[name] for name in ("channels", "mailservers", "fetch", "from", "to")}
    if overview is None:
        return {**said, "messages": 0, "unarchived": 0, "archives": [], "link": None}
    link = overview.link
    return {
        **said,
        "messages": overview.messages,
        "unarchived": overview.unarchived,
        "archives": [_archive_as_json(archive) for archive in overview.archives],
        "link": None if link is None else {"clock": link.clock, "uri": link.uri},
    }


def _archive_as_json(archive: KnownArchive) -> dict[str, Any]:
    return {
        "id": archive.entry.id,
        "content": archive.content.hex(),
        "from": archive.time_range.lower,
        "to": archive.time_range.upper,
        "bytes": archive.entry.size,
        "listed": archive.is_listed,
        "state": archive.state.value,
        "messages": archive.messages,
        "refused": archive.refused,
    }


def _row(shown: _Shown) -> tuple[str, ...]:
    progress, overview = shown.progress, shown.overview
    until = progress.newest if overview is None or overview.newest is None else overview.newest // NS
    return (
        progress.id,
        progress.role.value,
        _archives(shown),
        "-" if overview is None else f"{overview.messages:,}",
        "-" if until is None else _minute(until),
        _link(progress),
        "yes" if progress.is_seeding else "no",
        f"{progress.peers:,}",
        progress.problem,
    )


def _print_one(shown: _Shown) -> None:
    progress, overview = shown.progress, shown.overview
    rows = [("community", progress.id), ("role", progress.role.value)]
    if shown.joined is not None:
        rows += [
            ("fetch", str(shown.joined.to_json()["fetch"])),
            ("channels", ", ".join(shown.joined.channels) or "-"),
            ("mailservers", ", ".join(map(str, shown.joined.mailservers)) or "the one of the data directory"),
        ]
    else:
        rows.append(("name", shown.name or ""))
    if shown.joined is not None and overview is None:
        rows.append(("history", "nothing was fetched yet"))
    else:
        rows.append(("archives", _archives(shown)))
    if overview is not None:
        rows.append(("messages", f"{overview.messages:,}, {overview.unarchived:,} of them in no archive yet"))
    if progress.late_weeks:
        rows.append(("weeks without an archive", f"{progress.late_weeks:,}"))
    rows += [("magnet link", _link(progress)), ("BitTorrent", _torrents(shown))]
    if progress.problem:
        rows.append(("problem", progress.problem))
    print_table((), rows)
    if progress.weeks:
        print()
        print_table(
            ("FROM", "TO", "ARCHIVES", "DISTRIBUTED", "SEEDING", "FETCHED"), list(map(_week_row, progress.weeks))
        )
    if overview is not None and overview.archives:
        print()
        titles = ("FROM", "TO", "STATE", "MESSAGES", "SIZE", "PROBLEM")
        print_table(titles, [_archive_row(archive) for archive in overview.archives])


def _torrents(shown: _Shown) -> str:
    progress = shown.progress
    if not shown.is_served:
        return "community serve does not run"
    what = "seeding" if progress.is_seeding else "not seeding"
    traffic = f"{size_text(progress.uploaded)} sent, {size_text(progress.downloaded)} taken"
    return f"{what}, {progress.peers:,} peers, {traffic}"


def _week_row(week: Week) -> tuple[str, ...]:
    yes = {True: "yes", False: "no", None: "-"}
    return (
        _minute(week.lower),
        _minute(week.upper),
        f"{week.archives:,}",
        yes[week.is_distributed],
        yes[week.is_seeding],
        yes[week.is_fetched],
    )


def _archive_row(archive: KnownArchive) -> tuple[str, ...]:
    return (
        _minute(archive.time_range.lower),
        _minute(archive.time_range.upper),
        archive.state.value + ("" if archive.is_listed else ", not listed any more"),
        "-" if archive.messages is None else f"{archive.messages:,}",
        size_text(archive.entry.size),
        archive.refused or "",
    )


def _archives(shown: _Shown) -> str:
    """How many an owner has published, or a member has imported, of how many that are listed."""
    progress = shown.progress
    total = sum(week.archives for week in progress.weeks)
    if progress.role is Role.OWNER:
        return f"{total:,}"
    refused = progress.archives[State.REFUSED.value]
    more = f", {refused:,} refused" if refused else ""
    return f"{progress.archives[State.IMPORTED.value]:,} of {total:,}{more}"


def _link(progress: CommunityProgress) -> str:
    if progress.announced_at is None:
        return "none yet"
    return f"{span_text(max(time.time() - progress.announced_at, 0))} old"


def _minute(second: int) -> str:
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%d %H:%M}"


COMMANDS: tuple[tuple[str, Callable[[argparse.ArgumentParser], None], str, str], ...] = (
    (
        "status",
        _add_status,
        "show how far the history of each community is",
        "Show how far the histories of our communities, and of those that were joined, are, week by week.",
    ),
)
"""See `community.COMMANDS`."""
