"""A page of an answer: it reads itself, some envelopes at a time, and says where the next one begins."""

import asyncio

import pytest

from mailserver.codec.keccak import keccak256
from mailserver.store.engine import search, work
from mailserver.store.interface import Payer, Query, Raws, Store
from mailserver.store.retention import END_OF_TIME, Surplus
from mailserver.waku.envelope import EnvelopeHash
from tests.mailservers import fill, in_order, make_envelopes
from tests.store.engines import EVERYTHING, NEWS_ONLY, found
from tests.store.samples import EVER, EVERY_BYTE, FULL, RECEIVED, START, new_envelope, new_envelopes, raws


async def test_page_says_whether_there_is_more(store: Store) -> None:
    await store.put(new_envelopes(3))

    assert (await store.find(EVERYTHING, 2)).end is not None
    assert (await store.find(EVERYTHING, 3)).end is None
    nothing = await store.find(Query(0, START - 1, FULL), 3)
    assert (nothing.left, nothing.end, nothing.last_hash, nothing.ended_early) == (0, None, None, False)
    assert (await nothing.read(10, EVERY_BYTE)).split() == []


async def test_page_reads_itself_some_envelopes_at_a_time(store: Store) -> None:
    envelopes = in_order(make_envelopes(6))
    sizes = [len(envelope.raw) for envelope in envelopes]

    await fill(store, envelopes)
    page = await store.find(EVERYTHING, 5)
    assert (page.left, page.last_hash) == (5, None)
    first = await page.read(2, EVERY_BYTE)
    assert (page.left, page.last_hash) == (3, envelopes[1].hash())
    second = await page.read(3, sum(sizes[2:4]))

    assert first.split() == [envelope.raw for envelope in envelopes[:2]]
    assert second.split() == [envelope.raw for envelope in envelopes[2:4]]
    assert (page.left, page.last_hash) == (1, envelopes[3].hash())


async def test_no_more_is_read_than_is_within_the_bound_and_one_at_least(store: Store) -> None:
    envelopes = [
        new_envelope(number, created=START - number, size=size) for number, size in enumerate([30, 40, 50, 20])
    ]

    await store.put(envelopes)
    for max_bytes, count in ((0, 1), (29, 1), (69, 1), (70, 2), (119, 2), (120, 3), (139, 3), (140, 4), (999, 4)):
        read = await (await store.find(EVERYTHING, 4)).read(4, max_bytes)

        assert read.split() == raws(envelopes[:count])
        assert read.sizes == [len(envelope.raw) for envelope in envelopes[:count]]


async def test_what_was_deleted_since_it_was_found_is_left_out(store: Store) -> None:
    envelopes = [new_envelope(number, created=START + number, size=20 + number) for number in range(3)]
    oldest = envelopes[1]._replace(received=RECEIVED - 1)

    await store.put([envelopes[0], oldest, envelopes[2]])
    before, after = await store.find(EVERYTHING, 10), await store.find(EVERYTHING, 10)
    assert (await before.read(10, EVERY_BYTE)).sizes == [22, 21, 20]
    await store.prune(Surplus(END_OF_TIME, 1))

    left = await after.read(10, EVERY_BYTE)
    assert left.split() == raws([envelopes[2], envelopes[0]])
    assert left.sizes == [22, 0, 20]


async def test_next_page_begins_behind_the_last_envelope_whether_that_was_deleted_or_not(store: Store) -> None:
    envelopes = in_order(make_envelopes(4))
    last = envelopes[1]

    await fill(store, envelopes)
    whole, pruned = await store.find(EVERYTHING, 2), await store.find(EVERYTHING, 2)
    await whole.read(2, EVERY_BYTE)
    assert whole.end == (last.created, last.hash())
    assert await found(store, Query(*EVER, FULL, whole.end)) == [envelope.raw for envelope in envelopes[2:]]
    while (await store.prune(Surplus(END_OF_TIME, 4))).envelopes:
        pass
    await fill(store, [envelope for envelope in envelopes if envelope is not last])
    await pruned.read(2, EVERY_BYTE)

    assert pruned.end is not None
    assert await found(store, Query(*EVER, FULL, pruned.end)) == [envelope.raw for envelope in envelopes[2:]]


