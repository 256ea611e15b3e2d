"""How CPython runs in our daemons: when it looks for garbage, how soon a thread has to hand over Python's lock, and
what allocates memory for pyarrow."""

import gc
import os
import sys

GC_THRESHOLDS = (5_000, 1, 48)
"""When CPython collects cyclic garbage in a daemon. There is next to none: some 10 objects per closed connection. But
a pool full of envelopes is 200,000 live objects, and each full collection takes 55 ms to look through them. With
CPython's defaults, 700, 10, 10, that took 40 % of the CPU in a flood of small packets. The middle threshold is small
because each collection of the middle generation looks through all that survived the youngest one since: when peers
sent packets and left, 5 held up the event loop for more than 60 ms 25 times in 40 s, and 1 did so four times."""

SWITCH_INTERVAL_S = 0.0005
"""How long a thread waits for Python's lock before the holder must hand it over. SQLite's threads take the lock several
times per statement. Beside hundreds of peers who do not read their answers, the event loop was so busy that a request
took half a second with CPython's default of 5 ms, and 0.15 s with 1 ms. With 0.5 ms, what is
read ahead for a list of ids is there when it is wanted; ingest is as fast as with 1 ms."""

PYARROW_ALLOCATOR = ("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
"""The variable that tells pyarrow what to allocate memory with, and what it says unless the operator has set it. Each
read of the archive takes a few MB and gives them back. mimalloc, which pyarrow takes by itself, keeps much of that in
each thread: while the archive was read, the daemon took 241 MB more, and 165 MB with jemalloc, for as much CPU.
`pyarrow.set_memory_pool` does not reach all that pyarrow allocates: with that, it was 200 MB."""


def prepare_interpreter() -> None:
    """Set up CPython for a process that serves many. Nothing may have imported pyarrow yet."""
    gc.freeze()  # what is imported stays, so the collector need not look through it
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    os.environ.setdefault(*PYARROW_ALLOCATOR)
