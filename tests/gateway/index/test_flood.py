"""mailserver.gateway.index.flood: what arrives fast is put off, and for how long; and the follower that does so."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mailserver.gateway.index import flood as floods
from mailserver.gateway.index import follower as following
from mailserver.gateway.index.flood import FLOOD_PER_S, LOOK_S, MAX_PUT_OFF, WANTED_S, Flood
from mailserver.gateway.index.follower import MAX_BEHIND, STEP_ENVELOPES
from mailserver.gateway.index.message_store import MessageStore, open_messages
from mailserver.gateway.index.schema import INDEX_FILE
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC
from mailserver.store.message_ids import Arrival
from mailserver.store.sqlite.arrivals import SqliteArrivalLog, SqliteArrived
from mailserver.store.sqlite.schema import STORE_FILE
from tests.gateway.index.worlds import World, all_of, envelopes, opened_world, query_for
from tests.store.samples import rows
from tests.waiting import until

MUCH = int(FLOOD_PER_S)


def flooded(*, last: int = 10) -> Flood:
    """A flood that began at second 0 and was noticed at second 1."""
    flood = Flood()
    flood.look(Arrival(last), 0.0)
    flood.look(Arrival(last + MUCH), 1.0)
    return flood


def test_what_is_there_at_the_first_look_is_no_flood() -> None:
    flood = Flood()

    flood.look(Arrival(1_000_000), 1000.0)

    assert not flood.may_put_off(1, 1000.0)


def test_flood_lasts_as_long_as_so_many_arrive_in_a_second() -> None:
    flood = flooded()
    assert flood.may_put_off(1, 1.0)

    flood.look(Arrival(10 + 3 * MUCH), 3.0)
    assert flood.may_put_off(1, 3.0)

    flood.look(Arrival(10 + 4 * MUCH - 1), 4.0)
    assert not flood.may_put_off(1, 4.0)


def test_store_that_was_set_back_is_no_flood() -> None:
    flood = flooded()

    flood.look(Arrival(5), 2.0)

    assert not flood.may_put_off(1, 2.0)


def test_looks_one_right_after_the_other_tell_nothing() -> None:
    flood = flooded()

    flood.look(Arrival(10 + MUCH), 1.0 + LOOK_S / 2)
    assert flood.may_put_off(1, 1.0 + LOOK_S / 2)

    flood.look(Arrival(10 + MUCH), 1.0 + LOOK_S)
    assert not flood.may_put_off(1, 1.0 + LOOK_S)


def test_no_more_is_put_off_than_a_query_may_wait_for() -> None:
    flood = flooded()

    assert flood.may_put_off(MAX_PUT_OFF, 1.0)
    assert not flood.may_put_off(MAX_PUT_OFF + 1, 1.0)
    assert MAX_PUT_OFF + STEP_ENVELOPES + MUCH * following.FOLLOW_S < MAX_BEHIND


def test_nothing_is_put_off_for_a_while_after_somebody_has_asked() -> None:
    flood = flooded()

    flood.wanted(2.0)

    assert not flood.may_put_off(1, 2.0)
    assert not flood.may_put_off(1, 1.9 + WANTED_S)
    assert flood.may_put_off(1, 2.0 + WANTED_S)


class GatedReads(SqliteArrivalLog):
    """Reads the order of arrival when it is told to; `limits`: what was asked for."""

    def __init__(self, path: Path, network_topic: str) -> None:
        super().__init__(path, network_topic)
        self.limits: list[int] = []
        self.gate = asyncio.Semaphore(0)

    async def after(self, arrival: Arrival, limit: int, *, of: str) -> SqliteArrived:
        self.limits.append(limit)
        await self.gate.acquire()
        return await super().after(arrival, limit, of=of)

    async def look(self) -> int:
        """Let what is asked for be read; return the limit of what is asked for next."""
        asked = len(self.limits)
        self.gate.release()
        await until(lambda: len(self.limits) > asked)
        return self.limits[-1]


class Followed:
    """A store that is followed, look by look, where every envelope is a flood."""

    def __init__(self, world: World, log: GatedReads, messages: MessageStore) -> None:
        self.world = world
        self.log = log
        self.messages = messages
        self.put = 0

    async def arrive(self, count: int) -> None:
        await self.world.put(*envelopes(count, first=self.put))
        self.put += count

    @property
    def indexed(self) -> int:
        ((found,),) = rows(self.world.folder / "followed" / INDEX_FILE, "SELECT count(*) FROM messages")
        return int(found)


@pytest.fixture
async def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Followed]:
    """A store of one envelope that was indexed, and two that have come since: a flood, as is known by now."""
    monkeypatch.setattr(floods, "FLOOD_PER_S", 1e-9)
    monkeypatch.setattr(floods, "LOOK_S", 0.0)
    monkeypatch.setattr(following, "FOLLOW_S", 0.0)
    (tmp_path / "followed").mkdir()
    log = GatedReads(tmp_path / STORE_FILE, DEFAULT_NETWORK_TOPIC)
    async with (
        opened_world(tmp_path) as world,
        open_messages(tmp_path / "followed" / INDEX_FILE, log, DEFAULT_NETWORK_TOPIC) as messages,
    ):
        running = asyncio.create_task(messages.follower.run())
        each = Followed(world, log, messages)
        await each.arrive(1)
        await until(lambda: bool(log.limits))
        for _ in range(2):  # the first does not know the store
            assert await log.look() == STEP_ENVELOPES
        await each.arrive(2)
        assert await log.look() == 0
        yield each
        running.cancel()
        await asyncio.wait([running])
    await log.close()


async def test_flood_is_indexed_once_it_is_over(followed: Followed) -> None:
    await followed.arrive(3)
    assert await followed.log.look() == 0
    await followed.arrive(3)
    assert await followed.log.look() == 0
    assert (followed.indexed, followed.messages.follower.behind) == (3, 6)

    assert await followed.log.look() == STEP_ENVELOPES  # nothing has come since
    await followed.log.look()

    assert (followed.indexed, followed.messages.follower.behind) == (9, 0)


async def test_flood_is_indexed_meanwhile_beyond_what_may_be_put_off(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(floods, "MAX_PUT_OFF", 4)
    await followed.arrive(4)
    assert await followed.log.look() == 0
    await followed.arrive(1)

    assert await followed.log.look() == STEP_ENVELOPES
    await followed.log.look()

    assert followed.indexed == 8


async def test_query_amid_a_flood_finds_all_that_was_stored_before_it(followed: Followed) -> None:
    await followed.arrive(7)
    assert await followed.log.look() == 0

    asking = asyncio.create_task(followed.messages.query(query_for()))
    while not asking.done():
        await followed.log.look()
    await followed.arrive(1)

    assert (await asking).entries == all_of(envelopes(10))
    assert await followed.log.look() == STEP_ENVELOPES  # from now on, nothing is put off
