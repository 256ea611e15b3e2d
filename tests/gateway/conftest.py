"""What has to do with clients' sockets runs on both event loops."""

from tests.loops import on_both_loops_in

pytest_asyncio_loop_factories = on_both_loops_in(
    "test_transport.py", "test_peer.py", "test_host.py", "test_handlers.py", "test_identify.py", "test_hostile.py"
)
