"""mailserver.history.merged_ids: by their ids, envelopes are found in store and archive as in one store."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.archive.access.folder import FolderFiles
from mailserver.archive.reading import by_id
from mailserver.archive.reading.source import ArchiveSource
from mailserver.errors import Rejection, StoreError
from mailserver.history import id_answers
from mailserver.history.id_answers import IdServices, IdSettings
from mailserver.history.id_conversation import IdConversation
from mailserver.history.id_lists import IdLists
from mailserver.history.merged_ids import MergedIds
from mailserver.history.opening import Opener
from mailserver.ids.envelopes import envelope_muid
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC, Muid, sync_id
from mailserver.metrics.registry import Metrics, count_of
from mailserver.reconcile.sides import Needed
from mailserver.store.interface import OURSELVES, NewEnvelope, Payer
from mailserver.store.message_ids import FoundEnvelopes, RangeTooWide
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import open_store
from mailserver.waku.envelope import Topic, decode_envelope
from mailserver.wakuid.answers import Done, Envelopes, Refused
from mailserver.wakuid.questions import Fetch, FetchItems, Items
from tests.archive.reading.parquet import envelope, write_period
from tests.history.desk import KEY
from tests.history.test_id_conversation import Booth
from tests.mailservers import PASSWORD_KEY, Clock
from tests.properties import settings
from tests.store.samples import DAY, EVER, EVERY_BYTE, NEWS, SPORT, START, change, make_store, raws

TOPICS = (NEWS, SPORT, Topic(b"\x9a\x00\x00\x01"))
ANOTHER_NETWORK = "/waku/2/rs/1/5"


@contextlib.asynccontextmanager
async def merged(
    folder: Path,
    hot: Sequence[NewEnvelope],
    archived: Sequence[NewEnvelope],
    *,
    until: int | None = None,
    network_topic: str = DEFAULT_NETWORK_TOPIC,
    index: bool = True,
) -> AsyncIterator[MergedIds]:
    """The ids of a store and an archive. The store has removed up to `until`; by default, all it may."""
    path, archive = folder / STORE_FILE, folder / "archive"
    make_store(path, hot)
    if until is not None:
        change(path, f"UPDATE removed SET until = {until}")
    for day in {one.received // DAY for one in archived}:
        write_period(archive, [one for one in archived if one.received // DAY == day], index=index)
    source = ArchiveSource(
        FolderFiles(archive), at_once=2, cache_bytes=2**20, is_expected=lambda: bool(archived), metrics=Metrics()
    )
    try:
        async with open_store(path, network_topic=network_topic) as store:
            yield MergedIds(store, store.message_ids, source)
    finally:
        source.close()


def some(count: int, *, first: int = 0, step: int = 1) -> list[NewEnvelope]:
    return [
        envelope(number, created=START + number * step, topic=TOPICS[number % 3])
        for number in range(first, first + count)
    ]


def muids(envelopes: Sequence[NewEnvelope], network_topic: str = DEFAULT_NETWORK_TOPIC) -> list[Muid]:
    return [envelope_muid(network_topic, decode_envelope(one.raw)) for one in envelopes]


def items(envelopes: Sequence[NewEnvelope]) -> list[bytes]:
    return [*map(sync_id, muids(envelopes))]


async def all_of(found: FoundEnvelopes, count: int = 3) -> list[bytes]:
    """What was found, envelope by envelope; each has the id that is said of it."""
    given: list[bytes] = []
    while found.left:
        given += (await found.read(count, EVERY_BYTE)).split()
    assert [sync_id(envelope_muid(DEFAULT_NETWORK_TOPIC, decode_envelope(raw))) for raw in given] == [*found.items]
    return given


@pytest.mark.parametrize("index", [True, False], ids=["index", "no index"])
async def test_envelopes_are_found_by_muid_wherever_they_are_and_in_the_order_asked_for(
    tmp_path: Path, *, index: bool
) -> None:
    everything, nobodys = some(20), some(3, first=100)
    asked = [everything[number] for number in (15, 3, 19, 2, 4, 3, 11)]

    async with merged(tmp_path, everything[10:], everything[:12], index=index) as ids:
        found = await ids.find([*muids(asked[:4]), *muids(nobodys), Muid(bytes(40)), *muids(asked[4:])])

        assert found.left == 6
        assert await all_of(found) == raws([everything[number] for number in (15, 3, 19, 2, 4, 11)])
        assert found.left == 0


async def test_answer_says_how_many_came_from_the_archive(tmp_path: Path) -> None:
    everything = some(20)

    async with merged(tmp_path, everything[10:], everything[:15]) as ids:
        found = await (await ids.find(muids(everything))).read(20, EVERY_BYTE)

        assert found.split() == raws(everything)
        assert found.archived == 10


async def test_items_are_found_those_of_the_archive_last(tmp_path: Path) -> None:
    everything = some(20)
    groups = [
        Needed(START, START + 8, items([everything[number] for number in (7, 2, 13)])),  # 13 is not in its range
        Needed(START + 5, START + 16, items([everything[number] for number in (7, 12, 6, 16)])),
    ]

    async with merged(tmp_path, everything[10:], everything[:15]) as ids:
        found = await ids.find_items(groups)

        assert await all_of(found) == raws([everything[number] for number in (12, 16, 2, 6, 7)])


async def test_what_the_store_never_removed_is_not_looked_for_in_the_archive(tmp_path: Path) -> None:
    everything = some(20)

    async with merged(tmp_path, everything[10:], everything[:10], until=START + 4) as ids:
        (tmp_path / "archive").rename(tmp_path / "gone")  # whoever looks there fails

        assert await all_of(await ids.find(muids(everything[5:]))) == raws(everything[10:])
        above = [Needed(START + 5, EVER[1], items(everything))]
        assert len(await all_of(await ids.find_items(above))) == 10
        with pytest.raises(StoreError, match="there is no archive"):
            await ids.find(muids(everything[4:5]))
        with pytest.raises(StoreError, match="there is no archive"):
            await ids.find_items([Needed(*EVER, items(everything[4:5]))])


async def test_ids_of_another_network_topic_than_that_of_the_archive_are_found(tmp_path: Path) -> None:
    everything = some(6)

    async with merged(tmp_path, [], everything, network_topic=ANOTHER_NETWORK) as ids:
        found = await ids.find(muids(everything[:3], ANOTHER_NETWORK) + muids(everything[3:]))

        assert (await found.read(6, EVERY_BYTE)).split() == raws(everything[:3])


async def test_one_of_many_envelopes_of_one_second_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_id, "MATCHES_AT_ONCE", 7)
    monkeypatch.setattr(by_id, "IDS_AT_ONCE", 2)
    monkeypatch.setattr(by_id, "WINDOW_BYTES", 300)
    alike = [envelope(number, created=START, topic=TOPICS[number % 3]) for number in range(40)]

    async with merged(tmp_path, [], alike) as ids:
        for one in alike:
            assert await all_of(await ids.find(muids([one]))) == [one.raw]
        assert await all_of(await ids.find(muids(some(1, first=99)))) == []


async def test_search_ends_that_takes_too_much(tmp_path: Path) -> None:
    everything = some(40)
    work: list[int] = []

    async with merged(tmp_path, [], everything) as ids:
        payer = Payer(charge=work.append)
        with pytest.raises(RangeTooWide, match="too many others"):
            await ids.find_items([Needed(*EVER, [bytes(32)])], payer=payer, goes_on=lambda done: done < 500)
        with pytest.raises(RangeTooWide):
            await ids.find(muids(everything), payer=payer, goes_on=lambda done: done < 500)

    assert sum(work) > 500


async def test_day_that_is_replaced_before_its_envelopes_are_read_is_looked_through_anew(tmp_path: Path) -> None:
    everything = some(12)

    async with merged(tmp_path, [], everything) as ids:
        found = await ids.find(muids(everything))
        for file in (tmp_path / "archive").glob("**/*.parquet"):
            file.unlink()
        for folder in (tmp_path / "archive" / "_snapshots").iterdir():
            folder.rename(folder.with_name("gone"))
        write_period(tmp_path / "archive", [*everything, *some(3, first=50)], run="run-2", snapshot=False)

        assert await all_of(found) == raws(everything)


async def test_peers_are_given_what_only_the_archive_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "mailserver.history")
    everything = some(20)

    async with merged(tmp_path, everything[10:], everything[:15]) as ids, open_store(tmp_path / "other.db") as other:
        services = IdServices(
            lists=IdLists(other, ids),
            since=lambda: 0,
            opener=Opener(PASSWORD_KEY, KEY, 0.0),
            settings=IdSettings(),
            clock=Clock(),
            metrics=Metrics(),
        )
        booth = Booth(other, services, IdConversation(services))
        await booth.open()
        fetched = await booth.answer(Fetch(2, DEFAULT_NETWORK_TOPIC, muids(everything)))
        by_item = await booth.answer(FetchItems(3, DEFAULT_NETWORK_TOPIC, [Items(*EVER, items(everything[8:12]))]))
        monkeypatch.setattr(id_answers, "FETCH_WORK", 0)
        refused = await booth.answer(Fetch(4, DEFAULT_NETWORK_TOPIC, muids(everything[:1])))

    given = [raw for each in fetched if isinstance(each, Envelopes) for raw in (one.raw for one in each.envelopes)]
    assert given == raws(everything)
    (packet, end) = by_item
    assert isinstance(packet, Envelopes)
    assert [one.raw for one in packet.envelopes] == raws(everything[number] for number in (10, 11, 8, 9))
    assert end == Done(3)
    assert [each.rejection for each in refused if isinstance(each, Refused)] == [Rejection.TOO_WIDE]
    (line,) = [message for message in caplog.messages if "id=2 " in message]
    assert " asked=20 " in line
    assert " envelopes=20 archived=10 " in line
    assert count_of(services.metrics.delivered_archived) == 12


@pytest.mark.slow
@settings(max_examples=40)
@given(st.data())
def test_any_split_is_found_as_in_one_store_that_holds_all(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 25))
    everything = [
        envelope(
            number,
            created=START + data.draw(st.sampled_from([0, 1, 2, DAY - 1, DAY, 3 * DAY])),
            topic=data.draw(st.sampled_from(TOPICS)),
            received=START + number % 4 * DAY,
        )
        for number in range(count)
    ]
    where = [data.draw(st.sampled_from(["hot", "archived", "both"])) for _ in everything]
    hot = [one for one, place in zip(everything, where, strict=True) if place != "archived"]
    archived = [one for one, place in zip(everything, where, strict=True) if place != "hot"]
    asked = data.draw(st.permutations([*everything, *some(3, first=200)]))
    index = data.draw(st.booleans())

    async def check(folder: Path) -> None:
        async with merged(folder, hot, archived, index=index) as ids:
            expected = [one for one in asked if one in everything]
            assert await all_of(await ids.find(muids(asked))) == raws(expected)
            found = await ids.find_items([Needed(*EVER, items(asked))], payer=OURSELVES)
            assert sorted(await all_of(found)) == sorted(raws(expected))

    with TemporaryDirectory() as folder:
        asyncio.run(check(Path(folder)))
