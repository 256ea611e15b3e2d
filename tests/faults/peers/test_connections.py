"""The short forms of the attacks with connections, frames and bombs."""

import pytest

from tests.faults.peers import bombs, connections, frames
from tests.faults.peers.conftest import SEED
from tests.faults.peers.harness import QUICK_SECONDS, Scenario, Stage, play

SCENARIOS = (*connections.SCENARIOS, *frames.SCENARIOS, *bombs.SCENARIOS)

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
async def test_ceiling_and_answers_hold(scenario: Scenario, stage: Stage) -> None:
    outcome = await play(scenario, stage, seed=SEED, seconds=QUICK_SECONDS, is_quick=True)

    assert not outcome.broken, outcome.row
