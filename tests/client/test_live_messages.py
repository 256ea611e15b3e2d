"""mailserver.client.live_messages: what waits, what is dropped, and the subscription of a client to a node."""

import asyncio
import contextlib
import weakref

import pytest

from mailserver.client import live_messages as live_module
from mailserver.client.live_messages import LiveMessages
from mailserver.errors import ConnectionLost, DisconnectReason, LocalProtocolError
from mailserver.net.connection import Connection
from mailserver.net.inbound import Event
from mailserver.waku.bloom import EMPTY_BLOOM, Interest, bloom_of
from mailserver.waku.envelope import Envelope, encode_envelopes
from mailserver.waku.packets import PacketCode, encode_batch_acknowledged
from mailserver.waku.peer import MessagesReceived, SettingsChanged
from tests.client.nodes import node
from tests.mailservers import NEWS, SPORT, make_envelope, make_envelopes
from tests.memory import no_search_for_cycles
from tests.waiting import until

NEWS_ONLY = Interest(topics=frozenset({NEWS}))


async def next_of(live: LiveMessages) -> Envelope:
    return await anext(aiter(live))


# What waits


async def test_envelopes_come_out_in_the_order_in_which_they_came_in() -> None:
    live, envelopes = LiveMessages(NEWS_ONLY), make_envelopes(5)

    live.put(envelopes[:2])
    live.put(envelopes[2:])

    assert [await next_of(live) for _ in envelopes] == envelopes
    assert (live.missed, live.unwanted) == (0, 0)


async def test_reader_waits_until_there_is_an_envelope() -> None:
    live, envelope = LiveMessages(NEWS_ONLY), make_envelope(1)
    reading = asyncio.ensure_future(next_of(live))

    await asyncio.sleep(0)
    assert not reading.done()
    live.put([make_envelope(2, topic=SPORT)])
    await asyncio.sleep(0)
    assert not reading.done()
    live.put([envelope])

    assert await reading == envelope


async def test_topics_that_nobody_asked_for_are_left_out_and_counted() -> None:
    live, envelope = LiveMessages(NEWS_ONLY), make_envelope(1)

    live.put([make_envelope(2, topic=SPORT), envelope])

    assert await next_of(live) == envelope
    assert live.unwanted == 1


async def test_oldest_are_dropped_and_counted_where_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "MAX_WAITING_ENVELOPES", 3)
    live, envelopes = LiveMessages(NEWS_ONLY), make_envelopes(5)

    live.put(envelopes)

    assert live.missed == 2
    assert [await next_of(live) for _ in range(3)] == envelopes[2:]


async def test_oldest_are_dropped_and_counted_where_too_many_bytes_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    envelopes = make_envelopes(5)
    monkeypatch.setattr(live_module, "MAX_WAITING_BYTES", 2 * len(envelopes[0].raw))
    live = LiveMessages(NEWS_ONLY)

    live.put(envelopes[:2])
    assert await next_of(live) == envelopes[0]
    live.put(envelopes[2:])

    assert live.missed == 2
    assert [await next_of(live) for _ in range(2)] == envelopes[3:]


async def test_end_is_told_when_everything_is_read_and_again_at_each_attempt() -> None:
    live, envelope = LiveMessages(NEWS_ONLY), make_envelope(1)
    live.put([envelope])
    live.end(ConnectionLost(DisconnectReason.CLIENT_QUITTING, "enough"))

    assert await next_of(live) == envelope
    for _ in range(2):
        with pytest.raises(ConnectionLost, match="enough"):
            await next_of(live)


async def test_reader_that_was_told_of_the_end_is_freed_at_once() -> None:
    live = LiveMessages(NEWS_ONLY)
    freed = weakref.ref(live)
    live.end(ConnectionLost(DisconnectReason.CLIENT_QUITTING, "enough"))

    with no_search_for_cycles():
        with contextlib.suppress(ConnectionLost):
            await next_of(live)
        del live

        assert freed() is None


# Subscribing


class Noting:
    """A node that notes what a client announces, and relays to it what the test says."""

    def __init__(self) -> None:
        self.interests: list[Interest] = []
        self.connection: Connection | None = None

    async def __call__(self, connection: Connection, event: Event) -> None:
        self.connection = connection
        if isinstance(event, SettingsChanged):
            self.interests.append(event.settings.interest)
        elif isinstance(event, MessagesReceived):
            connection.send(PacketCode.BATCH_ACKNOWLEDGED, encode_batch_acknowledged(event.batch_hash))

    async def is_told(self, times: int) -> None:
        """Wait until so many interests have been announced after Status."""
        await until(lambda: len(self.interests) == times)

    def relay(self, *envelopes: Envelope) -> None:
        assert self.connection is not None
        self.connection.send(PacketCode.MESSAGES, encode_envelopes([envelope.raw for envelope in envelopes]))


@pytest.mark.integration
@pytest.mark.parametrize("interest", [NEWS_ONLY, Interest(bloom=bloom_of([NEWS])), Interest()])
async def test_node_is_told_the_interest_and_that_it_is_over(interest: Interest) -> None:
    noting = Noting()

    async with node(noting) as client:
        for told in (1, 3):
            with client.subscribe(interest) as live:
                await noting.is_told(told)
                noting.relay(make_envelope(told))
                assert await next_of(live) == make_envelope(told)
            await noting.is_told(told + 1)

    assert noting.interests == [interest, Interest(bloom=EMPTY_BLOOM)] * 2


@pytest.mark.integration
async def test_what_comes_without_a_subscription_is_passed_over() -> None:
    noting = Noting()

    async with node(noting) as client:
        await until(lambda: noting.connection is not None)
        noting.relay(make_envelope(1))
        await client.post([make_envelope(3)])  # its confirmation comes behind what was relayed
        with client.subscribe(NEWS_ONLY) as live:
            noting.relay(make_envelope(2))

            assert await next_of(live) == make_envelope(2)


@pytest.mark.integration
async def test_connection_has_one_subscription_at_a_time() -> None:
    async with node(Noting()) as client:
        with client.subscribe(NEWS_ONLY), pytest.raises(LocalProtocolError), client.subscribe(NEWS_ONLY):
            pass
        with client.subscribe(NEWS_ONLY):
            pass


@pytest.mark.integration
async def test_end_of_the_connection_ends_the_subscription() -> None:
    noting = Noting()

    async with node(noting) as client:
        with client.subscribe(NEWS_ONLY) as live:
            await noting.is_told(1)
            noting.relay(make_envelope(1))
            assert noting.connection is not None
            noting.connection.disconnect(DisconnectReason.CLIENT_QUITTING, "enough")

            assert await next_of(live) == make_envelope(1)
            with pytest.raises(ConnectionLost, match="CLIENT_QUITTING"):
                await next_of(live)
        with pytest.raises(ConnectionLost), client.subscribe(NEWS_ONLY):
            pass
