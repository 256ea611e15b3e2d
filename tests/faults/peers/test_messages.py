"""The short forms of the attacks with messages, and that their checks see what they are there to see."""

import pytest

from tests.faults.peers import messages
from tests.faults.peers.conftest import SEED
from tests.faults.peers.harness import QUICK_SECONDS, Scenario, Stage, play
from tests.faults.peers.messages import SCENARIOS

IN_SHORT = (
    "tiny envelopes from many",
    "malformed packets from many",
    "packets and away",
    "updates from many",
    "requests from many",
    "answers unread",
    "packets of no use",
)
"""One of each kind: all of them would take a minute."""


@pytest.mark.integration
@pytest.mark.parametrize(
    "scenario", [one for one in SCENARIOS if one.name in IN_SHORT], ids=lambda scenario: scenario.name
)
async def test_ceiling_and_answers_hold(scenario: Scenario, stage: Stage) -> None:
    outcome = await play(scenario, stage, seed=SEED, seconds=QUICK_SECONDS, is_quick=True)

    assert not outcome.broken, outcome.row


def test_what_is_played_in_short_is_there() -> None:
    assert set(IN_SHORT) <= {scenario.name for scenario in SCENARIOS}


def test_malformed_packets_that_end_in_no_disconnect_or_in_another_are_told() -> None:
    right = {"packets": 10, "ended_subprotocol_error": 3, "ended_silently": 1}

    assert [*messages.all_for_their_fault(right)] == []
    assert [*messages.all_for_their_fault({"packets": 10})] != []
    assert [*messages.all_for_their_fault({**right, "ended_protocol_breach": 1})] != []


def test_flood_of_which_nothing_is_taken_is_told() -> None:
    assert [*messages.took_some({"confirmed": 1})] == []
    assert [*messages.took_some({"confirmed": 0})] != []


def test_lawful_packets_that_end_in_a_disconnect_are_told() -> None:
    assert [*messages.stayed({"packets": 5})] == []
    assert [*messages.stayed({"packets": 5, "ended_subprotocol_error": 1})] != []
