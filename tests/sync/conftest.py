"""Everything about sockets is tested on both event loops: asyncio's, and uvloop's, which the daemon runs on."""

from tests.net.conftest import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
