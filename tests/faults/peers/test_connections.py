"""The short forms of the attacks with connections, frames and bombs, and that a check sees what it is there to see."""

import pytest

from tests.faults.peers import bombs, connections, frames
from tests.faults.peers.conftest import SEED
from tests.faults.peers.harness import QUICK_SECONDS, Scenario, Stage, play

SCENARIOS = (*connections.SCENARIOS, *frames.SCENARIOS, *bombs.SCENARIOS)


@pytest.mark.integration
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
async def test_ceiling_and_answers_hold(scenario: Scenario, stage: Stage) -> None:
    outcome = await play(scenario, stage, seed=SEED, seconds=QUICK_SECONDS, is_quick=True)

    assert not outcome.broken, outcome.row


def test_idle_connections_that_never_came_were_lost_or_take_much_are_told() -> None:
    (idle,) = (scenario for scenario in SCENARIOS if scenario.name == "idle")
    right = {"wanted": 50, "held": 50, "left": 50, "kb_each": connections.MAX_KB_EACH}

    assert [*idle.check(right)] == []
    assert [*idle.check({**right, "held": 20, "left": 20})] == ["of 50 idle connections 20 were held, 20 left"]
    assert [*idle.check({**right, "left": 49})] == ["of 50 idle connections 50 were held, 49 left"]
    assert [*idle.check({**right, "kb_each": 61.0})] == ["an idle connection took 61 kB"]
