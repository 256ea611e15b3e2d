"""The short form: one fleet of three daemons goes through everything; their patience is a fifth of the real one."""

import argparse
from collections.abc import Iterator

import pytest

from tests.faults import network, wires
from tests.faults.fleet import Fleet, fleet

pytestmark = pytest.mark.integration

SEED = 20261121


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Daemons that run."""
    wires.require()
    folder = tmp_path_factory.mktemp("fleet")
    with fleet(
        folder, int(str(network.QUICK["daemons"])), factor=float(str(network.QUICK["factor"])), seed=SEED
    ) as made:
        yield made


@pytest.mark.parametrize("scenario", network.SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_nothing_is_lost_or_served_twice(nodes: Fleet, scenario: network.Scenario) -> None:
    _, fault = await network.attempt(scenario, nodes, argparse.Namespace(**network.QUICK))

    assert not fault
