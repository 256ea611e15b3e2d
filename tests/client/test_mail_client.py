"""mailserver.client.mail_client: against a mailserver, and against nodes that answer as the test says."""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mailserver.client import mail_client as client_module
from mailserver.client.mail_client import MailClient, NoAnswer, RequestFailed, RequestPowTooLow, connect
from mailserver.client.sealing import (
    REQUEST_TOPIC,
    REQUEST_TTL_S,
    TooMuchWork,
    mine_envelope,
    seal_envelope,
    seal_request,
    seal_to_key,
    seal_to_node,
)
from mailserver.codec import rlp
from mailserver.codec.keccak import keccak256
from mailserver.codec.keys import Enode
from mailserver.errors import ConnectionLost, DisconnectReason, Rejection
from mailserver.history import delivery as delivery_module
from mailserver.history import requests as requests_module
from mailserver.history.delivery import DeliverySettings
from mailserver.limits.admission import Admission, AdmissionLimits
from mailserver.limits.send_rate import BURST_S, SHARE
from mailserver.mail.answer import AnswerCheck, Fault
from mailserver.mail.completion import Completion, CompletionFormat, Failure
from mailserver.mail.request import Cursor, MailRequest, RequestId, SealedRequest, decode_fields, decode_request
from mailserver.net.connection import Connection
from mailserver.net.listener import Listener
from mailserver.peers.connected import Peers
from mailserver.peers.served_peer import ServedPeer
from mailserver.store.sqlite import search as search_module
from mailserver.store.sqlite.store import SqliteStore, open_store
from mailserver.waku import peer as waku_peer_module
from mailserver.waku.acceptance import Requirements, Verdict
from mailserver.waku.bloom import EMPTY_BLOOM, FULL_INTEREST, Interest, bloom_of
from mailserver.waku.envelope import Envelope, EnvelopeHash, Topic, encode_envelopes
from mailserver.waku.packets import (
    EnvelopeError,
    EnvelopeErrorCode,
    MessageResponse,
    PacketCode,
    RateLimits,
    StatusOptions,
    encode_batch_acknowledged,
)
from mailserver.waku.payload import open_asymmetric, open_symmetric
from mailserver.waku.peer import Event, MessagesReceived, P2PRequestReceived, StatusReceived
from tests.mailservers import (
    NEWS,
    PASSWORD_KEY,
    SPORT,
    STATUS,
    Clock,
    fill,
    in_order,
    make_envelope,
    make_envelopes,
    make_large_envelopes,
    wired,
)
from tests.pairs import digest, private_key
from tests.raw_peer import RawPeer
from tests.waiting import DEADLINE_S, turns, until

pytestmark = pytest.mark.integration

KEY = private_key("server")
ASK = MailRequest(RequestId(bytes(32)), 0, 0, Interest(topics=frozenset({NEWS})))

Behave = Callable[[Connection, Event], Awaitable[None]]


class Taken:
    """Envelopes as they arrive, packet by packet."""

    def __init__(self) -> None:
        self.packets: list[list[Envelope]] = []

    def __call__(self, envelopes: object) -> None:
        assert isinstance(envelopes, list)
        self.packets.append(envelopes)

    @property
    def envelopes(self) -> list[Envelope]:
        return [envelope for packet in self.packets for envelope in packet]


@contextlib.asynccontextmanager
async def listening(serve: Callable[[Connection], Awaitable[None]], status: StatusOptions) -> AsyncIterator[Enode]:
    """Accept connections on a free port."""
    connections: list[Connection] = []

    async def note_and_serve(connection: Connection) -> None:
        connections.append(connection)
        await serve(connection)

    listener = Listener(
        KEY,
        "server/1",
        status=lambda: status,
        refuse=lambda _: None,
        admission=Admission(AdmissionLimits()),
        serve=note_and_serve,
    )
    try:
        yield Enode(KEY.public_key, "127.0.0.1", await listener.start("127.0.0.1", 0))
    finally:
        listener.stop()
        for connection in connections:
            connection.abort("the test is over")
        await asyncio.wait_for(listener.join(), DEADLINE_S)


