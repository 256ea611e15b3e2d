"""What all requests to one archive share, and what each of them reads with, at its payer's expense."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from mailserver.archive.reading.cache import ByteCache
from mailserver.archive.reading.catalog import Catalog, Period, PeriodFiles
from mailserver.archive.reading.reads import RECORD_FILE, STEP, ArchiveReads
from mailserver.metrics.archive import ArchiveMetrics
from mailserver.store.interface import Payer

_FILE_BYTES = 500
"""About how many bytes of memory a file takes."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SharedArchive:
    """What all requests to one archive share. `on_slow` is called with the cause when an index cannot be used."""

    catalog: Catalog
    reads: ArchiveReads
    cache: ByteCache[object]
    metrics: ArchiveMetrics
    on_slow: Callable[[str], None]

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

    async def periods(self) -> tuple[Period, ...]:
        """Return the archive's periods. The one with the newest envelope comes first."""
        return await self._run(STEP, self._archive.catalog.periods)

    async def _files(self, period: Period) -> PeriodFiles:
        known = self._archive.kept(period, PeriodFiles)
        if known is not None:
            return known
        files = await self._run(STEP, lambda: self._archive.catalog.files(period))
        self._charge(RECORD_FILE * len(files.files))
        self._archive.keep(period, files, _FILE_BYTES * len(files.files))
        return files

    async def _run(self, work: int, read: Callable[[], T]) -> T:
        self.work += work
        return await self._archive.reads.run(work, self._payer, read)

    def _charge(self, work: int) -> None:
        self.work += work
        self._payer.charge(work)
