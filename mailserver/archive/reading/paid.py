"""What all requests to one archive share, and what each of them reads with, at its payer's expense."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from mailserver.archive.errors import ArchiveError
from mailserver.archive.reading.cache import ByteCache
from mailserver.archive.reading.catalog import Catalog, Period, PeriodFiles
from mailserver.archive.reading.listings import Listings
from mailserver.archive.reading.reads import RECORD_FILE, STEP, ArchiveReads
from mailserver.metrics.archive import ArchiveMetrics
from mailserver.store.interface import Payer

_FILE_BYTES = 800
"""About how many bytes of memory a file takes: its names, above all."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SharedArchive:
    """What all requests to one archive share.

    `on_slow` is called with the cause when an index cannot be used; `on_listed` with all that is damaged, whenever it
    was listed what there is.
    """

    catalog: Catalog
    listings: Listings
    reads: ArchiveReads
    cache: ByteCache[object]
    metrics: ArchiveMetrics
    on_slow: Callable[[str], None]
    on_listed: Callable[[Sequence[str]], None]

    def kept(self, key: object, kind: type[T]) -> T | None:
        """Return the value that the cache has under this key; None if it has none of this kind."""
        value = self.cache.get(key)
        (self.metrics.archive_cache_misses if value is None else self.metrics.archive_cache_hits).inc()
        return value if isinstance(value, kind) else None

    def keep(self, key: object, value: object, size: int) -> None:
        """Put a value of `size` bytes into the cache."""
        self.cache.put(key, value, size)
        self.metrics.archive_cache_bytes.set(self.cache.bytes)

    def forget(self, key: object) -> None:
        """Drop a value from the cache."""
        self.cache.drop(key)
        self.metrics.archive_cache_bytes.set(self.cache.bytes)


class PaidReads:
    """Reads for one payer, who is charged for it. `work`: how much that was."""

    def __init__(self, archive: SharedArchive, payer: Payer) -> None:
        self.work = 0
        self._archive = archive
        self._payer = payer

    @property
    def at_once(self) -> int:
        """How many reads go on at the same time, at most."""
        return self._archive.reads.at_once

    async def periods(self) -> tuple[Period, ...]:
        """Return the archive's periods, as they are from now on. The one with the newest envelope comes first.

        Raises:
            ArchiveError: the archive is missing, cannot be read, or a later version made it.
        """
        self._charge(STEP)  # before it is done: whoever goes away meanwhile has asked for it, too
        listing, work = await self._archive.listings.newest()
        self._charge(work - STEP)
        if isinstance(listing, ArchiveError):
            raise ArchiveError(str(listing)) from listing
        self._archive.on_listed(listing.damage)
        return listing.periods

    async def _files(self, period: Period) -> PeriodFiles:
        known = self._archive.kept(period, PeriodFiles)
        if known is not None:
            return known
        work = STEP + RECORD_FILE * period.files
        files = await self._run(work, lambda: self._archive.catalog.files(period))
        self._archive.keep(period, files, _FILE_BYTES * len(files.files))
        return files

    async def several(self, reads: Sequence[Callable[[], Coroutine[Any, Any, T]]]) -> list[T]:
        """Do some reads, `at_once` of them at the same time; return what they have found, in their order.

        No more wait at once than can be read: else the last would have to wait for all before it, and be given up.
        Once one has failed, no other begins.
        """
        readers = min(self.at_once, len(reads))
        if readers <= 1:
            return [await read() for read in reads]
        left = deque(enumerate(reads))
        found: dict[int, T] = {}

        async def read_on() -> None:
            while left:
                number, read = left.popleft()
                try:
                    found[number] = await read()
                except ArchiveError:
                    left.clear()
                    raise

        for fault in await asyncio.gather(*(read_on() for _ in range(readers)), return_exceptions=True):
            if fault is not None:
                raise fault
        return [found[number] for number in range(len(reads))]

    async def _run(self, work: int, read: Callable[[], T]) -> T:
        self.work += work
        return await self._archive.reads.run(work, self._payer, read)

    def _charge(self, work: int) -> None:
        self.work += work
        self._payer.charge(work)
