"""Whole connections over socket pairs, a real store, and a clock of the test's, on both event loops."""

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.loops import on_both_loops as pytest_asyncio_loop_factories
from tests.mailservers import Mailserver, running_mailserver

__all__ = ["pytest_asyncio_loop_factories"]


@pytest.fixture
async def mailserver(tmp_path: Path) -> AsyncIterator[Mailserver]:
    async with running_mailserver(tmp_path) as mailserver:
        yield mailserver


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No peer, whatever it does, puts an error into the log."""
    yield
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
