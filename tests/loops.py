"""Which event loops tests run on: asyncio's, and uvloop's, which the daemon runs on.

What has to do with sockets runs on both. A folder's `conftest.py` takes one of these as its
`pytest_asyncio_loop_factories`; in a folder without, tests run on asyncio's.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping

import pytest
import uvloop

Factories = Mapping[str, Callable[[], asyncio.AbstractEventLoop]]


class _WithoutDebug(uvloop.Loop):
    """Debug mode takes a fifth of a test's time. What it finds in our code, it has found on asyncio's loop."""

    def set_debug(self, enabled: bool) -> None:
        """Leave it off."""


BOTH: Factories = {"asyncio": asyncio.new_event_loop, "uvloop": _WithoutDebug}

ON_UVLOOP = pytest.mark.asyncio(loop_factories=["uvloop"])
"""Once is enough for what takes its time: on the daemon's loop."""


def on_both_loops() -> Factories:
    """Have every test of the folder run on both."""
    return BOTH


def on_both_loops_in(*files: str) -> Callable[[pytest.Item], Factories]:
    """Have the tests of these files run on both, and the others of the folder on asyncio's."""

    def pytest_asyncio_loop_factories(item: pytest.Item) -> Factories:
        return BOTH if item.path.name in files else {"asyncio": BOTH["asyncio"]}

    return pytest_asyncio_loop_factories


@contextlib.contextmanager
def without_debug() -> Iterator[None]:
    """The running loop's debug mode is off: for what a test does a thousand times more, once it was done with it.

    Debug mode keeps the stack of every future and every call. That is most of the time of such tests.
    """
    loop = asyncio.get_running_loop()
    loop.set_debug(False)
    try:
        yield
    finally:
        loop.set_debug(True)
