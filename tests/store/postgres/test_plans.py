"""How statements of mailserver.store.postgres are carried out: by the partitions of their days, and no row in vain."""

import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from mailserver.ids.envelopes import envelope_muid
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC, Muid, sync_id
from mailserver.reconcile.sides import Needed
from mailserver.store.engine import search as search_module
from mailserver.store.engine.keys import KeyPlace
from mailserver.store.engine.message_ids import WALKED_ROWS
from mailserver.store.engine.search import KeySearch, range_of
from mailserver.store.engine.snapshots import SnapshotReader
from mailserver.store.interface import NewEnvelope, Query, always
from mailserver.store.message_ids import Arrival, ComparedScope
from mailserver.store.postgres import deletion
from mailserver.store.postgres import partitions as partitions_module
from mailserver.store.postgres.connections import open_links
from mailserver.store.postgres.failures import StoreFailures
from mailserver.store.postgres.lookups import PostgresLookups
from mailserver.store.postgres.message_ids import PostgresMessageIds
from mailserver.store.postgres.readers import PaidReader
from mailserver.store.postgres.rows import RowReader
from mailserver.store.postgres.store import PostgresStore, open_store
from mailserver.waku.bloom import FULL_INTEREST, Interest, bloom_of
from mailserver.waku.envelope import Topic, decode_envelope
from tests.store.engines import NEWS_ONLY
from tests.store.indexing import ids_indexed_at_once
from tests.store.postgres.conftest import Place
from tests.store.postgres.plans import MODES, Plan, Recorded, Statement, plans_of
from tests.store.postgres.server import new_schema, shared_server
from tests.store.samples import DAY, EVER, EVERY_BYTE, NEWS, answer, new_envelope, place_at, raws
from tests.store.sqlite.ids import row
from tests.store.sqlite.statements import places, stored_places

pytestmark = pytest.mark.integration

TODAY = int(time.time()) // DAY
DAYS = range(TODAY - 7, TODAY - 1)
OLD_DAYS = range(TODAY - 100, TODAY - 97)
"""Days without partitions of their own."""

WANTED_DAYS = DAYS[2:4]
WANTED = WANTED_DAYS[0] * DAY, (WANTED_DAYS[-1] + 1) * DAY - 1
ROWS_OF_DAY = 1000
TOPICS = [Topic(bytes([number, 7, number * 37 % 256, 1])) for number in range(200)]

A_BUSY_MACHINE_S = 30.0
"""How long a busy machine may take for what is a moment's work."""

LIMIT = 50
MOST_PAGES = 1000
"""Of tables and indexes, for one statement: to look up 300 rows by their places takes three for each."""

