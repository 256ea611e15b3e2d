"""mailserver.archive.reading: what is found in archives, and read of them, beside a plain model."""

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.archive.access.folder import FolderFiles
from mailserver.archive.days import day_name
from mailserver.archive.layout import Layout
from mailserver.archive.reading import by_id, reads, search
from mailserver.archive.reading import source as source_module
from mailserver.archive.reading.search import LOWEST_HASH
from mailserver.archive.reading.source import ArchiveSource
from mailserver.errors import StoreError
from mailserver.ids.envelopes import envelope_muid
from mailserver.ids.muid import sync_id
from mailserver.metrics.labels import ArchiveRead
from mailserver.metrics.registry import Metrics, count_of
from mailserver.reconcile.sides import Needed
from mailserver.store.interface import OURSELVES, GoesOn, NewEnvelope, Payer, Place, Query, always
from mailserver.waku.bloom import Interest, bloom_of
from mailserver.waku.envelope import EnvelopeHash, Topic, decode_envelope
from tests.archive.reading.parquet import BY_PREFIX, BY_TOPIC, envelope, write_period
from tests.properties import settings
from tests.store.samples import DAY, EVER, EVERY_BYTE, FULL, NEWS, SPORT, START, UNSHRUNK, answer, place
from tests.waiting import DEADLINE_S, until

T = TypeVar("T")
F = TypeVar("F", bound=FolderFiles)

CHAT = Topic(b"\x9a\x00\x00\x01")
TOPICS = (NEWS, SPORT, CHAT, Topic(b"\xff\x00\xff\x07"))


@contextmanager
def reading(
    archive: Path,
    *,
    cache_bytes: int = 2**24,
    expected: bool = True,
    at_once: int = 2,
    kind: type[FolderFiles] = FolderFiles,
) -> Iterator[ArchiveSource]:
    source = ArchiveSource(
        kind(archive), at_once=at_once, cache_bytes=cache_bytes, is_expected=lambda: expected, metrics=Metrics()
    )
    try:
        yield source
    finally:
        source.close()


async def raws_of(
    source: ArchiveSource, query: Query, most: int, *, above: Place | None = None, goes_on: GoesOn = always
) -> tuple[list[bytes], Place | None]:
    """What is found, read packet by packet, and how far the search came."""
    found = await source.find(query, most, above=above, payer=OURSELVES, goes_on=goes_on)
    page = source.page(found.matches, query, OURSELVES)
    raws: list[bytes] = []
    while page.left:
        raws += (await page.read(3, 400)).split()
    return raws, found.reached


def raws(envelopes: Sequence[NewEnvelope]) -> list[bytes]:
    return [one.raw for one in envelopes]


def spread(count: int, *, days: int = 3, first: int = 0) -> list[NewEnvelope]:
    """Envelopes over some days, topics in turns."""
    step = days * DAY // count
    return [
        envelope(number, created=START + step * number, topic=TOPICS[number % len(TOPICS)])
        for number in range(first, first + count)
    ]


