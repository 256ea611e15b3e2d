"""The index over a database that several mailservers write, and over one that is restored from a backup."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mailserver.errors import StoreError
from mailserver.gateway.index import follower as following
from mailserver.ids.envelopes import message_of
from mailserver.store.message_ids import NotIndexedYet
from mailserver.store.postgres.schema import SCHEMA_TABLE
from tests.gateway.index.archives import opened_archived_world
from tests.gateway.index.worlds import (
    World,
    all_of,
    at,
    envelope,
    envelopes,
    messages_in,
    new,
    opened_world,
    original,
    query_for,
)
from tests.store.engines import PostgresEngine
from tests.store.postgres.server import shared_server
from tests.store.samples import DAY, START

pytestmark = pytest.mark.integration


@pytest.fixture
def engine(tmp_path: Path) -> PostgresEngine:
    return PostgresEngine(tmp_path)


@pytest.fixture
async def world(tmp_path: Path, engine: PostgresEngine) -> AsyncIterator[World]:
    async with opened_world(tmp_path, engine=engine) as opened:
        yield opened


async def test_what_each_mailserver_stores_is_found_at_once(world: World) -> None:
    async with world.engine.open() as other:
        for number in range(0, 20, 2):
            await world.store.put([new(each) for each in envelopes(1, first=number)])
            await other.put([new(each) for each in envelopes(1, first=number + 1)])
            page = await world.messages.query(query_for())
            assert page.entries == all_of(envelopes(number + 2))


async def test_index_of_a_store_that_was_set_back_is_made_anew_with_its_originals(
    tmp_path: Path, engine: PostgresEngine
) -> None:
    server, message = shared_server(), original(1, timestamp=at(3) + 7)
    lost = original(2, timestamp=at(4) + 7)
    async with opened_world(tmp_path, engine=engine) as world:
        await world.put(envelope(5))
        await world.send(message)
        await world.messages.follower.catch_up()
    before = server.dump(engine.schema)
    async with opened_world(tmp_path, engine=engine) as world:
        await world.put(*envelopes(3, first=10))
        await world.send(lost)
        await world.messages.follower.catch_up()
        number = world.messages.follower.progress.arrival
    server.restore(engine.schema, before)

    async with opened_world(tmp_path, engine=engine) as world:
        world.model.add(message, 0)
        page = await world.messages.query(query_for())
        assert not await world.messages.is_stored(lost.hash("/waku/2/rs/1/4"))
        await world.put(*envelopes(2, first=20))  # under the numbers of what is lost
        after = await world.messages.query(query_for())

    assert messages_in(page.entries) == [message_of(envelope(5)), message]
    assert after.entries == [*page.entries, *all_of(envelopes(2, first=20))]
    assert world.messages.follower.progress.arrival <= number


async def test_what_a_store_lost_that_goes_on_with_other_numbers_is_left_out(
    tmp_path: Path, engine: PostgresEngine
) -> None:
    server = shared_server()
    async with opened_world(tmp_path, engine=engine) as world:
        await world.put(envelope(5))
        before = await asyncio.to_thread(server.dump, engine.schema)  # this loop may have a table's lock
        await world.put(*envelopes(3, first=10))
        await world.messages.follower.catch_up()
    server.restore(engine.schema, before)
    server.sql("SELECT setval('envelope_seq', nextval('envelope_seq') + 10000000)", engine.schema)
    async with engine.open() as store:  # while no gateway looked
        await store.put([new(envelope(30))])

    async with opened_world(tmp_path, engine=engine) as world:
        page = await world.messages.query(query_for())

        assert page.entries == all_of([envelope(5), envelope(30)])
        assert world.messages.follower.behind == 0
        assert world.messages.follower.damaged == 0


async def test_store_of_a_later_version_is_a_problem_and_nothing_is_forgotten(world: World) -> None:
    await world.put(*envelopes(2))
    await world.messages.follower.catch_up()
    place = world.messages.follower.progress
    world.engine.change(f"UPDATE {SCHEMA_TABLE} SET version = version + 1")
    with pytest.raises(StoreError, match="use a newer one"):
        await world.messages.query(query_for())
    world.engine.change(f"UPDATE {SCHEMA_TABLE} SET version = version - 1")

    page = await world.messages.query(query_for())

    assert page.entries == all_of(envelopes(2))
    assert world.messages.follower.progress == place


async def test_what_was_archived_and_deleted_unseen_is_not_left_out_though_older_ones_are_there(
    tmp_path: Path, engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "UNSEEN_S", 0.0)
    async with opened_archived_world(tmp_path, engine=engine) as world:
        await world.put(*envelopes(2, first=10), received=START + DAY)  # they stay
        await world.follow()
        await world.put(*envelopes(3), received=START)
        world.compact()
        await world.prune(3)

        with pytest.raises(NotIndexedYet):
            await world.messages.query(query_for())
        await world.follow()

        page = await world.messages.query(query_for())
        assert page.entries == all_of([*envelopes(3), *envelopes(2, first=10)])
