"""Who wants which messages: an index from criteria to the subscriptions that have them.

A criterion is a pubsub topic and a content topic. Those of the old filter may leave out one of them: ANY stands in its
place. So a message is looked up three times, however many criteria there are.
"""

from collections.abc import Hashable, Iterable
from typing import Generic, NamedTuple, TypeVar

S = TypeVar("S", bound=Hashable)
"""What a subscriber is known by: its peer id."""

ANY = ""
"""Stands for every topic. No criterion is ANY twice."""

CRITERION_BYTES = 480
"""About what a criterion takes that nobody else has, besides its topics: measured with CPython 3.11."""

HELD_BYTES = 160
"""About what each subscription takes that has a criterion."""


class Criterion(NamedTuple):
    """Messages of this content topic on this pubsub topic."""

    pubsub_topic: str
    content_topic: str


def criteria_of(pubsub_topic: str, content_topic: str) -> tuple[Criterion, Criterion, Criterion]:
    """The criteria that a message of these topics matches."""
    return Criterion(pubsub_topic, content_topic), Criterion(ANY, content_topic), Criterion(pubsub_topic, ANY)


class Subscription(Generic[S]):
    """Some criteria of a subscriber: all those of filter-subscribe, or those of one FilterRequest of the old filter.

    `request_id`: of that FilterRequest; None: of filter-subscribe. `excluded`: what was taken away again of criteria
    that are wider, which only the old filter has.
    """

    __slots__ = ("criteria", "excluded", "request_id", "subscriber")

    def __init__(self, subscriber: S, request_id: str | None) -> None:
        self.subscriber = subscriber
        self.request_id = request_id
        self.criteria: set[Criterion] = set()
        self.excluded: set[Criterion] = set()

    def wants(self, pubsub_topic: str, content_topic: str) -> bool:
        """Whether a message of these topics matches now: what waits to be pushed may not be wanted any more."""
        matched = criteria_of(pubsub_topic, content_topic)
        return not self.criteria.isdisjoint(matched) and self.excluded.isdisjoint(matched)

    def __len__(self) -> int:
        """How many criteria it counts for."""
        return len(self.criteria) + len(self.excluded)


class _Entry(Generic[S]):
    """A criterion, one object for all that have it, and these in the order in which they came."""

    __slots__ = ("criterion", "subscriptions")

    def __init__(self, criterion: Criterion) -> None:
        self.criterion = criterion
        self.subscriptions: dict[Subscription[S], None] = {}


class CriteriaIndex(Generic[S]):
    """The criteria of all subscriptions."""

    def __init__(self) -> None:
        self._entries: dict[Criterion, _Entry[S]] = {}
        self._wide = 0  # how many of them have ANY in them
        self.taken_back = 0
        """How often a subscription has come to want less."""
        self.memory_bytes = 0
        """About what all this takes."""

    def __len__(self) -> int:
        return len(self._entries)

    def cost(self, criteria: Iterable[Criterion]) -> int:
        """About how many bytes these would take in addition, held by one more subscription."""
        return sum(HELD_BYTES + (0 if each in self._entries else _own_bytes(each)) for each in criteria)

    def add(self, subscription: Subscription[S], criterion: Criterion) -> None:
        """Add a criterion that the subscription has not."""
        entry = self._entries.get(criterion)
        if entry is None:
            entry = self._entries[criterion] = _Entry(criterion)
            self._wide += ANY in criterion
            self.memory_bytes += _own_bytes(criterion)
        entry.subscriptions[subscription] = None
        subscription.criteria.add(entry.criterion)
        self.memory_bytes += HELD_BYTES

    def remove(self, subscription: Subscription[S], criterion: Criterion) -> None:
        """Remove a criterion that the subscription has."""
        self.taken_back += 1
        entry = self._entries[criterion]
        del entry.subscriptions[subscription]
        subscription.criteria.remove(criterion)
        self.memory_bytes -= HELD_BYTES
        if not entry.subscriptions:
            del self._entries[criterion]
            self._wide -= ANY in criterion
            self.memory_bytes -= _own_bytes(criterion)

    def exclude(self, subscription: Subscription[S], criterion: Criterion) -> None:
        """Take something away of what the subscription has."""
        self.taken_back += 1
        if criterion not in subscription.excluded:
            subscription.excluded.add(criterion)
            self.memory_bytes += _own_bytes(criterion)

    def clear(self, subscription: Subscription[S]) -> None:
        """Remove all that the subscription has: it wants nothing any more."""
        for criterion in tuple(subscription.criteria):
            self.remove(subscription, criterion)
        self.memory_bytes -= sum(map(_own_bytes, subscription.excluded))
        subscription.excluded.clear()

    def matches(self, pubsub_topic: str, content_topic: str) -> list[Subscription[S]]:
        """The subscriptions that want a message of these topics, each once."""
        if not self._wide:  # as a rule: the old filter alone has such
            exact = self._entries.get(Criterion(pubsub_topic, content_topic))
            return [] if exact is None else list(exact.subscriptions)
        found: dict[Subscription[S], None] = {}
        for criterion in criteria_of(pubsub_topic, content_topic):
            if (entry := self._entries.get(criterion)) is not None:
                found.update(entry.subscriptions)
        return [each for each in found if not each.excluded or each.wants(pubsub_topic, content_topic)]

    def is_wanted(self, pubsub_topic: str, content_topic: str) -> bool:
        """Whether `matches` finds any: as soon as one is found."""
        return any(
            not each.excluded or each.wants(pubsub_topic, content_topic)
            for criterion in criteria_of(pubsub_topic, content_topic)
            if (entry := self._entries.get(criterion)) is not None
            for each in entry.subscriptions
        )


def _own_bytes(criterion: Criterion) -> int:
    return CRITERION_BYTES + len(criterion.pubsub_topic) + len(criterion.content_topic)
