"""`waku-mailserver gateway`: light clients of Waku v2, in a process beside the daemon."""

import argparse

import uvloop

from mailserver.app.gateway_config import GATEWAY
from mailserver.app.interpreter import prepare_interpreter
from mailserver.app.logs import LogFormat, set_up_logging
from mailserver.commands.settings import add_settings, settings_of
from mailserver.errors import StartupError

_EXTRA = "websockets"
"""What only the gateway needs: the other commands work without it."""


def add(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `gateway`."""
    parser.epilog = (
        "Each setting is also an environment variable (--max-clients: GATEWAY_MAX_CLIENTS) and a key of the file "
        "(max_clients). Flags override variables, and variables override the file. GATEWAY_CONFIG is the variable of "
        "--config, MAILSERVER_STORE that of --store."
    )
    add_settings(parser, sources=GATEWAY)
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> None:
    try:
        from mailserver.app.gateway import run_gateway  # noqa: PLC0415 - it imports what may not be installed
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != _EXTRA:
            raise
        raise StartupError(f"{error.name} is not installed: pip install -r requirements-gateway.lock") from error
    config = settings_of(arguments, GATEWAY)
    set_up_logging(config.log_level, LogFormat(config.log_format))
    prepare_interpreter()
    uvloop.run(run_gateway(config))
