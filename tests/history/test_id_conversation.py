"""mailserver.history.id_conversation: what a question costs, what is noted of it, and what a store that fails says."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from mailserver.errors import ConnectionLost, Rejection, StoreError
from mailserver.history import id_answers, id_conversation, id_search
from mailserver.history.id_answers import IdServices, IdSettings
from mailserver.history.id_conversation import BUSY_RETRY_S, NOT_INDEXED_RETRY_S, IdConversation
from mailserver.history.id_lists import IdLists
from mailserver.history.opening import Opener
from mailserver.ids.envelopes import envelope_muid
from mailserver.ids.muid import DEFAULT_NETWORK_TOPIC, Muid, sync_id
from mailserver.limits.request_quotas import MIN_PAGE_COST, Requester, RequestLimits
from mailserver.mail.packing import TARGET_PACKET_BYTES
from mailserver.metrics.registry import Metrics, count_of
from mailserver.net.sessions import Code
from mailserver.store.engine import message_ids
from mailserver.store.engine.message_ids import FoundRows, StoredMessageIds
from mailserver.store.interface import OURSELVES, GoesOn, Payer, always
from mailserver.store.message_ids import NotIndexedYet, StoreBusy
from mailserver.store.sqlite.store import SqliteStore, open_store
from mailserver.waku.envelope import Envelope
from mailserver.wakuid.answers import Answer, Done, Envelopes, Ids, Refused, Terms, decode_answer
from mailserver.wakuid.packets import MAX_FETCHED_IDS, IdPacketCode, Order, What
from mailserver.wakuid.questions import Fetch, FetchItems, Items, Open, Query, Question, decode_question
from tests.history.answered import Client
from tests.history.desk import KEY, Time, requester_of
from tests.mailservers import (
    NO_REQUEST_LIMITS,
    PASSWORD_KEY,
    Clock,
    fill,
    in_order,
    make_envelope,
    make_envelopes,
    make_large_envelopes,
)
from tests.store.samples import EVER

ALL = Query(2, DEFAULT_NETWORK_TOPIC, *EVER)
FETCH_ONE = Fetch(3, DEFAULT_NETWORK_TOPIC, [Muid(b"m" * 33)])


@dataclass
class Booth:
    """A conversation over a store, and a client."""

    store: SqliteStore
    services: IdServices
    conversation: IdConversation
    requester: Requester = field(default_factory=lambda: requester_of(NO_REQUEST_LIMITS))
    client: Client = field(default_factory=Client)

    @property
    def metrics(self) -> Metrics:
        return self.services.metrics

    async def answer(
        self, question: Question, requester: Requester | None = None, *, max_packet_bytes: int = TARGET_PACKET_BYTES
    ) -> list[Answer]:
        """Have a question answered."""
        self.client = Client()
        await self.conversation.answer(
            question.code,
            question.encode(),
            self.client,
            requester or self.requester,
            max_packet_bytes=max_packet_bytes,
        )
        return [decode(code, payload) for code, payload in self.client.sent]

    async def open(self, requester: Requester | None = None) -> None:
        (terms,) = await self.answer(Open(1), requester)
        assert isinstance(terms, Terms)


def decode(code: Code, payload: bytes) -> Answer:
    assert isinstance(code, IdPacketCode)
    return decode_answer(code, payload)


def muids(envelopes: Sequence[Envelope]) -> list[Muid]:
    return [envelope_muid(DEFAULT_NETWORK_TOPIC, envelope) for envelope in envelopes]


@pytest.fixture
async def booth(tmp_path: Path) -> AsyncIterator[Booth]:
    async with open_store(tmp_path / "mailserver.db") as store:
        services = IdServices(
            lists=IdLists(store, store.message_ids),
            since=lambda: store.pruned_until + 1,
            opener=Opener(PASSWORD_KEY, KEY, 0.0),
            settings=IdSettings(max_envelopes=50),
            clock=Clock(),
            metrics=Metrics(),
        )
        yield Booth(store, services, IdConversation(services))


# What is sent


@pytest.mark.parametrize("order", Order)
async def test_packets_of_ids_are_as_long_as_the_peer_takes_them(booth: Booth, order: Order) -> None:
    envelopes = make_envelopes(100)
    await fill(booth.store, envelopes)
    await booth.open()

    answers = await booth.answer(replace(ALL, order=order), max_packet_bytes=1500)

    assert [type(answer) for answer in answers] == [Ids] * 4 + [Done]
    assert all(len(payload) <= 1500 for _, payload in booth.client.sent)
    names = [name for answer in answers if isinstance(answer, Ids) for name in answer.muids]
    assert names == muids(in_order(envelopes) if order is Order.NEWEST_FIRST else envelopes)


@pytest.mark.parametrize("limit", [1, 30, 40, 50])
@pytest.mark.parametrize("what", What)
async def test_turn_is_taken_for_each_packet_and_no_other(booth: Booth, what: What, limit: int) -> None:
    await fill(booth.store, make_envelopes(40))
    await booth.open()

    *_, done = await booth.answer(replace(ALL, what=what, limit=limit), max_packet_bytes=1500)

    assert isinstance(done, Done)
    assert done.is_all == (limit >= 40)
    assert len(booth.client.turns) == len(booth.client.sent)


@pytest.mark.parametrize("order", Order)
async def test_packets_of_envelopes_stay_within_the_target(booth: Booth, order: Order) -> None:
    envelopes = make_large_envelopes(10, 20_000)
    await fill(booth.store, envelopes)
    await booth.open()

    answers = await booth.answer(replace(ALL, what=What.ENVELOPES, order=order))

    assert all(len(payload) <= TARGET_PACKET_BYTES for _, payload in booth.client.sent)
    given = [each for answer in answers if isinstance(answer, Envelopes) for each in answer.envelopes]
    assert sorted(given) == sorted(envelopes)
    assert len(answers) == 5  # three of them fit into a packet


async def test_envelope_longer_than_a_packet_has_one_of_its_own(booth: Booth) -> None:
    envelopes = make_large_envelopes(3, 200_000)
    await fill(booth.store, envelopes)
    await booth.open()

    for question in (replace(ALL, what=What.ENVELOPES), Fetch(3, DEFAULT_NETWORK_TOPIC, muids(envelopes))):
        answers = await booth.answer(question)
        assert [len(answer.envelopes) for answer in answers if isinstance(answer, Envelopes)] == [1, 1, 1]


async def test_query_that_takes_too_much_work_ends_early_with_a_cursor(
    booth: Booth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(id_answers, "PAGE_WORK", 1)
    monkeypatch.setattr(id_search, "SEARCHED_AT_ONCE", 3)
    monkeypatch.setattr(message_ids, "WALKED_ROWS", 3)
    envelopes = [make_envelope(number, created=1000, ttl=number) for number in range(30)]
    wanted = muids(envelopes)[20]
    await fill(booth.store, envelopes)
    await booth.open()

    for order in Order:
        found: list[Muid] = []
        cursor, is_all, pages = b"", False, 0
        while not is_all:
            question = replace(ALL, order=order, low=wanted[32:], high=wanted[32:] + b"\0", cursor=cursor, limit=2)
            *some, done = await booth.answer(question)
            assert isinstance(done, Done)
            found += [name for answer in some if isinstance(answer, Ids) for name in answer.muids]
            cursor, is_all = done.cursor, done.is_all
            pages += 1
        assert pages > 1
        assert found == [wanted]


async def test_items_in_ranges_with_too_many_others_are_refused(booth: Booth, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many groups a question has, and however wide they are, there is an end to the work for it."""
    monkeypatch.setattr(id_answers, "FETCH_WORK", 100_000)
    envelopes = make_envelopes(250)
    await fill(booth.store, envelopes)
    await booth.open()
    named = zip(envelopes, muids(envelopes), strict=True)
    narrow = [Items(each.created, each.created, [sync_id(name)]) for each, name in named]
    wide = [Items(*EVER, [number.to_bytes(32, "big")]) for number in range(1000)]

    *some, done = await booth.answer(FetchItems(3, DEFAULT_NETWORK_TOPIC, narrow))
    *_, refused = await booth.answer(FetchItems(4, DEFAULT_NETWORK_TOPIC, wide))

    assert done == Done(3)
    assert sum(len(answer.envelopes) for answer in some if isinstance(answer, Envelopes)) == 250
    assert len(some) <= 1 + 250 // id_answers.GROUPS_AT_ONCE
    assert isinstance(refused, Refused)
    assert (refused.rejection, refused.retry_after_s) == (Rejection.TOO_WIDE, 0)
    assert count_of(booth.metrics.id_work.labels("fetch_items")) < 250_000


