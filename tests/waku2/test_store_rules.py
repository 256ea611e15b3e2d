"""mailserver.waku2.store_rules: which queries are answered, and the pages that answers are cut into."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.ids.waku_message import MAX_MESSAGE_BYTES, MessageHash, WakuMessage
from mailserver.waku2.frames import encode_frame
from mailserver.waku2.store_query import MAX_ANSWER_BYTES, StoreQueryRequest, StoreQueryResponse, WakuMessageKeyValue
from mailserver.waku2.store_rules import (
    MAX_PAGE_ENTRIES,
    UNKNOWN_CURSOR,
    StoreQuery,
    StoreRefusal,
    check_query,
    page_of,
)
from tests.waku2.packets import FULL, PUBSUB, hash_of, key_values

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
        (replace(ALL, message_hashes=(hash_of(1), bytes(31))), "one of message_hashes is not 32 bytes"),
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


def entries(count: int, message: WakuMessage | None = None) -> list[WakuMessageKeyValue]:
    """Entries in their order; those of a page that goes back are given the other way round."""
    topic = None if message is None else PUBSUB
    return [WakuMessageKeyValue(MessageHash(number.to_bytes(32, "big")), message, topic) for number in range(count)]


def test_page_forward_ends_with_its_cursor_if_more_remains() -> None:
    query, found = checked(replace(ALL, pagination_forward=True, pagination_limit=3)), entries(4)

    assert page_of("id", query, found) == StoreQueryResponse("id", 200, "OK", tuple(found[:3]), found[2].message_hash)
    assert page_of("id", query, found[:3]).pagination_cursor is None
    assert page_of("id", query, []) == StoreQueryResponse("id", 200, "OK")


def test_page_backward_begins_with_its_cursor_and_is_in_order() -> None:
    query, found = checked(replace(ALL, pagination_limit=3)), entries(6)[::-1]

    page = page_of("id", query, found[:4])

    assert page.messages == tuple(entries(6)[3:])
    assert page.pagination_cursor == page.messages[0].message_hash == found[2].message_hash
    assert page_of("id", query, found[:3]).pagination_cursor is None


@pytest.mark.parametrize("is_forward", [False, True])
def test_page_of_long_messages_fits_into_what_clients_read(*, is_forward: bool) -> None:
    found = entries(100, replace(FULL, payload=bytes(150_000)))
    query = checked(replace(ALL, include_data=True, pagination_forward=is_forward, pagination_limit=100))

    page = page_of("i" * 256, query, found)

    assert 20 < len(page.messages) < 28
    assert len(encode_frame(page.encode())) < MAX_ANSWER_BYTES
    last = page.messages[-1] if is_forward else page.messages[0]
    assert page.pagination_cursor == last.message_hash == found[len(page.messages) - 1].message_hash


def test_longest_message_fits_into_a_page_by_itself() -> None:
    longest = WakuMessage(bytes(MAX_MESSAGE_BYTES - 64), "c")
    query = checked(replace(ALL, include_data=True))

    page = page_of("id", query, entries(9, longest))

    assert len(page.messages) == 3
    assert len(page.encode()) < MAX_ANSWER_BYTES


@given(found=st.lists(key_values, max_size=8), limit=st.integers(1, 8), is_forward=st.booleans())
def test_pages_walk_over_everything_once(found: list[WakuMessageKeyValue], limit: int, *, is_forward: bool) -> None:
    query = checked(replace(ALL, pagination_forward=is_forward, pagination_limit=limit))
    rest, walked, cursor = list(found), list[WakuMessageKeyValue](), True
    while cursor:
        page = page_of("id", query, rest[: limit + 1])
        walked += page.messages if is_forward else reversed(page.messages)
        rest = rest[len(page.messages) :]
        cursor = page.pagination_cursor is not None
        assert len(page.messages) <= min(limit, MAX_PAGE_ENTRIES)

    assert walked == found
