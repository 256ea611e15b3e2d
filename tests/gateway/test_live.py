"""mailserver.gateway.live: what the daemon accepts is pushed once and in order, whatever feed and store leave out."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mailserver.gateway import filter_service
from mailserver.gateway import live as live_module
from mailserver.gateway.index import message_store
from mailserver.gateway.index.message_store import News
from mailserver.gateway.index.schema import INDEX_FILE
from mailserver.gateway.index.values import EncodedMessage
from mailserver.ids.waku_message import WakuMessage, decode_message
from mailserver.live.feed import Feed
from mailserver.store.message_ids import Arrival
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.waku.envelope import Envelope, EnvelopeHash
from mailserver.waku.envelope_rows import EnvelopeFields
from tests.gateway.clients import LightClient
from tests.gateway.worlds import NEWS_TOPIC, TOPIC, Gateway, mapped, message, on_each_engine, running_gateway
from tests.mailservers import NOW, SPORT, make_envelope, stored
from tests.store.samples import change, make_store
from tests.waiting import turns, until

pytestmark = pytest.mark.integration


def envelopes(count: int, first: int = 0, *, age: int = 0) -> list[Envelope]:
    return [make_envelope(number, created=NOW - age) for number in range(first, first + count)]


@contextlib.asynccontextmanager
async def subscriber(gateway: Gateway) -> AsyncIterator[LightClient]:
    async with gateway.client() as client:
        assert (await client.subscribe(TOPIC, NEWS_TOPIC)).status_code == 200
        yield client


async def hear(client: LightClient, count: int) -> list[bytes]:
    """The payloads of everything that was pushed, once it is so much."""
    await until(lambda: len(client.pushes) >= count)
    return [push.waku_message.payload for push in client.pushes]


async def looked_at() -> None:
    """Wait for as long as some looks at the store take."""
    now = asyncio.get_running_loop().time
    later = now() + 20 * live_module.LOOK_S
    await until(lambda: now() > later)


def news_of(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, News]]:
    """What the looks at the store find from now on: whether only up to what has come from the feed, and what."""
    found = []
    news_of_store = gateway.messages.news

    async def news(after: Arrival, *, is_to_known: bool = False, **rest: Any) -> News:
        found.append((is_to_known, await news_of_store(after, is_to_known=is_to_known, **rest)))
        return found[-1][1]

    monkeypatch.setattr(gateway.messages, "news", news)
    return found


async def another(found: list[tuple[bool, News]]) -> None:
    """Wait until there is one more look."""
    before = len(found)
    await until(lambda: len(found) > before)


def messages_of(news: News) -> list[WakuMessage]:
    return [decode_message(each.encoded) for each in news.messages]


@contextlib.asynccontextmanager
async def feed_cut(gateway: Gateway) -> AsyncIterator[None]:
    """What the daemon accepts meanwhile is not in the feed."""
    await gateway.daemon.stop()
    await until(lambda: gateway.feed.terms is None)
    yield
    await gateway.daemon.start()
    await until(lambda: gateway.feed.terms is not None)


# The feed


@on_each_engine
async def test_what_is_accepted_is_pushed_once_and_in_order(gateway: Gateway) -> None:
    some = envelopes(300)
    async with subscriber(gateway) as client:
        await gateway.accept(*some)
        pushed = await hear(client, 300)
        await gateway.accept(*some, *envelopes(1, 300))

        assert pushed == [each.data for each in some]
        assert (await hear(client, 301))[300:] == [make_envelope(300).data]


async def test_push_is_the_message_of_its_envelope(gateway: Gateway) -> None:
    async with subscriber(gateway) as client:
        await gateway.accept(make_envelope(1))
        await hear(client, 1)

        assert client.pushes[0].waku_message == mapped(make_envelope(1))
        assert client.pushes[0].pubsub_topic == TOPIC


async def test_messages_that_nobody_wants_are_not_made(gateway: Gateway) -> None:
    async with subscriber(gateway) as client:
        await gateway.accept(make_envelope(1, topic=SPORT), make_envelope(2))
        await hear(client, 1)

    assert gateway.scraped("gateway_pushes_total") == 1.0
    assert gateway.scraped("gateway_push_delay_seconds_count") == 1.0


async def test_batches_that_came_meanwhile_are_made_into_messages_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "LOOK_S", 60.0)  # or they would come from the store, on a busy machine
    made: list[int] = []
    gate = asyncio.Event()
    async with running_gateway(tmp_path) as gateway, subscriber(gateway) as client:
        make = gateway.messages.messages_of

        async def messages_of(some: Sequence[tuple[EnvelopeFields, EnvelopeHash]]) -> list[EncodedMessage | None]:
            made.append(len(some))
            await gate.wait()
            return await make(some)

        monkeypatch.setattr(gateway.messages, "messages_of", messages_of)
        for each in envelopes(20):
            await gateway.accept(each)
            await turns()  # each comes in a batch of its own
        await until(lambda: made == [1])
        gate.set()

        assert await hear(client, 20) == [each.data for each in envelopes(20)]
    assert max(made) == live_module.BATCHES_AT_ONCE


async def test_pushing_that_takes_long_lets_others_go_on(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "MAX_PUSHING_S", 0.0)
    seen = set()

    async def watch() -> None:
        while True:
            seen.add(gateway.scraped("gateway_pushes_total"))
            await asyncio.sleep(0)

    async with subscriber(gateway) as client:
        watching = asyncio.create_task(watch())
        async with feed_cut(gateway):
            await gateway.accept(*envelopes(20))  # they come all at once
        await hear(client, 20)
        watching.cancel()

    assert seen >= set(range(1, 20))


async def test_message_that_many_want_lets_others_go_on(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "MAX_PUSHING_S", 0.0)
    monkeypatch.setattr(filter_service, "CLIENTS_AT_ONCE", 1)
    seen = set()

    async def watch() -> None:
        while True:
            seen.add(gateway.scraped("gateway_pushes_total"))
            await asyncio.sleep(0)

    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(gateway.client(name)) for name in "abc"]
        for client in clients:
            await client.subscribe(TOPIC, NEWS_TOPIC)
        watching = asyncio.create_task(watch())
        await gateway.accept(make_envelope(1))
        for client in clients:
            await hear(client, 1)
        watching.cancel()

    assert seen == {0, 1, 2, 3}


async def test_index_that_fails_ends_nothing_and_its_messages_are_pushed_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "SETTLE_S", 0.0)
    monkeypatch.setattr(live_module, "LOOK_S", 0.01)
    index = tmp_path / INDEX_FILE
    async with running_gateway(tmp_path) as gateway, subscriber(gateway) as client:
        await gateway.accept(make_envelope(0))
        await hear(client, 1)
        await looked_at()  # so that nothing is owed any more
        change(index, "ALTER TABLE originals RENAME TO hidden")
        await gateway.accept(make_envelope(1))
        await until(lambda: "missed messages not pushed" in caplog.text)
        change(index, "ALTER TABLE hidden RENAME TO originals")

        assert await hear(client, 2) == [make_envelope(0).data, make_envelope(1).data]

    assert "live messages not pushed" in caplog.text
    assert len([each for each in caplog.records if "missed messages" in each.message]) == 1


# Gaps


@on_each_engine
async def test_what_the_feed_has_left_out_is_pushed_from_the_store_before_what_is_live(gateway: Gateway) -> None:
    async with subscriber(gateway) as client:
        await gateway.accept(*envelopes(10))
        await hear(client, 10)
        async with feed_cut(gateway):
            await gateway.accept(*envelopes(20, 10))
        await hear(client, 30)
        await gateway.accept(*envelopes(5, 30))

        assert await hear(client, 35) == [each.data for each in envelopes(35)]


async def test_overflow_of_the_ring_loses_and_doubles_nothing(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, feed=Feed(max_envelopes=20)) as gateway, subscriber(gateway) as client:
        some = envelopes(1500)
        await gateway.accept(*some[:2])
        await hear(client, 2)  # from now on, the stream of pushes is open
        for at in range(2, 1500, 50):
            await asyncio.gather(*(gateway.accept(each) for each in some[at : at + 50]))
        pushed = await hear(client, 1500)

        assert gateway.live.missed > 100
        assert sorted(pushed) == sorted(each.data for each in some)
        assert gateway.scraped("gateway_pushes_total") == 1500.0


async def test_what_gets_into_the_store_only_after_the_gap_is_pushed_too(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon tells of envelopes when it has accepted them; they are in the store when the disk has them."""
    monkeypatch.setattr(live_module, "LOOK_S", 0.01)
    async with subscriber(gateway) as client:
        async with contextlib.AsyncExitStack() as busy:
            async with feed_cut(gateway):
                await gateway.accept(make_envelope(1))
                busy.enter_context(gateway.daemon.disk_busy())
                accepting = asyncio.create_task(gateway.accept(make_envelope(2)))
                await turns()
            await hear(client, 1)  # the store was looked at
            await looked_at()
            assert not gateway.daemon.is_stored(make_envelope(2))
        await accepting

        assert await hear(client, 2) == [make_envelope(1).data, make_envelope(2).data]


