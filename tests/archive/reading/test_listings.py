"""mailserver.archive.reading.listings: who shares a listing, what it costs, and one that does not end."""

import asyncio
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mailserver.archive.access.folder import FolderFiles
from mailserver.archive.errors import ArchiveFault
from mailserver.archive.files import FileVersion
from mailserver.archive.paths import RECORDS
from mailserver.archive.reading import catalog as catalog_module
from mailserver.archive.reading import reads as reads_module
from mailserver.archive.reading.catalog import Listing, Period
from mailserver.archive.reading.listings import Listings
from mailserver.archive.reading.reads import LISTED_RECORD, STEP, ArchiveReads
from mailserver.archive.reading.source import ArchiveSource
from mailserver.errors import StoreError
from mailserver.metrics.registry import Metrics
from mailserver.store.interface import OURSELVES, Payer, Query
from tests.archive.reading.asking import Asking
from tests.archive.reading.parquet import envelope, settle, write_period
from tests.store.samples import DAY, EVER, FULL, NEWS, START, answer, raws
from tests.waiting import DEADLINE_S, until

RECORDS_LOOKED_AT = 30


class Catalog:
    """Lists when it is told to. `begun`: how many listings were begun."""

    def __init__(self) -> None:
        self.begun = 0
        self.is_failing = False
        self._may_end = threading.Semaphore(0)

    def listing(self) -> Listing:
        self.begun += 1
        number = self.begun
        self._may_end.acquire()
        if self.is_failing:
            raise ArchiveFault("the disk is away")
        return Listing(damage=(str(number),), looked_at=RECORDS_LOOKED_AT)

    def end(self, count: int = 1) -> None:
        """Let so many listings end."""
        self._may_end.release(count)


class NoticedFolder(FolderFiles):
    """`is_listed`: set as soon as it is being listed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.is_listed = threading.Event()

    def versions(self, directory: str) -> dict[str, FileVersion]:
        self.is_listed.set()
        return super().versions(directory)


class SlowClock(NoticedFolder):
    """On a file system on which a folder's times do not tell its last changes apart; its clock is 5 s behind ours."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._changed = time.time_ns() - 5 * 10**9

    def state(self, directory: str) -> FileVersion | None:
        return None if super().state(directory) is None else (1, self._changed)


@pytest.fixture
def catalog() -> Catalog:
    return Catalog()


@pytest.fixture
def listings(catalog: Catalog) -> Iterator[Listings]:
    reads = ArchiveReads(2, metrics=Metrics())
    listings = Listings(catalog.listing, reads)
    yield listings
    catalog.end(10)
    listings.close()
    reads.close()


async def number_of(listings: Listings) -> str:
    """Which listing somebody was given."""
    listing, _ = await listings.newest()
    assert isinstance(listing, Listing)
    return listing.damage[0]


async def test_whoever_asks_while_one_goes_on_shares_the_next_one(catalog: Catalog, listings: Listings) -> None:
    first = asyncio.create_task(listings.newest())
    await until(lambda: catalog.begun == 1)
    others = [asyncio.create_task(listings.newest()) for _ in range(3)]
    await asyncio.sleep(0)
    catalog.end()
    await until(lambda: catalog.begun == 2)
    last = asyncio.create_task(number_of(listings))
    await asyncio.sleep(0)
    catalog.end(2)

    alone = STEP + LISTED_RECORD * RECORDS_LOOKED_AT
    shared = STEP + LISTED_RECORD * RECORDS_LOOKED_AT // 3
    assert await first == (Listing(damage=("1",), looked_at=RECORDS_LOOKED_AT), alone)
    assert [await other for other in others] == [
        (Listing(damage=("2",), looked_at=RECORDS_LOOKED_AT), shared) for _ in others
    ]
    assert await last == "3"
    assert catalog.begun == 3


async def test_listing_that_nobody_waits_for_any_more_goes_on_and_the_next_is_a_new_one(
    catalog: Catalog, listings: Listings
) -> None:
    gone = asyncio.create_task(listings.newest())
    await until(lambda: catalog.begun == 1)
    gone.cancel()
    next_one = asyncio.create_task(number_of(listings))
    await asyncio.sleep(0)
    assert catalog.begun == 1

    catalog.end(2)

    assert await next_one == "2"


async def test_fault_is_told_to_all_who_share_it_and_the_next_listing_is_tried(
    catalog: Catalog, listings: Listings
) -> None:
    catalog.is_failing = True
    both = [asyncio.create_task(listings.newest()) for _ in range(2)]
    catalog.end()

    told = [await one for one in both]

    assert [(str(error), work) for error, work in told] == [("the disk is away", STEP)] * 2
    catalog.is_failing = False
    catalog.end()
    assert await number_of(listings) == "2"


