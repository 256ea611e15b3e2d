"""`python -m tests.soak [--days N] [..]`: simulates a month; the exit code is 1 if anything grew or was lost.

A run with the default settings is full, whatever the seed.
"""

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.recording import add_argument, new_seed, recorder_for, shown
from tests.soak.month import Result, Settings, Soak
from tests.soak.report import as_text, read_json, record, write_json, write_page
from tests.soak.samples import Sample

QUICK = Settings(days=1.5, envelopes_per_day=3000, phones=12, retention_days=0.4, seed=6)
"""What --quick, and the test, runs."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run it, print the figures, return the exit code."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the short form: a day and a half, with one night")
    parser.add_argument("--days", type=float, default=30.0, help="simulated days")
    parser.add_argument("--envelopes-per-day", type=int, default=20_000)
    parser.add_argument("--phones", type=int, default=60, help="clients that come and go")
    parser.add_argument("--retention-days", type=float, default=7.0)
    parser.add_argument(
        "--seed", type=int, default=None, help="of a run that is to be repeated; each run prints its seed"
    )
    parser.add_argument("--data-dir", type=Path, help="an empty folder; it is kept (default: a temporary one)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument(
        "--report", type=Path, metavar="FOLDER", help="write soak.md and soak.png there, as --record does in docs"
    )
    add_argument(parser)
    parser.add_argument("--read", type=Path, metavar="FILE", help="run nothing: report what --json wrote")
    given = parser.parse_args(argv)
    if given.read and given.record:
        parser.error("--record needs a run, and --read runs nothing")
    recorder = recorder_for(parser, given)
    recording = recorder and recorder.begin("soak")
    result = read_json(given.read) if given.read else _run(given)
    print(as_text(result))
    if recording:
        sizes = ("days", "envelopes_per_day", "phones", "retention_days")
        is_full = not given.quick and all(getattr(given, size) == parser.get_default(size) for size in sizes)
        record(result, recording, shown(argv), is_full=is_full)
    if given.json:
        write_json(result, given.json)
    if given.report:
        write_page(result, given.report)
    return 1 if result.broken else 0


def _run(given: argparse.Namespace) -> Result:
    seed = new_seed() if given.seed is None else given.seed
    settings = Settings(given.days, given.envelopes_per_day, given.phones, given.retention_days, seed)
    settings = QUICK if given.quick else settings
    print(f"seed {settings.seed}", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no daemon is left behind
    with tempfile.TemporaryDirectory(prefix="soak-") as temporary:
        folder = given.data_dir or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        return asyncio.run(Soak(settings, folder, _show).run())


def _show(sample: Sample) -> None:
    print(json.dumps(asdict(sample)), flush=True)


if __name__ == "__main__":
    sys.exit(main())
