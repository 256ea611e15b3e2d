"""--record: what a run found goes into docs/evidence/, with the commit that was run. See `docs.evidence`."""

import argparse
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from docs.evidence import KINDS, RECORDS, ROOT, Figure, Record, read_record

MAY_DIFFER = ("docs/evidence", "docs/evidence.md", "docs/soak.md", "docs/soak.png")
"""What runs write, or `make docs` from it: other kinds may have been recorded before this one."""


class NotRecorded(Exception):
    """A run cannot be recorded; says why."""


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Take --record."""
    parser.add_argument(
        "--record",
        action="store_true",
        help="keep the figures in docs/evidence, with the commit; nothing may be uncommitted",
    )


class Recorder:
    """Records one run; made before the run begins."""

    def __init__(self, root: Path = ROOT, folder: Path = RECORDS) -> None:
        """Begin.

        Raises:
            NotRecorded: something is changed, so no commit says what would be run.
        """
        self._root = root
        self._folder = folder
        self._commit = self._clean_commit()

    def begin(self, kind: str) -> "Recording":
        """Begin a part of the run, of this kind."""
        assert kind in KINDS, kind
        return Recording(self, kind)

    def keep(self, record: Record) -> None:
        """Write it.

        Raises:
            NotRecorded: something was changed meanwhile; or a full run is recorded, and this one is not.
        """
        if self._clean_commit() != self._commit:
            raise NotRecorded("another commit was checked out while it ran")
        path = self._folder / f"{record.kind}.json"
        if not record.is_full and path.exists() and read_record(path).is_full:
            raise NotRecorded(f"{path.name} has a full run, which a shorter one does not replace")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8")

    @property
    def commit(self) -> str:
        """What is run."""
        return self._commit

    def _clean_commit(self) -> str:
        exclude = [f":(exclude){path}" for path in MAY_DIFFER]
        changed = self._git("status", "--porcelain", "--untracked-files=all", "--", ".", *exclude)
        if changed:
            raise NotRecorded(f"to record a run, commit first: {len(changed.splitlines())} files are changed or new")
        return self._git("rev-parse", "HEAD").strip()

    def _git(self, *arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=self._root, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotRecorded(f"git {arguments[0]}: {done.stderr.strip()}")
        return done.stdout


class Recording:
    """One part of a run, from its begin."""

    def __init__(self, recorder: Recorder, kind: str) -> None:
        self._recorder = recorder
        self._kind = kind
        self._began = time.monotonic()
        self._load = os.getloadavg()[0]

    def end(
        self,
        *,
        seed: int,
        arguments: Sequence[str],
        is_full: bool,
        rows: Mapping[str, Mapping[str, Figure]],
        broken: Sequence[str],
    ) -> None:
        """Keep what was found.

        Raises:
            NotRecorded: see `Recorder.keep`.
        """
        machine: dict[str, Figure] = {
            "cores": os.cpu_count() or 1,
            "python": platform.python_version(),
            "load_before": round(self._load, 1),
            "load_after": round(os.getloadavg()[0], 1),
        }
        self._recorder.keep(
            Record(
                kind=self._kind,
                date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
                commit=self._recorder.commit,
                seed=seed,
                arguments=tuple(arguments),
                is_full=is_full,
                seconds=round(time.monotonic() - self._began, 1),
                machine=machine,
                rows={name: {key: _rounded(value) for key, value in row.items()} for name, row in rows.items()},
                broken=tuple(broken),
            )
        )


def recorder_for(parser: argparse.ArgumentParser, given: argparse.Namespace) -> Recorder | None:
    """The recorder, if --record was given; else None. What cannot be recorded is not run: it is a usage error."""
    if not given.record:
        return None
    try:
        return Recorder()
    except NotRecorded as error:
        parser.error(str(error))


def new_seed() -> int:
    """A seed for whoever was given none."""
    return random.SystemRandom().randrange(1, 2**31)


def shown(arguments: Sequence[str] | None) -> list[str]:
    """What was given on the command line, without --record, --seed and where figures go."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    kept: list[str] = []
    while given:
        argument = given.pop(0)
        if argument in {"--seed", "--json", "--out", "--report", "--data-dir"}:
            given = given[1:]
        elif argument != "--record":
            kept.append(argument)
    return kept


def _rounded(value: Figure) -> Figure:
    return round(value, 3) if isinstance(value, float) else value
