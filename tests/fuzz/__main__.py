"""`python -m tests.fuzz [--seconds N] [--jobs N] [--json FILE] [--record] [--out DIR] [--merge] [TARGET ...]`

Fuzzes the targets, all of them if none is named, and says what was found. The exit code is 1 if any promise was broken.

An input that broke a promise is kept in DIR/TARGET as `crash-..`; `python -m tests.fuzz.engine TARGET FILE` runs it
again. Add it to a test by name: --merge keeps the fewest inputs that reach everything, and may drop it.

A run is full if it fuzzes all targets for FULL_SECONDS or longer.

Targets named `properties-..` are the property tests of a folder, with examples drawn by the seed: see `properties`.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from tests.faults.report import Report, Row, as_json, as_text
from tests.fuzz.properties import property_targets, try_properties
from tests.fuzz.runner import fuzz, merge
from tests.fuzz.target import names
from tests.recording import add_argument, new_seed, recorder_for, shown

FULL_SECONDS = 300
"""With it a run of all targets takes four hours, or two with --jobs 2."""


def main(argv: Sequence[str] | None = None) -> int:
    """Fuzz the targets asked for; print figures; return the exit code."""
    inputs, properties = names(), property_targets()
    known = [*inputs, *properties]
    parser = argparse.ArgumentParser(prog="fuzz", description="Fuzz decoders and the session machine; try properties.")
    parser.add_argument("--seconds", type=int, default=60, metavar="N", help="for each target (default: 60)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="targets at a time (default: 1)")
    parser.add_argument("--seed", type=int, default=new_seed(), help="to repeat a run that has printed it")
    add_argument(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument(
        "--out", type=Path, default=Path(".fuzz"), metavar="DIR", help="for what is found (default: .fuzz)"
    )
    parser.add_argument("--merge", action="store_true", help="do not fuzz: add what is in DIR to tests/fuzz/corpus")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(known)}")
    given = parser.parse_args(argv)
    targets = given.targets or (inputs if given.merge else known)
    for name in targets:
        if name not in known:
            parser.error(f"no target {name}")
        if given.merge and name in properties:
            parser.error(f"{name} keeps no inputs: nothing to merge")
    if given.merge and given.record:
        parser.error("--merge finds nothing that could be recorded")
    recorder = recorder_for(parser, given)
    recording = recorder and recorder.begin("fuzz")
    print(f"seed {given.seed}", flush=True)
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)

    broken: list[str] = []

    def one(name: str) -> Row:
        if given.merge:
            row = merge(name, out)
        else:
            began = time.monotonic()
            work = try_properties if name in properties else fuzz
            row, problem = work(name, out, seconds=given.seconds, seed=given.seed)
            broken.extend([problem] if problem else [])
            seconds = time.monotonic() - began
            row = replace(row, figures={**row.figures, "seconds": seconds, "runs_per_s": _runs(row) / seconds})
        print(as_text(Report(name, (row,))).splitlines()[1], flush=True)
        return row

    with ThreadPoolExecutor(given.jobs) as jobs:
        rows = tuple(jobs.map(one, targets))
    total = Row("total", {"targets": len(rows), "runs": sum(map(_runs, rows)), "broken": len(broken)})
    report = Report("fuzz", (*rows, total), tuple(broken))
    print(as_text(report), flush=True)
    if given.json:
        given.json.write_text(json.dumps(as_json([report]), indent=2) + "\n")
    if recording:
        recording.end(
            seed=given.seed,
            arguments=shown(argv),
            is_full=set(known) <= set(targets) and given.seconds >= FULL_SECONDS,
            rows={row.name: row.figures for row in report.rows},
            broken=broken,
        )
    return 1 if broken else 0


def _runs(row: Row) -> int:
    runs = row.figures.get("runs", 0)
    assert isinstance(runs, int)
    return runs


if __name__ == "__main__":
    sys.exit(main())
