"""Tables of text, and the numbers in them."""

from collections.abc import Sequence

UNKNOWN = "-"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay cells out in columns: the first to the left, the others, which are numbers, to the right."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def number(value: float | None, factor: float) -> str:
    """A number times a factor; with one digit behind the point below 100, if it is no whole number."""
    if value is None:
        return UNKNOWN
    scaled = value * factor
    return f"{scaled:,.0f}" if scaled >= 100 or scaled == int(scaled) else f"{scaled:.1f}"
