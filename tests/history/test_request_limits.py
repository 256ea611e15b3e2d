"""mailserver.history.delivery: what the limits of a client do to its requests.

What the limits are is tested with `limits.request_quotas`.
"""

import asyncio
import logging
from dataclasses import replace

import pytest

from mailserver.errors import ConnectionLost
from mailserver.history import delivery as delivery_module
from mailserver.history import requests as requests_module
from mailserver.limits.admission import EMPTY_ALLOWLIST, Allowlist
from mailserver.limits.request_quotas import (
    ENVELOPE_BURST_MINUTES,
    MIN_PAGE_COST,
    REQUEST_BURST_MINUTES,
    RequestLimiter,
    RequestLimits,
)
from mailserver.mail.completion import Completion, Failure
from mailserver.mail.request import ClearRequest, RequestId, SealedRequest, decode_request
from mailserver.waku.envelope import decode_envelopes
from tests.history.answered import Client
from tests.history.desk import CLEAR_ID, SETTINGS, Desk, Time, clear_request, come_back_in, request_id, requester_of
from tests.mailservers import NO_REQUEST_LIMITS, deployed_fields, fill, make_envelope, make_envelopes, sealed_request
from tests.pairs import digest, private_key

SIX_A_MINUTE = RequestLimits(requests_per_minute=6)
BURST = 6 * REQUEST_BURST_MINUTES


async def test_client_over_its_requests_is_told_when_to_come_back_and_answered_then(desk: Desk, time: Time) -> None:
    await fill(desk.store, make_envelopes(2))
    requester = requester_of(SIX_A_MINUTE)
    for number in range(BURST):
        answered = await desk.answer(sealed_request(deployed_fields(), number=number).raw, requester)
        assert isinstance(answered, Completion)
    request = sealed_request(deployed_fields(), number=BURST)

    assert await desk.answer(request.raw, requester) == Failure(request_id(request), come_back_in(10))
    assert desk.packets == []
    time.now += 3.5
    assert await desk.answer(request.raw, requester) == Failure(request_id(request), come_back_in(7))
    time.now += 6.5

    assert isinstance(await desk.answer(request.raw, requester), Completion)
    assert len(desk.envelopes) == 2


@pytest.mark.usefixtures("time")
async def test_refusal_for_the_number_of_requests_is_logged_below_the_default_level(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, requests_module.__name__)
    requester = requester_of(SIX_A_MINUTE)

    for _ in range(BURST + 1):
        await desk.answer(clear_request(), requester)

    assert [record.levelno for record in caplog.records] == [logging.INFO] * BURST + [logging.DEBUG]
    assert f"peer={private_key('client').public_key.hex()[:8]} " in caplog.messages[-1]
    assert "10 s too early" in caplog.messages[-1]


@pytest.mark.usefixtures("time")
async def test_refused_request_in_the_clear_is_told_under_its_own_id(desk: Desk) -> None:
    requester = requester_of(SIX_A_MINUTE)
    for _ in range(BURST):
        await desk.answer(clear_request(), requester)

    assert await desk.answer(clear_request(), requester) == Failure(RequestId(CLEAR_ID), come_back_in(10))


@pytest.mark.usefixtures("time")
async def test_following_ones_own_cursors_is_no_new_request(desk: Desk) -> None:
    envelopes = make_envelopes(30)
    await fill(desk.store, envelopes)
    requester = requester_of(SIX_A_MINUTE)
    outcome = await desk.answer(sealed_request(deployed_fields(limit=1)).raw, requester)
    found = desk.envelopes
    for _ in range(BURST - 1):
        await desk.answer(sealed_request(deployed_fields(limit=1)).raw, requester)

    while isinstance(outcome, Completion) and outcome.cursor is not None:
        request = sealed_request(deployed_fields(limit=1, cursor=outcome.cursor))
        outcome = await desk.answer(request.raw, requester)
        found += desk.envelopes

    assert isinstance(outcome, Completion)
    assert found == envelopes
    fresh = sealed_request(deployed_fields())
    assert await desk.answer(fresh.raw, requester) == Failure(request_id(fresh), come_back_in(10))


@pytest.mark.usefixtures("time")
async def test_cursor_that_one_was_not_given_is_a_new_request(desk: Desk) -> None:
    envelopes = make_envelopes(5)
    await fill(desk.store, envelopes)
    limiter = RequestLimiter(SIX_A_MINUTE, NO_REQUEST_LIMITS, EMPTY_ALLOWLIST)
    mine_, others = (requester_of(SIX_A_MINUTE, name=name, limiter=limiter) for name in ("one", "another"))
    outcome = await desk.answer(sealed_request(deployed_fields(limit=2)).raw, others)
    assert isinstance(outcome, Completion)
    for _ in range(BURST):
        await desk.answer(sealed_request(deployed_fields()).raw, mine_)

    following = sealed_request(deployed_fields(cursor=outcome.cursor))

    assert await desk.answer(following.raw, mine_) == Failure(request_id(following), come_back_in(10))
    assert isinstance(await desk.answer(following.raw, others), Completion)
    assert desk.envelopes == envelopes[2:]


