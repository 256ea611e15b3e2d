"""The run that makes history archives, with real stores, a real Parquet archive and a real Spark."""

import asyncio
import itertools
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from mailserver.communities.checking import check_archive, check_index
from mailserver.communities.formats import TimeRange
from mailserver.communities.spec_format import SpecFormat
from mailserver.community.folder import COMMUNITIES_FOLDER
from mailserver.community.owner.appending import read_index
from mailserver.community.owner.folders import CommunityFolder
from mailserver.community.owner.record import Community
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.store.interface import NewEnvelope
from mailserver.store.postgres.job import StoreDatabase
from mailserver.store.postgres.store import open_store
from mailserver.waku.envelope import Envelope, Topic
from spark_export.communities import CommunitiesReport, CommunitiesRun, make_archives
from spark_export.places import StorePlace
from tests.community.owner.samples import (
    ATTIC,
    GARDEN,
    KITCHEN,
    OTHER_OWNER,
    OWNER,
    channel,
    garden,
    made_in,
    sealed,
    week,
)
from tests.spark_export.samples import compact_into, put
from tests.store.postgres.server import new_schema, shared_server

pytestmark = pytest.mark.spark

FORM = SpecFormat(DEFAULT_NETWORK_TOPIC)
HOUR_S = 3600
WEEK_S = 7 * 86_400


def stored(envelopes: Iterable[Envelope], *, delay_s: int = 1) -> list[NewEnvelope]:
    """As a store takes them, so long after they were created."""
    return [NewEnvelope(each.created + delay_s, each.created, each.topic, each.hash(), each.raw) for each in envelopes]


def posted(number: int, topic: Topic, count: int, seed: int) -> list[Envelope]:
    """Envelopes of a week, some of them in the same second."""
    rng = random.Random(seed)
    lower = week(number).lower
    return [
        sealed(lower + rng.randrange(0, WEEK_S, 100_000), seed * 1000 + each, topic, rng.randrange(20, 300))
        for each in range(count)
    ]


def make(
    spark: SparkSession, folder: Path, now: int, *stores: StorePlace, archive: Path | None = None
) -> CommunitiesReport:
    config = CommunitiesRun(folder / COMMUNITIES_FOLDER, stores, None if archive is None else str(archive))
    return make_archives(spark, config, now=now)


def history(folder: CommunityFolder) -> list[tuple[TimeRange, tuple[str, ...], list[bytes]]]:
    """What each history archive has, in order: its range, topics, and hashes of messages. All of it is checked."""
    path = folder.next_index if folder.next_index.exists() else folder.index
    index, data = read_index(path), folder.data.read_bytes()
    assert index is not None
    assert check_index(index, len(data)) == []
    found = []
    for entry in index.entries:
        checked = check_archive(FORM, entry, data[entry.offset : entry.end])
        assert checked.archive is not None, checked.findings
        assert [*checked.archive.messages] == sorted(checked.archive.messages)
        messages = [message.hash for message in checked.archive.messages]
        found.append((entry.time_range, entry.content_topics, messages))
    return found


def hashes(envelopes: Iterable[Envelope]) -> list[bytes]:
    return [message.hash for message in sorted(map(FORM.message_of, envelopes))]


def topics(*listed: Topic) -> tuple[str, ...]:
    return tuple(channel(each).content_topic for each in listed)


def test_tasks_read_a_database_as_they_read_a_file(spark: SparkSession, tmp_path: Path) -> None:
    of_file = made_in(tmp_path / "file" / COMMUNITIES_FOLDER, garden(GARDEN, KITCHEN))
    of_database = made_in(tmp_path / "database" / COMMUNITIES_FOLDER, garden(GARDEN, KITCHEN))
    envelopes = stored([*posted(0, GARDEN, 30, 1), *posted(1, KITCHEN, 30, 2), *posted(1, ATTIC, 5, 3)])
    file = put(tmp_path / "a" / "mailserver.db", envelopes)
    url = shared_server().url(new_schema(shared_server()))

    async def fill() -> None:
        async with open_store(url) as store:
            await store.put(envelopes)

    asyncio.run(fill())

    reports = [
        make(spark, tmp_path / "file", week(1).upper + HOUR_S, file),
        make(spark, tmp_path / "database", week(1).upper + HOUR_S, StoreDatabase(url)),
    ]

    assert [report.communities[0].messages for report in reports] == [60, 60]
    assert of_database.data.read_bytes() == of_file.data.read_bytes()
    assert of_database.next_index.read_bytes() == of_file.next_index.read_bytes()


