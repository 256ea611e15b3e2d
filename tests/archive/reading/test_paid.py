"""mailserver.archive.reading.paid: several reads at the same time."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mailserver.archive.access.folder import FolderFiles
from mailserver.archive.errors import ArchiveFault
from mailserver.archive.reading.cache import ByteCache
from mailserver.archive.reading.catalog import Catalog
from mailserver.archive.reading.listings import Listings
from mailserver.archive.reading.paid import PaidReads, SharedArchive
from mailserver.archive.reading.reads import ArchiveReads
from mailserver.metrics.registry import Metrics
from mailserver.store.interface import OURSELVES

AT_ONCE = 3


class Reads:
    """Reads that end when they are told to."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ends = [asyncio.Event() for _ in range(8)]
        self.failing: set[int] = set()

    def each(self) -> list[Callable[[], Coroutine[Any, Any, int]]]:
        return [partial(self._read, number) for number in range(len(self.ends))]

    async def _read(self, number: int) -> int:
        self.begun.append(number)
        await self.ends[number].wait()
        if number in self.failing:
            raise ArchiveFault("damaged")
        return number * number


@pytest.fixture
def paid(tmp_path: Path) -> Iterator[PaidReads]:
    metrics = Metrics()
    reads = ArchiveReads(AT_ONCE, metrics=metrics)
    catalog = Catalog(FolderFiles(tmp_path), lambda: False)
    listings = Listings(catalog.listing, reads)
    shared = SharedArchive(catalog, listings, reads, ByteCache(0), metrics, lambda _: None, lambda _: None)
    yield PaidReads(shared, OURSELVES)
    reads.close()


async def everybody_has_run() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_as_many_go_on_as_threads_read_and_the_next_begins_when_one_has_ended(paid: PaidReads) -> None:
    reads = Reads()
    reading = asyncio.create_task(paid.several(reads.each()))
    await everybody_has_run()
    assert reads.begun == [0, 1, 2]

    reads.ends[1].set()
    await everybody_has_run()
    assert reads.begun == [0, 1, 2, 3]

    for end in reads.ends:
        end.set()
    assert await reading == [number * number for number in range(8)]


async def test_none_begins_once_one_has_failed_and_those_that_have_begun_end_first(paid: PaidReads) -> None:
    reads = Reads()
    reads.failing = {1}
    reading = asyncio.create_task(paid.several(reads.each()))
    await everybody_has_run()
    reads.ends[1].set()
    await everybody_has_run()
    assert not reading.done()

    for end in reads.ends:
        end.set()
    with pytest.raises(ArchiveFault, match="damaged"):
        await reading
    assert reads.begun == [0, 1, 2]


async def test_nothing_to_read_is_no_fault(paid: PaidReads) -> None:
    assert await paid.several([]) == []
