"""What has to do with sockets runs on both event loops, and a test that is `quick` waits for nobody."""

import logging
from collections.abc import Iterator

import pytest

from tests.catchup.running import hurry
from tests.loops import on_both_loops_in
from tests.store.indexing import ids_indexed_at_once

pytest_asyncio_loop_factories = on_both_loops_in(
    "test_catchup.py",
    "test_command.py",
    "test_comparing.py",
    "test_daemon.py",
    "test_failures.py",
    "test_killed.py",
    "test_lies.py",
    "test_restarts.py",
    "test_slow_sources.py",
    "test_source.py",
    "test_sources.py",
)


@pytest.fixture(scope="module", autouse=True)
def _indexed_at_once() -> Iterator[None]:
    with ids_indexed_at_once():
        yield


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    hurry(monkeypatch)
    caplog.set_level(logging.INFO, "mailserver")
