"""Stores of every engine, for tests of what all of them do."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from mailserver.store.message_ids import StoreWithIds
from tests.store.engines import EACH_ENGINE, ENGINES, Engine
from tests.store.indexing import ids_indexed_at_once


@pytest.fixture(scope="module", autouse=True)
def _indexed_at_once() -> Iterator[None]:
    with ids_indexed_at_once():
        yield


@pytest.fixture(params=EACH_ENGINE)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    """Each engine in turn, with a store of its own that is not there yet."""
    return ENGINES[request.param](tmp_path)


@pytest.fixture
async def store(engine: Engine) -> AsyncIterator[StoreWithIds]:
    """An open, empty store of each engine in turn."""
    async with engine.open() as opened:
        yield opened
