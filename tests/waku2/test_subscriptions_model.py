"""mailserver.waku2.subscriptions beside a table that does everything in the plainest way."""

from dataclasses import dataclass, field
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mailserver.waku2.old_filter import FilterRequest
from mailserver.waku2.subscriptions import SILENT_S, UNREACHABLE_S, SubscriptionLimits, Subscriptions
from tests.properties import settings

PUBSUB, CONTENT = ("P", "Q"), ("a", "b", "c")
MAX_SUBSCRIBERS = 3

Asked = tuple[str, str]
"""A pubsub topic and a content topic; "" is any."""

subscribers = st.sampled_from(("one", "two", "three", "four", "five"))
pubsub_topics = st.sampled_from(PUBSUB)
content_topics = st.lists(st.sampled_from(CONTENT), min_size=1, max_size=3)
old_filters = st.tuples(st.sampled_from(("", *PUBSUB)), st.lists(st.sampled_from(CONTENT), max_size=2)).filter(any)


def covers(asked: Asked, other: Asked) -> bool:
    """Whether the first matches everything that the second does."""
    return all(mine in ("", theirs) for mine, theirs in zip(asked, other, strict=True))


@dataclass
class Request:
    """What was asked for, and what was taken back later."""

    asked: set[Asked]
    taken_back: set[Asked] = field(default_factory=set)

    @property
    def left(self) -> set[Asked]:
        return {each for each in self.asked if not any(covers(back, each) for back in self.taken_back)}

    def wants(self, message: Asked) -> bool:
        return any(covers(each, message) for each in self.asked) and not any(
            covers(back, message) for back in self.taken_back
        )


@dataclass
class Peer:
    """What a subscriber has, by request id; None: in filter-subscribe."""

    requests: dict[str | None, Request] = field(default_factory=dict)
    last_request: float = 0.0
    gone: float | None = None
    failing: float | None = None

    @property
    def old(self) -> dict[str, Request]:
        return {name: each for name, each in self.requests.items() if name is not None}


