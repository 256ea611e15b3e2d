"""mailserver.gateway.store_service: queries of store v3 over a client's connection, with every field and every code."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mailserver.gateway import rates as rates_module
from mailserver.gateway import store_service
from mailserver.gateway.index import follower as following
from mailserver.gateway.index.schema import INDEX_FILE
from mailserver.ids.envelopes import NS, content_topic_of, envelope_muid
from mailserver.ids.muid import muid
from mailserver.ids.waku_message import WakuMessage
from mailserver.metrics.gateway import ClientProtocol
from mailserver.store.retention import END_OF_TIME, Surplus
from mailserver.store.sqlite.schema import STORE_FILE
from mailserver.waku.envelope import Envelope
from mailserver.waku2.codes import StoreStatus as Status
from mailserver.waku2.protocols import ProtocolId
from mailserver.waku2.store_query import StoreQueryRequest, StoreQueryResponse
from mailserver.waku2.store_rules import DEFAULT_PAGE_ENTRIES, MAX_PAGE_ENTRIES
from tests.gateway.clients import LightClient
from tests.gateway.worlds import NEWS_TOPIC, TOPIC, Gateway, mapped, message, on_each_engine, running_gateway
from tests.mailservers import NOW, SPORT, make_envelope, stored
from tests.store.samples import change, make_store

pytestmark = pytest.mark.integration

SPORT_TOPIC = content_topic_of(SPORT)
JS_WAKU_MAX_BYTES = 4 * 1024 * 1024
ALL = StoreQueryRequest("all", include_data=True, pagination_forward=True)


def envelopes(count: int, *, data_bytes: int = 100) -> list[Envelope]:
    """One a second, the oldest first; each third is of another topic."""
    topics = (make_envelope(0).topic, make_envelope(0).topic, SPORT)
    return [
        make_envelope(number, created=NOW - count + number, topic=topics[number % 3], data_bytes=data_bytes, ttl=5000)
        for number in range(count)
    ]


def in_order(some: Sequence[Envelope]) -> list[WakuMessage]:
    return sorted(map(mapped, some), key=lambda each: (each.timestamp, each.hash(TOPIC)))


def filled(folder: Path, some: Sequence[Envelope]) -> Path:
    """A folder with a store that has these."""
    make_store(folder / STORE_FILE, [stored(each) for each in some])
    return folder


async def ask(client: LightClient, request: StoreQueryRequest) -> StoreQueryResponse:
    response = await client.query(request)
    assert response.request_id == request.request_id
    assert response.status_desc  # nwaku's client wants it to be there
    return response


async def walk(client: LightClient, request: StoreQueryRequest) -> list[list[WakuMessage | None]]:
    """All pages, as go-waku's client gets them."""
    pages = []
    while True:
        page = await ask(client, request)
        assert page.status_code == Status.OK
        pages.append([each.message for each in page.messages])
        if page.pagination_cursor is None:
            return pages
        request = replace(request, pagination_cursor=page.pagination_cursor)


# What is asked for


async def test_page_has_messages_with_hash_and_pubsub_topic(tmp_path: Path) -> None:
    some = envelopes(3)
    async with running_gateway(filled(tmp_path, some)) as gateway, gateway.client() as client:
        page = await ask(client, ALL)

    assert page.status_code == Status.OK
    assert [each.message for each in page.messages] == in_order(some)
    assert [each.message_hash for each in page.messages] == [each.hash(TOPIC) for each in in_order(some)]
    assert {each.pubsub_topic for each in page.messages} == {TOPIC}
    assert page.pagination_cursor is None


async def test_presence_is_asked_by_hashes_without_data(tmp_path: Path) -> None:
    some = envelopes(3)
    names = [each.hash(TOPIC) for each in in_order(some)]
    async with running_gateway(filled(tmp_path, some)) as gateway, gateway.client() as client:
        request = StoreQueryRequest("1", message_hashes=(names[2], bytes(31) + b"\1", names[0]))
        page = await ask(client, request)
        with_data = await ask(client, replace(request, include_data=True, pubsub_topic=TOPIC))

    assert [each.message_hash for each in page.messages] == [names[0], names[2]]
    assert {(each.message, each.pubsub_topic) for each in page.messages} == {(None, None)}
    assert [each.message for each in with_data.messages] == [in_order(some)[0], in_order(some)[2]]


