"""mailserver.catchup.archived: store and archive find out what each lacks, and the store gets back what it lost."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.archive.reading.by_id import ItemsOfTime
from mailserver.archive.reading.id_sums import Span
from mailserver.archive.reading.source import ArchiveSource
from mailserver.catchup import archived as archived_module
from mailserver.catchup.compared import Compared
from mailserver.errors import StoreError
from mailserver.waku.acceptance import Requirements
from mailserver.waku.bloom import Interest
from tests.archive.reading.parquet import envelope
from tests.catchup.pairs import NOW, TOPICS, newest_first, pair, some
from tests.loops import without_debug
from tests.properties import settings
from tests.store.samples import DAY, NEWS, START


async def test_store_gets_what_only_the_archive_has_and_both_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mailserver.catchup")
    everything = some(60)

    async with pair(tmp_path, everything[40:], everything[:50]) as both:
        first = await both.compare()
        second = await both.compare()

        assert first == Compared(START, NOW, START, archived=50, missing=40, stored=40, refused=0, unarchived=10)
        assert second == replace(first, missing=0, stored=0)
        assert await both.stored() == newest_first(everything)
    assert (
        f"compared with the archive from={START} to={NOW} archived=50 missing=40 stored=40 refused=0 unarchived=10"
        in caplog.messages
    )


async def test_store_that_was_lost_gets_everything_back_as_received_now(tmp_path: Path) -> None:
    everything = some(200, step=600)

    async with pair(tmp_path, [], everything) as both:
        done = await both.compare()

        assert (done.archived, done.missing, done.stored, done.unarchived) == (200, 200, 200, 0)
        assert await both.stored() == newest_first(everything)
        assert [(day.day, day.envelopes) for day in await both.store.reception_days(9)] == [(NOW // DAY, 200)]


async def test_all_time_is_compared_in_few_steps(tmp_path: Path) -> None:
    old = [envelope(number, created=1 + number * 400 * DAY, topic=NEWS, received=START) for number in range(9)]

    async with pair(tmp_path, old[::2], old) as both:
        with without_debug():
            done = await both.compare(since=0)

        assert (done.lower, done.archived, done.stored) == (1, 9, 4)
        assert len(both.shown) < START // DAY / 20


async def test_dry_run_stores_nothing(tmp_path: Path) -> None:
    everything = some(60)

    async with pair(tmp_path, everything[40:], everything[:50]) as both:
        done = await both.compare(takes=False)

        assert (done.missing, done.stored, done.unarchived) == (40, 0, 10)
        assert not done.is_complete
        assert await both.stored() == newest_first(everything[40:])


async def test_only_the_range_is_compared(tmp_path: Path) -> None:
    everything = some(60)

    async with pair(tmp_path, everything[30:], everything[:30]) as both:
        done = await both.compare(since=everything[10].created, until=everything[40].created)

        assert (done.archived, done.stored, done.unarchived) == (20, 20, 11)
        assert await both.stored() == newest_first(everything[10:])


async def test_what_retention_has_deleted_stays_deleted(tmp_path: Path) -> None:
    everything = some(60)

    async with pair(tmp_path, everything[40:], everything, pruned=everything[29].created) as both:
        done = await both.compare(since=0)

        assert (done.lower, done.archived, done.stored) == (everything[29].created + 1, 30, 10)
        assert await both.stored() == newest_first(everything[30:])


async def test_what_the_settings_do_not_accept_is_not_stored(tmp_path: Path) -> None:
    everything = some(60)
    news_only = Requirements(0.0, Interest(topics=frozenset({NEWS})))

    async with pair(tmp_path, [], everything) as both:
        done = await both.compare(requirements=news_only)

        assert (done.missing, done.stored, done.refused) == (60, 20, 40)
        assert done.is_complete
        assert await both.stored() == newest_first(everything[::3])


@pytest.mark.parametrize("alike", [1, 9], ids=["of many seconds", "of few seconds"])
async def test_many_are_compared_some_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alike: int) -> None:
    monkeypatch.setattr(archived_module, "ITEMS_AT_ONCE", 4)
    monkeypatch.setattr(archived_module, "ENVELOPES_AT_ONCE", 3)
    everything = [envelope(number, created=START + number // alike, topic=TOPICS[number % 3]) for number in range(50)]
    read: list[int] = []
    newest_items = ArchiveSource.newest_items

    async def counted(source: ArchiveSource, network_topic: str, times: Sequence[Span], most: int) -> ItemsOfTime:
        part = await newest_items(source, network_topic, times, most)
        read.append(len(part.items))
        return part

    monkeypatch.setattr(ArchiveSource, "newest_items", counted)
    async with pair(tmp_path, everything[::4], everything[1:]) as both:
        done = await both.compare()

        assert (done.archived, done.missing, done.stored, done.unarchived) == (49, 37, 37, 1)
        assert await both.stored() == newest_first(everything)
    assert sum(read) == 49
    assert max(read) == (3 if alike == 1 else alike)  # a second that may not be whole waits
    assert [one.reached for one in both.shown] == sorted((one.reached for one in both.shown), reverse=True)
    assert both.shown[-1] == done


async def test_archive_that_cannot_be_read_ends_the_comparison(tmp_path: Path) -> None:
    everything = some(10)

    async with pair(tmp_path, [], everything) as both:
        for file in (tmp_path / "archive").glob("**/part-*"):
            file.unlink()
        with pytest.raises(StoreError, match="cannot read the archive"):
            await both.compare()


@pytest.mark.slow
@settings(max_examples=30)
@given(st.data())
def test_any_difference_is_found_exactly(data: st.DataObject) -> None:
    everything = [
        envelope(
            number,
            created=START + data.draw(st.sampled_from([0, 1, 2, DAY - 1, DAY, 3 * DAY])),
            topic=data.draw(st.sampled_from(TOPICS)),
            received=START + number % 4 * DAY,
        )
        for number in range(data.draw(st.integers(0, 70)))
    ]
    where = [data.draw(st.sampled_from(["store", "archive", "both"])) for _ in everything]
    stored = [one for one, place in zip(everything, where, strict=True) if place != "archive"]
    archived = [one for one, place in zip(everything, where, strict=True) if place != "store"]

    async def check(folder: Path) -> None:
        async with pair(folder, stored, archived) as both:
            done = await both.compare()
            assert done.archived == len(archived)
            assert (done.missing, done.stored) == (where.count("archive"),) * 2
            assert done.unarchived == where.count("store")
            assert await both.stored() == newest_first(everything)

    with TemporaryDirectory() as folder:
        asyncio.run(check(Path(folder)))


DONE = Compared(100, 299, 100, archived=60, missing=40, stored=30, refused=10, unarchived=7)


def test_report_says_what_was_found() -> None:
    begin, end = "archive: 60 envelopes compared, 40 of them missing here", "7 of the store's are not in the archive"

    assert DONE.report(as_json=False) == f"{begin}, 30 stored, 10 dropped (not accepted by the settings); {end}"
    assert replace(DONE, stored=40, refused=0).report(as_json=False) == f"{begin}, 40 stored; {end}"


def test_what_was_found_is_read_from_its_json() -> None:
    assert Compared.from_json(DONE.as_json()) == DONE
    assert DONE.report(as_json=True).startswith('{"lower": 100, "upper": 299,')


@pytest.mark.parametrize(
    ("done", "shown"),
    [
        (replace(DONE, reached=300), ("60 envelopes of the archive, 40 of them missing here", 0, 200)),
        (replace(DONE, reached=250), ("60 envelopes of the archive, 40 of them missing here", 50, 200)),
        (Compared(500, 299, 300), ("0 envelopes of the archive, 0 of them missing here", 0, 1)),
    ],
)
def test_progress_is_that_of_the_times(done: Compared, shown: tuple[str, int, int]) -> None:
    assert done.overview() == shown
