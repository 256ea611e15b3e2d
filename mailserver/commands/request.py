"""`waku-mailserver request`: history, of any mailserver."""

import argparse
from datetime import UTC, datetime

import uvloop

from mailserver.arguments import checked, read_cursor, read_limit, read_text, read_time, read_topic
from mailserver.client import connect
from mailserver.commands.settings import add_node
from mailserver.config import Config
from mailserver.mail.request import MailRequest, RequestId
from mailserver.output import FORMATS, Printer
from mailserver.server import CLIENT_ID
from mailserver.waku.bloom import FULL_INTEREST, Interest
from mailserver.waku.payload import key_from_password

DEFAULT_HISTORY_S = 24 * 3600
"""How far back `request` asks if --from is not given: a day, as deployed clients do."""


def add(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `request`."""
    add_node(parser)
    parser.add_argument(
        "--password", type=read_text, default=Config().password, help="the mailserver's password (default: %(default)s)"
    )
    parser.add_argument(
        "--topic",
        action="append",
        type=checked(read_topic),
        default=[],
        metavar="NAME_OR_0xHEX",
        help="a topic by its name or as 0x and 8 hex digits; repeatable (default: all topics)",
    )
    parser.add_argument(
        "--from",
        dest="from_time",
        type=read_time,
        metavar="TIME",
        help="Unix seconds or ISO 8601 (default: 24 h before --to)",
    )
    parser.add_argument(
        "--to", dest="to_time", type=read_time, metavar="TIME", help="Unix seconds or ISO 8601 (default: now)"
    )
    parser.add_argument(
        "--limit",
        type=read_limit,
        default=0,
        metavar="N",
        help="most envelopes per request (default: the mailserver's own)",
    )
    parser.add_argument("--all", action="store_true", help="follow the cursors to the end")
    parser.add_argument("--cursor", type=checked(read_cursor), metavar="HEX", help="go on where an answer ended")
    parser.add_argument(
        "--sym-key-password", type=read_text, metavar="PW", help="open payloads with the key from this password"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--format", choices=FORMATS, default="table", help="default: %(default)s; raw is hex of RLP, a line each"
    )
    form.add_argument("--json", dest="format", action="store_const", const="json", help="the same as --format json")
    parser.set_defaults(command=_request)


def _request(arguments: argparse.Namespace) -> None:
    topics = frozenset(topic for _, topic in arguments.topic)
    end = arguments.to_time or int(datetime.now(UTC).timestamp())
    request = MailRequest(
        RequestId(bytes(32)),
        lower=max(end - DEFAULT_HISTORY_S, 0) if arguments.from_time is None else arguments.from_time,
        upper=arguments.to_time or 0,
        interest=Interest(topics=topics) if topics else FULL_INTEREST,
        limit=arguments.limit,
        cursor=arguments.cursor,
    )
    opening_key = None if arguments.sym_key_password is None else key_from_password(arguments.sym_key_password)

    async def ask() -> None:
        with Printer(arguments.format, opening_key) as printer:
            async with connect(arguments.enode, CLIENT_ID) as client:
                ask_pages = client.request_all if arguments.all else client.request
                completion = await ask_pages(request, key_from_password(arguments.password), printer.show)
            printer.finish(completion)

    uvloop.run(ask())