def test_weeks_of_two_communities_are_made_once_and_late_envelopes_follow(spark: SparkSession, tmp_path: Path) -> None:
    # A community registered in its second week, with a channel that ends in the middle of the third; and another one.
    house = garden(GARDEN, KITCHEN, registered=week(1).lower + 5)
    house = house.without_channel(channel(KITCHEN).name, at=week(2).lower + 3 * 86_400)
    loft = garden(ATTIC, GARDEN, registered=week(3).lower)
    folders = _folders(tmp_path, house, loft)
    of_garden = {number: posted(number, GARDEN, 40, number) for number in (0, 1, 3)}
    of_kitchen = posted(2, KITCHEN, 40, 10)
    of_attic = posted(3, ATTIC, 5, 20)
    late = posted(1, GARDEN, 3, 30)
    nobodys = posted(1, Topic(b"none"), 10, 40)
    forged = [sealed(5, 1, ATTIC)]
    usual = [*of_garden[0], *of_garden[1], *of_kitchen, *of_garden[3], *of_attic, *nobodys]
    store = put(tmp_path / "a" / "mailserver.db", stored(sorted(usual, key=lambda each: each.created)))
    put(store, [NewEnvelope(week(3).upper, 5, ATTIC, each.hash(), each.raw) for each in forged])
    kept = [each for each in of_kitchen if each.created < week(2).lower + 3 * 86_400]

    # The first three weeks are over, then the fourth; each time all that is published stays as it is.
    reports, files = [], []
    for now in (week(2).upper + HOUR_S, week(3).upper + HOUR_S - 1, week(3).upper + HOUR_S):
        reports.append(make(spark, tmp_path, now, store))
        files.append([folder.data.read_bytes() if folder.data.exists() else b"" for folder in folders])
    put(store, stored(late, delay_s=2 * WEEK_S))
    reports.append(make(spark, tmp_path, week(3).upper + 2 * HOUR_S, store))
    files.append([folder.data.read_bytes() for folder in folders])
    reports.append(make(spark, tmp_path, week(3).upper + 3 * HOUR_S, store))

    assert [[each.archives for each in report.communities] for report in reports] == [
        [3, 2],
        [0, 0],
        [1, 1],
        [1, 1],
        [0, 0],
    ]
    for earlier, later in itertools.pairwise(files):
        assert all(new.startswith(old) for old, new in zip(earlier, later, strict=True))
    assert files[0] == files[1] != files[2]
    assert history(folders[0]) == [
        (week(0), topics(GARDEN, KITCHEN), hashes(of_garden[0])),
        (week(1), topics(GARDEN, KITCHEN), hashes(of_garden[1])),
        (week(2), topics(GARDEN, KITCHEN), hashes(kept)),
        (week(3), topics(GARDEN), hashes(of_garden[3])),
        (week(1), topics(GARDEN, KITCHEN), hashes(late)),
    ]
    assert history(folders[1]) == [
        (week(0), topics(GARDEN, ATTIC), hashes(of_garden[0])),
        (week(1), topics(GARDEN, ATTIC), hashes(of_garden[1])),
        (week(3), topics(GARDEN, ATTIC), hashes([*of_garden[3], *of_attic])),
        (week(1), topics(GARDEN, ATTIC), hashes(late)),
    ]

    # The same from the Parquet archive, in another order of communities, on another partitioning, all at once.
    archive = tmp_path / "archive"
    compact_into(spark, archive, store, now=week(5).upper)
    twin = tmp_path / "twin"
    mirrored = _folders(twin, house, loft)
    spark.conf.set("spark.sql.files.maxPartitionBytes", "4096")
    try:
        made = make(spark, twin, week(3).upper + 2 * HOUR_S, store, archive=archive)
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
    assert [each.further for each in made.communities] == [0, 0]
    assert history(mirrored[0])[1] == (week(1), topics(GARDEN, KITCHEN), hashes([*of_garden[1], *late]))
    first_week = history(folders[0])[0]
    assert history(mirrored[0])[0] == first_week
    size = len(mirrored[0].data.read_bytes()) // 4
    assert size
    assert mirrored[0].data.read_bytes()[:102_400] == files[0][0][:102_400]


def _folders(path: Path, *communities: Community) -> Sequence[CommunityFolder]:
    """In the order of a run: that of their ids."""
    keys = sorted((OWNER, OTHER_OWNER), key=lambda key: (key.public_key[-1] & 1, key.public_key))
    return [made_in(path / COMMUNITIES_FOLDER, each, key) for each, key in zip(communities, keys, strict=True)]
