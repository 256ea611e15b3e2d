"""mailserver.rlpx.session: how a session ends."""

import pytest

from mailserver.codec import rlp
from mailserver.errors import DisconnectReason
from mailserver.rlpx.events import MessageReceived, SessionClosed
from mailserver.rlpx.moves import SessionState
from mailserver.rlpx.p2p import MessageId
from tests.pairs import (
    BREACH,
    RECIPIENT_KEY_NAME,
    START,
    TOY,
    TOY_OFFSET,
    AnyClosed,
    Pair,
    feed,
    open_session,
    receiving,
    recipient_and_peer,
    session_config,
)
from tests.rlpx.roles import disconnect_of


def test_disconnect_says_why_and_ends_the_session() -> None:
    session, peer = open_session()

    session.disconnect(DisconnectReason.CLIENT_QUITTING, "stopping")

    assert session.events() == [SessionClosed(DisconnectReason.CLIENT_QUITTING, by_peer=False, cause="stopping")]
    assert peer.hear_inflated() == [disconnect_of(DisconnectReason.CLIENT_QUITTING)]
    assert session.state is SessionState.CLOSED


def test_disconnect_before_there_are_keys_says_nothing() -> None:
    session = receiving(session_config(RECIPIENT_KEY_NAME))

    session.disconnect(DisconnectReason.CLIENT_QUITTING, "stopping")

    assert session.events() == [AnyClosed(DisconnectReason.CLIENT_QUITTING, by_peer=False)]
    assert session.data_to_send() == []


def test_disconnect_before_the_peers_hello_is_not_compressed() -> None:
    session, peer = recipient_and_peer()
    peer.hear()

    session.disconnect(DisconnectReason.CLIENT_QUITTING, "stopping")

    assert peer.hear() == [disconnect_of(DisconnectReason.CLIENT_QUITTING)]


def test_closed_session_does_nothing_more() -> None:
    session, peer = open_session()
    session.disconnect(DisconnectReason.CLIENT_QUITTING, "stopping")
    session.events()
    session.data_to_send()

    session.disconnect(DisconnectReason.PROTOCOL_BREACH, "again")
    peer.say(TOY_OFFSET, b"late")
    session.receive_eof()
    session.handle_timer(START + 1000)
    session.pause_reading()
    session.resume_reading(START + 1000)
    session.probe(START + 1000)

    assert session.events() == []
    assert session.data_to_send() == []
    assert session.next_timer() is None
    assert session.state is SessionState.CLOSED


@pytest.mark.parametrize("reason", DisconnectReason)
@pytest.mark.parametrize("form", ["list", "bare integer"])
def test_disconnect_of_the_peer_ends_the_session_for_its_reason(reason: DisconnectReason, form: str) -> None:
    session, peer = open_session()
    number = rlp.encode_uint(reason)

    peer.say(MessageId.DISCONNECT, rlp.encode([number] if form == "list" else number))

    [event] = session.events()
    assert event == SessionClosed(reason, by_peer=True, cause=f"peer disconnected: {reason.name}")
    assert peer.hear() == []


@pytest.mark.parametrize("payload", [b"", b"\xc1\x0c", b"\xff"])
def test_disconnect_of_the_peer_for_no_known_reason_ends_the_session(payload: bytes) -> None:
    session, peer = open_session()

    peer.say(MessageId.DISCONNECT, payload)

    [event] = session.events()
    assert event == SessionClosed(None, by_peer=True, cause="peer disconnected: unknown reason")


def test_disconnect_reaches_the_other_session() -> None:
    pair = Pair.open()

    pair.initiator.disconnect(DisconnectReason.SUBPROTOCOL_ERROR, "bad packet")
    pair.pump()

    assert pair.recipient.events() == [AnyClosed(DisconnectReason.SUBPROTOCOL_ERROR, by_peer=True)]


def test_what_follows_a_disconnect_is_ignored() -> None:
    session, peer = open_session()

    stream = peer.frame(TOY_OFFSET, b"before") + peer.frame(*disconnect_of(DisconnectReason.REQUESTED))
    feed(session, stream + peer.frame(TOY_OFFSET, b"after") + b"junk")

    assert session.events() == [MessageReceived(TOY, 0, b"before"), AnyClosed(DisconnectReason.REQUESTED, by_peer=True)]


def test_what_follows_a_breach_is_ignored() -> None:
    session, peer = open_session()

    feed(session, peer.frame(0xFF, b"") + peer.frame(TOY_OFFSET, b"after"))

    assert session.events() == [BREACH]


@pytest.mark.parametrize("state", [SessionState.HANDSHAKE, SessionState.HELLO, SessionState.OPEN])
def test_end_of_file_ends_the_session_in_each_state(state: SessionState) -> None:
    session = {
        SessionState.HANDSHAKE: lambda: receiving(session_config(RECIPIENT_KEY_NAME)),
        SessionState.HELLO: lambda: recipient_and_peer()[0],
        SessionState.OPEN: lambda: open_session()[0],
    }[state]()
    session.data_to_send()
    assert session.state is state

    session.receive_eof()
    session.receive_eof()

    assert session.events() == [SessionClosed(None, by_peer=True, cause=f"connection closed in state {state.name}")]
    assert session.data_to_send() == []
    assert session.next_timer() is None
