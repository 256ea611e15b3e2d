"""The short forms of the attacks on the search for history, and that their checks see what they are there to see."""

import pytest

from tests.faults.peers import searches
from tests.faults.peers.conftest import SEED
from tests.faults.peers.harness import MAX_ANSWER_S, QUICK_SECONDS, Scenario, Stage, play, too_slow
from tests.faults.peers.honest import Served
from tests.faults.peers.searches import SCENARIOS

IN_SHORT = ("search by bloom, eight clients", "search for topics that are filled")


@pytest.mark.integration
@pytest.mark.parametrize(
    "scenario", [one for one in SCENARIOS if one.name in IN_SHORT], ids=lambda scenario: scenario.name
)
async def test_ceiling_and_answers_hold(scenario: Scenario, stage: Stage) -> None:
    outcome = await play(scenario, stage, seed=SEED, seconds=QUICK_SECONDS, is_quick=True)

    assert not outcome.broken, outcome.row


def test_what_is_played_in_short_is_there() -> None:
    assert set(IN_SHORT) <= {scenario.name for scenario in SCENARIOS}


def test_answers_that_are_slow_by_the_clock_are_told_but_for_one_of_a_hundred() -> None:
    quick = [0.01] * 999

    attack = {"from_s": 0.0, "until_s": 5000.0}

    def told(*took_s: float) -> list[str]:
        served = Served(asked_at=[-1.0, *map(float, range(len(took_s))), 6000.0], answers_s=[9.0, *took_s, 9.0])
        return [*too_slow(served, attack)]

    assert told(*quick, 9.0) == []
    assert told(*quick, *[MAX_ANSWER_S + 0.001] * 20) == ["an answer took 501 ms by the clock (99th percentile)"]
    assert told() == ["nobody asked while it was attacked"]


def test_requests_that_are_not_answered_or_end_in_a_disconnect_are_told() -> None:
    right = {"packets": 5, "answered": 5}

    assert [*searches.answered(right)] == []
    assert [*searches.answered({**right, "answered": 4})] == ["5 were asked, 4 answered"]
    assert [*searches.answered({**right, "ended_silently": 1})] != []
