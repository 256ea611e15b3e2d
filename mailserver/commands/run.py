"""`waku-mailserver run`: the daemon."""

import argparse
import gc
import sys
from dataclasses import fields

import uvloop

from mailserver.app.config import Config
from mailserver.app.daemon import run_daemon
from mailserver.app.logs import LogFormat, set_up_logging
from mailserver.commands.settings import add_settings, config_of

GC_THRESHOLDS = (5_000, 1, 48)
"""When the daemon's cyclic garbage is collected. A pool full of envelopes is 200,000 objects, none of them garbage,
which take 55 ms to look through: CPython's own 700, 10, 10 did that so often that it took 40 % of the CPU in a flood of
small packets. There is next to no such garbage: some 10 objects of each connection that ended. The middle one is small:
each of its collections looks through all that the first ones have left since. With 5, peers who sent packets and left
had the event loop held up for more than 60 ms 25 times in 40 s; with 1, four times."""

SWITCH_INTERVAL_S = 0.001
"""How long a thread waits for Python's lock before it is handed over. SQLite's threads take it some times for each
statement; with CPython's own 5 ms they waited so long, while the event loop was busy, that a request took half a second
beside hundreds of peers who do not read their answers, and 0.15 s with this."""


def add(parser: argparse.ArgumentParser) -> None:
    """Take the arguments of `run`."""
    parser.epilog = (
        "Each setting is also an environment variable (--min-pow: MAILSERVER_MIN_POW) and a key of the file (min_pow). "
        "Flags go before variables, these before the file. MAILSERVER_CONFIG is the variable of --config."
    )
    add_settings(parser, only={setting.name for setting in fields(Config)})
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> None:
    config = config_of(arguments)
    set_up_logging(config.log_level, LogFormat(config.log_format))
    gc.freeze()  # what has been imported stays: it is never looked through
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    uvloop.run(run_daemon(config, lambda: config_of(arguments)))