def by_day(
    archive: Path,
    envelopes: Sequence[NewEnvelope],
    *,
    layout: Layout = BY_PREFIX,
    group_rows: int = 4,
    index: bool = True,
) -> None:
    days = {one.received // DAY for one in envelopes}
    for day in days:
        of_day = [one for one in envelopes if one.received // DAY == day]
        write_period(archive, of_day, layout=layout, group_rows=group_rows, index=index)


INTERESTS = [
    FULL,
    Interest(topics=frozenset({NEWS})),
    Interest(topics=frozenset({NEWS, CHAT, Topic(b"none")})),
    Interest(bloom=bloom_of([SPORT])),
    Interest(bloom=bloom_of([NEWS, CHAT])),
    Interest(topics=frozenset({Topic(b"none")})),
]


@pytest.mark.parametrize("index", [True, False], ids=["index", "no index"])
@pytest.mark.parametrize("layout", [BY_PREFIX, BY_TOPIC], ids=["prefix", "topic"])
@pytest.mark.parametrize("interest", INTERESTS)
async def test_everything_that_is_wanted_is_found_newest_first(
    tmp_path: Path, interest: Interest, layout: Layout, *, index: bool
) -> None:
    kept = spread(60)
    by_day(tmp_path, kept, layout=layout, index=index)
    query = Query(START + 5000, START + 2 * DAY, interest)

    with reading(tmp_path) as source:
        found, reached = await raws_of(source, query, 1000)
        again, _ = await raws_of(source, query, 1000)

    assert found == again == raws(answer(kept, query))
    assert reached is None


async def test_page_holds_no_more_than_it_may_and_the_newest(tmp_path: Path) -> None:
    kept = spread(60)
    by_day(tmp_path, kept)

    with reading(tmp_path) as source:
        found, _ = await raws_of(source, Query(*EVER, FULL), 7)

    assert found == raws(answer(kept, Query(*EVER, FULL))[:7])


async def test_envelopes_of_one_second_in_several_row_groups_are_in_the_order_of_their_hashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "STEP_WORK", 1)  # a row group at a time
    kept = [
        envelope(number, created=START, topic=TOPICS[number % 4], received=START + number % 3 * DAY)
        for number in range(24)
    ]
    by_day(tmp_path, kept, group_rows=1)

    with reading(tmp_path) as source:
        for most in (1, 5, 23):
            found, _ = await raws_of(source, Query(*EVER, FULL), most)

            assert found == raws(answer(kept, Query(*EVER, FULL))[:most])


async def test_only_row_groups_that_can_hold_the_answer_are_read(tmp_path: Path) -> None:
    by_day(tmp_path, spread(60))
    metrics = Metrics()
    source = ArchiveSource(
        FolderFiles(tmp_path), at_once=1, cache_bytes=2**24, is_expected=lambda: True, metrics=metrics
    )

    await raws_of(source, Query(START + 2 * DAY, START + 3 * DAY, Interest(topics=frozenset({SPORT}))), 1)
    source.close()

    read = {what.value: counter._value.get() for what, counter in metrics.archive_row_groups.items()}  # noqa: SLF001
    assert read["envelopes"] == 1
    assert 1 <= read["keys"] <= 2


async def test_new_installation_has_no_archive_yet(tmp_path: Path) -> None:
    with reading(tmp_path / "nothing", expected=False) as source:
        assert await raws_of(source, Query(*EVER, FULL), 7) == ([], None)
        by_day(tmp_path / "nothing", spread(4))
        found, _ = await raws_of(source, Query(*EVER, FULL), 7)

    assert len(found) == 4


# What changes while requests are answered


async def test_period_that_is_published_is_seen_by_the_next_request(tmp_path: Path) -> None:
    kept = spread(8)
    with reading(tmp_path, expected=False) as source:
        for count in range(1, 8):
            write_period(tmp_path, kept[:count], period="2024-10-04", run=f"run-{count}")

            found, _ = await raws_of(source, Query(*EVER, FULL), 100)

            assert found == raws(answer(kept[:count], Query(*EVER, FULL)))


@pytest.mark.parametrize("snapshot", [True, False])
async def test_day_that_is_replaced_while_an_answer_is_under_way_is_answered_whole(
    tmp_path: Path, *, snapshot: bool
) -> None:
    kept = spread(20, days=1)
    old = write_period(tmp_path, kept, run="run-1", snapshot=snapshot)
    query = Query(*EVER, FULL)
    with reading(tmp_path, cache_bytes=0) as source:
        found = await source.find(query, 20, above=None, payer=OURSELVES)
        page = source.page(found.matches, query, OURSELVES)
        first = (await page.read(5, EVERY_BYTE)).split()

        late = envelope(99, created=START + 70, topic=CHAT)
        write_period(tmp_path, [*kept, late], run="run-2", snapshot=snapshot)
        for file in old:
            file.unlink()
        rest = []
        while page.left:
            rest += (await page.read(5, EVERY_BYTE)).split()

    assert first + rest == raws(answer(kept, query))
    assert [page.place(number) for number in range(20)] == [place(one) for one in answer(kept, query)]


async def test_days_that_are_merged_into_a_month_are_answered_once(tmp_path: Path) -> None:
    kept = spread(30)
    by_day(tmp_path, kept)
    query = Query(*EVER, FULL)
    with reading(tmp_path, cache_bytes=0) as source:
        found = await source.find(query, 30, above=None, payer=OURSELVES)
        page = source.page(found.matches, query, OURSELVES)
        days = [path.stem for path in (tmp_path / "_records").iterdir()]

        write_period(tmp_path, kept, period="2024-10", run="m", replaces=[(day, "run-1") for day in days])
        both, _ = await raws_of(source, query, 100)  # days are there, too, until the run has removed them
        for day in days:
            (tmp_path / "_records" / f"{day}.json").unlink()
            for file in (tmp_path / f"date={day}").rglob("*.parquet"):
                file.unlink()
        under_way = []
        while page.left:
            under_way += (await page.read(7, EVERY_BYTE)).split()
        merged, _ = await raws_of(source, query, 100)

    assert both == merged == under_way == raws(answer(kept, query))


async def test_clients_that_do_not_read_take_no_more_memory_than_the_cache_may_have(tmp_path: Path) -> None:
    kept = [envelope(number, created=START + number, topic=NEWS, size=2000) for number in range(50)]
    write_period(tmp_path, kept)
    metrics = Metrics()
    source = ArchiveSource(
        FolderFiles(tmp_path), at_once=2, cache_bytes=300_000, is_expected=lambda: True, metrics=metrics
    )
    query = Query(*EVER, FULL)
    pages = []
    for _ in range(20):  # each reads 100 kB ahead
        found = await source.find(query, 50, above=None, payer=OURSELVES)
        pages.append(source.page(found.matches, query, OURSELVES))
        await pages[-1].read(1, 5000)
        assert count_of(metrics.archive_cache_bytes) <= 300_000

    for page in pages:
        read = await page.read(100, EVERY_BYTE)
        assert read.split() == raws(answer(kept, query))[1:]
    source.close()


async def charges(archive: Path) -> tuple[int, int]:
    """What it costs to find everything, and to find it again."""
    charged: list[int] = []
    payer = Payer("address", "peer", charged.append)
    with reading(archive) as source:
        await source.find(Query(*EVER, FULL), 100, above=None, payer=payer)
        cold, charged[:] = sum(charged), []
        await source.find(Query(*EVER, FULL), 100, above=None, payer=payer)
    return cold, sum(charged)


async def test_what_is_read_is_charged_and_what_is_in_memory_hardly(tmp_path: Path) -> None:
    by_day(tmp_path / "plain", spread(60), index=False)
    by_day(tmp_path / "indexed", spread(60))

    cold, warm = await charges(tmp_path / "plain")
    indexed_cold, indexed_warm = await charges(tmp_path / "indexed")

    assert cold > 60 + 1000 * 3 * len(TOPICS[:2])
    assert 0 < warm < cold / 2
    assert 0 < indexed_warm < indexed_cold < cold / 2


async def test_index_leaves_out_row_groups_that_have_not_the_topic(tmp_path: Path) -> None:
    topics = [Topic(b"\x9a\0\0" + bytes([number])) for number in range(40)]
    kept = [envelope(number, created=START + number, topic=topics[number % 40]) for number in range(160)]
    write_period(tmp_path, [one for one in kept if one.topic != topics[17]])  # between others, and nowhere
    metrics = Metrics()
    source = ArchiveSource(
        FolderFiles(tmp_path), at_once=1, cache_bytes=2**24, is_expected=lambda: True, metrics=metrics
    )

    nothing, _ = await raws_of(source, Query(*EVER, Interest(topics=frozenset({topics[17]}))), 100)
    read_for_none = count_of(metrics.archive_row_groups[ArchiveRead.KEYS])
    found, _ = await raws_of(source, Query(*EVER, Interest(topics=frozenset({topics[18]}))), 100)
    source.close()

    assert nothing == []
    assert read_for_none == 0
    assert count_of(metrics.archive_row_groups[ArchiveRead.KEYS]) == 1
    assert found == raws([one for one in reversed(kept) if one.topic == topics[18]])


# Early ends


@pytest.mark.parametrize("interest", INTERESTS)
async def test_search_that_may_not_go_on_ends_with_a_place_that_advances(tmp_path: Path, interest: Interest) -> None:
    kept = spread(60)
    by_day(tmp_path, kept)
    query = Query(START, START + 3 * DAY, interest)
    found: list[bytes] = []
    with reading(tmp_path) as source:
        for _ in range(200):
            some, reached = await raws_of(source, query, 5, goes_on=lambda _: False)
            found += some
            if len(some) == 5:
                last = answer(kept, query)[4]
                query = replace(query, below=place(last))
            elif reached is None:
                break
            else:
                assert query.below is None or reached < query.below
                query = replace(query, below=reached)

    assert found == raws(answer(kept, Query(START, START + 3 * DAY, interest)))


async def test_cursor_between_two_seconds_is_a_place(tmp_path: Path) -> None:
    kept = spread(20)
    by_day(tmp_path, kept)
    query = Query(*EVER, FULL, (kept[9].created, LOWEST_HASH))

    with reading(tmp_path) as source:
        found, _ = await raws_of(source, query, 100)

    assert found == raws(answer(kept, query))


# Any archive, any request

numbers = st.integers(0, 60)
seconds = st.sampled_from([START, START + 1, START + 2, START + DAY - 1, START + DAY, START + 2 * DAY + 5])
archived = st.lists(
    st.builds(
        lambda number, created, topic, day: envelope(number, created=created, topic=topic, received=START + day * DAY),
        numbers,
        seconds,
        st.sampled_from(TOPICS),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=40,
    unique_by=lambda one: one.hash,
)
interests = st.one_of(
    st.just(FULL),
    st.frozensets(st.sampled_from(TOPICS)).map(lambda wanted: Interest(topics=wanted)),
    st.frozensets(st.sampled_from(TOPICS)).map(lambda wanted: Interest(bloom=bloom_of(wanted))),
)
places = st.none() | st.tuples(seconds, st.sampled_from([LOWEST_HASH, EnvelopeHash(b"\x80" * 32)]))


@settings(max_examples=60, phases=UNSHRUNK)
@given(
    kept=archived,
    at_once=st.sampled_from([1, 2, 4]),
    layout=st.sampled_from([BY_PREFIX, BY_TOPIC]),
    group_rows=st.integers(1, 9),
    files_of=st.sampled_from([2, 7, 100]),
    interest=interests,
    bounds=st.just(EVER) | st.tuples(seconds, seconds).map(sorted),
    below=places,
    above=places,
    most=st.integers(1, 50),
    cache_bytes=st.sampled_from([0, 1000, 2**24]),
    indexed=st.sets(st.integers(0, 3)),
)
def test_any_archive_answers_as_the_model(
    kept: list[NewEnvelope],
    at_once: int,
    layout: Layout,
    group_rows: int,
    files_of: int,
    interest: Interest,
    bounds: tuple[int, int],
    below: Place | None,
    above: Place | None,
    most: int,
    cache_bytes: int,
    indexed: set[int],
) -> None:
    query = Query(*bounds, interest, below)
    expected = [one for one in answer(kept, query) if above is None or place(one) > above]

    async def find(archive: Path) -> tuple[list[bytes], Place | None]:
        with reading(archive, cache_bytes=cache_bytes, at_once=at_once) as source:
            return await raws_of(source, query, most, above=above)

    with TemporaryDirectory() as folder:
        for day in {one.received // DAY for one in kept}:
            of_day = [one for one in kept if one.received // DAY == day]
            has_index = day - START // DAY in indexed
            write_period(Path(folder), of_day, layout=layout, group_rows=group_rows, files_of=files_of, index=has_index)
        found, reached = asyncio.run(find(Path(folder)))

    assert found == raws(expected[:most])
    assert reached is None


@pytest.mark.parametrize(
    ("at_once", "looked_into"),
    [(1, [1, 2, 3, 4, 5, 6, 7, 8, 9, 9]), (2, [1, 3, 3, 5, 5, 7, 7, 9, 9, 9]), (4, [1, 3, 3, 7, 7, 7, 7, 9, 9, 9])],
)
async def test_periods_are_looked_into_that_a_page_may_need_and_no_more(
    tmp_path: Path, at_once: int, looked_into: list[int]
) -> None:
    """Each holds five envelopes; a search does not know that before it has looked."""
    kept = spread(45, days=9)
    by_day(tmp_path, kept, index=False)
    read: list[str] = []

    class Watched(FolderFiles):
        def read(self, name: str) -> str | None:
            read.append(name)
            return super().read(name)

    found = []
    with reading(tmp_path, at_once=at_once, cache_bytes=0, kind=Watched) as source:
        await source.periods()
        for most in range(4, 50, 5):
            read.clear()
            matches = (await source.find(Query(*EVER, FULL), most, above=None, payer=OURSELVES)).matches
            assert [one.hash for one in matches] == [one.hash for one in answer(kept, Query(*EVER, FULL))[:most]]
            found.append(len([name for name in read if name.startswith("_records/")]))

    assert found == looked_into


# While a run replaces periods


class ReplacedMeanwhile(FolderFiles):
    """An archive of which a run replaces each period just when it is first looked into, or its first file is opened
    once more. `kept`: what is in it. `is_replaced`: whether that happens."""

    kept: Sequence[NewEnvelope] = ()
    is_replaced = True
    index = True

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.opens: list[str] = []
        self.replaced: list[str] = []
        self._replacing = threading.Lock()  # several threads read

    def read(self, name: str) -> str | None:
        if self.index:
            self._replace(name.removeprefix("_records/").removesuffix(".json"))
        return super().read(name)

    def opened(self, name: str) -> Any:
        if not self.index and name in self.opens:
            self._replace(name.partition("/")[0].removeprefix("date="))
        self.opens.append(name)
        return super().opened(name)

    def _replace(self, day: str) -> None:
        of_day = [one for one in self.kept if day_name(one.received // DAY) == day]
        with self._replacing:
            if not self.is_replaced or day in self.replaced or not of_day:
                return
            self.replaced.append(day)
            shutil.rmtree(self.root / f"date={day}")
            write_period(self.root, of_day, run="run-2", snapshot=False, index=self.index)


@pytest.mark.parametrize("index", [True, False], ids=["index", "no index"])
@pytest.mark.parametrize("at_once", [1, 4])
async def test_days_that_are_replaced_one_after_the_other_are_answered_whole_and_no_other_is_read_again(
    tmp_path: Path, at_once: int, *, index: bool
) -> None:
    kept = spread(45, days=9)
    for day in {one.received // DAY for one in kept}:
        write_period(tmp_path, [one for one in kept if one.received // DAY == day], snapshot=False, index=index)

    class Files(ReplacedMeanwhile):
        pass

    Files.kept, Files.index = kept, index
    query = Query(*EVER, FULL)

    async def looked_for(*, is_replaced: bool) -> tuple[list[bytes], list[str], list[str]]:
        Files.is_replaced = False
        with watched(tmp_path, Files, at_once=at_once) as (source, files):
            await source.periods()
            Files.is_replaced = is_replaced
            found, reached = await raws_of(source, query, 100)
            assert reached is None
        return found, files.opens, files.replaced

    disturbed, opens, replaced = await looked_for(is_replaced=True)
    alone, opens_alone, _ = await looked_for(is_replaced=False)

    assert disturbed == alone == raws(answer(kept, query))
    assert sorted(replaced) == [f"2024-10-{day:02}" for day in range(4, 13)]
    if index:  # a search that began anew each time would open five times as many
        assert len(opens) < 1.5 * len(opens_alone)


async def test_envelopes_are_found_by_their_ids_and_read_while_days_are_replaced_one_after_the_other(
    tmp_path: Path,
) -> None:
    kept = spread(45, days=9)
    for day in {one.received // DAY for one in kept}:
        write_period(tmp_path, [one for one in kept if one.received // DAY == day], snapshot=False)
    items = {sync_id(envelope_muid("/waku/1", decode_envelope(one.raw))): one for one in kept}
    groups = [Needed(one.created, one.created, [item]) for item, one in items.items()]

    class Files(ReplacedMeanwhile):
        pass

    Files.kept, Files.is_replaced = kept, False
    with watched(tmp_path, Files, at_once=2) as (source, files):
        await source.periods()
        Files.is_replaced = True
        found = await source.find_items("/waku/1", groups, payer=OURSELVES)
        for day in {one.received // DAY for one in kept}:  # once more, before they are read
            shutil.rmtree(tmp_path / f"date={day_name(day)}")
            write_period(tmp_path, [one for one in kept if one.received // DAY == day], run="run-3", snapshot=False)
        page = source.page_by_id([found[item] for item in items], OURSELVES)
        read: list[bytes] = []
        while page.left:
            read += (await page.read(10, EVERY_BYTE)).split()

    assert read == raws([*items.values()])
    assert len(files.replaced) == 9


async def test_envelopes_are_found_again_by_their_ids_however_many_others_their_seconds_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_id, "MATCHES_AT_ONCE", 3)
    kept = [envelope(number, created=START + number // 10, topic=NEWS) for number in range(20)]
    old = write_period(tmp_path, kept, snapshot=False)
    wanted = [kept[0], kept[19], kept[11]]
    items = [sync_id(envelope_muid("/waku/1", decode_envelope(one.raw))) for one in wanted]
    groups = [Needed(one.created, one.created, [item]) for one, item in zip(wanted, items, strict=True)]

    with reading(tmp_path, cache_bytes=0) as source:
        found = await source.find_items("/waku/1", groups, payer=OURSELVES)
        write_period(tmp_path, kept, run="run-2", snapshot=False)
        for file in old:
            file.unlink()
        read = await source.page_by_id([found[item] for item in items], OURSELVES).read(10, EVERY_BYTE)

    assert read.split() == raws(wanted)


@contextmanager
def watched(archive: Path, kind: type[F], *, at_once: int) -> Iterator[tuple[ArchiveSource, F]]:
    """A source that keeps nothing in memory, and its files."""
    files = kind(archive)
    source = ArchiveSource(files, at_once=at_once, cache_bytes=0, is_expected=lambda: True, metrics=Metrics())
    try:
        yield source, files
    finally:
        source.close()


async def test_period_that_is_replaced_all_the_time_is_given_up(tmp_path: Path) -> None:
    kept = spread(10, days=1)
    write_period(tmp_path, kept)
    runs = count(2)

    class Files(FolderFiles):
        def read(self, name: str) -> str | None:
            text = super().read(name)
            if name.startswith("_records/"):
                write_period(tmp_path, kept, run=f"run-{next(runs)}")
            return text

    with watched(tmp_path, Files, at_once=1) as (source, _), pytest.raises(StoreError, match="has been replaced"):
        await source.find(Query(*EVER, FULL), 100, above=None, payer=OURSELVES)

    assert search.MAX_CHANGES < next(runs) < 4 * search.MAX_CHANGES


async def test_what_is_looked_into_ahead_is_no_fault_before_the_page_needs_it(tmp_path: Path) -> None:
    kept = spread(45, days=9)
    by_day(tmp_path, kept, index=False)
    for place_of in ("date=2024-10-10", "_snapshots/date=2024-10-10"):
        shutil.rmtree(tmp_path / place_of)
    query = Query(*EVER, FULL)

    with reading(tmp_path, at_once=4, cache_bytes=0) as source:
        found, _ = await raws_of(source, query, 9)
        with pytest.raises(StoreError, match="is missing"):
            await raws_of(source, query, 15)

    assert found == raws(answer(kept, query)[:9])


async def test_index_of_many_files_is_looked_through_in_slices(tmp_path: Path) -> None:
    topics = [Topic(number.to_bytes(4, "big")) for number in range(1, 121)]
    kept = [envelope(number, created=START + number, topic=topic) for number, topic in enumerate(topics)]
    write_period(tmp_path, kept, layout=BY_TOPIC)
    charged: list[int] = []
    query = Query(*EVER, Interest(bloom=bloom_of(topics)))

    with reading(tmp_path) as source:
        found = await source.find(query, 1000, above=None, payer=Payer(charge=charged.append))

    assert len(found.matches) == len(topics)
    of_directory = reads.INDEX + reads.RECORD_FILE * len(topics)
    assert sum(charged) > 120 * reads.INDEX_FILE > 2 * reads.STEP_WORK
    assert max(charged) <= reads.STEP + reads.STEP_WORK + of_directory


async def test_record_of_many_files_is_charged_though_nobody_waits_for_it_any_more(tmp_path: Path) -> None:
    topics = [Topic(number.to_bytes(4, "big")) for number in range(1, 121)]
    kept = [envelope(number, created=START + number, topic=topic) for number, topic in enumerate(topics)]
    write_period(tmp_path, kept, layout=BY_TOPIC)
    is_read, may_end = threading.Event(), threading.Event()

    class Files(FolderFiles):
        def read(self, name: str) -> str | None:
            if is_listed:
                is_read.set()
                may_end.wait(DEADLINE_S)
            return super().read(name)

    charged: list[int] = []
    is_listed = False
    with watched(tmp_path, Files, at_once=1) as (source, _):
        await source.periods()
        is_listed = True
        asking = asyncio.create_task(
            source.find(Query(*EVER, FULL), 10, above=None, payer=Payer(charge=charged.append))
        )
        await until(is_read.is_set)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        may_end.set()

    assert sum(charged) >= reads.RECORD_FILE * len(topics)


async def test_page_has_no_more_reads_waiting_than_threads_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [Topic(number.to_bytes(4, "big")) for number in range(1, 61)]
    kept = [envelope(number, created=START + number, topic=topic) for number, topic in enumerate(topics)]
    write_period(tmp_path, kept, layout=BY_TOPIC)
    under_way, most = 0, 0

    class Counted(reads.ArchiveReads):
        async def run(self, work: int, payer: Payer, read: Callable[[], T]) -> T:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            try:
                return await super().run(work, payer, read)
            finally:
                under_way -= 1

    monkeypatch.setattr(source_module, "ArchiveReads", Counted)
    with reading(tmp_path) as source:
        found, _ = await raws_of(source, Query(*EVER, FULL), 1000)

    assert sorted(found) == sorted(raws(kept))
    assert most == 2