@contextlib.asynccontextmanager
async def node(behave: Behave, status: StatusOptions = STATUS) -> AsyncIterator[MailClient]:
    """A client that is connected to a node that behaves so."""

    async def serve(connection: Connection) -> None:
        await connection.run(lambda event: behave(connection, event))

    async with listening(serve, status) as enode, connect(enode, "client/1") as client:
        yield client


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with open_store(tmp_path / "mailserver.db") as store:
        yield store


@contextlib.asynccontextmanager
async def mailserver(
    store: SqliteStore,
    *,
    min_pow: float = 0.0,
    min_request_pow: float = 0.0,
    completion_format: CompletionFormat = CompletionFormat.BYTES,
    max_limit: int = 10,
) -> AsyncIterator[MailClient]:
    """A client that is connected to a mailserver over this store."""
    settings = DeliverySettings(
        PASSWORD_KEY,
        KEY,
        max_limit=max_limit,
        min_request_pow=min_request_pow,
        completion_format=completion_format,
    )
    _, services = wired(store, Clock(), settings, Peers(1), requirements=Requirements(min_pow))

    async def serve(connection: Connection) -> None:
        await ServedPeer(connection, services, 1).run()

    async with (
        listening(serve, StatusOptions(pow_requirement=min_pow, confirmations=True)) as enode,
        connect(enode, "client/1", private_key("client")) as client,
    ):
        yield client


async def silent(connection: Connection, event: Event) -> None:
    """A node that never answers."""


# Sealing


async def test_sealed_envelope_opens_and_has_the_work_that_was_asked() -> None:
    signing_key = private_key("signer")

    envelope = await seal_envelope(
        b"hello", PASSWORD_KEY, NEWS, ttl=10, min_pow=0.002, now=1000, signing_key=signing_key
    )

    opened = open_symmetric(envelope.data, PASSWORD_KEY)
    assert (opened.payload, opened.signer) == (b"hello", signing_key.public_key)
    assert (envelope.expiry, envelope.ttl, envelope.topic) == (1010, 10, NEWS)
    assert envelope.pow() >= 0.002


async def test_work_that_outlasts_the_envelope_is_given_up() -> None:
    with pytest.raises(TooMuchWork):
        await seal_envelope(b"", PASSWORD_KEY, NEWS, ttl=0, min_pow=1e30, now=1000)


async def test_work_for_which_many_nonces_are_tried_leaves_others_their_turn() -> None:
    sealing = asyncio.create_task(seal_envelope(b"", PASSWORD_KEY, NEWS, ttl=10, min_pow=1e30, now=1000))

    await turns(3)

    assert not sealing.done()
    sealing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sealing


async def test_same_payload_is_sealed_differently_each_time() -> None:
    sealed = {(await seal_envelope(b"", PASSWORD_KEY, NEWS, ttl=10, min_pow=0, now=1000)).data for _ in range(20)}

    assert len(sealed) == 20


def test_payload_is_sealed_to_a_public_key() -> None:
    recipient, signing_key = private_key("recipient"), private_key("signer")

    sealed = [seal_to_node(b"hello", recipient.public_key, signing_key=signing_key) for _ in range(2)]

    opened = [open_asymmetric(data, recipient) for data in sealed]
    assert {(each.payload, each.signer) for each in opened} == {(b"hello", signing_key.public_key)}
    assert sealed[0] != sealed[1]
    assert opened[0].padding != opened[1].padding
    assert len({data[1:65] for data in sealed}) == 2  # the ephemeral keys


@pytest.mark.parametrize("padding", [b"", b"\x01\x02", bytes(300)])
def test_given_padding_is_used_as_it_is(padding: bytes) -> None:
    recipient = private_key("recipient")

    symmetric = open_symmetric(seal_to_key(b"hello", PASSWORD_KEY, padding=padding), PASSWORD_KEY)
    asymmetric = open_asymmetric(seal_to_node(b"hello", recipient.public_key, padding=padding), recipient)

    assert symmetric.padding == asymmetric.padding == padding
    assert symmetric.payload == asymmetric.payload == b"hello"