class Table(RuleBasedStateMachine):
    """Whatever happens, both tables answer and match the same."""

    def __init__(self) -> None:
        super().__init__()
        self.real: Subscriptions[str] = Subscriptions(SubscriptionLimits(max_subscribers=MAX_SUBSCRIBERS))
        self.peers: dict[str, Peer] = {}
        self.now = 0.0

    def heard_of(self, subscriber: str) -> Peer | None:
        peer = self.peers.get(subscriber)
        if peer:
            peer.last_request, peer.failing = self.now, None
        return peer

    def room_for(self, subscriber: str) -> Peer | None:
        """What the subscriber has; None if there is no room for it."""
        peer = self.heard_of(subscriber)
        if peer is None and len(self.peers) >= MAX_SUBSCRIBERS:
            gone = {name: each.gone for name, each in self.peers.items() if each.gone is not None}
            failing = {name: each.failing for name, each in self.peers.items() if each.failing is not None}
            silent = {
                name: each.last_request for name, each in self.peers.items() if self.now - each.last_request > SILENT_S
            }
            candidates = gone or failing or silent
            if not candidates:
                return None
            del self.peers[min(candidates, key=lambda name: candidates[name])]
        if peer is None:
            peer = self.peers[subscriber] = Peer(last_request=self.now)
        return peer

    def tidy(self, subscriber: str) -> None:
        peer = self.peers[subscriber]
        peer.requests = {name: each for name, each in peer.requests.items() if each.left}
        if not peer.requests:
            del self.peers[subscriber]

    @rule(subscriber=subscribers, pubsub_topic=pubsub_topics, topics=content_topics)
    def subscribe(self, subscriber: str, pubsub_topic: str, topics: list[str]) -> None:
        self.pass_time(0.01)
        status = self.real.subscribe(subscriber, pubsub_topic, topics, self.now).status

        peer = self.room_for(subscriber)
        assert status == (503 if peer is None else 200)
        if peer:
            peer.requests.setdefault(None, Request(set())).asked |= {(pubsub_topic, topic) for topic in topics}

    @rule(subscriber=subscribers, pubsub_topic=pubsub_topics, topics=content_topics)
    def unsubscribe(self, subscriber: str, pubsub_topic: str, topics: list[str]) -> None:
        status = self.real.unsubscribe(subscriber, pubsub_topic, topics, self.now).status

        peer = self.heard_of(subscriber)
        known = peer and peer.requests.get(None)
        assert status == (200 if known else 404)
        if known:
            known.asked -= {(pubsub_topic, topic) for topic in topics}
            self.tidy(subscriber)

    @rule(subscriber=subscribers, pubsub_topic=pubsub_topics, topic=st.sampled_from(CONTENT))
    def forget(self, subscriber: str, pubsub_topic: str, topic: str) -> None:
        self.real.forget(subscriber, pubsub_topic, topic)

        peer = self.peers.get(subscriber)
        if peer and (known := peer.requests.get(None)):
            known.asked -= {(pubsub_topic, topic)}
            self.tidy(subscriber)

    @rule(subscriber=subscribers)
    def unsubscribe_all(self, subscriber: str) -> None:
        status = self.real.unsubscribe_all(subscriber).status

        assert status == (404 if self.peers.pop(subscriber, None) is None else 200)

    @rule(subscriber=subscribers)
    def ping(self, subscriber: str) -> None:
        self.pass_time(0.01)
        status = self.real.ping(subscriber, self.now).status

        peer = self.heard_of(subscriber)
        assert status == (200 if peer and None in peer.requests else 404)

    @rule(subscriber=subscribers, request_id=st.sampled_from(("r", "s")), asked=old_filters)
    def old_subscribe(self, subscriber: str, request_id: str, asked: tuple[str, list[str]]) -> None:
        self.pass_time(0.01)
        pubsub_topic, topics = asked
        request = FilterRequest(True, pubsub_topic, tuple(topics))
        status = self.real.apply_old(subscriber, request_id, request, self.now).status

        peer = self.room_for(subscriber)
        assert status == (503 if peer is None else 200)
        if peer:
            peer.requests[request_id] = Request({(pubsub_topic, topic) for topic in topics or [""]})

    @rule(subscriber=subscribers, asked=old_filters)
    def old_unsubscribe(self, subscriber: str, asked: tuple[str, list[str]]) -> None:
        pubsub_topic, topics = asked
        request = FilterRequest(False, pubsub_topic, tuple(topics))
        status = self.real.apply_old(subscriber, "u", request, self.now).status

        peer = self.heard_of(subscriber)
        assert status == (200 if peer and peer.old else 404)
        if peer:
            for each in peer.old.values():
                each.taken_back |= {(pubsub_topic, topic) for topic in topics or [""]}
            self.tidy(subscriber)

    @rule(subscriber=subscribers)
    def gone(self, subscriber: str) -> None:
        self.pass_time(0.01)
        self.real.gone(subscriber, self.now)

        peer = self.peers.get(subscriber)
        if peer and peer.gone is None:
            peer.gone = self.now

    @rule(subscriber=subscribers)
    def connected(self, subscriber: str) -> None:
        self.real.connected(subscriber)

        if peer := self.peers.get(subscriber):
            peer.gone = None

    @rule(subscriber=subscribers)
    def push_failed(self, subscriber: str) -> None:
        self.pass_time(0.01)
        self.real.push_failed(subscriber, self.now)

        peer = self.peers.get(subscriber)
        if peer and peer.failing is None:
            peer.failing = self.now

    @rule(subscriber=subscribers)
    def push_reached(self, subscriber: str) -> None:
        self.real.push_reached(subscriber)

        if peer := self.peers.get(subscriber):
            peer.failing = None

    @rule(seconds=st.sampled_from((1.0, 30.0, 61.0, 301.0)))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

        expired = self.real.expire(self.now)

        ends = {
            name
            for name, peer in self.peers.items()
            if any(since is not None and self.now >= since + UNREACHABLE_S for since in (peer.gone, peer.failing))
        }
        assert set(expired) == ends
        for name in ends:
            del self.peers[name]

    @invariant()
    def both_match_the_same(self) -> None:
        assert len(self.real) == len(self.peers) <= MAX_SUBSCRIBERS
        for message in product(PUBSUB, CONTENT):
            expected = {
                (name, request_id)
                for name, peer in self.peers.items()
                for request_id, request in peer.requests.items()
                if request.wants(message)
            }
            matched = self.real.matches(*message)
            assert {(each.subscriber, each.request_id) for each in matched} == expected
            assert len(matched) == len(expected)
            assert all(each.wants(*message) for each in matched)

    @invariant()
    def nothing_is_kept_of_those_that_are_gone(self) -> None:
        if not self.peers:
            assert (self.real.criteria, self.real.memory_bytes, self.real.next_timer()) == (0, 0, None)


@given(st.lists(st.tuples(st.sampled_from(("r", "s")), st.booleans(), old_filters), max_size=6))
def test_what_is_left_of_old_requests_is_matched(requests: list[tuple[str, bool, tuple[str, list[str]]]]) -> None:
    real: Subscriptions[str] = Subscriptions()
    expected: dict[str, Request] = {}
    for request_id, subscribe, (pubsub_topic, topics) in requests:
        real.apply_old("peer", request_id, FilterRequest(subscribe, pubsub_topic, tuple(topics)), 0.0)
        named = {(pubsub_topic, topic) for topic in topics or [""]}
        if subscribe:
            expected[request_id] = Request(named)
        else:
            for each in expected.values():
                each.taken_back |= named

    for message in product(PUBSUB, CONTENT):
        wanting = {name for name, each in expected.items() if each.wants(message)}
        assert {each.request_id for each in real.matches(*message)} == wanting


TestTable = pytest.mark.slow(Table.TestCase)
TestTable.settings = settings(max_examples=60, stateful_step_count=40)