@on_each_engine
async def test_only_what_is_fresh_is_pushed_from_the_store(gateway: Gateway) -> None:
    old, fresh = live_module.FRESH_S + 1, live_module.FRESH_S
    async with subscriber(gateway) as client:
        await gateway.accept(make_envelope(0))
        await hear(client, 1)
        async with feed_cut(gateway):
            await gateway.accept(
                make_envelope(1, created=NOW - old, ttl=300), make_envelope(2, created=NOW - fresh, ttl=300)
            )

        assert (await hear(client, 2))[1:] == [make_envelope(2, ttl=300).data]


async def test_no_more_is_looked_through_than_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "LOOK_S", 1000.0)
    monkeypatch.setattr(live_module, "MAX_MISSED", 3)
    monkeypatch.setattr(message_store, "MAX_NEWS", 2)
    async with running_gateway(tmp_path) as gateway, subscriber(gateway) as client:
        await gateway.accept(make_envelope(100))
        await hear(client, 1)
        async with feed_cut(gateway):
            await gateway.accept(*envelopes(20))

        assert (await hear(client, 4))[1:] == [each.data for each in envelopes(3, 17)]


async def test_what_arrived_long_ago_is_not_looked_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else live messages would wait for it, the longer the feed had not left anything out."""
    for name, seconds in (("FRESH_S", 0), ("AHEAD_S", 0), ("MARK_S", 0.01), ("LOOK_S", 0.01), ("SETTLE_S", 0.0)):
        monkeypatch.setattr(live_module, name, seconds)
    async with running_gateway(tmp_path) as gateway, subscriber(gateway) as client:
        await looked_at()  # the store, as after each new connection to the daemon
        await gateway.accept(*envelopes(20))
        await hear(client, 20)
        ends: list[Arrival] = []
        end_of_store, is_noted = gateway.messages.end, asyncio.Event()

        async def end(*, of: str) -> Arrival:
            if ends:
                is_noted.set()
                await asyncio.Event().wait()  # no later one is noted
            ends.append(await end_of_store(of=of))
            return ends[-1]

        monkeypatch.setattr(gateway.messages, "end", end)
        await is_noted.wait()
        found = news_of(gateway, monkeypatch)
        async with feed_cut(gateway):
            await gateway.accept(make_envelope(20))

        assert (await hear(client, 21))[20:] == [make_envelope(20).data]

    assert ends == [Arrival(20)]
    assert sum(len(news.messages) for _, news in found) == 1


async def test_what_was_pushed_is_remembered_within_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "LOOK_S", 1000.0)
    monkeypatch.setattr(live_module, "MAX_PUSHED", 2)
    monkeypatch.setattr(live_module, "MAX_KNOWN", 0)
    async with running_gateway(tmp_path) as gateway, subscriber(gateway) as client:
        await gateway.accept(make_envelope(100))
        await hear(client, 1)
        async with feed_cut(gateway):
            await gateway.accept(make_envelope(101))
        await hear(client, 2)
        await gateway.accept(*envelopes(3))
        await hear(client, 5)
        async with feed_cut(gateway):
            await gateway.accept(make_envelope(3))

        assert (await hear(client, 9))[5:] == [each.data for each in envelopes(4)]


async def test_what_comes_from_the_feed_is_not_decoded_in_the_store_again(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "LOOK_S", 0.01)
    found = news_of(gateway, monkeypatch)
    async with subscriber(gateway) as client:
        await gateway.accept(*envelopes(50))
        await hear(client, 50)
        await looked_at()

        assert [news for _, news in found if news.end == news.last][-1].messages == []
        assert sum(len(news.messages) for _, news in found) < 50


async def test_what_was_pushed_from_the_store_is_not_made_into_messages_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    async with running_gateway(tmp_path, is_live=False) as gateway, subscriber(gateway) as client:
        make = gateway.messages.messages_of

        async def messages_of(some: Sequence[tuple[EnvelopeFields, EnvelopeHash]]) -> list[EncodedMessage | None]:
            made.append(len(some))
            return await make(some)

        monkeypatch.setattr(gateway.messages, "messages_of", messages_of)
        await gateway.accept(*envelopes(30))  # they wait in the feed, behind its gap
        gateway.go_live()
        await hear(client, 30)
        await gateway.accept(make_envelope(30))

        assert await hear(client, 31) == [each.data for each in envelopes(31)]
    assert sum(made) == 1


async def test_what_was_stored_before_the_last_of_the_feed_is_pushed_while_the_feed_goes_on(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the feed having heard of them, envelopes are in the store: here, nobody has published them."""
    monkeypatch.setattr(live_module, "LOOK_S", 1.0)  # longer than nothing comes from the feed on a busy machine
    found = news_of(gateway, monkeypatch)
    async with subscriber(gateway) as client:
        await gateway.accept(make_envelope(0))
        await gateway.accept(make_envelope(2))
        await hear(client, 2)
        await gateway.daemon.store.put([stored(make_envelope(1))])
        number = 3
        while make_envelope(1).data not in await hear(client, number - 1):
            await gateway.accept(make_envelope(number))
            number += 1

    (is_to_known,) = [is_to_known for is_to_known, news in found if mapped(make_envelope(1)) in messages_of(news)]
    assert is_to_known


