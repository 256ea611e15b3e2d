"""mailserver.history.id_lists: what a query about message ids finds, newest first, in a store and in an archive."""

import contextlib
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from mailserver.errors import DecodeError
from mailserver.history import id_lists, id_search
from mailserver.history.id_lists import IdLists, matching_envelopes
from mailserver.history.id_search import AtOnce, CursorOfAnotherStore, Selection
from mailserver.ids.envelopes import NS, envelope_muid
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC, Muid, metadata_of
from mailserver.store.engine import message_ids
from mailserver.store.engine.keys import HASH_PREFIX_BYTES
from mailserver.store.interface import OURSELVES, GoesOn, NewEnvelope, Page, Payer, Query, always
from mailserver.store.message_ids import MetadataRange
from mailserver.store.retention import END_OF_TIME, Surplus
from mailserver.store.sqlite.identity import KnownStore
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.store.sqlite.store import SqliteStore, open_store
from mailserver.waku.bloom import Interest
from mailserver.waku.envelope import Envelope, decode_envelope
from mailserver.wakuid.packets import Order
from tests.archive.reading.parquet import envelope as archived_envelope
from tests.history.test_merged import merged
from tests.mailservers import fill, in_order, make_envelope
from tests.store.samples import DAY, EVER, FULL, NEWS, SPORT, START, change, deployed_bloom, new_envelopes

EVERYTHING = Selection(*EVER, FULL)
NEWS_ONLY = Selection(*EVER, Interest(topics=frozenset({NEWS})))
READ_AT_ONCE = AtOnce(7, 10_000)
BY_BLOOM = Selection(*EVER, Interest(bloom=deployed_bloom(NEWS)))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with open_store(tmp_path / "mailserver.db") as store:
        yield store


