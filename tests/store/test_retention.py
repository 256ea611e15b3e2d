"""mailserver.store.retention: what is too much, as numbers."""

import pytest

from mailserver.store.retention import (
    BATCH_ROWS,
    END_OF_TIME,
    CapacityRetention,
    Retention,
    SizeRetention,
    Surplus,
    TimeRetention,
    Usage,
)

DAY = 86_400
NOW = 20_000 * DAY + 0.75
FULL = Usage(envelopes=10_000, bytes=10_000_000)


@pytest.mark.parametrize(
    ("days", "now", "before"),
    [
        (1, NOW, 19_999 * DAY),
        (30, NOW, 19_970 * DAY),
        (0.5, NOW, 20_000 * DAY - DAY // 2),
        (1 / DAY, 1000.0, 999),
        (1 / DAY, 1000.999, 999),  # what was received in second 999 may be younger than a second
    ],
)
def test_age_is_counted_to_the_second_and_nothing_goes_early(days: float, now: float, before: int) -> None:
    assert TimeRetention(days).surplus(FULL, now) == Surplus(before, FULL.envelopes)


@pytest.mark.parametrize("days", [20_001, 1e9, 1e300])
def test_age_that_nothing_can_have_keeps_everything(days: float) -> None:
    assert TimeRetention(days).surplus(FULL, NOW) is None


@pytest.mark.parametrize(
    ("keep", "surplus"),
    [
        (9_999, Surplus(END_OF_TIME, 1, 10_000)),
        (1, Surplus(END_OF_TIME, 9_999, 10_000)),
        (10_000, None),
        (10_001, None),
    ],
)
def test_number_beyond_the_capacity_is_too_much(keep: int, surplus: Surplus | None) -> None:
    assert CapacityRetention(keep).surplus(FULL, NOW) == surplus


@pytest.mark.parametrize("keep", [10_000_000, 10_000_001])
def test_size_within_the_limit_is_kept(keep: int) -> None:
    assert SizeRetention(keep).surplus(FULL, NOW) is None


def test_size_beyond_the_limit_is_estimated_by_the_mean_envelope() -> None:
    assert SizeRetention(7_500_000).surplus(FULL, NOW) == Surplus(END_OF_TIME, 2_500, 10_000)


def test_size_just_beyond_the_limit_is_more_than_a_batch() -> None:
    assert SizeRetention(9_999_999).surplus(FULL, NOW) == Surplus(END_OF_TIME, BATCH_ROWS + 1, 10_000)


@pytest.mark.parametrize("limit", [TimeRetention(1), CapacityRetention(1), SizeRetention(1)])
def test_empty_store_has_nothing_to_spare(limit: Retention) -> None:
    assert limit.surplus(Usage(0, 160_000), NOW) is None
