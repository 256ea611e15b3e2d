"""mailserver.peers.completions: every request that was sent ends once, and whoever follows is told."""

import asyncio

import pytest

from mailserver.errors import DecodeError
from mailserver.mail.completion import Completion, Failure
from mailserver.mail.request import Cursor, RequestId
from mailserver.peers.completions import (
    ANSWER_TIMEOUT_S,
    MAX_ANSWER_S,
    MAX_FAILURE_CHARS,
    MAX_PENDING,
    MAX_QUEUED,
    MAX_TIMEOUT_S,
    Asker,
    Completions,
    OutcomeQueue,
    RequestEnded,
    TooManyRequests,
)
from mailserver.waku.envelope import EnvelopeHash
from tests.pairs import digest
from tests.simulated_time import in_simulated_time, pass_time
from tests.waiting import turns

OURS, OTHER = 1, 2
ASKER = Asker()
FIRST, SECOND = RequestId(digest("first")), RequestId(digest("second"))
LAST = EnvelopeHash(digest("last"))


async def told(subscription: OutcomeQueue) -> list[RequestEnded]:
    """All that the subscription is told now."""
    found: list[RequestEnded] = []

    async def read() -> None:
        while True:
            found.append(await subscription.next())

    reading = asyncio.create_task(read())
    await turns()
    reading.cancel()
    return found


async def outcomes(subscription: OutcomeQueue) -> list[Completion | Failure]:
    return [ended.outcome for ended in await told(subscription)]


@in_simulated_time
async def test_completion_of_a_request_is_told_to_all_subscribers_once() -> None:
    completions = Completions()
    subscriptions = [completions.subscribe() for _ in range(2)]
    completion = Completion(FIRST, LAST, Cursor(5, LAST))
    completions.expect(OURS, FIRST, ASKER)

    for _ in range(2):
        completions.on_completion(OURS, completion.encode())
    await pass_time(2 * ANSWER_TIMEOUT_S)

    for subscription in subscriptions:
        assert await told(subscription) == [RequestEnded(completion, ASKER)]
    assert len(completions) == 0


@in_simulated_time
async def test_failure_is_told_with_the_mailservers_words_but_not_with_all_of_a_novel() -> None:
    completions = Completions()
    subscription = completions.subscribe()
    for request_id, message in ((FIRST, "come back in 10 s"), (SECOND, "x" * 100_000)):
        completions.expect(OURS, request_id, ASKER)
        completions.on_completion(OURS, Failure(request_id, message).encode())

    assert await outcomes(subscription) == [
        Failure(FIRST, "come back in 10 s"),
        Failure(SECOND, "x" * MAX_FAILURE_CHARS),
    ]


@in_simulated_time
async def test_only_the_completion_of_what_was_asked_of_this_peer_counts() -> None:
    completions = Completions()
    subscription = completions.subscribe()
    completions.expect(OURS, FIRST, ASKER)
    completions.expect(OTHER, SECOND, ASKER)

    completions.on_completion(OTHER, Completion(FIRST).encode())
    completions.on_completion(OURS, Completion(SECOND).encode())
    completions.on_completion(OURS, Completion(RequestId(digest("nobody's"))).encode())

    assert await outcomes(subscription) == []
    assert len(completions) == 2


@in_simulated_time
async def test_what_is_no_completion_is_an_error_where_one_is_awaited_and_else_not_looked_at() -> None:
    completions = Completions()

    completions.on_completion(OURS, b"\x80")
    completions.expect(OURS, FIRST, ASKER)
    with pytest.raises(DecodeError):
        completions.on_completion(OURS, b"\x80")


@in_simulated_time
async def test_silent_mailserver_is_given_up_on_after_the_time_that_was_given() -> None:
    completions = Completions()
    subscription = completions.subscribe()
    completions.expect(OURS, FIRST, ASKER)
    completions.expect(OTHER, SECOND, ASKER, 5.0)

    await pass_time(4.9)
    assert await outcomes(subscription) == []
    await pass_time(0.2)
    assert await outcomes(subscription) == [Failure(SECOND, "no answer within 5 s")]
    await pass_time(ANSWER_TIMEOUT_S)

    assert await outcomes(subscription) == [Failure(FIRST, f"no answer within {ANSWER_TIMEOUT_S:g} s")]
    assert len(completions) == 0


@in_simulated_time
async def test_answer_that_goes_on_is_waited_for_but_not_for_ever() -> None:
    completions = Completions()
    subscription = completions.subscribe()
    completions.expect(OURS, FIRST, ASKER, 10.0)

    for _ in range(round(MAX_ANSWER_S / 9) - 1):
        await pass_time(9.0)
        completions.on_messages(OURS)
    assert await outcomes(subscription) == []
    for _ in range(2):
        await pass_time(9.0)
        completions.on_messages(OURS)

    assert await outcomes(subscription) == [Failure(FIRST, f"no completion within {MAX_ANSWER_S:g} s")]


@in_simulated_time
async def test_no_user_waits_longer_than_the_maximum() -> None:
    completions = Completions()
    subscription = completions.subscribe()
    completions.expect(OURS, FIRST, ASKER, 1e300)

    await pass_time(MAX_TIMEOUT_S + 1)

    assert await outcomes(subscription) == [Failure(FIRST, f"no answer within {MAX_TIMEOUT_S:g} s")]


@in_simulated_time
async def test_connection_that_ends_ends_what_was_asked_there() -> None:
    completions = Completions()
    subscription = completions.subscribe()
    for connection, request_id in ((OURS, FIRST), (OTHER, SECOND)):
        completions.expect(connection, request_id, ASKER)

    completions.end_all(OURS, "the mailserver has disconnected")

    assert await outcomes(subscription) == [Failure(FIRST, "the mailserver has disconnected")]
    assert len(completions) == 1


@in_simulated_time
async def test_of_a_request_that_was_not_sent_nothing_is_told() -> None:
    completions = Completions()
    subscription = completions.subscribe()
    completions.expect(OURS, FIRST, ASKER)

    completions.forget(OURS, FIRST)
    completions.forget(OURS, FIRST)
    await pass_time(2 * ANSWER_TIMEOUT_S)

    assert await outcomes(subscription) == []


@in_simulated_time
async def test_ended_subscription_is_told_nothing() -> None:
    completions = Completions()
    subscription = completions.subscribe()
    completions.expect(OURS, FIRST, ASKER)

    completions.unsubscribe(subscription)
    completions.end_all(OURS, "gone")

    assert await outcomes(subscription) == []


@in_simulated_time
async def test_subscriber_that_does_not_read_loses_the_oldest_and_others_nothing() -> None:
    completions = Completions()
    slow, fast = completions.subscribe(), completions.subscribe()
    ids = [RequestId(number.to_bytes(32, "big")) for number in range(MAX_QUEUED + 3)]
    heard = []

    for request_id in ids:
        completions.expect(OURS, request_id, ASKER)
        completions.on_completion(OURS, Completion(request_id).encode())
        heard.append((await fast.next()).outcome.request_id)

    assert heard == ids
    assert [outcome.request_id for outcome in await outcomes(slow)] == ids[3:]


@in_simulated_time
async def test_as_many_requests_as_there_may_be() -> None:
    completions = Completions()
    for number in range(MAX_PENDING):
        completions.expect(number, FIRST, ASKER)

    with pytest.raises(TooManyRequests, match="1000 history requests"):
        completions.expect(OURS, SECOND, ASKER)
    completions.end_all(OURS, "gone")
    completions.expect(OURS, SECOND, ASKER)

    assert len(completions) == MAX_PENDING
