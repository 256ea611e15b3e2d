"""mailserver.history.merged: store and archive answer as one store would that holds all."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.archive.access.folder import FolderFiles
from mailserver.archive.reading.source import ArchiveSource
from mailserver.errors import StoreError
from mailserver.history.merged import MergedHistory
from mailserver.metrics.registry import Metrics
from mailserver.store.interface import GoesOn, NewEnvelope, Page, Payer, Query, always
from mailserver.store.retention import END_OF_TIME, Surplus
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import SqliteStore, open_store
from mailserver.waku.bloom import Interest, bloom_of
from mailserver.waku.envelope import EnvelopeHash, Topic
from tests.archive.reading.parquet import envelope, write_period
from tests.properties import settings
from tests.store.samples import (
    DAY,
    EVER,
    EVERY_BYTE,
    FULL,
    NEWS,
    SPORT,
    START,
    UNSHRUNK,
    answer,
    change,
    make_store,
    place,
    raws,
)

TOPICS = (NEWS, SPORT, Topic(b"\x9a\x00\x00\x01"))
SECONDS = [START, START + 1, START + 2, START + DAY - 1, START + DAY, START + 2 * DAY]


@contextlib.asynccontextmanager
async def merged(
    folder: Path, hot: Sequence[NewEnvelope], archived: Sequence[NewEnvelope], *, until: int | None = None
) -> AsyncIterator[tuple[MergedHistory, SqliteStore]]:
    """A history of a store and an archive; the store has removed up to `until`; by default, all it may."""
    path, archive = folder / STORE_FILE, folder / "archive"
    make_store(path, hot)
    if until is not None:
        change(path, f"UPDATE removed SET until = {until}")
    for day in {one.received // DAY for one in archived}:
        write_period(archive, [one for one in archived if one.received // DAY == day])
    source = ArchiveSource(
        FolderFiles(archive), at_once=2, cache_bytes=2**20, is_expected=lambda: bool(archived), metrics=Metrics()
    )
    try:
        async with open_store(path) as store:
            yield MergedHistory(store, source), store
    finally:
        source.close()


async def read_all(page: Page, count: int = 1000, max_bytes: int = EVERY_BYTE) -> list[bytes]:
    found: list[bytes] = []
    while page.left:
        read = await page.read(count, max_bytes)
        assert 0 < len(read.sizes) <= count
        assert len(read.body) <= max_bytes or len(read.split()) == 1
        found += read.split()
    return found


def several(count: int, *, step: int = 1, first: int = 0, size: int = 40) -> list[NewEnvelope]:
    """Envelopes a second apart, topics in turns."""
    return [
        envelope(number, created=START + number * step, topic=TOPICS[number % 3], size=size)
        for number in range(first, first + count)
    ]


async def test_page_is_filled_across_the_seam(tmp_path: Path) -> None:
    everything = several(20)
    query = Query(*EVER, FULL)

    async with merged(tmp_path, everything[10:], everything[:10]) as (history, _):
        page = await history.find(query, 15)
        assert page.left == 15
        found = await read_all(page)

        assert found == raws(answer(everything, query)[:15])
        assert page.end == place(everything[5])
        assert page.last_hash == everything[5].hash
        assert not page.ended_early


async def test_what_is_in_both_comes_once_and_from_the_store(tmp_path: Path) -> None:
    everything = several(20)

    async with merged(tmp_path, everything[5:], everything[:15]) as (history, _):
        page = await history.find(Query(*EVER, FULL), 100)
        read = await page.read(100, EVERY_BYTE)

        assert read.split() == raws(reversed(everything))
        assert read.archived == 5
        assert page.end is None


async def test_page_that_is_just_full_says_that_there_is_no_more(tmp_path: Path) -> None:
    everything = several(20)

    async with merged(tmp_path, everything[10:], everything[:10]) as (history, _):
        page = await history.find(Query(*EVER, FULL), 20)

        assert len(await read_all(page)) == 20
        assert page.end is None


async def test_page_of_the_store_alone_ends_where_the_archive_goes_on(tmp_path: Path) -> None:
    everything = several(20)

    async with merged(tmp_path, everything[10:], everything[:10]) as (history, _):
        page = await history.find(Query(*EVER, FULL), 10)
        assert len(await read_all(page)) == 10
        assert page.end == place(everything[10])


async def test_archive_is_not_looked_at_above_what_was_ever_removed(tmp_path: Path) -> None:
    everything = several(20)
    removed = everything[9].created

    async with merged(tmp_path, everything[10:], [], until=removed) as (_, store):

        class Never:
            async def find(self, query: Query, most: int, **_: object) -> object:
                raise AssertionError(f"asked for {most} of {query}")

        history = MergedHistory(store, Never())  # type: ignore[arg-type]
        for query, limit in [
            (Query(removed + 1, EVER[1], FULL), 100),  # the range lies above
            (Query(0, EVER[1], FULL), 9),  # the page is full before
            (Query(0, EVER[1], FULL, place(everything[19])), 5),
        ]:
            page = await history.find(query, limit)

            assert await read_all(page) == raws(answer(everything, query)[:limit])
        with pytest.raises(AssertionError, match="asked for"):
            await history.find(Query(removed, EVER[1], FULL), 100)


async def test_newest_that_was_removed_is_asked_of_the_archive(tmp_path: Path) -> None:
    everything = several(20)
    removed = everything[9].created

    async with merged(tmp_path, everything[10:], everything[:12], until=removed) as (history, _):
        page = await history.find(Query(removed, removed, FULL), 100)

        assert await read_all(page) == [everything[9].raw]


async def test_pruning_between_two_pages_takes_nothing_from_the_answer(tmp_path: Path) -> None:
    everything = several(30)
    query = Query(*EVER, FULL)

    async with merged(tmp_path, everything, everything, until=0) as (history, store):
        first = await history.find(query, 12)
        found = await read_all(first)
        assert first.end is not None
        await store.prune(Surplus(END_OF_TIME, 25))
        second = await history.find(replace(query, below=first.end), 12)
        found += await read_all(second)
        assert second.end is not None
        await store.prune(Surplus(END_OF_TIME, 25))
        third = await history.find(replace(query, below=second.end), 12)
        found += await read_all(third)

        assert found == raws(answer(everything, query))
        assert third.end is None


async def test_long_envelope_of_the_next_source_waits_for_a_packet_of_its_own(tmp_path: Path) -> None:
    everything = [*several(4, size=3000), *several(4, first=4, size=40), *several(4, first=8, size=3000)]
    hot = [one for number, one in enumerate(everything) if number % 2]
    archived = [one for number, one in enumerate(everything) if not number % 2]

    async with merged(tmp_path, hot, archived) as (history, _):
        for count, max_bytes in [(100, 200), (100, 3200), (3, 6100), (1, 50), (100, 2**20)]:
            page = await history.find(Query(*EVER, FULL), 100)

            assert await read_all(page, count, max_bytes) == raws(answer(everything, Query(*EVER, FULL)))


async def test_both_searches_are_charged_to_the_requester(tmp_path: Path) -> None:
    everything = several(20)
    charged: list[int] = []

    async with merged(tmp_path, everything[10:], everything[:10]) as (history, store):
        payer = Payer("group", "member", charged.append)
        await read_all(await store.find(Query(*EVER, FULL), 100, payer=payer))
        hot, charged[:] = sum(charged), []
        await read_all(await history.find(Query(*EVER, FULL), 100, payer=payer))

        assert sum(charged) > hot + 2000


async def test_fault_of_the_archive_is_one_of_the_request(tmp_path: Path) -> None:
    everything = several(20)

    async with merged(tmp_path, everything[10:], everything[:10]) as (history, _):
        for file in (tmp_path / "archive").rglob("part-*"):
            file.write_bytes(b"PAR1")

        page = await history.find(Query(*EVER, FULL), 100)  # an index says what is there
        with pytest.raises(StoreError, match=r"cannot read the archive: .*part-.*4 bytes instead of"):
            await page.read(100, EVERY_BYTE)


# Any split, any request

interests = st.one_of(
    st.just(FULL),
    st.frozensets(st.sampled_from(TOPICS)).map(lambda wanted: Interest(topics=wanted)),
    st.frozensets(st.sampled_from(TOPICS), min_size=1).map(lambda wanted: Interest(bloom=bloom_of(wanted))),
)
histories = st.lists(
    st.tuples(
        st.builds(
            lambda number, created, topic, late, size: envelope(
                number, created=created, topic=topic, received=created + late * DAY, size=size
            ),
            st.integers(0, 60),
            st.sampled_from(SECONDS),
            st.sampled_from(TOPICS),
            st.integers(0, 2),
            st.sampled_from([40, 40, 700]),
        ),
        st.sampled_from(["hot", "archived", "both", "both"]),
    ),
    max_size=40,
    unique_by=lambda one: one[0].hash,
)


@pytest.mark.slow
@settings(max_examples=80, phases=UNSHRUNK)
@given(
    split=histories,
    interest=interests,
    bounds=st.just(EVER) | st.tuples(st.sampled_from(SECONDS), st.sampled_from(SECONDS)).map(sorted),
    limit=st.integers(1, 12),
    packet=st.tuples(st.integers(1, 9), st.sampled_from([1, 300, 5000])),
    patience=st.sampled_from([None, 0, 3000]),
    prunes=st.integers(0, 10),
)
def test_any_split_is_answered_as_by_one_store_that_holds_all(
    split: list[tuple[NewEnvelope, str]],
    interest: Interest,
    bounds: tuple[int, int],
    limit: int,
    packet: tuple[int, int],
    patience: int | None,
    prunes: int,
) -> None:
    everything = [one for one, _ in split]
    expected = answer(everything, Query(*bounds, interest))
    removed = max((one.created for one, where in split if where == "archived"), default=0)

    async def ask(folder: Path) -> None:
        hot = [one for one, where in split if where != "archived"]
        archived = [one for one, where in split if where != "hot"]
        async with merged(folder, hot, archived, until=removed) as (history, store):
            query, at = Query(*bounds, interest), 0
            archive_all_of_days_that_go = prunes and all(where != "hot" for _, where in split)
            while True:
                page = await history.find(query, limit, goes_on=_patient(patience))
                left = page.left
                found = await read_all(page, *packet)
                assert found == raws(expected[at : at + left])
                at += left
                end = page.end
                if end is None:
                    break
                assert page.ended_early or left == limit
                if page.ended_early:
                    assert patience is not None
                    assert query.below is None or end < query.below
                    assert at == len(expected) or place(expected[at]) < end
                else:
                    assert (end[0], end[1][:16]) == (expected[at - 1].created, expected[at - 1].hash[:16])
                    assert page.last_hash == expected[at - 1].hash
                query = replace(query, below=(end[0], EnvelopeHash(end[1])))
                if archive_all_of_days_that_go:
                    await store.prune(Surplus(END_OF_TIME, prunes))
            assert at == len(expected)
            if patience is None:
                assert end is None

    with TemporaryDirectory() as folder:
        asyncio.run(ask(Path(folder)))


def _patient(work: int | None) -> GoesOn:
    return always if work is None else lambda done: done < work
