"""mailserver.waku2.subscriptions: what is answered, what is matched, and how long it lasts."""

import pytest

from mailserver.waku2.codes import FilterStatus
from mailserver.waku2.filter_packets import FilterSubscribeRequest, FilterSubscribeResponse, FilterSubscribeType
from mailserver.waku2.old_filter import FilterRequest
from mailserver.waku2.subscriptions import (
    MAX_EXPIRED_AT_ONCE,
    MAX_OLD_REQUESTS,
    SILENT_S,
    UNREACHABLE_S,
    SubscriptionLimits,
    Subscriptions,
)

P, Q = "/waku/2/rs/1/4", "/waku/2/rs/1/5"
NOW = 1000.0
OK, BAD, NONE, FULL = 200, 400, 404, 503


def table(**limits: float) -> Subscriptions[str]:
    return Subscriptions(SubscriptionLimits(**limits))  # type: ignore[arg-type]  # each test gives one of them


def subscribed(*subscribers: str, topics: tuple[str, ...] = ("a",), **limits: float) -> Subscriptions[str]:
    made = table(**limits)
    for subscriber in subscribers:
        assert made.subscribe(subscriber, P, topics, NOW).status == OK
    return made


def found(made: Subscriptions[str], pubsub_topic: str, content_topic: str) -> list[tuple[str, str | None]]:
    return [(each.subscriber, each.request_id) for each in made.matches(pubsub_topic, content_topic)]


def old(made: Subscriptions[str], request_id: str, topic: str = "", *topics: str, stop: bool = False) -> int:
    """What the subscriber `old` is answered, if anybody answered it."""
    return made.apply_old("old", request_id, FilterRequest(not stop, topic, topics), NOW).status


# filter-subscribe


def test_each_type_of_request_is_answered_with_its_id() -> None:
    made = table()
    kinds = FilterSubscribeType

    answers = [
        made.answer("peer", FilterSubscribeRequest(f"id-{number}", kind, pubsub_topic, topics), NOW)
        for number, (kind, pubsub_topic, topics) in enumerate(
            [
                (kinds.SUBSCRIBER_PING, None, ()),
                (kinds.SUBSCRIBE, P, ("a", "b")),
                (kinds.SUBSCRIBER_PING, None, ()),
                (kinds.UNSUBSCRIBE, P, ("a",)),
                (kinds.UNSUBSCRIBE_ALL, None, ()),
                (kinds.UNSUBSCRIBE_ALL, None, ()),
            ]
        )
    ]

    ok, none = (OK, "OK"), (NONE, "peer has no subscriptions")
    assert answers == [
        FilterSubscribeResponse(f"id-{number}", *expected)
        for number, expected in enumerate([none, ok, ok, ok, ok, none])
    ]


def test_what_is_subscribed_to_is_matched_and_nothing_else() -> None:
    made = subscribed("one", topics=("a", "b"))
    made.subscribe("other", Q, ("a",), NOW)

    assert found(made, P, "a") == [("one", None)]
    assert found(made, P, "b") == [("one", None)]
    assert found(made, Q, "a") == [("other", None)]
    assert found(made, Q, "b") == found(made, P, "c") == []
    assert (len(made), made.criteria) == (2, 3)


def test_nothing_is_matched_after_an_unsubscribe_nor_what_still_waits() -> None:
    made = subscribed("one", topics=("a", "b"))
    [waiting] = made.matches(P, "a")

    assert made.unsubscribe("one", P, ("a",), NOW).status == OK

    assert found(made, P, "a") == []
    assert not waiting.wants(P, "a")
    assert waiting.wants(P, "b")


def test_unsubscribe_all_removes_everything_whatever_it_names() -> None:
    """js-waku names the pubsub topic, which the specification says it should not."""
    made = subscribed("one", topics=("a", "b"))
    made.apply_old("one", "r", FilterRequest(True, P, ("a",)), NOW)
    [waiting, _] = made.matches(P, "a")

    request = FilterSubscribeRequest("id", FilterSubscribeType.UNSUBSCRIBE_ALL, Q, ("c",))
    assert made.answer("one", request, NOW).status_code == OK

    assert found(made, P, "a") == found(made, P, "b") == []
    assert not waiting.wants(P, "b")
    assert (len(made), made.criteria, made.memory_bytes) == (0, 0, 0)


