"""Store queries over a store that the daemon's own writer has written."""

import pytest

from mailserver.gateway.index.values import MAX_PAGE_BYTES, MessagePage, UnknownCursor
from mailserver.ids.envelopes import content_topic_of, message_of
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.ids.waku_message import MessageHash
from mailserver.store.interface import Payer
from mailserver.waku2.store_query import WakuMessageKeyValue, decode_key_value
from tests.gateway.index.worlds import (
    NEWS_TOPIC,
    World,
    all_of,
    at,
    envelope,
    envelopes,
    hashes,
    original,
    query_for,
    stored,
)
from tests.store.samples import SPORT, START


def names(count: int, first: int = 0) -> tuple[MessageHash, ...]:
    return tuple(message_of(each).hash(DEFAULT_NETWORK_TOPIC) for each in envelopes(count, first=first))


async def test_envelope_of_v1_is_found_as_the_message_that_it_maps_to(world: World) -> None:
    await world.put(envelope(1))

    page = await world.messages.query(query_for())

    assert page == MessagePage([stored(message_of(envelope(1)))], None)


async def test_messages_of_one_moment_are_in_the_order_of_their_hashes(world: World) -> None:
    same = [envelope(number, created=START) for number in range(50)]
    await world.put(*same)

    page = await world.messages.query(query_for(limit=100))

    assert hashes(page) == sorted(message_of(each).hash(DEFAULT_NETWORK_TOPIC) for each in same)


async def test_start_is_inclusive_and_end_exclusive(world: World) -> None:
    await world.put(*envelopes(5))

    page = await world.messages.query(query_for(time_start=at(1), time_end=at(3)))

    assert page.entries == all_of(envelopes(2, first=1))


async def test_last_page_has_no_cursor_and_full_ones_before_do(world: World) -> None:
    await world.put(*envelopes(5))

    first = await world.messages.query(query_for(limit=3))
    last = await world.messages.query(query_for(limit=2, cursor=first.cursor))

    assert (hashes(first), first.cursor) == ([*names(3)], names(3)[-1])
    assert (hashes(last), last.cursor) == ([*names(2, first=3)], None)


async def test_page_backward_is_in_order_and_goes_on_before_its_first(world: World) -> None:
    await world.put(*envelopes(5))

    first = await world.messages.query(query_for(limit=2, is_forward=False))
    second = await world.messages.query(query_for(limit=2, is_forward=False, cursor=first.cursor))

    assert (hashes(first), first.cursor) == ([*names(2, first=3)], names(1, first=3)[0])
    assert (hashes(second), second.cursor) == ([*names(2, first=1)], names(1, first=1)[0])