async def test_messages_are_asked_for_by_muid_and_told_with_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mailserver.gateway.store_service")
    some = envelopes(4)
    muids = [envelope_muid(TOPIC, each) for each in some]
    sent = message(9, meta=b"of its application")
    async with running_gateway(filled(tmp_path, some)) as gateway, gateway.client() as client:
        assert (await client.lightpush(TOPIC, sent)).status_code == 200
        own = muid(TOPIC, sent.content_topic, sent.meta, sent.payload)
        request = StoreQueryRequest("1", message_hashes=(own, muids[2], bytes(52)), pubsub_topic=TOPIC)
        presence = await ask(client, request)
        with_data = await ask(client, replace(request, include_data=True))
        listed = await ask(client, replace(ALL, include_data=False, include_muids=True))
        usual = await ask(client, ALL)

    assert [(each.message, each.muid) for each in presence.messages] == [(None, muids[2]), (None, own)]
    assert [(each.message, each.muid) for each in with_data.messages] == [(mapped(some[2]), muids[2]), (sent, own)]
    assert [(each.message, each.muid) for each in listed.messages] == [(None, each) for each in (*muids, own)]
    assert {each.muid for each in usual.messages} == {None}
    assert "store query code=200 messages=2 hashes=3 topics=0" in caplog.text


async def test_muid_of_a_second_with_too_many_messages_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_service, "MAX_QUERY_WORK", 0)
    some = [make_envelope(number, created=NOW - 1, ttl=5000) for number in range(102)]
    nobody = envelope_muid(TOPIC, make_envelope(1000, created=NOW - 1, ttl=5000))
    async with running_gateway(filled(tmp_path, some)) as gateway, gateway.client() as client:
        page = await ask(client, StoreQueryRequest("1", message_hashes=(nobody,)))

    assert (page.status_code, page.messages) == (Status.SERVICE_UNAVAILABLE, ())
    assert page.status_desc == "too many messages were created when those of these MUIDs were, or have their meta"


async def test_times_are_nanoseconds_start_inclusive_and_end_exclusive(tmp_path: Path) -> None:
    some = envelopes(10)
    start, end = (NOW - 8) * NS, (NOW - 5) * NS
    async with running_gateway(filled(tmp_path, some)) as gateway, gateway.client() as client:
        page = await ask(client, replace(ALL, time_start=start, time_end=end))
        later = await ask(client, replace(ALL, time_start=start + 1))
        none = await ask(client, replace(ALL, time_start=end, time_end=start))

    assert [each.message for each in page.messages] == in_order(some)[2:5]
    assert [each.message for each in later.messages] == in_order(some)[3:]
    assert (none.status_code, none.messages) == (Status.OK, ())


async def test_topics_are_any_of_those_named(tmp_path: Path) -> None:
    some = envelopes(9)
    async with running_gateway(filled(tmp_path, some)) as gateway, gateway.client() as client:
        sport = await ask(client, replace(ALL, pubsub_topic=TOPIC, content_topics=(SPORT_TOPIC, "/a/1/b/proto")))
        both = await ask(client, replace(ALL, pubsub_topic=TOPIC, content_topics=(SPORT_TOPIC, NEWS_TOPIC)))
        elsewhere = await ask(client, replace(ALL, pubsub_topic="/waku/2/rs/1/5", content_topics=(SPORT_TOPIC,)))

    assert [each.message for each in sport.messages] == [
        each for each in in_order(some) if "0xf0c5" in each.content_topic
    ]
    assert len(both.messages) == 9
    assert (elsewhere.status_code, elsewhere.messages) == (Status.OK, ())