def test_last_unsubscribe_gives_the_slot_back() -> None:
    made = subscribed("one", topics=("a", "b"), max_subscribers=1)

    assert made.unsubscribe("one", P, ("a", "b", "c"), NOW).status == OK

    assert made.ping("one", NOW).status == NONE
    assert made.subscribe("other", P, ("a",), NOW).status == OK


@pytest.mark.parametrize(
    ("pubsub_topic", "topics", "text"),
    [
        (None, ("a",), "pubsub_topic and content_topics must be given"),
        ("", ("a",), "pubsub_topic and content_topics must be given"),
        (P, (), "pubsub_topic and content_topics must be given"),
        (P, ("a", ""), "a content topic is empty"),
        (P, tuple(map(str, range(101))), "more than 100 content topics in one request"),
    ],
)
def test_malformed_request_is_refused(pubsub_topic: str | None, topics: tuple[str, ...], text: str) -> None:
    made = subscribed("one")
    for verdict in (
        made.subscribe("one", pubsub_topic, topics, NOW),
        made.unsubscribe("one", pubsub_topic, topics, NOW),
    ):
        assert verdict == (FilterStatus.BAD_REQUEST, text)
    assert made.criteria == 1


def test_100_topics_are_taken_and_repeated_ones_are_one() -> None:
    made = table()

    assert made.subscribe("one", P, [*map(str, range(100)), "5"], NOW).status == OK
    assert made.criteria == 100


def test_unsubscribe_of_a_stranger_is_not_found_and_of_strange_topics_no_fault() -> None:
    made = subscribed("one")

    assert made.unsubscribe("other", P, ("a",), NOW).status == NONE
    assert made.unsubscribe("one", P, ("b",), NOW).status == OK
    assert found(made, P, "a") == [("one", None)]


# Limits


def test_criteria_of_a_peer_are_limited_and_known_ones_count_once() -> None:
    made = subscribed("one", topics=("a", "b", "c"), max_criteria=4)

    assert made.subscribe("one", P, ("c", "d", "e"), NOW) == (FULL, "peer may have no more than 4 criteria")
    assert found(made, P, "d") == []
    assert made.subscribe("one", P, ("a", "b", "c", "d"), NOW).status == OK
    assert old(made, "r", P, "a") == OK


def test_criteria_of_both_filters_count_together() -> None:
    made = table(max_criteria=2)
    made.subscribe("old", P, ("a",), NOW)

    assert old(made, "r", P, "a", "b") == FULL
    assert old(made, "r", P, "a") == OK
    assert old(made, "r", P, "b") == OK, "it replaces the one before"
    assert made.subscribe("old", P, ("c",), NOW).status == FULL


def test_subscribers_are_limited() -> None:
    made = subscribed("one", "two", max_subscribers=2)

    assert made.subscribe("three", P, ("a",), NOW) == (FULL, "no room for more subscribers")
    assert made.subscribe("two", P, ("b",), NOW).status == OK
    assert "three" not in made


def test_memory_of_all_criteria_is_limited() -> None:
    made = subscribed("one", topics=("a" * 500,), max_table_bytes=1500)

    assert made.subscribe("two", P, ("b" * 500,), NOW) == (FULL, "no room for more criteria")
    assert made.subscribe("two", P, ("a" * 500,), NOW).status == OK, "it takes little to share one"
    assert made.memory_bytes <= 1500
    made.unsubscribe_all("two")
    made.gone("one", NOW)
    assert made.subscribe("two", P, ("b" * 500,), NOW).status == OK, "who is gone makes room"
    assert "one" not in made


# Life


def test_subscriber_that_is_gone_stays_for_a_minute() -> None:
    made = subscribed("one", "two")
    assert made.next_timer() is None
    made.gone("one", NOW)
    made.gone("one", NOW + 50)

    assert made.next_timer() == NOW + UNREACHABLE_S
    assert made.expire(NOW + UNREACHABLE_S - 0.1) == []
    assert found(made, P, "a") == [("one", None), ("two", None)]
    assert made.expire(NOW + UNREACHABLE_S) == ["one"]
    assert found(made, P, "a") == [("two", None)]
    assert made.next_timer() is None


def test_subscriber_that_comes_back_keeps_what_it_has() -> None:
    made = subscribed("one")
    made.gone("one", NOW)
    made.connected("one")

    assert made.expire(NOW + 1000) == []
    made.gone("one", NOW + 1000)
    assert made.next_timer() == NOW + 1000 + UNREACHABLE_S


