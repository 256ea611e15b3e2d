"""What a soak says at its end: as text, as JSON, and as the page and the picture that are kept in docs/."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from docs.evidence import PAGE
from tests.faults.report import Figure
from tests.recording import Recording
from tests.soak.month import Result, Settings
from tests.soak.plot import draw
from tests.soak.samples import Sample, Verdict, thirds

_PAGE = """# A month of a mailserver

`make soak` runs the real daemon, its commands and the nightly compaction through a month, with a clock that moves 5
minutes at a time. Peers post, relay, and ask for what they missed. Every answer is compared with what was posted. The
daemon is killed and restarted now and then. `make soak ARGS=--record` writes this page. Times are by the clock. Those
called `own` leave out the time for which mailserver and clients waited for a processor: a lower bound.

{days:g} days, seed {seed}, retention of {retention_days:g} days: {figures}.

Medians of two thirds of the longest run without a restart, {second} and {last}:

| | before | after | may be |
| --- | --- | --- | --- |
{rows}

{broken}

![the figures of each simulated hour](soak.png)
"""


def as_text(result: Result) -> str:
    """Figures, verdicts, and what was not kept."""
    lines = [_figures(result)]
    lines += [
        f"  {'flat' if v.is_flat else 'GREW':4} {v.name:22} {v.before:10.1f} -> {v.after:10.1f}  (at most {v.most:.1f})"
        for v in result.verdicts
        if v.is_judged
    ]
    lines += [f"  {conclusion(result)}"]
    lines += [f"  BROKEN {text}" for text in result.broken]
    return "\n".join(lines)


def write_json(result: Result, path: Path) -> None:
    """Write all of it."""
    path.write_text(json.dumps(result.as_json(), indent=1) + "\n")


def read_json(path: Path) -> Result:
    """Read what `write_json` wrote."""
    record: dict[str, Any] = json.loads(path.read_text())
    samples = [Sample(**_numbers(sample)) for sample in record["samples"]]
    verdicts = [Verdict(**_numbers(verdict)) for verdict in record["verdicts"]]
    return Result(Settings(**record["settings"]), samples, verdicts, record["figures"], record["broken"])


def write_page(result: Result, folder: Path) -> None:
    """Write `soak.md` and `soak.png`."""
    settings = result.settings
    draw(result.samples, folder / "soak.png", f"{settings.days:g} days, {settings.envelopes_per_day:,} envelopes a day")
    second, last = (f"days {part[0].day:.0f} to {part[-1].day:.0f}" for part in thirds(result.samples))
    page = _PAGE.format(
        days=settings.days,
        seed=settings.seed,
        retention_days=settings.retention_days,
        figures=_figures(result),
        second=second,
        last=last,
        rows="\n".join(map(_row, result.verdicts)),
        broken="\n".join(f"- not kept: {text}" for text in result.broken) or conclusion(result),
    )
    (folder / "soak.md").write_text(page)


def record(
    result: Result, recording: Recording, arguments: Sequence[str], *, is_full: bool, folder: Path = PAGE.parent
) -> None:
    """Keep what was found with the commit that was run, and write the page of it into `folder`.

    Raises:
        NotRecorded: it may not be kept; then no page is written, either.
    """
    rows = record_rows(result)
    recording.end(seed=result.settings.seed, arguments=arguments, is_full=is_full, rows=rows, broken=result.broken)
    write_page(result, folder)


def record_rows(result: Result) -> dict[str, dict[str, Figure]]:
    """What is recorded of it: all figures but those of each hour, and the verdicts; "-" is what could not be judged."""
    rows: dict[str, dict[str, Figure]] = {"the month": {**result.figures, "conclusion": conclusion(result)}}
    for verdict in result.verdicts:
        cells = {"before": verdict.before, "after": verdict.after, "may_be": verdict.most}
        rows[verdict.name] = {name: "-" if math.isnan(value) else value for name, value in cells.items()}
    return rows


def _row(verdict: Verdict) -> str:
    cells = [verdict.before, verdict.after, verdict.most]
    return f"| {verdict.name} | " + " | ".join("-" if math.isnan(cell) else f"{cell:,.1f}" for cell in cells) + " |"


def conclusion(result: Result) -> str:
    """What the run has shown, and what it could not."""
    if result.broken:
        return "Not all was kept."
    unjudged = [verdict.name for verdict in result.verdicts if not verdict.is_judged]
    if not unjudged:
        return "Nothing was lost, and nothing grew."
    return (
        f"Nothing was lost, and nothing that could be judged grew. Not judged: {', '.join(unjudged)}, because in most "
        "hours others wanted the processors, too."
    )


def _numbers(record: dict[str, Any]) -> dict[str, Any]:
    return {name: math.nan if value is None else value for name, value in record.items()}


def _figures(result: Result) -> str:
    return ", ".join(f"{name} {value:,}" for name, value in result.figures.items())
