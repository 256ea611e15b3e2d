"""mailserver.gateway.peer, over sockets on the loopback interface."""

import pytest

from tests.gateway.clients import MPLEX, YAMUX, connected
from tests.gateway.hosts import ECHO, running_host
from tests.waiting import until

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("kind", ["tcp", "websocket"])
@pytest.mark.parametrize("muxer", [MPLEX, YAMUX])
async def test_client_is_answered(kind: str, muxer: str) -> None:
    async with running_host() as world, connected(world.port_of(kind), kind, muxer) as client:
        assert await client.ask(ECHO, b"hello") == b"hello"
        assert len(world.host) == 1
        assert world.host.by_transport() == {kind: 1}

        await client.close()
        await until(lambda: len(world.host) == 0)
