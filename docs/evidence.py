"""Writes docs/evidence.md from the records of full runs in docs/evidence/: `make docs`. A test compares.

A record is what `make faults`, `make fuzz` or `make soak` found with --record, see `tests.recording`: one file of JSON
for each kind, that of the last run.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "docs" / "evidence"
PAGE = ROOT / "docs" / "evidence.md"

Figure = int | float | str

KINDS: Mapping[str, tuple[str, str]] = {
    "kills": (
        "make faults ARGS=kills",
        "daemon, backups, checks, migrations, compactions, communities killed at any moment",
    ),
    "power": ("make faults ARGS=power", "power cuts, with what was not synced lost or torn"),
    "disk": ("make faults ARGS=disk", "a disk that is full, or fails"),
    "peers": ("make faults ARGS=peers", "hostile peers beside an honest client"),
    "network": ("make faults ARGS=network", "partitions, delay, loss, flapping lines"),
    "clock": ("make faults ARGS=clock", "clocks that step"),
    "database": (
        "make faults ARGS=database",
        "two daemons on one PostgreSQL: kills, outages, full disks, wrong clocks, power cuts",
    ),
    "fuzz": ("make fuzz", "every decoder, the session machine, and properties with new examples"),
    "soak": ("make soak", "a simulated month"),
}
"""What is recorded: what runs it, and what it is."""

SHOWN: Mapping[str, tuple[str, ...]] = {
    "peers": (
        "answers",
        "answer_p50_ms",
        "answer_p99_ms",
        "slowest_answer_ms",
        "slowest_answer_own_ms",
        "longest_stall_ms",
        "longest_stall_own_ms",
        "stalls_own",
        "peak_mb",
    ),
}
"""The figures that the page shows, for kinds that have more than it has room for. The records have all of them."""

_HEAD = """# What full runs have found

`make docs` makes this page from the records in `docs/evidence`, which have every figure. To record runs of a tree
without changes, use `make faults ARGS=--record`, `make fuzz ARGS="--record --seconds 300"` and
`make soak ARGS=--record`, which also writes [soak.md](soak.md). A run is full if it had all parts at their default
size (`make fuzz`: all targets for 300 s); others are marked. Times called `own` leave out the time that was spent
waiting for a processor; all others are by the clock.
"""


@dataclass(frozen=True, slots=True)
class Record:
    """One run.

    Args:
        kind: one of KINDS.
        date: when it ended, in UTC.
        commit: the commit that was run, 40 hex digits, without further changes.
        seed: the seed that repeats its choices.
        arguments: the arguments, without --seed and --record.
        is_full: whether the run had every part, at full size.
        seconds: how long it took.
        machine: cores, Python, and the load before and after.
        rows: the figures of each scenario, by names that include their units.
        broken: each promise that was not kept.
    """

    kind: str
    date: str
    commit: str
    seed: int
    arguments: tuple[str, ...]
    is_full: bool
    seconds: float
    machine: Mapping[str, Figure]
    rows: Mapping[str, Mapping[str, Figure]]
    broken: tuple[str, ...]


def read_record(path: Path) -> Record:
    """Read one record.

    Raises:
        TypeError: its fields are not those of a record.
    """
    fields = json.loads(path.read_text(encoding="utf-8"))
    return Record(**{**fields, "arguments": tuple(fields["arguments"]), "broken": tuple(fields["broken"])})


def read_records(folder: Path = RECORDS) -> dict[str, Record]:
    """Read all records in a folder, by kind."""
    paths = {kind: folder / f"{kind}.json" for kind in KINDS}
    return {kind: read_record(path) for kind, path in paths.items() if path.exists()}


def page(records: Mapping[str, Record]) -> str:
    """Return the page, in Markdown."""
    lines = [
        _HEAD,
        "| | what | full | date (UTC) | commit | seed | load | hours | scenarios | broken |",
        "| --- " * 10 + "|",
    ]
    lines += [_summary(kind, records.get(kind)) for kind in KINDS]
    for kind, record in records.items():
        lines += ["", f"## {kind}", *_tables(record)]
        lines += ["", *(f"- broken: {text}" for text in record.broken)] if record.broken else []
    return "\n".join(lines) + "\n"


def _summary(kind: str, record: Record | None) -> str:
    command, what = KINDS[kind]
    if record is None:
        return f"| `{command}` | {what} | not recorded |" + " - |" * 7
    cells = [
        "yes" if record.is_full else f"**no**: `{' '.join(record.arguments)}`",
        record.date,
        f"`{record.commit[:12]}`",
        str(record.seed),
        f"{record.machine['load_before']} to {record.machine['load_after']} on {record.machine['cores']}",
        f"{record.seconds / 3600:.1f}",
        str(len(record.rows)),
        str(len(record.broken)),
    ]
    return f"| `{command}` | {what} | " + " | ".join(cells) + " |"


def _tables(record: Record) -> Iterator[str]:
    """Yield a table for each run of scenarios that have the same figures."""
    shown = SHOWN.get(record.kind)
    for names, rows in groupby(record.rows.items(), lambda row: shown or tuple(row[1])):
        yield from ("", f"| | {' | '.join(names)} |", "| --- " * (len(names) + 1) + "|")
        for scenario, figures in rows:
            yield f"| {scenario} | {' | '.join(_number(figures.get(name, '-')) for name in names)} |"


def _number(value: Figure) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value


if __name__ == "__main__":
    PAGE.write_text(page(read_records()), encoding="utf-8")
