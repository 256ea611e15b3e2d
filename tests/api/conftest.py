"""The interface is tested on both event loops; what has no socket, on asyncio's."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.api.nodes import RunningNode, running_node
from tests.api.rpc_servers import Running, running_server
from tests.loops import on_both_loops_in

WITHOUT_SOCKETS = (
    "test_filter_queues.py",
    "test_filter_rules.py",
    "test_filters.py",
    "test_keys.py",
    "test_topic_index.py",
)

pytest_asyncio_loop_factories = on_both_loops_in(
    *(file.name for file in Path(__file__).parent.glob("test_*.py") if file.name not in WITHOUT_SOCKETS)
)


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningNode]:
    """A node that speaks as the specification does and takes any proof of work."""
    async with running_node(tmp_path) as running:
        yield running


@pytest.fixture
async def rpc() -> AsyncIterator[Running]:
    """A JSON-RPC server without a token, with the methods of `Calls`."""
    async with running_server() as running:
        yield running
