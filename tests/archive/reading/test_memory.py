"""What is kept of an archive counts for as many bytes as it takes."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mailserver.archive.access.folder import FolderFiles
from mailserver.archive.layout import Layout
from mailserver.archive.reading.cache import ByteCache
from mailserver.archive.reading.page import ArchivePage
from mailserver.archive.reading.source import ArchiveSource
from mailserver.metrics.registry import Metrics, count_of
from mailserver.store.interface import OURSELVES, Query
from mailserver.waku.envelope import Topic
from tests.archive.reading.parquet import BY_PREFIX, BY_TOPIC, envelope, settle, write_period
from tests.loops import without_debug
from tests.store.samples import EVER, EVERY_BYTE, FULL, START, answer, raws
from tests.waiting import until

COUNT, FEW = 1000, 180
TOPICS = [Topic(bytes([number % 16 * 16, number // 16, 1, 1])) for number in range(400)]


@contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """How many bytes are taken that were not at the beginning."""
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()

    def taken() -> int:
        gc.collect()
        now, _ = tracemalloc.get_traced_memory()
        return now - before

    try:
        yield taken
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("index", [True, False], ids=["index", "no index"])
@pytest.mark.parametrize(
    ("layout", "group_rows"), [(BY_TOPIC, 5), (BY_PREFIX, 2), (BY_PREFIX, 100)], ids=["topic", "tiny", "prefix"]
)
async def test_what_a_search_has_read_takes_no_more_memory_than_is_counted(
    tmp_path: Path, layout: Layout, group_rows: int, *, index: bool
) -> None:
    kept = [envelope(number, created=START + number, topic=TOPICS[number % 400]) for number in range(COUNT)]
    write_period(tmp_path, kept, layout=layout, group_rows=group_rows, index=index)
    settle(tmp_path)
    metrics = Metrics()
    files = FolderFiles(tmp_path)
    warm = ArchiveSource(files, at_once=1, cache_bytes=2**26, is_expected=lambda: True, metrics=Metrics())
    source = ArchiveSource(files, at_once=1, cache_bytes=2**26, is_expected=lambda: True, metrics=metrics)
    query = Query(*EVER, FULL)
    await source.periods()
    with without_debug():
        await warm.find(query, 1, above=None, payer=OURSELVES)  # what is made once for all

        with traced() as taken:
            await source.find(query, COUNT, above=None, payer=OURSELVES)
            counted = count_of(metrics.archive_cache_bytes)
            await until(lambda: taken() < 1.1 * counted)  # what was found is still held by the thread, for a moment
            held = taken()

    warm.close()
    source.close()
    assert counted < 2.5 * held


@pytest.mark.slow
@pytest.mark.parametrize("index", [True, False], ids=["index", "no index"])
async def test_pages_that_nobody_reads_take_little_memory_and_are_read_on(tmp_path: Path, *, index: bool) -> None:
    """As of clients that have stalled. What the search has read for each is dropped to make room for others."""
    kept = [envelope(number, created=START + number, topic=TOPICS[number % 60]) for number in range(FEW)]
    write_period(tmp_path, kept, layout=BY_TOPIC, group_rows=2, index=index)
    settle(tmp_path)
    source = ArchiveSource(
        FolderFiles(tmp_path), at_once=1, cache_bytes=2**15, is_expected=lambda: True, metrics=Metrics()
    )
    query = Query(*EVER, FULL)

    async def stalled_page() -> ArchivePage:
        found = await source.find(query, FEW, above=None, payer=OURSELVES)
        page = source.page(found.matches, query, OURSELVES)
        await page.read(10, EVERY_BYTE)
        return page

    with without_debug():
        await stalled_page()  # what is made once for all

        with traced() as taken:
            pages = [await stalled_page() for _ in range(4)]
            await until(lambda: taken() < 4 * 400 * FEW)

        rest = [raw for page in pages for raw in await read_all(page)]
    source.close()
    assert rest == 4 * raws(answer(kept, query))[10:]


async def read_all(page: ArchivePage) -> list[bytes]:
    read: list[bytes] = []
    while page.left:
        read += (await page.read(FEW, EVERY_BYTE)).split()
    return read


def test_what_was_not_used_for_the_longest_time_is_dropped_first() -> None:
    cache = ByteCache[str](4000)
    for key in "abc":
        cache.put(key, key, 1000)
    assert cache.get("a") == "a"

    cache.put("d", "d", 1000)

    assert [key for key in "abcd" if key in cache] == ["a", "c", "d"]


def test_value_that_is_replaced_counts_once() -> None:
    cache = ByteCache[str](4000)
    cache.put("a", "a", 3000)
    cache.put("a", "b", 1000)

    assert (cache.get("a"), cache.bytes) == ("b", 1200)
    cache.put("a", "c", 5000)
    assert (cache.get("a"), cache.bytes) == (None, 0)
