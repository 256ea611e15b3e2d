"""mailserver.history.merged, merged_ids: what is pruned between search and reading is answered from the archive."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mailserver.archive.access.folder import FolderFiles
from mailserver.archive.reading.source import ArchiveSource
from mailserver.errors import StoreError
from mailserver.history.merged import MergedHistory
from mailserver.history.merged_ids import MergedIds
from mailserver.ids.envelopes import envelope_muid
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC, Muid, sync_id
from mailserver.metrics.registry import Metrics
from mailserver.reconcile.sides import Needed
from mailserver.store.engine.keys import HASH_PREFIX_BYTES
from mailserver.store.interface import NewEnvelope, Page, Payer, Query
from mailserver.store.message_ids import FoundEnvelopes, StoreWithIds
from mailserver.store.retention import END_OF_TIME, Surplus
from mailserver.waku.bloom import Interest, bloom_of
from mailserver.waku.envelope import decode_envelope
from tests.archive.reading.parquet import envelope, write_period
from tests.history.test_merged import read_all, several
from tests.store.engines import EACH_ENGINE, ENGINES, Engine
from tests.store.indexing import ids_indexed_at_once
from tests.store.samples import DAY, EVER, EVERY_BYTE, FULL, NEWS, SPORT, START, answer, place, raws

EVERYTHING = Query(*EVER, FULL)


@pytest.fixture(scope="module", autouse=True)
def _indexed_at_once() -> Iterator[None]:
    with ids_indexed_at_once():
        yield


@pytest.fixture(params=EACH_ENGINE)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    return ENGINES[request.param](tmp_path)


class Both:
    """A store that has removed nothing yet, and an archive."""

    def __init__(self, store: StoreWithIds, source: ArchiveSource) -> None:
        self.store = store
        self.history = MergedHistory(store, source)
        self.ids = MergedIds(store, store.message_ids, source)


@contextlib.asynccontextmanager
async def both(
    engine: Engine, folder: Path, hot: Sequence[NewEnvelope], archived: Sequence[NewEnvelope]
) -> AsyncIterator[Both]:
    async with engine.open() as store:
        await store.put(hot)
    engine.change("UPDATE removed SET until = 0, pruned = 0")
    for day in {one.received // DAY for one in archived}:
        write_period(folder / "archive", [one for one in archived if one.received // DAY == day])
    source = ArchiveSource(
        FolderFiles(folder / "archive"), at_once=2, cache_bytes=2**20, is_expected=lambda: True, metrics=Metrics()
    )
    try:
        async with engine.open() as store:
            yield Both(store, source)
    finally:
        source.close()


async def prune(store: StoreWithIds, count: int) -> None:
    """Delete the oldest by reception: by number, row by row."""
    assert (await store.prune(Surplus(END_OF_TIME, count))).envelopes == count


async def read_some(page: Page, count: int) -> list[bytes]:
    return (await page.read(count, EVERY_BYTE)).split()


async def test_page_that_was_pruned_before_it_is_read_is_whole(engine: Engine, tmp_path: Path) -> None:
    everything = several(30)

    async with both(engine, tmp_path, everything, everything) as sources:
        page = await sources.history.find(EVERYTHING, 20)
        await prune(sources.store, 25)  # the page began in the store alone, and its newest five are there yet
        read = await page.read(1000, EVERY_BYTE)

        assert read.split() == raws(answer(everything, EVERYTHING)[:20])
        assert read.archived == 15
        assert page.end == place(everything[10])
        assert page.last_hash == everything[10].hash
        assert page.left == 0
        following = await sources.history.find(replace(EVERYTHING, below=page.end), 20)
        assert await read_all(following) == raws(everything[9::-1])
        assert following.end is None


async def test_what_is_pruned_again_and_again_while_a_page_is_read_is_all_there(engine: Engine, tmp_path: Path) -> None:
    everything = several(40)
    expected = raws(answer(everything, EVERYTHING))

    async with both(engine, tmp_path, everything[4:], everything) as sources:
        page = await sources.history.find(EVERYTHING, 36)
        found = await read_some(page, 5)
        for _ in range(3):
            await prune(sources.store, 10)
            found += await read_some(page, 5)
        found += await read_all(page, 7, 400)

        assert found == expected[:36]
        assert page.end == place(everything[4])


async def test_place_of_each_that_was_read_is_known_though_some_were_found_again(
    engine: Engine, tmp_path: Path
) -> None:
    everything = several(30)

    async with both(engine, tmp_path, everything[2:], everything) as sources:
        await prune(sources.store, 6)  # what is found first is of both
        engine.change("UPDATE envelopes SET raw = '' WHERE seq IN (20, 27)")
        page = await sources.history.find(EVERYTHING, 29)
        sizes = [*(await page.read(5, EVERY_BYTE)).sizes]
        for _ in range(2):
            await prune(sources.store, 7)
            sizes += (await page.read(9, EVERY_BYTE)).sizes
        sizes += (await page.read(100, EVERY_BYTE)).sizes
        places = [page.place(number) for number in range(len(sizes))]

    assert [number for number, size in enumerate(sizes) if not size] == [1, 8]
    assert [(created, key[:HASH_PREFIX_BYTES]) for created, key in places] == [
        (one.created, one.hash[:HASH_PREFIX_BYTES]) for one in everything[:0:-1]
    ]


async def test_gap_in_the_middle_of_a_page_is_filled(engine: Engine, tmp_path: Path) -> None:
    everything = [one._replace(received=START - DAY * (number in {4, 5, 9})) for number, one in enumerate(several(14))]

    async with both(engine, tmp_path, everything, everything) as sources:
        page = await sources.history.find(EVERYTHING, 100)
        await prune(sources.store, 3)

        assert await read_all(page, 3) == raws(everything[::-1])
        assert page.end is None


@pytest.mark.parametrize(
    "interest", [Interest(topics=frozenset({NEWS, SPORT})), Interest(bloom=bloom_of([SPORT]))], ids=["topics", "bloom"]
)
async def test_only_what_is_wanted_is_found_again(engine: Engine, tmp_path: Path, interest: Interest) -> None:
    everything = [envelope(n, created=START + n // 3, topic=(NEWS, SPORT)[n % 2], size=40) for n in range(40)]
    query = Query(START + 2, START + 11, interest)

    async with both(engine, tmp_path, everything, everything) as sources:
        page = await sources.history.find(query, 15)
        await prune(sources.store, 30)

        assert await read_all(page, 4, 300) == raws(answer(everything, query)[:15])


async def test_what_neither_has_is_left_out(engine: Engine, tmp_path: Path) -> None:
    everything = several(12)
    archived = [one for number, one in enumerate(everything) if number not in {0, 1, 7}]

    async with both(engine, tmp_path, everything, archived) as sources:
        page = await sources.history.find(EVERYTHING, 100)
        newest = await read_some(page, 10)
        await prune(sources.store, 12)

        assert newest == raws(everything[:1:-1])
        assert page.left == 2
        assert (await page.read(100, EVERY_BYTE)).sizes == []
        assert page.left == 0
        assert page.end is None


async def test_finding_again_is_charged_to_the_requester(engine: Engine, tmp_path: Path) -> None:
    everything = several(12)
    charged: list[int] = []

    async with both(engine, tmp_path, everything, everything) as sources:
        page = await sources.history.find(EVERYTHING, 100, payer=Payer("group", "member", charged.append))
        await prune(sources.store, 12)
        charged.clear()
        await read_all(page)

        assert sum(charged) > 2000  # a search of the archive


async def test_fault_of_the_archive_is_one_of_the_page(engine: Engine, tmp_path: Path) -> None:
    everything = several(12)

    async with both(engine, tmp_path, everything, everything) as sources:
        page = await sources.history.find(EVERYTHING, 100)
        await prune(sources.store, 3)
        for file in (tmp_path / "archive").rglob("part-*"):
            file.write_bytes(b"PAR1")

        assert await read_some(page, 9) == raws(everything[:2:-1])
        with pytest.raises(StoreError, match="cannot read the archive"):
            await page.read(9, EVERY_BYTE)


# By their ids


def muids(envelopes: Sequence[NewEnvelope]) -> list[Muid]:
    return [envelope_muid(DEFAULT_NETWORK_TOPIC, decode_envelope(one.raw)) for one in envelopes]


async def all_of(found: FoundEnvelopes, at_once: int = 3) -> list[bytes]:
    envelopes: list[bytes] = []
    while found.left:
        envelopes += (await found.read(at_once, EVERY_BYTE)).split()
    return envelopes


async def test_envelopes_by_muid_come_in_the_order_asked_for_though_some_were_pruned(
    engine: Engine, tmp_path: Path
) -> None:
    everything = several(20)
    asked = [everything[number] for number in (15, 3, 19, 2, 4, 11, 0, 17)]

    async with both(engine, tmp_path, everything, everything) as sources:
        found = await sources.ids.find(muids(asked))
        begun = (await found.read(1, EVERY_BYTE)).split()
        await prune(sources.store, 12)

        assert begun + await all_of(found) == raws(asked)


async def test_envelopes_by_id_are_all_there_though_some_were_pruned(engine: Engine, tmp_path: Path) -> None:
    everything = several(20)
    wanted = [Needed(START, START + 9, [*map(sync_id, muids(everything[2:7]))])]
    wanted += [Needed(one.created, one.created, [*map(sync_id, muids([one]))]) for one in everything[15:]]

    async with both(engine, tmp_path, everything, everything) as sources:
        found = await sources.ids.find_items(wanted)
        begun = (await found.read(2, EVERY_BYTE)).split()
        await prune(sources.store, 16)
        rest = await all_of(found)

        assert len(begun) == 2
        assert sorted(begun + rest) == sorted(raws([*everything[2:7], *everything[15:]]))


@pytest.mark.integration
async def test_what_another_mailserver_prunes_is_answered_from_the_archive(tmp_path: Path) -> None:
    """This one learns of it only from what it reads."""
    everything = several(30)
    engine = ENGINES["postgres"](tmp_path)
    expected = raws(answer(everything, EVERYTHING))

    async with both(engine, tmp_path, everything, everything) as sources, engine.open() as other:
        page = await sources.history.find(EVERYTHING, 100)
        by_id = await sources.ids.find(muids(everything))
        found = await read_some(page, 4)
        await prune(other, 25)

        assert await all_of(by_id) == raws(everything)
        assert found + await read_all(page, 6) == expected


@pytest.mark.integration
async def test_id_that_another_mailserver_has_pruned_is_looked_for_in_the_archive(tmp_path: Path) -> None:
    everything = several(30)
    engine = ENGINES["postgres"](tmp_path)

    async with both(engine, tmp_path, everything, everything) as sources, engine.open() as other:
        await prune(other, 25)

        assert await all_of(await sources.ids.find(muids(everything[:5]))) == raws(everything[:5])
        items = [Needed(START, START + 9, [*map(sync_id, muids(everything[:5]))])]
        assert await all_of(await sources.ids.find_items(items)) == raws(everything[:5])


@pytest.mark.integration
async def test_days_that_are_dropped_before_they_are_read_are_answered_from_the_archive(tmp_path: Path) -> None:
    today = int(time.time()) // DAY
    everything = [
        envelope(3 * day + n, created=(today - 12 + day) * DAY + n, topic=NEWS) for day in range(6) for n in range(3)
    ]
    engine = ENGINES["postgres"](tmp_path)

    async with both(engine, tmp_path, everything, everything) as sources:
        page = await sources.history.find(EVERYTHING, 100)
        found = await read_some(page, 2)
        deleted = [await sources.store.prune(Surplus((today - 8) * DAY, 100)) for _ in range(4)]

        assert [each.envelopes for each in deleted] == [3, 3, 3, 3]  # each day is dropped by itself
        assert found + await read_all(page, 4) == raws(everything[::-1])


@pytest.mark.parametrize("at_once", [1, 3, 100])
async def test_rows_that_are_damaged_are_left_out_and_hold_up_nothing(
    engine: Engine, tmp_path: Path, at_once: int
) -> None:
    everything = several(12)
    sound = [one for number, one in enumerate(everything, 1) if number not in {1, 5, 8, 9, 12}]

    async with both(engine, tmp_path, everything, everything[:3]) as sources:
        await sources.ids.find(muids(everything[:1]))  # all are indexed
        engine.change("UPDATE envelopes SET raw = '' WHERE seq IN (1, 5, 8, 9, 12)")
        page = await sources.history.find(EVERYTHING, 100)
        found = await sources.ids.find(muids(everything))
        async with asyncio.timeout(10):
            assert await read_all(page, at_once) == raws(sound[::-1])
            assert await all_of(found, at_once) == raws(sound)
        assert page.end is None
