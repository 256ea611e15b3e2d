"""A store and its index, opened for each test."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.gateway.index.worlds import World, opened_world
from tests.store.engines import EACH_ENGINE, ENGINES, Engine


@pytest.fixture(scope="module")
def new_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Makes a folder for each example of a property."""
    return lambda: tmp_path_factory.mktemp("index")


@pytest.fixture(params=EACH_ENGINE)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    """Each engine in turn, with a store of its own that is not there yet."""
    return ENGINES[request.param](tmp_path)


@pytest.fixture
async def world(tmp_path: Path, engine: Engine) -> AsyncIterator[World]:
    """An empty store of each engine in turn, and what follows it."""
    async with opened_world(tmp_path, engine=engine) as opened:
        yield opened
