"""`waku-mailserver request`: ask any mailserver for history."""

import argparse
from datetime import UTC, datetime

import uvloop

from mailserver.app.client_id import CLIENT_ID
from mailserver.client.mail_client import RequestPowTooLow, connect
from mailserver.commands.arguments import checked, read_cursor, read_limit
from mailserver.commands.asking import (
    add_envelope_output,
    add_sealing,
    add_selection,
    interest_of,
    opening_key_of,
    range_of,
    sealing_key_of,
)
from mailserver.commands.output import complain
from mailserver.commands.printer import Printer
from mailserver.commands.settings import add_node
from mailserver.mail.answer import AnswerCheck
from mailserver.mail.request import UNSEALED_ID, MailRequest


def add(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `request`."""
    add_node(parser)
    add_sealing(parser)
    add_selection(parser)
    parser.add_argument(
        "--limit",
        type=read_limit,
        default=0,
        metavar="N",
        help="maximum number of envelopes per request (default: the limit of the mailserver)",
    )
    parser.add_argument("--all", action="store_true", help="follow the cursors to the end")
    parser.add_argument(
        "--cursor", type=checked(read_cursor), metavar="HEX", help="continue where an earlier answer ended"
    )
    add_envelope_output(parser)
    parser.set_defaults(command=_request)


def _request(arguments: argparse.Namespace) -> int:
    lower, upper = range_of(arguments, int(datetime.now(UTC).timestamp()))
    request = MailRequest(
        UNSEALED_ID,
        lower=lower,
        # 0 means an open end, so --to 0 is sent as 1.
        upper=0 if upper is None else max(upper, 1),
        interest=interest_of(arguments),
        limit=arguments.limit,
        cursor=arguments.cursor,
    )
    key, opening_key, check = sealing_key_of(arguments), opening_key_of(arguments), AnswerCheck()

    async def ask() -> None:
        with Printer(arguments.format, opening_key) as printer:
            async with connect(arguments.enode, CLIENT_ID) as client:
                ask_pages = client.request_all if arguments.all else client.request
                completion = await ask_pages(request, key, printer.show, min_pow=arguments.pow, check=check)
            cursor = completion.cursor
            printer.finish("" if cursor is None else f", more with --cursor {cursor.encode().hex()}")

    try:
        uvloop.run(ask())
    except RequestPowTooLow as error:
        complain(f"{error}: give more with --pow")
        return 1
    finally:
        if check.faults:  # even if the answer was incomplete
            complain(f"the mailserver's answer is not what was asked for: {check}")
    return 1 if check.faults else 0
