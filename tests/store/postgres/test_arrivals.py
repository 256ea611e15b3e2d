"""A store in PostgreSQL read in the order of arrival: beside several that write it, lost, replaced, set back, damaged.
What holds of every engine is in `tests/store/test_arrivals.py`."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from mailserver.errors import StoreError
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.store.arrivals import OtherStore, StoredPlace
from mailserver.store.message_ids import BEFORE_ALL, Arrival, OtherNetworkTopic
from mailserver.store.postgres import connections
from mailserver.store.postgres.arrivals import PostgresArrivalLog, PostgresArrived, open_arrivals
from mailserver.store.postgres.partitions import partition
from mailserver.store.postgres.schema import SCHEMA_VERSION
from mailserver.store.postgres.store import PostgresStore, open_store
from mailserver.store.retention import Surplus
from mailserver.waku.envelope import Envelope
from tests.store.postgres.conftest import Place
from tests.store.postgres.server import Server, new_schema
from tests.store.samples import DAY, EVERY_BYTE, START
from tests.store.test_arrivals import envelope, new

pytestmark = pytest.mark.integration


@pytest.fixture
async def log(place: Place) -> AsyncIterator[PostgresArrivalLog]:
    async with open_arrivals(place.url, DEFAULT_NETWORK_TOPIC) as opened:
        yield opened


async def make_store(place: Place, *envelopes: Envelope) -> str:
    """Have a store of these; return its identity."""
    async with open_store(place.url) as store:
        await store.put(new(*envelopes))
        return await store.identity()


async def test_what_several_write_meanwhile_is_read_once_each_in_the_order_of_commits(
    store: PostgresStore, other: PostgresStore, log: PostgresArrivalLog
) -> None:
    writers = [
        asyncio.gather(*(each.put(new(envelope(number))) for number in range(first, 200, 2)))
        for first, each in enumerate((store, other))
    ]
    identity, end, found = await store.identity(), BEFORE_ALL, list[Envelope]()

    is_all = False
    while not (all(writer.done() for writer in writers) and is_all):
        arrived = await log.after(end, 7, of=identity)
        found += [each.envelope for each in arrived.decode()[0]]
        end, is_all = arrived.end, arrived.end == arrived.last
    await asyncio.gather(*writers)
    arrived = await log.after(end, 200, of=identity)
    found += [each.envelope for each in arrived.decode()[0]]

    assert sorted(each.raw for each in found) == sorted(envelope(number).raw for number in range(200))


async def test_days_that_are_dropped_are_removals_and_their_envelopes_are_missing(
    place: Place, store: PostgresStore, log: PostgresArrivalLog
) -> None:
    now = int(time.time())
    days = (now - now % DAY - START) // DAY
    some = [envelope(day * DAY) for day in (days - 2, days - 1)]
    await store.put(new(*some))
    before = await log.after(BEFORE_ALL, 10, of=await store.identity())
    places = [StoredPlace(each.arrival, each.envelope.created) for each in before.decode()[0]]

    await store.prune(Surplus(some[1].created, 10))
    after = await log.after(before.end, 10, of=await store.identity())

    assert place.rows(f"SELECT to_regclass('{partition('envelopes', some[0].created // DAY)}') IS NULL") == ["t"]
    assert before.removals != after.removals
    assert await log.missing(places) == [places[0].arrival]


async def test_lost_database_is_an_error_in_time_and_followed_again_once_it_is_back(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "RETRY_S", 0.0)
    url = own_server.url(new_schema(own_server))
    async with open_arrivals(url, DEFAULT_NETWORK_TOPIC) as log:
        async with open_store(url) as store:
            await store.put(new(envelope(1)))
            identity = await store.identity()
        arrived = await log.after(BEFORE_ALL, 10, of=identity)
        place = StoredPlace(arrived.end, envelope(1).created)

        own_server.kill()
        async with asyncio.timeout(10):
            for _ in range(2):
                for refused in (
                    log.after(arrived.end, 10, of=identity),
                    log.read([place], 1, EVERY_BYTE),
                    log.missing([place]),
                ):
                    with pytest.raises(StoreError, match="cannot read the store: the "):
                        await refused
        own_server.start()
        again = await log.after(BEFORE_ALL, 10, of=identity)

        assert again.decode() == arrived.decode()
        assert (await log.read([place], 1, EVERY_BYTE)).raws == {place.arrival: envelope(1).raw}


async def test_store_that_took_the_place_of_another_is_read(place: Place, log: PostgresArrivalLog) -> None:
    before = await make_store(place, envelope(1))
    await log.after(BEFORE_ALL, 1, of=before)
    place.rows(f"DROP SCHEMA {place.schema} CASCADE; CREATE SCHEMA {place.schema}")

    with pytest.raises(StoreError):
        await log.after(BEFORE_ALL, 1, of=before)

    identity = await make_store(place, envelope(2))
    looked_for = StoredPlace(Arrival(1), None)
    for refused in (log.read([looked_for], 1, EVERY_BYTE), log.missing([looked_for])):
        with pytest.raises(StoreError, match="has just become another store"):
            await refused
    with pytest.raises(OtherStore) as caught:
        await log.after(Arrival(1), 1, of=before)
    arrived = await log.after(BEFORE_ALL, 1, of=caught.value.identity)
    assert caught.value.identity == identity
    assert [each.envelope for each in arrived.decode()[0]] == [envelope(2)]


async def test_store_that_was_set_back_to_a_backup_is_another_though_its_identity_is_the_same(
    place: Place, log: PostgresArrivalLog
) -> None:
    identity = await make_store(place, envelope(1))
    backup = place.server.dump(place.schema)
    await make_store(place, envelope(2))
    end = (await log.after(BEFORE_ALL, 10, of=identity)).end
    place.server.restore(place.schema, backup)
    with contextlib.suppress(StoreError):  # it may have been connected, and cut off
        await log.after(BEFORE_ALL, 10, of=identity)

    with pytest.raises(OtherStore) as caught:
        await log.after(end, 10, of=identity)
    arrived = await log.after(BEFORE_ALL, 10, of=identity)

    assert caught.value.identity == identity
    assert [each.envelope for each in arrived.decode()[0]] == [envelope(1)]


@pytest.mark.parametrize(
    "damage",
    [
        "raw = '\\x00'",
        "raw = overlay(raw placing '\\xff' from 31)",
        "hash = '\\x00'",
        "raw = '', hash = '\\xc5d2460186f7233c927e7db2dcc703c0'",  # what nothing hashes to
    ],
)
async def test_damaged_rows_are_counted_and_the_others_read(place: Place, log: PostgresArrivalLog, damage: str) -> None:
    some = [envelope(number) for number in range(3)]
    identity = await make_store(place, *some)
    place.rows(f"UPDATE envelopes SET {damage} WHERE seq = 2")

    arrived = await log.after(BEFORE_ALL, 100, of=identity)

    found, damaged = arrived.decode()
    assert [each.envelope for each in found] == [some[0], some[2]]
    assert (damaged, arrived.end) == (1, 3)


async def test_ids_of_another_network_topic_are_refused(place: Place, log: PostgresArrivalLog) -> None:
    identity = await make_store(place, envelope(1))
    place.rows("UPDATE id_index SET network_topic = '/waku/2/rs/9/9'")

    with pytest.raises(OtherNetworkTopic, match="/waku/2/rs/9/9"):
        await log.after(BEFORE_ALL, 1, of=identity)


@pytest.mark.parametrize(
    ("version", "advice"), [(SCHEMA_VERSION - 1, "start this version"), (SCHEMA_VERSION + 1, "use a newer one")]
)
@pytest.mark.parametrize("is_open", [True, False])
async def test_store_of_another_version_is_refused_with_what_to_do(
    place: Place, log: PostgresArrivalLog, version: int, advice: str, *, is_open: bool
) -> None:
    identity = await make_store(place, envelope(1))
    if is_open:
        await log.after(BEFORE_ALL, 1, of=identity)
    place.rows(f"UPDATE mailserver_schema SET version = {version}")

    with pytest.raises(StoreError, match=advice):
        await log.after(BEFORE_ALL, 1, of=identity)


async def test_what_is_archived_is_known_once_it_was_read(place: Place, log: PostgresArrivalLog) -> None:
    async def was_archived() -> bool:
        arrived = await log.after(BEFORE_ALL, 1, of=identity)
        assert isinstance(arrived, PostgresArrived)
        return log.was_archived()

    identity = await make_store(place, envelope(1))
    before = await was_archived()
    place.rows("INSERT INTO records VALUES ('archived', '{}')")

    assert (before, await was_archived()) == (False, True)


async def test_user_who_may_only_read_may_follow(place: Place, store: PostgresStore) -> None:
    user = f"reader_of_{place.schema}"
    place.rows(
        f"CREATE ROLE {user} LOGIN; GRANT USAGE ON SCHEMA {place.schema} TO {user}; "
        f"GRANT SELECT ON ALL TABLES IN SCHEMA {place.schema} TO {user}"
    )
    now = int(time.time())
    some = [envelope(0), envelope(now - START)]  # of the last one, the partition is not there yet
    await store.put(new(*some))

    async with open_arrivals(place.url.replace("postgres@", f"{user}@"), DEFAULT_NETWORK_TOPIC) as log:
        arrived = await log.after(BEFORE_ALL, 10, of=await store.identity())
        places = [StoredPlace(each.arrival, each.envelope.created) for each in arrived.decode()[0]]
        bodies = await log.read(places, 2, EVERY_BYTE)

        assert [*bodies.raws.values()] == [each.raw for each in some]
        assert await log.missing(places) == []
