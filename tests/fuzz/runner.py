"""Runs targets, each in a process of its own, reads what libFuzzer says at the end, and folds what was found into the
corpora of the repository.
"""

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from tests.faults.report import Figure, Row
from tests.fuzz.corpora import CORPORA, read_corpus, unpack, write_corpus
from tests.fuzz.target import load

ROOT = Path(__file__).parent.parent.parent

INPUT_TIMEOUT_S = 60
"""An input that takes so long hangs; `target.MAX_CPU_S` is what it may take."""

RSS_LIMIT_MB = 1024
"""What a process may take after any number of inputs: what leaks shows here. Most take 100."""

MAX_RUN_S = 600
"""How long a given number of runs may take."""

GRACE_S = 600.0
"""For a process to start, read its corpus and end, on a busy machine. Longer, and it hangs."""

HANGS = 124
"""The exit code of a process that was ended because it did not, as timeout(1) has it."""

ENGINE = (sys.executable, "-m", "tests.fuzz.engine")

_DONE = re.compile(r"^#\d+\t.*?cov: (\d+) ft: (\d+) corp: (\d+)/(\S+)", re.MULTILINE)
_RUNS = re.compile(r"^stat::number_of_executed_units:\s+(\d+)", re.MULTILINE)
_ERROR = re.compile(r"^ === Uncaught Python exception: ===\n(.*)$|^(==\d+== ?ERROR: .*)$", re.MULTILINE)


class Engine(Protocol):
    """Runs a target, given its name and the options of libFuzzer; returns the exit code and what libFuzzer said."""

    def __call__(self, arguments: Sequence[str], *, timeout_s: float | None) -> tuple[int, str]: ...


def fuzz(
    name: str,
    out: Path,
    *,
    seconds: int = 0,
    runs: int = 0,
    seed: int = 1,
    root: Path = ROOT,
    engine: Engine | None = None,
) -> tuple[Row, str | None]:
    """Fuzz one target; return its figures, and what it found that should not be, or None.

    Args:
        out: where its folder goes: `log`, `found/` with inputs worth keeping, and what broke it.
        seconds, runs: when to end; 0 is never. What is in the corpus is run in addition.
        root: where the code is.
        engine: what runs it; by default a process of its own.
    """
    folder = out / name
    found, seeds = folder / "found", folder / "seeds"
    write_seeds(name, seeds)
    found.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as corpus:
        unpack(read_corpus(name, root / CORPORA.relative_to(ROOT)), Path(corpus))
        folders = [str(found), str(seeds), corpus]
        runs += sum(len(list(Path(each).iterdir())) for each in folders) if runs else 0
        options = [
            f"-seed={seed}",
            f"-timeout={INPUT_TIMEOUT_S}",
            f"-rss_limit_mb={RSS_LIMIT_MB}",
            "-reload=0",  # nobody else writes there, and when it looks depends on the time
            "-print_final_stats=1",
            f"-artifact_prefix={folder}/",
            *([f"-max_total_time={seconds}"] if seconds else []),
            *([f"-runs={runs}"] if runs else []),
        ]
        engine = engine or partial(_run, root=root)
        code, text = engine([name, *options, *folders], timeout_s=(seconds or MAX_RUN_S) + GRACE_S)
    (folder / "log").write_text(text)
    row = Row(name, _figures(text, seed))
    if code == 0:
        return row, None
    errors = [python or other for python, other in _ERROR.findall(text)]
    what = errors[0] if errors else f"exit code {code}"
    return row, f"{name}: {what}; the input is in {place_of(folder, root)}, seed {seed}"


def merge(name: str, out: Path) -> Row:
    """Put what has been found into the repository: the fewest inputs that reach all that is reached."""
    seeds, found = out / name / "seeds", out / name / "found"
    write_seeds(name, seeds)
    with tempfile.TemporaryDirectory() as kept, tempfile.TemporaryDirectory() as corpus:
        unpack(read_corpus(name), Path(corpus))
        sources = [corpus, str(seeds), *([str(found)] if found.is_dir() else [])]
        code, text = _run([name, "-set_cover_merge=1", kept, *sources], root=ROOT, timeout_s=None)
        if code != 0:
            raise RuntimeError(f"{name}: not merged:\n{text[-2000:]}")
        inputs = [file.read_bytes() for file in Path(kept).iterdir()]
    if not inputs:
        raise RuntimeError(f"{name}: nothing is left:\n{text[-2000:]}")
    write_corpus(name, inputs)
    return Row(name, {"inputs": len(inputs), "bytes": sum(map(len, inputs))})


def write_seeds(name: str, folder: Path) -> None:
    """Write a target's seeds into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    unpack(load(name).seeds(), folder)


def _run(arguments: Sequence[str], *, root: Path, timeout_s: float | None) -> tuple[int, str]:
    with tempfile.NamedTemporaryFile() as output:
        try:
            done = subprocess.run(
                [*ENGINE, *arguments],
                cwd=root,
                env=_environment(),
                timeout=timeout_s,
                check=False,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            code = done.returncode
        except subprocess.TimeoutExpired:
            code = HANGS
        return code, Path(output.name).read_text(errors="replace")


class Forks:
    """An engine that runs targets in forks of one process: to start takes longer than most of their short runs."""

    def __init__(self, targets: Sequence[str], root: Path = ROOT) -> None:
        """Load these targets, from the code that is there."""
        self._process = subprocess.Popen(
            [*ENGINE, "--forks", *targets],
            cwd=root,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __call__(self, arguments: Sequence[str], *, timeout_s: float | None) -> tuple[int, str]:
        """Run a target, given its name and the options of libFuzzer; return the exit code and what it said."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with tempfile.NamedTemporaryFile() as output:
            process.stdin.write(json.dumps({"arguments": arguments, "output": output.name}) + "\n")
            process.stdin.flush()
            if not select.select([process.stdout], [], [], timeout_s)[0]:
                os.killpg(process.pid, signal.SIGKILL)
                return HANGS, Path(output.name).read_text(errors="replace")
            return int(process.stdout.readline()), Path(output.name).read_text(errors="replace")

    def close(self) -> None:
        """Run no more."""
        self._process.communicate()


def _environment() -> dict[str, str]:
    # The order of sets is a choice, too; what libFuzzer draws depends on its seed alone.
    return {**os.environ, "PYTHONHASHSEED": "0"}


def _figures(text: str, seed: int) -> dict[str, Figure]:
    runs = _RUNS.findall(text)
    last = (_DONE.findall(text) or [("0", "0", "0", "")])[-1]
    edges, features, inputs, _ = last
    figures = {"runs": int(runs[-1]) if runs else 0, "edges": int(edges), "features": int(features)}
    return {**figures, "corpus": int(inputs), "seed": seed}


def place_of(folder: Path, root: Path) -> Path:
    """A folder as it is recorded: below the project, which lies elsewhere on each machine."""
    return folder.relative_to(root) if folder.is_relative_to(root) else folder
