"""`waku-mailserver run`: the daemon."""

import argparse

import uvloop

from mailserver.app.daemon import run_daemon
from mailserver.app.interpreter import prepare_interpreter
from mailserver.app.logs import LogFormat, set_up_logging
from mailserver.commands.settings import add_settings, config_of


def add(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `run`."""
    parser.epilog = (
        "Each setting is also an environment variable (--min-pow: MAILSERVER_MIN_POW) and a key of the file (min_pow). "
        "Flags override variables, and variables override the file. MAILSERVER_CONFIG is the variable of --config."
    )
    add_settings(parser)
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> None:
    config = config_of(arguments)
    set_up_logging(config.log_level, LogFormat(config.log_format))
    prepare_interpreter()
    uvloop.run(run_daemon(config, lambda: config_of(arguments)))