def test_request_that_was_late_does_not_keep_a_subscriber_that_is_gone() -> None:
    made = subscribed("one")
    made.gone("one", NOW)

    assert made.ping("one", NOW + 1).status == OK
    assert made.subscribe("one", P, ("b",), NOW + 1).status == OK
    assert made.expire(NOW + UNREACHABLE_S) == ["one"]


@pytest.mark.parametrize("kept", ["push", "ping", "subscribe", "old request"])
def test_subscriber_that_cannot_be_pushed_to_goes_unless_something_comes_of_it(kept: str) -> None:
    made = subscribed("one", "two")
    for subscriber in ("one", "two"):
        made.push_failed(subscriber, NOW)
        made.push_failed(subscriber, NOW + 30)
    match kept:
        case "push":
            made.push_reached("two")
        case "ping":
            made.ping("two", NOW + 31)
        case "subscribe":
            made.subscribe("two", P, ("a",), NOW + 31)
        case _:
            made.apply_old("two", "r", FilterRequest(True, P, ()), NOW + 31)

    assert made.next_timer() == NOW + UNREACHABLE_S
    assert made.expire(NOW + UNREACHABLE_S) == ["one"]
    assert made.next_timer() is None


def test_subscriber_that_is_connected_and_silent_stays() -> None:
    made = subscribed("one")

    assert made.next_timer() is None
    assert made.expire(NOW + 1e6) == []
    assert made.ping("one", NOW + 1e6).status == OK


def test_strangers_have_no_life() -> None:
    made = table()
    made.gone("one", NOW)
    made.push_failed("one", NOW)
    made.push_reached("one")
    made.connected("one")

    assert made.next_timer() is None


def test_few_expire_at_a_time() -> None:
    names = [f"{number:03}" for number in range(MAX_EXPIRED_AT_ONCE + 2)]
    made = subscribed(*names)
    for name in names:
        made.gone(name, NOW)

    assert made.expire(NOW + UNREACHABLE_S) == names[:MAX_EXPIRED_AT_ONCE]
    assert made.next_timer() == NOW + UNREACHABLE_S
    assert made.expire(NOW + UNREACHABLE_S) == names[MAX_EXPIRED_AT_ONCE:]
    assert len(made) == 0


def test_where_slots_are_short_the_longest_gone_goes_first() -> None:
    made = subscribed("here", "failing", "gone late", "gone early", max_subscribers=4)
    made.push_failed("failing", NOW)
    made.gone("gone early", NOW + 1)
    made.gone("gone late", NOW + 2)

    lost = []
    for number in range(4):
        before = {name for name in ("here", "failing", "gone late", "gone early") if name in made}
        status = made.subscribe(f"new {number}", P, ("a",), NOW + 3).status
        lost.append((status, [name for name in before if name not in made]))

    assert lost == [(OK, ["gone early"]), (OK, ["gone late"]), (OK, ["failing"]), (FULL, [])]


def test_subscriber_that_has_forgotten_a_topic_has_asked_for_nothing() -> None:
    made = subscribed("one", "two", topics=("a", "b"), max_subscribers=2)
    made.push_failed("one", NOW)

    made.forget("one", P, "a")
    made.forget("one", P, "unknown")
    made.forget("nobody", P, "a")

    assert found(made, P, "a") == [("two", None)]
    assert found(made, P, "b") == [("one", None), ("two", None)]
    assert made.subscribe("new", P, ("a",), NOW + 1).status == OK  # it still makes room
    assert "one" not in made
    made.forget("two", P, "a")
    made.forget("two", P, "b")
    assert "two" not in made


def test_where_slots_are_short_the_longest_silent_goes_after_five_minutes() -> None:
    made = subscribed("one", "two", max_subscribers=2)
    made.ping("one", NOW + 10)

    assert made.subscribe("new", P, ("a",), NOW + SILENT_S).status == FULL
    assert made.subscribe("new", P, ("a",), NOW + SILENT_S + 1).status == OK
    assert "one" in made
    assert "two" not in made


def test_who_asks_for_room_does_not_make_it() -> None:
    made = subscribed("one", max_table_bytes=1000)
    made.gone("one", NOW)

    assert made.subscribe("one", P, ("b",), NOW + 1).status == FULL
    assert "one" in made


# The old filter


