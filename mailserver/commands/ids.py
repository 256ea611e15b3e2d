"""`waku-mailserver ids`: list the message ids of any mailserver that answers questions about them."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import uvloop

from mailserver.app.client_id import CLIENT_ID
from mailserver.client.id_client import WrongAnswer
from mailserver.client.mail_client import MAX_PAGES, connect
from mailserver.commands.arguments import read_bytes, read_limit
from mailserver.commands.asking import add_sealing, add_selection, interest_of, open_ids, range_of
from mailserver.commands.output import counted
from mailserver.commands.settings import add_node
from mailserver.errors import DecodeError
from mailserver.ids.envelopes import read_meta
from mailserver.ids.muid import Muid, metadata_of
from mailserver.mail.request import OPEN_UPPER_AHEAD_S
from mailserver.store.message_ids import MetadataRange
from mailserver.waku.envelope import MAX_U32
from mailserver.wakuid.answers import Done
from mailserver.wakuid.packets import MAX_CURSOR_BYTES, MAX_METADATA_BYTES, Order
from mailserver.wakuid.questions import Query

_FORMATS = ("hex", "json")


def add(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `ids`."""
    add_node(parser)
    add_sealing(parser)
    add_selection(parser)
    metadata = parser.add_mutually_exclusive_group()
    metadata.add_argument(
        "--prefix",
        type=read_bytes(MAX_METADATA_BYTES),
        metavar="HEX",
        help="only ids whose metadata begins like this; of envelopes, it is created in ns(8) ttl(4) nonce(8)",
    )
    metadata.add_argument(
        "--metadata",
        nargs=2,
        type=read_bytes(MAX_METADATA_BYTES),
        metavar=("LOW", "HIGH"),
        help="only ids whose metadata is at or above LOW and below HIGH, in hex",
    )
    parser.add_argument(
        "--arrival", action="store_true", help="in the order of arrival, oldest first (default: newest created first)"
    )
    parser.add_argument(
        "--limit",
        type=read_limit,
        default=0,
        metavar="N",
        help="maximum number of ids per page (default: the limit of the mailserver)",
    )
    parser.add_argument("--all", action="store_true", help="follow the cursors to the end")
    parser.add_argument(
        "--cursor",
        type=read_bytes(MAX_CURSOR_BYTES),
        default=b"",
        metavar="HEX",
        help="continue where an earlier list ended, in the same order",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--format",
        choices=_FORMATS,
        default="hex",
        help="hex: the MUID; json: an object that also says what its metadata says (default: %(default)s)",
    )
    form.add_argument("--json", dest="format", action="store_const", const="json", help="the same as --format json")
    parser.set_defaults(command=_ids)


def _ids(arguments: argparse.Namespace) -> None:
    lower, upper = range_of(arguments, int(time.time()))
    metadata = _metadata(arguments)
    query = Query(
        0,
        "",
        lower,
        min(int(time.time()) + OPEN_UPPER_AHEAD_S, MAX_U32) if upper is None else upper,
        order=Order.AS_ARRIVED if arguments.arrival else Order.NEWEST_FIRST,
        interest=interest_of(arguments),
        low=metadata.low,
        high=metadata.high,
        cursor=arguments.cursor,
        limit=arguments.limit,
    )
    show = _show_json if arguments.format == "json" else _show
    count, end = uvloop.run(_list(arguments, query, show))
    rest = f", more with --cursor {end.cursor.hex()}" if end.cursor and not end.is_all else ""
    later = f", what arrives later with --cursor {end.cursor.hex()}" if end.cursor and end.is_all else ""
    print(f"{counted(count, 'id')}{rest or later}", file=sys.stderr)


async def _list(
    arguments: argparse.Namespace, query: Query, show: Callable[[Sequence[Muid]], None]
) -> tuple[int, Done]:
    """Show a page, or all; return how many ids there were, and the end of the last page."""
    count = 0

    def take(muids: Sequence[Muid]) -> None:
        nonlocal count
        count += len(muids)
        show(muids)

    async with connect(arguments.enode, CLIENT_ID) as client:
        ids = await open_ids(client, arguments)
        for _ in range(MAX_PAGES):
            end = await ids.list_ids(query, take)
            if end.is_all or not arguments.all:
                return count, end
            if end.cursor == query.cursor:
                raise WrongAnswer("its cursor does not advance")
            query = replace(query, cursor=end.cursor)
    raise WrongAnswer(f"it does not end within {MAX_PAGES} pages")


def _metadata(arguments: argparse.Namespace) -> MetadataRange:
    if arguments.prefix is not None:
        return MetadataRange.of_prefix(arguments.prefix)
    if arguments.metadata is not None:
        low, high = arguments.metadata
        return MetadataRange(low, high)
    return MetadataRange()


def _show(muids: Sequence[Muid]) -> None:
    sys.stdout.writelines(f"{name.hex()}\n" for name in muids)


def _show_json(muids: Sequence[Muid]) -> None:
    sys.stdout.writelines(f"{json.dumps(_as_json(name))}\n" for name in muids)


def _as_json(name: Muid) -> dict[str, object]:
    """A MUID, and what its metadata says if it is that of an envelope."""
    shown: dict[str, object] = {"muid": name.hex()}
    try:
        return shown | read_meta(metadata_of(name))._asdict()
    except DecodeError:
        return shown
