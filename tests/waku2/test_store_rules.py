"""mailserver.waku2.store_rules: which queries are answered."""

from dataclasses import replace

import pytest

from mailserver.waku2.store_query import StoreQueryRequest, StoreQueryResponse
from mailserver.waku2.store_rules import (
    UNKNOWN_CURSOR,
    StoreQuery,
    StoreRefusal,
    check_query,
)
from tests.waku2.packets import PUBSUB, hash_of

ALL = StoreQueryRequest("id")
BY_TOPIC = replace(ALL, pubsub_topic=PUBSUB, content_topics=("a", "b"))
BY_HASH = replace(ALL, message_hashes=(hash_of(1), hash_of(2)))


def checked(request: StoreQueryRequest) -> StoreQuery:
    query = check_query(request)
    assert isinstance(query, StoreQuery), query
    return query


def test_query_without_anything_asks_for_all_hashes_backwards() -> None:
    assert checked(ALL) == StoreQuery(
        include_data=False,
        message_hashes=(),
        pubsub_topic=None,
        content_topics=(),
        time_start=None,
        time_end=None,
        cursor=None,
        is_forward=False,
        limit=20,
    )


def test_query_by_topics_keeps_each_once() -> None:
    request = replace(
        BY_TOPIC,
        content_topics=("b", "a", "b"),
        include_data=True,
        time_start=-5,
        time_end=6,
        pagination_cursor=hash_of(9),
        pagination_forward=True,
    )

    assert checked(request) == StoreQuery(True, (), PUBSUB, ("b", "a"), -5, 6, hash_of(9), True, 20)


def test_pubsub_topic_beside_hashes_is_ignored_as_js_waku_sends_it() -> None:
    query = checked(replace(BY_HASH, pubsub_topic="/another", message_hashes=(hash_of(2), hash_of(1), hash_of(2))))

    assert (query.message_hashes, query.pubsub_topic) == ((hash_of(2), hash_of(1)), None)
    assert not query.has_nothing(PUBSUB)


@pytest.mark.parametrize(("asked", "limit"), [(None, 20), (0, 20), (1, 1), (100, 100), (101, 100), (2**64 - 1, 100)])
def test_page_has_a_lawful_length(asked: int | None, limit: int) -> None:
    assert checked(replace(ALL, pagination_limit=asked)).limit == limit


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (replace(ALL, pubsub_topic=PUBSUB), "pubsub_topic and content_topics must both be given, or neither"),
        (replace(ALL, content_topics=("a",)), "pubsub_topic and content_topics must both be given, or neither"),
        (replace(BY_TOPIC, pubsub_topic=""), "pubsub_topic and content_topics must both be given, or neither"),
        (replace(BY_TOPIC, content_topics=tuple(map(str, range(101)))), "more than 100 content_topics"),
        (
            replace(ALL, message_hashes=tuple(number.to_bytes(32, "big") for number in range(1001))),
            "more than 1000 message_hashes",
        ),
        (
            replace(ALL, message_hashes=(hash_of(1), bytes(31))),
            "one of message_hashes is neither 32 bytes nor a MUID",
        ),
        (replace(ALL, message_hashes=(bytes(65),)), "one of message_hashes is neither 32 bytes nor a MUID"),
        (
            replace(ALL, message_hashes=tuple(number.to_bytes(52, "big") for number in range(101))),
            "more than 100 MUIDs in message_hashes",
        ),
        (
            replace(ALL, message_hashes=(bytes(33),), time_start=0),
            "message_hashes exclude content_topics, time_start and time_end",
        ),
        (
            replace(BY_HASH, content_topics=("a",)),
            "message_hashes exclude content_topics, time_start and time_end",
        ),
        (replace(BY_HASH, time_start=0), "message_hashes exclude content_topics, time_start and time_end"),
        (replace(BY_HASH, time_end=1), "message_hashes exclude content_topics, time_start and time_end"),
        (replace(ALL, pagination_cursor=b""), "pagination_cursor is not 32 bytes"),
        (replace(BY_HASH, pagination_cursor=bytes(33)), "pagination_cursor is not 32 bytes"),
        (replace(ALL, pagination_cursor=bytes(32)), "pagination_cursor is all zeros"),
    ],
)
def test_query_against_the_rules_is_refused_with_a_text(request_: StoreQueryRequest, text: str) -> None:
    refusal = check_query(request_)

    assert isinstance(refusal, StoreRefusal)
    assert refusal.answer("id") == StoreQueryResponse("id", 400, text)


def test_as_many_topics_and_hashes_as_there_may_be_are_taken() -> None:
    hashes = tuple(number.to_bytes(32, "big") for number in range(1000))

    assert len(checked(replace(ALL, message_hashes=hashes, pagination_cursor=hash_of(1))).message_hashes) == 1000
    assert len(checked(replace(BY_TOPIC, content_topics=tuple(map(str, range(100))))).content_topics) == 100


def test_names_longer_than_a_hash_are_muids() -> None:
    query = checked(replace(BY_HASH, message_hashes=(bytes(33), hash_of(1), bytes(64), bytes(33)), pubsub_topic="/a"))

    assert (query.message_hashes, query.muids) == ((hash_of(1),), (bytes(33), bytes(64)))
    assert (query.pubsub_topic, query.include_muids) == (None, False)
    assert not query.has_nothing(PUBSUB)
    assert not checked(replace(ALL, message_hashes=(bytes(52),), pubsub_topic="/a")).has_nothing(PUBSUB)


def test_muids_are_told_if_they_are_asked_for() -> None:
    assert checked(replace(BY_TOPIC, include_muids=True)).include_muids


def test_cursor_that_is_not_stored_is_a_bad_request() -> None:
    text = "pagination_cursor names no message that is stored here"
    assert UNKNOWN_CURSOR.answer("id") == StoreQueryResponse("id", 400, text)


@pytest.mark.parametrize(
    ("request_", "nothing"),
    [
        (ALL, False),
        (BY_TOPIC, False),
        (replace(BY_TOPIC, pubsub_topic="/another"), True),
        (replace(ALL, time_start=5, time_end=6), False),
        (replace(ALL, time_start=5, time_end=5), True),
        (replace(ALL, time_start=6, time_end=5), True),
        (replace(ALL, time_start=6), False),
        (replace(ALL, time_end=-1), False),
    ],
)
def test_query_that_nothing_can_match_is_known(request_: StoreQueryRequest, *, nothing: bool) -> None:
    assert checked(request_).has_nothing(PUBSUB) is nothing


# Pages