JUNK = {
    "undecryptable": sealed_request(deployed_fields(), key=digest("another password")).raw,
    "malformed inside": sealed_request(b"nonsense").raw,
    "neither topics nor bloom": clear_request(topics=[]),
    "no request at all": b"\xff",
}


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.usefixtures("time")
async def test_junk_counts_as_requests(desk: Desk, junk: str) -> None:
    requester = requester_of(SIX_A_MINUTE)

    outcomes = [await desk.answer(JUNK[junk], requester) for _ in range(BURST + 1)]
    honest = sealed_request(deployed_fields())

    messages = [outcome.message for outcome in outcomes if isinstance(outcome, Failure)]
    assert come_back_in(10) not in messages[:BURST]
    assert messages[BURST:] == [come_back_in(10)]
    assert await desk.answer(honest.raw, requester) == Failure(request_id(honest), come_back_in(10))


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The requests that were decoded."""
    payloads: list[bytes] = []

    def noting(payload: bytes) -> SealedRequest | ClearRequest:
        payloads.append(payload)
        return decode_request(payload)

    monkeypatch.setattr(delivery_module, "decode_request", noting)
    return payloads


@pytest.mark.usefixtures("time")
async def test_request_of_somebody_who_may_ask_nothing_now_is_not_decoded(desk: Desk, decoded: list[bytes]) -> None:
    requester = requester_of(SIX_A_MINUTE)
    for _ in range(BURST):
        await desk.answer(clear_request(), requester)
    decoded.clear()
    sealed = sealed_request(deployed_fields())

    assert await desk.answer(clear_request(), requester) == Failure(RequestId(CLEAR_ID), come_back_in(10))
    assert await desk.answer(sealed.raw, requester) == Failure(request_id(sealed), come_back_in(10))
    assert decoded == []


ONE_A_SECOND = RequestLimits(envelopes_per_minute=60)


async def test_what_the_store_has_to_do_counts_also_if_nothing_is_found(desk: Desk, time: Time) -> None:
    await fill(desk.store, [make_envelope(number, data_bytes=1) for number in range(2000)])
    requester = requester_of(RequestLimits(envelopes_per_minute=11))  # 110 at once, and a page costs 100 at least
    topics = [number.to_bytes(4, "big") for number in range(1, 1001)]

    request = sealed_request(deployed_fields(topics=topics)).raw  # 1,000 pairs, as much as 140 envelopes

    assert isinstance(await desk.answer(request, requester), Completion)
    assert isinstance(await desk.answer(request, requester), Failure)
    assert desk.envelopes == []


ENVELOPE_BURST = 60 * ENVELOPE_BURST_MINUTES


async def test_client_over_its_envelopes_is_told_when_to_come_back_also_with_its_own_cursor(
    desk: Desk, time: Time
) -> None:
    envelopes = make_envelopes(900)
    await fill(desk.store, envelopes)
    large = desk.with_settings(replace(SETTINGS, max_limit=400))
    requester = requester_of(ONE_A_SECOND)

    first = await large.answer(sealed_request(deployed_fields()).raw, requester)
    assert isinstance(first, Completion)
    second = await large.answer(sealed_request(deployed_fields(cursor=first.cursor)).raw, requester)
    assert isinstance(second, Completion)
    third = sealed_request(deployed_fields(cursor=second.cursor))

    owed = 800 - ENVELOPE_BURST
    assert await large.answer(third.raw, requester) == Failure(request_id(third), come_back_in(owed + 1))
    time.now += owed + 1
    assert isinstance(await large.answer(third.raw, requester), Completion)
    assert large.envelopes == envelopes[800:]


@pytest.mark.usefixtures("time")
async def test_pages_with_little_in_them_cost_something_too(desk: Desk) -> None:
    requester = requester_of(ONE_A_SECOND)

    for _ in range(ENVELOPE_BURST // MIN_PAGE_COST):
        assert isinstance(await desk.answer(sealed_request(deployed_fields()).raw, requester), Completion)
    request = sealed_request(deployed_fields())

    assert await desk.answer(request.raw, requester) == Failure(request_id(request), come_back_in(1))


@pytest.mark.usefixtures("time")
@pytest.mark.parametrize("had", [200, 600])
async def test_client_that_is_gone_before_the_end_pays_for_what_it_has_had(desk: Desk, had: int) -> None:
    await fill(desk.store, make_envelopes(600))
    large = desk.with_settings(replace(SETTINGS, max_limit=600))
    requester = requester_of(ONE_A_SECOND)
    deliver_first = requester.bill(asyncio.get_running_loop().time())
    deliver_first.charge_envelopes(ENVELOPE_BURST - had, asyncio.get_running_loop().time())

    class GoneThen(Client):
        async def wait_turn(self, size: int) -> None:
            await super().wait_turn(size)
            if sum(len(decode_envelopes(payload)) for _, payload in self.sent) >= had:
                raise ConnectionLost(None, "gone")

    with pytest.raises(ConnectionLost):
        await large.delivery.answer(sealed_request(deployed_fields()).raw, GoneThen(), requester)
    request = sealed_request(deployed_fields())

    assert isinstance(await large.answer(request.raw, requester), Failure)


@pytest.mark.usefixtures("time")
async def test_allowed_client_is_never_sent_away(desk: Desk) -> None:
    await fill(desk.store, make_envelopes(50))
    allowed = Allowlist(node_ids=frozenset({private_key("client").public_key}))
    requester = requester_of(replace(SIX_A_MINUTE, envelopes_per_minute=1), allowed=allowed)

    for _ in range(2 * BURST):
        assert isinstance(await desk.answer(sealed_request(deployed_fields()).raw, requester), Completion)