@pytest.mark.parametrize(
    ("limit", "got"), [(None, DEFAULT_PAGE_ENTRIES), (0, DEFAULT_PAGE_ENTRIES), (7, 7), (1000, 100)]
)
async def test_limit_is_20_by_default_and_100_at_most(tmp_path: Path, limit: int | None, got: int) -> None:
    assert MAX_PAGE_ENTRIES == 100
    async with running_gateway(filled(tmp_path, envelopes(101))) as gateway, gateway.client() as client:
        assert len((await ask(client, replace(ALL, pagination_limit=limit))).messages) == got


# Pages


@pytest.mark.parametrize("forward", [True, False])
async def test_walk_by_cursor_is_the_whole_history_in_ascending_pages(tmp_path: Path, forward: bool) -> None:
    some = envelopes(50)
    async with running_gateway(filled(tmp_path, some)) as gateway, gateway.client() as client:
        pages = await walk(client, replace(ALL, pagination_forward=forward, pagination_limit=20))

    assert [len(page) for page in pages] == [20, 20, 10]
    whole = pages if forward else pages[::-1]
    assert [each for page in whole for each in page] == in_order(some)


@on_each_engine
async def test_walk_goes_on_where_it_was_whatever_arrives_and_goes(gateway: Gateway) -> None:
    some = envelopes(30)
    await gateway.accept(*some[:20])
    async with gateway.client() as client:
        first = await ask(client, replace(ALL, pagination_limit=10))
        await gateway.accept(*some[20:])
        await gateway.daemon.store.prune(Surplus(END_OF_TIME, 12))
        rest = await walk(client, replace(ALL, pagination_limit=10, pagination_cursor=first.pagination_cursor))

    assert [each for page in rest for each in page] == in_order(some)[12:]


async def test_answer_ends_below_what_js_waku_reads(tmp_path: Path) -> None:
    some = envelopes(60, data_bytes=140_000)
    async with running_gateway(filled(tmp_path, some)) as gateway, gateway.client() as client:
        answer = await client.ask(ProtocolId.STORE_QUERY, replace(ALL, pagination_limit=100).encode())
        assert answer is not None
        assert 1024 * 1024 < len(answer) < JS_WAKU_MAX_BYTES
        pages = await walk(client, replace(ALL, pagination_limit=100))

    assert [each for page in pages for each in page] == in_order(some)


async def test_page_with_nothing_on_it_is_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """js-waku ends its walk at an empty page, whatever its cursor says."""
    monkeypatch.setattr(store_service, "MAX_QUERY_WORK", 0)
    some = envelopes(100)
    async with running_gateway(filled(tmp_path, some)) as gateway, gateway.client() as client:
        await ask(client, ALL)
        change(tmp_path / STORE_FILE, "DELETE FROM envelopes WHERE seq <= 70")
        page = await ask(client, ALL)

    assert page.messages
    assert page.messages[0].message == in_order(some)[70]


# Refusals


@pytest.mark.parametrize(
    "request_",
    [
        StoreQueryRequest("1", pubsub_topic=TOPIC),
        StoreQueryRequest("2", content_topics=(NEWS_TOPIC,)),
        StoreQueryRequest("3", pubsub_topic=TOPIC, content_topics=tuple(map(str, range(101)))),
        StoreQueryRequest("4", message_hashes=(b"short",)),
        StoreQueryRequest("4a", message_hashes=(bytes(33),), time_end=1),
        StoreQueryRequest("4b", message_hashes=tuple(number.to_bytes(52, "big") for number in range(101))),
        StoreQueryRequest("5", message_hashes=(bytes(32),), time_start=1),
        StoreQueryRequest("6", message_hashes=(bytes(32),), content_topics=(NEWS_TOPIC,), pubsub_topic=TOPIC),
        StoreQueryRequest("7", pagination_cursor=bytes(32)),
        StoreQueryRequest("8", pagination_cursor=b"short"),
        StoreQueryRequest("9", pagination_cursor=b"\1" * 32),
        StoreQueryRequest("10", pagination_cursor=b"\1" * 32, pagination_forward=True, include_data=True),
    ],
)
async def test_query_against_the_rules_is_answered_with_400_and_its_id(
    gateway: Gateway, request_: StoreQueryRequest
) -> None:
    await gateway.accept(make_envelope(1))
    async with gateway.client() as client:
        page = await ask(client, request_)

    assert (page.status_code, page.messages, page.pagination_cursor) == (Status.BAD_REQUEST, (), None)
    assert gateway.scraped('gateway_requests_total{code="400",protocol="store"}') == 1.0


