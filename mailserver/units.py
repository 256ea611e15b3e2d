"""Numbers as people read them, the same everywhere: bytes in powers of 1024, small numbers without an exponent.

`monitoring/assets/page.js` does the same in the browser. Numbers for programs (JSON, metrics, the log's key=value) stay
plain bytes or seconds.
"""

from decimal import Decimal

SECONDS_PER_DAY = 86_400

SIGNIFICANT_DIGITS = 6
PLAIN_UP_TO = 1e15
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_SPANS_S = (("days", SECONDS_PER_DAY), ("h", 3600), ("min", 60))


def size_text(size: float) -> str:
    """An amount of bytes: `1,000 B`, `1.5 KiB`, `2 MiB`."""
    unit = 0
    while unit < len(_UNITS) - 1 and round(size, 1) >= 1024:
        size /= 1024
        unit += 1
    return f"{_with_tenths(size)} {_UNITS[unit]}"


def number_text(value: float) -> str:
    """A number: a whole one as it is, others with six significant digits: `0.000002`, `1000000`, `inf`.

    From PLAIN_UP_TO on, and below 1 / PLAIN_UP_TO, it has an exponent: `1e+308`.
    """
    if isinstance(value, int):
        return str(value)
    if value and not 1 / PLAIN_UP_TO < abs(value) < PLAIN_UP_TO:
        return f"{value:.{SIGNIFICANT_DIGITS}g}"
    return f"{Decimal(f'{value:.{SIGNIFICANT_DIGITS}g}'):f}"


def delay_text(seconds: float) -> str:
    """A short time: `0.3 ms`, `12 ms`, `1.5 s`."""
    milliseconds = seconds * 1000
    return f"{_with_tenths(milliseconds)} ms" if round(milliseconds, 1) < 1000 else f"{_with_tenths(seconds)} s"


def span_text(seconds: float) -> str:
    """A long time, in the largest unit of which it has at least two: `119 s`, `2 min`, `47 h`, `2 days`."""
    for unit, length in _SPANS_S:
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _with_tenths(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")
