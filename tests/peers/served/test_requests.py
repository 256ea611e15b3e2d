"""mailserver.peers.request_queue: the history requests of one peer, over whole connections."""

import asyncio
import logging
import random
from pathlib import Path

import pytest

from mailserver.codec.keccak import keccak256
from mailserver.codec.keys import PrivateKey
from mailserver.errors import Rejection
from mailserver.history.delivery import MAX_REQUEST_BYTES, DeliverySettings
from mailserver.limits.intake_bounds import MAX_UNREAD_BYTES, IntakeBounds
from mailserver.limits.request_quotas import RequestLimits
from mailserver.mail.completion import Completion, CompletionFormat, Failure
from mailserver.mail.request import RequestId
from mailserver.net import link as link_module
from mailserver.peers.request_queue import CONCURRENCY_RETRY_S, MAX_WAITING_REQUESTS
from mailserver.waku.packets import PacketCode
from tests.mailservers import (
    NEWS,
    PASSWORD_KEY,
    SPORT,
    Mailserver,
    deployed_fields,
    fill,
    make_envelopes,
    make_large_envelopes,
    running_mailserver,
    sealed_request,
)
from tests.peers.served.serving import NOTHING_WANTED, ask, hear_answer
from tests.waiting import DEADLINE_S, until


async def test_requests_of_one_peer_are_answered_in_order_one_after_another(mailserver: Mailserver) -> None:
    news, sport = make_envelopes(200, data_bytes=3000), make_envelopes(2, first=300, topic=SPORT)
    await fill(mailserver.store, news + sport)
    raw = await mailserver.dial()
    requests = [
        sealed_request(deployed_fields(topics=[topic]), number=n) for n, topic in enumerate([NEWS, SPORT, NEWS])
    ]

    raw.write(*(raw.packet(PacketCode.P2P_REQUEST, request.raw) for request in requests))
    answers = [await hear_answer(raw) for _ in requests]

    assert [envelopes for envelopes, _ in answers] == [news, sport, news]
    assert [bytes(outcome.request_id) for _, outcome in answers] == [bytes(request.hash()) for request in requests]


async def test_client_that_does_not_read_its_answer_delays_no_other(mailserver: Mailserver) -> None:
    await fill(mailserver.store, make_large_envelopes(20, 100_000))
    stuck = [await mailserver.dial() for _ in range(8)]
    for raw in stuck:
        raw.say(PacketCode.P2P_REQUEST, sealed_request(deployed_fields()).raw)

    reader = await mailserver.dial()
    envelopes, outcome = await ask(reader, sealed_request(deployed_fields()).raw)

    assert len(envelopes) == 20
    assert isinstance(outcome, Completion)
    for raw in stuck:
        assert len((await hear_answer(raw))[0]) == 20


async def test_while_others_do_not_read_long_envelopes_only_such_are_refused(mailserver: Mailserver) -> None:
    await fill(mailserver.store, [*make_envelopes(10), *make_envelopes(1, topic=SPORT, data_bytes=100_000)])
    unread = mailserver.services.bounds.unread
    assert unread.try_acquire(MAX_UNREAD_BYTES, is_first=False)
    raw = await mailserver.dial()

    assert len((await ask(raw, sealed_request(deployed_fields(topics=[NEWS])).raw))[0]) == 10
    envelopes, outcome = await ask(raw, sealed_request(deployed_fields(topics=[SPORT])).raw)
    assert envelopes == []
    assert isinstance(outcome, Failure)
    assert "come back in 20 s" in outcome.message

    unread.release(MAX_UNREAD_BYTES)
    assert len((await ask(raw, sealed_request(deployed_fields(topics=[SPORT])).raw))[0]) == 1
    await until(lambda: unread.used_bytes == 0)


@pytest.mark.parametrize("together", [1, 3])
async def test_memory_of_long_packets_is_given_back_however_their_peer_ends(
    mailserver: Mailserver, together: int
) -> None:
    await fill(mailserver.store, make_large_envelopes(20, 1_000_000))
    unread = mailserver.services.bounds.unread
    stuck = [await mailserver.dial() for _ in range(together)]
    for raw in stuck:
        raw.say(PacketCode.P2P_REQUEST, sealed_request(deployed_fields()).raw)
    await until(lambda: unread.used_bytes >= together * 1_000_000)

    for raw in stuck:
        await raw.close()

    await until(lambda: unread.used_bytes == 0)