async def test_address_that_asks_too_often_is_told_so_with_its_id(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, rates={ClientProtocol.STORE: 0.01}) as gateway, gateway.client() as client:
        assert (await ask(client, ALL)).status_code == Status.OK
        assert (await ask(client, ALL)).status_code == Status.TOO_MANY_REQUESTS


async def test_address_that_causes_too_much_work_is_told_so_until_it_has_paid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates_module, "STORE_WORK_PER_SECOND", 1.0)
    async with running_gateway(tmp_path, rates={ClientProtocol.STORE: 100.0}) as gateway, gateway.client() as client:
        assert (await ask(client, ALL)).status_code == Status.OK
        assert (await ask(client, ALL)).status_code == Status.TOO_MANY_REQUESTS


async def test_bytes_that_are_no_query_are_answered_with_400_and_what_can_be_read_of_their_id(gateway: Gateway) -> None:
    async with gateway.client() as client:
        malformed = await client.ask(ProtocolId.STORE_QUERY, StoreQueryRequest("id").encode() + b"\xff")
        assert (await ask(client, ALL)).status_code == Status.OK

    assert malformed == StoreQueryResponse("id", Status.BAD_REQUEST, Status.BAD_REQUEST.text).encode()


async def test_store_that_is_not_indexed_yet_is_unavailable_and_no_error_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(following, "MAX_BEHIND", -1)
    async with running_gateway(tmp_path) as gateway, gateway.client() as client:
        page = await ask(client, ALL)

    assert (page.status_code, page.status_desc) == (Status.SERVICE_UNAVAILABLE, "messages are not indexed yet")
    assert "store query failed" not in caplog.text


async def test_index_that_fails_is_unavailable_and_logged(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    change(gateway.daemon.folder / INDEX_FILE, "ALTER TABLE messages RENAME TO hidden")
    async with gateway.client() as client:
        page = await ask(client, ALL)

    assert page.status_code == Status.SERVICE_UNAVAILABLE
    assert "store query failed error=" in caplog.text


async def test_query_that_takes_too_long_is_unavailable(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_service, "QUERY_TIMEOUT_S", 0.0)
    async with gateway.client() as client:
        assert (await ask(client, ALL)).status_code == Status.SERVICE_UNAVAILABLE


# What is told


async def test_line_of_a_query_says_neither_who_nor_about_what(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mailserver.gateway.store_service")
    await gateway.accept(make_envelope(1))
    async with gateway.client() as client:
        await ask(client, replace(ALL, pubsub_topic=TOPIC, content_topics=(NEWS_TOPIC,)))
        (line,) = [each.getMessage() for each in caplog.records if each.name.endswith("store_service")]

        assert line.startswith(
            "store query code=200 messages=1 hashes=0 topics=1 forward=True cursor=False data=True ms="
        )
        assert not any(secret in line for secret in (NEWS_TOPIC, TOPIC, str(client.own_id), "127.0.0.1"))
    assert gateway.scraped("gateway_store_messages_total") == 1.0
    assert gateway.scraped("gateway_store_query_seconds_count") == 1.0


@on_each_engine
async def test_what_was_confirmed_is_found_at_once(gateway: Gateway) -> None:
    async with gateway.client() as client:
        for number in range(20):
            sent = message(number)
            assert (await client.lightpush(TOPIC, sent)).status_code == 200
            page = await ask(client, StoreQueryRequest("1", message_hashes=(sent.hash(TOPIC),)))
            assert len(page.messages) == 1


async def test_queries_at_the_same_time_are_all_answered(tmp_path: Path) -> None:
    some = envelopes(100)
    async with running_gateway(filled(tmp_path, some)) as gateway, gateway.client() as client:
        pages = await asyncio.gather(*(ask(client, replace(ALL, request_id=str(number))) for number in range(10)))

    assert {len(page.messages) for page in pages} == {DEFAULT_PAGE_ENTRIES}
