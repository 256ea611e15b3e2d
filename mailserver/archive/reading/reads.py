"""Runs reads of the archive in a few threads. The payer for whom the least work has been done is served first.

The cost of a read is computed from what it reads, not measured. Its unit is that of the store's work
(`store.engine.work`): 0.3 us. The weights were measured with pyarrow 26, one thread, and files in the page cache. In a
Parquet file, the keys take 0.28 us for each envelope, the envelopes 0.68 us for each KiB of the row group, and each row
group 0.3 ms in addition. To verify a file takes 0.68 us for each KiB. By an index, the keys of a row group take 25 us,
and 0.02 us for each envelope.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from mailserver.archive.errors import ArchiveFault
from mailserver.archive.reading.row_groups import DataFile, RowGroup
from mailserver.limits.fair_semaphore import FairSemaphore
from mailserver.metrics.archive import ArchiveMetrics
from mailserver.store.interface import Payer

READ_TIMEOUT_S = 8.0
"""How long one read may take. Clients give up on a request after 10 to 30 s."""

TURN_TIMEOUT_S = 20.0
"""How long a read may wait for its turn. A thread that waits for the disk is free again only when the disk answers."""

STEP = 200
"""To hand work to a thread, and the result back."""

STEP_WORK = 10_000
"""One step does about this much work, 3 ms, unless a single row group is more."""

FILE = 1000
"""To open a file, find a row group in its footer, and start decoding."""

FOOTER = 500
"""To open a file and read its footer. To verify its bytes is counted separately."""

FOOTER_BYTES_PER_UNIT = 40
"""Parsing a footer."""

LISTED_RECORD = 16
"""To see whether a record has changed."""

RECORD_FILE = 10
"""To read the entry of one file in a period's record."""

INDEX = 150
"""To open an index and read its directory. Its entries are counted separately."""

INDEX_FILE = 200
"""To read what an index says of one file."""

KEPT_FILE = 50
"""To find topics in that, once it is in memory."""

INDEXED_GROUP = 80
"""To read the keys of a row group from an index. Its rows are counted separately."""

INDEXED_ROWS_PER_UNIT = 16

KEPT_GROUP = 100
"""To look through a row group whose keys are in memory. Its rows are counted separately."""

KEPT_ROWS_PER_UNIT = 50

T = TypeVar("T")


def keys_work(group: RowGroup, *, is_kept: bool) -> int:
    """Return the work of looking through a row group."""
    if is_kept:
        return KEPT_GROUP + group.rows // KEPT_ROWS_PER_UNIT
    return FILE + group.rows if group.indexed is None else INDEXED_GROUP + group.rows // INDEXED_ROWS_PER_UNIT


def raws_work(group: RowGroup, *, is_parsed: bool) -> int:
    """Return the work of reading envelopes of a row group. All of its envelopes are decoded.

    Args:
        is_parsed: whether the file's footer is parsed already.
    """
    return FILE + _of_bytes(group.raw_bytes) + (0 if is_parsed else len(group.footer) // FOOTER_BYTES_PER_UNIT)


def footer_work(file: DataFile) -> int:
    """Return the work of verifying a file and reading its footer."""
    return FOOTER + _of_bytes(file.bytes)


def _of_bytes(count: int) -> int:
    return count // 1024 * 9 // 4


class ArchiveReads:
    """A fixed number of threads that read."""

    def __init__(self, at_once: int, *, metrics: ArchiveMetrics) -> None:
        self.at_once = at_once
        self._semaphore = FairSemaphore(at_once)
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="archive-reader")
        self._metrics = metrics

    async def run(self, work: int, payer: Payer, read: Callable[[], T]) -> T:
        """Read when it is the payer's turn. A read that has begun goes on even if nobody waits for it any more.

        Raises:
            ArchiveFault: the read failed, or took too long.
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
        """Accept no more reads. Those that have begun go on to the end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _done(self, reading: asyncio.Future[T], seconds: float) -> None:
        if not reading.cancelled():
            reading.exception()  # nobody may be waiting for it any more
        self._metrics.archive_read_seconds.inc(seconds)
        self._semaphore.release()
