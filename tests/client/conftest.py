"""Fixtures of the tests in this folder."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mailserver.store.sqlite.store import SqliteStore, open_store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with open_store(tmp_path / "mailserver.db") as store:
        yield store
