"""mailserver.catchup.archived: what differs is found by the sums of ids, at the price of the difference."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.archive.days import day_name
from mailserver.archive.index.id_sums import MINUTE_S
from mailserver.archive.manifest import decode_record
from mailserver.archive.paths import index_of, record_of
from mailserver.archive.reading.by_id import ItemsOfTime
from mailserver.archive.reading.id_sums import Span
from mailserver.archive.reading.source import ArchiveSource
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.store.interface import NewEnvelope
from tests.archive.reading.parquet import envelope, write_period
from tests.catchup.pairs import NOW, TOPICS, newest_first, pair, publish_days, some
from tests.properties import settings
from tests.store.samples import DAY, NEWS, START

SECONDS = (0, 1, MINUTE_S - 1, MINUTE_S, MINUTE_S + 1, DAY - 1, DAY, DAY + 90, 3 * DAY)
SUMMED = DEFAULT_NETWORK_TOPIC
OTHER = "/waku/2/rs/1/5"

publish_summed = partial(publish_days, network_topic=SUMMED)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of how many envelopes the ids were made, each time that some were read."""
    counts: list[int] = []
    newest_items = ArchiveSource.newest_items

    async def counted(source: ArchiveSource, network_topic: str, times: Sequence[Span], most: int) -> ItemsOfTime:
        part = await newest_items(source, network_topic, times, most)
        counts.append(len(part.items))
        return part

    monkeypatch.setattr(ArchiveSource, "newest_items", counted)
    return counts


async def test_nothing_is_read_where_all_is_the_same(tmp_path: Path, read: list[int]) -> None:
    everything = some(100)

    async with pair(tmp_path, everything, everything, publish=publish_summed) as both:
        done = await both.compare()

        assert (done.archived, done.missing, done.unarchived) == (100, 0, 0)
        assert read == []


async def test_only_minutes_that_differ_are_read(tmp_path: Path, read: list[int]) -> None:
    everything = some(600, step=20)  # three a minute

    async with pair(tmp_path, [*everything[:100], *everything[101:]], everything[:-1], publish=publish_summed) as both:
        done = await both.compare()

        assert (done.archived, done.missing, done.stored, done.unarchived) == (599, 1, 1, 1)
        assert await both.stored() == newest_first(everything)
    assert sum(read) == 3 + 2


async def test_minute_that_two_periods_have_is_read(tmp_path: Path, read: list[int]) -> None:
    everything = some(48, step=1800)
    late = envelope(900, created=everything[7].created + 1, topic=NEWS, received=START + DAY)

    async with pair(tmp_path, [*everything, late], [*everything, late], publish=publish_summed) as both:
        done = await both.compare()

        assert (done.archived, done.missing, done.unarchived) == (49, 0, 0)
    assert read == [2]


def publish_twice(archive: Path, archived: Sequence[NewEnvelope], *topics: str | None) -> None:
    """The same envelopes as received on one day after the other, each with sums for one of the topics."""
    for number, topic in enumerate(topics):
        write_period(archive, archived, period=day_name(START // DAY + number), network_topic=topic)


@pytest.mark.parametrize(
    "topics", [(SUMMED, SUMMED), (SUMMED, None), (SUMMED, OTHER)], ids=["both summed", "one unsummed", "another topic"]
)
async def test_envelope_in_two_periods_counts_once(
    tmp_path: Path, read: list[int], topics: tuple[str | None, ...]
) -> None:
    everything = some(20)

    async with pair(tmp_path, everything[1:], everything, publish=lambda *to: publish_twice(*to, *topics)) as both:
        done = await both.compare()

        assert (done.archived, done.missing, done.stored, done.unarchived) == (20, 1, 1, 0)
    assert sum(read) == 20


@pytest.mark.parametrize("at", ["head", "minutes"])
async def test_damaged_sums_cost_time_only(tmp_path: Path, read: list[int], at: str) -> None:
    everything = some(24)

    def publish_damaged(archive: Path, archived: Sequence[NewEnvelope]) -> None:
        publish_summed(archive, archived)
        period = day_name(START // DAY)
        record = decode_record((archive / record_of(period)).read_text(), "record")
        assert record.index is not None
        assert record.index.sums is not None
        index = archive / index_of(period, record.run)
        content = bytearray(index.read_bytes())
        content[record.index.sums.at + (30 if at == "head" else record.index.sums.bytes)] ^= 1
        index.write_bytes(content)

    async with pair(tmp_path, everything[1:], everything, publish=publish_damaged) as both:
        done = await both.compare()

        assert (done.archived, done.missing, done.stored, done.unarchived) == (24, 1, 1, 0)
        assert "the sums of ids are damaged" in both.archive.problem
    assert sum(read) == len([one for one in everything if one.received // DAY == START // DAY])


@pytest.mark.slow
@settings(max_examples=40)
@given(st.data())
def test_any_difference_is_found_exactly_whatever_has_sums(data: st.DataObject) -> None:
    everything = [
        envelope(
            number,
            created=START + data.draw(st.sampled_from(SECONDS)),
            topic=data.draw(st.sampled_from(TOPICS)),
            received=START + data.draw(st.integers(0, 3)) * DAY,
        )
        for number in range(data.draw(st.integers(0, 50)))
    ]
    places = ["store", "archive", "both", "both, in two periods"]
    where = [data.draw(st.sampled_from(places)) for _ in everything]
    placed = [*zip(everything, where, strict=True)]
    stored = [one for one, place in placed if place != "archive"]
    since, until = data.draw(
        st.sampled_from([(START, NOW), (START + 1, START + DAY), (START + MINUTE_S, START + DAY + 89)])
    )

    def publish(archive: Path, archived: Sequence[NewEnvelope]) -> None:
        for number in range(5):
            there = [one for one, place in placed if place != "store" and (one.received - START) // DAY == number]
            there += [
                one
                for one, place in placed
                if place == "both, in two periods" and (one.received - START) // DAY == number - 1
            ]
            if there:
                write_period(
                    archive,
                    there,
                    period=day_name(START // DAY + number),
                    network_topic=data.draw(st.sampled_from([SUMMED, SUMMED, OTHER, None])),
                    index=data.draw(st.sampled_from([True, True, True, False])),
                    files_of=data.draw(st.sampled_from([3, 100])),
                )

    async def check(folder: Path) -> None:
        archived = [one for one, place in placed if place != "store"]
        async with pair(folder, stored, archived, publish=publish) as both:
            done = await both.compare(since, until)
            within = [place for one, place in placed if since <= one.created <= until]
            assert done.archived == len(within) - within.count("store")
            assert (done.missing, done.stored) == (within.count("archive"),) * 2
            assert done.unarchived == within.count("store")
            expected = [one for one, place in placed if place != "archive" or since <= one.created <= until]
            assert await both.stored() == newest_first(expected)
            again = await both.compare(since, until)
            assert (again.archived, again.missing, again.unarchived) == (done.archived, 0, done.unarchived)

    with TemporaryDirectory() as folder:
        asyncio.run(check(Path(folder)))
