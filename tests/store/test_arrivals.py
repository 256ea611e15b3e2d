"""A store read in the order of arrival, beside the daemon's writer, on every engine."""

from collections.abc import AsyncIterator

import pytest

from mailserver.errors import StoreError
from mailserver.store.arrivals import ArrivalLog, OtherStore, StoredPlace
from mailserver.store.engine.arrivals import MAX_ARRIVALS_BYTES
from mailserver.store.engine.keys import HASH_PREFIX_BYTES
from mailserver.store.interface import NewEnvelope, Payer
from mailserver.store.message_ids import BEFORE_ALL, Arrival, StoreWithIds
from mailserver.store.postgres import connections
from mailserver.store.retention import Surplus
from mailserver.waku.envelope import NONCE_BYTES, Envelope, encode_envelope
from tests.store.engines import Engine
from tests.store.samples import DAY, EVERY_BYTE, NEWS, START


def envelope(number: int, size: int = 40) -> Envelope:
    return encode_envelope(START + number + 50, 50, NEWS, number.to_bytes(8, "big").ljust(size, b"."), number)


def new(*some: Envelope) -> list[NewEnvelope]:
    return [NewEnvelope(each.created, each.created, each.topic, each.hash(), each.raw) for each in some]


async def places_of(store: StoreWithIds, log: ArrivalLog) -> list[StoredPlace]:
    """Where all envelopes of the store are, in the order of arrival."""
    arrived = await log.after(BEFORE_ALL, 1000, of=await store.identity())
    return [StoredPlace(each.arrival, each.envelope.created) for each in arrived.decode()[0]]


@pytest.fixture
async def log(engine: Engine) -> AsyncIterator[ArrivalLog]:
    """The store as another process follows it."""
    async with engine.follow() as opened:
        yield opened


async def test_envelopes_come_in_the_order_of_arrival_in_parts(store: StoreWithIds, log: ArrivalLog) -> None:
    some = [envelope(number) for number in (3, 1, 2, 5, 4)]
    await store.put(new(*some))
    identity = await store.identity()

    first = await log.after(BEFORE_ALL, 3, of=identity)
    second = await log.after(first.end, 3, of=identity)
    third = await log.after(second.end, 3, of=identity)

    found = [*first.decode()[0], *second.decode()[0]]
    assert [each.envelope for each in found] == some
    assert [each.hash for each in found] == [each.hash() for each in some]
    assert first.first == found[0].arrival
    assert first.end < second.end == second.last == third.end
    assert third.decode() == ([], 0)


async def test_where_the_store_ends_is_told_without_what_is_there(store: StoreWithIds, log: ArrivalLog) -> None:
    await store.put(new(*(envelope(number) for number in range(3))))
    identity = await store.identity()
    everything = await log.after(BEFORE_ALL, 10, of=identity)

    none = await log.after(BEFORE_ALL, 0, of=identity)
    none_more = await log.after(everything.end, 0, of=identity)

    assert (none.end, none.first, none.last) == (BEFORE_ALL, everything.first, everything.last)
    assert none_more.end == none_more.last == everything.end
    assert none.decode() == none_more.decode() == ([], 0)


async def test_known_envelopes_are_left_out_and_not_counted_as_damaged(store: StoreWithIds, log: ArrivalLog) -> None:
    some = [envelope(number) for number in range(5)]
    await store.put(new(*some))
    arrived = await log.after(BEFORE_ALL, 10, of=await store.identity())
    known = {some[number].hash()[:HASH_PREFIX_BYTES] for number in (1, 3)}

    found, damaged = arrived.fields(known)

    assert [each.hash for each in found] == [some[number].hash() for number in (0, 2, 4)]
    assert found == [each for each in arrived.fields()[0] if each.hash[:HASH_PREFIX_BYTES] not in known]
    assert damaged == 0


async def test_arrivals_are_cut_behind_the_last_that_is_known(store: StoreWithIds, log: ArrivalLog) -> None:
    some = [envelope(number) for number in range(5)]
    await store.put(new(*some))
    arrived = await log.after(BEFORE_ALL, 10, of=await store.identity())
    known = {some[number].hash()[:HASH_PREFIX_BYTES] for number in (1, 3)}
    everything, _ = arrived.decode()

    cut = arrived.up_to_known(known)

    assert cut is not None
    assert cut.decode() == (everything[:4], 0)
    assert cut.end == everything[3].arrival
    assert cut.last == arrived.last
    assert arrived.up_to_known({envelope(9).hash()[:HASH_PREFIX_BYTES]}) is None


