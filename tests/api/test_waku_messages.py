"""mailserver.api.waku_messages: posted, relayed, stored, filtered, polled, subscribed to."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from mailserver.api import waku_messages, work
from mailserver.api.caller import MAX_SUBSCRIPTIONS, Call, Caller
from mailserver.api.errors import ErrorCode
from mailserver.api.filters import MAX_FILTERS
from mailserver.api.params import Json
from mailserver.api.waku import Dialect
from mailserver.client import mail_client as client
from mailserver.waku.envelope import Envelope, decode_envelopes, find_nonce
from mailserver.waku.packets import PacketCode
from mailserver.waku.payload import open_asymmetric, open_symmetric
from tests.api.nodes import CallFailed, RunningNode, running_node
from tests.mailservers import NEWS, NOW
from tests.pairs import private_key
from tests.raw_peer import RawPeer
from tests.waiting import turns, until

pytestmark = pytest.mark.integration

ALICE = private_key("alice")
PUBLIC_KEY = f"0x04{ALICE.public_key.hex()}"
TOPIC = f"0x{NEWS.hex()}"
PAYLOAD = f"0x{b'hello'.hex()}"
NO_ID = "00" * 32
KEY = bytes(range(32))


class Inbox:
    """A caller that can be notified; `notifications` has what came."""

    def __init__(self) -> None:
        self.caller = Caller(self._take)
        self.notifications: list[Any] = []
        self.reads = asyncio.Event()
        self.reads.set()

    async def _take(self, text: str) -> None:
        await self.reads.wait()
        self.notifications.append(json.loads(text))

    @property
    def hashes(self) -> list[str]:
        return [notification["params"]["result"]["hash"] for notification in self.notifications]


async def sym_key(running: RunningNode) -> str:
    key_id = await running.call("waku_addSymKey", f"0x{KEY.hex()}")
    assert isinstance(key_id, str)
    return key_id


async def key_pair(running: RunningNode) -> str:
    key_id = await running.call("waku_addPrivateKey", f"0x{ALICE.secret.hex()}")
    assert isinstance(key_id, str)
    return key_id


async def post(running: RunningNode, **members: Json) -> Any:
    """Post a message that is right but for what is given."""
    message: dict[str, Json] = {"ttl": 50, "topic": TOPIC, "payload": PAYLOAD, "powTime": 5, "powTarget": 0.0}
    return await running.call("waku_post", {**message, **members})


async def failure(running: RunningNode, method: str, *params: Json, caller: Caller | None = None) -> tuple[int, str]:
    with pytest.raises(CallFailed) as failed:
        await running.call(method, *params, caller=caller)
    return failed.value.code, failed.value.message


async def heard(peer: RawPeer, code: PacketCode = PacketCode.MESSAGES) -> Envelope:
    """The envelope that comes next."""
    while True:
        packet = await peer.hear_packet()
        if packet.code == code:
            (envelope,) = decode_envelopes(packet.payload)
            return envelope


# Posting


async def test_posted_message_is_stored_and_relayed(running: RunningNode) -> None:
    peer = await running.dial("peer")
    key_id = await sym_key(running)

    assert await post(running, symKeyID=key_id) is True

    envelope = await heard(peer)
    assert (envelope.ttl, envelope.created, envelope.topic) == (50, NOW, NEWS)
    opened = open_symmetric(envelope.data, KEY)
    assert (opened.payload, opened.signer) == (b"hello", None)
    assert (await running.store.stats()).envelopes == 1


async def test_message_is_sealed_to_a_public_key_and_signed(running: RunningNode) -> None:
    peer = await running.dial("peer")
    signer = await running.call("waku_newKeyPair")

    await post(running, pubKey=PUBLIC_KEY, sig=signer, topic=None)

    envelope = await heard(peer)
    opened = open_asymmetric(envelope.data, ALICE)
    assert opened.payload == b"hello"
    assert opened.signer == running.keys.pair(signer).public_key
    assert envelope.topic == bytes(4)


async def test_padding_is_used_as_it_is(running: RunningNode) -> None:
    peer = await running.dial("peer")

    await post(running, symKeyID=await sym_key(running), padding="0x010203")

    assert open_symmetric((await heard(peer)).data, KEY).padding == b"\x01\x02\x03"


@pytest.mark.parametrize("payload", ["0x", ""])
async def test_payload_may_be_empty(running: RunningNode, payload: str) -> None:
    peer = await running.dial("peer")

    await post(running, symKeyID=await sym_key(running), payload=payload)

    assert open_symmetric((await heard(peer)).data, KEY).payload == b""


async def test_deployed_dialect_answers_with_the_hash(tmp_path: Path) -> None:
    async with running_node(tmp_path, dialect=Dialect.DEPLOYED) as running:
        peer = await running.dial("peer")

        posted = await post(running, symKeyID=await sym_key(running))

        assert posted == f"0x{(await heard(peer)).hash().hex()}"


async def test_members_that_deployed_clients_leave_empty_are_absent(running: RunningNode) -> None:
    peer = await running.dial("peer")
    key_id = await sym_key(running)

    await post(running, symKeyID=key_id, pubKey="0x", sig="", padding="0x", targetPeer="", ttl=0, payload="0x")

    envelope = await heard(peer)
    assert envelope.ttl == 50
    assert len(open_symmetric(envelope.data, KEY).padding) > 200


async def test_message_has_the_work_that_it_names_or_that_the_node_asks_for(tmp_path: Path) -> None:
    async with running_node(tmp_path, min_pow=0.001) as running:
        peer = await running.dial("peer")
        key_id = await sym_key(running)

        await post(running, symKeyID=key_id, powTarget=0.01)
        named = await heard(peer)
        await post(running, symKeyID=key_id, powTarget=None, powTime=None)

    assert named.pow() >= 0.01


async def test_work_below_what_the_node_asks_for_is_refused(tmp_path: Path) -> None:
    async with running_node(tmp_path, min_pow=0.01) as running:
        with pytest.raises(CallFailed) as failed:
            await post(running, symKeyID=await sym_key(running), powTarget=0.001)

    assert failed.value.code == ErrorCode.REFUSED
    assert failed.value.message == "message rejected, PoW too low: this node demands 0.01"


@pytest.mark.parametrize("pow_time", [0, 0.01])
async def test_work_that_takes_longer_than_it_may_is_given_up(running: RunningNode, pow_time: float) -> None:
    with pytest.raises(CallFailed) as failed:
        await post(running, symKeyID=await sym_key(running), powTarget=1e300, powTime=pow_time)

    assert failed.value.code == ErrorCode.TOO_MUCH_WORK


async def test_no_work_takes_longer_than_the_limit(running: RunningNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waku_messages, "MAX_POW_TIME_S", 0.01)

    with pytest.raises(CallFailed) as failed:
        await post(running, symKeyID=await sym_key(running), powTarget=1e300, powTime=1000, ttl=10_000)

    assert failed.value.code == ErrorCode.TOO_MUCH_WORK


async def test_only_so_many_works_are_sought_at_once_and_others_have_their_turn(running: RunningNode) -> None:
    key_id = await sym_key(running)
    works = [
        asyncio.create_task(post(running, symKeyID=key_id, powTarget=1e300, powTime=60)) for _ in range(work.MAX_WORKS)
    ]
    await turns()

    with pytest.raises(CallFailed) as failed:
        await post(running, symKeyID=key_id)

    assert failed.value.code == ErrorCode.TOO_MANY
    assert not any(task.done() for task in works)
    for task in works:
        task.cancel()
    await asyncio.wait(works)
    assert await post(running, symKeyID=key_id) is True  # there is room again


async def test_works_take_one_share_of_the_time_together(running: RunningNode, monkeypatch: pytest.MonkeyPatch) -> None:
    key_id, tries = await sym_key(running), 0

    def tried(*args: Any, **named: Any) -> int | None:
        nonlocal tries
        tries += 1
        return find_nonce(*args, **named)

    monkeypatch.setattr(client, "find_nonce", tried)
    works = [asyncio.create_task(post(running, symKeyID=key_id, powTarget=1e300, powTime=60)) for _ in range(5)]
    await until(lambda: tries >= 5)

    before = tries
    await turns(20)

    assert 0 < tries - before <= 20
    for task in works:
        task.cancel()
    await asyncio.wait(works)


async def test_message_to_one_peer_goes_to_nobody_else_and_needs_no_work(tmp_path: Path) -> None:
    async with running_node(tmp_path, min_pow=1e30) as running:
        peers = [await running.dial("other"), await running.dial("target")]
        key_id = await sym_key(running)

        for payload, peer in zip(("0x01", "0x02"), peers, strict=True):
            enode = f"enode://{peer.key.public_key.hex()}@127.0.0.1:30303"
            assert await post(running, symKeyID=key_id, targetPeer=enode, powTarget=None, payload=payload) is True

        packets = [await peer.hear_packet() for peer in peers]
        assert {packet.code for packet in packets} == {PacketCode.P2P_MESSAGE}
        opened = [open_symmetric(decode_envelopes(packet.payload)[0].data, KEY).payload for packet in packets]
        assert opened == [b"\x01", b"\x02"]
        assert (await running.store.stats()).envelopes == 0
        assert running.node.live_usage() == (0, 0)


async def test_message_to_a_peer_that_is_not_connected(running: RunningNode) -> None:
    enode = f"enode://{ALICE.public_key.hex()}@127.0.0.1:30303"

    with pytest.raises(CallFailed) as failed:
        await post(running, symKeyID=await sym_key(running), targetPeer=enode)

    assert failed.value.code == ErrorCode.PEER_UNAVAILABLE


@pytest.mark.parametrize("is_direct", [False, True])
@pytest.mark.parametrize(
    ("length", "pow_target"),
    [
        pytest.param(1000, 1e300, id="when it is sealed, before any work"),
        pytest.param(700, 0.0, id="only as an envelope"),
    ],
)
async def test_message_that_is_too_long_is_refused(
    running: RunningNode, length: int, pow_target: float, is_direct: bool
) -> None:
    await running.call("waku_setMaxEnvelopeSize", 800)  # 700 bytes take 796 sealed, and some more as an envelope
    key_id = await sym_key(running)
    target = f"enode://{(await running.dial('target')).key.public_key.hex()}@127.0.0.1:30303" if is_direct else None

    with pytest.raises(CallFailed) as failed:
        await post(
            running, symKeyID=key_id, payload=f"0x{'00' * length}", powTarget=pow_target, powTime=0, targetPeer=target
        )

    assert (failed.value.code, failed.value.message) == (ErrorCode.REFUSED, "envelope is too long")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"symKeyID": None}, "message.symKeyID: give either this or pubKey, not both"),
        ({"pubKey": PUBLIC_KEY}, "message.symKeyID: give either this or pubKey, not both"),
        ({"symKeyID": 1}, "message.symKeyID: not a string"),
        ({"pubKey": PUBLIC_KEY[:-2]}, "message.pubKey: 64 bytes, not 65"),
        ({"sig": 1}, "message.sig: not a string"),
        ({"ttl": -1}, "message.ttl: not between 0 and 4294967295"),
        ({"ttl": 50.0}, "message.ttl: not a whole number"),
        ({"ttl": 4294967295}, "message.ttl: the envelope would expire after 2106"),
        ({"topic": None}, "message.topic: missing"),
        ({"topic": "0x9acb04"}, "message.topic: 3 bytes, not 4"),
        ({"payload": None}, "message.payload: missing"),
        ({"payload": "hello"}, "message.payload: not bytes in hex digits after 0x"),
        ({"padding": "0x1"}, "message.padding: not bytes in hex digits after 0x"),
        ({"powTime": -1}, "message.powTime: not between 0 and 4294967295"),
        ({"powTime": "1"}, "message.powTime: not a number"),
        ({"powTarget": -1}, "message.powTarget: not between 0 and 1.79769e+308"),
        ({"powTarget": 10**400}, "message.powTarget: not between 0 and 1.79769e+308"),
        ({"targetPeer": "peer"}, "message.targetPeer: not an enode URL (enode://<128 hex digits>@host:port)"),
        ({"targetpeer": "peer"}, "message.'targetpeer': unknown"),
    ],
)
async def test_wrong_messages(running: RunningNode, members: dict[str, Json], message: str) -> None:
    key_id = await sym_key(running)

    with pytest.raises(CallFailed) as failed:
        await post(running, **{"symKeyID": key_id, **members})

    assert (failed.value.code, failed.value.message) == (ErrorCode.INVALID_PARAMS, message)


@pytest.mark.parametrize("member", ["symKeyID", "sig"])
async def test_message_with_an_unknown_key(running: RunningNode, member: str) -> None:
    key_id = await sym_key(running)

    with pytest.raises(CallFailed) as failed:
        await post(running, **{"symKeyID": key_id, member: NO_ID})

    assert failed.value.code == ErrorCode.NOT_FOUND


# Filters


async def test_filter_gives_each_message_once(running: RunningNode) -> None:
    key_id, signer = await sym_key(running), await running.call("waku_newKeyPair")
    filter_id = await running.call("waku_newMessageFilter", {"symKeyID": key_id, "topics": [TOPIC]})
    peer = await running.dial("peer")

    await post(running, symKeyID=key_id, sig=signer, padding="0x0102")
    envelope = await heard(peer)
    await until(lambda: running.filters.queued_bytes > 0)

    assert await running.call("waku_getFilterMessages", filter_id) == [
        {
            "sig": await running.call("waku_getPublicKey", signer),
            "recipientPublicKey": None,
            "ttl": 50,
            "timestamp": NOW,
            "topic": TOPIC,
            "payload": PAYLOAD,
            "padding": "0x0102",
            "pow": envelope.pow(),
            "hash": f"0x{envelope.hash().hex()}",
        }
    ]
    assert await running.call("waku_getFilterMessages", filter_id) == []


async def test_filter_by_private_key_needs_no_topics(running: RunningNode) -> None:
    filter_id = await running.call("waku_newMessageFilter", {"privateKeyID": await key_pair(running)})

    await post(running, pubKey=PUBLIC_KEY)
    await until(lambda: running.filters.queued_bytes > 0)

    (message,) = await running.call("waku_getFilterMessages", filter_id)
    assert (message["recipientPublicKey"], message["sig"]) == (PUBLIC_KEY, None)


async def test_all_rules_reach_the_filter(running: RunningNode) -> None:
    rules: dict[str, Json] = {
        "privateKeyID": await key_pair(running),
        "sig": PUBLIC_KEY,
        "minPow": 0.5,
        "topics": ["0x9a", TOPIC],
        "allowP2P": True,
    }

    filter_id = await running.call("waku_newMessageFilter", rules)

    criteria = running.filters.get(filter_id).criteria
    assert criteria.private_key is not None
    assert criteria.private_key.secret == ALICE.secret
    assert criteria.signer == ALICE.public_key
    assert (criteria.min_pow, criteria.topics, criteria.allow_p2p) == (0.5, (b"\x9a", NEWS), True)


async def test_rules_that_deployed_clients_leave_empty_are_absent(running: RunningNode) -> None:
    rules: dict[str, Json] = {
        "symKeyID": await sym_key(running),
        "privateKeyID": "",
        "sig": "0x",
        "minPow": 0,
        "topics": [TOPIC],
        "allowP2P": False,
    }

    criteria = running.filters.get(await running.call("waku_newMessageFilter", rules)).criteria

    assert (criteria.private_key, criteria.signer, criteria.allow_p2p) == (None, None, False)


async def test_deleted_filter_is_gone(running: RunningNode) -> None:
    rules: Json = {"symKeyID": await sym_key(running), "topics": [TOPIC]}
    filter_id = await running.call("waku_newMessageFilter", rules)

    assert await running.call("waku_deleteMessageFilter", filter_id) is True

    for method in ("waku_getFilterMessages", "waku_deleteMessageFilter"):
        assert await failure(running, method, filter_id) == (ErrorCode.NOT_FOUND, "no filter has this id")


async def test_as_many_filters_as_there_may_be(running: RunningNode) -> None:
    rules: Json = {"symKeyID": await sym_key(running), "topics": [TOPIC]}
    for _ in range(MAX_FILTERS):
        await running.call("waku_newMessageFilter", rules)

    code, _ = await failure(running, "waku_newMessageFilter", rules)

    assert code == ErrorCode.TOO_MANY


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"symKeyID": None}, "filter.symKeyID: give either this or privateKeyID, not both"),
        ({"privateKeyID": NO_ID}, "filter.symKeyID: give either this or privateKeyID, not both"),
        ({"topics": None}, "filter.topics: missing"),
        ({"topics": []}, "filter.topics: missing"),
        ({"topics": TOPIC}, "filter.topics: not an array"),
        ({"topics": [TOPIC, "0x"]}, "filter.topics[1]: 0 bytes, not 1 to 4"),
        ({"topics": [TOPIC + "00"]}, "filter.topics[0]: 5 bytes, not 1 to 4"),
        ({"topics": [TOPIC] * 1001}, "filter.topics: 1001 values, but at most 1000 are allowed"),
        ({"sig": "0x04"}, "filter.sig: 1 bytes, not 65"),
        ({"minPow": True}, "filter.minPow: not a number"),
        ({"minPow": -1}, "filter.minPow: not between 0 and 1.79769e+308"),
        ({"allowP2P": 1}, "filter.allowP2P: not true or false"),
        ({"allowP2p": True}, "filter.'allowP2p': unknown"),
    ],
)
@pytest.mark.parametrize("method", ["waku_newMessageFilter", "waku_subscribe"])
async def test_wrong_filters(running: RunningNode, method: str, members: dict[str, Json], message: str) -> None:
    rules: Json = {"symKeyID": await sym_key(running), "topics": [TOPIC], **members}
    params = [rules] if method == "waku_newMessageFilter" else ["messages", rules]

    assert await failure(running, method, *params, caller=Inbox().caller) == (ErrorCode.INVALID_PARAMS, message)
    assert len(running.filters) == 0


@pytest.mark.parametrize(
    ("method", "params", "message"),
    [
        ("waku_newMessageFilter", [], "filter: missing"),
        ("waku_newMessageFilter", ["x"], "filter: not an object"),
        ("waku_getFilterMessages", [1], "id: not a string"),
        ("waku_deleteMessageFilter", [], "id: missing"),
        ("waku_subscribe", [], "name: missing"),
        ("waku_subscribe", ["news", {}], "name: not 'messages', which is the only choice"),
        ("waku_subscribe", ["messages"], "filter: missing"),
        ("waku_unsubscribe", [{}], "id: not a string"),
        ("waku_post", [], "message: missing"),
        ("waku_post", [[]], "message: not an object"),
    ],
)
async def test_wrong_parameters(running: RunningNode, method: str, params: list[Json], message: str) -> None:
    assert await failure(running, method, *params) == (ErrorCode.INVALID_PARAMS, message)


@pytest.mark.parametrize("member", ["symKeyID", "privateKeyID"])
async def test_filter_with_an_unknown_key(running: RunningNode, member: str) -> None:
    code, _ = await failure(running, "waku_newMessageFilter", {member: NO_ID, "topics": [TOPIC]})

    assert code == ErrorCode.NOT_FOUND


# Subscriptions


async def subscribe(running: RunningNode, inbox: Inbox) -> str:
    rules: Json = {"symKeyID": await sym_key(running), "topics": [TOPIC]}
    subscription = await running.call("waku_subscribe", "messages", rules, caller=inbox.caller)
    assert isinstance(subscription, str)
    return subscription


async def test_subscriber_is_notified_in_order(running: RunningNode) -> None:
    inbox, key_id = Inbox(), await sym_key(running)
    subscription = await subscribe(running, inbox)
    peer = await running.dial("peer")

    await post(running, symKeyID=key_id)
    first = await heard(peer)
    await post(running, symKeyID=key_id)
    second = await heard(peer)
    await until(lambda: len(inbox.notifications) == 2)

    assert inbox.hashes == [f"0x{envelope.hash().hex()}" for envelope in (first, second)]
    notification = inbox.notifications[0]
    assert (notification["jsonrpc"], notification["method"]) == ("2.0", "waku_subscription")
    assert notification["params"]["subscription"] == subscription
    assert notification["params"]["result"]["payload"] == PAYLOAD


async def test_no_notification_overtakes_the_answer(running: RunningNode) -> None:
    inbox, key_id = Inbox(), await sym_key(running)
    text = json.dumps(
        {
            "jsonrpc": "2.0",
            "method": "waku_subscribe",
            "params": ["messages", {"symKeyID": key_id, "topics": [TOPIC]}],
            "id": 1,
        }
    )
    call = Call(inbox.caller)
    await running.dispatcher.answer(text, call)

    await post(running, symKeyID=key_id)
    await until(lambda: running.filters.queued_bytes > 0)
    await turns()
    assert inbox.notifications == []

    call.answered.set()
    await until(lambda: len(inbox.notifications) == 1)
    await inbox.caller.end()


async def test_subscriber_who_does_not_read_gets_later_what_has_waited(running: RunningNode) -> None:
    inbox, key_id = Inbox(), await sym_key(running)
    inbox.reads.clear()
    subscription = await subscribe(running, inbox)

    for _ in range(4):
        await post(running, symKeyID=key_id)
    await until(lambda: running.filters.queued_bytes > 0)
    inbox.reads.set()
    await until(lambda: len(inbox.notifications) == 4)

    assert await running.call("waku_unsubscribe", subscription, caller=inbox.caller) is True


async def test_who_has_unsubscribed_is_not_notified(running: RunningNode) -> None:
    inbox, key_id = Inbox(), await sym_key(running)
    subscription = await subscribe(running, inbox)

    assert await running.call("waku_unsubscribe", subscription, caller=inbox.caller) is True
    await post(running, symKeyID=key_id)
    await until(lambda: len(running.filters) == 0)

    assert await running.call("waku_unsubscribe", subscription, caller=inbox.caller) is False
    assert inbox.notifications == []


async def test_subscription_is_nobody_elses_to_end_or_poll(running: RunningNode) -> None:
    subscription = await subscribe(running, Inbox())

    assert await running.call("waku_unsubscribe", subscription, caller=Inbox().caller) is False
    for method in ("waku_getFilterMessages", "waku_deleteMessageFilter"):
        assert (await failure(running, method, subscription))[0] == ErrorCode.NOT_FOUND
    assert len(running.filters) == 1


async def test_subscriptions_end_with_their_connection(running: RunningNode) -> None:
    inbox = Inbox()
    for _ in range(3):
        await subscribe(running, inbox)
    assert len(running.filters) == 3

    await inbox.caller.end()

    assert len(running.filters) == 0


async def test_connection_has_at_most_so_many_subscriptions(running: RunningNode) -> None:
    inbox = Inbox()
    subscriptions = [await subscribe(running, inbox) for _ in range(MAX_SUBSCRIPTIONS)]

    with pytest.raises(CallFailed) as failed:
        await subscribe(running, inbox)
    await running.call("waku_unsubscribe", subscriptions[0], caller=inbox.caller)
    await subscribe(running, inbox)

    assert failed.value.code == ErrorCode.TOO_MANY
    await inbox.caller.end()


async def test_who_cannot_be_notified_cannot_subscribe(running: RunningNode) -> None:
    rules: Json = {"symKeyID": await sym_key(running), "topics": [TOPIC]}

    code, _ = await failure(running, "waku_subscribe", "messages", rules)

    assert code == ErrorCode.NO_NOTIFICATIONS
    assert len(running.filters) == 0
