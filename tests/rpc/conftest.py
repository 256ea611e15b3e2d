"""The interface is tested on both event loops: asyncio's, and uvloop's, which the daemon runs on."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
import uvloop

from tests.rpc.nodes import RunningNode, running_node


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def asyncio_does_not_log_that_the_machine_is_slow(caplog: pytest.LogCaptureFixture) -> None:
    """Some of these tests say that nothing is logged; on a busy machine asyncio's debug mode warns of slow steps."""
    caplog.set_level(logging.ERROR, "asyncio")


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningNode]:
    """A node that speaks as the specification does and takes any proof of work."""
    async with running_node(tmp_path) as running:
        yield running
