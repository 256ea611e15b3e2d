"""mailserver.client.mail_client against nodes that answer oddly, slowly, or not at all."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from mailserver.client import mail_client as client_module
from mailserver.client.mail_client import NoAnswer
from mailserver.codec import rlp
from mailserver.codec.keccak import keccak256
from mailserver.errors import ConnectionLost, DisconnectReason
from mailserver.mail.answer import AnswerCheck
from mailserver.mail.completion import Failure
from mailserver.mail.request import RequestId, decode_request
from mailserver.net.connection import Connection
from mailserver.net.inbound import Event
from mailserver.waku.bloom import FULL_INTEREST
from mailserver.waku.envelope import EnvelopeHash, encode_envelopes
from mailserver.waku.packets import MessageResponse, PacketCode, RateLimits
from mailserver.waku.peer import MessagesReceived, P2PRequestReceived
from tests.client.nodes import ASK, Taken, completing, done, node, silent
from tests.mailservers import PASSWORD_KEY, SPORT, STATUS, make_envelope, make_envelopes, make_large_envelopes

pytestmark = pytest.mark.integration


def of_another(_: RequestId) -> bytes:
    return Failure(RequestId(bytes(32)), "another").encode()


@pytest.mark.parametrize("completions", [(of_another, done), (done, of_another)])
async def test_completion_of_another_request_is_passed_over(
    completions: tuple[Callable[[RequestId], bytes], ...],
) -> None:
    async with node(completing(*completions)) as client:
        completion = await client.request(ASK, PASSWORD_KEY, Taken())

    assert completion.last_envelope_hash == EnvelopeHash(bytes(32))


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


NOTHING = b"\xc0"


async def test_packets_without_an_envelope_that_was_asked_for_are_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "ANSWER_TIMEOUT_S", 0.5)
    unasked = make_envelope(1, topic=SPORT)

    async def behave(connection: Connection, event: Event) -> None:
        if isinstance(event, P2PRequestReceived):
            with contextlib.suppress(ConnectionLost):  # which is how this ends
                while True:
                    connection.send(PacketCode.P2P_MESSAGE, NOTHING)
                    connection.send(PacketCode.P2P_MESSAGE, encode_envelopes([unasked.raw]))
                    await asyncio.sleep(0.02)

    async with node(behave) as client:
        with pytest.raises(NoAnswer):
            await client.request(ASK, PASSWORD_KEY, Taken(), check=AnswerCheck())


async def test_envelopes_that_nobody_waits_for_are_not_even_decoded() -> None:
    async def behave(connection: Connection, event: Event) -> None:
        if isinstance(event, MessagesReceived):
            for code in (PacketCode.MESSAGES, PacketCode.P2P_MESSAGE):
                connection.send(code, b"no envelopes")  # would end the connection
            connection.send(PacketCode.BATCH_ACKNOWLEDGED, rlp.encode(event.batch_hash))

    async with node(behave) as client:
        assert (await client.post([make_envelope(1)])).errors == ()
        assert (await client.post([make_envelope(2)])).errors == ()
        with client.subscribe(FULL_INTEREST), pytest.raises(ConnectionLost, match="MESSAGES"):
            await client.post([make_envelope(3)])


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
    monkeypatch.setattr("mailserver.net.link.WRITE_TIMEOUT_S", 0.2)
    gate = asyncio.Event()

    async def behave(connection: Connection, event: Event) -> None:
        await gate.wait()

    async with node(behave) as client:
        posts = [client.post([envelope]) for envelope in make_large_envelopes(60, 200_000)]
        results = await asyncio.gather(*posts, return_exceptions=True)
        gate.set()

    assert {type(result) for result in results} == {ConnectionLost}
    assert {str(result) for result in results} == {"peer read nothing for 0.2 s"}


async def test_node_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "ANSWER_TIMEOUT_S", 0.5)
    async with node(silent, replace(STATUS, byte_rate_limits=RateLimits(peer=1))) as client:
        with pytest.raises(NoAnswer, match=r"no answer within 0\.5 s"):
            await client.request(ASK, PASSWORD_KEY, Taken())
        with pytest.raises(NoAnswer, match=r"no confirmation within 0\.5 s"):
            await client.post([make_envelope(1)])
