"""Everything about sockets runs on both event loops."""

from collections.abc import AsyncIterator

import pytest

from tests.loops import on_both_loops as pytest_asyncio_loop_factories
from tests.net.wires import Wires

__all__ = ["pytest_asyncio_loop_factories"]


@pytest.fixture
async def wires() -> AsyncIterator[Wires]:
    wires = Wires()
    yield wires
    await wires.close()