@pytest.mark.parametrize("last", [b"\x01", b"\xff"], ids=["usual", "highest"])
async def test_search_from_above_an_envelope_begins_with_it(store: Store, last: bytes) -> None:
    some = [new_envelope(number, created=START + number // 2) for number in range(6)]
    highest = some[3]._replace(hash=EnvelopeHash(15 * b"\xff" + last + bytes(16)))
    envelopes = sorted([*some[:3], highest, *some[4:]], key=lambda one: (one.created, one.hash), reverse=True)
    await store.put(envelopes)

    page = await store.find(EVERYTHING, 4)
    await page.read(3, EVERY_BYTE)

    for number in range(4):
        assert await found(store, Query(*EVER, FULL, page.above(number))) == raws(envelopes[number:])


async def test_many_requests_are_answered_at_once(store: Store) -> None:
    envelopes = new_envelopes(50)

    await store.put(envelopes)
    answers = await asyncio.gather(*(found(store, NEWS_ONLY, limit) for limit in range(1, 30)))

    assert answers == [raws(envelopes[::-1][:limit]) for limit in range(1, 30)]


async def test_what_is_found_and_read_is_charged_to_its_payer(store: Store) -> None:
    charged: list[int] = []
    await store.put(new_envelopes(3))

    page = await store.find(EVERYTHING, 3, payer=Payer(charge=charged.append))
    found_for = sum(charged)
    await page.read(3, EVERY_BYTE)

    assert 0 < found_for < sum(charged)


# Pages that are read as they are found


@pytest.mark.parametrize("read_bytes", [1, 60, 1000])
@pytest.mark.parametrize("at_a_time", [1, 2, 100])
@pytest.mark.parametrize("limit", [1, 3, 8])
async def test_pages_that_are_read_as_they_are_found_have_the_same(
    store: Store, limit: int, at_a_time: int, read_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MAX_ROWS", 5)
    sizes = [30, 20, 500, 20, 20, 20, 40, 20]
    envelopes = [new_envelope(number, created=START - number, size=size) for number, size in enumerate(sizes)]
    await store.put(envelopes)

    read: list[bytes] = []
    page = await store.find(Query(*EVER, FULL, read_bytes=read_bytes), limit)
    while True:
        assert page.left <= limit
        while page.left:
            read += (await page.read(at_a_time, EVERY_BYTE)).split()
            assert page.last_hash == keccak256(read[-1])
        if page.end is None:
            break
        page = await store.find(Query(*EVER, FULL, page.end, read_bytes), limit)

    assert read == raws(envelopes)
    assert page.left == 0 < len(read)


async def test_page_that_is_read_as_it_is_found_still_has_what_is_deleted_then(store: Store) -> None:
    envelopes = [new_envelope(number, created=START - number, size=20 + number) for number in range(4)]
    await store.put(envelopes)
    page = await store.find(Query(*EVER, FULL, read_bytes=EVERY_BYTE), 3)

    await store.prune(Surplus(END_OF_TIME, 4))
    read = await page.read(2, 41)
    rest = await page.read(2, 0)
    end = page.end

    assert (read.split(), rest.split(), page.left) == (raws(envelopes[:2]), raws(envelopes[2:3]), 0)
    assert end is not None
    assert end[0] == envelopes[2].created
    assert await page.read(2, EVERY_BYTE) == Raws(b"", ())


async def test_page_that_is_read_as_it_is_found_may_be_cut(store: Store) -> None:
    envelopes = [new_envelope(number, created=START - number) for number in range(4)]
    await store.put(envelopes)
    page = await store.find(Query(*EVER, FULL, read_bytes=EVERY_BYTE), 4)

    page.cut(2)

    assert (await page.read(4, EVERY_BYTE)).split() == raws(envelopes[:2])
    assert page.end is not None
    assert (page.place(1)[0], page.end[0], page.left) == (START - 1, START - 1, 0)


async def test_reading_what_is_found_costs_what_is_read(store: Store) -> None:
    await store.put([new_envelope(number, created=START - number, size=2000) for number in range(8)])

    async def charged(read_bytes: int, limit: int) -> int:
        charges: list[int] = []
        await store.find(Query(*EVER, FULL, read_bytes=read_bytes), limit, payer=Payer(charge=charges.append))
        return sum(charges)

    some, more, wasted = await charged(100_000, 2), await charged(100_000, 7), await charged(4000, 7)

    assert some + 5 * (work.ROW + work.ENVELOPE + 1) <= more
    assert wasted == more  # read, although it did not fit
