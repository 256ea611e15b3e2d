"""Everything about the feed socket runs on both event loops."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.feed_socket.worlds import World, running_world
from tests.loops import on_both_loops_in

pytest_asyncio_loop_factories = on_both_loops_in("test_client.py", "test_server.py", "test_server_stop.py")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with running_world(tmp_path) as world:
        yield world
