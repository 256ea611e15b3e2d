"""Several mailservers on one store: each hears of the live envelopes that others have stored, and of nothing else."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import asyncpg
import pytest

from mailserver.store.interface import NewEnvelope
from mailserver.store.postgres import others
from mailserver.store.postgres.others import READ_BYTES, READ_ROWS
from mailserver.store.postgres.store import PostgresStore, open_store
from tests.store.engines import found
from tests.store.postgres.conftest import Place
from tests.store.postgres.server import new_schema, shared_server
from tests.store.samples import new_envelopes, raws
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.integration


class Listening:
    """What one mailserver hears of the others."""

    def __init__(self, store: PostgresStore) -> None:
        self.store = store
        self.heard: list[bytes] = []
        self.pieces: list[int] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        await self.store.others.begin()
        self._tasks = [asyncio.create_task(self.store.others.run()), asyncio.create_task(self._read())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def hear_until(self, last: NewEnvelope) -> list[bytes]:
        """Wait for an envelope that nothing follows; return all that was heard since the last call."""
        await until(lambda: last.raw in self.heard)
        heard, self.heard = self.heard, []
        return heard

    async def _read(self) -> None:
        while True:
            read = await self.store.others.read()
            self.heard += read
            self.pieces.append(len(read))


@pytest.fixture
async def one(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Listening]:
    monkeypatch.setattr(others, "HELLO_INTERVAL_S", 3600.0)  # what is noticed is noticed without it
    listening = Listening(store)
    await listening.begin()
    yield listening
    await listening.stop()


@pytest.fixture
async def another(other: PostgresStore) -> AsyncIterator[Listening]:
    listening = Listening(other)
    await listening.begin()
    yield listening
    await listening.stop()


def marker(number: int) -> NewEnvelope:
    """An envelope that is put last, to know that all before it was heard."""
    return new_envelopes(1, first=1_000_000 + number)[0]


async def put_live(listening: Listening, envelopes: Sequence[NewEnvelope]) -> None:
    await listening.store.put(envelopes, is_live=True)


async def test_live_envelopes_are_heard_by_the_others_and_not_by_whoever_put_them(
    one: Listening, another: Listening
) -> None:
    envelopes = new_envelopes(700)

    await put_live(one, envelopes[:600])
    await put_live(another, envelopes[600:])

    assert await another.hear_until(envelopes[599]) == raws(envelopes[:600])
    assert await one.hear_until(envelopes[-1]) == raws(envelopes[600:])
    assert max(another.pieces) <= READ_ROWS


async def test_what_is_not_live_is_stored_and_not_heard_even_in_one_group_with_what_is(
    one: Listening, another: Listening
) -> None:
    late, live = new_envelopes(30), new_envelopes(30, first=100)

    await asyncio.gather(
        one.store.put(late[:20], "a source"),
        put_live(one, live[:10]),
        one.store.put(late[20:], "another source"),
        one.store.put(live[10:], "a peer", is_live=True),
    )
    await one.store.put(new_envelopes(10, first=200))
    await put_live(one, [marker(1)])

    heard = await another.hear_until(marker(1))
    assert sorted(heard) == sorted(raws([*live, marker(1)]))
    assert len(await found(one.store)) == 71


async def test_what_was_there_already_is_not_heard_again(one: Listening, another: Listening) -> None:
    envelopes = new_envelopes(20)
    await put_live(one, envelopes[:10])
    await another.hear_until(envelopes[9])

    await put_live(another, envelopes[:10])
    await put_live(another, envelopes[5:])
    await put_live(another, [marker(1)])

    assert await one.hear_until(marker(1)) == raws([*envelopes[10:], marker(1)])


async def test_long_envelopes_are_read_few_at_a_time(one: Listening, another: Listening) -> None:
    envelopes = new_envelopes(7, size=READ_BYTES * 3 // 4)

    await put_live(one, envelopes)

    assert await another.hear_until(envelopes[-1]) == raws(envelopes)
    assert another.pieces == [2, 2, 2, 1]


async def test_whoever_falls_behind_misses_the_oldest_and_counts_them(
    one: Listening, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(others, "MAX_BEHIND", 500)
    await other.others.begin()
    envelopes = new_envelopes(1000)

    for at in range(0, 1000, 100):
        await put_live(one, envelopes[at : at + 100])
    await until(lambda: other.others.missed == 500)

    read: list[bytes] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(read) < 500:
            read += await other.others.read()
    assert read == raws(envelopes[500:])
    assert other.others.missed == 500


async def test_lost_connection_is_made_anew_and_what_comes_then_is_heard(
    place: Place, one: Listening, another: Listening, caplog: pytest.LogCaptureFixture
) -> None:
    listening = "query LIKE '%pg_notify%' AND pid <> pg_backend_pid()"
    place.rows(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {listening}")
    await until(lambda: len(caplog.messages) == 2)
    await until(lambda: 0 in one.pieces and 0 in another.pieces)  # whoever reads is told
    assert one.store.others.outages == another.store.others.outages == 1

    await put_live(one, [marker(1)])

    assert await another.hear_until(marker(1)) == [marker(1).raw]
    assert all("may have been missed" in message for message in caplog.messages)


async def test_what_cannot_be_read_is_counted_and_what_comes_later_is_heard(
    place: Place, one: Listening, other: PostgresStore
) -> None:
    await one.store.put(new_envelopes(40))
    await other.others.begin()
    channel, token = f"waku_mailserver_{await other.identity()}", "0123456789abcdef"

    # In a thread: it waits for transactions of ours that index message ids.
    await asyncio.to_thread(place.rows, "ALTER TABLE envelopes RENAME TO moved_away")
    place.rows(f"SELECT pg_notify('{channel}', '{token} 1 20'), pg_notify('{channel}', '{token} 21 40')")
    async with asyncio.timeout(DEADLINE_S):
        while other.others.missed < 40:
            assert await other.others.read() == []
    await asyncio.to_thread(place.rows, "ALTER TABLE moved_away RENAME TO envelopes")

    listening = Listening(other)
    await listening.begin()
    await put_live(one, [marker(1)])
    assert await listening.hear_until(marker(1)) == [marker(1).raw]
    await listening.stop()


async def test_notification_that_the_database_refuses_costs_nothing_else(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.rows(
        "CREATE FUNCTION pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN "
        "IF $2 LIKE '% %' THEN RAISE 'too many notifications'; END IF; END $$"
    )
    async with open_store(f"{place.url},pg_catalog") as store:
        await store.others.begin()
        await store.put(new_envelopes(1), is_live=True)
        await until(lambda: "too many notifications" in caplog.text)
        await store.put(new_envelopes(1, first=1), is_live=True)

        assert await found(store) == raws(new_envelopes(2)[::-1])
        assert store.problem == ""
    assert "other mailservers not told of live envelopes" in caplog.text


async def test_notifications_of_strangers_have_nothing_read(place: Place, one: Listening, another: Listening) -> None:
    await one.store.put(new_envelopes(10))
    channel = f"waku_mailserver_{await one.store.identity()}"
    token = "0123456789abcdef"
    forged = ("", "x", token[1:], f"{token} 1", f"{token} 5 4", f"{token} 1 99999999", f"{token} 1 5 ", f"{token} -1 5")

    for said in (*forged, f"{token} 1 {9 * 10**17}", f"{token} {'1' * 19} {'1' * 19}"):
        place.rows(f"SELECT pg_notify('{channel}', '{said}')")
    await put_live(one, [marker(1)])

    assert await another.hear_until(marker(1)) == [marker(1).raw]
    assert another.pieces == [1]
    assert another.store.others.missed == 0


async def test_whoever_is_alone_tells_nobody_until_another_says_that_he_is_there(
    place: Place, one: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(others, "ALONE_AFTER_S", 0.0)
    told: list[object] = []
    async with listening_to(place, await one.store.identity(), told):
        await put_live(one, new_envelopes(1))
        place.rows(f"SELECT pg_notify('waku_mailserver_{await one.store.identity()}', 'all before was told')")
        await until(lambda: bool(told))
        alone = [*told]

        monkeypatch.setattr(others, "ALONE_AFTER_S", 3600.0)
        await put_live(one, new_envelopes(1, first=1))
        await until(lambda: len(told) == 2)

    assert alone == ["all before was told"]
    assert str(told[1]).endswith(" 2 2")


async def test_each_says_again_and_again_that_he_is_there(
    place: Place, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(others, "HELLO_INTERVAL_S", 0.01)
    told: list[object] = []
    one = Listening(store)
    async with listening_to(place, await store.identity(), told):
        await one.begin()
        await until(lambda: len(told) >= 3)
        await one.stop()

    assert len(set(told)) == 1


async def test_mailservers_of_another_store_in_the_database_hear_nothing(one: Listening, another: Listening) -> None:
    async with open_store(shared_server().url(new_schema(shared_server()))) as store:
        stranger = Listening(store)
        await stranger.begin()
        await put_live(one, new_envelopes(5))
        await another.hear_until(new_envelopes(5)[-1])
        await put_live(stranger, [marker(1)])
        await put_live(one, [marker(2)])

        assert await another.hear_until(marker(2)) == [marker(2).raw]
        assert stranger.heard == []
        await stranger.stop()


@contextlib.asynccontextmanager
async def listening_to(place: Place, identity: str, told: list[object]) -> AsyncIterator[None]:
    """Whatever is said on the channel of a store."""
    connection = await asyncpg.connect(place.url)
    await connection.add_listener(f"waku_mailserver_{identity}", lambda _, __, ___, said: told.append(said))
    try:
        yield
    finally:
        connection.terminate()
