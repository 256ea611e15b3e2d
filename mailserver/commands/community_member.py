"""`waku-mailserver community join|leave|fetch`: the communities that we are members of."""

import argparse
import json
import time
from collections.abc import Callable

import uvloop

from mailserver.app.communities_config import COMMUNITIES
from mailserver.app.interpreter import prepare_interpreter
from mailserver.app.logs import set_up_logging
from mailserver.codec.keys import Enode
from mailserver.commands.arguments import checked, read_text, read_time
from mailserver.commands.output import complain, counted
from mailserver.commands.settings import add_settings, settings_of
from mailserver.commands.terminal import progress_bar
from mailserver.communities.channels import id_text, parse_id
from mailserver.communities.choosing import All, Between, Choice, Latest
from mailserver.communities.formats import PIECE_BYTES, TimeRange
from mailserver.community.member.joined import (
    MAX_CHANNELS,
    MAX_MAILSERVERS,
    CommunityBusy,
    Joined,
    membership,
)
from mailserver.community.member.leaving import finish_leaving, join, leave
from mailserver.community.status import read_status, status_as_json
from mailserver.errors import ConfigError
from mailserver.waku.envelope import MAX_U32

_FETCH_SETTINGS = {
    "data_dir",
    "network_topic",
    "password",
    "torrent_listen",
    "torrent_upload",
    "torrent_download",
    "torrent_connections",
    "trackers",
    "link_trackers",
    "torrent_peers",
    "dht",
    "local_discovery",
    "port_mapping",
    "utp",
    "metadata_timeout_s",
    "stall_timeout_s",
}


def add_community(parser: argparse.ArgumentParser, *, may_be_all: bool = False) -> None:
    """Take the community."""
    parser.add_argument(
        "community",
        metavar="ID",
        type=checked(parse_id),
        nargs="?" if may_be_all else None,
        help="its id: 0x and 66 hex digits" + (" (default: all)" if may_be_all else ""),
    )


def _add_join(parser: argparse.ArgumentParser) -> None:
    add_community(parser)
    parser.add_argument(
        "--channel",
        action="append",
        default=[],
        type=read_text,
        metavar="CHAT_ID",
        help="a channel whose messages are opened, and asked for from mailservers, too; repeatable. In Status, the "
        "community's id and the channel's, joined",
    )
    parser.add_argument(
        "--mailserver",
        action="append",
        default=[],
        type=checked(Enode.parse),
        metavar="ENODE",
        help="a mailserver to ask and to listen to; repeatable (default: the one of the data directory)",
    )
    parser.add_argument(
        "--latest", action="store_true", help="fetch only the history archives of the latest range (default: all)"
    )
    add_times(parser, "fetch only the history archives of a time")
    parser.add_argument("--json", action="store_true", help="print what was said as one JSON object, as `status` does")
    add_settings(parser, only={"data_dir"}, sources=COMMUNITIES)
    parser.set_defaults(command=_join)


def add_times(parser: argparse.ArgumentParser, what: str) -> None:
    """Take a time."""
    parser.add_argument(
        "--from", dest="from_time", type=read_time, metavar="TIME", help=f"{what} from then on: Unix seconds, ISO 8601"
    )
    parser.add_argument(
        "--to", dest="to_time", type=read_time, metavar="TIME", help="until just before then (default: no end)"
    )


def _join(arguments: argparse.Namespace) -> int:
    data_dir = settings_of(arguments, COMMUNITIES).data_dir
    for what, given, most in (
        ("channel", arguments.channel, MAX_CHANNELS),
        ("mailserver", arguments.mailserver, MAX_MAILSERVERS),
    ):
        if len(given) > most:
            raise ConfigError(f"--{what}: there may be {most} at most")
    channels, mailservers = tuple(dict.fromkeys(arguments.channel)), tuple(dict.fromkeys(arguments.mailserver))
    joined = Joined(arguments.community, channels, mailservers, _choice(arguments))
    join(membership(data_dir, joined.community), joined)
    if arguments.json:
        (status,) = read_status(data_dir, joined.community, time.time())
        print(json.dumps(status_as_json(status)))
    return 0


