"""The ids of a store: MUIDs are listed by query, and envelopes found by MUID and by id of reconciliation."""

from collections.abc import Iterable

import pytest

from mailserver.ids.envelopes import NS, envelope_muid
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC, Muid, sync_id
from mailserver.reconcile.sides import Needed
from mailserver.store.interface import Payer, Query
from mailserver.store.message_ids import (
    BEFORE_ALL,
    MAX_IDS_OF_PAGE,
    MAX_IDS_TO_FIND,
    FoundEnvelopes,
    MetadataRange,
    RangeTooWide,
    StoreWithIds,
)
from mailserver.store.retention import END_OF_TIME, Surplus
from mailserver.waku.bloom import Interest
from mailserver.waku.envelope import Envelope
from tests.mailservers import fill, in_order, make_envelope
from tests.store.engines import EVERYTHING, NEWS_ONLY
from tests.store.samples import EVER, EVERY_BYTE, LAST_SECOND, NEWS, SPORT, START, deployed_bloom, new_envelopes

BY_BLOOM = Query(*EVER, Interest(bloom=deployed_bloom(NEWS)))


def some_envelopes(count: int, *, first: int = 0) -> list[Envelope]:
    """Envelopes of two topics, in the order of their arrival; of each second there are three."""
    return [
        make_envelope(number, created=START + number * 7 % 20 // 3, ttl=number, topic=SPORT if number % 4 else NEWS)
        for number in range(first, first + count)
    ]


def muid(envelope: Envelope) -> Muid:
    return envelope_muid(DEFAULT_NETWORK_TOPIC, envelope)


def muids(envelopes: Iterable[Envelope]) -> list[Muid]:
    return [muid(envelope) for envelope in envelopes]


def items(envelopes: Iterable[Envelope]) -> list[bytes]:
    return [sync_id(muid(envelope)) for envelope in envelopes]


def by_item(envelopes: Iterable[Envelope]) -> list[Envelope]:
    """In the order in which sets of ids are compared."""
    return sorted(envelopes, key=lambda envelope: (envelope.created, sync_id(muid(envelope))))


def raws(envelopes: Iterable[Envelope]) -> list[bytes]:
    return [envelope.raw for envelope in envelopes]


async def all_of(found: FoundEnvelopes) -> list[bytes]:
    return (await found.read(found.left, EVERY_BYTE)).split()


async def prune_all(store: StoreWithIds) -> None:
    while (await store.prune(Surplus(END_OF_TIME, EVERY_BYTE))).envelopes:
        pass


# Ranges of metadata


@pytest.mark.parametrize(
    ("prefix", "high"),
    [(b"", None), (b"\0", b"\1"), (b"a\xff", b"b"), (b"\xff\xff", None), (b"a\xfe\xff\xff", b"a\xff")],
)
def test_prefix_ends_where_the_next_one_begins(prefix: bytes, high: bytes | None) -> None:
    assert MetadataRange.of_prefix(prefix) == MetadataRange(prefix, high)


@pytest.mark.parametrize(
    ("of", "created"),
    [
        (MetadataRange(), (0, LAST_SECOND)),
        (MetadataRange(b"\xff"), (0xFF << 56, LAST_SECOND)),
        (MetadataRange.of_prefix((7 * 10**9).to_bytes(8, "big") + b"\1"), (7, 7)),
        (MetadataRange((7 * 10**9 - 1).to_bytes(8, "big"), (9 * 10**9).to_bytes(8, "big")), (6, 9)),
    ],
)
def test_metadata_says_when_its_envelopes_were_created(of: MetadataRange, created: tuple[int, int]) -> None:
    assert of.created == (created[0] // (NS if created[0] > LAST_SECOND else 1), created[1])


@pytest.mark.parametrize("limit", [-1, 0, MAX_IDS_OF_PAGE + 1])
async def test_list_is_no_longer_than_the_bound(store: StoreWithIds, limit: int) -> None:
    with pytest.raises(ValueError, match=f"list of {limit} ids is not one of 1 to 10000"):
        await store.message_ids.as_arrived(EVERYTHING, limit)


# As they arrived


@pytest.mark.parametrize("query", [EVERYTHING, NEWS_ONLY, BY_BLOOM, Query(START + 1, START + 4, NEWS_ONLY.interest)])
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
async def test_muids_are_listed_as_they_arrived(store: StoreWithIds, query: Query, limit: int) -> None:
    envelopes = some_envelopes(20)
    wanted = [
        envelope
        for envelope in envelopes
        if query.lower <= envelope.created <= query.upper and query.interest.wants(envelope.topic)
    ]
    await fill(store, envelopes[:10])
    await fill(store, envelopes[10:])

    listed: list[Muid] = []
    after, is_all = BEFORE_ALL, False
    while not is_all:
        page = await store.message_ids.as_arrived(query, limit, after=after)
        assert len(page.muids) <= limit
        assert page.end > after or page.is_all
        listed += page.muids
        after, is_all = page.end, page.is_all

    assert listed == muids(wanted)


async def test_list_goes_on_with_what_arrives_later_whatever_was_deleted(store: StoreWithIds) -> None:
    envelopes = some_envelopes(20)
    await fill(store, envelopes[:10])

    first = await store.message_ids.as_arrived(NEWS_ONLY, 100)
    nothing = await store.message_ids.as_arrived(NEWS_ONLY, 100, after=first.end)
    await prune_all(store)
    none_left = await store.message_ids.as_arrived(NEWS_ONLY, 100, after=first.end)
    await fill(store, envelopes[10:])
    later = await store.message_ids.as_arrived(NEWS_ONLY, 100, after=none_left.end)

    assert first.muids == muids(envelope for envelope in envelopes[:10] if envelope.topic == NEWS)
    assert (nothing.muids, nothing.end, nothing.is_all) == ([], first.end, True)
    assert (none_left.muids, none_left.end) == ([], first.end)
    assert later.muids == muids(envelope for envelope in envelopes[10:] if envelope.topic == NEWS)
    assert later.is_all


async def test_place_of_a_query_holds_for_what_arrived_too(store: StoreWithIds) -> None:
    envelopes = some_envelopes(20)
    await fill(store, envelopes)
    newest = in_order(envelopes)[:8]

    rest = await store.message_ids.as_arrived(
        Query(*EVER, EVERYTHING.interest, (newest[-1].created, newest[-1].hash())), 100
    )

    assert rest.muids == [muid(each) for each in envelopes if each not in newest]


async def test_envelope_without_id_is_in_no_list_and_leaves_its_place_to_another(store: StoreWithIds) -> None:
    nameless = [make_envelope(number, created=0) for number in range(30)]
    older, newer = make_envelope(100, created=1), make_envelope(101, created=START)
    await fill(store, [*nameless, newer, older])
    await store.put(new_envelopes(5, created=2))  # whose bytes are no envelopes

    assert (await store.message_ids.as_arrived(EVERYTHING, 2)).muids == muids([newer, older])


# By id


async def test_envelopes_are_found_by_muid_in_the_order_that_is_asked_for(store: StoreWithIds) -> None:
    envelopes = some_envelopes(20)
    strangers = some_envelopes(5, first=100)
    asked = [envelopes[13], strangers[0], envelopes[2], envelopes[13], *strangers[1:], envelopes[7]]
    other = [Muid(bytes(32) + b"not an envelope's"), envelope_muid("/waku/2/rs/1/5", envelopes[3])]
    await fill(store, envelopes)

    found = await store.message_ids.find([*other, *muids(asked)])

    assert found.left == 3
    assert await all_of(found) == raws([envelopes[13], envelopes[2], envelopes[7]])
    assert found.left == 0
    assert await all_of(await store.message_ids.find([])) == []


async def test_many_envelopes_are_found_by_muid(store: StoreWithIds) -> None:
    envelopes = some_envelopes(700)
    await fill(store, envelopes)

    found = await store.message_ids.find(muids(envelopes[::-1]))

    assert await all_of(found) == raws(envelopes[::-1])


async def test_envelopes_are_found_by_item_in_the_order_of_items(store: StoreWithIds) -> None:
    envelopes = some_envelopes(20)
    asked = [*envelopes[3:12], *some_envelopes(3, first=100)]
    await fill(store, envelopes)

    found = await store.message_ids.find_items([Needed(START + 1, START + 4, items(asked))])

    expected = [envelope for envelope in by_item(envelopes[3:12]) if START + 1 <= envelope.created <= START + 4]
    assert 0 < len(expected) < 9
    assert await all_of(found) == raws(expected)
    assert await all_of(await store.message_ids.find_items([Needed(*EVER, items(asked))])) == raws(
        by_item(envelopes[3:12])
    )
    assert await all_of(await store.message_ids.find_items([Needed(*EVER, [])])) == []
    of_second = [envelope for envelope in by_item(envelopes) if envelope.created == START + 2]
    assert await all_of(await store.message_ids.find_items([Needed(START + 2, START + 2, items(envelopes))])) == raws(
        of_second
    )


async def test_envelope_in_several_groups_of_items_is_found_once(store: StoreWithIds) -> None:
    envelopes = some_envelopes(6)
    await fill(store, envelopes)
    first, second = by_item(envelopes[3:]), by_item(envelopes)

    found = await store.message_ids.find_items([Needed(*EVER, items(first)), Needed(*EVER, items(second))])

    assert await all_of(found) == raws([*first, *(each for each in second if each not in first)])


async def test_ids_are_looked_for_no_longer_than_may_be(store: StoreWithIds) -> None:
    await fill(store, some_envelopes(20))
    groups, done = [Needed(*EVER, [bytes([number]) * 32]) for number in range(5)], list[int]()

    def goes_on(work: int) -> bool:
        done.append(work)
        return len(done) < 3

    with pytest.raises(RangeTooWide, match="too many others"):
        await store.message_ids.find_items(groups, goes_on=goes_on)

    assert 0 < done[0] < done[1] < done[2]
    assert len(done) == 3


async def test_found_envelopes_read_themselves_within_bounds(store: StoreWithIds) -> None:
    envelopes = some_envelopes(5)
    await fill(store, envelopes)
    found = await store.message_ids.find(muids(envelopes))

    first = await found.read(2, EVERY_BYTE)
    second = await found.read(3, len(envelopes[2].raw) + len(envelopes[3].raw))

    assert first.split() == raws(envelopes[:2])
    assert second.split() == raws(envelopes[2:4])
    assert found.left == 1


async def test_what_was_deleted_is_not_found(store: StoreWithIds) -> None:
    envelopes = some_envelopes(5)
    await fill(store, envelopes)
    found = await store.message_ids.find(muids(envelopes))
    await prune_all(store)

    assert (await found.read(5, EVERY_BYTE)).sizes == [0] * 5
    assert (await store.message_ids.find(muids(envelopes))).left == 0
    assert (await store.message_ids.find_items([Needed(*EVER, items(envelopes))])).left == 0


async def test_no_more_ids_are_looked_for_than_the_bound(store: StoreWithIds) -> None:
    too_many = [bytes(52)] * (MAX_IDS_TO_FIND + 1)

    for find in (
        store.message_ids.find([*map(Muid, too_many)]),
        store.message_ids.find_items([Needed(*EVER, too_many)]),
    ):
        with pytest.raises(ValueError, match="10001 ids are more than 10000"):
            await find


async def test_what_is_listed_and_found_is_charged_to_its_payer(store: StoreWithIds) -> None:
    envelopes = some_envelopes(20)
    await fill(store, envelopes)
    ids = store.message_ids
    charges: list[int] = []
    payer = Payer(charge=charges.append)

    def charged() -> int:
        total = sum(charges)
        charges.clear()
        return total

    await ids.as_arrived(EVERYTHING, 1, payer=payer)
    arrived_one = charged()
    await ids.as_arrived(EVERYTHING, 20, payer=payer)
    arrived_all = charged()
    found = await ids.find(muids(envelopes), payer=payer)
    by_muid = charged()
    await found.read(20, EVERY_BYTE)
    read = charged()
    await ids.find_items([Needed(START, START, items(envelopes[:1]))], payer=payer)
    narrow = charged()
    await ids.find_items([Needed(*EVER, items(some_envelopes(1, first=100)))], payer=payer)
    wide = charged()

    assert 0 < arrived_one < arrived_all
    assert by_muid > 0 < read
    assert 0 < narrow < wide
