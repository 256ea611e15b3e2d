"""What the short forms of the scenarios share: one filled store."""

from pathlib import Path

import pytest

from tests.faults.peers.harness import Stage

SEED = 1


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """A data directory with 50,000 envelopes."""
    folder: Path = tmp_path_factory.mktemp("hostile-peers")
    return Stage.fill(folder, seed=SEED)
