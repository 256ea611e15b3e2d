"""`waku-mailserver community status`: how far the histories of our communities and of those that were joined are."""

import argparse
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime

from mailserver.app.communities_config import COMMUNITIES
from mailserver.commands.community_member import add_community
from mailserver.commands.settings import add_settings, settings_of
from mailserver.commands.terminal import print_table
from mailserver.communities.progress import CommunityProgress, CommunityRole, Week
from mailserver.community.member.records import ArchiveState, KnownArchive
from mailserver.community.status import JoinedStatus, OwnedStatus, read_status, status_as_json
from mailserver.ids.envelopes import NS
from mailserver.units import size_text, span_text


def _add_status(parser: argparse.ArgumentParser) -> None:
    add_community(parser, may_be_all=True)
    parser.add_argument("--json", action="store_true", help="print one JSON object for each community, one a line")
    add_settings(parser, only={"data_dir"}, sources=COMMUNITIES)
    parser.set_defaults(command=_status)


def _status(arguments: argparse.Namespace) -> int:
    shown = read_status(settings_of(arguments, COMMUNITIES).data_dir, arguments.community, time.time())
    if arguments.json:
        for each in shown:
            print(json.dumps(status_as_json(each)))
    elif arguments.community is not None:
        _print_one(*shown)
    elif shown:
        titles = ("COMMUNITY", "ROLE", "ARCHIVES", "MESSAGES", "UNTIL", "LINK", "SEEDING", "PEERS", "PROBLEM")
        print_table(titles, list(map(_row, shown)))
    return 0


def _row(shown: OwnedStatus | JoinedStatus) -> tuple[str, ...]:
    progress = shown.progress
    overview = shown.overview if isinstance(shown, JoinedStatus) else None
    until = progress.newest if overview is None or overview.newest is None else overview.newest // NS
    return (
        progress.id,
        progress.role.value,
        _archives(progress),
        "-" if overview is None else f"{overview.messages:,}",
        "-" if until is None else _minute(until),
        _link(progress),
        "yes" if progress.is_seeding else "no",
        f"{progress.peers:,}",
        progress.problem,
    )


def _print_one(shown: OwnedStatus | JoinedStatus) -> None:
    progress = shown.progress
    rows = [("community", progress.id), ("role", progress.role.value)]
    if isinstance(shown, OwnedStatus):
        rows += [("name", shown.name), ("archives", _archives(progress))]
    else:
        rows += _joined_rows(shown)
    if progress.late_weeks:
        rows.append(("weeks without an archive", f"{progress.late_weeks:,}"))
    rows += [("magnet link", _link(progress)), ("BitTorrent", _torrents(shown))]
    if progress.problem:
        rows.append(("problem", progress.problem))
    print_table((), rows)
    if progress.weeks:
        print()
        print_table(
            ("FROM", "TO", "ARCHIVES", "DISTRIBUTED", "SEEDING", "FETCHED", "LAST"),
            list(map(_week_row, progress.weeks)),
        )
    if isinstance(shown, JoinedStatus) and shown.overview is not None and shown.overview.archives:
        print()
        titles = ("FROM", "TO", "STATE", "MESSAGES", "SIZE", "PROBLEM")
        print_table(titles, [_archive_row(archive) for archive in shown.overview.archives])


def _joined_rows(shown: JoinedStatus) -> list[tuple[str, str]]:
    joined, overview = shown.joined, shown.overview
    rows = [
        ("fetch", str(joined.to_json()["fetch"])),
        ("channels", ", ".join(joined.channels) or "-"),
        ("mailservers", ", ".join(map(str, joined.mailservers)) or "the one of the data directory"),
    ]
    if overview is None:
        return [*rows, ("history", "nothing was fetched yet")]
    messages = f"{overview.messages:,}, {overview.unarchived:,} of them in no archive yet"
    return [*rows, ("archives", _archives(shown.progress)), ("messages", messages)]


def _torrents(shown: OwnedStatus | JoinedStatus) -> str:
    progress = shown.progress
    if not shown.is_served:
        return "community serve does not run"
    what = "seeding" if progress.is_seeding else "not seeding"
    traffic = f"{size_text(progress.uploaded)} sent, {size_text(progress.downloaded)} taken"
    return f"{what}, {progress.peers:,} peers, {traffic}"


def _week_row(week: Week) -> tuple[str, ...]:
    yes = {True: "yes", False: "no"}
    often = "" if week.fetched_times is None else f", {week.fetched_times:,} times"
    return (
        _minute(week.lower),
        _minute(week.upper),
        f"{week.archives:,}",
        yes[week.is_distributed],
        yes[week.is_seeding],
        yes[week.is_fetched] + often,
        "-" if week.fetched_at is None else _minute(week.fetched_at),
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


def _archives(progress: CommunityProgress) -> str:
    """How many an owner has published, or a member has imported, of how many that are listed."""
    total = sum(week.archives for week in progress.weeks)
    if progress.role is CommunityRole.OWNER:
        return f"{total:,}"
    refused = progress.archives[ArchiveState.REFUSED.value]
    more = f", {refused:,} refused" if refused else ""
    return f"{progress.archives[ArchiveState.IMPORTED.value]:,} of {total:,}{more}"


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
