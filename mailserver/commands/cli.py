"""The command line: `waku-mailserver COMMAND`. What a command does is in `mailserver.commands`.

Exit codes: 0 done; 1 it could not be done, or what was found is not as it should be, and stderr says what; 2 wrong
usage or settings; 130 interrupted.
"""

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence

from mailserver import __version__
from mailserver.commands import backup, check, config, doctor, enode, post, request, run, salvage, stats, status, sync
from mailserver.commands.output import complain
from mailserver.errors import ConfigError, MailserverError

COMMANDS: tuple[tuple[str, Callable[[argparse.ArgumentParser], None], str, str], ...] = (
    ("run", run.add, "run the mailserver", ""),
    ("request", request.add, "ask a mailserver for history", "Ask any mailserver, ours or a Go one, for history."),
    (
        "post",
        post.add,
        "post an envelope",
        "Seal a payload, post it, and wait until the node confirms it.",
    ),
    (
        "sync",
        sync.add,
        "fetch what a store lacks from other mailservers",
        (
            "Fetch the envelopes that a store lacks from other mailservers, ours or Go ones. "
            "A running mailserver does it itself, in the background; this command then shows how far it is."
        ),
    ),
    (
        "status",
        status.add,
        "say how the running daemon is",
        "Say how the running daemon is. Exit code 1 if it is not ready, or does not run.",
    ),
    ("enode", enode.add, "print the enode URL of a data directory's mailserver", ""),
    ("config", config.add, "say which settings are in force, and where each comes from", ""),
    (
        "doctor",
        doctor.add,
        "look whether this machine and these settings will do",
        (
            "Look whether this machine and these settings will do, also beside a running daemon. Nothing is changed; "
            "exit code 1 if there is a problem."
        ),
    ),
    ("stats", stats.add, "say what is in the store, also beside a running daemon", ""),
    (
        "check",
        check.add,
        "look for damage in the store, also beside a running daemon",
        "Look for damage in the store, also beside a running daemon. Nothing is changed; exit code 1 if there is any.",
    ),
    (
        "backup",
        backup.add,
        "copy the data directory, also beside a running daemon",
        "Make a folder that is a data directory, with what is in the present one at this moment, also beside a daemon.",
    ),
    (
        "salvage",
        salvage.add,
        "save what is left of a damaged store",
        (
            "Make a folder that is a data directory, with every envelope of the present one that can still be read and "
            "is what was stored. No daemon may run; the damaged store is only read."
        ),
    ),
)
"""Name, what adds its arguments, a few words, and the same in sentences where that says more."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code."""
    arguments = _parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # payloads may hold what the terminal's encoding does not
    try:
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
    except OSError as error:  # whatever else has a file is translated: it is our output that cannot be written
        if not isinstance(error, BrokenPipeError):  # whoever read it has seen enough: not worth a word
            complain(f"cannot write the output: {error.strerror}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="waku-mailserver", description="A mailserver for Waku v1 networks.")
    parser.add_argument("--version", action="version", version=f"waku-mailserver {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, add, help_text, description in COMMANDS:
        add(commands.add_parser(name, help=help_text, description=description or f"{help_text.capitalize()}."))
    return parser