def some_envelopes(count: int) -> list[Envelope]:
    """Envelopes of two topics, in the order of their arrival; of each second there are three."""
    return [
        make_envelope(number, created=START + number * 7 % 20 // 3, ttl=number, topic=SPORT if number % 4 else NEWS)
        for number in range(count)
    ]


def muids(envelopes: list[Envelope]) -> list[Muid]:
    return [envelope_muid(DEFAULT_NETWORK_TOPIC, envelope) for envelope in envelopes]


def lists_of(store: SqliteStore) -> IdLists:
    return IdLists(store, store.message_ids)


async def listed(
    lists: IdLists, selection: Selection, limit: int, *, payer: Payer = OURSELVES, goes_on: GoesOn = always
) -> tuple[list[Muid], Selection | None]:
    """A page, and the selection for the next one. A page of envelopes has the same, and ends at the same place."""
    names: list[Muid] = []
    async with lists.newest(selection, limit, payer, goes_on, READ_AT_ONCE.envelopes) as found:
        while more := await found.read():
            assert len(more) <= READ_AT_ONCE.envelopes
            names += more
    assert len(names) == limit - found.left
    envelopes = matching_envelopes(lists.source, selection, limit, OURSELVES, goes_on, at_once=READ_AT_ONCE)
    raws: list[bytes] = []
    while of_some := await envelopes.read():
        raws += of_some
    assert (muids([*map(decode_envelope, raws)]), envelopes.cursor) == (names, found.cursor)
    return names, replace(selection, cursor=found.cursor) if found.cursor else None


@pytest.mark.parametrize(
    "query", [EVERYTHING, NEWS_ONLY, BY_BLOOM, Selection(START + 1, START + 4, NEWS_ONLY.interest)]
)
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
async def test_pages_of_muids_have_what_pages_of_envelopes_have(
    store: SqliteStore, query: Selection, limit: int
) -> None:
    envelopes = some_envelopes(20)
    wanted = [
        envelope
        for envelope in in_order(envelopes)
        if query.lower <= envelope.created <= query.upper and query.interest.wants(envelope.topic)
    ]
    await fill(store, envelopes)

    names: list[Muid] = []
    pages = 0
    next_query: Selection | None = query
    while next_query is not None:
        page, next_query = await listed(lists_of(store), next_query, limit)
        names += page
        pages += 1

    assert wanted
    assert names == muids(wanted)
    assert pages == -(-len(wanted) // limit)


async def test_envelope_without_id_is_in_no_list_and_leaves_its_place_to_another(store: SqliteStore) -> None:
    nameless = [make_envelope(number, created=0) for number in range(30)]
    older, newer = make_envelope(100, created=1), make_envelope(101, created=START)
    await fill(store, [*nameless, older, newer])
    await store.put(new_envelopes(5, created=2))  # whose bytes are no envelopes

    assert await listed(lists_of(store), EVERYTHING, 2) == (muids([newer, older]), None)
    assert await listed(lists_of(store), Selection(0, 0, FULL), 2) == ([], None)


@pytest.mark.parametrize("searched", [2, 512])
@pytest.mark.parametrize("limit", [1, 4, 100])
async def test_muids_are_listed_by_their_metadata(
    store: SqliteStore, limit: int, searched: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(id_search, "SEARCHED_AT_ONCE", searched)
    envelopes = some_envelopes(20)
    await fill(store, envelopes)
    metadata = sorted(metadata_of(name) for name in muids(envelopes))
    of_second = (START + 2) * NS
    ranges = [
        MetadataRange(),
        MetadataRange.of_prefix(b""),
        MetadataRange.of_prefix(of_second.to_bytes(8, "big")),
        MetadataRange.of_prefix(metadata[5][:12]),
        MetadataRange.of_prefix(metadata[5][:5]),
        MetadataRange.of_prefix(metadata[5]),
        MetadataRange.of_prefix(b"\xff" * 3),
        MetadataRange(metadata[3], metadata[11]),
        MetadataRange(metadata[3]),
        MetadataRange(b"", metadata[11]),
        MetadataRange(b"", metadata[11][:9]),
        MetadataRange(metadata[4], metadata[4]),
        MetadataRange(metadata[9], metadata[4]),
    ]

    for each in ranges:
        names: list[Muid] = []
        query: Selection | None = EVERYTHING
        while query is not None:
            page, query = await listed(lists_of(store), replace(query, metadata=each), limit)
            names += page

        assert names == [name for name in muids(in_order(envelopes)) if each.has(metadata_of(name))]


@pytest.mark.parametrize("limit", [1, 2, 5])
@pytest.mark.parametrize("seconds", [-9, 0, 9])
async def test_list_goes_on_behind_an_envelope_of_which_bits_have_turned(
    tmp_path: Path, store: SqliteStore, limit: int, seconds: int
) -> None:
    envelopes = in_order(some_envelopes(12))
    await fill(store, envelopes)
    read = list(envelopes)
    for number in (4, 7, 11):
        was = envelopes[number]
        read[number] = make_envelope(40 + number, created=was.created + seconds, ttl=40 + number, topic=was.topic)
        key = f"created = {was.created} AND hash = x'{was.hash()[:HASH_PREFIX_BYTES].hex()}'"
        change(tmp_path / "mailserver.db", f"UPDATE envelopes SET raw = x'{read[number].raw.hex()}' WHERE {key}")

    names: list[Muid] = []
    query: Selection | None = replace(EVERYTHING, metadata=MetadataRange(b"\0"))  # or no page is cut
    while query is not None:
        page, query = await listed(lists_of(store), query, limit)
        names += page
        assert len(names) <= len(read)

    assert names == muids(read)


async def test_list_that_may_not_go_on_ends_early_and_the_next_one_goes_on_there(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(id_search, "SEARCHED_AT_ONCE", 2)
    envelopes = in_order([make_envelope(number, created=START, ttl=number) for number in range(12)])
    wanted = muids(envelopes)[5]
    await fill(store, envelopes)

    query: Selection | None = EVERYTHING
    pages: list[list[Muid]] = []
    while query is not None:
        assert len(pages) < 8
        metadata = MetadataRange.of_prefix(metadata_of(wanted))
        page, query = await listed(lists_of(store), replace(query, metadata=metadata), 1, goes_on=lambda _: False)
        pages.append(page)

    assert pages[:3] == [[], [], [wanted]]
    assert all(page == [] for page in pages[3:])


class Watched:
    """A store that notes how many matches each search was for."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.limits: list[int] = []

    async def find(self, query: Query, limit: int, *, payer: Payer = OURSELVES, goes_on: GoesOn = always) -> Page:
        self.limits.append(limit)
        return await self._store.find(query, limit, payer=payer, goes_on=goes_on)


async def test_no_more_is_looked_for_than_is_wanted(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_lists, "FOUND_AHEAD", 6)
    await fill(store, some_envelopes(20))
    of_ids, of_envelopes = Watched(store), Watched(store)

    async with IdLists(of_ids, store.message_ids).newest(EVERYTHING, 18, OURSELVES, count=5) as ids:
        while await ids.read():
            pass
    envelopes = matching_envelopes(of_envelopes, EVERYTHING, 18, OURSELVES, at_once=AtOnce(5, 10_000))
    while await envelopes.read():
        pass

    assert ids.left == envelopes.left == 0
    assert of_ids.limits == [5, 6, 6, 1]
    assert of_envelopes.limits == [18]


async def test_fewer_are_looked_for_at_once_where_envelopes_are_long(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(id_search, "FOUND_BYTES", 600)
    monkeypatch.setattr(id_lists, "BYTES_AT_ONCE", 600)
    envelopes = some_envelopes(20)
    await fill(store, envelopes)
    watched = Watched(store)

    names, rest = await listed(IdLists(watched, store.message_ids), EVERYTHING, 20)
    of_ids, of_envelopes = watched.limits[:-4], watched.limits[-4:]

    assert (names, rest) == (muids(in_order(envelopes)), None)
    assert {len(envelope.raw) for envelope in envelopes} == {116}  # the first is taken to have 512
    assert of_envelopes == [2, 6, 6, 6]
    assert of_ids == [2, 6, 6, 6, 3]  # and the sixth did not fit


async def test_ids_of_what_was_archived_and_removed_are_listed_too(tmp_path: Path) -> None:
    envelopes = [
        archived_envelope(number, created=START + number * DAY // 10, topic=NEWS if number % 2 else SPORT)
        for number in range(40)
    ]
    hot, archived = envelopes[25:], envelopes[:30]
    async with merged(tmp_path, hot, archived, until=archived[-1].created) as (source, store):
        names: list[Muid] = []
        query: Selection | None = NEWS_ONLY
        while query is not None:
            page, query = await listed(IdLists(source, store.message_ids), query, 6)
            names += page

    assert names == [_muid(each) for each in reversed(envelopes) if each.topic == NEWS]


def _muid(envelope: NewEnvelope) -> Muid:
    return envelope_muid(DEFAULT_NETWORK_TOPIC, decode_envelope(envelope.raw))


async def test_list_is_charged_to_its_payer(store: SqliteStore) -> None:
    await fill(store, some_envelopes(20))
    charges: list[int] = []
    payer = Payer(charge=charges.append)

    await listed(lists_of(store), EVERYTHING, 1, payer=payer)
    one = sum(charges)
    charges.clear()
    await listed(lists_of(store), EVERYTHING, 20, payer=payer)

    assert sum(charges) > one + 19 * id_lists.ID_WORK > 19 * id_lists.ID_WORK


async def test_few_lists_at_a_time_read_ahead_while_their_clients_stall(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(id_lists, "READ_AHEAD", 2)
    await fill(store, some_envelopes(20))
    lists = lists_of(store)

    async def work_for_five(stack: contextlib.AsyncExitStack) -> int:
        """The work that was done for a list of which five ids were read; it stays under way."""
        charges: list[int] = []
        found = await stack.enter_async_context(lists.newest(EVERYTHING, 20, Payer(charge=charges.append), count=5))
        assert len(await found.read()) == 5
        return sum(charges)

    async with contextlib.AsyncExitStack() as stack:
        ahead, also_ahead, not_ahead, nor_this = [await work_for_five(stack) for _ in range(4)]
    async with contextlib.AsyncExitStack() as stack:
        ahead_again = await work_for_five(stack)

    assert ahead == also_ahead == ahead_again > not_ahead == nor_this


@pytest.mark.parametrize("found_ahead", [1, 6, 100])
async def test_ids_of_what_is_deleted_while_they_are_read_ahead_leave_no_gap(
    store: SqliteStore, found_ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(id_lists, "FOUND_AHEAD", found_ahead)
    envelopes = in_order(some_envelopes(20))
    await fill(store, envelopes)

    names: list[Muid] = []
    async with lists_of(store).newest(EVERYTHING, 20, OURSELVES, count=3) as found:
        names += await found.read()
        await store.prune(Surplus(END_OF_TIME, 20))
        while more := await found.read():
            names += more

    assert 1 <= len(names) <= 20  # as far as they were read by then
    assert names == muids(envelopes)[: len(names)]


@pytest.mark.parametrize("limit", [1, 7, 100])
@pytest.mark.parametrize("order", Order)
async def test_list_in_either_order_goes_on_at_its_cursor(store: SqliteStore, order: Order, limit: int) -> None:
    envelopes = some_envelopes(20)
    lists = lists_of(store)
    await fill(store, envelopes)

    names: list[Muid] = []
    selection, is_all = replace(NEWS_ONLY, order=order), False
    while not is_all:
        found = await lists.list(selection, limit, OURSELVES)
        assert len(found.muids) <= limit
        names += found.muids
        selection, is_all = replace(selection, cursor=found.cursor), found.is_all

    in_their_order = in_order(envelopes) if order is Order.NEWEST_FIRST else envelopes
    assert names == muids([each for each in in_their_order if each.topic == NEWS])


async def test_arrived_ids_whose_metadata_is_elsewhere_are_left_out_and_walked_past(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_ids, "WALKED_ROWS", 3)
    envelopes = some_envelopes(20)
    lists = lists_of(store)
    await fill(store, envelopes)
    last = muids(envelopes)[-1]
    of_last = MetadataRange.of_prefix(metadata_of(last))
    selection = replace(EVERYTHING, order=Order.AS_ARRIVED, metadata=of_last)

    found = await lists.list(selection, 1, OURSELVES)
    early = await lists.list(selection, 1, OURSELVES, goes_on=lambda _: False)
    nothing = await lists.list(replace(selection, metadata=MetadataRange(b"\1", b"\0")), 1, OURSELVES)

    assert found.muids == [last]
    assert (early.muids, early.is_all) == ([], False)
    assert (nothing.muids, nothing.is_all) == ([], True)


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("cursor", [b"short", bytes(8), bytes(23), b"\xff" * 24, bytes(25), bytes(37)])
async def test_cursor_that_is_none_is_refused(store: SqliteStore, order: Order, cursor: bytes) -> None:
    lists = lists_of(store)

    with pytest.raises(DecodeError, match="cursor"):
        await lists.list(replace(EVERYTHING, order=order, cursor=cursor), 1, OURSELVES)


async def test_cursor_by_arrival_leads_nowhere_in_a_store_that_was_put_back(tmp_path: Path) -> None:
    envelopes, path = some_envelopes(20), tmp_path / STORE_FILE
    async with open_store(path) as store:
        await fill(store, envelopes[:10])
    shutil.copy(path, tmp_path / "copy.db")
    async with open_store(path) as store:
        await fill(store, envelopes[10:15])
        known = KnownStore(await store.identity(), store.newest_seen)
        before = await lists_of(store).list(replace(EVERYTHING, order=Order.AS_ARRIVED), 15, OURSELVES)
    (tmp_path / "copy.db").replace(path)

    async with open_store(path, known=known) as store:
        await fill(store, envelopes[15:])  # in the places of those that are gone
        with pytest.raises(CursorOfAnotherStore):
            await lists_of(store).list(replace(EVERYTHING, order=Order.AS_ARRIVED, cursor=before.cursor), 15, OURSELVES)