async def test_what_is_stored_behind_the_last_of_the_feed_is_pushed_once_nothing_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "LOOK_S", 0.2)
    monkeypatch.setattr(live_module, "SETTLE_S", 0.6)
    async with running_gateway(tmp_path) as gateway, subscriber(gateway) as client:
        found = news_of(gateway, monkeypatch)
        async with feed_cut(gateway):
            pass
        gateway.daemon.publish(1, first=1)  # none of these is stored
        await hear(client, 1)
        await gateway.daemon.store.put([stored(make_envelope(0))])
        for number in range(2, 6):
            gateway.daemon.publish(1, first=number)
            await another(found)
        await hear(client, 6)

    assert all(not is_to_known for is_to_known, news in found if mapped(make_envelope(0)) in messages_of(news))
    assert any(is_to_known and news.end < news.last for is_to_known, news in found)
    assert not any(news.has_more for _, news in found)


# Where it begins


async def test_what_is_in_the_store_at_the_start_is_history(tmp_path: Path) -> None:
    make_store(tmp_path / STORE_FILE, [stored(each) for each in envelopes(2500)])
    async with running_gateway(tmp_path) as gateway, subscriber(gateway) as client:
        async with feed_cut(gateway):
            await gateway.accept(make_envelope(2500))

        assert await hear(client, 1) == [make_envelope(2500).data]


