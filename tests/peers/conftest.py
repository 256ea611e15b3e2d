"""Whole connections run on both event loops."""

from tests.loops import on_both_loops_in

pytest_asyncio_loop_factories = on_both_loops_in("test_served_peer.py")
