"""Messages that are asked for by MUID, or told with their MUIDs: from the store and the archive, as by hash."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from mailserver.gateway.index import by_muid
from mailserver.gateway.index.schema import INDEX_FILE, MIGRATIONS
from mailserver.gateway.index.values import MessagePage, StoredEntry, TooManyAlike
from mailserver.ids.envelopes import content_topic_of, envelope_muid, message_of
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC, Muid
from mailserver.ids.waku_message import WakuMessage
from mailserver.store.interface import Payer
from mailserver.waku.envelope import Envelope
from mailserver.waku2.store_query import WakuMessageKeyValue, decode_key_value
from tests.gateway.index.archives import ArchivedWorld, opened_archived_world
from tests.gateway.index.worlds import (
    World,
    all_of,
    at,
    envelope,
    envelopes,
    hashes,
    messages_in,
    muid_of,
    opened_messages,
    opened_world,
    original,
    put_back,
    query_for,
    stored,
)
from tests.store.samples import NEWS, SPORT, START, rows


@pytest.fixture
async def archived_world(tmp_path: Path) -> AsyncIterator[ArchivedWorld]:
    async with opened_archived_world(tmp_path) as opened:
        await opened.follow()
        yield opened


def has_muid(message: WakuMessage) -> Muid:
    name = muid_of(message)
    assert name is not None
    return name


def muids_of(*some: Envelope) -> tuple[Muid, ...]:
    return tuple(envelope_muid(DEFAULT_NETWORK_TOPIC, each) for each in some)


def named(*some: WakuMessage) -> list[StoredEntry]:
    """Messages as a page has them whose query asked for MUIDs."""
    return [stored(each, muid=has_muid(each)) for each in some]


def messages_of(*some: Envelope) -> list[WakuMessage]:
    """The messages of envelopes of v1, in the order of store v3."""
    return [each for each in messages_in(all_of(some)) if each is not None]


def told(page: MessagePage) -> list[Muid | None]:
    return [decode_key_value(each.encode()).muid for each in page.entries]


async def test_envelopes_are_found_by_their_muids_in_the_order_of_messages(world: World) -> None:
    some = [envelope(number, created=START + number // 3, topic=(NEWS, SPORT)[number % 2]) for number in range(9)]
    await world.put(*some)

    page = await world.messages.query(query_for(muids=muids_of(some[7], some[2], some[4])))

    assert page.entries == named(*messages_of(some[7], some[2], some[4]))
    assert page.cursor is None


async def test_presence_by_muid_tells_hash_and_muid_alone(world: World) -> None:
    some = envelopes(4)
    await world.put(*some[:3])

    page = await world.messages.query(query_for(muids=muids_of(*some[1:]), include_data=False))

    names = [message_of(each).hash(DEFAULT_NETWORK_TOPIC) for each in some]
    assert page.entries == [
        WakuMessageKeyValue(names[1], muid=muids_of(some[1])[0]),
        WakuMessageKeyValue(names[2], muid=muids_of(some[2])[0]),
    ]


async def test_none_of_the_muids_that_are_asked_for_is_there(world: World) -> None:
    await world.put(*envelopes(3))

    for names in (muids_of(envelope(9)), (Muid(bytes(33)), Muid(bytes(64)))):
        assert await world.messages.query(query_for(muids=names)) == MessagePage([], None)


async def test_muid_whose_metadata_was_moved_into_the_payload_is_another(world: World) -> None:
    """The checksum of both is the same: nothing stands between meta and payload."""
    message = original(1, timestamp=at(0), meta=b"ab")
    other = replace(message, meta=b"a", payload=b"b" + message.payload)
    await world.send(message)

    assert has_muid(message)[:32] == has_muid(other)[:32]
    assert (await world.messages.query(query_for(muids=(has_muid(other),)))).entries == []
    assert (await world.messages.query(query_for(muids=(has_muid(message),)))).entries == named(message)


async def test_message_of_v2_is_found_by_its_own_meta_at_whatever_time(world: World) -> None:
    first = original(1, timestamp=at(5) + 77, meta=b"ulid of 16 bytes")
    again = replace(first, timestamp=at(9))
    other = original(2, timestamp=at(6), meta=b"ulid of 16 bytes")
    bare = original(3, timestamp=at(7))
    for nonce, each in enumerate((first, again, other, bare)):
        await world.send(each, nonce=nonce)

    page = await world.messages.query(query_for(muids=(has_muid(first),)))
    all_told = await world.messages.query(query_for(include_muids=True))

    assert page.entries == named(first, again)
    assert all_told.entries == [*named(first, other), stored(bare), *named(again)]


async def test_message_of_v2_whose_meta_looks_like_that_of_an_envelope_is_found(world: World) -> None:
    meta = message_of(envelope(1, created=START + 100)).meta
    message = original(2, timestamp=at(3), meta=meta)
    await world.put(envelope(1, created=START + 100))
    await world.send(message)

    assert (await world.messages.query(query_for(muids=(has_muid(message),)))).entries == named(message)


async def test_hashes_and_muids_may_be_asked_for_together_and_name_each_message_once(world: World) -> None:
    some = envelopes(5)
    await world.put(*some)
    by_hash = hashes(MessagePage(all_of(some[:2]), None))

    page = await world.messages.query(query_for(message_hashes=tuple(by_hash), muids=muids_of(some[1], some[3])))

    assert hashes(page) == hashes(MessagePage(all_of([*some[:2], some[3]]), None))
    assert told(page) == [None, *muids_of(some[1], some[3])]


@pytest.mark.parametrize("is_forward", [True, False])
async def test_pages_of_muids_follow_each_other_as_those_of_hashes(world: World, *, is_forward: bool) -> None:
    some = envelopes(7)
    await world.put(*some)

    found = await world.walk(query_for(muids=muids_of(*some), limit=3, is_forward=is_forward))

    expected = named(*messages_of(*some))
    assert found == (expected if is_forward else expected[::-1])


async def test_muids_of_a_topic_are_listed_without_messages(world: World) -> None:
    some = [envelope(number, created=START + number, topic=(NEWS, SPORT)[number % 2]) for number in range(6)]
    await world.put(*some)

    query = query_for(content_topics=(content_topic_of(SPORT),), include_muids=True, include_data=False, limit=2)
    found = await world.walk(query)

    assert messages_in(found) == [None] * 3
    assert told(MessagePage(found, None)) == [*muids_of(*some[1::2])]


async def test_what_only_the_archive_has_is_found_by_muid(archived_world: ArchivedWorld) -> None:
    world = archived_world
    message = original(1, timestamp=at(2) + 5, meta=b"meta")
    some = envelopes(6)
    await world.put(*some)
    await world.send(message, received=START)
    world.compact()
    await world.follow()
    await world.prune(5)

    page = await world.messages.query(query_for(muids=(*muids_of(*some), has_muid(message))))

    expected = sorted(
        [*map(message_of, some), message], key=lambda each: (each.timestamp, each.hash(DEFAULT_NETWORK_TOPIC))
    )
    assert page.entries == named(*expected)


async def test_one_of_many_of_its_second_is_found_and_charged_for_what_was_read(world: World) -> None:
    some = [envelope(number) for number in range(250)]
    await world.put(*some)
    await world.messages.follower.catch_up()
    charged: list[int] = []

    page = await world.messages.query(query_for(muids=muids_of(some[123])), payer=Payer(1, 1, charged.append))

    assert page.entries == named(message_of(some[123]))
    assert sum(charged) > 2000


async def test_second_with_more_messages_than_a_query_may_read_is_refused_and_found_by_hash(world: World) -> None:
    some = [envelope(number) for number in range(101)]
    await world.put(*some)
    nobody = muids_of(envelope(1000))

    with pytest.raises(TooManyAlike, match="too many messages were created when"):
        await world.messages.query(query_for(muids=nobody), goes_on=lambda work: False)

    assert (await world.messages.query(query_for(muids=nobody))).entries == []


async def test_meta_of_very_many_messages_is_searched_page_by_page(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_muid, "MAX_PAGE_ENTRIES", 4)
    some = [original(number, timestamp=at(0) + number, meta=b"same") for number in range(8)]
    some += [original(number, timestamp=at(0) + number, meta=b"other") for number in range(8, 10)]
    for number, each in enumerate(some):
        await world.send(each, nonce=number)

    found = await world.walk(query_for(muids=tuple(map(has_muid, some[::3]))))

    assert found == named(*some[::3])


async def test_meta_of_more_messages_than_a_query_may_read_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(by_muid, "MAX_PAGE_ENTRIES", 4)
    some = [original(number, timestamp=at(0) + number, meta=b"same") for number in range(5)]
    for number, each in enumerate(some):
        await world.send(each, nonce=number)
    query = query_for(muids=(has_muid(some[0]),))

    with pytest.raises(TooManyAlike):
        await world.messages.query(query, goes_on=lambda work: False)

    assert (await world.messages.query(query)).entries == named(some[0])


async def test_index_of_before_finds_what_it_has_kept_by_its_meta(tmp_path: Path) -> None:
    message = original(1, timestamp=at(5), meta=b"meta")
    async with opened_world(tmp_path) as world:
        await world.send(message)
        await world.messages.follower.catch_up()
    put_back(tmp_path / INDEX_FILE, 2)

    async with opened_messages(tmp_path) as messages:
        page = await messages.query(query_for(muids=(has_muid(message),)))

    assert page.entries == named(message)
    assert rows(tmp_path / INDEX_FILE, "PRAGMA user_version") == [(len(MIGRATIONS),)]
