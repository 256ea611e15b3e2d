"""`waku-mailserver run`: the daemon."""

import argparse

import uvloop

from mailserver.app.config import Config
from mailserver.app.daemon import run_daemon
from mailserver.app.interpreter import prepare_interpreter
from mailserver.app.logs import LogFormat, name_worker, set_up_logging
from mailserver.app.workers import Worker, supervise
from mailserver.commands.settings import add_settings, config_of


def add(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `run`."""
    parser.epilog = (
        "Each setting is also an environment variable (--min-pow: MAILSERVER_MIN_POW) and a key of the file (min_pow). "
        "Flags override variables, and variables override the file. MAILSERVER_CONFIG is the variable of --config."
    )
    add_settings(parser)
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    config = config_of(arguments)
    set_up_logging(config.log_level, LogFormat(config.log_format))
    prepare_interpreter()

    def reload() -> Config:
        return config_of(arguments)

    def serve(worker: Worker, config: Config) -> None:
        name_worker(worker.number)
        set_up_logging(config.log_level, LogFormat(config.log_format))
        uvloop.run(run_daemon(config, reload, worker=worker))

    if config.workers > 1:
        return supervise(config, serve, reload)
    uvloop.run(run_daemon(config, reload))
    return 0
