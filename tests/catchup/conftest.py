"""Everything about sockets runs on both event loops, and a test that is `quick` waits for nobody."""

import logging

import pytest

from tests.catchup.running import hurry
from tests.loops import on_both_loops as pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    hurry(monkeypatch)
    caplog.set_level(logging.INFO, "mailserver")