def test_each_push_is_for_the_request_that_matched() -> None:
    made = table()
    assert old(made, "first", P, "a", "b") == OK
    assert old(made, "second", P, "b", "c") == OK

    assert found(made, P, "a") == [("old", "first")]
    assert found(made, P, "b") == [("old", "first"), ("old", "second")]
    assert found(made, P, "c") == [("old", "second")]


def test_request_may_leave_out_the_topic_or_the_content_filters() -> None:
    made = table()
    old(made, "any pubsub", "", "a")
    old(made, "any content", P)

    assert found(made, P, "a") == [("old", "any pubsub"), ("old", "any content")]
    assert found(made, Q, "a") == [("old", "any pubsub")]
    assert found(made, P, "b") == [("old", "any content")]
    assert found(made, Q, "b") == []


@pytest.mark.parametrize("stop", [False, True])
def test_request_with_neither_is_refused(*, stop: bool) -> None:
    made = table()
    old(made, "r", P, "a")

    verdict = made.apply_old("old", "s", FilterRequest(not stop), NOW)

    assert verdict == (FilterStatus.BAD_REQUEST, "neither a topic nor a content filter is given")
    assert found(made, P, "a") == [("old", "r")]


def test_empty_content_filter_does_not_stand_for_all() -> None:
    made = table()

    assert old(made, "r", P, "a", "") == BAD
    assert found(made, P, "a") == []


def test_too_many_content_filters_or_requests_are_refused() -> None:
    made = table()

    assert old(made, "r", P, *map(str, range(101))) == BAD
    assert [old(made, f"{number}", P, "a") for number in range(MAX_OLD_REQUESTS)] == [OK] * MAX_OLD_REQUESTS
    assert old(made, "one more", P, "a") == FULL
    assert old(made, "0", P, "b") == OK, "it replaces another"


def test_request_with_the_same_id_replaces_the_first() -> None:
    made = table()
    old(made, "r", P, "a", "b")
    [waiting] = made.matches(P, "a")
    old(made, "r", P, "b", "c")

    assert [found(made, P, topic) for topic in "abc"] == [[], [("old", "r")], [("old", "r")]]
    assert not waiting.wants(P, "a")


def test_partial_unsubscribe_leaves_the_rest_whatever_its_id() -> None:
    made = table()
    old(made, "first", P, "a", "b")
    old(made, "second", P, "b")

    assert old(made, "a new id", P, "b", stop=True) == OK

    assert found(made, P, "a") == [("old", "first")]
    assert found(made, P, "b") == []
    assert old(made, "another id", P, "a", stop=True) == OK
    assert "old" not in made
    assert old(made, "another id", P, "a", stop=True) == NONE


def test_wider_unsubscribe_removes_what_it_covers() -> None:
    made = table()
    old(made, "one", P, "a", "b")
    old(made, "other", Q, "a", "b")

    old(made, "u", "", "a", stop=True)
    assert [bool(found(made, *topics)) for topics in ((P, "a"), (P, "b"), (Q, "a"), (Q, "b"))] == [False, True] * 2
    old(made, "v", P, stop=True)
    assert [bool(found(made, *topics)) for topics in ((P, "b"), (Q, "b"))] == [False, True]


def test_narrower_unsubscribe_takes_away_only_what_it_names() -> None:
    made = table()
    old(made, "one", P)
    old(made, "other", "", "a")

    old(made, "u", P, "a", stop=True)
    assert found(made, P, "a") == []
    assert found(made, P, "b") == [("old", "one")]
    assert found(made, Q, "a") == [("old", "other")]
    old(made, "new", P, "a")
    assert found(made, P, "a") == [("old", "new")], "what was asked for later is not taken away"


def test_subscription_with_too_much_taken_away_ends() -> None:
    made = table(max_criteria=3)
    old(made, "r", P)
    old(made, "u", P, "a", "b", stop=True)
    assert found(made, P, "c") == [("old", "r")]

    old(made, "u", P, "d", stop=True)

    assert found(made, P, "c") == []
    assert (len(made), made.memory_bytes) == (0, 0)


def test_old_filter_and_filter_subscribe_have_their_own() -> None:
    made = table()
    old(made, "r", P, "a")

    assert made.ping("old", NOW).status == NONE
    assert made.unsubscribe("old", P, ("a",), NOW).status == NONE
    made.subscribe("old", P, ("a",), NOW)
    assert found(made, P, "a") == [("old", "r"), ("old", None)]
    assert old(made, "u", P, "a", stop=True) == OK
    assert found(made, P, "a") == [("old", None)]