def test_without_a_padding_the_plaintext_fills_a_block_with_randomness() -> None:
    paddings = [open_symmetric(seal_to_key(b"hello", PASSWORD_KEY), PASSWORD_KEY).padding for _ in range(2)]

    assert [len(padding) for padding in paddings] == [256 - 1 - 1 - 5] * 2
    assert paddings[0] != paddings[1]


async def test_sealed_data_becomes_an_envelope_with_work() -> None:
    envelope = await mine_envelope(b"data", NEWS, ttl=10, min_pow=0.5, now=1000, turn=asyncio.Lock())

    assert (envelope.data, envelope.topic, envelope.expiry, envelope.ttl) == (b"data", NEWS, 1010, 10)
    assert envelope.pow() >= 0.5


@pytest.mark.parametrize(("ttl", "limit_s", "shown"), [(1000, 0.01, "0.01"), (0, 10.0, "0")])
async def test_work_is_given_up_at_its_limit_or_when_the_envelope_expires(ttl: int, limit_s: float, shown: str) -> None:
    with pytest.raises(TooMuchWork) as given_up:
        await mine_envelope(b"data", NEWS, ttl=ttl, min_pow=1e30, now=1000, limit_s=limit_s)

    assert str(given_up.value).startswith(f"no proof of work within {shown} s: ")


async def test_works_that_share_a_turn_wait_for_it() -> None:
    turn = asyncio.Lock()
    async with turn:
        working = asyncio.create_task(mine_envelope(b"data", NEWS, ttl=10, min_pow=0.0, now=1000, turn=turn))
        await turns()
        waiting = not working.done()

    await working
    assert waiting


async def test_request_is_sealed_signed_and_has_the_work_that_is_asked() -> None:
    first, second = [await seal_request(ASK, PASSWORD_KEY, min_pow=0.01, now=1000) for _ in range(2)]

    opened = open_symmetric(first.data, PASSWORD_KEY)
    assert decode_fields(RequestId(first.hash()), opened.payload).interest == ASK.interest
    assert opened.signer is not None
    assert opened.signer != open_symmetric(second.data, PASSWORD_KEY).signer
    assert (first.created, first.ttl, first.topic) == (1000, REQUEST_TTL_S, REQUEST_TOPIC)
    assert first.pow() >= 0.01


# Against a mailserver


async def test_client_announces_itself_as_a_light_node_that_wants_nothing() -> None:
    heard: list[Event] = []

    async def note(connection: Connection, event: Event) -> None:
        heard.append(event)

    async with node(note) as client:
        await until(lambda: bool(heard))

        assert isinstance(heard[0], StatusReceived)
        settings = heard[0].settings
        assert settings.light_node
        assert settings.interest == Interest(bloom=EMPTY_BLOOM)
        assert client.settings.confirmations


async def test_what_is_posted_is_confirmed_and_found(store: SqliteStore) -> None:
    envelopes = make_envelopes(3)
    taken = Taken()

    async with mailserver(store) as client:
        response = await client.post(envelopes)
        completion = await client.request(ASK, PASSWORD_KEY, taken)

    assert response == MessageResponse(keccak256(encode_envelopes([envelope.raw for envelope in envelopes])))
    assert taken.envelopes == envelopes
    assert completion.last_envelope_hash == envelopes[-1].hash()
    assert completion.cursor is None


async def test_refused_envelopes_are_reported(store: SqliteStore) -> None:
    future = make_envelope(1, created=int(Clock().now) + 100)

    async with mailserver(store) as client:
        response = await client.post([make_envelope(2), future])

    expected = EnvelopeError(future.hash(), EnvelopeErrorCode.TIME_SYNC, Verdict.FROM_THE_FUTURE.value)
    assert response.errors == (expected,)


async def test_several_packets_may_be_on_their_way_at_once(store: SqliteStore) -> None:
    async with mailserver(store) as client:
        responses = await asyncio.gather(*(client.post([make_envelope(number)]) for number in range(20)))

    assert len({response.batch_hash for response in responses}) == 20