async def test_gateway_that_was_there_before_the_mailserver_pushes_all_that_it_accepts(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, is_live=False) as gateway, subscriber(gateway) as client:
        await gateway.daemon.stop()
        gateway.go_live()
        await until(lambda: gateway.feed.terms is None)
        await gateway.accept(*envelopes(3))
        await gateway.daemon.start()

        assert await hear(client, 3) == [each.data for each in envelopes(3)]


async def test_store_that_was_replaced_is_gone_on_from(gateway: Gateway) -> None:
    folder = gateway.daemon.folder
    async with subscriber(gateway) as client:
        await gateway.accept(*envelopes(5))
        await hear(client, 5)
        async with feed_cut(gateway):
            make_store(folder / "other.db", [stored(make_envelope(1, created=NOW - 1000)), stored(make_envelope(9))])
            for ending in ("-wal", "-shm"):
                (folder / f"{STORE_FILE}{ending}").unlink()
            (folder / "other.db").replace(folder / STORE_FILE)

        assert (await hear(client, 6))[5:] == [make_envelope(9).data]


@on_each_engine
async def test_message_of_a_client_of_v2_is_pushed_under_its_own_hash_once(gateway: Gateway) -> None:
    sent = message(1, meta=b"meta", version=0)
    async with subscriber(gateway) as client:
        assert (await gateway.bridge.send(TOPIC, sent)).is_success
        await hear(client, 1)
        async with feed_cut(gateway):
            await gateway.accept(make_envelope(1))
        await hear(client, 2)

        assert [push.waku_message for push in client.pushes] == [sent, mapped(make_envelope(1))]
