import pytest

from mailserver.archive.days import day_name, day_of, month_of, parse_day, utc_text
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


def test_moments_are_written_in_utc() -> None:
    assert utc_text(MIDNIGHT + 3.9) == "2024-10-04T00:00:03Z"
