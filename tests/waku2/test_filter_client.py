"""mailserver.waku2.filter_client: which pushes are believed; and both sides of the filters together."""

import pytest

from mailserver.ids.waku_message import WakuMessage
from mailserver.waku2.filter_client import FilterClient, PushFault
from mailserver.waku2.filter_packets import (
    FilterSubscribeRequest,
    FilterSubscribeResponse,
    FilterSubscribeType,
    MessagePush,
)
from mailserver.waku2.old_filter import FilterRequest, FilterRpc, OldMessagePush
from mailserver.waku2.subscriptions import Subscriptions

P, Q = "/waku/2/rs/1/4", "/waku/2/rs/1/5"


def push(pubsub_topic: str | None, content_topic: str) -> MessagePush:
    return MessagePush(WakuMessage(b"", content_topic), pubsub_topic)


def old_push(request_id: str, *content_topics: str) -> FilterRpc:
    return FilterRpc(request_id, push=OldMessagePush(tuple(WakuMessage(b"", topic) for topic in content_topics)))


def subscribed() -> FilterClient[str]:
    client: FilterClient[str] = FilterClient()
    client.subscribe("node", "1", P, ["a", "b"])
    assert client.on_response("node", FilterSubscribeResponse("1", 200))
    return client


def test_requests_are_those_of_the_protocol() -> None:
    client: FilterClient[str] = FilterClient()
    kinds = FilterSubscribeType

    assert client.subscribe("node", "1", P, ["a"]) == FilterSubscribeRequest("1", kinds.SUBSCRIBE, P, ("a",))
    assert client.unsubscribe("node", "2", P, ["a"]) == FilterSubscribeRequest("2", kinds.UNSUBSCRIBE, P, ("a",))
    assert client.unsubscribe_all("node", "3") == FilterSubscribeRequest("3", kinds.UNSUBSCRIBE_ALL)
    request = FilterRequest(True, P, ("a",))
    assert client.request_old("node", "4", request) == FilterRpc("4", request)


@pytest.mark.parametrize(
    ("node", "pushed", "fault"),
    [
        ("node", push(P, "a"), None),
        ("node", push(P, "b"), None),
        ("node", push(P, "c"), PushFault.NOT_WANTED),
        ("node", push(Q, "a"), PushFault.NOT_WANTED),
        ("node", push(None, "a"), PushFault.NO_PUBSUB_TOPIC),
        ("node", push("", "a"), PushFault.NO_PUBSUB_TOPIC),
        ("another", push(P, "a"), PushFault.NOT_SUBSCRIBED),
    ],
)
def test_push_is_believed_if_it_was_asked_for_there(node: str, pushed: MessagePush, fault: PushFault | None) -> None:
    assert subscribed().fault_of(node, pushed) is fault


def test_push_before_the_answer_is_believed_until_the_answer_refuses() -> None:
    client = subscribed()
    client.subscribe("node", "2", P, ["b", "c"])
    assert client.fault_of("node", push(P, "c")) is None

    assert not client.on_response("node", FilterSubscribeResponse("2", 503, "full"))

    assert client.fault_of("node", push(P, "c")) is PushFault.NOT_WANTED
    assert client.fault_of("node", push(P, "b")) is None, "it was granted before"


def test_push_after_an_unsubscribe_is_not_believed() -> None:
    client = subscribed()
    client.unsubscribe("node", "2", P, ["a"])

    assert client.fault_of("node", push(P, "a")) is PushFault.NOT_WANTED
    assert client.fault_of("node", push(P, "b")) is None
    client.unsubscribe_all("node", "3")
    assert client.fault_of("node", push(P, "b")) is PushFault.NOT_SUBSCRIBED
    assert client.on_response("node", FilterSubscribeResponse("3", 200))


def test_node_that_has_forgotten_everything_is_not_believed_but_for_what_is_asked_again() -> None:
    client = subscribed()
    client.subscribe("node", "2", P, ["c", "d"])
    client.unsubscribe("node", "3", P, ["d"])

    assert not client.on_response("node", FilterSubscribeResponse("ping", 404))

    faults = [client.fault_of("node", push(P, topic)) for topic in "abcd"]
    assert faults == [PushFault.NOT_WANTED, PushFault.NOT_WANTED, None, PushFault.NOT_WANTED]
    client.forget("node")
    assert client.fault_of("node", push(P, "c")) is PushFault.NOT_SUBSCRIBED
    client.forget("node")


@pytest.mark.parametrize(
    ("node", "pushed", "fault"),
    [
        ("node", old_push("1", "a"), None),
        ("node", old_push("1", "a", "b"), None),
        ("node", old_push("2", "whatever"), None),
        ("node", old_push("1", "a", "c"), PushFault.NOT_WANTED),
        ("node", old_push("3", "a"), PushFault.NOT_SUBSCRIBED),
        ("another", old_push("1", "a"), PushFault.NOT_SUBSCRIBED),
        ("node", old_push("1"), PushFault.NO_MESSAGE),
        ("node", FilterRpc("1", FilterRequest(True)), PushFault.NO_MESSAGE),
    ],
)
def test_old_push_is_believed_if_its_request_matches(node: str, pushed: FilterRpc, fault: PushFault | None) -> None:
    client: FilterClient[str] = FilterClient()
    client.request_old("node", "1", FilterRequest(True, P, ("a", "b")))
    client.request_old("node", "2", FilterRequest(True, P))

    assert client.old_fault_of(node, pushed) is fault


def test_what_was_taken_back_of_the_old_filter_is_not_believed() -> None:
    client: FilterClient[str] = FilterClient()
    client.request_old("node", "1", FilterRequest(True, P, ("a", "b")))
    client.request_old("node", "2", FilterRequest(True, Q, ("a",)))
    client.request_old("node", "3", FilterRequest(True, P))

    client.request_old("node", "u", FilterRequest(False, P, ("a",)))
    asked = [("1", "a"), ("1", "b"), ("2", "a"), ("3", "b")]
    assert [client.old_fault_of("node", old_push(*each)) for each in asked] == [PushFault.NOT_WANTED, None, None, None]

    client.request_old("node", "v", FilterRequest(False, "", ("a", "b")))
    client.request_old("node", "w", FilterRequest(False, P))
    assert {client.old_fault_of("node", old_push(*each)) for each in asked} == {PushFault.NOT_SUBSCRIBED}


def test_both_sides_agree() -> None:
    """What a table matches, the client that made the requests believes."""
    client: FilterClient[str] = FilterClient()
    table: Subscriptions[str] = Subscriptions()
    for request in (client.subscribe("node", "1", P, ["a", "b"]), client.unsubscribe("node", "2", P, ["b"])):
        assert client.on_response("node", table.answer("client", request, 0.0))
    old = client.request_old("node", "3", FilterRequest(True, "", ("c",)))
    assert old.request is not None
    assert table.apply_old("client", old.request_id, old.request, 0.0).status == 200

    for topic in "abcd":
        for match in table.matches(P, topic):
            if match.request_id is None:
                assert client.fault_of("node", push(P, topic)) is None
            else:
                assert client.old_fault_of("node", old_push(match.request_id, topic)) is None
    assert [len(table.matches(P, topic)) for topic in "abcd"] == [1, 0, 1, 0]
