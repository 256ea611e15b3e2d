"""A store and its index, opened for each test."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.gateway.index.worlds import World, opened_world


@pytest.fixture(scope="module")
def new_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Makes a folder for each example of a property."""
    return lambda: tmp_path_factory.mktemp("index")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """An empty store, and what follows it."""
    async with opened_world(tmp_path) as opened:
        yield opened
