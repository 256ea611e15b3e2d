"""The short form of `tests.faults.clock`: each scenario on whole daemons, with some of the steps."""

import random
from pathlib import Path

import pytest

from tests.faults import clock

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("seconds", clock.QUICK_STEPS)
async def test_clock_that_steps_loses_nothing_and_stores_nothing_twice(tmp_path: Path, seconds: int) -> None:
    assert await clock.step(tmp_path, random.Random(6), seconds) == []


async def test_clock_from_before_this_program_is_told_and_deletes_nothing(tmp_path: Path) -> None:
    assert await clock.start_before_this_program(tmp_path, random.Random(6)) == []


async def test_machine_that_was_off_for_a_year_prunes_once_peers_agree_with_its_clock(tmp_path: Path) -> None:
    assert await clock.off_for_a_year(tmp_path, random.Random(6)) == []


async def test_times_at_the_bounds_are_judged_by_the_rules(tmp_path: Path) -> None:
    assert await clock.times_at_the_bounds(tmp_path, random.Random(6)) == []