async def test_same_packet_posted_twice_at_once_is_confirmed_to_both(store: SqliteStore) -> None:
    async with mailserver(store) as client:
        first, second = await asyncio.gather(*(client.post([make_envelope(1)]) for _ in range(2)))

    assert first == second


@pytest.mark.parametrize("form", CompletionFormat)
async def test_all_pages_are_followed_in_both_forms_of_completion(store: SqliteStore, form: CompletionFormat) -> None:
    envelopes = make_envelopes(35)
    await fill(store, envelopes)
    taken = Taken()

    async with mailserver(store, completion_format=form) as client:
        last = await client.request_all(ASK, PASSWORD_KEY, taken)

    assert taken.envelopes == envelopes
    assert [len(packet) for packet in taken.packets] == [10, 10, 10, 5]
    assert last.cursor is None


async def test_pages_that_the_mailserver_ends_early_are_followed(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, requests_module.__name__)
    monkeypatch.setattr(delivery_module, "PAGE_WORK", 0)
    monkeypatch.setattr(search_module, "MAX_ROWS", 7)
    monkeypatch.setattr(search_module, "LEAST_ROWS", 7)
    monkeypatch.setattr(search_module, "MAX_PAIRS", -1)
    envelopes = [make_envelope(number, topic=SPORT if number % 50 == 9 else NEWS) for number in range(100)]
    await fill(store, envelopes)
    taken = Taken()

    async with mailserver(store) as client:
        asked = replace(ASK, interest=Interest(bloom=bloom_of([SPORT])))
        last = await client.request_all(asked, PASSWORD_KEY, taken)

    assert taken.envelopes == [envelope for envelope in in_order(envelopes) if envelope.topic == SPORT]
    assert len([message for message in caplog.messages if " early=yes " in message]) > 10
    assert last.cursor is None


async def test_one_page_ends_with_a_cursor_and_the_next_begins_there(store: SqliteStore) -> None:
    envelopes = make_envelopes(4)
    await fill(store, envelopes)
    taken = Taken()
    everything = MailRequest(RequestId(bytes(32)), 0, 0, FULL_INTEREST, limit=3, one_per_packet=True)

    async with mailserver(store) as client:
        completion = await client.request(everything, PASSWORD_KEY, taken)
        assert completion.cursor == Cursor(envelopes[2].created, envelopes[2].hash())
        await client.request(
            MailRequest(RequestId(bytes(32)), 0, 0, FULL_INTEREST, cursor=completion.cursor), PASSWORD_KEY, taken
        )

    assert [len(packet) for packet in taken.packets] == [1, 1, 1, 1]
    assert taken.envelopes == envelopes


async def test_requests_made_at_once_take_turns_and_do_not_mix(store: SqliteStore) -> None:
    sport = Topic(b"spor")
    news_envelopes, sport_envelopes = make_envelopes(10), make_envelopes(10, first=20, topic=sport)
    await fill(store, news_envelopes + sport_envelopes)
    news_taken, sport_taken = Taken(), Taken()

    async with mailserver(store) as client:
        await asyncio.gather(
            client.request(ASK, PASSWORD_KEY, news_taken),
            client.request(
                MailRequest(RequestId(bytes(32)), 0, 0, Interest(topics=frozenset({sport}))), PASSWORD_KEY, sport_taken
            ),
        )

    assert news_taken.envelopes == news_envelopes
    assert sport_taken.envelopes == sport_envelopes


async def test_refusal_is_an_error_with_the_servers_words_and_the_connection_stays(store: SqliteStore) -> None:
    async with mailserver(store) as client:
        with pytest.raises(RequestFailed) as failed:
            await client.request(ASK, digest("another password"), Taken())
        await client.request(ASK, PASSWORD_KEY, Taken())

    assert str(failed.value) == Rejection.UNDECRYPTABLE.value
    assert failed.value.failure.message == Rejection.UNDECRYPTABLE.value


