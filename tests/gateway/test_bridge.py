"""mailserver.gateway.bridge: what clients of v2 send is posted once, within a budget, and has one hash everywhere."""

import asyncio
import logging
from pathlib import Path

import pytest

from mailserver.gateway import bridge as bridge_module
from mailserver.gateway.index import follower as following
from mailserver.gateway.index.schema import INDEX_FILE
from mailserver.ids.envelopes import NS
from mailserver.ids.waku_message import WakuMessage
from mailserver.metrics.registry import count_of
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.waku.acceptance import Requirements
from mailserver.waku.bloom import Interest
from mailserver.waku.envelope import Envelope, decode_envelope
from mailserver.waku2.codes import LightPushStatus as Status
from mailserver.waku2.store_query import StoreQueryRequest
from tests.gateway.worlds import NEWS_TOPIC, TOPIC, TTL, Gateway, message, on_each_engine, running_gateway
from tests.mailservers import NEWS, NOW, SPORT
from tests.store.samples import change, rows
from tests.waiting import turns, until

pytestmark = pytest.mark.integration


def envelopes(gateway: Gateway) -> list[Envelope]:
    """What is in the store of the daemon."""
    return [decode_envelope(raw) for (raw,) in rows(gateway.daemon.folder / STORE_FILE, "SELECT raw FROM envelopes")]


def originals(gateway: Gateway) -> int:
    ((count,),) = rows(gateway.daemon.folder / INDEX_FILE, "SELECT count(*) FROM originals")
    return int(count)


async def send(gateway: Gateway, sent: WakuMessage, pubsub_topic: str | None = TOPIC) -> Status:
    return (await gateway.bridge.send(pubsub_topic, sent)).status


def results(gateway: Gateway) -> dict[str, float]:
    """What became of messages, but for what never happened."""
    named = {each: gateway.scraped(f'gateway_sent_messages_total{{result="{each}"}}') for each in RESULTS}
    return {name: count for name, count in named.items() if count}


RESULTS = ("sent", "known", "refused", "too_many", "failed")


# One envelope for each message


async def test_message_becomes_an_envelope_created_now(gateway: Gateway) -> None:
    assert await send(gateway, message(1, seconds=-15)) is Status.OK

    (envelope,) = envelopes(gateway)
    assert (envelope.topic, envelope.data) == (NEWS, b"message 1")
    assert (envelope.created, envelope.ttl) == (NOW, TTL)
    assert results(gateway) == {"sent": 1.0}


async def test_envelope_has_the_work_that_the_mailserver_asks_for(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, requirements=Requirements(0.5)) as gateway:
        assert await send(gateway, message(1)) is Status.OK

        assert envelopes(gateway)[0].pow() >= 0.5


async def test_message_is_sent_once_however_often_it_comes(gateway: Gateway) -> None:
    at_once = await asyncio.gather(*(send(gateway, message(1)) for _ in range(5)))
    again = await send(gateway, message(1), None)

    assert [*at_once, again] == [Status.OK] * 6
    assert len(envelopes(gateway)) == 1
    assert results(gateway) == {"sent": 1.0, "known": 1.0}


async def test_messages_of_one_payload_that_differ_in_time_or_meta_have_an_envelope_each(gateway: Gateway) -> None:
    for sent in (message(1), message(1, seconds=1), message(1, meta=b"meta")):
        assert await send(gateway, sent) is Status.OK

    assert len({envelope.hash() for envelope in envelopes(gateway)}) == originals(gateway) == 3


