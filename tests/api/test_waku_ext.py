"""mailserver.api.waku_ext: what a mailserver is sent, and what becomes of its answer."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mailserver.api import work
from mailserver.api.caller import Call, Caller
from mailserver.api.dialects import Dialect
from mailserver.api.errors import ErrorCode
from mailserver.api.params import Json
from mailserver.errors import DisconnectReason, Rejection
from mailserver.mail.completion import NO_ENVELOPE, Completion, CompletionFormat, Failure
from mailserver.mail.request import Cursor, MailRequest, RequestId, SealedRequest, decode_fields, decode_request
from mailserver.waku.bloom import Interest
from mailserver.waku.envelope import Envelope, EnvelopeHash, encode_envelope, encode_envelopes
from mailserver.waku.packets import PacketCode, StatusOptions
from mailserver.waku.payload import MAX_PADDING_BYTES, open_symmetric, seal_symmetric
from tests.api.nodes import CallFailed, RunningNode, running_node
from tests.mailservers import NEWS, NOW, PASSWORD_KEY, SPORT
from tests.pairs import private_key
from tests.raw_peer import RawPeer
from tests.waiting import turns, until

pytestmark = pytest.mark.integration

MAILSERVER = "a mailserver"
ENODE = f"enode://{private_key(MAILSERVER).public_key.hex()}@127.0.0.1:30303"
TOPIC = f"0x{NEWS.hex()}"
DAY = 24 * 3600
CURSOR = Cursor(NOW - 5, EnvelopeHash(bytes(range(32))))


async def trusted(running: RunningNode, *, pow_requirement: float = 0.0) -> RawPeer:
    """A mailserver that is connected and trusted."""
    await running.call("waku_markTrustedPeer", ENODE)
    return await running.dial(MAILSERVER, status=StatusOptions(pow_requirement=pow_requirement))


async def ask(running: RunningNode, **members: Json) -> Any:
    """Ask with what must be there, and what is given."""
    key_id = await running.call("waku_addSymKey", f"0x{PASSWORD_KEY.hex()}")
    request: dict[str, Json] = {"mailServerPeer": ENODE, "topics": [TOPIC], "symKeyID": key_id, **members}
    return await running.call("wakuext_requestMessages", request)


async def heard(mailserver: RawPeer) -> tuple[Envelope, MailRequest]:
    """The request that comes next: its envelope, and what is in it."""
    packet = await mailserver.hear_packet()
    assert packet.code == PacketCode.P2P_REQUEST
    sealed = decode_request(packet.payload)
    assert isinstance(sealed, SealedRequest)
    opened = open_symmetric(sealed.envelope.data, PASSWORD_KEY)
    assert opened.signer is not None  # deployed mailservers expect one
    return sealed.envelope, decode_fields(sealed.request_id, opened.payload)


async def test_request_for_the_last_day_is_sent(running: RunningNode) -> None:
    mailserver = await trusted(running, pow_requirement=0.01)

    request_id = await ask(running)

    envelope, request = await heard(mailserver)
    assert request_id == f"0x{envelope.hash().hex()}"
    assert (envelope.created, envelope.ttl) == (NOW, 50)
    assert envelope.pow() >= 0.01
    assert (request.lower, request.upper, request.limit, request.cursor) == (NOW - DAY, NOW, 0, None)
    assert request.interest == Interest(topics=frozenset({NEWS}))
    assert not request.one_per_packet


@pytest.mark.parametrize("cursor", [CURSOR.encode().hex(), f"0x{CURSOR.encode().hex()}"])
async def test_request_names_all_that_it_may(running: RunningNode, cursor: str) -> None:
    mailserver = await trusted(running)
    members: dict[str, Json] = {"from": NOW - 1000, "to": NOW - 10, "limit": 7, "cursor": cursor}

    await ask(running, **members, topics=[TOPIC, f"0x{SPORT.hex()}"], timeout=30, force=True)

    _, request = await heard(mailserver)
    assert (request.lower, request.upper, request.limit) == (NOW - 1000, NOW - 10, 7)
    assert request.cursor == CURSOR
    assert request.interest == Interest(topics=frozenset({NEWS, SPORT}))


@pytest.mark.parametrize("topics", [None, []])
async def test_one_topic_as_older_clients_name_it(running: RunningNode, topics: Json) -> None:
    mailserver = await trusted(running)

    await ask(running, topics=topics, topic=TOPIC)

    _, request = await heard(mailserver)
    assert request.interest == Interest(topics=frozenset({NEWS}))


async def test_topics_go_before_the_one_topic_that_older_clients_send_empty(running: RunningNode) -> None:
    mailserver = await trusted(running)

    await ask(running, topic="0x00000000", cursor="", **{"from": 0, "to": 0})

    _, request = await heard(mailserver)
    assert request.interest == Interest(topics=frozenset({NEWS}))
    assert (request.lower, request.upper, request.cursor) == (NOW - DAY, NOW, None)


async def test_lower_bound_goes_back_a_day_from_the_upper_but_not_before_1970(running: RunningNode) -> None:
    mailserver = await trusted(running)

    await ask(running, to=2 * DAY)
    await ask(running, to=100)

    requests = [(await heard(mailserver))[1] for _ in range(2)]
    assert [(request.lower, request.upper) for request in requests] == [(DAY, 2 * DAY), (0, 100)]


# How it ended


class Subscriber:
    """A caller who is notified of completions; `heard` is what of, by the ids of the requests."""

    def __init__(self) -> None:
        self.caller = Caller(self._send)
        self.heard: dict[str, dict[str, str]] = {}
        self.subscription = ""

    async def _send(self, text: str) -> None:
        notification = json.loads(text)
        assert notification["method"] == "wakuext_subscription"
        assert notification["params"]["subscription"] == self.subscription
        result = notification["params"]["result"]
        assert result["requestID"] not in self.heard
        self.heard[result["requestID"]] = result

    async def ended(self, request_id: str) -> dict[str, str]:
        """What the subscriber is told of a request, when it is."""
        await until(lambda: request_id in self.heard)
        return self.heard[request_id]


@contextlib.asynccontextmanager
async def subscribed(running: RunningNode) -> AsyncIterator[Subscriber]:
    subscriber = Subscriber()
    subscriber.subscription = await running.call("wakuext_subscribe", "completions", caller=subscriber.caller)
    try:
        yield subscriber
    finally:
        await subscriber.caller.end()


@pytest.fixture
async def subscriber(running: RunningNode) -> AsyncIterator[Subscriber]:
    async with subscribed(running) as subscriber:
        yield subscriber


def told(request_id: str, *, last: EnvelopeHash = NO_ENVELOPE, cursor: str = "", error: str = "") -> dict[str, str]:
    return {
        "requestID": request_id,
        "lastEnvelopeHash": f"0x{last.hex()}",
        "cursor": cursor,
        "errorMessage": error,
    }


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("form", CompletionFormat)
async def test_completion_is_a_notification_under_the_id_that_the_call_returned(
    tmp_path: Path, dialect: Dialect, form: CompletionFormat
) -> None:
    async with running_node(tmp_path, dialect=dialect) as running, subscribed(running) as subscriber:
        mailserver = await trusted(running)
        request_id = await ask(running)
        envelope, request = await heard(mailserver)
        assert request_id == f"0x{envelope.hash().hex()}"

        completion = Completion(request.request_id, CURSOR.hash, CURSOR)
        mailserver.say(PacketCode.P2P_REQUEST_COMPLETE, completion.encode(form))

        expected = told(request_id, last=CURSOR.hash, cursor=CURSOR.encode().hex())
        assert await subscriber.ended(request_id) == expected


async def test_cursor_that_is_told_can_be_asked_with(running: RunningNode, subscriber: Subscriber) -> None:
    mailserver = await trusted(running)
    first = await ask(running)
    _, request = await heard(mailserver)
    mailserver.say(PacketCode.P2P_REQUEST_COMPLETE, Completion(request.request_id, CURSOR.hash, CURSOR).encode())

    second = await ask(running, cursor=(await subscriber.ended(first))["cursor"])
    _, following = await heard(mailserver)
    mailserver.say(PacketCode.P2P_REQUEST_COMPLETE, Completion(following.request_id).encode())

    assert following.cursor == CURSOR
    assert await subscriber.ended(second) == told(second)


async def test_refusal_is_told_in_the_mailservers_words(running: RunningNode, subscriber: Subscriber) -> None:
    mailserver = await trusted(running)
    request_id = await ask(running)
    _, request = await heard(mailserver)

    mailserver.say(PacketCode.P2P_REQUEST_COMPLETE, Failure(request.request_id, "come back in 10 s").encode())

    assert await subscriber.ended(request_id) == told(request_id, error="come back in 10 s")


@pytest.mark.parametrize(("announced", "least"), [(0.0, 0.02), (0.02, 0.0)])
async def test_request_has_the_work_of_the_setting_or_more_where_more_is_announced(
    announced: float, least: float, tmp_path: Path
) -> None:
    async with running_node(tmp_path, request_pow=least) as running:
        mailserver = await trusted(running, pow_requirement=announced)

        await ask(running)

        assert (await heard(mailserver))[0].pow() >= 0.02


async def test_refusal_for_too_little_work_names_the_setting(running: RunningNode, subscriber: Subscriber) -> None:
    mailserver = await trusted(running)
    request_id = await ask(running)
    _, request = await heard(mailserver)

    message = Rejection.POW_TOO_LOW.value
    mailserver.say(PacketCode.P2P_REQUEST_COMPLETE, Failure(request.request_id, message).encode())

    error = f"{message}; raise the setting request_pow of this node"
    assert await subscriber.ended(request_id) == told(request_id, error=error)


async def test_completion_by_another_peer_or_of_another_request_is_not_told(
    running: RunningNode, subscriber: Subscriber
) -> None:
    mailserver, stranger = await trusted(running), await running.dial("a stranger")
    request_id = await ask(running)
    _, request = await heard(mailserver)

    stranger.say(PacketCode.P2P_REQUEST_COMPLETE, Failure(request.request_id, "a lie").encode())
    stranger.say(PacketCode.MESSAGES, encode_envelopes([]))
    await stranger.hear_confirmation()  # so what was said before has been heard
    mailserver.say(PacketCode.P2P_REQUEST_COMPLETE, Failure(RequestId(bytes(32)), "nobody's").encode())
    mailserver.say(PacketCode.P2P_REQUEST_COMPLETE, Completion(request.request_id).encode())

    assert await subscriber.ended(request_id) == told(request_id)
    assert len(subscriber.heard) == 1


async def test_mailserver_that_goes_away_ends_what_it_was_asked(running: RunningNode, subscriber: Subscriber) -> None:
    mailserver = await trusted(running)
    request_id = await ask(running)
    await heard(mailserver)

    await mailserver.close()

    assert await subscriber.ended(request_id) == told(request_id, error="the mailserver has disconnected")


async def test_mailserver_that_is_not_trusted_any_more_ends_what_it_was_asked(
    running: RunningNode, subscriber: Subscriber
) -> None:
    mailserver = await trusted(running)
    request_id = await ask(running)
    await heard(mailserver)

    assert await running.call("admin_removeTrustedPeer", ENODE) is True

    error = "the mailserver is no longer trusted"
    assert await subscriber.ended(request_id) == told(request_id, error=error)
    with pytest.raises(CallFailed) as failed:
        await ask(running)
    assert failed.value.code == ErrorCode.PEER_UNAVAILABLE


async def test_mailserver_that_never_answers_is_given_up_on_in_the_time_given(
    running: RunningNode, subscriber: Subscriber
) -> None:
    mailserver = await trusted(running)
    request_id = await ask(running, timeout=0.05)
    await heard(mailserver)

    assert await subscriber.ended(request_id) == told(request_id, error="no answer within 0.05 s")


async def test_completion_that_does_not_decode_ends_the_connection(
    running: RunningNode, subscriber: Subscriber
) -> None:
    mailserver = await trusted(running)
    request_id = await ask(running)
    await heard(mailserver)

    mailserver.say(PacketCode.P2P_REQUEST_COMPLETE, b"\x80")

    assert await subscriber.ended(request_id) == told(request_id, error="the mailserver has disconnected")
    assert await mailserver.hear_hangup() is DisconnectReason.SUBPROTOCOL_ERROR


async def test_end_of_a_request_is_not_told_before_the_answer_that_names_it(
    running: RunningNode, subscriber: Subscriber
) -> None:
    mailserver = await trusted(running)
    key_id = await running.call("waku_addSymKey", f"0x{PASSWORD_KEY.hex()}")
    params = [{"mailServerPeer": ENODE, "topics": [TOPIC], "symKeyID": key_id}]
    text = json.dumps({"jsonrpc": "2.0", "method": "wakuext_requestMessages", "params": params, "id": 1})

    call = Call(subscriber.caller)
    answer = await running.dispatcher.answer(text, call)  # and the transport is slow to send it
    assert answer is not None
    _, request = await heard(mailserver)
    mailserver.say(PacketCode.P2P_REQUEST_COMPLETE, Completion(request.request_id).encode())
    await until(lambda: len(running.node.completions) == 0)
    await turns()
    before = dict(subscriber.heard)
    call.answered.set()

    assert before == {}
    request_id = json.loads(answer)["result"]
    assert await subscriber.ended(request_id) == told(request_id)


async def test_subscription_ends_when_it_is_cancelled(running: RunningNode, subscriber: Subscriber) -> None:
    async with subscribed(running) as other:
        mailserver = await trusted(running)

        cancelled = [
            await running.call("wakuext_unsubscribe", subscriber.subscription, caller=subscriber.caller)
            for _ in range(2)
        ]
        request_id = await ask(running)
        _, request = await heard(mailserver)
        mailserver.say(PacketCode.P2P_REQUEST_COMPLETE, Completion(request.request_id).encode())

        assert cancelled == [True, False]
        assert await other.ended(request_id) == told(request_id)
        assert subscriber.heard == {}


async def test_subscription_needs_a_connection_that_stays(running: RunningNode) -> None:
    with pytest.raises(CallFailed) as failed:
        await running.call("wakuext_subscribe", "completions")

    assert failed.value.code == ErrorCode.NO_NOTIFICATIONS


# What comes


async def test_answer_passes_through_filters_that_allow_it(running: RunningNode) -> None:
    key_id = await running.call("waku_addSymKey", f"0x{'07' * 32}")
    allowing, other = [
        await running.call("waku_newMessageFilter", {"symKeyID": key_id, "topics": [TOPIC], "allowP2P": allow_p2p})
        for allow_p2p in (True, False)
    ]
    mailserver = await trusted(running)
    await ask(running)
    await heard(mailserver)

    data = seal_symmetric(b"old news", bytes([7]) * 32, nonce=bytes(12), padding=bytes(MAX_PADDING_BYTES))
    historic = encode_envelope(NOW - 3600, 50, NEWS, data, 0)
    mailserver.say(PacketCode.P2P_MESSAGE, encode_envelopes([historic.raw]))
    await until(lambda: running.filters.queued_bytes > 0)

    (message,) = await running.call("waku_getFilterMessages", allowing)
    assert message["payload"] == f"0x{b'old news'.hex()}"
    assert await running.call("waku_getFilterMessages", other) == []


async def test_mailserver_must_be_connected(running: RunningNode) -> None:
    with pytest.raises(CallFailed) as failed:
        await ask(running)

    assert failed.value.code == ErrorCode.PEER_UNAVAILABLE
    assert failed.value.message == "the mailserver is not connected"


async def test_mailserver_must_be_trusted(running: RunningNode) -> None:
    await running.dial(MAILSERVER)

    with pytest.raises(CallFailed) as failed:
        await ask(running)

    assert failed.value.code == ErrorCode.PEER_UNAVAILABLE
    assert failed.value.message == "the mailserver is not trusted: call waku_markTrustedPeer"


async def test_unknown_key(running: RunningNode) -> None:
    await trusted(running)

    with pytest.raises(CallFailed) as failed:
        await ask(running, symKeyID="00" * 32)

    assert failed.value.code == ErrorCode.NOT_FOUND


async def test_as_many_works_as_there_may_be(running: RunningNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MAX_WORKS", 0)
    await trusted(running)

    with pytest.raises(CallFailed) as failed:
        await ask(running)

    assert failed.value.code == ErrorCode.TOO_MANY


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"mailServerPeer": None}, "request.mailServerPeer: missing"),
        ({"mailServerPeer": "x"}, "request.mailServerPeer: not an enode URL (enode://<128 hex digits>@host:port)"),
        ({"symKeyID": None}, "request.symKeyID: missing"),
        ({"from": -1}, "request.from: not between 0 and 4294967295"),
        ({"to": 2**32}, "request.to: not between 0 and 4294967295"),
        ({"to": 1e3}, "request.to: not a whole number"),
        ({"from": NOW + 1}, "request.from: later than to"),
        ({"limit": -1}, "request.limit: not between 0 and 4294967295"),
        ({"cursor": "00"}, "request.cursor: 1 bytes, not 36"),
        ({"cursor": "x"}, "request.cursor: not bytes in hex digits"),
        ({"topics": None}, "request.topics: missing"),
        ({"topics": ["0x9a"]}, "request.topics[0]: 1 bytes, not 4"),
        ({"topics": [TOPIC] * 1001}, "request.topics: 1001 values, but at most 1000 are allowed"),
        ({"topic": "0x9a"}, "request.topic: 1 bytes, not 4"),
        ({"timeout": "30"}, "request.timeout: not a number"),
        ({"force": 1}, "request.force: not true or false"),
        ({"mailserverPeer": ENODE}, "request.'mailserverPeer': unknown"),
    ],
)
async def test_wrong_requests(running: RunningNode, members: dict[str, Json], message: str) -> None:
    await trusted(running)

    with pytest.raises(CallFailed) as failed:
        await ask(running, **members)

    assert (failed.value.code, failed.value.message) == (ErrorCode.INVALID_PARAMS, message)
