"""The arguments of commands that ask another mailserver: for history, for message ids, for envelopes by id."""

import argparse
from pathlib import Path

from mailserver.app.config import Config
from mailserver.client.id_client import IdClient
from mailserver.client.mail_client import MailClient
from mailserver.codec.keys import Enode, PrivateKey
from mailserver.commands.arguments import (
    checked,
    read_pow,
    read_public_key,
    read_text,
    read_time,
    read_topic,
)
from mailserver.commands.printer import FORMATS
from mailserver.data_dir.folder import read_private_key
from mailserver.errors import ConfigError
from mailserver.mail.request import OPEN_UPPER_AHEAD_S
from mailserver.waku.bloom import FULL_INTEREST, Interest
from mailserver.waku.payload import key_from_password

DEFAULT_HISTORY_S = 24 * 3600
"""How far back is asked without --from: a day, as deployed clients do."""

NODE = "node"
"""The value of `--seal-to` that means the public key in the enode URL."""


def add_sealing(parser: argparse.ArgumentParser) -> None:
    """Take how to prove that we may ask: a password or a public key, and the proof of work."""
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


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Take topics, and a range of time."""
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


def add_envelope_output(parser: argparse.ArgumentParser) -> None:
    """Take how to print envelopes, and what opens their payloads."""
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


def range_of(arguments: argparse.Namespace, now: int) -> tuple[int, int | None]:
    """From which second to which to ask; None: until now.

    Raises:
        ConfigError: --from is after --to.
    """
    is_open = arguments.to_time is None
    end = now if is_open else arguments.to_time
    lower = max(end - DEFAULT_HISTORY_S, 0) if arguments.from_time is None else arguments.from_time
    if lower > end + (OPEN_UPPER_AHEAD_S if is_open else 0):
        raise ConfigError(f"--from {lower} is after --to {end}{' (now)' if is_open else ''}")
    return lower, None if is_open else end


def interest_of(arguments: argparse.Namespace) -> Interest:
    """The topics to ask for, or all."""
    topics = frozenset(topic for _, topic in arguments.topic)
    return Interest(topics=topics) if topics else FULL_INTEREST


def sealing_key_of(arguments: argparse.Namespace) -> bytes:
    """The symmetric or public key to seal the request with."""
    enode: Enode = arguments.enode
    if arguments.seal_to is None:
        return key_from_password(arguments.password)
    return arguments.seal_to or enode.node_id


def opening_key_of(arguments: argparse.Namespace) -> bytes | PrivateKey | None:
    """The key that opens payloads; None if none was given."""
    if arguments.open_with is not None:
        return read_private_key(arguments.open_with)
    return None if arguments.sym_key_password is None else key_from_password(arguments.sym_key_password)


async def open_ids(client: MailClient, arguments: argparse.Namespace) -> IdClient:
    """Ask for access to message ids.

    Raises:
        NoMessageIds, QuestionRefused, NoAnswer, ConnectionLost, TooMuchWork: as `IdClient.open`.
    """
    ids = IdClient(client)
    min_pow = client.settings.pow_requirement if arguments.pow is None else arguments.pow
    await ids.open(sealing_key_of(arguments), min_pow=min_pow)
    return ids


def _read_recipient(text: str) -> bytes:
    """A public key; empty for NODE."""
    return b"" if text == NODE else read_public_key(text)
