"""Reads of the archive: each in a thread, so many at once, for whoever has had less work done, and counted.

What they cost is counted from what is read, and not measured, in the unit of the store's work (`store.sqlite.work`):
0.3 us. The weights were measured with pyarrow 26, one thread, files in the page cache: an envelope's keys 0.28 us, its
bytes 0.68 us for each KiB of the row group, 0.3 ms to begin with a row group; to verify a file as much for each KiB.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from mailserver.archive.errors import ArchiveFault
from mailserver.archive.reading.row_groups import DataFile, RowGroup
from mailserver.limits.fair_semaphore import FairSemaphore
from mailserver.metrics.registry import Metrics
from mailserver.store.interface import Payer

READ_TIMEOUT_S = 8.0
"""How long one read may take: clients give up on a request after 10 to 30 s."""

TURN_TIMEOUT_S = 20.0
"""How long a read may wait for its turn. Threads that a disk does not answer are free again when it does."""

STEP = 200
"""To hand something to a thread, and its result back."""

FILE = 1000
"""To open a file, find what is wanted in its footer, and begin to decode."""

FOOTER = 500
"""To open a file and take its footer, beside its bytes, all of which are verified."""

RECORD_FILE = 10
"""One file of a period's record."""

KEPT_GROUP = 100
"""To look through a row group whose keys are in memory, beside its rows."""

KEPT_ROWS_PER_UNIT = 50

T = TypeVar("T")


def keys_work(group: RowGroup, *, is_kept: bool) -> int:
    """What it costs to look through a row group."""
    return KEPT_GROUP + group.rows // KEPT_ROWS_PER_UNIT if is_kept else FILE + group.rows


def raws_work(group: RowGroup) -> int:
    """What it costs to read some envelopes of a row group: all of them are decoded."""
    return FILE + _of_bytes(group.raw_bytes)


def footer_work(file: DataFile) -> int:
    """What it costs to use a file for the first time."""
    return FOOTER + _of_bytes(file.bytes)


def _of_bytes(count: int) -> int:
    return count // 1024 * 9 // 4


class ArchiveReads:
    """So many threads."""

    def __init__(self, at_once: int, *, metrics: Metrics) -> None:
        self._semaphore = FairSemaphore(at_once)
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="archive-reader")
        self._metrics = metrics

    async def run(self, work: int, payer: Payer, read: Callable[[], T]) -> T:
        """Read something, when it is the payer's turn. Once begun it goes on, whether or not it is waited for.

        Raises:
            ArchiveFault: it could not be read, or not in time.
        """
        try:
            async with asyncio.timeout(TURN_TIMEOUT_S):
                await self._semaphore.acquire(payer.group, payer.member, work)
        except TimeoutError as error:
            raise ArchiveFault(f"none of the threads that read it was free within {TURN_TIMEOUT_S:g} s") from error
        payer.charge(work)
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                return await asyncio.shield(self._begin(read))
        except TimeoutError as error:
            raise ArchiveFault(f"it has not answered within {READ_TIMEOUT_S:g} s") from error

    def _begin(self, read: Callable[[], T]) -> asyncio.Future[T]:
        # Whoever awaits the future must not keep it in a variable: its error would refer to itself by the traceback.
        loop = asyncio.get_running_loop()
        began = loop.time()
        reading = loop.run_in_executor(self._threads, read)
        reading.add_done_callback(lambda done: self._done(done, loop.time() - began))
        return reading

    def close(self) -> None:
        """Take no more. What has begun goes on to its end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _done(self, reading: asyncio.Future[T], seconds: float) -> None:
        if not reading.cancelled():
            reading.exception()  # perhaps nobody waits for it any more
        self._metrics.archive_read_seconds.inc(seconds)
        self._semaphore.release()