async def test_request_has_the_work_that_the_node_asks_for() -> None:
    requests: list[SealedRequest] = []

    async def note(connection: Connection, event: Event) -> None:
        if isinstance(event, P2PRequestReceived):
            request = decode_request(event.payload)
            assert isinstance(request, SealedRequest)
            requests.append(request)
            connection.send(PacketCode.P2P_REQUEST_COMPLETE, Completion(request.request_id).encode())

    before = int(time.time())
    async with node(note, StatusOptions(pow_requirement=0.01)) as client:
        await client.request(ASK, PASSWORD_KEY, Taken())

    envelope = requests[0].envelope
    assert envelope.pow() >= 0.01
    assert before <= envelope.created <= int(time.time())
    opened = open_symmetric(envelope.data, PASSWORD_KEY)
    assert opened.signer is not None
    fields = decode_fields(requests[0].request_id, opened.payload)
    assert (fields.interest, fields.one_per_packet) == (ASK.interest, False)


# Against nodes that behave oddly


def completing(*completions: Callable[[RequestId], bytes]) -> Behave:
    """A node that answers a request with these."""

    async def behave(connection: Connection, event: Event) -> None:
        if isinstance(event, P2PRequestReceived):
            for completion in completions:
                payload = completion(decode_request(event.payload).request_id)
                connection.send(PacketCode.P2P_REQUEST_COMPLETE, payload)

    return behave


def done(request_id: RequestId) -> bytes:
    return Completion(request_id).encode()


def of_another(_: RequestId) -> bytes:
    return Failure(RequestId(bytes(32)), "another").encode()


@pytest.mark.parametrize("completions", [(of_another, done), (done, of_another)])
async def test_completion_of_another_request_is_passed_over(
    completions: tuple[Callable[[RequestId], bytes], ...],
) -> None:
    async with node(completing(*completions)) as client:
        completion = await client.request(ASK, PASSWORD_KEY, Taken())

    assert completion.last_envelope_hash == EnvelopeHash(bytes(32))


async def test_cursor_that_does_not_advance_is_given_up() -> None:
    cursor = Cursor(1000, EnvelopeHash(bytes(32)))

    async with node(completing(lambda request_id: Completion(request_id, cursor=cursor).encode())) as client:
        with pytest.raises(RequestFailed, match="does not advance"):
            await client.request_all(ASK, PASSWORD_KEY, Taken())


def paging(*pages: tuple[list[Envelope], Cursor | None]) -> Behave:
    """A mailserver that answers one request after the other with these pages, and then with the first one again."""
    left: list[tuple[list[Envelope], Cursor | None]] = []

    async def behave(connection: Connection, event: Event) -> None:
        if isinstance(event, P2PRequestReceived):
            left[:] = left or pages
            envelopes, cursor = left.pop(0)
            connection.send(PacketCode.P2P_MESSAGE, encode_envelopes([envelope.raw for envelope in envelopes]))
            completion = Completion(decode_request(event.payload).request_id, cursor=cursor)
            connection.send(PacketCode.P2P_REQUEST_COMPLETE, completion.encode())

    return behave


def cursor_at(created: int) -> Cursor:
    return Cursor(created, EnvelopeHash(bytes(32)))


async def test_cursors_of_short_and_empty_pages_are_followed_to_the_end() -> None:
    first, second, third = make_envelopes(3)
    pages = paging(
        ([first], cursor_at(900)),
        *(([], cursor_at(created)) for created in range(899, 870, -1)),
        ([second, third], cursor_at(800)),
        ([], cursor_at(700)),
        ([], None),
    )
    taken = Taken()

    async with node(pages) as client:
        completion = await client.request_all(ASK, PASSWORD_KEY, taken)

    assert taken.envelopes == [first, second, third]
    assert completion.cursor is None


async def test_cursors_that_go_in_circles_are_given_up() -> None:
    async with node(paging(([], cursor_at(900)), ([], cursor_at(800)))) as client:
        with pytest.raises(RequestFailed, match="does not advance"):
            await client.request_all(ASK, PASSWORD_KEY, Taken())


async def test_answer_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_PAGES", 5)

    async with node(paging(*(([], cursor_at(created)) for created in range(100)))) as client:
        with pytest.raises(RequestFailed, match="does not end within 5 pages"):
            await client.request_all(ASK, PASSWORD_KEY, Taken())


