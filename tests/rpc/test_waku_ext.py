"""mailserver.rpc.waku_ext: what a mailserver is sent, and what becomes of its answer."""

from pathlib import Path
from typing import Any

import pytest

from mailserver.mail.request import Cursor, MailRequest, SealedRequest, decode_fields, decode_request
from mailserver.rpc import work
from mailserver.rpc.errors import ErrorCode
from mailserver.rpc.params import Json
from mailserver.rpc.waku import Dialect
from mailserver.waku.bloom import Interest
from mailserver.waku.envelope import Envelope, EnvelopeHash, encode_envelope, encode_envelopes
from mailserver.waku.packets import PacketCode, StatusOptions
from mailserver.waku.payload import MAX_PADDING_BYTES, open_symmetric, seal_symmetric
from tests.mailservers import NEWS, NOW, PASSWORD_KEY, SPORT
from tests.pairs import private_key
from tests.raw_peer import RawPeer
from tests.rpc.nodes import CallFailed, RunningNode, running_node
from tests.waiting import until

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

    assert await ask(running) is True

    envelope, request = await heard(mailserver)
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


async def test_deployed_dialect_answers_with_the_requests_id(tmp_path: Path) -> None:
    async with running_node(tmp_path, dialect=Dialect.DEPLOYED) as running:
        mailserver = await trusted(running)

        answered = await ask(running)

        envelope, _ = await heard(mailserver)
        assert answered == f"0x{envelope.hash().hex()}"


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
        ({"from": -1}, "request.from: not from 0 to 4294967295"),
        ({"to": 2**32}, "request.to: not from 0 to 4294967295"),
        ({"to": 1e3}, "request.to: not a whole number"),
        ({"from": NOW + 1}, "request.from: later than to"),
        ({"limit": -1}, "request.limit: not from 0 to 4294967295"),
        ({"cursor": "00"}, "request.cursor: 1 bytes, not 36"),
        ({"cursor": "x"}, "request.cursor: not bytes in hex digits"),
        ({"topics": None}, "request.topics: missing"),
        ({"topics": ["0x9a"]}, "request.topics[0]: 1 bytes, not 4"),
        ({"topics": [TOPIC] * 1001}, "request.topics: 1001 values, at most 1000"),
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
