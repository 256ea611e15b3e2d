"""What a part of the faults says at its end: figures, and every promise that was not kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Figure = int | float | str


@dataclass(frozen=True, slots=True)
class Row:
    """One scenario: what was done, and what was measured, by names that carry their units."""

    name: str
    figures: Mapping[str, Figure]


@dataclass(frozen=True, slots=True)
class Report:
    """What a part found. `broken` says each promise that was not kept, with enough to repeat it; it should be empty."""

    part: str
    rows: tuple[Row, ...]
    broken: tuple[str, ...] = ()


def as_json(reports: Sequence[Report]) -> dict[str, object]:
    """The same for machines: by part, its scenarios and what was broken."""
    return {
        report.part: {
            "scenarios": {row.name: dict(row.figures) for row in report.rows},
            "broken": list(report.broken),
        }
        for report in reports
    }


def as_text(report: Report) -> str:
    """One line per scenario, and one per broken promise."""
    lines = [report.part]
    lines += [row_as_text(row) for row in report.rows]
    lines += [f"  BROKEN {text}" for text in report.broken]
    return "\n".join(lines)


def row_as_text(row: Row) -> str:
    """The line of one scenario."""
    figures = ", ".join(f"{name} {_number(value)}" for name, value in row.figures.items())
    return f"  {row.name}: {figures}"


def _number(value: Figure) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
