"""`waku-mailserver community serve`: all communities of a data directory, in a process beside the daemon."""

import argparse
from collections.abc import Callable

import uvloop

from mailserver.app.communities_config import COMMUNITIES
from mailserver.app.interpreter import prepare_interpreter
from mailserver.app.logs import LogFormat, set_up_logging
from mailserver.commands.settings import add_settings, settings_of


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Each setting is also an environment variable (--torrent-listen: COMMUNITIES_TORRENT_LISTEN) and a key of the "
        "file (torrent_listen). Flags override variables, and variables override the file. COMMUNITIES_CONFIG is the "
        "variable of --config, MAILSERVER_STORE that of --store."
    )
    add_settings(parser, sources=COMMUNITIES)
    parser.set_defaults(command=_serve)


def _serve(arguments: argparse.Namespace) -> None:
    from mailserver.app.communities import run_communities  # noqa: PLC0415 - other `community` commands need none of it

    config = settings_of(arguments, COMMUNITIES)
    set_up_logging(config.log_level, LogFormat(config.log_format))
    prepare_interpreter()
    uvloop.run(run_communities(config))


COMMANDS: tuple[tuple[str, Callable[[argparse.ArgumentParser], None], str, str], ...] = (
    (
        "serve",
        _add_serve,
        "seed, announce, follow and fetch the histories of all communities",
        (
            "Serve all communities of a data directory: seed and announce those that we own, fetch those that we have "
            "joined. The mailserver runs beside this with --feed-socket. Needs requirements-communities.lock."
        ),
    ),
)
"""See `community.COMMANDS`."""
