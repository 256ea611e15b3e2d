"""How much of each package the tests must run: `make coverage` measures it, and compares.

A percentage counts statements and branches together. A floor is what was measured, rounded down, and one less where a
branch or two, which a race may leave out, would be below. It holds for all tests together, in the processes that run
them: what daemons, Spark's workers and other processes run counts for nothing.
"""

import json
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from slipcover import merge_coverage

ROOT = Path(__file__).parents[1]
TREES = ("mailserver", "spark_export")
FOLDER = ".coverage"
"""Where tests/measuring.py leaves what was measured, below the repository."""


@dataclass(frozen=True, slots=True, order=True)
class Floor:
    """The least coverage of a package, in percent of statements and branches; and what runs the rest."""

    percent: int
    rest: str


SMALL = "single branches of what is damaged, or comes while something else ends"

FLOORS = {
    "mailserver": Floor(97, "__main__.py, which only runs as a process"),
    "mailserver/api": Floor(99, SMALL),
    "mailserver/app": Floor(
        91,
        "the supervisor of workers, metrics, and an enode file that cannot be written, which daemons have as processes",
    ),
    "mailserver/archive": Floor(96, "reads that end at one of many kinds of damage"),
    "mailserver/catchup": Floor(99, SMALL),
    "mailserver/client": Floor(99, "a race of sockets may leave out a branch"),
    "mailserver/codec": Floor(99, SMALL),
    "mailserver/commands": Floor(
        90, "run, check, backup, salvage and sync as people start them, in processes of their own"
    ),
    "mailserver/communities": Floor(99, SMALL),
    "mailserver/community": Floor(97, SMALL),
    "mailserver/data_dir": Floor(90, "salvage, which the command's tests start as a process"),
    "mailserver/doctor": Floor(97, "calls to the system that a host refuses: adjtimex, names of hosts"),
    "mailserver/feed_socket": Floor(98, SMALL),
    "mailserver/gateway": Floor(98, SMALL),
    "mailserver/handoff": Floor(100, ""),
    "mailserver/history": Floor(98, "what the long property of merged answers reaches, which is not measured"),
    "mailserver/ids": Floor(100, ""),
    "mailserver/leveldb": Floor(100, ""),
    "mailserver/libp2p": Floor(98, SMALL),
    "mailserver/limits": Floor(99, SMALL),
    "mailserver/live": Floor(99, SMALL),
    "mailserver/mail": Floor(100, ""),
    "mailserver/metrics": Floor(100, ""),
    "mailserver/monitoring": Floor(98, "disks and records that cannot be read"),
    "mailserver/moving": Floor(97, SMALL),
    "mailserver/net": Floor(98, "moments of a connection's end that only the system decides"),
    "mailserver/peers": Floor(94, "long packets of named peers, which processes send in tests/integration"),
    "mailserver/reconcile": Floor(99, "the method that each side has of its own"),
    "mailserver/rlpx": Floor(99, SMALL),
    "mailserver/store": Floor(
        97, "errors of the disk amidst a statement, in processes of tests/faults; kinds of damage"
    ),
    "mailserver/torrents": Floor(55, "session, worker and process, which are the torrent process that tests start"),
    "mailserver/upkeep": Floor(96, "a store that is lost amidst a round of pruning"),
    "mailserver/waku": Floor(99, SMALL),
    "mailserver/waku2": Floor(98, SMALL),
    "mailserver/worker_socket": Floor(97, SMALL),
    "mailserver/wakuid": Floor(99, SMALL),
    "spark_export": Floor(93, "the schedule, and what runs in Spark's workers, which are processes of their own"),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """What was run of a package, of how many statements and branches."""

    run: int
    of: int

    @property
    def percent(self) -> float:
        return 100 * self.run / self.of if self.of else 100.0


def packages(root: Path = ROOT) -> set[str]:
    """The packages that need a floor: each room of the mailserver, its modules outside rooms, and the compaction."""
    return {package_of(file.relative_to(root)) for tree in TREES for file in (root / tree).rglob("*.py")}


def package_of(file: Path) -> str:
    """The package of a file: `mailserver/net`, `mailserver` for a module outside rooms, or `spark_export`.

    Args:
        file: relative to the repository.
    """
    tree, *rest = file.parts
    return f"{tree}/{rest[0]}" if tree == "mailserver" and len(rest) > 1 else tree


def measure(report: Mapping[str, Any]) -> dict[str, Measured]:
    """Add up a report of SlipCover, in its JSON format, by package."""
    run: Counter[str] = Counter()
    of: Counter[str] = Counter()
    for file, measured in report["files"].items():
        package, summary = package_of(Path(file)), measured["summary"]
        covered = summary["covered_lines"] + summary["covered_branches"]
        run[package] += covered
        of[package] += covered + summary["missing_lines"] + summary["missing_branches"]
    return {package: Measured(run[package], of[package]) for package in of}


def below(measured: Mapping[str, Measured], floors: Mapping[str, Floor]) -> list[str]:
    """The packages that have less than their floor; one that was not measured has nothing."""
    nothing = Measured(0, 1)
    return [package for package, floor in floors.items() if measured.get(package, nothing).percent < floor.percent]


def lines(measured: Mapping[str, Measured], floors: Mapping[str, Floor]) -> list[str]:
    """A line for each package, the least covered first."""
    width = max(map(len, floors))
    covered = sorted((found.percent, package, floors[package]) for package, found in measured.items())
    return [
        f"{name:{width}}  {percent:5.1f} %  floor {floor.percent:3} %  {floor.rest}".rstrip()
        for percent, name, floor in covered
    ]


def read_report(folder: Path) -> dict[str, Any]:
    """Put together what the processes have left that ran the tests (tests/measuring.py).

    Raises:
        FileNotFoundError: nothing was measured.
    """
    parts = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
    if not parts:
        raise FileNotFoundError(f"nothing was measured: {folder} is empty")
    report: dict[str, Any] = reduce(merge_coverage, parts)
    return report


def main() -> int:
    """Print the coverage of each package; 1 if one is below its floor."""
    measured = measure(read_report(ROOT / FOLDER))
    print("\n".join(lines(measured, FLOORS)))
    fallen = below(measured, FLOORS)
    if fallen:
        print("Below the floor, see tests/coverage_floors.py:", ", ".join(fallen), file=sys.stderr)
    return 1 if fallen else 0


if __name__ == "__main__":
    sys.exit(main())
