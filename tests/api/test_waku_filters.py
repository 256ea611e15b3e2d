"""mailserver.api.waku_messages: messages that are filtered, polled and subscribed to."""

import asyncio
import json
from typing import Any

import pytest

from mailserver.api.caller import MAX_SUBSCRIPTIONS, Call, Caller
from mailserver.api.errors import ErrorCode
from mailserver.api.filters import MAX_FILTERS
from mailserver.api.params import Json
from tests.api.messages import ALICE, NO_ID, PAYLOAD, PUBLIC_KEY, TOPIC, heard, post, sym_key
from tests.api.nodes import CallFailed, RunningNode
from tests.mailservers import NEWS, NOW
from tests.waiting import turns, until

pytestmark = pytest.mark.integration


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


async def key_pair(running: RunningNode) -> str:
    key_id = await running.call("waku_addPrivateKey", f"0x{ALICE.secret.hex()}")
    assert isinstance(key_id, str)
    return key_id


async def failure(running: RunningNode, method: str, *params: Json, caller: Caller | None = None) -> tuple[int, str]:
    with pytest.raises(CallFailed) as failed:
        await running.call(method, *params, caller=caller)
    return failed.value.code, failed.value.message


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