# What it costs


async def test_answer_costs_what_it_takes_and_no_less_than_a_page(booth: Booth, time: Time) -> None:
    envelopes = make_envelopes(250)
    await fill(booth.store, envelopes)
    await booth.open()
    items = FetchItems(4, DEFAULT_NETWORK_TOPIC, [Items(*EVER, [bytes(32)])])
    costs = {}
    questions: dict[str, Question] = {
        "nothing": Fetch(3, DEFAULT_NETWORK_TOPIC, []),
        "some": Fetch(3, DEFAULT_NETWORK_TOPIC, muids(envelopes)),
        "ids": ALL,
        "walk": items,
    }
    for name, question in questions.items():
        requester = requester_of(RequestLimits(envelopes_per_minute=6000))
        await booth.answer(question, requester)
        bucket = requester._limiter.peers._envelopes  # noqa: SLF001 - what is left is not told
        assert bucket is not None
        costs[name] = 60_000 - bucket.of(requester.node_id, time.now).level(time.now)

    assert costs["nothing"] == MIN_PAGE_COST
    assert costs["some"] == 250
    assert costs["ids"] >= MIN_PAGE_COST
    assert costs["walk"] >= MIN_PAGE_COST


async def test_work_is_charged_to_the_peer(booth: Booth, monkeypatch: pytest.MonkeyPatch) -> None:
    payers: list[Payer] = []
    find = StoredMessageIds.find

    async def find_then(
        ids: StoredMessageIds, names: Sequence[Muid], *, payer: Payer = OURSELVES, goes_on: GoesOn = always
    ) -> FoundRows:
        payers.append(payer)
        return await find(ids, names, payer=payer, goes_on=goes_on)

    monkeypatch.setattr(StoredMessageIds, "find", find_then)
    await booth.open()
    await booth.answer(Fetch(3, DEFAULT_NETWORK_TOPIC, [Muid(bytes(52))] * MAX_FETCHED_IDS))

    assert [(payer.group, payer.member) for payer in payers] == [(booth.requester.address, booth.requester.node_id)]
    assert count_of(booth.metrics.id_work) > 0


