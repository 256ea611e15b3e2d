"""What the tests of whole daemons share."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.integration.commands import NEWS, SPORT, post
from tests.integration.daemons import Daemon, running_daemon
from tests.integration.peers import Peers


@pytest.fixture
async def peers() -> AsyncIterator[Peers]:
    """Peers that go away when the test is over."""
    peers = Peers()
    yield peers
    await peers.close()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon for tests that keep to topics of their own and leave it running.

    It must log no warning and no error, except that no peer has been connected for minutes: it stays up while this
    process runs tests that do not need it.
    """
    with running_daemon(tmp_path_factory.mktemp("shared"), "--log-level", "debug") as daemon:
        yield daemon
    bad = [line for line in daemon.told if " ERROR " in line or " WARNING " in line]
    assert [line for line in bad if "problem check=peers" not in line] == []


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with five posted envelopes, for tests that only ask: four of news, then one of sport."""
    with running_daemon(tmp_path_factory.mktemp("archive"), "--max-request-limit", "2") as running:
        for number in range(4):
            post(running.enode, f"{NEWS} {number}")
        post(running.enode, "goal", topic=SPORT)
        yield running
