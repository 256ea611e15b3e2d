"""tests.properties: the gate draws the same examples each time, and what is to draw others does."""

import re
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st

from tests.properties import TIMES, USUAL_EXAMPLES, Profile, settings

TESTS = Path(__file__).parent


@pytest.fixture(autouse=True)
def _profile_as_it_was() -> Iterator[None]:
    before = hypothesis.settings.get_current_profile_name()
    yield
    hypothesis.settings.load_profile(before)


def drawn(profile: Profile) -> list[int]:
    """The examples of a property under a profile."""
    hypothesis.settings.load_profile(profile)
    numbers = []

    @settings(max_examples=20)
    @given(st.integers(0, 1 << 60))
    def collect(number: int) -> None:
        numbers.append(number)

    collect()
    return numbers


def test_gate_draws_the_same_examples_each_time() -> None:
    assert drawn(Profile.GATE) == drawn(Profile.GATE)


@pytest.mark.slow
def test_other_profiles_draw_other_examples_each_time_and_more() -> None:
    first, second = drawn(Profile.FRESH), drawn(Profile.FRESH)

    assert set(first) != set(second)
    assert len(first) >= 10 * 20 * 0.9
    assert len(drawn(Profile.LONG)) >= 100 * 20 * 0.9


@pytest.mark.parametrize("profile", Profile)
def test_numbers_of_examples_follow_the_profile(profile: Profile) -> None:
    hypothesis.settings.load_profile(profile)

    assert hypothesis.settings().max_examples == USUAL_EXAMPLES * TIMES[profile]
    assert settings(max_examples=30).max_examples == 30 * TIMES[profile]
    assert settings(max_examples=1).max_examples == TIMES[profile]


@pytest.mark.parametrize("profile", Profile)
def test_no_profile_fails_because_a_machine_is_slow(profile: Profile) -> None:
    hypothesis.settings.load_profile(profile)
    own = settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture], phases=[Phase.generate])

    assert own.deadline is None
    assert own.phases == (Phase.generate,)
    assert set(own.suppress_health_check) == {
        hypothesis.HealthCheck.too_slow,
        hypothesis.HealthCheck.function_scoped_fixture,
    }


def test_every_property_takes_its_settings_from_the_profile() -> None:
    takers = [
        str(file.relative_to(TESTS))
        for file in TESTS.rglob("*.py")
        if re.search(r"^from hypothesis import .*\b(settings|seed)\b", file.read_text(encoding="utf-8"), re.MULTILINE)
    ]

    assert takers == []
