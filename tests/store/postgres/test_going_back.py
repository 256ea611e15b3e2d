"""mailserver.store.postgres.presence: a database that is put back to an earlier moment, and the numbers of its rows."""

import asyncio
import contextlib
import logging

import pytest

from mailserver.errors import StoreError
from mailserver.limits.packet_rates import RateLimiter
from mailserver.live.feed import Feed
from mailserver.live.intake import Intake
from mailserver.metrics.registry import Metrics
from mailserver.store.engine import failures as engine_failures
from mailserver.store.postgres.failures import StoreFailures
from mailserver.store.postgres.presence import MARGIN, DatabaseState, Presence
from mailserver.store.postgres.store import PostgresStore, open_store
from mailserver.waku.acceptance import Acceptance, Requirements
from mailserver.waku.envelope import Envelope
from mailserver.waku.packets import MessageResponse
from mailserver.waku.peer import MessagesReceived
from tests.mailservers import NO_LIMITS, Clock, in_order, make_envelopes
from tests.store.engines import found
from tests.store.postgres.conftest import Place
from tests.store.postgres.server import QUICK, Server, running_server
from tests.store.samples import START, new_envelopes, raws
from tests.waiting import until

pytestmark = pytest.mark.integration

WENT_BACK = engine_failures.WENT_BACK.format("database")
BEFORE, LOST, AFTER = new_envelopes(4), new_envelopes(3, first=100), new_envelopes(2, first=200)


def numbers(place: Place) -> list[int]:
    return sorted(int(line) for line in place.rows("SELECT seq FROM envelopes"))


async def known_of(store: PostgresStore) -> tuple[str, int]:
    return await store.identity(), store.newest_seen


async def put_back(place: Place) -> tuple[str, int]:
    """Store BEFORE and LOST, and put the database back to the moment in between; return what was known of it."""
    async with open_store(place.url) as store:
        await store.put(BEFORE)
        dump = await asyncio.to_thread(place.server.dump, place.schema)  # this loop may have a table's lock
        await store.put(LOST)
    place.server.restore(place.schema, dump)
    return await known_of(store)


async def until_it_answers(store: PostgresStore) -> None:
    """The loop has to hear that connections were cut."""
    async with asyncio.timeout(15):
        while True:
            try:
                await store.check_presence()
                return
            except StoreError:
                await asyncio.sleep(0)