async def test_what_was_not_asked_for_is_counted_and_not_passed_on() -> None:
    news, more = make_envelopes(2)
    sport = make_envelope(1, topic=Topic(b"spor"))
    check, taken = AnswerCheck(), Taken()

    async with node(paging(([news, sport], cursor_at(900)), ([news, more], None))) as client:
        await client.request_all(ASK, PASSWORD_KEY, taken, check=check)

    assert taken.envelopes == [news, more]
    assert check.faults == {Fault.UNWANTED_TOPIC: 1, Fault.DOUBLE: 1}


# Proof of work of requests


async def test_request_has_the_work_that_was_given_instead_of_what_the_node_asks_for(store: SqliteStore) -> None:
    async with mailserver(store, min_pow=0.5, min_request_pow=0.02) as client:
        with pytest.raises(RequestPowTooLow) as failed:
            await client.request(ASK, PASSWORD_KEY, Taken(), min_pow=0.0000001)
        await client.request(ASK, PASSWORD_KEY, Taken(), min_pow=0.02)

    assert str(failed.value) == f"{Rejection.POW_TOO_LOW.value} (it was sealed with 0.0000001)"


async def test_deployed_servers_word_for_too_little_work_is_known() -> None:
    def refuse(request_id: RequestId) -> bytes:
        return Failure(request_id, "PoW() is too low").encode()

    async with node(completing(refuse), StatusOptions(pow_requirement=0.002)) as client:
        with pytest.raises(RequestPowTooLow) as failed:
            await client.request(ASK, PASSWORD_KEY, Taken())

    assert str(failed.value) == "PoW() is too low (it was sealed with 0.002)"


async def test_request_can_be_sealed_to_the_mailservers_public_key(store: SqliteStore) -> None:
    envelopes = make_envelopes(2)
    await fill(store, envelopes)
    taken = Taken()

    async with mailserver(store) as client:
        await client.request(ASK, KEY.public_key, taken)
        with pytest.raises(RequestFailed, match="could not be decrypted"):
            await client.request(ASK, private_key("another").public_key, taken)

    assert taken.envelopes == envelopes


@pytest.mark.parametrize("payload", [b"", b"\xff", rlp.encode(bytes(63)), rlp.encode(b"ERROR=short"), b"\xc0"])
async def test_completion_that_does_not_decode_ends_the_connection(payload: bytes) -> None:
    async with node(completing(lambda _: payload)) as client:
        with pytest.raises(ConnectionLost) as lost:
            await client.request(ASK, PASSWORD_KEY, Taken())

    assert lost.value.reason is DisconnectReason.SUBPROTOCOL_ERROR


async def test_completion_in_one_breath_with_a_goodbye_counts() -> None:
    async def behave(connection: Connection, event: Event) -> None:
        if isinstance(event, P2PRequestReceived):
            connection.send(PacketCode.P2P_MESSAGE, encode_envelopes([make_envelope(1).raw]))
            connection.send(PacketCode.P2P_REQUEST_COMPLETE, done(decode_request(event.payload).request_id))
            connection.disconnect(DisconnectReason.CLIENT_QUITTING, "and off")

    taken = Taken()
    async with node(behave) as client:
        await client.request(ASK, PASSWORD_KEY, taken)

    assert taken.envelopes == [make_envelope(1)]


async def test_confirmation_in_one_breath_with_a_goodbye_counts() -> None:
    async def behave(connection: Connection, event: Event) -> None:
        if isinstance(event, MessagesReceived):
            connection.send(PacketCode.MESSAGE_RESPONSE, MessageResponse(event.batch_hash).encode())
            connection.send(PacketCode.BATCH_ACKNOWLEDGED, rlp.encode(event.batch_hash))
            connection.disconnect(DisconnectReason.CLIENT_QUITTING, "and off")

    async with node(behave) as client:
        response = await client.post([make_envelope(1)])

    assert response.errors == ()


