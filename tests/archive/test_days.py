import pytest

from mailserver.archive.days import day_name, day_of, end_of_period, month_of, parse_day, utc_text
from mailserver.units import SECONDS_PER_DAY
from tests.spark_export.samples import DAY, MIDNIGHT


def test_day_begins_and_ends_at_midnight_utc() -> None:
    assert [day_of(MIDNIGHT - 1), day_of(MIDNIGHT), day_of(MIDNIGHT + 86_399)] == [DAY - 1, DAY, DAY]


@pytest.mark.parametrize(
    ("day", "name"), [(0, "1970-01-01"), (-1, "1969-12-31"), (20_778, "2026-11-21"), (11_016, "2000-02-29")]
)
def test_names_are_iso_dates(day: int, name: str) -> None:
    assert day_name(day) == name
    assert parse_day(name) == day
    assert month_of(day) == name[:7]


@pytest.mark.parametrize("name", ["", "2026-11", "2026-02-30", "yesterday", "2026-11-21T00:00:00"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_day(name)


@pytest.mark.parametrize(
    ("period", "first_after"),
    [("2024-10-04", "2024-10-05"), ("2024-12-31", "2025-01-01"), ("2024-02", "2024-03-01"), ("2024-12", "2025-01-01")],
)
def test_period_ends_where_the_next_day_begins(period: str, first_after: str) -> None:
    assert end_of_period(period) == parse_day(first_after) * SECONDS_PER_DAY


@pytest.mark.parametrize("period", ["", "2024", "2024-13", "2024-10-32", "2024-10-04 (1)", "yesterday"])
def test_what_is_no_period_has_no_end(period: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        end_of_period(period)


def test_moments_are_written_in_utc() -> None:
    assert utc_text(MIDNIGHT + 3.9) == "2024-10-04T00:00:03Z"