async def test_no_number_that_was_seen_is_used_again(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    known = await put_back(place)
    assert numbers(place) == [1, 2, 3, 4]

    async with open_store(place.url, known=known) as store:
        damage, removed = store.damage, store.removed_until
        await store.put(AFTER)
        assert await found(store) == raws([*BEFORE, *AFTER][::-1])

    assert known[1] == 7
    assert numbers(place) == [1, 2, 3, 4, *range(8 + MARGIN, 10 + MARGIN)]
    assert damage == WENT_BACK
    assert removed > START + 3600  # the archive is asked for what is missing
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert lines == [f"database went back in time seen=7 found=4 moved_to={7 + MARGIN}"]

    async with open_store(place.url, known=await known_of(store)) as store:
        assert store.damage == ""
        assert store.newest_seen == 9 + MARGIN


async def test_nothing_is_moved_where_all_is_there_or_it_is_another_store(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_store(place.url) as store:
        await store.put(BEFORE)
    for known in (await known_of(store), (await store.identity(), 0), ("another", 1000)):
        async with open_store(place.url, known=known) as store:
            await store.put(LOST)
            assert store.damage == ""

    assert numbers(place)[-1] < MARGIN
    assert "went back" not in caplog.text


async def test_it_is_noticed_by_those_who_run_before_they_store_anything(
    place: Place, store: PostgresStore, other: PostgresStore, caplog: pytest.LogCaptureFixture
) -> None:
    await store.put(BEFORE)
    dump = await asyncio.to_thread(place.server.dump, place.schema)
    await store.put(LOST)  # the other has not heard of these
    assert other.newest_seen < store.newest_seen == 7

    await asyncio.to_thread(place.server.restore, place.schema, dump)
    told: list[str] = []
    other.tell(lambda: told.append(other.damage))
    async with asyncio.timeout(15):
        while True:
            try:
                await store.put(AFTER)
                break
            except StoreError:
                await asyncio.sleep(0)
    await until_it_answers(other)

    assert min(numbers(place)[4:]) > 7 + MARGIN
    assert store.damage == other.damage == WENT_BACK
    assert WENT_BACK in told
    assert f"as another mailserver has noticed moved_to={7 + MARGIN}" in caplog.text
    assert caplog.text.count("seen=7 found=4") == 1  # by whichever connection was first


async def test_it_is_noticed_where_nothing_is_stored(place: Place, store: PostgresStore) -> None:
    await store.put(BEFORE)
    dump = await asyncio.to_thread(place.server.dump, place.schema)
    await store.put(LOST)

    await asyncio.to_thread(place.server.restore, place.schema, dump)
    await until_it_answers(store)

    assert store.damage == WENT_BACK
    assert place.rows("SELECT last_value FROM envelope_seq") == [str(7 + MARGIN)]


def intake_of(store: PostgresStore) -> Intake:
    limiter, acceptance = RateLimiter(NO_LIMITS), Acceptance(Requirements(0.0))
    return Intake(store, acceptance, Clock(), feed=Feed(), limiter=limiter, metrics=Metrics())


async def take(intake: Intake, *envelopes: Envelope, peer: int) -> MessageResponse:
    """A peer sends envelopes; return what confirms them."""
    (response,) = await intake.take([MessagesReceived([*envelopes], bytes(32))], peer=peer)
    return response


async def test_what_it_lacks_is_stored_before_it_is_confirmed_again(
    place: Place, store: PostgresStore, other: PostgresStore
) -> None:
    first, lost, heard = make_envelopes(3)
    intake = intake_of(store)
    await take(intake, first, peer=1)
    dump = await asyncio.to_thread(place.server.dump, place.schema)
    await take(intake, lost, peer=1)
    generation = intake.generation
    await take(intake_of(other), heard, peer=1)
    await intake.take_of_others([heard], generation)

    await asyncio.to_thread(place.server.restore, place.schema, dump)
    await until_it_answers(store)
    assert await found(store) == [first.raw]

    assert await take(intake, lost, first, peer=2) == MessageResponse(bytes(32))
    assert await take(intake, lost, heard, peer=1) == MessageResponse(bytes(32))
    assert await found(store) == [envelope.raw for envelope in in_order([first, lost, heard])]


async def test_whoever_only_reads_knows_that_what_was_stored_may_be_gone(
    place: Place, store: PostgresStore, other: PostgresStore
) -> None:
    await store.put(BEFORE)
    dump = await asyncio.to_thread(place.server.dump, place.schema)
    await store.put(LOST)
    await other.check_presence()
    assert other.generation == store.generation == 0

    await asyncio.to_thread(place.server.restore, place.schema, dump)
    await until_it_answers(other)

    assert other.generation == 1


async def test_generation_rises_once_with_what_another_mailserver_has_noticed() -> None:
    presence = Presence("id", StoreFailures())
    for newest, moved_to, generation in ((4, 0, 0), (9, 0, 0), (20, 20, 1), (21, 20, 1), (40, 40, 2)):
        presence.take(DatabaseState("id", newest, moved_to))

        assert presence.generation == generation


async def test_nothing_is_confirmed_once_the_connection_is_lost_until_the_next_shows_what_is_there() -> None:
    (envelope,) = make_envelopes(1)
    with running_server(QUICK) as server:
        async with open_store(server.url()) as store:
            intake = intake_of(store)
            await take(intake, envelope, peer=1)

            await asyncio.to_thread(server.kill)
            await until(lambda: store.generation > 0)  # this loop has to hear that the connection was cut
            with pytest.raises(StoreError):
                await take(intake, envelope, peer=2)

            await asyncio.to_thread(server.start)
            async with asyncio.timeout(15):
                while True:
                    with contextlib.suppress(StoreError):
                        await take(intake, envelope, peer=2)
                        break
                    await asyncio.sleep(0)
            assert await found(store) == [envelope.raw]


async def test_what_others_have_stored_is_seen(place: Place, store: PostgresStore, other: PostgresStore) -> None:
    await store.put(BEFORE)

    await other.check_presence()

    assert other.newest_seen == 4


@pytest.mark.parametrize("body", ["", "[]", '{"to": "7", "at": 1}', '{"to": 7}', "[" * 100_000])
def test_record_of_numbers_that_is_something_else_is_an_error_of_the_store(body: str) -> None:
    with pytest.raises(StoreError, match="record of numbers that were moved on"):
        DatabaseState.of("id", 7, body)


def test_servers_are_put_back_whole(place: Place) -> None:
    server: Server = place.server
    place.rows("CREATE TABLE one AS SELECT 1 AS number")
    dump = server.dump(place.schema)
    place.rows("UPDATE one SET number = 2; CREATE TABLE other ()")

    server.restore(place.schema, dump)

    assert place.rows("SELECT number, to_regclass('other') IS NULL FROM one") == ["1|t"]
