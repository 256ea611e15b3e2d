"""mailserver.gateway.filter_service: who has subscribed gets what it asked for, by the form that it asked in, and no
more.
"""

from pathlib import Path

import pytest

from mailserver.gateway import filter_service as filter_service_module
from mailserver.gateway import push_streams
from mailserver.ids.envelopes import content_topic_of
from mailserver.metrics.gateway import ClientProtocol
from mailserver.waku2.codes import FilterStatus as Status
from mailserver.waku2.filter_packets import (
    FilterSubscribeRequest,
    FilterSubscribeResponse,
    FilterSubscribeType,
    decode_filter_subscribe_response,
)
from mailserver.waku2.frames import encode_frame
from mailserver.waku2.old_filter import FilterRequest, FilterRpc, OldMessagePush
from mailserver.waku2.protocols import ProtocolId
from mailserver.waku2.subscriptions import MAX_OLD_REQUESTS, MAX_REQUEST_TOPICS, SubscriptionLimits
from tests.gateway.clients import MPLEX, YAMUX, LightClient
from tests.gateway.worlds import NEWS_TOPIC, TOPIC, Gateway, mapped, running_gateway
from tests.mailservers import NEWS, SPORT, make_envelope
from tests.waiting import until

pytestmark = pytest.mark.integration

SPORT_TOPIC = content_topic_of(SPORT)
ELSEWHERE = "/waku/2/rs/1/5"
SUBSCRIBE, UNSUBSCRIBE = FilterSubscribeType.SUBSCRIBE, FilterSubscribeType.UNSUBSCRIBE
UNSUBSCRIBE_ALL, PING = FilterSubscribeType.UNSUBSCRIBE_ALL, FilterSubscribeType.SUBSCRIBER_PING


async def ask(client: LightClient, kind: FilterSubscribeType, *topics: str, pubsub_topic: str | None = TOPIC) -> Status:
    request = FilterSubscribeRequest(f"id of {kind}", kind, pubsub_topic, topics)
    answer = await client.ask(ProtocolId.FILTER_SUBSCRIBE, request.encode())
    assert answer is not None
    response = decode_filter_subscribe_response(answer)
    assert response.request_id == request.request_id
    assert response.status_desc
    return Status(response.status_code)


async def hear(client: LightClient, count: int) -> list[bytes]:
    """What was pushed, once it is so much."""
    await until(lambda: len(client.pushes) >= count)
    return [push.waku_message.payload for push in client.pushes]


def data(*numbers: int) -> list[bytes]:
    return [make_envelope(number).data for number in numbers]


# What is pushed


@pytest.mark.parametrize("muxer", [YAMUX, MPLEX])
@pytest.mark.parametrize("is_go", [False, True])
async def test_each_push_is_one_message_with_its_pubsub_topic(gateway: Gateway, muxer: str, is_go: bool) -> None:
    async with gateway.client(muxer=muxer, is_go=is_go) as client:
        await ask(client, SUBSCRIBE, NEWS_TOPIC)
        await gateway.accept(*(make_envelope(number) for number in range(20)))
        await until(lambda: len(client.pushes) == 20)

    expected = [(mapped(make_envelope(number)), TOPIC) for number in range(20)]
    heard = [(push.waku_message, push.pubsub_topic) for push in client.pushes]
    assert heard == expected if not is_go else sorted(map(str, heard)) == sorted(map(str, expected))


async def test_nothing_is_pushed_that_was_not_asked_for(gateway: Gateway) -> None:
    async with gateway.client() as news, gateway.client("elsewhere") as elsewhere, gateway.client("idle") as idle:
        await ask(news, SUBSCRIBE, NEWS_TOPIC)
        await ask(elsewhere, SUBSCRIBE, NEWS_TOPIC, SPORT_TOPIC, pubsub_topic=ELSEWHERE)
        await gateway.accept(make_envelope(1, topic=SPORT), make_envelope(2))

        assert await hear(news, 1) == data(2)
        assert elsewhere.pushes == idle.pushes == []
        assert gateway.scraped("gateway_pushes_total") == 1.0


async def test_nothing_is_pushed_after_an_unsubscribe(gateway: Gateway) -> None:
    async with gateway.client() as client:
        await ask(client, SUBSCRIBE, NEWS_TOPIC, SPORT_TOPIC)
        await ask(client, UNSUBSCRIBE, NEWS_TOPIC)
        await gateway.accept(make_envelope(1), make_envelope(2, topic=SPORT))
        assert await hear(client, 1) == [make_envelope(2, topic=SPORT).data]
        await ask(client, UNSUBSCRIBE_ALL)
        await ask(client, SUBSCRIBE, SPORT_TOPIC)
        await gateway.accept(make_envelope(3), make_envelope(4, topic=SPORT))

        assert (await hear(client, 2))[1:] == [make_envelope(4, topic=SPORT).data]


