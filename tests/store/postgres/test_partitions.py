"""mailserver.store.postgres.partitions and deletion: which days have partitions, and what is dropped and deleted."""

import asyncio
import itertools
import time

import asyncpg
import pytest

from mailserver.store.engine.id_sums import SPANS
from mailserver.store.interface import NewEnvelope, Query
from mailserver.store.postgres import deletion
from mailserver.store.postgres.connections import take_lock
from mailserver.store.postgres.partitions import DAYS_AHEAD, DAYS_BACK
from mailserver.store.postgres.schema import Lock
from mailserver.store.postgres.store import PostgresStore, open_store
from mailserver.store.retention import END_OF_TIME, CapacityRetention, Surplus
from mailserver.waku.bloom import Interest
from tests.store.engines import EVERYTHING, found
from tests.store.postgres.conftest import Place
from tests.store.postgres.looking import assert_sound
from tests.store.samples import DAY, EVER, LAST_SECOND, NEWS, SPORT, new_envelope, raws
from tests.store.sqlite.ids import row
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.integration

TODAY = int(time.time()) // DAY


def of_day(day: int, number: int, *, received: int | None = None, second: int = 0) -> NewEnvelope:
    """A real envelope that was created on a day, and received at once unless it says when."""
    created = day * DAY + 3600 + second
    return row(number, created=created, topic=NEWS if number % 2 else SPORT, received=received or created + 1)


def partition_of(place: Place, envelope: NewEnvelope) -> str:
    """The table in which an envelope is."""
    (name,) = place.rows(f"SELECT tableoid::regclass FROM envelopes WHERE created = {envelope.created}")
    return name.rpartition(".")[2]


async def indexed(store: PostgresStore) -> None:
    await store.message_ids.find([])


@pytest.mark.parametrize("age", [0, 1, DAYS_BACK - 1, -DAYS_AHEAD])
async def test_day_of_late_has_a_partition_of_its_own(place: Place, store: PostgresStore, age: int) -> None:
    envelope = of_day(TODAY - age, 1)

    await store.put([envelope])

    assert partition_of(place, envelope) == f"envelopes_d{TODAY - age}"
    assert await found(store) == [envelope.raw]


@pytest.mark.parametrize("created", [0, (TODAY - DAYS_BACK - 2) * DAY, (TODAY + DAYS_AHEAD + 2) * DAY, LAST_SECOND])
async def test_day_that_anybody_may_claim_has_none(place: Place, store: PostgresStore, created: int) -> None:
    envelope = new_envelope(1, created=created)

    await store.put([envelope])

    assert partition_of(place, envelope) == "envelopes_rest"
    assert await found(store) == [envelope.raw]


async def test_day_that_is_partly_elsewhere_stays_there(place: Place, store: PostgresStore) -> None:
    first, second = of_day(TODAY, 1), of_day(TODAY, 2, second=1)
    place.rows(
        "INSERT INTO envelopes_rest VALUES "
        f"(nextval('envelope_seq'), {first.received}, {first.created}, '\\x{first.topic.hex()}', "
        f"'\\x{first.hash[:16].hex()}', '\\x{first.raw.hex()}')"
    )

    await store.put([second])

    assert partition_of(place, second) == "envelopes_rest"
    assert await found(store) == raws([second, first])


async def test_envelopes_of_days_with_and_without_partitions_are_found_in_one_order(store: PostgresStore) -> None:
    envelopes = [of_day(day, number) for number, day in enumerate((100, TODAY - 99, TODAY - 3, TODAY - 2, TODAY))]

    await store.put(envelopes)

    assert await found(store) == raws(envelopes[::-1])
    for interest in (Interest(topics=frozenset({NEWS, SPORT})), Interest(bloom=b"\xfe" + b"\xff" * 63)):
        assert await found(store, Query(*EVER, interest)) == raws(envelopes[::-1])
    assert await found(store, Query((TODAY - 3) * DAY, TODAY * DAY, Interest())) == raws(envelopes[3:1:-1])
    assert await store.missing(envelopes) == []


