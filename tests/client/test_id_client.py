"""mailserver.client.id_client: asks a real mailserver about message ids, and nodes that lie."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from mailserver.client import id_client as client_module
from mailserver.client.id_client import IdClient, NoMessageIds, QuestionRefused, WrongAnswer
from mailserver.client.mail_client import MailClient, NoAnswer
from mailserver.errors import ConnectionLost, DisconnectReason, LocalProtocolError, Rejection
from mailserver.ids.envelopes import envelope_muid
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC, Muid, metadata_of, sync_id
from mailserver.limits.request_quotas import RequestLimits
from mailserver.net.connection import Connection
from mailserver.net.inbound import Event
from mailserver.store.engine.message_ids import FoundRows, StoredMessageIds
from mailserver.store.message_ids import RangeTooWide
from mailserver.store.sqlite.store import SqliteStore
from mailserver.waku.envelope import Envelope
from mailserver.wakuid.answers import Done, Ids, Reconciled, Refused, Terms, encode_envelopes
from mailserver.wakuid.packets import IdPacketCode, Order, What
from mailserver.wakuid.peer import IdPacketReceived
from mailserver.wakuid.questions import FetchItems, Items, Open, Query, Reconcile, request_id_of
from tests.client.nodes import KEY, Taken, mailserver, node, silent
from tests.mailservers import (
    NOW,
    PASSWORD_KEY,
    fill,
    in_order,
    make_envelope,
    make_envelopes,
    make_large_envelopes,
)
from tests.store.samples import EVER, SPORT

pytestmark = pytest.mark.integration

ALL = Query(0, DEFAULT_NETWORK_TOPIC, *EVER)
TERMS = Terms(0, DEFAULT_NETWORK_TOPIC, 0, NOW, 10_000, 1000, 100_000)


def muid(envelope: Envelope) -> Muid:
    return envelope_muid(DEFAULT_NETWORK_TOPIC, envelope)


def muids(envelopes: Sequence[Envelope]) -> list[Muid]:
    return [muid(envelope) for envelope in envelopes]


async def opened(client: MailClient, key: bytes | None = PASSWORD_KEY) -> IdClient:
    ids = IdClient(client)
    await ids.open(key)
    return ids


async def all_ids(ids: IdClient, query: Query) -> tuple[list[Muid], list[Done]]:
    """Follow the cursors to the end."""
    names: list[Muid] = []
    ends: list[Done] = []
    while not ends or not ends[-1].is_all:
        ends.append(await ids.list_ids(query, names.extend))
        query = replace(query, cursor=ends[-1].cursor)
    return names, ends


# What a mailserver answers


async def test_terms_say_how_to_ask(store: SqliteStore) -> None:
    async with mailserver(store, max_limit=17) as client:
        terms = (await opened(client)).terms

    assert (terms.network_topic, terms.since, terms.now) == (DEFAULT_NETWORK_TOPIC, 1 + store.pruned_until, NOW)
    assert (terms.max_ids, terms.max_envelopes, terms.max_message_bytes) == (100_000, 17, 128 * 1024)


@pytest.mark.parametrize("limit", [0, 7])
async def test_ids_are_listed_newest_first(store: SqliteStore, limit: int) -> None:
    envelopes = make_envelopes(20)
    await fill(store, envelopes)

    async with mailserver(store) as client:
        names, ends = await all_ids(await opened(client), replace(ALL, limit=limit))

    assert names == muids(in_order(envelopes))
    assert len(ends) == (3 if limit else 1)
    assert ends[-1].cursor == b""


@pytest.mark.parametrize("limit", [0, 7])
async def test_ids_are_listed_as_they_arrived_and_the_list_goes_on(store: SqliteStore, limit: int) -> None:
    envelopes = make_envelopes(20)[::-1]
    query = replace(ALL, order=Order.AS_ARRIVED, limit=limit)
    await fill(store, envelopes[:15])

    async with mailserver(store) as client:
        ids = await opened(client)
        names, ends = await all_ids(ids, query)
        await fill(store, envelopes[15:])
        more, _ = await all_ids(ids, replace(query, cursor=ends[-1].cursor))

    assert names == muids(envelopes[:15])
    assert more == muids(envelopes[15:])


async def test_more_ids_than_a_packet_holds_are_listed_in_one_page(store: SqliteStore) -> None:
    envelopes = make_envelopes(2300, data_bytes=10)
    await fill(store, envelopes)
    parts: list[int] = []

    async with mailserver(store) as client:
        ids = await opened(client)
        end = await ids.list_ids(ALL, lambda names: parts.append(len(names)))
        limited = await ids.list_ids(replace(ALL, limit=2299), lambda names: parts.append(len(names)))

    assert sum(parts) == 2300 + 2299
    assert len(parts) == 6
    assert end.is_all
    assert not limited.is_all


@pytest.mark.parametrize("order", Order)
async def test_client_finds_its_own_by_metadata(store: SqliteStore, order: Order) -> None:
    envelopes = make_envelopes(20)  # each a second older than the one before
    names = muids(envelopes)
    metadata = [name[32:] for name in names]
    await fill(store, envelopes)

    async with mailserver(store) as client:
        ids = await opened(client)
        of_second, _ = await all_ids(ids, replace(ALL, order=order, low=metadata[3][:8], high=metadata[2][:8]))
        between, _ = await all_ids(ids, replace(ALL, order=order, low=metadata[6], high=metadata[3]))
        none, _ = await all_ids(ids, replace(ALL, order=order, low=metadata[3], high=metadata[6]))

    assert of_second == [names[3]]
    assert set(between) == set(names[4:7])
    assert none == []


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("limit", [0, 3])
async def test_envelopes_are_queried_in_either_order(store: SqliteStore, order: Order, limit: int) -> None:
    envelopes = make_envelopes(25)[::-1]
    await fill(store, envelopes)
    taken = Taken()

    async with mailserver(store) as client:
        ids = await opened(client)
        query, end = replace(ALL, what=What.ENVELOPES, order=order, limit=limit), None
        pages = 0
        while end is None or not end.is_all:
            end = await ids.query(query, taken)
            query = replace(query, cursor=end.cursor)
            pages += 1

    assert taken.envelopes == (in_order(envelopes) if order is Order.NEWEST_FIRST else envelopes)
    assert pages >= (9 if limit else 3)  # ten are the longest page of this mailserver


async def test_envelopes_are_fetched_by_muid_in_the_order_that_is_asked_for(store: SqliteStore) -> None:
    envelopes = make_envelopes(20)
    asked = [envelopes[7], make_envelope(99), envelopes[2], envelopes[7]]
    taken = Taken()
    await fill(store, envelopes)

    async with mailserver(store) as client:
        await (await opened(client)).fetch(muids(asked), taken)

    assert taken.envelopes == [envelopes[7], envelopes[2]]


@pytest.mark.parametrize("limit", [10_000, 100, 1])
async def test_any_number_is_fetched_as_many_at_once_as_the_mailserver_finds(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """A mailserver that has them in its archive, far apart, refuses to look for too many."""
    envelopes = make_envelopes(2200 if limit > 1 else 20, data_bytes=10)
    await fill(store, envelopes)
    find, asked, taken = StoredMessageIds.find, list[int](), Taken()

    async def find_few(ids: StoredMessageIds, names: Sequence[Muid], **more: Any) -> FoundRows:
        asked.append(len(names))
        if len(names) > limit:
            raise RangeTooWide
        return await find(ids, names, **more)

    monkeypatch.setattr(StoredMessageIds, "find", find_few)
    async with mailserver(store) as client:
        await (await opened(client)).fetch_all(muids(envelopes), taken)

    assert taken.envelopes == envelopes
    assert asked[:3] == {10_000: [1000, 1000, 200], 100: [1000, 250, 62], 1: [20, 5, 1]}[limit]


async def test_one_that_is_too_much_to_look_for_is_told(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    async def find_none(*_: object, **_more: object) -> FoundRows:
        raise RangeTooWide

    monkeypatch.setattr(StoredMessageIds, "find", find_none)
    async with mailserver(store) as client:
        ids = await opened(client)
        assert await rejection_of(ids.fetch_all(muids(make_envelopes(3)), Taken())) is Rejection.TOO_WIDE
        await ids.fetch_all([], Taken())


async def test_long_envelopes_are_fetched_packet_by_packet(store: SqliteStore) -> None:
    envelopes = make_large_envelopes(5, 60_000)
    taken = Taken()
    await fill(store, envelopes)

    async with mailserver(store) as client:
        await (await opened(client)).fetch(muids(envelopes), taken)

    assert taken.packets == [[envelope] for envelope in envelopes]


async def test_envelopes_are_fetched_by_item(store: SqliteStore) -> None:
    envelopes = make_envelopes(20)
    items = [sync_id(muid(envelope)) for envelope in envelopes]
    first, last = envelopes[0].created, envelopes[-1].created
    groups = [Items(first - 3, first, items[:3]), Items(last, last, [items[-1], bytes(32)]), Items(5, 6, [items[9]])]
    taken = Taken()
    await fill(store, envelopes)

    async with mailserver(store) as client:
        await (await opened(client)).fetch_items(groups, taken)

    assert {envelope.hash() for envelope in taken.envelopes} == {
        each.hash() for each in (*envelopes[:3], envelopes[-1])
    }


async def test_several_questions_may_be_under_way_at_once(store: SqliteStore) -> None:
    envelopes = make_envelopes(20)
    taken = [Taken() for _ in envelopes]
    await fill(store, envelopes)

    async with mailserver(store) as client:
        ids = await opened(client)
        fetches = (ids.fetch([muid(each)], take) for each, take in zip(envelopes[:16], taken, strict=False))
        await asyncio.gather(*fetches)

    assert [take.envelopes for take in taken[:16]] == [[each] for each in envelopes[:16]]


async def test_history_and_ids_are_answered_on_one_connection(store: SqliteStore) -> None:
    envelopes = make_envelopes(5)
    taken = Taken()

    async with mailserver(store) as client:
        ids = await opened(client)
        await client.post(envelopes)
        await ids.fetch(muids(envelopes), taken)

    assert taken.envelopes == envelopes


# Who may ask


async def rejection_of(asking: Awaitable[object]) -> Rejection | None:
    with pytest.raises(QuestionRefused) as refused:
        await asking
    return refused.value.refused.rejection


async def test_access_is_granted_by_password_public_key_or_in_the_clear(store: SqliteStore) -> None:
    for key in (PASSWORD_KEY, KEY.public_key, None):
        async with mailserver(store) as client:
            assert (await opened(client, key)).terms.network_topic == DEFAULT_NETWORK_TOPIC


async def test_access_in_the_clear_is_refused_where_requests_must_be_sealed(store: SqliteStore) -> None:
    async with mailserver(store, allow_clear=False) as client:
        assert await rejection_of(opened(client, None)) is Rejection.CLEAR_REFUSED
        await opened(client)


async def test_wrong_password_gets_no_access(store: SqliteStore) -> None:
    async with mailserver(store) as client:
        assert await rejection_of(opened(client, bytes(32))) is Rejection.UNDECRYPTABLE


async def test_access_takes_the_proof_of_work_of_a_request(store: SqliteStore) -> None:
    async with mailserver(store, min_request_pow=0.5) as client:
        ids = IdClient(client)
        assert await rejection_of(ids.open(PASSWORD_KEY)) is Rejection.POW_TOO_LOW
        await ids.open(PASSWORD_KEY, min_pow=0.5)


async def test_nothing_is_answered_before_access(store: SqliteStore) -> None:
    async with mailserver(store) as client:
        ids = IdClient(client)
        ids._terms = TERMS  # noqa: SLF001 - a client that was not told to wait for its access
        assert await rejection_of(ids.list_ids(ALL, list[Muid]().extend)) is Rejection.NO_ACCESS


async def test_sides_with_different_network_topics_part_with_a_word(store: SqliteStore) -> None:
    async with mailserver(store) as client:
        ids = await opened(client)
        ids._terms = replace(TERMS, network_topic="/waku/2/rs/1/5")  # noqa: SLF001 - a client of another network
        assert await rejection_of(ids.fetch([Muid(bytes(52))], Taken())) is Rejection.OTHER_NETWORK


async def test_requests_beyond_the_limit_are_refused_and_say_when_to_come_back(store: SqliteStore) -> None:
    async with mailserver(store, requests=RequestLimits(requests_per_minute=1)) as client:
        ids = await opened(client)
        refused = await asyncio.gather(*(ids.fetch([], Taken()) for _ in range(8)), return_exceptions=True)

    errors = [error for error in refused if isinstance(error, QuestionRefused)]
    assert len(errors) == 4  # of the nine that were asked, five are the burst
    assert {error.refused.rejection for error in errors} == {Rejection.RATE_LIMITED}
    assert all(0 < error.refused.retry_after_s <= 60 for error in errors)


@pytest.mark.parametrize(
    ("query", "rejection"),
    [
        (replace(ALL, lower=2, upper=1), Rejection.BAD_RANGE),
        (replace(ALL, cursor=b"short"), Rejection.BAD_CURSOR),
        (replace(ALL, order=Order.AS_ARRIVED, cursor=b"short"), Rejection.BAD_CURSOR),
        (replace(ALL, order=Order.AS_ARRIVED, cursor=bytes(8)), Rejection.BAD_CURSOR),
        (replace(ALL, order=Order.AS_ARRIVED, cursor=b"\xff" * 24), Rejection.BAD_CURSOR),
        (replace(ALL, order=Order.AS_ARRIVED, cursor=bytes(24)), Rejection.BAD_CURSOR),  # of another store
        (replace(ALL, low=b"l" * 33), Rejection.MALFORMED),
    ],
)
async def test_question_that_breaks_a_rule_is_refused_and_the_next_is_answered(
    store: SqliteStore, query: Query, rejection: Rejection
) -> None:
    async with mailserver(store) as client:
        ids = await opened(client)
        assert await rejection_of(ids.list_ids(query, list[Muid]().extend)) is rejection
        assert (await ids.list_ids(ALL, list[Muid]().extend)).is_all


# Nodes that lie, or do not know the capability

Lie = Callable[[int], tuple[IdPacketCode, bytes]]


def lying(*lies: Lie) -> Callable[[Connection, Event], Awaitable[None]]:
    """A node that grants access, and answers every other question with these packets."""

    async def behave(connection: Connection, event: Event) -> None:
        if isinstance(event, IdPacketReceived):
            request_id = request_id_of(event.payload)
            if event.code is IdPacketCode.OPEN:
                connection.send(IdPacketCode.TERMS, replace(TERMS, request_id=request_id).encode())
                return
            for lie in lies:
                connection.send(*lie(request_id))

    return behave


def saying(code: IdPacketCode, answer: Terms | Refused | Ids | Reconciled | Done) -> Lie:
    return lambda request_id: (code, replace(answer, request_id=request_id).encode())


def giving(*envelopes: Envelope) -> Lie:
    body = b"".join(envelope.raw for envelope in envelopes)
    return lambda request_id: (IdPacketCode.ENVELOPES, encode_envelopes(request_id, body))


DONE = saying(IdPacketCode.DONE, Done(0))


async def wrong(asking: Awaitable[object]) -> str:
    with pytest.raises(WrongAnswer) as error:
        await asking
    return str(error.value)


async def test_changed_envelope_is_noticed_and_what_was_changed_is_named() -> None:
    envelope = make_envelope(1)
    other_data = make_envelope(2)
    changed = [
        (make_envelope(1, ttl=envelope.ttl + 1), "ttl"),
        (make_envelope(1, topic=SPORT), "network topic, topic or data"),
    ]
    for lie, what in changed:
        async with node(lying(giving(lie), DONE)) as client:
            cause = await wrong((await opened(client)).fetch([muid(envelope)], Taken()))
        assert what in cause
    async with node(lying(giving(other_data), DONE)) as client:
        cause = await wrong((await opened(client)).fetch([muid(envelope)], Taken()))
    assert f"envelope {other_data.hash().hex()} was not asked for" in cause


async def test_little_is_hashed_to_say_what_was_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_COMPARED_BYTES", 1)
    envelope = make_envelope(1)
    asked = [muid(make_envelope(number)) for number in (2, 3, 4, 1)]

    async with node(lying(giving(make_envelope(1, topic=SPORT)), DONE)) as client:
        cause = await wrong((await opened(client)).fetch(asked, Taken()))
    assert "topic" in cause  # what has the same metadata is compared first

    async with node(lying(giving(make_envelope(1, ttl=envelope.ttl + 1)), DONE)) as client:
        cause = await wrong((await opened(client)).fetch(asked, Taken()))
    assert "was not asked for" in cause


async def test_envelope_that_is_sent_twice_is_noticed() -> None:
    envelope = make_envelope(1)
    async with node(lying(giving(envelope), giving(envelope), DONE)) as client:
        assert "was sent twice" in await wrong((await opened(client)).fetch([muid(envelope)], Taken()))
    async with node(lying(giving(envelope, envelope), DONE)) as client:
        ids = await opened(client)
        cause = await wrong(ids.fetch_items([Items(*EVER, [sync_id(muid(envelope))])], Taken()))
    assert "was not asked for" in cause


async def test_envelope_without_an_id_is_noticed() -> None:
    async with node(lying(giving(make_envelope(1, created=0)), DONE)) as client:
        assert "has no id" in await wrong((await opened(client)).fetch([Muid(bytes(52))], Taken()))


async def test_envelope_outside_of_the_query_is_noticed() -> None:
    async with node(lying(giving(make_envelope(1)), DONE)) as client:
        ids = await opened(client)
        assert "outside of the query" in await wrong(ids.query(replace(ALL, upper=5), Taken()))
    meta = metadata_of(muid(make_envelope(1)))
    for query in (replace(ALL, high=meta), replace(ALL, low=meta + b"\0"), replace(ALL, high=bytes(1))):
        async with node(lying(giving(make_envelope(1)))) as client:
            ids = await opened(client)
            assert "outside of the query" in await wrong(ids.query(query, Taken()))
    async with node(lying(giving(make_envelope(1, created=0)))) as client:
        ids = await opened(client)
        assert "outside of the query" in await wrong(ids.query(replace(ALL, lower=0), Taken()))


async def test_answer_that_does_not_end_is_given_up() -> None:
    names = [Muid(bytes(52))] * 500
    many = [saying(IdPacketCode.IDS, Ids(0, names))] * 21
    async with node(lying(*many)) as client:
        ids = await opened(client)
        assert "more ids than a page may have" in await wrong(ids.list_ids(ALL, list[Muid]().extend))
        assert "more ids than a page may have" in await wrong(
            ids.list_ids(replace(ALL, limit=499), list[Muid]().extend)
        )
    async with node(lying(giving(*make_envelopes(3)))) as client:
        ids = await opened(client)
        assert "more envelopes than a page may have" in await wrong(ids.query(replace(ALL, limit=2), Taken()))


async def test_answer_of_packets_with_nothing_in_them_is_given_up() -> None:
    async with node(lying(saying(IdPacketCode.IDS, Ids(0, [])))) as client:
        assert "nothing in it" in await wrong((await opened(client)).list_ids(ALL, list[Muid]().extend))
    async with node(lying(giving())) as client:
        ids = await opened(client)
        assert "nothing in it" in await wrong(ids.query(ALL, Taken()))
        assert "nothing in it" in await wrong(ids.fetch([muid(make_envelope(1))], Taken()))
        assert "nothing in it" in await wrong(ids.fetch_items([Items(*EVER, [bytes(32)])], Taken()))


async def test_answer_of_another_kind_is_given_up() -> None:
    async with node(lying(saying(IdPacketCode.RECONCILED, Reconciled(0, b"")))) as client:
        ids = await opened(client)
        assert "Reconciled to Query" in await wrong(ids.list_ids(ALL, list[Muid]().extend))
        assert "Reconciled to Query" in await wrong(ids.query(ALL, Taken()))
        assert "Reconciled to Fetch" in await wrong(ids.fetch([], Taken()))
    async with node(lying(DONE)) as client:
        ids = await opened(client)
        question = Reconcile(0, DEFAULT_NETWORK_TOPIC, *EVER, b"\x61")
        assert "Done to Reconcile" in await wrong(ids.reconcile(question))


async def test_answer_to_a_question_that_was_not_asked_is_passed_over() -> None:
    def of_another(_: int) -> tuple[IdPacketCode, bytes]:
        return IdPacketCode.DONE, Done(12345).encode()

    async with node(lying(of_another, DONE, DONE)) as client:
        await (await opened(client)).fetch([], Taken())


async def test_answer_that_does_not_decode_ends_the_connection() -> None:
    async with node(lying(lambda _: (IdPacketCode.DONE, b"\xc0"))) as client:
        with pytest.raises(ConnectionLost) as lost:
            await (await opened(client)).fetch([], Taken())

    assert lost.value.reason is DisconnectReason.SUBPROTOCOL_ERROR


async def test_silent_node_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with node(lying(giving(make_envelope(1)))) as client:
        ids = await opened(client)
        monkeypatch.setattr(client_module, "ANSWER_TIMEOUT_S", 0.05)
        with pytest.raises(NoAnswer, match="no answer within"):
            await ids.fetch([muid(make_envelope(1))], Taken())


async def test_end_of_the_connection_ends_all_questions() -> None:
    asked = asyncio.Event()

    async def leave(connection: Connection, event: Event) -> None:
        if isinstance(event, IdPacketReceived) and event.code is IdPacketCode.FETCH_ITEMS:
            asked.set()
            connection.disconnect(DisconnectReason.CLIENT_QUITTING, "enough")
        else:
            await lying()(connection, event)

    async with node(leave) as client:
        ids = await opened(client)
        errors = await asyncio.gather(ids.fetch([], Taken()), ids.fetch_items([], Taken()), return_exceptions=True)

    assert asked.is_set()
    assert [type(error) for error in errors] == [ConnectionLost] * 2


async def test_node_without_the_capability_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    async with node(silent) as client:
        monkeypatch.setattr(MailClient, "capabilities", frozenset())
        with pytest.raises(NoMessageIds, match="lacks the capability wakuid/1"):
            await opened(client)


async def test_asking_before_access_is_a_mistake_of_the_caller() -> None:
    async with node(silent) as client:
        with pytest.raises(LocalProtocolError):
            await IdClient(client).fetch([], Taken())


async def test_question_from_a_node_is_passed_over() -> None:
    async def ask(connection: Connection, event: Event) -> None:
        if isinstance(event, IdPacketReceived) and event.code is IdPacketCode.OPEN:
            connection.send(IdPacketCode.FETCH_ITEMS, FetchItems(1, "n", []).encode())
            connection.send(IdPacketCode.OPEN, Open(1).encode())
        await lying(DONE)(connection, event)

    async with node(ask) as client:
        await (await opened(client)).fetch([], Taken())
