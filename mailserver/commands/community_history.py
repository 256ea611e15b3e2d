"""`waku-mailserver community status|messages`: what there is of the communities that we are members of."""

import argparse
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from mailserver.app.communities_config import COMMUNITIES
from mailserver.commands.arguments import read_text
from mailserver.commands.community_member import add_community, add_times, time_range_of
from mailserver.commands.output import printable
from mailserver.commands.settings import add_settings, settings_of
from mailserver.commands.terminal import print_table
from mailserver.communities.channels import chat_channel, id_text
from mailserver.communities.formats import TimeRange
from mailserver.community.member.history import read_messages, read_overview
from mailserver.community.member.joined import Joined, MemberFolder, membership, memberships
from mailserver.community.member.reading import OpenedMessage, open_message
from mailserver.community.member.records import HistoryMessage, KnownArchive, Overview, State
from mailserver.ids.envelopes import NS
from mailserver.units import size_text, span_text
from mailserver.waku.envelope import MAX_U32


def _add_status(parser: argparse.ArgumentParser) -> None:
    add_community(parser, may_be_all=True)
    parser.add_argument("--json", action="store_true", help="print one JSON object for each community, one a line")
    add_settings(parser, only={"data_dir"}, sources=COMMUNITIES)
    parser.set_defaults(command=_status)


def _status(arguments: argparse.Namespace) -> int:
    data_dir = settings_of(arguments, COMMUNITIES).data_dir
    folders = memberships(data_dir) if arguments.community is None else [membership(data_dir, arguments.community)]
    known = [
        (folder, folder.read(), read_overview(folder.history) if folder.history.exists() else None)
        for folder in folders
    ]
    if arguments.json:
        for folder, joined, overview in known:
            print(json.dumps(_as_json(folder, joined, overview)))
    elif arguments.community is not None:
        _print_one(*known[0])
    elif known:
        titles = ("COMMUNITY", "FETCH", "ARCHIVES", "MESSAGES", "UNTIL", "LINK", "PROBLEM")
        print_table(titles, [_row(*one) for one in known])
    return 0


