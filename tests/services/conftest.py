"""Whole connections are tested on both event loops: asyncio's, and uvloop's, which the daemon runs on. The other tests
of this folder take a minute and a half on one, and are about what happens whatever the loop.
"""

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.net import conftest as sockets


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    loops = sockets.pytest_asyncio_loop_factories()
    return loops if item.path.name == "test_peer.py" else {"asyncio": loops["asyncio"]}