async def test_confirmations_of_packets_that_nobody_sent_are_passed_over() -> None:
    async def behave(connection: Connection, event: Event) -> None:
        if isinstance(event, MessagesReceived):
            for batch_hash in (bytes(32), event.batch_hash):
                connection.send(PacketCode.MESSAGE_RESPONSE, MessageResponse(batch_hash).encode())
                connection.send(PacketCode.BATCH_ACKNOWLEDGED, rlp.encode([b"\x01", batch_hash]))
            connection.send(PacketCode.P2P_MESSAGE, encode_envelopes([make_envelope(1).raw]))
            connection.send(PacketCode.P2P_REQUEST_COMPLETE, of_another(RequestId(bytes(32))))

    async with node(behave) as client:
        response = await client.post([make_envelope(1)])

    assert response == MessageResponse(keccak256(encode_envelopes([make_envelope(1).raw])))


async def test_acknowledgement_without_a_response_before_it_is_a_confirmation() -> None:
    async def behave(connection: Connection, event: Event) -> None:
        if isinstance(event, MessagesReceived):
            connection.send(PacketCode.BATCH_ACKNOWLEDGED, rlp.encode(event.batch_hash))
            connection.send(PacketCode.BATCH_ACKNOWLEDGED, rlp.encode(event.batch_hash))

    async with node(behave) as client:
        assert (await client.post([make_envelope(1)])).errors == ()


async def test_node_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with node(silent) as client:
        monkeypatch.setattr(client_module, "ANSWER_TIMEOUT_S", 0.05)
        with pytest.raises(NoAnswer, match="no answer"):
            await client.request(ASK, PASSWORD_KEY, Taken())
        with pytest.raises(NoAnswer, match="no confirmation"):
            await client.post([make_envelope(1)])
        with pytest.raises(NoAnswer, match="no answer"):
            await client.request(ASK, PASSWORD_KEY, Taken())


async def test_slow_answer_is_waited_for_as_long_as_packets_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "ANSWER_TIMEOUT_S", 1.0)
    envelopes = make_envelopes(4)

    async def behave(connection: Connection, event: Event) -> None:
        if isinstance(event, P2PRequestReceived):
            for envelope in envelopes:
                connection.send(PacketCode.P2P_MESSAGE, encode_envelopes([envelope.raw]))
                await asyncio.sleep(0.3)
            connection.send(PacketCode.P2P_REQUEST_COMPLETE, done(decode_request(event.payload).request_id))

    taken = Taken()
    async with node(behave) as client:
        await client.request(ASK, PASSWORD_KEY, taken)

    assert taken.envelopes == envelopes


async def test_connection_that_ends_ends_what_waits_for_an_answer() -> None:
    async def behave(connection: Connection, event: Event) -> None:
        if isinstance(event, P2PRequestReceived):
            connection.disconnect(DisconnectReason.CLIENT_QUITTING, "enough")

    async with node(behave) as client:
        results = await asyncio.gather(
            client.post([make_envelope(1)]),
            client.post([make_envelope(2)]),
            client.request(ASK, PASSWORD_KEY, Taken()),
            return_exceptions=True,
        )

    assert all(isinstance(result, ConnectionLost) for result in results)
    assert {str(result) for result in results} == {"peer disconnected: CLIENT_QUITTING"}


async def test_what_is_asked_after_the_end_is_told_so() -> None:
    async def behave(connection: Connection, event: Event) -> None:
        connection.abort("enough")

    async with node(behave) as client:
        with pytest.raises(ConnectionLost):
            await client.request(ASK, PASSWORD_KEY, Taken())
        with pytest.raises(ConnectionLost):
            await client.post([make_envelope(1)])
        with pytest.raises(ConnectionLost):
            await client.request(ASK, PASSWORD_KEY, Taken())


async def test_node_that_reads_nothing_does_not_hold_a_post_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mailserver.net.connection.WRITE_TIMEOUT_S", 0.2)
    gate = asyncio.Event()

    async def behave(connection: Connection, event: Event) -> None:
        await gate.wait()

    async with node(behave) as client:
        posts = [client.post([envelope]) for envelope in make_large_envelopes(60, 200_000)]
        results = await asyncio.gather(*posts, return_exceptions=True)
        gate.set()

    assert {type(result) for result in results} == {ConnectionLost}
    assert {str(result) for result in results} == {"peer read nothing for 0.2 s"}


