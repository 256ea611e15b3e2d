"""mailserver.waku2.criteria: which subscriptions want a message; what that costs."""

import tracemalloc
from collections.abc import Callable
from itertools import product
from time import process_time

from mailserver.waku2.criteria import ANY, CriteriaIndex, Criterion, Subscription

P, Q = "/waku/2/rs/1/4", "/waku/2/rs/1/5"


def index_of(*subscriptions: tuple[str, list[tuple[str, str]]]) -> tuple[CriteriaIndex[str], list[Subscription[str]]]:
    index: CriteriaIndex[str] = CriteriaIndex()
    made = []
    for name, criteria in subscriptions:
        subscription = Subscription(name, None)
        for criterion in criteria:
            index.add(subscription, Criterion(*criterion))
        made.append(subscription)
    return index, made


def names(index: CriteriaIndex[str], pubsub_topic: str, content_topic: str) -> list[str]:
    matches = index.matches(pubsub_topic, content_topic)
    assert index.is_wanted(pubsub_topic, content_topic) == bool(matches)
    return [each.subscriber for each in matches]


def test_message_matches_by_both_topics_or_by_the_one_that_is_given() -> None:
    index, _ = index_of(("exact", [(P, "a")]), ("any pubsub", [(ANY, "a")]), ("any content", [(P, ANY)]))

    assert names(index, P, "a") == ["exact", "any pubsub", "any content"]
    assert names(index, Q, "a") == ["any pubsub"]
    assert names(index, P, "b") == ["any content"]
    assert names(index, Q, "b") == []


def test_subscription_that_matches_by_several_criteria_is_found_once() -> None:
    index, [subscription] = index_of(("all", [(P, "a"), (ANY, "a"), (P, ANY)]))

    assert index.matches(P, "a") == [subscription]
    assert len(subscription) == 3


def test_what_is_excluded_of_wider_criteria_is_not_matched() -> None:
    index, [subscription] = index_of(("wide", [(P, ANY)]))
    index.exclude(subscription, Criterion(P, "a"))
    index.exclude(subscription, Criterion(ANY, "b"))

    assert [topic for topic in "abc" if names(index, P, topic)] == ["c"]
    assert [topic for topic in "abc" if subscription.wants(P, topic)] == ["c"]
    assert len(subscription) == 3


def test_subscription_that_is_cleared_wants_nothing_and_takes_nothing() -> None:
    index, (one, other) = index_of(("one", [(P, "a"), (P, ANY)]), ("other", [(P, "a")]))
    alone = index.memory_bytes
    index.exclude(one, Criterion(P, "b"))
    assert index.memory_bytes > alone

    index.clear(one)

    assert names(index, P, "a") == ["other"]
    assert not one.wants(P, "a")
    index.clear(other)
    assert (len(index), index.memory_bytes) == (0, 0)


def test_cost_is_what_adding_takes() -> None:
    index, [subscription] = index_of(("one", [(P, "a")]))
    wanted = [Criterion(P, "a"), Criterion(P, "b" * 100)]
    before, cost = index.memory_bytes, index.cost(wanted)
    other = Subscription("other", None)

    for criterion in wanted:
        index.add(other, criterion)

    assert index.memory_bytes == before + cost
    assert subscription.wants(P, "a")


def fresh(text: str) -> str:
    """The same text in another object, as it comes out of every packet."""
    return text.encode().decode()


def filled(subscribers: int, topics: list[list[str]]) -> CriteriaIndex[int]:
    index: CriteriaIndex[int] = CriteriaIndex()
    for subscriber, wanted in zip(range(subscribers), topics, strict=True):
        subscription = Subscription(subscriber, None)
        for topic in wanted:
            index.add(subscription, Criterion(fresh(P), fresh(topic)))
    return index


def test_memory_is_at_most_what_is_counted() -> None:
    shared = [[f"/waku/1/0x{number:08x}/rfc26" for number in range(100)]] * 100
    own = [[f"/waku/1/0x{100 * which + number:08x}/rfc26" for number in range(100)] for which in range(100)]
    for topics in (shared, own):
        tracemalloc.start()
        try:
            index = filled(100, topics)
            taken = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

        assert index.memory_bytes / 4 < taken < index.memory_bytes


def cpu_of(look: Callable[[str, str], object], topics: list[str]) -> float:
    """The least that it takes to look for each of these, in seconds."""
    took = []
    for _ in range(5):
        began = process_time()
        for topic in topics:
            look(P, topic)
        took.append(process_time() - began)
    return min(took)


def test_matching_does_not_depend_on_how_many_criteria_there_are() -> None:
    """One subscriber for each message: among 500 criteria, and among 250,000 of 500 subscribers."""
    few = filled(1, [[f"/{number}" for number in range(500)]])
    many = filled(500, [[f"/{500 * which + number}" for number in range(500)] for which in range(500)])
    topics = [f"/{number}" for number in range(500)]

    assert all(len(index.matches(P, topic)) == 1 for index, topic in product((few, many), topics))
    assert cpu_of(many.matches, topics) < 20 * cpu_of(few.matches, topics)  # a scan would be 500 times


def test_whether_a_topic_is_wanted_takes_no_longer_where_many_want_it() -> None:
    few, many = filled(1, [["/a"]]), filled(1000, [["/a"]] * 1000)

    assert cpu_of(many.is_wanted, ["/a"] * 200) < 20 * cpu_of(few.is_wanted, ["/a"] * 200)  # or 1,000 times
