"""UTC days and months: as numbers since 1970-01-01, as the store has them, and as ISO names, as the archive does."""

from datetime import UTC, date, datetime, timedelta

from mailserver.units import SECONDS_PER_DAY

_EPOCH = date(1970, 1, 1)


def day_of(unix_seconds: int) -> int:
    """The UTC day in which a moment lies."""
    return unix_seconds // SECONDS_PER_DAY


def day_name(day: int) -> str:
    """`20778` -> `2026-11-21`."""
    return (_EPOCH + timedelta(days=day)).isoformat()


def parse_day(name: str) -> int:
    """`2026-11-21` -> `20778`.

    Raises:
        ValueError: not an ISO date.
    """
    return (date.fromisoformat(name) - _EPOCH).days


def month_of(day: int) -> str:
    """`20778` -> `2026-11`."""
    return month_name(day_name(day))


def month_name(period: str) -> str:
    """`2026-11-20`, or `2026-11`, -> `2026-11`."""
    return period[: len("2026-11")]


def end_of_period(period: str) -> int:
    """When a period ends, `2026-11-20` or `2026-11`: the Unix second after its last.

    Raises:
        ValueError: it is neither a day nor a month.
    """
    if period != month_name(period):
        return (parse_day(period) + 1) * SECONDS_PER_DAY
    first = date.fromisoformat(f"{period}-01")
    return ((first + timedelta(days=31)).replace(day=1) - _EPOCH).days * SECONDS_PER_DAY


def utc_text(unix_seconds: float) -> str:
    """A moment as `2026-11-21T03:17:00Z`."""
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