# Connecting


async def test_node_that_is_a_light_node_too_cannot_be_used() -> None:
    with pytest.raises(ConnectionLost) as lost:
        async with node(silent, StatusOptions(light_node=True)):
            pass

    assert lost.value.reason is DisconnectReason.USELESS_PEER


async def test_nobody_there_is_an_ordinary_error() -> None:
    async with listening(lambda connection: connection.run(lambda event: silent(connection, event)), STATUS) as enode:
        pass

    with pytest.raises(ConnectionLost, match="cannot connect"):
        async with connect(enode, "client/1"):
            pass


async def test_node_with_another_key_is_not_talked_to() -> None:
    async def serve(connection: Connection) -> None:
        await connection.run(lambda event: silent(connection, event))

    async with listening(serve, STATUS) as enode:
        another = Enode(private_key("another").public_key, enode.host, enode.port)
        with pytest.raises(ConnectionLost, match="another node id is there than the enode says"):
            async with connect(another, "client/1"):
                pass


async def test_node_that_never_says_status_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waku_peer_module, "STATUS_TIMEOUT_S", 0.2)

    async def try_to_connect(enode: Enode) -> None:
        async with asyncio.timeout(3), connect(enode, "client/1"):
            pass

    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        connecting = asyncio.create_task(try_to_connect(Enode(KEY.public_key, *server.getsockname())))
        end, _ = await asyncio.wait_for(asyncio.get_running_loop().sock_accept(server), DEADLINE_S)
        raw = await RawPeer.accept(end)
        raw.write(raw.hello())

        await raw.hear()
        raw.compressed = True

        with pytest.raises(ConnectionLost, match=r"no Status within 0\.2 s"):
            await connecting
        await raw.close()


async def test_error_of_the_caller_comes_out_and_the_node_hears_goodbye(store: SqliteStore) -> None:
    class Mine(Exception):
        pass

    with pytest.raises(Mine):
        async with mailserver(store):
            raise Mine


async def test_limits_of_the_node_are_known_to_the_client() -> None:
    status = StatusOptions(pow_requirement=0.5, packet_rate_limits=RateLimits(1, 2, 3), confirmations=True)

    async with node(silent, status) as client:
        assert client.settings.pow_requirement == 0.5
        assert client.settings.packet_rate_limits == RateLimits(1, 2, 3)


async def test_requests_and_posts_keep_to_the_limits_of_the_node() -> None:
    rate, times = 40, []

    async def behave(connection: Connection, event: Event) -> None:
        if isinstance(event, P2PRequestReceived):
            times.append(asyncio.get_running_loop().time())
            connection.send(PacketCode.P2P_REQUEST_COMPLETE, done(decode_request(event.payload).request_id))
        elif isinstance(event, MessagesReceived):
            times.append(asyncio.get_running_loop().time())
            connection.send(PacketCode.BATCH_ACKNOWLEDGED, encode_batch_acknowledged(event.batch_hash))

    async with node(behave, replace(STATUS, packet_rate_limits=RateLimits(peer=rate))) as client:
        for number in range(16):
            await client.request(ASK, PASSWORD_KEY, Taken())
            await client.post([make_envelope(number)])

    assert len(times) == 32
    allowed = rate * BURST_S * SHARE
    assert times[-1] - times[0] >= (len(times) - 1 - allowed) / (rate * SHARE) - 0.05


async def test_node_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "ANSWER_TIMEOUT_S", 0.5)
    async with node(silent, replace(STATUS, byte_rate_limits=RateLimits(peer=1))) as client:
        with pytest.raises(NoAnswer, match=r"no answer within 0\.5 s"):
            await client.request(ASK, PASSWORD_KEY, Taken())
        with pytest.raises(NoAnswer, match=r"no confirmation within 0\.5 s"):
            await client.post([make_envelope(1)])
