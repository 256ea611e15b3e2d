"""`waku-mailserver request`: ask any mailserver for history."""

import argparse
from datetime import UTC, datetime
from pathlib import Path

import uvloop

from mailserver.app.config import Config
from mailserver.app.wiring import CLIENT_ID
from mailserver.client.mail_client import RequestPowTooLow, connect
from mailserver.codec.keys import Enode, PrivateKey
from mailserver.commands.arguments import (
    checked,
    read_cursor,
    read_limit,
    read_pow,
    read_public_key,
    read_text,
    read_time,
    read_topic,
)
from mailserver.commands.output import FORMATS, Printer, complain
from mailserver.commands.settings import add_node
from mailserver.data_dir.folder import read_private_key
from mailserver.errors import ConfigError
from mailserver.mail.answer import AnswerCheck
from mailserver.mail.request import OPEN_UPPER_AHEAD_S, UNSEALED_ID, MailRequest
from mailserver.waku.bloom import FULL_INTEREST, Interest
from mailserver.waku.payload import key_from_password

DEFAULT_HISTORY_S = 24 * 3600
"""How far back `request` asks without --from: a day, as deployed clients do."""

NODE = "node"
"""The value of `--seal-to` that means the public key in the enode URL."""


def add(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `request`."""
    add_node(parser)
    sealing = parser.add_mutually_exclusive_group()
    sealing.add_argument(
        "--password",
        type=read_text,
        default=Config().password,
        help="password of the mailserver (default: %(default)s)",
    )
    sealing.add_argument(
        "--seal-to",
        type=checked(_read_recipient),
        metavar="KEY",
        help=f"seal to the public key of the mailserver instead: hex digits, or {NODE!r} for the one in the URL",
    )
    parser.add_argument(
        "--pow",
        type=read_pow,
        metavar="X",
        help="proof of work of the request (default: what the node announces)",
    )
    parser.add_argument(
        "--topic",
        action="append",
        type=checked(read_topic),
        default=[],
        metavar="NAME_OR_0xHEX",
        help="a topic: its name, or 0x and 8 hex digits; repeatable (default: all topics)",
    )
    parser.add_argument(
        "--from",
        dest="from_time",
        type=read_time,
        metavar="TIME",
        help="oldest creation time: Unix seconds or ISO 8601 (default: 24 h before --to)",
    )
    parser.add_argument(
        "--to",
        dest="to_time",
        type=read_time,
        metavar="TIME",
        help="newest creation time: Unix seconds or ISO 8601 (default: now)",
    )
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
    opening = parser.add_mutually_exclusive_group()
    opening.add_argument(
        "--sym-key-password", type=read_text, metavar="PW", help="open payloads with the key derived from this password"
    )
    opening.add_argument(
        "--open-with",
        type=Path,
        metavar="FILE",
        help="open payloads with the private key in this file, 64 hex digits, which only you may read",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--format", choices=FORMATS, default="table", help="raw: the RLP of each envelope in hex (default: %(default)s)"
    )
    form.add_argument("--json", dest="format", action="store_const", const="json", help="the same as --format json")
    parser.set_defaults(command=_request)


def _read_recipient(text: str) -> bytes:
    """A public key; empty for NODE."""
    return b"" if text == NODE else read_public_key(text)


def _range(arguments: argparse.Namespace, now: int) -> tuple[int, int]:
    """The bounds to send. An upper bound of 0 means an open end, so --to 0 is sent as 1.

    Raises:
        ConfigError: --from is after --to.
    """
    is_open = arguments.to_time is None
    end = now if is_open else arguments.to_time
    lower = max(end - DEFAULT_HISTORY_S, 0) if arguments.from_time is None else arguments.from_time
    if lower > end + (OPEN_UPPER_AHEAD_S if is_open else 0):
        raise ConfigError(f"--from {lower} is after --to {end}{' (now)' if is_open else ''}")
    return lower, 0 if is_open else max(end, 1)


def _sealing_key(arguments: argparse.Namespace) -> bytes:
    """The symmetric or public key to seal the request with."""
    enode: Enode = arguments.enode
    if arguments.seal_to is None:
        return key_from_password(arguments.password)
    return arguments.seal_to or enode.node_id


def _opening_key(arguments: argparse.Namespace) -> bytes | PrivateKey | None:
    """The key that opens payloads; None if none was given."""
    if arguments.open_with is not None:
        return read_private_key(arguments.open_with)
    return None if arguments.sym_key_password is None else key_from_password(arguments.sym_key_password)


def _request(arguments: argparse.Namespace) -> int:
    topics = frozenset(topic for _, topic in arguments.topic)
    lower, upper = _range(arguments, int(datetime.now(UTC).timestamp()))
    request = MailRequest(
        UNSEALED_ID,
        lower=lower,
        upper=upper,
        interest=Interest(topics=topics) if topics else FULL_INTEREST,
        limit=arguments.limit,
        cursor=arguments.cursor,
    )
    key, opening_key, check = _sealing_key(arguments), _opening_key(arguments), AnswerCheck()

    async def ask() -> None:
        with Printer(arguments.format, opening_key) as printer:
            async with connect(arguments.enode, CLIENT_ID) as client:
                ask_pages = client.request_all if arguments.all else client.request
                completion = await ask_pages(request, key, printer.show, min_pow=arguments.pow, check=check)
            printer.finish(completion)

    try:
        uvloop.run(ask())
    except RequestPowTooLow as error:
        complain(f"{error}: give more with --pow")
        return 1
    finally:
        if check.faults:  # even if the answer was incomplete
            complain(f"the mailserver's answer is not what was asked for: {check}")
    return 1 if check.faults else 0