async def test_two_mailservers_make_one_partition(place: Place, store: PostgresStore, other: PostgresStore) -> None:
    envelopes = [of_day(TODAY - 5, number, second=number) for number in range(20)]

    await asyncio.gather(*((store, other)[number % 2].put([envelopes[number]]) for number in range(20)))

    assert await found(store) == await found(other) == raws(envelopes[::-1])
    assert_sound(place.server, place.schema)


# Deleting


async def test_day_is_dropped_with_its_ids_once_all_of_it_is_too_old(place: Place, store: PostgresStore) -> None:
    late = (TODAY - 1) * DAY
    old = [of_day(TODAY - 10, 1), of_day(TODAY - 10, 2, second=1, received=late)]
    kept = of_day(TODAY - 9, 3)
    await store.put([*old, kept])
    await indexed(store)

    while_one_is_young = await store.prune(Surplus(late, 100))
    waiting = await store.held(Surplus(late, 100))
    then = await store.prune(Surplus(late + 1, 100))

    assert while_one_is_young == (1, len(kept.raw))  # of the day after, all of which is too old
    assert waiting == 0
    assert then == (2, sum(map(len, raws(old))))
    assert await found(store) == []
    tables = "SELECT count(*) FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid WHERE relname ~ '_d[0-9]+$' "
    assert place.rows(tables + "AND relnamespace = current_schema()::regnamespace") == ["0"]
    assert place.rows("SELECT count(*) FROM ids") == place.rows("SELECT count(*) FROM id_sums") == ["0"]
    assert store.removed_until >= store.pruned_until == max(envelope.created for envelope in [*old, kept])
    assert_sound(place.server, place.schema)


async def test_sums_of_other_days_stay(place: Place, store: PostgresStore) -> None:
    await store.put([of_day(TODAY - 10, 1), of_day(TODAY - 9, 2)])
    await indexed(store)

    assert (await store.prune(Surplus((TODAY - 9) * DAY, 100))).envelopes == 1

    assert place.rows("SELECT span, bucket, count FROM id_sums ORDER BY span DESC") == [
        f"{span}|{((TODAY - 9) * DAY + 3600) // span}|1" for span in SPANS
    ]


