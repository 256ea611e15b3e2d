"""A store and its index, opened for each test. Nothing here is about the disk, so all is in memory, where that is."""

import itertools
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.fast_folder import fast_folder
from tests.gateway.index.worlds import World, opened_world


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder for a test: most of its time would be syncing otherwise."""
    with tempfile.TemporaryDirectory(prefix="index-", dir=fast_folder()) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def new_folder() -> Iterator[Callable[[], Path]]:
    """Makes a folder for each example of a property."""
    with tempfile.TemporaryDirectory(prefix="index-", dir=fast_folder()) as folder:
        numbers = itertools.count()

        def make() -> Path:
            made = Path(folder, str(next(numbers)))
            made.mkdir()
            return made

        yield make


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """An empty store, and what follows it."""
    async with opened_world(tmp_path) as opened:
        yield opened
