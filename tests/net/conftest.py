"""Everything about sockets runs on both event loops."""

from tests.loops import on_both_loops as pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