async def test_fields_are_those_of_the_envelopes(store: StoreWithIds, log: ArrivalLog) -> None:
    some = [envelope(number, size) for number, size in ((0, 40), (1, 300), (2, 3000))]
    await store.put(new(*some))
    arrived = await log.after(BEFORE_ALL, 10, of=await store.identity())

    fields, damaged = arrived.fields()

    whole, _ = arrived.decode()
    assert [(each.arrival, each.hash) for each in fields] == [(each.arrival, each.hash) for each in whole]
    assert [each.fields for each in fields] == [
        (each.created, each.ttl, each.topic, each.data, each.nonce.to_bytes(NONCE_BYTES, "big")) for each in some
    ]
    assert damaged == 0


async def test_part_ends_with_the_envelope_that_makes_it_long(store: StoreWithIds, log: ArrivalLog) -> None:
    some = [envelope(number, MAX_ARRIVALS_BYTES // 8) for number in range(10)]
    await store.put(new(*some))

    arrived = await log.after(BEFORE_ALL, 100, of=await store.identity())

    assert [each.envelope for each in arrived.decode()[0]] == some[:8]
    assert arrived.end < arrived.last


async def test_removal_changes_the_text_of_removals_and_nothing_else_does(store: StoreWithIds, log: ArrivalLog) -> None:
    async def removals() -> str:
        return (await log.after(BEFORE_ALL, 1, of=await store.identity())).removals

    await store.put(new(*(envelope(day * DAY) for day in range(2))))
    await store.put(new(envelope(DAY + 1)))
    before = await removals()
    await store.put(new(envelope(DAY + 1), envelope(DAY + 2)))
    after_more = await removals()
    after_each = []
    for _ in range(2):
        assert (await store.prune(Surplus(2**33, 1))).envelopes == 1
        after_each.append(await removals())
    arrived = await log.after(BEFORE_ALL, 1, of=await store.identity())

    assert before == after_more
    assert len({before, *after_each}) == 3
    assert arrived.removed_until >= envelope(DAY).created


async def test_last_envelopes_that_were_removed_are_not_waited_for(store: StoreWithIds, log: ArrivalLog) -> None:
    some = [envelope(DAY), envelope(0), envelope(1)]  # those that arrived last are the oldest
    for each in some:
        await store.put(new(each))
    identity = await store.identity()
    whole = await log.after(BEFORE_ALL, 10, of=identity)
    await store.prune(Surplus(envelope(2).created, 10))

    arrived = await log.after(BEFORE_ALL, 10, of=identity)
    further = await log.after(whole.end, 10, of=identity)

    assert [each.envelope for each in arrived.decode()[0]] == some[:1]
    assert arrived.end == arrived.last
    assert further.end >= further.last
    assert further.decode() == ([], 0)


async def test_what_arrives_after_removals_is_read(store: StoreWithIds, log: ArrivalLog) -> None:
    await store.put(new(envelope(0), envelope(1)))
    end = (await log.after(BEFORE_ALL, 10, of=await store.identity())).end
    await store.prune(Surplus(2**33, 10))
    await store.put(new(envelope(1), envelope(2)))

    arrived = await log.after(end, 10, of=await store.identity())

    assert [each.envelope for each in arrived.decode()[0]] == [envelope(1), envelope(2)]
    assert arrived.first > end


@pytest.mark.parametrize("is_created_known", [True, False])
async def test_envelopes_are_read_by_their_places_as_far_as_they_fit(
    store: StoreWithIds, log: ArrivalLog, *, is_created_known: bool
) -> None:
    some = [envelope(number, 1000) for number in (0, 1, DAY, 3 * DAY)]
    await store.put(new(*some))
    first, *there = await places_of(store, log)
    await store.prune(Surplus(2**33, 1))
    places = [there[1], first, there[0], StoredPlace(Arrival(2**40), START), there[2]]
    if not is_created_known:
        places = [StoredPlace(each.arrival, None) for each in places]

    everything = await log.read(places, 5, EVERY_BYTE)
    some_whole = await log.read(places, 3, EVERY_BYTE)
    short = await log.read(places, 5, len(some[1].raw) + 10)
    none_fits = await log.read(places, 5, 1)
    only_sizes = await log.read(places, 0, EVERY_BYTE)
    of_nothing = await log.read([], 0, EVERY_BYTE)
    sizes = [len(some[2].raw), 0, len(some[1].raw), 0, len(some[3].raw)]
    one, two, three = (place.arrival for place in there)

    assert everything == (sizes, 5, {two: some[2].raw, one: some[1].raw, three: some[3].raw})
    assert some_whole == (sizes, 3, {two: some[2].raw, one: some[1].raw})
    assert short == none_fits == (sizes, 2, {two: some[2].raw})
    assert only_sizes == (sizes, 0, {})
    assert of_nothing == ([], 0, {})


async def test_long_envelopes_are_read_among_short_ones_as_far_as_all_fit(store: StoreWithIds, log: ArrivalLog) -> None:
    some = [envelope(number, size) for number, size in enumerate((40, 9000, 50, 9000, 60))]
    await store.put(new(*some))
    places = await places_of(store, log)
    sizes = [len(each.raw) for each in some]
    raws = {place.arrival: each.raw for place, each in zip(places, some, strict=True)}
    up_to_second_long = sum(sizes[:4])

    everything = await log.read(places, 5, sum(sizes))
    fourth_fits = await log.read(places, 5, up_to_second_long)
    fourth_is_too_long = await log.read(places, 5, up_to_second_long - 1)
    second_is_known = await log.read(places, 5, sum(sizes), known={places[1].arrival})

    assert everything == (sizes, 5, raws)
    assert fourth_fits == (sizes, 4, {place.arrival: raws[place.arrival] for place in places[:4]})
    assert fourth_is_too_long == (sizes, 3, {place.arrival: raws[place.arrival] for place in places[:3]})
    assert second_is_known == (sizes, 5, {name: raw for name, raw in raws.items() if name != places[1].arrival})


async def test_envelopes_that_are_known_count_but_are_not_read(store: StoreWithIds, log: ArrivalLog) -> None:
    some = [envelope(number, 1000) for number in range(3)]
    await store.put(new(*some))
    places = await places_of(store, log)

    found = await log.read(places, 3, 2 * len(some[0].raw), known={places[0].arrival})

    assert found == ([len(each.raw) for each in some], 2, {places[1].arrival: some[1].raw})


async def test_missing_envelopes_are_told(store: StoreWithIds, log: ArrivalLog) -> None:
    await store.put(new(*(envelope(number) for number in range(4))))
    places = await places_of(store, log)
    await store.prune(Surplus(2**33, 2))
    unknown = StoredPlace(Arrival(2**40), START)

    asked = [places[3], places[1], unknown, places[2], StoredPlace(places[0].arrival, None)]

    assert await log.missing(asked) == [places[1].arrival, unknown.arrival, places[0].arrival]
    assert await log.missing([places[3]]) == []


async def test_reading_is_charged_for_what_was_read(store: StoreWithIds, log: ArrivalLog) -> None:
    await store.put(new(envelope(1, 20_000), envelope(2)))
    spent: list[list[int]] = []

    for place in await places_of(store, log):
        spent.append([])
        await log.read([place], 1, EVERY_BYTE, payer=Payer(charge=spent[-1].append))

    long, short = map(sum, spent)
    assert 15 < long - short < 25
    assert spent[0][0] > long  # before it is read


async def test_store_of_another_identity_is_told_with_it(store: StoreWithIds, log: ArrivalLog) -> None:
    with pytest.raises(OtherStore, match=await store.identity()) as caught:
        await log.after(BEFORE_ALL, 1, of="")

    assert caught.value.identity == await store.identity()


async def test_store_that_is_not_there_yet_is_an_error_until_it_is(
    engine: Engine, log: ArrivalLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "RETRY_S", 0.0)  # PostgreSQL is asked again at once
    for _ in range(2):
        with pytest.raises(StoreError, match="there is n"):
            await log.after(BEFORE_ALL, 1, of="")

    async with engine.open() as store:
        await store.put(new(envelope(2)))
        arrived = await log.after(BEFORE_ALL, 1, of=await store.identity())
    assert [each.envelope for each in arrived.decode()[0]] == [envelope(2)]
