"""The property tests, with examples that nobody has drawn before: the gate always draws the same ones.

What breaks a property stands in the log with the arguments; it belongs into the test as an `@example`.
"""

import ast
import re
import subprocess
import sys
import time
from pathlib import Path

from tests.faults.report import Row
from tests.fuzz.runner import HANGS, ROOT, place_of
from tests.properties import Profile

PREFIX = "properties-"

ROUND_TIMEOUT_S = 3600.0
"""For one round of one folder. Longer, and it hangs."""

_PASSING = re.compile(r"^ +- (\d+) passing", re.MULTILINE)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def property_targets(root: Path = ROOT) -> list[str]:
    """A target for each folder whose tests have properties: `properties-store.sqlite` is that of tests/store/sqlite."""
    tests = root / "tests"
    files = [file for file in tests.rglob("test_*.py") if _has_properties(file)]
    return sorted({PREFIX + ".".join(file.parent.relative_to(tests).parts) for file in files})


def try_properties(
    name: str, out: Path, *, seconds: float, seed: int, root: Path = ROOT, profile: Profile = Profile.FRESH
) -> tuple[Row, str | None]:
    """Test the properties of one folder, round after round with the next seed, until one fails or the time is over;
    return figures, and what did not hold, or None.

    Args:
        out: where its folder goes, with the log of each round.
        seconds: no round begins later; the first one always does.
    """
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    files = [str(file.relative_to(root)) for file in _files_of(name, root)]
    until, rounds, runs = time.monotonic() + seconds, 0, 0
    problem = None
    while problem is None and (rounds == 0 or time.monotonic() < until):
        this_seed = seed + rounds
        options = ["-q", "-p", "no:cacheprovider", "-m", "hypothesis", "--hypothesis-show-statistics"]
        options += [f"--hypothesis-profile={profile}", f"--hypothesis-seed={this_seed}"]
        code, text = _run([*options, *files], root)
        (folder / f"log-{this_seed}").write_text(text)
        rounds += 1
        runs += sum(map(int, _PASSING.findall(text)))
        if code:
            failed = " ".join(_FAILED.findall(text)) or f"exit code {code}"
            repeat = f"pytest --hypothesis-profile={profile} --hypothesis-seed={this_seed} {failed}"
            problem = f"{name}: {failed}; the examples are in {place_of(folder, root)}/log-{this_seed}; again: {repeat}"
    return Row(name, {"runs": runs, "rounds": rounds, "seed": seed}), problem


def _files_of(name: str, root: Path) -> list[Path]:
    folder = root.joinpath("tests", *name.removeprefix(PREFIX).split("."))
    return sorted(filter(_has_properties, folder.glob("test_*.py")))


def _has_properties(file: Path) -> bool:
    """Whether pytest finds one in it: what a test makes only while it runs does not count."""
    text = file.read_text(encoding="utf-8")
    return "hypothesis" in text and any(map(_is_property, ast.parse(text).body))  # of most files, nothing is parsed


def _is_property(node: ast.stmt) -> bool:
    """Whether this is a function with examples that are drawn, or a machine of such."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        calls = [decorator for decorator in node.decorator_list if isinstance(decorator, ast.Call)]
        return any(isinstance(call.func, ast.Name) and call.func.id == "given" for call in calls)
    if isinstance(node, ast.ClassDef):
        return any(isinstance(base, ast.Name) and base.id == "RuleBasedStateMachine" for base in node.bases)
    return False


def _run(options: list[str], root: Path) -> tuple[int, str]:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options],
            cwd=root,
            timeout=ROUND_TIMEOUT_S,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    except subprocess.TimeoutExpired as error:
        return HANGS, (error.stdout or b"").decode(errors="replace")
    return done.returncode, done.stdout
