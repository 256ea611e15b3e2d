"""What the tests of whole daemons share."""

from collections.abc import AsyncIterator

import pytest

from tests.integration.peers import Peers


@pytest.fixture
async def peers() -> AsyncIterator[Peers]:
    """Peers that go away when the test is over."""
    peers = Peers()
    yield peers
    await peers.close()
