"""`python -m tests.crowd [--minutes N] [..]`: light clients come and go, for an hour.

The exit code is 1 if anything was lost, or grew.
"""

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

import uvloop

from tests.crowd.crowd import Settings, run_crowd

QUICK = Settings(minutes=0.2, stored=1000, clients=25, life_s=3.0, topics=12, nuisances=4, seed=7)
"""What --quick, and the test, runs."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run it, print the figures, return the exit code."""
    parser = argparse.ArgumentParser(prog="crowd", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the short form, as the tests run it")
    for each in fields(Settings):
        name = "--" + each.name.replace("_", "-")
        parser.add_argument(name, type=type(each.default), default=each.default, help=f"{each.default} by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples there")
    given = parser.parse_args(argv)
    settings = QUICK if given.quick else Settings(**{each.name: getattr(given, each.name) for each in fields(Settings)})
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no process is left behind
    with tempfile.TemporaryDirectory(prefix="crowd-") as folder:
        result = uvloop.run(run_crowd(settings, Path(folder)))
    print(result.as_text())
    if given.json:
        given.json.write_text(json.dumps([asdict(sample) for sample in result.samples]))
    return 1 if result.broken() else 0


if __name__ == "__main__":
    sys.exit(main())