@pytest.mark.parametrize("requests", [5, MAX_WAITING_REQUESTS + 5])
async def test_client_that_stops_reading_is_dropped_after_the_write_timeout(
    mailserver: Mailserver, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "WRITE_TIMEOUT_S", 0.2)
    await fill(mailserver.store, make_large_envelopes(20, 100_000))
    raw, other = await mailserver.dial(), await mailserver.dial()

    raw.write(*(raw.packet(PacketCode.P2P_REQUEST, sealed_request(deployed_fields()).raw) for _ in range(requests)))
    await asyncio.wait_for(mailserver.tasks[0], DEADLINE_S)

    closed = mailserver.connections[0].closed
    assert closed is not None
    assert "read nothing" in closed.cause
    assert len((await ask(other, sealed_request(deployed_fields()).raw))[0]) == 20


async def test_requests_above_the_limit_are_refused_and_the_rest_answered(mailserver: Mailserver) -> None:
    await fill(mailserver.store, make_large_envelopes(10, 100_000))
    raw = await mailserver.dial()
    count = 2 * MAX_WAITING_REQUESTS
    requests = [sealed_request(deployed_fields(), number=number) for number in range(count)]

    raw.write(*(raw.packet(PacketCode.P2P_REQUEST, request.raw) for request in requests))
    outcomes: dict[bytes, Completion | Failure] = {}
    while len(outcomes) < count:
        _, outcome = await hear_answer(raw)
        assert outcome.request_id not in outcomes
        outcomes[outcome.request_id] = outcome

    answered = [request for request in requests if isinstance(outcomes[request.hash()], Completion)]
    failures = {outcome.message for outcome in outcomes.values() if isinstance(outcome, Failure)}
    assert answered == requests[: len(answered)]
    assert MAX_WAITING_REQUESTS <= len(answered) <= MAX_WAITING_REQUESTS + 1
    assert failures == {Rejection.TOO_MANY_WAITING.value + f": come back in {CONCURRENCY_RETRY_S} s"}
    assert isinstance((await ask(raw, sealed_request(deployed_fields()).raw))[1], Completion)


async def test_as_many_requests_as_a_deployed_client_sends_at_once_are_answered(mailserver: Mailserver) -> None:
    raw = await mailserver.dial()

    raw.write(*(raw.packet(PacketCode.P2P_REQUEST, sealed_request(deployed_fields()).raw) for _ in range(3)))

    for _ in range(3):
        assert isinstance((await hear_answer(raw))[1], Completion)


async def test_waiting_requests_of_all_peers_are_bounded_and_a_first_request_is_taken(tmp_path: Path) -> None:
    request = sealed_request(deployed_fields()).raw
    async with running_mailserver(tmp_path, bounds=IntakeBounds(max_request_bytes=3 * len(request))) as mailserver:
        await fill(mailserver.store, make_large_envelopes(100, 60_000))
        greedy = [await mailserver.dial(status=NOTHING_WANTED) for _ in range(2)]  # neither reads its answer
        for raw in greedy:
            for _ in range(6):
                raw.say(PacketCode.P2P_REQUEST, request)
        memory = mailserver.services.bounds.requests
        await until(lambda: any(peer.requests_waiting for peer in mailserver.peers))

        honest = await mailserver.dial()
        envelopes, completion = await ask(honest, request)
        assert isinstance(completion, Completion)
        assert len(envelopes) == 100
        assert sum(peer.requests_waiting for peer in mailserver.peers) <= 4  # of 12

        for raw in greedy:
            await raw.close()
        await until(lambda: memory.used_bytes == 0)


async def test_request_that_is_far_too_long_is_refused_unread(mailserver: Mailserver) -> None:
    raw = await mailserver.dial()
    payload = random.randbytes(MAX_REQUEST_BYTES + 1)

    envelopes, outcome = await ask(raw, payload)

    assert (envelopes, outcome) == ([], Failure(keccak256(payload), Rejection.MALFORMED.value))  # type: ignore[arg-type]


async def test_failed_requests_leave_the_connection_usable(mailserver: Mailserver) -> None:
    await fill(mailserver.store, make_envelopes(2))
    raw = await mailserver.dial()

    for payload in (b"", b"\xff", sealed_request(b"nonsense").raw, sealed_request(deployed_fields(topics=[])).raw):
        assert isinstance((await ask(raw, payload))[1], Failure)

    assert len((await ask(raw, sealed_request(deployed_fields()).raw))[0]) == 2


async def test_list_form_of_the_completion_is_sent_where_that_is_set(tmp_path: Path) -> None:
    key = PrivateKey(bytes(31) + b"\x01")
    settings = DeliverySettings(PASSWORD_KEY, key, completion_format=CompletionFormat.LIST)
    async with running_mailserver(tmp_path, settings=settings, key=key) as mailserver:
        raw = await mailserver.dial()

        raw.say(PacketCode.P2P_REQUEST, sealed_request(deployed_fields()).raw)
        _, completion = await raw.hear_answer()

        assert completion[:1] == b"\xf8"