def _as_json(folder: MemberFolder, joined: Joined, overview: Overview | None) -> dict[str, Any]:
    record = joined.to_json()
    shown: dict[str, Any] = {
        "id": id_text(folder.community),
        **{name: record[name] for name in ("channels", "mailservers", "fetch", "from", "to")},
    }
    if overview is None:
        return {**shown, "messages": 0, "unarchived": 0, "archives": [], "link": None, "problem": None}
    link = overview.link
    return {
        **shown,
        "messages": overview.messages,
        "unarchived": overview.unarchived,
        "archives": [_archive_as_json(archive) for archive in overview.archives],
        "link": None if link is None else {"clock": link.clock, "uri": link.uri},
        "problem": overview.problem,
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


def _row(folder: MemberFolder, joined: Joined, overview: Overview | None) -> tuple[str, ...]:
    fetch = str(joined.to_json()["fetch"])
    if overview is None:
        return (id_text(folder.community), fetch, "0", "0", "-", "-", "")
    return (
        id_text(folder.community),
        fetch,
        _archives(overview),
        f"{overview.messages:,}",
        "-" if overview.newest is None else _minute(overview.newest // NS),
        _link(overview),
        overview.problem or "",
    )


def _print_one(folder: MemberFolder, joined: Joined, overview: Overview | None) -> None:
    rows = [
        ("community", id_text(folder.community)),
        ("fetch", str(joined.to_json()["fetch"])),
        ("channels", ", ".join(joined.channels) or "-"),
        ("mailservers", ", ".join(map(str, joined.mailservers)) or "the one of the data directory"),
    ]
    if overview is None:
        print_table((), [*rows, ("history", "nothing was fetched yet")])
        return
    rows += [
        ("archives", _archives(overview)),
        ("messages", f"{overview.messages:,}, {overview.unarchived:,} of them in no archive yet"),
        ("magnet link", _link(overview)),
        *((("problem", problem),) if (problem := overview.problem) else ()),
    ]
    print_table((), rows)
    if overview.archives:
        print()
        titles = ("FROM", "TO", "STATE", "MESSAGES", "SIZE", "PROBLEM")
        print_table(titles, [_archive_row(archive) for archive in overview.archives])


def _archive_row(archive: KnownArchive) -> tuple[str, ...]:
    return (
        _minute(archive.time_range.lower),
        _minute(archive.time_range.upper),
        archive.state.value + ("" if archive.is_listed else ", not listed any more"),
        "-" if archive.messages is None else f"{archive.messages:,}",
        size_text(archive.entry.size),
        archive.refused or "",
    )


def _archives(overview: Overview) -> str:
    """How many are imported, of how many that are listed."""
    listed = [archive for archive in overview.archives if archive.is_listed]
    states = [archive.state for archive in listed]
    refused = f", {states.count(State.REFUSED)} refused" if State.REFUSED in states else ""
    return f"{states.count(State.IMPORTED)} of {len(listed)}{refused}"


def _link(overview: Overview) -> str:
    if overview.link is None:
        return "none yet"
    return f"{span_text(max(time.time() - overview.link.clock / 1000, 0))} old"


def _minute(second: int) -> str:
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%d %H:%M}"


def _add_messages(parser: argparse.ArgumentParser) -> None:
    add_community(parser)
    add_times(parser, "print only messages")
    parser.add_argument(
        "--channel",
        action="append",
        default=[],
        type=read_text,
        metavar="CHAT_ID",
        help="print only the messages of this channel, and open them; repeatable (default: all messages)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object for each message, one a line")
    add_settings(parser, only={"data_dir"}, sources=COMMUNITIES)
    parser.set_defaults(command=_messages)


def _messages(arguments: argparse.Namespace) -> int:
    folder = membership(settings_of(arguments, COMMUNITIES).data_dir, arguments.community)
    joined = folder.read()
    asked = {channel.content_topic: channel.key for channel in map(chat_channel, arguments.channel)}
    keys = joined.keys() | {topic: key for topic, key in asked.items() if key is not None}
    time_range = time_range_of(arguments) or TimeRange(0, MAX_U32)
    with read_messages(folder.history, time_range, asked) as messages:
        if not arguments.json:
            print(_TABLE_ROW.format(time="TIME (UTC)", topic="TOPIC", hash="HASH", payload="PAYLOAD"))
        for message in messages:
            opened = open_message(message, keys)
            print(json.dumps(_message_as_json(message, opened)) if arguments.json else _message_row(message, opened))
    return 0


_TABLE_ROW = "{time:<20} {topic:<30} {hash:<18} {payload}"


def _message_row(message: HistoryMessage, opened: OpenedMessage) -> str:
    payload = "-" if opened.payload is None else printable(opened.payload.decode("utf-8", "backslashreplace"))
    return _TABLE_ROW.format(
        time=f"{datetime.fromtimestamp(message.timestamp // NS, UTC):%Y-%m-%d %H:%M:%S}",
        topic=printable(message.content_topic),
        hash=message.hash.hex()[:16] + "..",
        payload=payload,
    ).rstrip()


def _message_as_json(message: HistoryMessage, opened: OpenedMessage) -> dict[str, Any]:
    return {
        "hash": message.hash.hex(),
        "timestamp": message.timestamp,
        "content_topic": message.content_topic,
        "sealed": message.payload.hex() if message.version is not None else None,
        "meta": None if message.meta is None else message.meta.hex(),
        "payload": None if opened.payload is None else opened.payload.decode("utf-8", "backslashreplace"),
        "payload_hex": None if opened.payload is None else opened.payload.hex(),
        "signer": None if opened.signer is None else opened.signer.hex(),
        "type": opened.type,
    }


COMMANDS: tuple[tuple[str, Callable[[argparse.ArgumentParser], None], str, str], ...] = (
    (
        "status",
        _add_status,
        "show what there is of the communities that were joined",
        "Show what there is of the communities that were joined; one may be fetched meanwhile.",
    ),
    (
        "messages",
        _add_messages,
        "print the history of a community",
        "Print the messages of a community, oldest first. Those of channels that were named are opened.",
    ),
)
"""See `community.COMMANDS`."""
