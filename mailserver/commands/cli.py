"""The command line: `waku-mailserver COMMAND`. Each command is a module beside this one.

Exit codes: 0 success; 1 failure, or something is not as it should be, and stderr says what; 2 wrong usage or settings;
130 interrupted.
"""

import argparse
import gc
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from mailserver import __version__
from mailserver.commands.output import complain, open_standard_streams
from mailserver.errors import ConfigError, MailserverError

COMMANDS: tuple[tuple[str, str, str, str], ...] = (
    ("run", "run", "run the mailserver", ""),
    (
        "gateway",
        "gateway",
        "serve light clients of Waku v2",
        (
            "Serve light clients of Waku v2 (filter, store, lightpush) from the data directory of a mailserver, which "
            "runs beside this with --feed-socket. The addresses to connect to are printed, and written to DIR/gateway."
        ),
    ),
    (
        "community",
        "community",
        "keep communities and their history archives",
        "Keep communities and their history archives, as owner and as member: see docs/operating/communities.md.",
    ),
    (
        "request",
        "request",
        "ask a mailserver for history",
        "Ask any mailserver for history, whether it is this program or a Go one.",
    ),
    (
        "post",
        "post",
        "post an envelope",
        "Seal a payload, post it, and wait until the node confirms it.",
    ),
    (
        "sync",
        "sync",
        "fetch missing envelopes from other mailservers",
        (
            "Fetch the envelopes that the store lacks from other mailservers, whether they are this program or Go "
            "ones. If a mailserver is running on the data directory, it fetches them in the background, and this "
            "command shows its progress."
        ),
    ),
    (
        "id",
        "message_id",
        "print the ids of envelopes, or check them",
        (
            "Print the MUID and the message hash of each envelope, or of each message of Waku v2. With --check, say "
            "what is not as an id says. Exit code 1 if a line cannot be read, or its id is not the right one."
        ),
    ),
    (
        "ids",
        "ids",
        "list the message ids of a mailserver",
        "List the message ids (MUIDs) of any mailserver that answers questions about them: see docs/wakuid.md.",
    ),
    (
        "fetch",
        "fetch",
        "fetch envelopes by message id",
        (
            "Fetch envelopes by their message ids (MUIDs) from any mailserver that answers questions about them, and "
            "check that they are the ones that the ids name. Exit code 1 if one is missing or was changed."
        ),
    ),
    (
        "status",
        "status",
        "show the state of the running mailserver",
        "Show the state of the running mailserver. Exit code 1 if it is not ready or not running.",
    ),
    ("enode", "enode", "print the enode URL of the mailserver", ""),
    ("config", "config", "show the settings in force and where each comes from", ""),
    (
        "doctor",
        "doctor",
        "check whether this machine and these settings are suitable",
        (
            "Check whether this machine and these settings are suitable. Changes nothing; a mailserver may be running. "
            "Exit code 1 if there is a problem."
        ),
    ),
    ("stats", "stats", "show what is in the store; a mailserver may be running", ""),
    (
        "check",
        "check",
        "look for damage in the store; a mailserver may be running",
        "Look for damage in the store. Changes nothing; a mailserver may be running. Exit code 1 if there is damage.",
    ),
    (
        "reindex",
        "reindex",
        "make the message ids of the store anew, for another network topic",
        (
            "Make the message ids of the store anew, so that they belong to --network-topic. No mailserver may be "
            "running. If it is interrupted, the next one goes on."
        ),
    ),
    (
        "migrate",
        "migrate",
        "move the store from a file into a database, or back",
        (
            "Put every envelope of one store into another, as it is, and compare both by their message ids. The store "
            "that is read keeps all it has, and a mailserver may be running on it. If this is interrupted, the next "
            "one goes on. Exit code 1 if something is missing or damaged."
        ),
    ),
    (
        "backup",
        "backup",
        "copy the data directory; a mailserver may be running",
        "Create a data directory that is a copy of this one at this moment. A mailserver may be running.",
    ),
    (
        "salvage",
        "salvage",
        "save what is left of a damaged store",
        (
            "Create a data directory with every envelope that can still be read from a damaged store and is "
            "unchanged. The damaged store is only read. No mailserver may be running."
        ),
    ),
)
"""Name, its module, a short description, and a longer one where there is more to say."""


class CommandParser(argparse.ArgumentParser):
    """The parser of a command, whose module is loaded when the command is used: all together take twice as long to load
    as `run` alone."""

    def __init__(self, *, module: str, **settings: Any) -> None:
        super().__init__(**settings)
        self._module = module

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Have the module say what its arguments are, and read them."""
        _load(f"mailserver.commands.{self._module}").add(self)
        return super().parse_known_args(args, namespace)


def _load(module: str) -> Any:
    """Import a module, and look for no garbage meanwhile or in what it brings: all of that stays. To look through it
    again and again took a tenth of a daemon's start."""
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        gc.freeze()
        gc.enable()


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code."""
    open_standard_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # the terminal may not be able to encode a payload
    try:
        try:
            arguments = _parser().parse_args(argv)
        finally:
            sys.stdout.flush()  # what --help says
        code = int(arguments.command(arguments) or 0)
        sys.stdout.flush()
    except ConfigError as error:
        complain(str(error))
        return 2
    except MailserverError as error:
        complain(str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    except OSError as error:  # errors of all other files are translated, so it is our output that cannot be written
        if not isinstance(error, BrokenPipeError):  # the reader has seen enough, which is no error
            complain(f"cannot write the output: {error.strerror}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="waku-mailserver", description="A mailserver for Waku v1 networks.")
    parser.add_argument("--version", action="version", version=f"waku-mailserver {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=CommandParser)
    for name, module, help_text, description in COMMANDS:
        told = description or f"{help_text[0].upper()}{help_text[1:]}."
        commands.add_parser(name, module=module, help=help_text, description=told)
    return parser