async def test_client_that_leaves_in_the_middle_of_its_answer_is_forgotten(mailserver: Mailserver) -> None:
    await fill(mailserver.store, make_large_envelopes(20, 100_000))
    raw = await mailserver.dial()
    for _ in range(5):
        raw.say(PacketCode.P2P_REQUEST, sealed_request(deployed_fields()).raw)
    await raw.hear_packet()

    await raw.close()

    await asyncio.wait_for(mailserver.tasks[0], DEADLINE_S)


# Limits of requests


async def test_requests_under_way_are_bounded_and_one_more_is_told_to_come_back(tmp_path: Path) -> None:
    async with running_mailserver(tmp_path, requests=RequestLimits(concurrent=3)) as mailserver:
        await fill(mailserver.store, make_large_envelopes(20, 100_000))
        raw = await mailserver.dial()
        requests = [sealed_request(deployed_fields(), number=number) for number in range(5)]

        raw.write(*(raw.packet(PacketCode.P2P_REQUEST, request.raw) for request in requests))
        outcomes = {outcome.request_id: outcome for _, outcome in [await hear_answer(raw) for _ in requests]}

        message = Rejection.TOO_MANY_WAITING.value + f": come back in {CONCURRENCY_RETRY_S} s"
        kinds = [outcomes[RequestId(request.hash())] for request in requests]
        assert all(isinstance(outcome, Completion) for outcome in kinds[:3])
        assert [outcome.message for outcome in kinds[3:] if isinstance(outcome, Failure)] == [message] * 2
        for _ in range(5):  # who is done has room again
            assert isinstance((await ask(raw, sealed_request(deployed_fields(limit=1)).raw))[1], Completion)


async def test_requests_of_a_client_that_is_gone_are_under_way_no_longer(tmp_path: Path) -> None:
    async with running_mailserver(tmp_path, requests=RequestLimits(concurrent=3)) as mailserver:
        await fill(mailserver.store, make_large_envelopes(20, 100_000))
        for number in range(3):
            raw = await mailserver.dial(name="the same client")
            raw.write(*(raw.packet(PacketCode.P2P_REQUEST, sealed_request(deployed_fields()).raw) for _ in range(3)))
            await raw.hear_packet()
            await raw.close()
            await asyncio.wait_for(mailserver.tasks[number], DEADLINE_S)

        raw = await mailserver.dial(name="the same client")
        raw.write(*(raw.packet(PacketCode.P2P_REQUEST, sealed_request(deployed_fields()).raw) for _ in range(3)))

        assert all([isinstance((await hear_answer(raw))[1], Completion) for _ in range(3)])


async def test_limits_of_requests_hold_across_connections(tmp_path: Path) -> None:
    async with running_mailserver(tmp_path, requests=RequestLimits(requests_per_minute=1)) as mailserver:
        outcomes = []
        for number in range(6):
            raw = await mailserver.dial(name="the same client")
            outcomes.append((await ask(raw, sealed_request(deployed_fields()).raw))[1])
            await raw.close()
            await asyncio.wait_for(mailserver.tasks[number], DEADLINE_S)

        assert [type(outcome) for outcome in outcomes] == [Completion] * 5 + [Failure]
        another = await mailserver.dial()
        assert isinstance((await ask(another, sealed_request(deployed_fields()).raw))[1], Completion)


async def test_requests_that_wait_for_their_turn_are_told(mailserver: Mailserver) -> None:
    await fill(mailserver.store, make_large_envelopes(20, 100_000))
    raw = await mailserver.dial()
    peer = mailserver.peers[0]
    assert peer.requests_waiting == 0

    raw.write(*(raw.packet(PacketCode.P2P_REQUEST, sealed_request(deployed_fields()).raw) for _ in range(3)))
    await until(lambda: peer.requests_waiting == 2)  # the first answer is not read
    for _ in range(3):
        await hear_answer(raw)

    assert peer.requests_waiting == 0


async def test_requests_that_are_too_long_to_be_looked_at_do_not_fill_the_log(
    mailserver: Mailserver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "mailserver.history.requests")
    raw = await mailserver.dial()

    for _ in range(3):
        raw.say(PacketCode.P2P_REQUEST, bytes(MAX_REQUEST_BYTES + 1))
    heard = await raw.hear_packets(3)

    assert [packet.code for packet in heard] == [PacketCode.P2P_REQUEST_COMPLETE] * 3
    assert [record.levelno for record in caplog.records] == [logging.DEBUG] * 3