async def test_day_is_dropped_only_when_it_is_archived(store: PostgresStore) -> None:
    created = (TODAY - 10) * DAY + 3600
    await store.put([of_day(TODAY - 10, 1)])
    await store.put([of_day(TODAY - 10, 2, second=1)])
    mark = (await store.message_ids.as_arrived(EVERYTHING, 10)).end
    surplus = Surplus(TODAY * DAY, 100)

    assert (await store.prune(surplus, {})).envelopes == 0
    assert (await store.prune(surplus, {created // DAY: mark - 1})).envelopes == 0
    assert (await store.prune(surplus, {created // DAY - 1: mark})).envelopes == 0
    assert await store.held(surplus) == 2
    assert (await store.prune(surplus, {created // DAY: mark})).envelopes == 2


async def test_by_number_rows_go_until_a_whole_day_does(place: Place, store: PostgresStore) -> None:
    envelopes = [of_day(TODAY - 10, number, second=number) for number in range(5)]
    newer = [of_day(TODAY - 9, number, second=number) for number in range(10, 12)]
    await store.put([*envelopes, *newer])
    await indexed(store)

    assert (await store.prune(Surplus(END_OF_TIME, 2))).envelopes == 2
    assert await found(store) == raws([*newer[::-1], *envelopes[:1:-1]])
    assert_sound(place.server, place.schema)
    assert place.rows("SELECT count(*) FROM ids") == ["5"]
    assert (await store.prune(Surplus(END_OF_TIME, 4))).envelopes == 3
    assert place.rows(f"SELECT to_regclass('envelopes_d{TODAY - 10}')") == []
    assert (await store.prune(Surplus(END_OF_TIME, 1))).envelopes == 1
    assert await found(store) == raws(newer[1:])
    assert_sound(place.server, place.schema)


async def test_two_mailservers_together_delete_no_more_than_is_too_much(
    place: Place, store: PostgresStore, other: PostgresStore
) -> None:
    days = [[of_day(TODAY - 10 + day, 10 * day + number, second=number) for number in range(5)] for day in range(3)]
    await store.put([*itertools.chain(*days)])

    surplus = CapacityRetention(8).surplus(await store.usage(), 0)  # 7: a day, and two more
    assert surplus is not None
    deleted = [await each.prune(surplus) for each in (store, other, store, other)]

    assert [each.envelopes for each in deleted] == [5, 2, 0, 0]
    assert await found(store) == raws(list(itertools.chain(*days))[:6:-1])
    assert_sound(place.server, place.schema)


async def test_nothing_is_left_of_what_was_created_before_1970(place: Place, store: PostgresStore) -> None:
    received = (TODAY - 10) * DAY
    created = (-1, 1, -DAY + 1, -DAY, -DAY - 1, -3 * DAY // 2)
    await store.put([new_envelope(n, created=when)._replace(received=received) for n, when in enumerate(created)])
    counted = "SELECT day, envelopes, bytes FROM counts ORDER BY day"
    counting = "SELECT created / 86400 AS day, count(*), sum(octet_length(raw)) FROM envelopes GROUP BY 1 ORDER BY 1"
    assert place.rows(counted) == place.rows(counting)

    assert (await store.prune(Surplus(TODAY * DAY, 2))).envelopes == 2
    assert place.rows(counted) == place.rows(counting)
    assert (await store.prune(Surplus(TODAY * DAY, 100))).envelopes == len(created) - 2
    await store.maintain()

    assert place.rows("SELECT * FROM counts") == place.rows("SELECT * FROM day_topics") == []
    assert (await store.usage()).envelopes == 0


async def test_dropped_day_may_come_again(place: Place, store: PostgresStore) -> None:
    envelope = of_day(TODAY - 10, 1)
    await store.put([envelope])
    await store.prune(Surplus(TODAY * DAY, 100))

    await store.put([envelope])
    async with open_store(place.url) as newly_opened:
        await newly_opened.put([of_day(TODAY - 10, 2, second=1)])

    assert (await store.stats()).envelopes == 2
    assert_sound(place.server, place.schema)


async def test_topics_of_a_dropped_day_are_removed_bit_by_bit(
    place: Place, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "_LEFT_OVER", deletion._LEFT_OVER.replace("LIMIT 5000", "LIMIT 1"))  # noqa: SLF001
    await store.put([of_day(TODAY - 10, 1), of_day(TODAY - 10, 2, second=1), of_day(TODAY, 3)])
    await store.prune(Surplus(TODAY * DAY, 100))

    assert (await store.stats()).topics == 1
    assert [await store.maintain() for _ in range(4)] == [True, True, False, False]
    assert place.rows("SELECT day FROM day_topics") == [str(TODAY)]


async def test_topics_of_days_that_are_there_are_looked_at_while_somebody_stores(
    place: Place, store: PostgresStore
) -> None:
    await store.put([of_day(TODAY - 1, 1)])
    connection = await asyncpg.connect(place.url)
    try:
        async with connection.transaction(), asyncio.timeout(DEADLINE_S):
            await take_lock(connection, Lock.COMMIT)
            assert not await store.maintain()
    finally:
        connection.terminate()


async def test_search_hears_of_what_another_mailserver_has_deleted(store: PostgresStore, other: PostgresStore) -> None:
    future = of_day(TODAY + 1, 1)  # later than what a new store lacks at any rate
    await store.put([future])
    assert (await other.find(EVERYTHING, 10)).left == 1
    assert other.removed_until < future.created

    await store.prune(Surplus(END_OF_TIME, 1))
    page = await other.find(EVERYTHING, 10)

    assert page.left == 0
    assert other.removed_until == other.pruned_until == future.created
