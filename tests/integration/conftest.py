"""What the tests of whole daemons share."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.integration.daemons import Daemon, running_daemon
from tests.integration.peers import Peers


@pytest.fixture
async def peers() -> AsyncIterator[Peers]:
    """Peers that go away when the test is over."""
    peers = Peers()
    yield peers
    await peers.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon for tests that leave it running; whatever they did, it has had nothing to complain of."""
    with running_daemon(tmp_path_factory.mktemp("shared"), "--log-level", "debug") as daemon:
        yield daemon
    assert [line for line in daemon.told if " ERROR " in line or " WARNING " in line] == []