def _choice(arguments: argparse.Namespace) -> Choice:
    time_range = time_range_of(arguments)
    if time_range is None:
        return Latest() if arguments.latest else All()
    if arguments.latest:
        raise ConfigError("--latest and --from or --to cannot be used together")
    return Between(time_range)


def time_range_of(arguments: argparse.Namespace) -> TimeRange | None:
    """The time between --from and --to; None if neither was given."""
    if arguments.from_time is None and arguments.to_time is None:
        return None
    lower = arguments.from_time or 0
    upper = MAX_U32 if arguments.to_time is None else arguments.to_time
    if lower >= upper:
        raise ConfigError(f"--from {lower} is not before --to {upper}")
    return TimeRange(lower, upper)


def _add_leave(parser: argparse.ArgumentParser) -> None:
    add_community(parser)
    parser.add_argument(
        "--delete", action="store_true", help="delete its history, too; also that of a community that was left before"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object: whether all is done already")
    add_settings(parser, only={"data_dir"}, sources=COMMUNITIES)
    parser.set_defaults(command=_leave)


def _leave(arguments: argparse.Namespace) -> int:
    folder = membership(settings_of(arguments, COMMUNITIES).data_dir, arguments.community)
    leave(folder, delete=arguments.delete)
    busy = ""
    try:
        finish_leaving(folder)
    except CommunityBusy as error:
        busy = str(error)
    if arguments.json:
        print(json.dumps({"id": id_text(folder.community), "deleted": arguments.delete, "done": not busy}))
    elif busy:
        print(f"left; {busy}: `community serve` removes its files within seconds, or when that has ended")
    return 0


def _add_fetch(parser: argparse.ArgumentParser) -> None:
    add_community(parser)
    parser.add_argument(
        "--magnet",
        type=read_text,
        metavar="LINK",
        help="fetch this magnet link, whoever gave it to you, and ask no mailserver",
    )
    parser.add_argument("--json", action="store_true", help="print what came as one JSON object")
    add_settings(parser, only=_FETCH_SETTINGS, sources=COMMUNITIES)
    parser.set_defaults(command=_fetch)


def _fetch(arguments: argparse.Namespace) -> int:
    """Fetch what is missing; 1 if something that came cannot be used."""
    from mailserver.app.community_members import fetch_community  # noqa: PLC0415 - others need none of it

    config = settings_of(arguments, COMMUNITIES)
    folder = membership(config.data_dir, arguments.community)
    set_up_logging("error")
    prepare_interpreter()
    with progress_bar(counts_bytes=True) as bar:
        fetched, failed = uvloop.run(
            fetch_community(
                config,
                folder,
                arguments.magnet,
                lambda step, done, total: bar(step, done * PIECE_BYTES, total and total * PIECE_BYTES),
            )
        )
    for problem in failed:
        complain(f"mailserver {problem}")
    if arguments.json:
        print(
            json.dumps(
                {
                    "downloaded": fetched.downloaded,
                    "imported": fetched.imported,
                    "messages": fetched.messages,
                    "refused": fetched.refused,
                }
            )
        )
    else:
        refused = f", {fetched.refused} of them cannot be used" if fetched.refused else ""
        print(
            f"{counted(fetched.downloaded, 'history archive')} downloaded{refused}; "
            f"{counted(fetched.imported, 'history archive')} imported with {counted(fetched.messages, 'message')}"
        )
    return 1 if fetched.refused else 0


COMMANDS: tuple[tuple[str, Callable[[argparse.ArgumentParser], None], str, str], ...] = (
    (
        "join",
        _add_join,
        "become a member of a community, or change what is fetched",
        (
            "Become a member of a community: `community serve` follows it from now on, `community fetch` fetches its "
            "history once. To join again changes what was said before."
        ),
    ),
    (
        "leave",
        _add_leave,
        "be no member of a community any more",
        (
            "Be no member of a community any more: nothing of it is fetched or seeded, and its torrent's files are "
            "removed. Its history stays, and `community messages` prints it, unless --delete is given."
        ),
    ),
    (
        "fetch",
        _add_fetch,
        "fetch the history of a community now",
        (
            "Ask mailservers for the magnet links of a community, and fetch what is missing of its history. Not while "
            "`community serve` runs, which does the same. Exit code 1 if not all came, or something cannot be used."
        ),
    ),
)
"""See `community.COMMANDS`."""
