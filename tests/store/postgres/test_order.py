"""Several mailservers on one store: nothing is stored twice, and `seq` rises in the order in which rows are visible."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import asyncpg
import pytest

from mailserver.store.message_ids import BEFORE_ALL
from mailserver.store.postgres.connections import take_lock
from mailserver.store.postgres.schema import Lock
from mailserver.store.postgres.store import PostgresStore, open_store
from tests.mailservers import fill, make_envelope
from tests.store.engines import EVERYTHING, found
from tests.store.postgres.conftest import Place
from tests.store.postgres.looking import assert_sound
from tests.store.samples import START, new_envelopes, raws
from tests.waiting import until

pytestmark = pytest.mark.integration

LIMIT_S = 15.0


@contextlib.asynccontextmanager
async def connected(place: Place) -> AsyncIterator[asyncpg.Connection]:
    """A connection of a mailserver that stops in the middle of something."""
    connection = await asyncpg.connect(place.url)
    try:
        yield connection
    finally:
        connection.terminate()


async def test_envelope_that_two_mailservers_receive_is_stored_once(
    place: Place, store: PostgresStore, other: PostgresStore
) -> None:
    envelopes = new_envelopes(300)

    await asyncio.gather(
        *(mailserver.put(envelopes[at : at + 30]) for at in range(0, 300, 30) for mailserver in (store, other))
    )

    assert await found(store) == await found(other) == raws(envelopes[::-1])
    assert_sound(place.server, place.schema)


async def test_nothing_is_visible_before_what_has_a_lower_number(
    place: Place, store: PostgresStore, other: PostgresStore
) -> None:
    first, second = make_envelope(1, created=START), make_envelope(2, created=START + 1)
    async with connected(place) as slow:
        transaction = slow.transaction()
        await transaction.start()
        await take_lock(slow, Lock.COMMIT)
        await slow.execute(
            "INSERT INTO envelopes VALUES (nextval('envelope_seq'), $1, $2, $3, $4, $5)",
            START,
            first.created,
            first.topic,
            first.hash()[:16],
            first.raw,
        )

        putting = asyncio.create_task(fill(store, [second]))
        await until(lambda: place.rows("SELECT count(*) FROM pg_locks WHERE NOT granted") == ["1"], LIMIT_S)
        meanwhile = await other.message_ids.as_arrived(EVERYTHING, 10)
        assert not putting.done()
        await transaction.commit()
        await putting

    assert (meanwhile.muids, meanwhile.end) == ([], BEFORE_ALL)
    later = await other.message_ids.as_arrived(EVERYTHING, 10, after=meanwhile.end)
    assert len(later.muids) == 2
    assert place.rows("SELECT created FROM envelopes ORDER BY seq") == [str(START), str(START + 1)]


async def test_whoever_follows_misses_nothing_of_what_several_store(store: PostgresStore, other: PostgresStore) -> None:
    envelopes = [make_envelope(number, created=START + number) for number in range(400)]
    listed: list[bytes] = []
    after = BEFORE_ALL

    async def follow() -> None:
        nonlocal after
        page = await other.message_ids.as_arrived(EVERYTHING, 1000, after=after)
        listed.extend(page.muids)
        after = page.end

    async def put(mailserver: PostgresStore, first: int) -> None:
        for at in range(first, 400, 20):
            await fill(mailserver, envelopes[at : at + 10])

    putting = asyncio.gather(put(store, 0), put(other, 10))
    while not putting.done():
        await follow()
    await putting
    await follow()

    assert len(listed) == len(set(listed)) == 400


async def test_mailserver_that_dies_with_the_lock_lets_others_go_on(place: Place, store: PostgresStore) -> None:
    async with connected(place) as dying:
        transaction = dying.transaction()
        await transaction.start()
        await take_lock(dying, Lock.COMMIT)
        putting = asyncio.create_task(store.put(new_envelopes(1)))
        await until(lambda: place.rows("SELECT count(*) FROM pg_locks WHERE NOT granted") == ["1"], LIMIT_S)
        dying.terminate()

        async with asyncio.timeout(LIMIT_S):
            await putting

    assert await found(store) == raws(new_envelopes(1))


async def test_stores_that_are_opened_at_once_are_one_and_make_it_once(place: Place) -> None:
    async with contextlib.AsyncExitStack() as stack:
        opened = await asyncio.gather(*(stack.enter_async_context(open_store(place.url)) for _ in range(3)))

        assert len({await each.identity() for each in opened}) == 1
        assert place.rows("SELECT count(*) FROM identity") == ["1"]


async def test_ids_are_indexed_once_whoever_does_it(place: Place, store: PostgresStore, other: PostgresStore) -> None:
    envelopes = [make_envelope(number, created=START + number) for number in range(100)]

    await asyncio.gather(fill(store, envelopes[:60]), fill(other, envelopes[40:]))
    await asyncio.gather(store.message_ids.find([]), other.message_ids.find([]))

    assert place.rows("SELECT count(*), count(DISTINCT hash) FROM ids") == ["100|100"]
    assert place.rows("SELECT sum(count) FROM id_sums WHERE span = 60") == ["100"]


@pytest.mark.parametrize("version", [99])
async def test_store_of_a_later_version_is_refused(place: Place, version: int) -> None:
    async with open_store(place.url):
        pass
    place.rows(f"UPDATE mailserver_schema SET version = {version}")

    with pytest.raises(Exception, match=f"the store has schema version {version}"):
        async with open_store(place.url):
            pass
