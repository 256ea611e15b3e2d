"""mailserver.client.mail_client against a mailserver: posts, requests, and proof of work."""

import asyncio
import contextlib
import logging
import time
import weakref
from dataclasses import replace

import pytest

from mailserver.client import mail_client as client_module
from mailserver.client.mail_client import RequestFailed, RequestPowTooLow
from mailserver.codec.keccak import keccak256
from mailserver.errors import ConnectionLost, DisconnectReason, Rejection
from mailserver.history import delivery as delivery_module
from mailserver.history import requests as requests_module
from mailserver.limits.send_rate import BURST_S, USED_SHARE
from mailserver.mail.answer import AnswerCheck, AnswerFault
from mailserver.mail.completion import Completion, CompletionFormat, Failure
from mailserver.mail.request import (
    UNSEALED_ID,
    Cursor,
    MailRequest,
    RequestId,
    SealedRequest,
    decode_fields,
    decode_request,
)
from mailserver.net.connection import Connection
from mailserver.net.inbound import Event
from mailserver.store.engine import search as search_module
from mailserver.store.sqlite.store import SqliteStore
from mailserver.waku.acceptance import Verdict
from mailserver.waku.bloom import FULL_INTEREST, Interest, bloom_of
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
from mailserver.waku.payload import open_symmetric
from mailserver.waku.peer import MessagesReceived, P2PRequestReceived
from tests.client.nodes import ASK, KEY, Behave, Taken, completing, done, mailserver, node
from tests.mailservers import NEWS, PASSWORD_KEY, SPORT, STATUS, Clock, fill, in_order, make_envelope, make_envelopes
from tests.memory import no_search_for_cycles
from tests.pairs import digest, private_key
from tests.waiting import until

pytestmark = pytest.mark.integration


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


async def test_packet_whose_confirmation_never_came_is_freed_at_once() -> None:
    class Packet(list[Envelope]):
        """Envelopes; unlike of a list, it can be said when they are freed."""

    async def leave(connection: Connection, event: Event) -> None:
        if isinstance(event, MessagesReceived):
            connection.disconnect(DisconnectReason.CLIENT_QUITTING, "enough")

    packet = Packet(make_envelopes(3))
    freed = weakref.ref(packet)

    with no_search_for_cycles():
        async with node(leave) as client:
            with contextlib.suppress(ConnectionLost):
                await client.post(packet)
            del packet

            await until(lambda: freed() is None)


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
    monkeypatch.setattr(search_module, "MIN_ROWS", 7)
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
    everything = MailRequest(UNSEALED_ID, 0, 0, FULL_INTEREST, limit=3, one_per_packet=True)

    async with mailserver(store) as client:
        completion = await client.request(everything, PASSWORD_KEY, taken)
        assert completion.cursor == Cursor(envelopes[2].created, envelopes[2].hash())
        await client.request(
            MailRequest(UNSEALED_ID, 0, 0, FULL_INTEREST, cursor=completion.cursor), PASSWORD_KEY, taken
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
                MailRequest(UNSEALED_ID, 0, 0, Interest(topics=frozenset({sport}))), PASSWORD_KEY, sport_taken
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


# Cursors, and what was not asked for


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
    assert check.faults == {AnswerFault.UNWANTED_TOPIC: 1, AnswerFault.DOUBLE: 1}


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
    allowed = rate * BURST_S * USED_SHARE
    assert times[-1] - times[0] >= (len(times) - 1 - allowed) / (rate * USED_SHARE) - 0.05