@pytest.mark.parametrize("kind", [UNSUBSCRIBE, UNSUBSCRIBE_ALL])
async def test_what_waits_is_not_pushed_after_an_unsubscribe(
    gateway: Gateway, kind: FilterSubscribeType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first push shows what kind of client it is: the next ones wait that long."""
    monkeypatch.setattr(push_streams, "PROBE_S", 3.0)  # a busy machine takes its time to unsubscribe
    async with gateway.client() as client:
        await ask(client, SUBSCRIBE, NEWS_TOPIC)
        await gateway.accept(*(make_envelope(number) for number in range(5)))
        await hear(client, 1)
        await until(lambda: gateway.scraped("gateway_pushes_total") == 5.0)
        await ask(client, kind, *([NEWS_TOPIC] if kind is UNSUBSCRIBE else []))
        await ask(client, SUBSCRIBE, SPORT_TOPIC)
        await gateway.accept(make_envelope(9, topic=SPORT))

        assert await hear(client, 2) == [*data(0), make_envelope(9, topic=SPORT).data]


async def test_message_is_pushed_to_each_client_that_wants_it(gateway: Gateway) -> None:
    async with gateway.client("a") as one, gateway.client("b") as two:
        for client in (one, two):
            await ask(client, SUBSCRIBE, NEWS_TOPIC)
        await gateway.accept(make_envelope(1))

        assert await hear(one, 1) == await hear(two, 1) == data(1)


@pytest.mark.parametrize("kind", [UNSUBSCRIBE, UNSUBSCRIBE_ALL])
async def test_who_unsubscribes_while_others_are_pushed_to_gets_nothing(
    gateway: Gateway, kind: FilterSubscribeType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filter_service_module, "CLIENTS_AT_ONCE", 1)
    async with gateway.client("a") as one, gateway.client("b") as two, gateway.client("c") as three:
        for client in (one, two, three):
            await ask(client, SUBSCRIBE, NEWS_TOPIC, SPORT_TOPIC)
        pushing = gateway.filters.push(mapped(make_envelope(1)).encode(), NEWS_TOPIC)
        next(pushing)
        assert await hear(one, 1) == data(1)
        await ask(two, kind, *([NEWS_TOPIC] if kind is UNSUBSCRIBE else []))
        await ask(two, SUBSCRIBE, SPORT_TOPIC)

        assert len([*pushing]) == 2
        await gateway.accept(make_envelope(2, topic=SPORT))

        assert await hear(two, 1) == [make_envelope(2, topic=SPORT).data]
        assert await hear(three, 2) == await hear(one, 2) == [*data(1), make_envelope(2, topic=SPORT).data]


async def test_client_that_does_not_know_of_its_subscription_gets_nothing_more(gateway: Gateway) -> None:
    async with gateway.client() as client:
        client.resets_pushes = True
        await ask(client, SUBSCRIBE, NEWS_TOPIC, SPORT_TOPIC)
        await gateway.accept(make_envelope(1))
        await until(lambda: not gateway.filters.wants(NEWS_TOPIC))

        assert gateway.filters.wants(SPORT_TOPIC)
        assert await ask(client, PING) is Status.OK


async def test_client_that_does_not_read_costs_itself_alone(gateway: Gateway) -> None:
    async with gateway.client("slow", muxer=YAMUX) as slow, gateway.client("fast") as fast:
        for client in (slow, fast):
            await ask(client, SUBSCRIBE, NEWS_TOPIC)
        await gateway.accept(make_envelope(0), make_envelope(1))
        await hear(slow, 2)  # what comes now waits for nothing but its client
        await hear(fast, 2)
        await slow.stop_reading()
        number = 2
        while gateway.scraped("gateway_dropped_pushes_total") < 10:
            await gateway.accept(*(make_envelope(each, data_bytes=50_000) for each in range(number, number + 3)))
            number += 3
            await hear(fast, number)

        assert len(fast.pushes) == number


async def test_nothing_is_encoded_for_a_client_that_does_not_read(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway.client(muxer=YAMUX) as client:
        await ask(client, SUBSCRIBE, NEWS_TOPIC)
        await client.old_filter("old", FilterRequest(True, TOPIC))
        await gateway.accept(make_envelope(0))
        await until(lambda: len(client.pushes) == len(client.old_pushes) == 1)
        await client.stop_reading()
        number = 1
        while gateway.scraped("gateway_dropped_pushes_total") < 10:
            await gateway.accept(make_envelope(number, data_bytes=50_000))
            number += 1
            await done_with(gateway, number)

        with monkeypatch.context() as patch:
            for name in ("encode_message_push", "encode_old_push"):
                patch.delattr(filter_service_module, name)  # who encodes fails
            await gateway.accept(make_envelope(number, data_bytes=50_000))
            await done_with(gateway, number + 1)


async def done_with(gateway: Gateway, count: int) -> None:
    """So many messages were pushed or dropped, each for both filters of a client."""
    names = ("gateway_pushes_total", "gateway_dropped_pushes_total")
    await until(lambda: sum(map(gateway.scraped, names)) == 2 * count)


# Codes


async def test_requests_are_answered_with_their_codes(gateway: Gateway) -> None:
    async with gateway.client() as client:
        assert await ask(client, PING) is Status.NOT_FOUND
        assert await ask(client, UNSUBSCRIBE, NEWS_TOPIC) is Status.NOT_FOUND
        assert await ask(client, UNSUBSCRIBE_ALL) is Status.NOT_FOUND
        assert await ask(client, SUBSCRIBE) is Status.BAD_REQUEST
        assert await ask(client, SUBSCRIBE, NEWS_TOPIC, pubsub_topic=None) is Status.BAD_REQUEST
        assert await ask(client, SUBSCRIBE, *map(str, range(MAX_REQUEST_TOPICS + 1))) is Status.BAD_REQUEST
        assert await ask(client, SUBSCRIBE, NEWS_TOPIC) is Status.OK
        assert await ask(client, PING) is Status.OK

    for code, count in ((200, 2), (400, 3), (404, 3)):
        assert gateway.scraped(f'gateway_requests_total{{code="{code}",protocol="filter"}}') == count


async def test_address_that_asks_too_often_is_told_so_with_its_request_id(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, rates={ClientProtocol.FILTER: 0.01}) as gateway, gateway.client() as client:
        assert await ask(client, SUBSCRIBE, NEWS_TOPIC) is Status.OK
        assert await ask(client, UNSUBSCRIBE_ALL) is Status.TOO_MANY_REQUESTS
        assert gateway.filters.wants(NEWS_TOPIC)


async def test_client_without_a_place_is_told_so_and_gets_one_when_another_leaves(tmp_path: Path) -> None:
    limits = SubscriptionLimits(max_subscribers=1, max_criteria=2)
    async with running_gateway(tmp_path, limits=limits) as gateway, gateway.client("late") as late:
        async with gateway.client("early") as early:
            assert await ask(early, SUBSCRIBE, NEWS_TOPIC, SPORT_TOPIC) is Status.OK
            assert await ask(early, SUBSCRIBE, "/a/1/b/proto") is Status.SERVICE_UNAVAILABLE
            assert await ask(late, SUBSCRIBE, NEWS_TOPIC) is Status.SERVICE_UNAVAILABLE
        await until(lambda: len(gateway.host) == 1)

        assert await ask(late, SUBSCRIBE, NEWS_TOPIC) is Status.OK
        assert len(gateway.filters.subscriptions) == 1


async def test_bytes_that_are_no_request_are_answered_with_400_or_end_their_stream(gateway: Gateway) -> None:
    async with gateway.client() as client:
        malformed = FilterSubscribeRequest("id", SUBSCRIBE).encode() + b"\xff"
        answer = await client.ask(ProtocolId.FILTER_SUBSCRIBE, malformed)
        assert await client.ask(ProtocolId.OLD_FILTER, b"\xff") is None  # it has no answers
        assert await ask(client, SUBSCRIBE, NEWS_TOPIC) is Status.OK

    assert answer == FilterSubscribeResponse("id", Status.BAD_REQUEST, Status.BAD_REQUEST.text).encode()


# How long subscriptions live


async def test_client_that_comes_back_goes_on_and_one_that_does_not_is_forgotten(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, limits=SubscriptionLimits(unreachable_s=0.5)) as gateway:
        async with gateway.client("comes back") as client:
            await ask(client, SUBSCRIBE, NEWS_TOPIC)
        async with gateway.client("does not") as client:
            await ask(client, SUBSCRIBE, SPORT_TOPIC)
        async with gateway.client("comes back") as client:
            await until(lambda: len(gateway.filters.subscriptions) == 1)
            await gateway.accept(make_envelope(1))

            assert await hear(client, 1) == data(1)
            assert await ask(client, PING) is Status.OK
            assert not gateway.filters.wants(SPORT_TOPIC)
        await until(lambda: len(gateway.filters.subscriptions) == 0)


async def test_client_with_two_connections_gets_each_push_once_on_the_latest(gateway: Gateway) -> None:
    async with gateway.client() as first:
        await ask(first, SUBSCRIBE, NEWS_TOPIC)
        async with gateway.client() as second:
            await gateway.accept(make_envelope(1))
            assert await hear(second, 1) == data(1)
        await until(lambda: len(gateway.host) == 1)
        await gateway.accept(make_envelope(2))

        assert await hear(first, 1) == data(2)


# The old filter


async def test_old_push_carries_the_id_of_the_request_that_matched(gateway: Gateway) -> None:
    async with gateway.client() as client:
        await client.old_filter("news", FilterRequest(True, TOPIC, (NEWS_TOPIC,)))
        await client.old_filter("sport", FilterRequest(True, "", (SPORT_TOPIC,)))
        await client.old_filter("all", FilterRequest(True, TOPIC))
        await client.old_filter("elsewhere", FilterRequest(True, ELSEWHERE, (NEWS_TOPIC,)))
        await gateway.accept(make_envelope(1), make_envelope(2, topic=SPORT))
        await until(lambda: len(client.old_pushes) == 4)

        pushed = {(rpc.request_id, rpc.push.messages) for rpc in client.old_pushes if rpc.push is not None}
        news, sport = (mapped(make_envelope(1)),), (mapped(make_envelope(2, topic=SPORT)),)
        assert pushed == {("news", news), ("all", news), ("sport", sport), ("all", sport)}
        assert client.pushes == []


async def test_client_gets_no_message_more_often_than_it_may_make_old_requests(gateway: Gateway) -> None:
    async with gateway.client() as client:
        for number in range(MAX_OLD_REQUESTS + 5):
            await client.old_filter(f"{number}", FilterRequest(True, TOPIC))
        await gateway.accept(make_envelope(1))
        await until(lambda: len(client.old_pushes) == MAX_OLD_REQUESTS)

        assert {rpc.request_id for rpc in client.old_pushes} == set(map(str, range(MAX_OLD_REQUESTS)))
        assert gateway.scraped("gateway_pushes_total") == MAX_OLD_REQUESTS <= 10
        assert gateway.scraped('gateway_requests_total{code="503",protocol="old_filter"}') == 5.0


async def test_old_unsubscribe_stops_what_it_names(gateway: Gateway) -> None:
    async with gateway.client() as client:
        await client.old_filter("1", FilterRequest(True, TOPIC, (NEWS_TOPIC, SPORT_TOPIC)))
        await client.old_filter("2", FilterRequest(False, TOPIC, (NEWS_TOPIC,)))
        await gateway.accept(make_envelope(1), make_envelope(2, topic=SPORT))
        await until(lambda: len(client.old_pushes) == 1)

        assert not gateway.filters.wants(NEWS_TOPIC)


async def test_old_request_that_is_refused_is_silently_counted(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, rates={ClientProtocol.OLD_FILTER: 0.3}) as gateway, gateway.client() as client:
        await client.old_filter("1", FilterRequest(True))
        await client.old_filter("2", None)
        push = FilterRpc("3", push=OldMessagePush((mapped(make_envelope(1)),)))
        assert await client.ask(ProtocolId.OLD_FILTER, push.encode()) is None
        await client.old_filter("4", FilterRequest(True, TOPIC))

        assert gateway.scraped('gateway_requests_total{code="400",protocol="old_filter"}') == 3.0
        assert gateway.scraped('gateway_requests_total{code="429",protocol="old_filter"}') == 1.0
        assert not gateway.filters.wants(NEWS_TOPIC)


async def test_old_request_beyond_the_rate_is_not_even_read(tmp_path: Path) -> None:
    async with (
        running_gateway(tmp_path, rates={ClientProtocol.OLD_FILTER: 0.01}) as gateway,
        gateway.client() as client,
    ):
        assert await client.ask(ProtocolId.OLD_FILTER, b"\xff") is None  # it counts, too
        stream = await client.open(ProtocolId.OLD_FILTER, encode_frame(b"\xff"))
        heard = await client.heard(stream)

        assert heard.is_closed
        assert not heard.is_reset
        assert gateway.scraped('gateway_requests_total{code="429",protocol="old_filter"}') == 1.0


async def test_both_forms_side_by_side_push_once_each(gateway: Gateway) -> None:
    async with gateway.client() as client:
        await ask(client, SUBSCRIBE, NEWS_TOPIC)
        await client.old_filter("old", FilterRequest(True, TOPIC, (NEWS_TOPIC,)))
        await gateway.accept(make_envelope(1, topic=NEWS))
        await until(lambda: len(client.pushes) == len(client.old_pushes) == 1)

        assert gateway.scraped("gateway_pushes_total") == 2.0