INTERESTS = {
    "one topic": Interest(topics=frozenset(TOPICS[:1])),
    "many topics": Interest(topics=frozenset(TOPICS[:60])),
    "bloom of a topic": Interest(bloom=bloom_of(TOPICS[:1])),
    "bloom of many topics": Interest(bloom=bloom_of(TOPICS[:12])),
    "bloom of nearly everything": Interest(bloom=b"\xfe" + b"\xff" * 63),
    "everything": Interest(),
}
CURSOR = place_at(WANTED_DAYS[-1] * DAY + DAY // 3, b"\x80" * 32)


def envelopes_of_days() -> list[NewEnvelope]:
    """Real envelopes of all topics, spread over each day, in the order of their creation."""
    rng = random.Random(1)
    days = [day for day in (*OLD_DAYS, *DAYS) for _ in range(ROWS_OF_DAY)]
    created = sorted(day * DAY + rng.randrange(DAY) for day in days)
    return [row(number, created=when, topic=rng.choice(TOPICS)) for number, when in enumerate(created)]


ENVELOPES = envelopes_of_days()


@pytest.fixture(scope="module")
def filled() -> Place:
    """Where a store of some days is."""
    return Place(shared_server(), new_schema(shared_server()))


@pytest.fixture
async def store(filled: Place) -> AsyncIterator[PostgresStore]:
    """That store, filled once, indexed and analysed."""
    with ids_indexed_at_once(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(partitions_module, "MAKING_WAIT_S", A_BUSY_MACHINE_S)  # each day is to have its partition
        patch.setattr(partitions_module, "MAKING_S", A_BUSY_MACHINE_S)
        async with open_store(filled.url) as opened:
            if not (await opened.usage()).envelopes:
                await opened.put(ENVELOPES)
                await opened.message_ids.find([])
                filled.rows("ANALYZE")
            yield opened


def partitions(table: str, days: range = WANTED_DAYS) -> set[str]:
    return {f"{table}_d{day}" for day in days}


def assert_within(plans: list[Plan], allowed: set[str], most_rows: int) -> None:
    """They read nothing of other partitions, only by indexes, and sort no more than they find."""
    for plan in plans:
        assert plan.partitions <= allowed, plan
        assert plan.rows <= most_rows, plan
        assert plan.sorted <= most_rows, plan
        assert plan.pages <= MOST_PAGES, plan
        assert all(step.index for step in plan.of_partitions()), plan


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("below", [None, CURSOR], ids=["first page", "cursor"])
@pytest.mark.parametrize("interest", INTERESTS.values(), ids=INTERESTS)
async def test_history_is_read_from_the_partitions_of_its_days(
    filled: Place, store: PostgresStore, interest: Interest, below: KeyPlace | None, mode: str
) -> None:
    query = Query(*WANTED, interest, below and place_at(*below))
    failures = StoreFailures()
    async with open_links(filled.url, 1, failures) as links:
        pool = Recorded.on(links, failures)
        reader = PaidReader(pool)
        found = await KeySearch(PostgresLookups(reader), query, LIMIT, always).page()
        rows = RowReader(reader)
        read = await rows.read(rows.rows_of(found.keys), EVERY_BYTE)

    plans = await plans_of(filled.url, pool.run_so_far, mode)

    assert places(found) == stored_places(answer(ENVELOPES, query)[:LIMIT])
    assert len(read.sizes) == len(found.keys) > 0
    assert any(plan.partitions for plan in plans)
    assert_within(plans, partitions("envelopes"), most_rows=search_module.MAX_ROWS)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("below", [None, CURSOR], ids=["first page", "cursor"])
async def test_what_is_read_as_it_is_found_is_read_from_the_partitions_of_its_days(
    filled: Place, store: PostgresStore, below: KeyPlace | None, mode: str
) -> None:
    query = Query(*WANTED, FULL_INTEREST, below and place_at(*below), EVERY_BYTE)
    failures = StoreFailures()
    async with open_links(filled.url, 1, failures) as links:
        pool = Recorded.on(links, failures)
        found = await KeySearch(PostgresLookups(PaidReader(pool)), query, LIMIT, always).page()

    plans = await plans_of(filled.url, pool.run_so_far, mode)

    expected = answer(ENVELOPES, query)[:LIMIT]
    assert found.keys.hashes == b"".join(prefix for _, prefix in stored_places(expected))
    assert found.raws is not None
    assert found.raws.split() == raws(expected)
    assert len(plans) == 1
    assert_within(plans, partitions("envelopes"), most_rows=search_module.MAX_ROWS)


OF_A_TOPIC = Query(*WANTED, INTERESTS["one topic"])
OF_THE_DAYS = answer(ENVELOPES, Query(*WANTED, Interest()))


def muid(envelope: NewEnvelope) -> Muid:
    return envelope_muid(DEFAULT_NETWORK_TOPIC, decode_envelope(envelope.raw))


async def arrived(ids: PostgresMessageIds) -> None:
    listed = await ids.as_arrived(OF_A_TOPIC, LIMIT, after=Arrival(2 * ROWS_OF_DAY))
    assert set(listed.muids) <= {muid(each) for each in answer(ENVELOPES, OF_A_TOPIC)}


async def by_muids(ids: PostgresMessageIds) -> None:
    found = await ids.find([muid(each) for each in OF_THE_DAYS[:300]])
    assert (await found.read(300, EVERY_BYTE)).split() == raws(OF_THE_DAYS[:300])


async def by_items(ids: PostgresMessageIds) -> None:
    items = [sync_id(muid(each)) for each in OF_THE_DAYS[:5]]
    found = await ids.find_items([Needed(*WANTED, items)])
    assert found.left == 5


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("use", "tables"), [(by_muids, ("envelopes", "ids")), (by_items, ("ids",))])
async def test_envelopes_are_found_by_ids_in_the_partitions_of_their_days(
    filled: Place,
    store: PostgresStore,
    use: Callable[[PostgresMessageIds], Awaitable[None]],
    tables: Sequence[str],
    mode: str,
) -> None:
    failures = StoreFailures()
    async with open_links(filled.url, 1, failures) as links:
        pool = Recorded.on(links, failures)
        await use(replace(store.message_ids, readers=pool))

    plans = await plans_of(filled.url, [each for each in pool.run_so_far if "max(seq)" not in each[0]], mode)

    assert {step.table.partition("_")[0] for plan in plans for step in plan.of_partitions()} == {*tables}
    assert_within(plans, partitions("envelopes") | partitions("ids"), most_rows=2 * ROWS_OF_DAY)


@pytest.mark.parametrize("mode", MODES)
async def test_ids_are_listed_by_arrival_without_reading_or_sorting_what_is_not_listed(
    filled: Place, store: PostgresStore, mode: str
) -> None:
    """Any partition may have the next row: of each, one is looked at."""
    failures = StoreFailures()
    async with open_links(filled.url, 1, failures) as links:
        pool = Recorded.on(links, failures)
        await arrived(replace(store.message_ids, readers=pool))

    plans = await plans_of(filled.url, pool.run_so_far, mode)

    walks = [plan for plan in plans if "max(seq)" in plan.sql]
    assert 1 < len(walks) < len(plans)
    for walk in walks:
        assert walk.partitions == partitions("envelopes", DAYS) | {"envelopes_rest"}
        assert walk.rows <= WALKED_ROWS + len(walk.partitions)
        assert walk.sorted == 0
        assert all("_seq_" in step.index for step in walk.of_partitions()), walk
    read = [plan for plan in plans if plan not in walks]
    assert_within(read, partitions("envelopes"), most_rows=WALKED_ROWS)


@pytest.mark.parametrize("mode", MODES)
async def test_ids_are_compared_in_the_partitions_of_their_days(
    filled: Place, store: PostgresStore, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    run: list[Statement] = []
    read = SnapshotReader.read

    def recorded(reader: SnapshotReader, sql: str, parameters: Sequence[object] = ()) -> tuple[Any, ...]:
        run.append((sql, parameters))
        return read(reader, sql, parameters)

    monkeypatch.setattr(SnapshotReader, "read", recorded)
    lower, upper = WANTED[0] + 5000, WANTED[1] - 5000
    comparison = store.message_ids.comparison(ComparedScope(lower, upper))
    await comparison.begin()
    await comparison.respond(bytes.fromhex("61 00 00 02 00"))  # the other has nothing: it is told all ids

    plans = await plans_of(filled.url, run, mode)

    of_ids = [plan for plan in plans if plan.partitions]
    assert of_ids
    assert_within(of_ids, partitions("ids"), most_rows=len(OF_THE_DAYS))


@pytest.mark.parametrize("mode", MODES)
async def test_what_is_missing_is_looked_up_in_the_partitions_of_its_days(
    filled: Place, store: PostgresStore, mode: str
) -> None:
    failures = StoreFailures()
    async with open_links(filled.url, 1, failures) as links:
        pool = Recorded.on(links, failures)
        asked = [(each.created, each.hash[:16]) for each in OF_THE_DAYS[:200]]
        assert await RowReader(PaidReader(pool)).present(asked) == {*asked}

    plans = await plans_of(filled.url, pool.run_so_far, mode)

    assert_within(plans, partitions("envelopes"), most_rows=len(asked))


@pytest.mark.parametrize("mode", MODES)
async def test_days_that_are_gone_are_sought_without_reading_all_topics(
    filled: Place, store: PostgresStore, mode: str
) -> None:
    (plan,) = await plans_of(filled.url, [(deletion._GONE_DAYS, ())], mode)  # noqa: SLF001

    days = len(OLD_DAYS) + len(DAYS)
    assert int(filled.rows("SELECT count(*) FROM day_topics")[0]) > 100 * days
    assert sum(step.rows for step in plan.steps if step.table == "day_topics") <= 2 * days


# Whatever the server knows of topics


async def test_rare_topic_is_not_sought_among_all_envelopes_of_its_days(place: Place) -> None:
    """Where the server knows of one topic only, it believes all of a day to be of any that it is asked for."""
    days = [TODAY - 1, TODAY - 2, OLD_DAYS[0]]
    common = [
        new_envelope(day * DAY + number, created=day * DAY + 50_000, topic=TOPICS[0], size=9)
        for day in days[1:]
        for number in range(20_000)
    ]
    rare = [new_envelope(number, created=days[0] * DAY + 100 * number, topic=NEWS) for number in range(5)]
    async with open_store(place.url) as store:
        await store.put([*common, *rare])
    place.rows("ANALYZE")
    failures = StoreFailures()

    async with open_links(place.url, 1, failures) as links:
        pool = Recorded.on(links, failures)
        found = await KeySearch(PostgresLookups(PaidReader(pool)), NEWS_ONLY, LIMIT, always).page()
        pair = await PostgresLookups(PaidReader(pool)).of_pair((days[0], NEWS), range_of(NEWS_ONLY), 101)
    plans = await plans_of(place.url, pool.run_so_far, MODES[0])

    assert places(found) == stored_places(rare[::-1])
    assert len(pair) == len(rare)
    read = [plan for plan in plans if plan.partitions]
    assert len(read) >= 2
    assert all(plan.rows <= len(rare) for plan in read)
    assert all("_topic_" in step.index for plan in read for step in plan.of_partitions())


# A second that is full


CROWDED = 10_000


@pytest.fixture(scope="module")
def crowded() -> Place:
    """Where a store is to be all of whose envelopes claim one second."""
    return Place(shared_server(), new_schema(shared_server()))


@pytest.mark.parametrize("created", [TODAY * DAY + 5, OLD_DAYS[0] * DAY + 5], ids=["of late", "old"])
@pytest.mark.parametrize("interest", ["everything", "one topic", "many topics", "bloom of nearly everything"])
async def test_page_deep_in_a_second_that_is_full_costs_no_more_than_the_first(
    crowded: Place, interest: str, created: int
) -> None:
    """Strangers choose the second that they claim, and clients where they go on."""
    pages = []
    async with open_store(crowded.url) as store:
        if not (await store.usage()).envelopes:
            for second in (TODAY * DAY + 5, OLD_DAYS[0] * DAY + 5):
                numbers = range(second, second + CROWDED)
                await store.put([new_envelope(n, created=second, topic=TOPICS[n % 2], size=9) for n in numbers])
            crowded.rows("ANALYZE")
    failures = StoreFailures()
    async with open_links(crowded.url, 1, failures) as links:
        for first_byte in (b"\xff", b"\x80", b"\x08"):
            pool = Recorded.on(links, failures)
            query = Query(*EVER, INTERESTS[interest], place_at(created, first_byte + bytes(31)))
            found = await KeySearch(PostgresLookups(PaidReader(pool)), query, 100, always).page()
            assert len(found.keys) == 100
            plans = await plans_of(crowded.url, pool.run_so_far, MODES[0])
            pages.append(sum(plan.pages for plan in plans))

    assert max(pages) <= 1.2 * pages[0] + 50
