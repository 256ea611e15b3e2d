"""mailserver.gateway.lightpush_service: both forms of lightpush, answered with every code that there is."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from mailserver.metrics.gateway import ClientProtocol
from mailserver.waku.acceptance import Requirements
from mailserver.waku2.codes import LightPushStatus as Status
from mailserver.waku2.frames import encode_frame
from mailserver.waku2.lightpush import (
    LightPushRequest,
    LightPushResponse,
    PushRequest,
    PushResponse,
    PushRpc,
    decode_light_push_response,
)
from mailserver.waku2.protocols import ProtocolId
from tests.gateway.clients import LightClient
from tests.gateway.worlds import TOPIC, message, running_gateway
from tests.waiting import until

pytestmark = pytest.mark.integration

NO_MESSAGES: Mapping[ClientProtocol, float] = {ClientProtocol.LIGHTPUSH: 0.01}
"""A burst of one message, and then nothing for a minute."""


async def ask(client: LightClient, request: LightPushRequest) -> LightPushResponse:
    answer = await client.ask(ProtocolId.LIGHTPUSH, request.encode())
    assert answer is not None
    response = decode_light_push_response(answer)
    assert response.request_id == request.request_id
    return response


async def test_message_that_is_stored_is_answered_with_success_and_a_peer(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway, gateway.client() as client:
        response = await ask(client, LightPushRequest("a", TOPIC, message(1)))
        older = await client.lightpush_2(PushRequest(TOPIC, message(2)))

        assert (response.status_code, response.status_desc, response.relay_peer_count) == (Status.OK, "OK", 1)
        assert (older.is_success, older.info) == (True, "OK")
        assert gateway.scraped('gateway_requests_total{code="200",protocol="lightpush"}') == 2.0


async def test_each_refusal_has_its_code_and_a_text_in_both_forms(tmp_path: Path) -> None:
    refused = (
        (LightPushRequest("1", TOPIC, None), Status.BAD_REQUEST),
        (LightPushRequest("2", TOPIC, message(1, payload=bytes(150 * 1024))), Status.PAYLOAD_TOO_LARGE),
        (LightPushRequest("3", TOPIC, message(1, timestamp=None)), Status.INVALID_MESSAGE),
        (LightPushRequest("4", "/waku/2/rs/1/5", message(1)), Status.UNSUPPORTED_PUBSUB_TOPIC),
    )
    async with running_gateway(tmp_path) as gateway, gateway.client() as client:
        for request, status in refused:
            response = await ask(client, request)
            older = await client.lightpush_2(PushRequest(request.pubsub_topic or "", request.message))

            assert response.status_code == status
            assert response.status_desc == older.info != ""
            assert response.relay_peer_count is None
            assert not older.is_success
            label = f'gateway_requests_total{{code="{int(status)}",protocol="lightpush"}}'
            assert gateway.scraped(label) == 2.0


async def test_request_is_read_as_far_as_nwaku_reads_one(tmp_path: Path) -> None:
    around = len(LightPushRequest("1", TOPIC, message(1, payload=bytes(200 * 1024))).encode()) - 200 * 1024
    longest = 214 * 1024 - around
    async with running_gateway(tmp_path) as gateway, gateway.client() as client:
        response = await ask(client, LightPushRequest("1", TOPIC, message(1, payload=bytes(longest))))
        longer = LightPushRequest("1", TOPIC, message(1, payload=bytes(longest + 1))).encode()
        stream = await client.open(ProtocolId.LIGHTPUSH, encode_frame(longer))

        assert response.status_code == Status.PAYLOAD_TOO_LARGE
        assert (await client.heard(stream)).is_reset
        assert (await ask(client, LightPushRequest("2", TOPIC, message(2)))).status_code == Status.OK


async def test_address_that_sends_too_much_is_told_so_by_each_form(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, rates=NO_MESSAGES) as gateway, gateway.client() as client:
        assert (await ask(client, LightPushRequest("1", TOPIC, message(1)))).status_code == Status.OK
        assert (await ask(client, LightPushRequest("2", TOPIC, message(2)))).status_code == Status.TOO_MANY_REQUESTS
        older = await client.lightpush_2(PushRequest(TOPIC, message(3)))

        assert (older.is_success, older.info) == (False, Status.TOO_MANY_REQUESTS.text)
        assert gateway.scraped('gateway_sent_messages_total{result="sent"}') == 1.0


async def test_work_that_costs_too_much_is_told_as_too_many_requests(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, requirements=Requirements(1e6)) as gateway, gateway.client() as client:
        response = await ask(client, LightPushRequest("1", TOPIC, message(1)))

    assert response.status_code == Status.TOO_MANY_REQUESTS


async def test_mailserver_that_is_away_is_told_as_unavailable(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway, gateway.client() as client:
        await gateway.daemon.stop()
        await until(lambda: gateway.feed.terms is None)

        assert (await ask(client, LightPushRequest("1", TOPIC, message(1)))).status_code == Status.SERVICE_UNAVAILABLE
        assert not (await client.lightpush_2(PushRequest(TOPIC, message(1)))).is_success


async def test_message_sent_by_each_form_at_the_same_time_is_one(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway, gateway.client() as client, gateway.client("other") as other:
        await ask(client, LightPushRequest("1", TOPIC, message(1)))
        older = await other.lightpush_2(PushRequest(TOPIC, message(1)))

        assert older.is_success
        assert gateway.scraped('gateway_sent_messages_total{result="sent"}') == 1.0
        assert gateway.scraped('gateway_sent_messages_total{result="known"}') == 1.0


async def test_bytes_that_are_no_request_are_answered_as_such_in_both_forms(tmp_path: Path) -> None:
    async with running_gateway(tmp_path) as gateway, gateway.client() as client:
        newer = await client.ask(ProtocolId.LIGHTPUSH, LightPushRequest("id", TOPIC, None).encode() + b"\xff")
        older = await client.ask(ProtocolId.LIGHTPUSH_2, PushRpc("id").encode() + b"\xff")
        empty = await client.ask(ProtocolId.LIGHTPUSH_2, PushRpc("id").encode())
        assert (await ask(client, LightPushRequest("1", TOPIC, message(1)))).status_code == Status.OK

    assert newer == LightPushResponse("id", Status.BAD_REQUEST, Status.BAD_REQUEST.text).encode()
    assert older == empty == PushRpc("id", response=PushResponse(False, Status.BAD_REQUEST.text)).encode()
