"""Stores of every engine, for tests of what all of them do."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from mailserver.store.engine import index_wait
from mailserver.store.message_ids import StoreWithIds
from mailserver.store.postgres import indexing
from mailserver.store.sqlite import writer
from tests.store.engines import ENGINES, Engine


@pytest.fixture(scope="module", autouse=True)
def _indexed_at_once() -> Iterator[None]:
    """Message ids are indexed as soon as nothing waits for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_wait, "INDEX_DELAY_S", 0.0)
        patch.setattr(writer, "INDEX_INTERVAL_S", 0.0)
        patch.setattr(indexing, "INDEX_INTERVAL_S", 0.0)
        yield


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    """Each engine in turn, with a store of its own that is not there yet."""
    return ENGINES[request.param](tmp_path)


@pytest.fixture
async def store(engine: Engine) -> AsyncIterator[StoreWithIds]:
    """An open, empty store of each engine in turn."""
    async with engine.open() as opened:
        yield opened
