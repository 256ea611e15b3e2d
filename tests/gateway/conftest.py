"""What the tests of the gateway share. What has to do with clients' sockets runs on both event loops."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.gateway.worlds import Gateway, running_gateway
from tests.loops import on_both_loops_in
from tests.store.engines import ENGINES

pytest_asyncio_loop_factories = on_both_loops_in(
    "test_transport.py",
    "test_peer.py",
    "test_host.py",
    "test_handlers.py",
    "test_identify.py",
    "test_hostile.py",
    "test_live.py",
)


@pytest.fixture
async def gateway(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Gateway]:
    """A gateway on an empty store: a file, or of each engine in turn (`worlds.on_each_engine`)."""
    engine = ENGINES[getattr(request, "param", "sqlite")](tmp_path)
    async with running_gateway(tmp_path, engine=engine) as gateway:
        yield gateway
