"""The table of subscriptions of a service node: of filter-subscribe, and of the old filter.

How long a subscription lives. It ends when its client takes it back, and UNREACHABLE_S after the client has gone or
could not be pushed to, unless it comes back, or something reaches it: "1 minute", says 12/WAKU2-FILTER, "not reachable
for a period of time". Nothing is counted from the last request, as nwaku does with 5 minutes: a client that is
connected can be reached, whether it pings or not. js-waku pings every 60 s, so a minute of silence would be too short,
and a client that only listens would lose its messages. But where slots are short, those that are gone make room at
once, the longest gone first; then those to which pushes fail; then those that have been silent for SILENT_S, the
longest first. Nobody else makes room.

A connection's end is told by `gone`. A request does not undo it, only `connected` does: so a request that was still
being worked on when its connection ended keeps no slot.

Spec: 12/WAKU2-FILTER "Filter-Subscribe", "Filter-Push", "FilterRequest".
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple

from mailserver.waku2.codes import FilterStatus
from mailserver.waku2.criteria import ANY, CriteriaIndex, Criterion, S, Subscription
from mailserver.waku2.filter_packets import FilterSubscribeRequest, FilterSubscribeResponse, FilterSubscribeType
from mailserver.waku2.old_filter import FilterRequest

MAX_REQUEST_TOPICS = 100
"""Content topics in one request: as nwaku and go-waku."""

MAX_CRITERIA = 1000
"""Of one subscriber, those of the old filter included: as nwaku and go-waku."""

MAX_SUBSCRIBERS = 2000
"""nwaku has 100, and five clients that had gone could fill that for a day; a slot here takes 300 bytes."""

MAX_TABLE_BYTES = 128 * 1024 * 1024
"""What all criteria may take: 1,000 subscribers with 1,000 each, if they share them, or 200,000 that nobody shares."""

MAX_OLD_REQUESTS = 10
"""FilterRequests of one subscriber. A message that several of them match is pushed for each, because a client tells
them apart by the id that a push carries ("FilterRPC"): so this is how many times over a client may have every message.
One FilterRequest may have MAX_REQUEST_TOPICS. An unsubscribe goes through all of them."""

UNREACHABLE_S = 60.0
SILENT_S = 300.0
"""As long as nwaku and go-waku let a subscription live without a request."""

MAX_EXPIRED_AT_ONCE = 16
"""Subscribers that one call of `expire` removes: each may have MAX_CRITERIA, which take half a millisecond."""


class FilterVerdict(NamedTuple):
    """What became of a request: the code, and a text for its sender, which names no topic and no peer."""

    status: FilterStatus
    text: str


OK = FilterVerdict(FilterStatus.OK, FilterStatus.OK.text)
NOT_FOUND = FilterVerdict(FilterStatus.NOT_FOUND, FilterStatus.NOT_FOUND.text)


@dataclass(frozen=True, slots=True)
class SubscriptionLimits:
    """How much there may be, and how long it stays."""

    max_request_topics: int = MAX_REQUEST_TOPICS
    max_criteria: int = MAX_CRITERIA
    max_subscribers: int = MAX_SUBSCRIBERS
    max_table_bytes: int = MAX_TABLE_BYTES
    unreachable_s: float = UNREACHABLE_S
    silent_s: float = SILENT_S


class _Subscriber(Generic[S]):
    """What one peer has. It is in the table as long as that is something."""

    __slots__ = ("filter", "last_request", "old")

    def __init__(self, subscriber: S) -> None:
        self.filter = Subscription(subscriber, None)
        self.old: dict[str, Subscription[S]] = {}
        self.last_request = 0.0

    @property
    def subscriptions(self) -> list[Subscription[S]]:
        return [self.filter, *self.old.values()]

    def __len__(self) -> int:
        return sum(map(len, self.subscriptions))


class Subscriptions(Generic[S]):
    """All subscriptions. Times are monotonic seconds."""

    def __init__(self, limits: SubscriptionLimits | None = None) -> None:
        self._limits = limits or SubscriptionLimits()
        self._index: CriteriaIndex[S] = CriteriaIndex()
        self._subscribers: dict[S, _Subscriber[S]] = {}  # in the order of their last requests
        self._gone: dict[S, float] = {}  # since when, the longest first
        self._failing: dict[S, float] = {}

    def __len__(self) -> int:
        """How many subscribers there are."""
        return len(self._subscribers)

    def __contains__(self, subscriber: S) -> bool:
        return subscriber in self._subscribers

    @property
    def criteria(self) -> int:
        """How many criteria there are; one that several subscribers have is one."""
        return len(self._index)

    @property
    def memory_bytes(self) -> int:
        """About what the criteria take."""
        return self._index.memory_bytes

    @property
    def taken_back(self) -> int:
        """How often a subscription has come to want less. As long as this is the same, `matches` stays true."""
        return self._index.taken_back

    def matches(self, pubsub_topic: str, content_topic: str) -> list[Subscription[S]]:
        """The subscriptions that want a message of these topics. It takes as long as the answer is."""
        return self._index.matches(pubsub_topic, content_topic)

    def is_wanted(self, pubsub_topic: str, content_topic: str) -> bool:
        """Whether there are any. That takes no longer where many are."""
        return self._index.is_wanted(pubsub_topic, content_topic)

    # filter-subscribe

    def answer(self, subscriber: S, request: FilterSubscribeRequest, now: float) -> FilterSubscribeResponse:
        """Do what a request asks for."""
        verdict = self._verdict(subscriber, request, now)
        return FilterSubscribeResponse(request.request_id, verdict.status, verdict.text)

    def _verdict(self, subscriber: S, request: FilterSubscribeRequest, now: float) -> FilterVerdict:
        match request.filter_subscribe_type:
            case FilterSubscribeType.SUBSCRIBER_PING:
                return self.ping(subscriber, now)
            case FilterSubscribeType.SUBSCRIBE:
                return self.subscribe(subscriber, request.pubsub_topic, request.content_topics, now)
            case FilterSubscribeType.UNSUBSCRIBE:
                return self.unsubscribe(subscriber, request.pubsub_topic, request.content_topics, now)
            case FilterSubscribeType.UNSUBSCRIBE_ALL:
                return self.unsubscribe_all(subscriber)

    def ping(self, subscriber: S, now: float) -> FilterVerdict:
        """Say whether the subscriber has something in filter-subscribe, and keep it."""
        known = self._heard_of(subscriber, now)
        return NOT_FOUND if known is None or not known.filter.criteria else OK

    def subscribe(
        self, subscriber: S, pubsub_topic: str | None, content_topics: Iterable[str], now: float
    ) -> FilterVerdict:
        """Add criteria: all of them, or none."""
        asked = self._criteria(pubsub_topic, content_topics)
        if isinstance(asked, FilterVerdict):
            return asked
        known = self._heard_of(subscriber, now)
        wanted = [each for each in asked if known is None or each not in known.filter.criteria]
        if refused := self._no_room(subscriber, wanted, 0, now):
            return refused
        known = self._known(subscriber, now)
        for criterion in wanted:
            self._index.add(known.filter, criterion)
        return OK

    def unsubscribe(
        self, subscriber: S, pubsub_topic: str | None, content_topics: Iterable[str], now: float
    ) -> FilterVerdict:
        """Remove criteria. Those that the subscriber does not have are no fault, if it has others."""
        asked = self._criteria(pubsub_topic, content_topics)
        if isinstance(asked, FilterVerdict):
            return asked
        known = self._heard_of(subscriber, now)
        if known is None or not known.filter.criteria:
            return NOT_FOUND
        for criterion in asked:
            if criterion in known.filter.criteria:
                self._index.remove(known.filter, criterion)
        self._remove_if_empty(subscriber, known)
        return OK

    def unsubscribe_all(self, subscriber: S) -> FilterVerdict:
        """Remove all that the subscriber has, that of the old filter, too."""
        if subscriber not in self._subscribers:
            return NOT_FOUND
        self._remove(subscriber)
        return OK

    def forget(self, subscriber: S, pubsub_topic: str, content_topic: str) -> None:
        """Remove a criterion that the subscriber does not know of any more. That is no request of it."""
        known, criterion = self._subscribers.get(subscriber), Criterion(pubsub_topic, content_topic)
        if known is not None and criterion in known.filter.criteria:
            self._index.remove(known.filter, criterion)
            self._remove_if_empty(subscriber, known)

    def _criteria(self, pubsub_topic: str | None, content_topics: Iterable[str]) -> list[Criterion] | FilterVerdict:
        topics = dict.fromkeys(content_topics)
        if not pubsub_topic or not topics:
            return FilterVerdict(FilterStatus.BAD_REQUEST, "pubsub_topic and content_topics must be given")
        return self._bad_topics(topics) or [Criterion(pubsub_topic, topic) for topic in topics]

    def _bad_topics(self, topics: dict[str, None]) -> FilterVerdict | None:
        if len(topics) > self._limits.max_request_topics:
            return FilterVerdict(
                FilterStatus.BAD_REQUEST, f"more than {self._limits.max_request_topics} content topics in one request"
            )
        if "" in topics:
            return FilterVerdict(FilterStatus.BAD_REQUEST, "a content topic is empty")
        return None

    # The old filter

    def apply_old(self, subscriber: S, request_id: str, request: FilterRequest, now: float) -> FilterVerdict:
        """Do what a FilterRequest asks for. Nobody is told the verdict: it is there to be counted.

        A second one with the same id, which is against the specification, replaces the first.
        """
        topics = dict.fromkeys(request.content_topics)
        if not request.topic and not topics:
            return FilterVerdict(FilterStatus.BAD_REQUEST, "neither a topic nor a content filter is given")
        if refused := self._bad_topics(topics):
            return refused
        pubsub_topic = request.topic or ANY
        criteria = [Criterion(pubsub_topic, topic) for topic in topics] or [Criterion(pubsub_topic, ANY)]
        known = self._heard_of(subscriber, now)
        if not request.subscribe:
            return self._unsubscribe_old(subscriber, known, set(criteria))
        old = {} if known is None else known.old
        replaced = old.get(request_id)
        if replaced is None and len(old) >= MAX_OLD_REQUESTS:
            return FilterVerdict(FilterStatus.SERVICE_UNAVAILABLE, f"peer has made {MAX_OLD_REQUESTS} requests")
        if refused := self._no_room(subscriber, criteria, 0 if replaced is None else len(replaced), now):
            return refused
        known = self._known(subscriber, now)
        if replaced is not None:
            self._index.clear(replaced)
        subscription = known.old[request_id] = Subscription(subscriber, request_id)
        for criterion in criteria:
            self._index.add(subscription, criterion)
        return OK

    def _unsubscribe_old(self, subscriber: S, known: _Subscriber[S] | None, named: set[Criterion]) -> FilterVerdict:
        """Stop pushing what these match, by whichever request it was asked for: the id of this one is a new one."""
        if known is None or not known.old:
            return NOT_FOUND
        for request_id, subscription in tuple(known.old.items()):
            for held in tuple(subscription.criteria):
                if held in named or (ANY, held.content_topic) in named or (held.pubsub_topic, ANY) in named:
                    self._index.remove(subscription, held)
            shared = _shared(subscription.criteria, named)
            for each in shared:
                self._index.exclude(subscription, each)
            if not subscription.criteria or (shared and self._is_too_full(known)):
                self._index.clear(subscription)  # rather is too little pushed than what nobody wants
                del known.old[request_id]
        self._remove_if_empty(subscriber, known)
        return OK

    # Life and room

    def connected(self, subscriber: S) -> None:
        """The subscriber is back; nothing happens if it was never gone."""
        self._gone.pop(subscriber, None)

    def gone(self, subscriber: S, now: float) -> None:
        """The last connection of the subscriber has ended."""
        if subscriber in self._subscribers:
            self._gone.setdefault(subscriber, now)

    def push_failed(self, subscriber: S, now: float) -> None:
        """A push did not reach the subscriber."""
        if subscriber in self._subscribers:
            self._failing.setdefault(subscriber, now)

    def push_reached(self, subscriber: S) -> None:
        """A push did."""
        if self._failing:
            self._failing.pop(subscriber, None)

    def next_timer(self) -> float | None:
        """When to call `expire`; None: there is nothing to wait for."""
        since = [next(iter(each.values())) for each in (self._gone, self._failing) if each]
        return min(since) + self._limits.unreachable_s if since else None

    def expire(self, now: float) -> list[S]:
        """Remove subscribers that could not be reached for long enough; return them, at most MAX_EXPIRED_AT_ONCE."""
        expired: list[S] = []
        while len(expired) < MAX_EXPIRED_AT_ONCE:
            for unreachable in (self._gone, self._failing):
                subscriber = next(iter(unreachable), None)
                if subscriber is not None and now >= unreachable[subscriber] + self._limits.unreachable_s:
                    self._remove(subscriber)
                    expired.append(subscriber)
                    break
            else:
                break
        return expired

    def _heard_of(self, subscriber: S, now: float) -> _Subscriber[S] | None:
        """What a subscriber has that has sent a request now."""
        known = self._subscribers.pop(subscriber, None)
        if known is not None:
            self._subscribers[subscriber] = known  # the last one again
            known.last_request = now
            self._failing.pop(subscriber, None)
        return known

    def _known(self, subscriber: S, now: float) -> _Subscriber[S]:
        known = self._subscribers.get(subscriber)
        if known is None:
            known = self._subscribers[subscriber] = _Subscriber(subscriber)
            known.last_request = now
        return known

    def _no_room(self, subscriber: S, wanted: list[Criterion], fewer: int, now: float) -> FilterVerdict | None:
        """Make room for criteria, while the subscriber gives up `fewer` others; say why there is none."""
        known = self._subscribers.get(subscriber)
        held = 0 if known is None else len(known) - fewer
        if held + len(wanted) > self._limits.max_criteria:
            return FilterVerdict(
                FilterStatus.SERVICE_UNAVAILABLE, f"peer may have no more than {self._limits.max_criteria} criteria"
            )
        while known is None and len(self._subscribers) >= self._limits.max_subscribers:
            if not self._evict(subscriber, now):
                return FilterVerdict(FilterStatus.SERVICE_UNAVAILABLE, "no room for more subscribers")
        while self._index.memory_bytes + self._index.cost(wanted) > self._limits.max_table_bytes:
            if not self._evict(subscriber, now):
                return FilterVerdict(FilterStatus.SERVICE_UNAVAILABLE, "no room for more criteria")
        return None

    def _is_too_full(self, known: _Subscriber[S]) -> bool:
        """Whether what was excluded takes more than there is room for."""
        return len(known) > self._limits.max_criteria or self._index.memory_bytes > self._limits.max_table_bytes

    def _evict(self, asking: S, now: float) -> bool:
        """Remove one subscriber that makes room for another; False if there is none."""
        for unreachable in (self._gone, self._failing):
            subscriber = next((each for each in unreachable if each != asking), None)
            if subscriber is not None:
                self._remove(subscriber)
                return True
        silent = next(iter(self._subscribers), asking)
        if silent == asking or now - self._subscribers[silent].last_request <= self._limits.silent_s:
            return False
        self._remove(silent)
        return True

    def _remove_if_empty(self, subscriber: S, known: _Subscriber[S]) -> None:
        if not len(known):
            self._remove(subscriber)

    def _remove(self, subscriber: S) -> None:
        for subscription in self._subscribers.pop(subscriber).subscriptions:
            self._index.clear(subscription)
        self._gone.pop(subscriber, None)
        self._failing.pop(subscriber, None)


def _shared(held: set[Criterion], named: set[Criterion]) -> list[Criterion]:
    """Those of `named` that match messages which `held` matches, too, though they do not match all of them."""
    is_any_pubsub = any(each.pubsub_topic == ANY for each in held)
    is_any_content = any(each.content_topic == ANY for each in held)
    shared = []
    for each in named:
        pubsub_topic, content_topic = each
        if pubsub_topic == ANY:
            is_shared = is_any_content
        elif content_topic == ANY:
            is_shared = is_any_pubsub
        else:
            is_shared = (ANY, content_topic) in held or (pubsub_topic, ANY) in held
        if is_shared:
            shared.append(each)
    return shared
