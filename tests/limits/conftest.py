"""What waits for its turn runs on both event loops."""

from tests.loops import on_both_loops_in

pytest_asyncio_loop_factories = on_both_loops_in("test_admission.py", "test_frame_memory.py", "test_loop_scheduler.py")