async def test_several_topics_are_merged_in_order(world: World) -> None:
    topics = [bytes([number, 0, 0, 0]) for number in range(12)]
    some = [envelope(number, created=START + number // 5, topic=topics[number % 12]) for number in range(60)]
    await world.put(*some)
    wanted = tuple(map(content_topic_of, topics[:11]))  # type: ignore[arg-type]

    for is_forward in (True, False):
        query = query_for(content_topics=wanted, limit=7, is_forward=is_forward)
        found = await world.walk(query)

        assert found == world.model.answer(query)
        assert len(found) == 55


async def test_content_topics_that_no_envelope_has_find_nothing(world: World) -> None:
    await world.put(envelope(1))

    of_others = await world.messages.query(query_for(content_topics=("/app/1/chat/proto", content_topic_of(SPORT))))
    with_ours = await world.messages.query(query_for(content_topics=("/app/1/chat/proto", NEWS_TOPIC)))

    assert of_others == MessagePage([], None)
    assert with_ours.entries == all_of([envelope(1)])


async def test_messages_named_by_hash_are_found_in_order_each_once(world: World) -> None:
    await world.put(*envelopes(5))
    wanted = (*names(2, first=3)[::-1], MessageHash(bytes(32)), *names(1), *names(1))

    page = await world.messages.query(query_for(message_hashes=wanted, content_topics=("/none",)))

    assert page.entries == all_of([envelopes(5)[at] for at in (0, 3, 4)])


async def test_messages_named_by_hash_come_in_pages_both_ways(world: World) -> None:
    await world.put(*envelopes(5))

    for is_forward in (True, False):
        query = query_for(message_hashes=names(4, first=1), limit=2, is_forward=is_forward)

        assert await world.walk(query) == world.model.answer(query)
        assert await world.messages.query(query) == world.model.page(query)


async def test_hashes_alone_are_those_of_messages_that_are_there(world: World) -> None:
    await world.put(*envelopes(4))
    await world.messages.query(query_for())
    await world.prune(2)

    present = await world.messages.query(query_for(message_hashes=names(4), include_data=False))
    listed = await world.messages.query(query_for(include_data=False))

    assert present == listed
    assert listed.entries == [WakuMessageKeyValue(name) for name in names(2, first=2)]


async def test_cursor_that_is_no_message_is_told(world: World) -> None:
    await world.put(envelope(1))

    with pytest.raises(UnknownCursor, match="no message"):
        await world.messages.query(query_for(cursor=MessageHash(bytes(32))))


@pytest.mark.parametrize("is_swept", [False, True])
async def test_page_goes_on_behind_a_message_that_was_pruned_meanwhile(world: World, *, is_swept: bool) -> None:
    await world.put(*envelopes(6))
    first = await world.messages.query(query_for(limit=3))
    await world.prune(4)
    if is_swept:
        await world.messages.follower.catch_up()
        await world.messages.follower.sweep()

    second = await world.messages.query(query_for(limit=3, cursor=first.cursor))

    assert (hashes(second), second.cursor) == ([*names(2, first=4)], None)


async def test_page_is_full_behind_many_messages_that_are_gone(world: World) -> None:
    await world.put(*envelopes(3000))
    await world.messages.follower.catch_up()
    for _ in range(8):
        await world.prune(250)

    page = await world.messages.query(query_for(limit=10))

    assert (hashes(page), page.cursor) == ([*names(10, first=2000)], names(1, first=2009)[0])


async def test_page_ends_early_if_it_may_not_go_on_and_the_next_one_continues(world: World) -> None:
    await world.put(*envelopes(200))
    await world.messages.follower.catch_up()
    await world.prune(150)

    first = await world.messages.query(query_for(limit=10), goes_on=lambda work: False)
    second = await world.messages.query(query_for(limit=10, cursor=first.cursor))

    assert (hashes(first), first.cursor) == ([], names(1, first=10)[0])
    assert hashes(second) == [*names(10, first=150)]


async def test_page_ends_before_it_is_too_long(world: World) -> None:
    some = [envelope(number, created=START + number, size=MAX_PAGE_BYTES // 4) for number in range(5)]
    await world.put(*some)

    first = await world.messages.query(query_for(limit=100))
    rest = await world.messages.query(query_for(limit=100, cursor=first.cursor))

    assert first.entries == all_of(some[:3])
    assert rest.entries == all_of(some[3:])


async def test_message_of_v2_is_found_under_its_own_hash_as_it_was_sent(world: World) -> None:
    message = original(1, timestamp=at(0) + 123_456_789, meta=b"meta", version=0)
    each = await world.send(message)

    page = await world.messages.query(query_for())
    by_hash = await world.messages.query(query_for(message_hashes=(message.hash(DEFAULT_NETWORK_TOPIC),)))
    as_v1 = await world.messages.query(query_for(message_hashes=(message_of(each).hash(DEFAULT_NETWORK_TOPIC),)))

    assert page == by_hash == MessagePage([stored(message)], None)
    assert as_v1 == MessagePage([], None)


async def test_originals_are_ordered_by_their_own_time(world: World) -> None:
    message = original(1, timestamp=at(1) + 1)
    await world.put(*envelopes(3))
    await world.send(message, created=START + 30)

    page = await world.messages.query(query_for())

    assert hashes(page) == [*names(2), message.hash(DEFAULT_NETWORK_TOPIC), *names(1, first=2)]


async def test_ephemeral_message_is_not_stored(world: World) -> None:
    await world.send(original(1, timestamp=at(0), ephemeral=True))

    assert await world.messages.query(query_for()) == MessagePage([], None)


async def test_message_that_was_sent_in_two_envelopes_is_there_once_until_both_are_gone(world: World) -> None:
    message = original(1, timestamp=at(0))
    for nonce in (1, 2):
        await world.send(message, nonce=nonce)
        await world.messages.follower.catch_up()

    before = await world.messages.query(query_for())
    await world.prune(1)
    after = await world.messages.query(query_for())

    assert before == after == MessagePage([stored(message)], None)


async def test_work_is_charged_and_more_of_it_for_more(world: World) -> None:
    await world.put(*envelopes(100))
    await world.messages.query(query_for())
    charged: list[int] = []

    for limit in (1, 100):
        spent: list[int] = []
        await world.messages.query(query_for(limit=limit), payer=Payer("group", "member", spent.append))
        charged.append(sum(spent))

    assert 0 < charged[0] < charged[1] / 5


async def test_where_nothing_is_found_only_the_index_was_asked(world: World) -> None:
    await world.put(*envelopes(3))
    charges: list[int] = []

    page = await world.messages.query(query_for(time_start=at(3)), payer=Payer(charge=charges.append))

    assert page == MessagePage([], None)
    assert len(charges) == 1


async def test_messages_of_another_network_topic_are_not_here(world: World) -> None:
    await world.put(envelope(1))

    elsewhere = await world.messages.query(query_for(pubsub_topic="/waku/2/rs/9/9", content_topics=(NEWS_TOPIC,)))
    here = await world.messages.query(query_for(pubsub_topic=DEFAULT_NETWORK_TOPIC, content_topics=(NEWS_TOPIC,)))

    assert elsewhere == MessagePage([], None)
    assert here.entries == all_of([envelope(1)])


async def test_what_is_asked_for_again_costs_less_and_is_the_same(world: World) -> None:
    await world.put(*(envelope(number, created=START + number, size=5000) for number in range(30)))
    await world.messages.follower.catch_up()
    pages, charged = [], []

    for _ in range(2):
        spent: list[int] = []
        pages.append(await world.messages.query(query_for(limit=30), payer=Payer(charge=spent.append)))
        charged.append(sum(spent))
    await world.prune(10)
    after = await world.messages.query(query_for(limit=30))

    assert pages[0] == pages[1]
    assert charged[1] < charged[0] / 2
    assert after.entries == pages[0].entries[10:]


async def test_page_of_new_and_repeated_messages_ends_before_it_is_too_long(world: World) -> None:
    some = [envelope(number, created=START + number, size=MAX_PAGE_BYTES // 4) for number in range(5)]
    await world.put(*some)
    await world.messages.query(query_for(time_start=at(1), time_end=at(2)))

    page = await world.messages.query(query_for())

    assert page.entries == all_of(some[:3])


async def test_entries_are_encoded_as_answers_have_them(world: World) -> None:
    await world.put(envelope(1))

    (entry,) = (await world.messages.query(query_for())).entries

    message = message_of(envelope(1))
    plain = WakuMessageKeyValue(message.hash(DEFAULT_NETWORK_TOPIC), message, DEFAULT_NETWORK_TOPIC)
    assert entry.encode() == plain.encode()
    assert decode_key_value(entry.encode()) == plain