async def test_message_is_known_after_a_restart(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway:
        assert await send(gateway, message(1)) is Status.OK
    async with running_gateway(tmp_path) as gateway:
        assert await send(gateway, message(1)) is Status.OK

        assert len(envelopes(gateway)) == 1
        assert results(gateway) == {"known": 1.0}


async def test_message_whose_sender_died_before_its_post_is_sent_again(gateway: Gateway) -> None:
    """Its original was kept, and nothing else was done."""
    await gateway.daemon.stop()
    await until(lambda: gateway.feed.terms is None)
    (gateway.daemon.folder / "other").mkdir()
    async with running_gateway(gateway.daemon.folder / "other") as other:
        await send(other, message(1))
        (lost,) = envelopes(other)
    await gateway.messages.keep_original(lost, message(1))
    await gateway.daemon.start()
    await until(lambda: gateway.feed.terms is not None)

    assert await send(gateway, message(1)) is Status.OK

    assert len(envelopes(gateway)) == 1
    assert results(gateway) == {"sent": 1.0}


async def test_sender_that_gives_up_stops_nobody_else(gateway: Gateway) -> None:
    with gateway.daemon.disk_busy():
        first, second = (asyncio.create_task(send(gateway, message(1))) for _ in range(2))
        await until(lambda: originals(gateway) == 1)
        first.cancel()
        await turns()

    assert await second is Status.OK
    assert len(envelopes(gateway)) == 1


@on_each_engine
async def test_message_has_one_hash_in_push_and_store_and_cursor(gateway: Gateway) -> None:
    sent = message(1, meta=b"m" * 64, version=0)
    name = sent.hash(TOPIC)
    async with gateway.client() as client:
        await client.subscribe(TOPIC, NEWS_TOPIC)
        await send(gateway, sent)
        await send(gateway, message(2, seconds=1))
        await until(lambda: len(client.pushes) == 2)
        all_of = await client.query(StoreQueryRequest("1", include_data=True, pagination_forward=True))
        rest = await client.query(StoreQueryRequest("2", pagination_cursor=name, pagination_forward=True))

    assert client.pushes[0].waku_message == sent
    assert client.pushes[0].waku_message.hash(TOPIC) == name
    assert (all_of.messages[0].message, all_of.messages[0].message_hash) == (sent, name)
    assert [each.message_hash for each in rest.messages] == [message(2, seconds=1).hash(TOPIC)]


# What is not sent


@pytest.mark.parametrize(
    ("details", "status"),
    [
        ({"content_topic": "/app/1/chat/proto"}, Status.INVALID_MESSAGE),
        ({"content_topic": "/waku/1/0xABCDEF01/rfc26"}, Status.INVALID_MESSAGE),
        ({"timestamp": None}, Status.INVALID_MESSAGE),
        ({"timestamp": 0}, Status.INVALID_MESSAGE),
        ({"timestamp": (NOW - 21) * NS}, Status.INVALID_MESSAGE),
        ({"timestamp": (NOW + 21) * NS}, Status.INVALID_MESSAGE),
        ({"ephemeral": True}, Status.INVALID_MESSAGE),
        ({"payload": bytes(150 * 1024)}, Status.PAYLOAD_TOO_LARGE),
    ],
)
async def test_message_that_may_not_be_bridged_is_refused_before_any_work(
    gateway: Gateway, details: dict[str, object], status: Status
) -> None:
    fields = {"payload": b"hello", "content_topic": NEWS_TOPIC, "timestamp": NOW * NS}

    assert await send(gateway, WakuMessage(**(fields | details))) is status  # type: ignore[arg-type]

    assert envelopes(gateway) == []
    assert results(gateway) == {"refused": 1.0}


async def test_other_pubsub_topic_and_no_message_are_refused(gateway: Gateway) -> None:
    assert await send(gateway, message(1), "/waku/2/rs/1/5") is Status.UNSUPPORTED_PUBSUB_TOPIC
    assert (await gateway.bridge.send(TOPIC, None)).status is Status.BAD_REQUEST
    assert results(gateway) == {"refused": 2.0}


async def test_what_the_mailserver_would_not_take_is_refused_before_any_work(tmp_path: Path) -> None:
    requirements = Requirements(1e9, Interest(topics=frozenset({NEWS})), max_envelope_bytes=100)
    async with running_gateway(tmp_path, requirements=requirements) as gateway:
        assert await send(gateway, message(1, topic=SPORT)) is Status.INVALID_MESSAGE
        assert await send(gateway, message(1, payload=bytes(100))) is Status.PAYLOAD_TOO_LARGE
        assert results(gateway) == {"refused": 2.0}
        assert originals(gateway) == 0


async def test_gateway_without_a_share_of_the_processor_sends_nothing(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, pow_share=0.0) as gateway:
        assert await send(gateway, message(1)) is Status.SERVICE_UNAVAILABLE
        assert results(gateway) == {"refused": 1.0}


async def test_work_is_bounded_by_its_budget(tmp_path: Path) -> None:
    """Each message takes some 0.4 s of work by the formula; the budget is 0.5 s, and 0.05 s more each second."""
    work = 0.4 * bridge_module.HASHES_PER_SECOND / (9 * TTL)
    async with running_gateway(tmp_path, requirements=Requirements(work), pow_share=0.05) as gateway:
        verdicts = await asyncio.gather(*(send(gateway, message(number)) for number in range(4)))

    assert verdicts.count(Status.TOO_MANY_REQUESTS) == 3
    assert results(gateway)["too_many"] == 3.0


async def test_work_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_gateway(tmp_path, requirements=Requirements(1e6)) as gateway:
        assert await send(gateway, message(1)) is Status.TOO_MANY_REQUESTS  # refused by its price
        monkeypatch.setattr(bridge_module, "HASHES_PER_SECOND", 1e12)
        monkeypatch.setattr(bridge_module, "MAX_WORK_S", 0.01)
        assert await send(gateway, message(1)) is Status.TOO_MANY_REQUESTS  # and by the clock

        assert originals(gateway) == 0
        assert results(gateway) == {"too_many": 2.0}


async def test_no_more_are_sent_at_once_than_a_bound(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge_module, "MAX_SENDING", 2)
    with gateway.daemon.disk_busy():
        sending = [asyncio.create_task(send(gateway, message(number))) for number in range(2)]
        await turns()
        third = await send(gateway, message(2))

    assert third is Status.TOO_MANY_REQUESTS
    assert await asyncio.gather(*sending) == [Status.OK, Status.OK]
    assert await send(gateway, message(2)) is Status.OK


# Failures


async def test_without_the_mailserver_nothing_is_sent(gateway: Gateway) -> None:
    await gateway.daemon.stop()
    await until(lambda: gateway.feed.terms is None)

    assert await send(gateway, message(1)) is Status.SERVICE_UNAVAILABLE
    assert originals(gateway) == 0
    assert results(gateway) == {"failed": 1.0}


async def test_mailserver_that_goes_before_it_answers_is_a_failure_and_the_message_is_known_later(
    gateway: Gateway,
) -> None:
    with gateway.daemon.disk_busy():
        sending = asyncio.create_task(send(gateway, message(1)))
        await until(lambda: count_of(gateway.daemon.metrics.new) == 1)
        stopping = asyncio.create_task(gateway.daemon.stop())
        assert await sending is Status.SERVICE_UNAVAILABLE
    await stopping
    await gateway.daemon.start()
    await until(lambda: gateway.feed.terms is not None)
    await until(lambda: len(envelopes(gateway)) == 1)

    assert await send(gateway, message(1)) is Status.OK
    assert results(gateway) == {"failed": 1.0, "known": 1.0}


async def test_store_that_cannot_take_the_envelope_is_a_failure_and_its_original_stays(gateway: Gateway) -> None:
    """The mailserver relays it all the same, so it may come back from a peer."""
    with gateway.daemon.disk_full():
        assert await send(gateway, message(1)) is Status.SERVICE_UNAVAILABLE

    assert originals(gateway) == 1
    assert results(gateway) == {"failed": 1.0}


async def test_original_of_an_envelope_that_was_refused_is_forgotten(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.daemon.acceptance.change(
        Requirements(0.0, max_envelope_bytes=20), NOW
    )  # which the gateway does not know yet

    assert await send(gateway, message(1)) is Status.PAYLOAD_TOO_LARGE
    assert originals(gateway) == 0


async def test_index_that_fails_is_a_failure(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    change(gateway.daemon.folder / INDEX_FILE, "ALTER TABLE originals RENAME TO hidden")

    assert await send(gateway, message(1)) is Status.SERVICE_UNAVAILABLE
    assert "message not sent error=" in caplog.text
    assert "message 1" not in caplog.text


async def test_index_that_is_still_being_made_is_a_failure_and_no_error_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(following, "MAX_BEHIND", -1)
    async with running_gateway(tmp_path) as gateway:
        assert await send(gateway, message(1)) is Status.SERVICE_UNAVAILABLE

    assert "message not sent" not in caplog.text


async def test_bridge_that_stops_gives_up_what_it_was_sending(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, requirements=Requirements(1e6)) as gateway:
        sending = asyncio.create_task(send(gateway, message(1, payload=b"")))
        await turns()

        await gateway.bridge.stop()

        with pytest.raises(asyncio.CancelledError):
            await sending