async def test_bug_of_ours_reaches_who_waits_for_it_and_no_log_where_nobody_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> Listing:
        raise ZeroDivisionError

    reads = ArchiveReads(1, metrics=Metrics())
    listings = Listings(fail, reads)

    with pytest.raises(ZeroDivisionError):
        await listings.newest()
    gone = asyncio.create_task(listings.newest())
    await asyncio.sleep(0)
    gone.cancel()
    with pytest.raises(ZeroDivisionError):
        await listings.newest()

    assert caplog.text == ""
    reads.close()


async def test_what_waits_when_it_is_closed_is_cancelled(catalog: Catalog, listings: Listings) -> None:
    waiting = [asyncio.create_task(listings.newest())]
    await until(lambda: catalog.begun == 1)
    waiting.append(asyncio.create_task(listings.newest()))
    await asyncio.sleep(0)

    listings.close()

    assert [type(one) for one in await asyncio.gather(*waiting, return_exceptions=True)] == [asyncio.CancelledError] * 2


async def test_listing_that_does_not_end_takes_one_thread_and_the_next_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_period(tmp_path, [envelope(1, created=START, topic=NEWS)])
    pipe = tmp_path / RECORDS / "2024-10-05.json"
    os.mkfifo(pipe)  # to open it waits for a writer
    folder = NoticedFolder(tmp_path)
    source = ArchiveSource(folder, at_once=2, cache_bytes=0, is_expected=lambda: True, metrics=Metrics())

    monkeypatch.setattr(reads_module, "READ_TIMEOUT_S", 0.1)
    with pytest.raises(StoreError, match="has not answered within"):
        await source.periods()
    await until(folder.is_listed.is_set)  # else the next could be first, if the threads start late
    monkeypatch.undo()
    for _ in range(3):
        with pytest.raises(StoreError, match="is still being listed"):
            await source.periods()

    moved = pipe.rename(tmp_path / "pipe")
    os.close(os.open(moved, os.O_WRONLY))
    assert [period.name for period in await listed_again(source)] == ["2024-10-04"]
    source.close()


async def listed_again(source: ArchiveSource) -> Sequence[Period]:
    """What there is, as soon as the listing that did not end has ended."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return await source.periods()
            except StoreError:
                await asyncio.sleep(0.01)


async def test_records_that_are_looked_at_are_charged_and_a_folder_that_has_not_changed_hardly(tmp_path: Path) -> None:
    for day in range(20):
        write_period(tmp_path, [envelope(day, created=START + day * DAY, topic=NEWS)])
    source = ArchiveSource(FolderFiles(tmp_path), at_once=1, cache_bytes=0, is_expected=lambda: True, metrics=Metrics())
    charged: list[int] = []
    payer = Payer(charge=charged.append)
    nothing = Query(EVER[1], EVER[1], FULL)

    await source.find(nothing, 10, above=None, payer=payer)
    assert sum(charged) == STEP + 20 * LISTED_RECORD
    settle(tmp_path)
    await source.find(nothing, 10, above=None, payer=OURSELVES)
    charged.clear()
    await source.find(nothing, 10, above=None, payer=payer)
    assert sum(charged) == STEP
    source.close()


async def test_change_at_the_same_time_as_the_last_is_seen_though_our_clock_is_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_period(tmp_path, [envelope(1, created=START, topic=NEWS)])
    folder = SlowClock(tmp_path)
    source = ArchiveSource(folder, at_once=1, cache_bytes=0, is_expected=lambda: True, metrics=Metrics())
    await source.periods()

    write_period(tmp_path, [envelope(2, created=START + DAY, topic=NEWS)])
    assert len(await source.periods()) == 2

    monkeypatch.setattr(catalog_module, "_SETTLED_S", 0.0)  # time goes by
    await source.periods()
    folder.is_listed.clear()
    await source.periods()
    assert not folder.is_listed.is_set()
    source.close()


async def test_record_that_is_written_over_is_read_as_soon_as_its_files_are_missed(tmp_path: Path) -> None:
    """As `cp` puts back a copy of the archive: no name of a record comes or goes."""
    kept = [envelope(number, created=START + number, topic=NEWS) for number in range(3)]
    write_period(tmp_path / "copy", kept, run="run-0", snapshot=False)
    write_period(tmp_path / "archive", kept, run="run-1", snapshot=False)
    settle(tmp_path / "archive")
    reading = Asking()
    reading.source = ArchiveSource(
        FolderFiles(tmp_path / "archive"), at_once=1, cache_bytes=0, is_expected=lambda: True, metrics=Metrics()
    )
    query = Query(*EVER, FULL)
    assert await reading.answer(query) == raws(answer(kept, query))

    for file in (tmp_path / "archive").rglob("*run-1*"):
        file.unlink()
    for file in filter(Path.is_file, (tmp_path / "copy").rglob("*")):
        shutil.copyfile(file, tmp_path / "archive" / file.relative_to(tmp_path / "copy"))

    assert await reading.answer(query) == raws(answer(kept, query))
    reading.source.close()
