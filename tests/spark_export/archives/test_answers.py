"""Archives of the real compaction, read by the daemon: they answer as one store would that holds all."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from mailserver.archive.access.folder import FolderFiles
from mailserver.archive.layout import PartitionBy
from mailserver.archive.reading.source import ArchiveSource
from mailserver.data_dir.folder import load_or_make_key
from mailserver.history.merged import MergedHistory
from mailserver.ids.envelopes import envelope_muid
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.metrics.registry import Metrics
from mailserver.store.interface import NewEnvelope, Place, Query, StoredHistory
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.waku.bloom import FULL_INTEREST, Interest, bloom_of
from mailserver.waku.envelope import decode_envelope
from spark_export.merge import merge
from tests.integration.daemons import run_command, running_daemon
from tests.properties import settings
from tests.spark_export.samples import (
    CHAT,
    DAY,
    DAY_S,
    NEWS,
    SPORT,
    TOPICS,
    compact_into,
    envelope,
    envelopes,
    prune,
    put,
    visible_files,
)
from tests.store.samples import EVER, UNSHRUNK, answer, raws

pytestmark = pytest.mark.spark

INTERESTS = [
    FULL_INTEREST,
    Interest(topics=frozenset({NEWS})),
    Interest(topics=frozenset({SPORT, CHAT})),
    Interest(bloom=bloom_of([SPORT])),
]


def history(seed: int, count: int = 120, days: int = 6) -> list[NewEnvelope]:
    """Envelopes received over some days; some were created long before, as what catching up brings."""
    rng = random.Random(seed)
    some = []
    for number in range(count):
        received = DAY * DAY_S + rng.randrange(days * DAY_S)
        late = rng.choice([0, 0, 0, rng.randrange(4 * DAY_S)])
        topic, size = rng.choice(TOPICS), rng.choice([60, 60, 900])
        some.append(envelope(number, received=received, created=received - late, topic=topic, size=size))
    return some


def answered(store: Path, archive: Path, query: Query, limit: int) -> list[bytes]:
    """All pages of an answer."""
    return pages(lambda: open_store(store), archive, query, limit)


def pages(
    opening: Callable[[], AbstractAsyncContextManager[StoredHistory]], archive: Path, query: Query, limit: int
) -> list[bytes]:
    """All pages of an answer from a store, whatever its engine, and its archive."""

    async def ask() -> list[bytes]:
        source = ArchiveSource(
            FolderFiles(archive), at_once=2, cache_bytes=2**20, is_expected=lambda: True, metrics=Metrics()
        )
        found: list[bytes] = []
        try:
            async with opening() as opened:
                merged = MergedHistory(opened, source)
                after = query
                while True:
                    page = await merged.find(after, limit)
                    while page.left:
                        found += (await page.read(7, 2000)).split()
                    if page.end is None:
                        return found
                    after = replace(after, below=page.end)
        finally:
            source.close()

    return asyncio.run(ask())


def assert_answers_all(store: Path, archive: Path, everything: Sequence[NewEnvelope]) -> None:
    for interest in INTERESTS:
        for bounds in (EVER, (DAY * DAY_S + DAY_S // 2, (DAY + 3) * DAY_S)):
            query = Query(*bounds, interest)
            assert answered(store, archive, query, 17) == raws(answer(everything, query)), query
            assert answered(store, archive, query, 1000) == raws(answer(everything, query)), query


@pytest.mark.parametrize("partition_by", PartitionBy)
def test_what_was_archived_and_pruned_is_answered(
    spark: SparkSession, tmp_path: Path, partition_by: PartitionBy
) -> None:
    everything = history(1)
    archive, store = tmp_path / "archive", put(tmp_path / "data" / STORE_FILE, everything)
    compact_into(spark, archive, store, partition_by=partition_by)
    assert_answers_all(store, archive, everything)

    prune(store, before=(DAY + 4) * DAY_S)
    assert_answers_all(store, archive, everything)

    late = [envelope(1000 + number, received=(DAY + 7) * DAY_S, created=DAY * DAY_S + number) for number in range(9)]
    put(store, late)
    compact_into(spark, archive, store, run="run-2", now=(DAY + 11) * DAY_S)
    prune(store, before=(DAY + 10) * DAY_S)
    assert_answers_all(store, archive, [*everything, *late])


def test_merged_months_of_several_stores_are_answered(spark: SparkSession, tmp_path: Path) -> None:
    everything = history(2)
    one = put(tmp_path / "one" / STORE_FILE, everything[:80])
    other = put(tmp_path / "other" / STORE_FILE, everything[40:])
    archive = tmp_path / "archive"
    compact_into(spark, archive, one, other)
    prune(one, before=(DAY + 5) * DAY_S)

    merge(spark, str(archive), now=(DAY + 60) * DAY_S, run="merge")

    assert next(file.parent.parent.name for file in visible_files(archive)) == "date=2024-10"
    prune(one, before=(DAY + 10) * DAY_S)
    assert_answers_all(one, archive, everything)


class Walk:
    """Somebody who asks for one answer page by page, and takes his time. Each page must be the next one of a store that
    holds all that was visible when it was asked for."""

    def __init__(self, query: Query, limit: int) -> None:
        self.query = query
        self.limit = limit
        self.pages = 0
        self.is_over = False

    def next_page(self, store: Path, archive: Path, visible: Sequence[NewEnvelope]) -> None:
        if self.is_over:
            return
        rest = answer(visible, self.query)
        found, end = asyncio.run(page_of(store, archive, self.query, self.limit))
        assert found == raws(rest[: self.limit]), self.query
        assert (end is None) == (len(rest) <= self.limit)
        self.pages += 1
        self.is_over = end is None
        self.query = replace(self.query, below=end)


async def page_of(store: Path, archive: Path, query: Query, limit: int) -> tuple[list[bytes], Place | None]:
    """One page, and where the next begins."""
    source = ArchiveSource(
        FolderFiles(archive), at_once=2, cache_bytes=2**20, is_expected=archive.exists, metrics=Metrics()
    )
    found: list[bytes] = []
    try:
        async with open_store(store) as opened:
            page = await MergedHistory(opened, source).find(query, limit)
            while page.left:
                found += (await page.read(7, 2000)).split()
            return found, page.end
    finally:
        source.close()


@pytest.mark.slow
@settings(max_examples=2, phases=UNSHRUNK)
@given(seed=st.integers(0, 2**32), partition_by=st.sampled_from(PartitionBy), limit=st.integers(1, 12))
def test_answer_is_exact_whatever_is_archived_pruned_and_merged_between_its_pages(
    spark: SparkSession, seed: int, partition_by: PartitionBy, limit: int
) -> None:
    """Two stores share an archive, and have some envelopes both."""
    rng = random.Random(seed)
    everything = history(seed, count=100)
    late = [
        envelope(1000 + number, received=(DAY + 7) * DAY_S, created=DAY * DAY_S + rng.randrange(7 * DAY_S))
        for number in range(9)
    ]
    split = [rng.choice(["ours", "ours", "both", "theirs"]) for _ in everything]
    walks = [Walk(Query(*EVER, interest), limit) for interest in INTERESTS]
    with TemporaryDirectory() as folder:
        archive = Path(folder) / "archive"
        ours, theirs = (
            put(Path(folder) / name / STORE_FILE, [one for one, of in zip(everything, split, strict=True) if of in who])
            for name, who in (("ours", ("ours", "both")), ("theirs", ("theirs", "both")))
        )
        visible = [one for one, of in zip(everything, split, strict=True) if of != "theirs"]

        def everybody_goes_on() -> None:
            for walk in walks:
                walk.next_page(ours, archive, visible)

        everybody_goes_on()
        compact_into(spark, archive, ours, theirs, partition_by=partition_by)
        visible = everything
        everybody_goes_on()
        prune(ours, before=(DAY + rng.randrange(1, 6)) * DAY_S)
        everybody_goes_on()
        put(ours, late)
        visible = [*everything, *late]
        everybody_goes_on()
        compact_into(spark, archive, ours, theirs, run="run-2", now=(DAY + 11) * DAY_S)
        everybody_goes_on()
        merge(spark, str(archive), now=(DAY + 60) * DAY_S, run="merge")
        everybody_goes_on()
        prune(ours, before=(DAY + 10) * DAY_S)
        while not all(walk.is_over for walk in walks):
            everybody_goes_on()

    assert max(walk.pages for walk in walks) > 7


def test_daemon_with_a_short_retention_answers_the_old_range_byte_for_byte(spark: SparkSession, tmp_path: Path) -> None:
    everything = [one for day in range(8) for one in envelopes(12, day=DAY + day, first=100 * day)]
    archive, store = tmp_path / "archive", put(tmp_path / "data" / STORE_FILE, everything)
    load_or_make_key(store.parent)
    compact_into(spark, archive, store)
    flags = ("--archive", str(archive), "--retention-days", "2")
    muids = [envelope_muid(DEFAULT_NETWORK_TOPIC, decode_envelope(one.raw)).hex() for one in everything]

    with running_daemon(store.parent, *flags) as daemon:
        daemon.wait_for_line("history is answered from the archive, too")
        daemon.wait_for_line("pruned envelopes=")
        ask = ("request", daemon.enode, "--from", 1, "--all", "--limit", 7, "--format", "raw")
        found = run_command(*ask)
        of_topic = run_command(*ask, "--topic", "0x" + NEWS.hex())
        named = run_command(
            "fetch", daemon.enode, "--format", "raw", *(word for name in muids[::-1] for word in ("--id", name))
        )
        for file in archive.rglob("part-*"):
            file.unlink()
        broken = run_command(*ask)
        daemon.wait_for_line("request outcome=failed")
        log = daemon.log

    newest_first = answer(everything, Query(*EVER, FULL_INTEREST))
    assert found.stdout.split() == [raw.hex() for raw in raws(newest_first)], found.stderr + log
    assert of_topic.stdout.split() == [one.raw.hex() for one in newest_first if one.topic == NEWS]
    assert named.stdout.split() == [raw.hex() for raw in raws(everything[::-1])], named.stderr + log
    archived = sum(int(word.partition("=")[2]) for word in log.split() if word.startswith("archived="))
    assert archived > len(everything) // 2
    assert "the store could not answer" in broken.stderr
    assert "is missing" in log


def test_store_that_was_lost_gets_back_what_was_archived_and_nothing_is_archived_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    everything = [one for day in range(4) for one in envelopes(12, day=DAY + day, first=100 * day)]
    archive, store = tmp_path / "archive", put(tmp_path / "data" / STORE_FILE, everything)
    compact_into(spark, archive, store)
    for file in store.parent.glob(f"{STORE_FILE}*"):
        file.unlink()

    command = ("sync", "--data-dir", store.parent, "--from-archive", "--since", 0, "--archive", archive, "--min-pow", 0)
    done = run_command(*command)
    now = int(time.time())
    report = compact_into(spark, archive, store, run="run-2", now=now + 2 * DAY_S)

    assert done.stdout.startswith("archive: 48 envelopes compared, 48 of them missing here, 48 stored;"), done.stderr
    assert report.rows == 0
    assert_answers_all(store, archive, everything)
    prune(store, before=now + DAY_S)
    assert_answers_all(store, archive, everything)
