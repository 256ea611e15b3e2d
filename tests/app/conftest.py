"""What the tests of daemons in this process share."""

import signal
import socket
from collections.abc import Iterator

import pytest

from tests.loops import on_both_loops_in

pytest_asyncio_loop_factories = on_both_loops_in("test_control.py")


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """Leave the signals of the test runner as they were."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def neighbour() -> Iterator[socket.socket]:
    """Where a static peer listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server
