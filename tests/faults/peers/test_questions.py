"""The short forms of the attacks with questions about ids, and that their checks see what they are there to see."""

import pytest

from mailserver.reconcile.wire import read_ranges
from mailserver.wakuid.packets import MAX_RECONCILE_BYTES
from tests.faults.peers import questions
from tests.faults.peers.conftest import SEED
from tests.faults.peers.harness import QUICK_SECONDS, Scenario, Stage, play
from tests.faults.peers.questions import SCENARIOS

IN_SHORT = ("questions of every kind", "answers about ids unread")


@pytest.mark.integration
@pytest.mark.parametrize(
    "scenario", [one for one in SCENARIOS if one.name in IN_SHORT], ids=lambda scenario: scenario.name
)
async def test_ceiling_and_answers_hold(scenario: Scenario, stage: Stage) -> None:
    outcome = await play(scenario, stage, seed=SEED, seconds=QUICK_SECONDS, is_quick=True)

    assert not outcome.broken, outcome.row


def test_what_is_played_in_short_is_there() -> None:
    assert set(IN_SHORT) <= {scenario.name for scenario in SCENARIOS}


def test_dearest_message_is_lawful_and_as_long_as_may_be() -> None:
    message = questions.dearest(1_700_000_000)

    assert MAX_RECONCILE_BYTES - 3 < len(message) <= MAX_RECONCILE_BYTES
    assert len([*read_ranges(message)]) > 43_000


def test_questions_that_end_a_connection_or_are_never_answered_are_told() -> None:
    assert [*questions.answered({"done": 5})] == []
    assert [*questions.answered({"reconciled": 5, "refused": 7})] == []
    assert [*questions.answered({"refused": 5})] == ["no question was answered"]
    assert [*questions.answered({"done": 5, "ended_silently": 1})] == ["questions ended in ['ended_silently']"]