# What is noted


async def test_each_question_leaves_a_line_and_is_counted(booth: Booth, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mailserver.history")
    envelopes = make_envelopes(3)
    await fill(booth.store, envelopes)
    await booth.open()

    await booth.answer(replace(ALL, lower=5))
    await booth.answer(Fetch(3, DEFAULT_NETWORK_TOPIC, muids(envelopes[:2])))
    await booth.answer(Fetch(4, "/another", []))

    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 4
    assert "outcome=delivered id=1 " in lines[0]
    assert "kind=open" in lines[0]
    assert "kind=list lower=5 upper=4294967295 topics=0 asked=0" in lines[1]
    assert "ids=3 envelopes=0" in lines[1]
    assert "kind=fetch" in lines[2]
    assert "asked=2" in lines[2]
    assert "envelopes=2" in lines[2]
    assert "outcome=rejected id=4" in lines[3]
    assert "another network topic" in lines[3]
    assert not any(name.hex()[:16] in caplog.text for name in muids(envelopes))
    metrics = booth.metrics
    assert count_of(metrics.id_requests.labels("fetch", "delivered")) == 1
    assert count_of(metrics.id_requests.labels("fetch", "rejected")) == 1
    assert count_of(metrics.requests_rejected[Rejection.OTHER_NETWORK]) == 1
    assert (count_of(metrics.listed_ids), count_of(metrics.envelopes_by_id)) == (3, 2)


async def test_client_that_is_gone_is_noted_as_lost(booth: Booth) -> None:
    class Gone(Client):
        def send(self, code: Code, payload: bytes) -> None:
            raise ConnectionLost(None, "gone")

    with pytest.raises(ConnectionLost):
        await booth.conversation.answer(IdPacketCode.OPEN, Open(1).encode(), Gone(), booth.requester)

    assert count_of(booth.metrics.id_requests.labels("open", "lost")) == 1


# What fails


async def refused(booth: Booth, question: Question) -> Refused:
    *_, answer = await booth.answer(question)
    assert isinstance(answer, Refused)
    return answer


@pytest.mark.parametrize(
    ("error", "rejection", "retry_after_s", "outcome"),
    [
        (StoreError("broken"), Rejection.STORE_UNAVAILABLE, 0, "failed"),
        (NotIndexedYet(7), Rejection.NOT_INDEXED, NOT_INDEXED_RETRY_S, "rejected"),
        (StoreBusy("broken by others"), Rejection.RATE_LIMITED, BUSY_RETRY_S, "rejected"),
    ],
)
async def test_store_that_fails_refuses_the_question(
    booth: Booth,
    monkeypatch: pytest.MonkeyPatch,
    error: StoreError,
    rejection: Rejection,
    retry_after_s: int,
    outcome: str,
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise error

    await booth.open()
    monkeypatch.setattr(StoredMessageIds, "find", fail)

    answer = await refused(booth, Fetch(9, DEFAULT_NETWORK_TOPIC, []))

    assert (answer.request_id, answer.rejection, answer.retry_after_s) == (9, rejection, retry_after_s)
    assert "broken" not in answer.text
    assert count_of(booth.metrics.id_requests.labels("fetch", outcome)) == 1


async def test_question_that_takes_too_long_is_refused_until_there_is_less_to_do(
    booth: Booth, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_: object, **__: object) -> None:
        await asyncio.get_running_loop().create_future()

    await booth.open()
    monkeypatch.setattr(StoredMessageIds, "find", hang)
    monkeypatch.setattr(id_answers, "FIND_TIMEOUT_S", 0.01)

    answer = await refused(booth, Fetch(9, DEFAULT_NETWORK_TOPIC, []))
    assert (answer.rejection, answer.retry_after_s) == (Rejection.RATE_LIMITED, BUSY_RETRY_S)
    assert count_of(booth.metrics.id_requests.labels("fetch", "rejected")) == 1


async def test_damage_amid_an_answer_ends_it_with_a_refusal(booth: Booth, monkeypatch: pytest.MonkeyPatch) -> None:
    envelopes = make_large_envelopes(4, 50_000)
    await fill(booth.store, envelopes)
    await booth.open()
    read = FoundRows.read
    reads: list[int] = []

    async def read_then(found: FoundRows, count: int, max_bytes: int) -> object:
        reads.append(count)
        if len(reads) == 2:
            raise StoreError("a page is damaged")
        return await read(found, count, max_bytes)

    monkeypatch.setattr(FoundRows, "read", read_then)
    answers = await booth.answer(Fetch(9, DEFAULT_NETWORK_TOPIC, muids(envelopes)))

    assert [type(answer) for answer in answers] == [Envelopes, Refused]


async def test_question_that_is_refused_counts_as_a_request(booth: Booth) -> None:
    requester = requester_of(RequestLimits(requests_per_minute=1))

    answers = [(await booth.answer(Fetch(number, "/other", []), requester))[-1] for number in range(7)]

    reasons = [answer.rejection for answer in answers if isinstance(answer, Refused)]
    assert reasons == [Rejection.NO_ACCESS] * 5 + [Rejection.RATE_LIMITED] * 2


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[IdPacketCode]:
    """The questions that were decoded."""
    codes: list[IdPacketCode] = []

    def noting(code: IdPacketCode, payload: bytes) -> Question:
        codes.append(code)
        return decode_question(code, payload)

    monkeypatch.setattr(id_conversation, "decode_question", noting)
    return codes


async def test_question_of_somebody_without_access_is_not_decoded(booth: Booth, decoded: list[IdPacketCode]) -> None:
    for question in (ALL, FETCH_ONE):
        (answer,) = await booth.answer(question)
        assert isinstance(answer, Refused)
        assert (answer.request_id, answer.rejection) == (question.request_id, Rejection.NO_ACCESS)

    assert decoded == []


async def test_question_of_somebody_who_may_ask_nothing_now_is_not_decoded(
    booth: Booth, decoded: list[IdPacketCode]
) -> None:
    requester = requester_of(RequestLimits(requests_per_minute=1))
    await booth.open(requester)
    for _ in range(4):
        await booth.answer(FETCH_ONE, requester)
    decoded.clear()

    for question in (ALL, FETCH_ONE, Open(1)):
        (answer,) = await booth.answer(question, requester)
        assert isinstance(answer, Refused)
        assert answer.rejection is Rejection.RATE_LIMITED

    assert decoded == []


async def test_page_that_follows_a_cursor_is_no_new_request(booth: Booth) -> None:
    await fill(booth.store, make_envelopes(20))
    requester = requester_of(RequestLimits(requests_per_minute=1))
    await booth.open(requester)

    query, pages = replace(ALL, limit=2), 0
    while True:
        *_, done = await booth.answer(query, requester)
        assert isinstance(done, Done), pages
        pages += 1
        if done.is_all:
            break
        query = replace(query, cursor=done.cursor)

    assert pages == 10
