"""`waku-mailserver fetch`: fetch envelopes by their message ids, and check that they are the ones that the ids name."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import uvloop

from mailserver.app.client_id import CLIENT_ID
from mailserver.client.mail_client import connect
from mailserver.commands.arguments import checked, read_muid
from mailserver.commands.asking import add_envelope_output, add_sealing, open_ids, opening_key_of
from mailserver.commands.output import complain, counted
from mailserver.commands.printer import Printer
from mailserver.commands.settings import add_node
from mailserver.errors import ConfigError, DecodeError
from mailserver.ids.envelopes import envelope_muid
from mailserver.ids.muid import Muid
from mailserver.waku.envelope import Envelope

STDIN = "-"

MAX_LINE_CHARS = 1024
"""The longest line that is read; an id has at most 128 hex digits."""

MAX_NAMED = 10
"""How many of the missing ids are named."""


def add(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `fetch`."""
    add_node(parser)
    add_sealing(parser)
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument(
        "--id", action="append", type=checked(read_muid), metavar="HEX", help="a MUID, as `ids` prints it; repeatable"
    )
    asked.add_argument("--ids-file", metavar="FILE", help=f"a file of MUIDs, one a line; {STDIN} is standard input")
    add_envelope_output(parser)
    parser.set_defaults(command=_fetch)


def _fetch(arguments: argparse.Namespace) -> int:
    """Fetch envelopes; 1 if one is missing."""
    muids = [*dict.fromkeys(arguments.id or _read(arguments.ids_file))]
    missing = dict.fromkeys(muids)

    async def ask() -> None:
        with Printer(arguments.format, opening_key_of(arguments)) as printer:
            async with connect(arguments.enode, CLIENT_ID) as client:
                ids = await open_ids(client, arguments)

                def take(envelopes: Sequence[Envelope]) -> None:
                    for envelope in envelopes:
                        missing.pop(envelope_muid(ids.terms.network_topic, envelope))
                    printer.show(envelopes)

                await ids.fetch_all(muids, take)
            printer.finish("")

    uvloop.run(ask())
    if not missing:
        return 0
    named = ", ".join(name.hex() for name in [*missing][:MAX_NAMED])
    others = f" and {len(missing) - MAX_NAMED} more" if len(missing) > MAX_NAMED else ""
    complain(f"the mailserver does not have {counted(len(missing), 'envelope')}: {named}{others}")
    return 1


def _read(path: str) -> list[Muid]:
    """The MUIDs in a file.

    Raises:
        ConfigError: it cannot be read, or a line is no MUID.
    """
    muids = []
    for number, line in enumerate(_lines(path), 1):
        try:
            if text := line.strip():
                muids.append(read_muid(text))
        except DecodeError as error:
            raise ConfigError(f"line {number} of --ids-file: {error}") from error
    return muids


def _lines(path: str) -> Iterator[str]:
    """The lines of a file. One that is too long is cut, and then it is no MUID."""
    try:
        with nullcontext(sys.stdin) if path == STDIN else Path(path).open(encoding="ascii", errors="replace") as file:
            while line := file.readline(MAX_LINE_CHARS):
                yield line
    except OSError as error:
        raise ConfigError(f"cannot read --ids-file {path}: {error.strerror}") from error
