"""A store and its index, opened for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.gateway.index.worlds import World, opened_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """An empty store, and what follows it."""
    async with opened_world(tmp_path) as opened:
        yield opened
