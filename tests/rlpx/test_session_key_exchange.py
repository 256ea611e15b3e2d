"""mailserver.rlpx.session: from the first byte until both sides have the keys."""

import pytest

from mailserver.codec.keys import NodeId, PrivateKey
from mailserver.errors import DecodeError, DisconnectReason
from mailserver.rlpx import p2p
from mailserver.rlpx.capabilities import Capability, SharedCapability
from mailserver.rlpx.events import SessionClosed, SessionOpened
from mailserver.rlpx.handshake import PLAIN_AUTH_BYTES, Entropy, Initiator, Recipient
from mailserver.rlpx.moves import SessionState
from mailserver.rlpx.p2p import MessageId
from mailserver.rlpx.session import HANDSHAKE_TIMEOUT_S, Session
from mailserver.rlpx.session_config import SessionConfig
from tests.data import load
from tests.pairs import (
    BREACH,
    INITIATOR_KEY_NAME,
    MAX_MESSAGE_BYTES,
    RECIPIENT_KEY_NAME,
    START,
    TOY,
    TOY_CODES,
    TOY_OFFSET,
    AnyClosed,
    Pair,
    ScriptedPeer,
    entropy,
    entropy_of,
    feed,
    initiating,
    private_key,
    receiving,
    recipient_and_peer,
    session_config,
)
from tests.rlpx.roles import INITIATOR_ID, RECIPIENT_ID, ROLES, both_roles

FORMATS = load("eip8_formats.json")
AUTHS = {vector["name"]: bytes.fromhex(vector["packet"]) for vector in FORMATS["auth"]}
ACKS = {vector["name"]: bytes.fromhex(vector["packet"]) for vector in FORMATS["ack"]}


@pytest.mark.parametrize("chunk_bytes", [None, 1, 7])
def test_both_sides_open_however_the_bytes_are_cut(chunk_bytes: int | None) -> None:
    pair = Pair.join()

    pair.pump(chunk_bytes=chunk_bytes)

    shared = (SharedCapability(TOY, TOY_OFFSET, TOY_CODES),)
    assert pair.initiator.events() == [SessionOpened(RECIPIENT_ID, "recipient/1", shared)]
    assert pair.recipient.events() == [SessionOpened(INITIATOR_ID, "initiator/1", shared)]
    assert pair.initiator.state is pair.recipient.state is SessionState.OPEN


def test_events_and_bytes_are_taken_once() -> None:
    pair = Pair.join()

    assert len(pair.initiator.data_to_send()) == 1
    assert pair.initiator.data_to_send() == []

    session, peer = recipient_and_peer()
    peer.greet()
    assert len(session.events()) == 1
    assert session.events() == []


def test_initiator_knows_its_peer_from_the_start_and_recipient_from_auth_on() -> None:
    initiator = initiating(session_config(INITIATOR_KEY_NAME), private_key(RECIPIENT_KEY_NAME))
    recipient = receiving(session_config(RECIPIENT_KEY_NAME))
    assert initiator.remote_id == RECIPIENT_ID
    assert recipient.remote_id is None

    feed(recipient, b"".join(initiator.data_to_send()))

    assert recipient.remote_id == INITIATOR_ID


def test_dialling_a_node_id_off_the_curve_is_refused() -> None:
    config = session_config(INITIATOR_KEY_NAME)

    with pytest.raises(DecodeError, match="not on the curve"):
        Session(config, entropy_of(INITIATOR_KEY_NAME), START, remote_id=NodeId(bytes(64)))


def test_recipient_draws_no_randomness_before_it_has_a_whole_auth() -> None:
    draws: list[str] = []

    def counted() -> Entropy:
        draws.append("draw")
        return entropy(RECIPIENT_KEY_NAME)

    config = session_config(RECIPIENT_KEY_NAME)
    session = Session(config, counted, START)
    auth = Initiator(private_key(INITIATOR_KEY_NAME), config.key.public_key, entropy(INITIATOR_KEY_NAME)).auth

    feed(session, auth[:-1], chunk_bytes=1)
    assert draws == []
    assert session.data_to_send() == []

    feed(session, auth[-1:])
    assert draws == ["draw"]
    assert len(session.data_to_send()) == 2


def test_initiator_draws_its_randomness_once() -> None:
    draws: list[str] = []

    def counted() -> Entropy:
        draws.append("draw")
        return entropy(INITIATOR_KEY_NAME)

    session = Session(session_config(INITIATOR_KEY_NAME), counted, START, remote_id=RECIPIENT_ID)
    ScriptedPeer.accept(session).greet()

    assert session.state is SessionState.OPEN
    assert draws == ["draw"]


@both_roles
def test_hello_is_the_first_message_and_is_not_compressed(role: str) -> None:
    session, peer = ROLES[role]()

    heard = peer.hear()

    config_key = RECIPIENT_KEY_NAME if role == "recipient" else INITIATOR_KEY_NAME
    hello = p2p.Hello(p2p.P2P_VERSION, f"{role}/1", (TOY,), 0, private_key(config_key).public_key)
    assert heard == [(MessageId.HELLO, hello.encode())]
    assert session.state is SessionState.HELLO


def test_hello_offers_capabilities_in_order_and_tells_the_listen_port() -> None:
    config = SessionConfig(
        private_key(RECIPIENT_KEY_NAME), "name", {TOY: 1, Capability("a", 2): 1, Capability("a", 1): 1}, 100, 30303
    )
    _, peer = recipient_and_peer(config)

    [(_, payload)] = peer.hear()

    hello = p2p.Hello.decode(payload)
    assert hello.capabilities == (Capability("a", 1), Capability("a", 2), TOY)
    assert hello.listen_port == 30303


@pytest.mark.parametrize("name", ["Auth2", "Auth3"])
@pytest.mark.parametrize("chunk_bytes", [None, 1])
def test_published_auth_is_answered_with_ack_and_hello(name: str, chunk_bytes: int | None) -> None:
    session = receiving(published_config())

    feed(session, AUTHS[name], chunk_bytes=chunk_bytes)

    assert len(session.data_to_send()) == 2
    assert session.state is SessionState.HELLO
    assert session.remote_id == PrivateKey(bytes.fromhex(FORMATS["initiator_private_key"])).public_key


def published_config() -> SessionConfig:
    return SessionConfig(
        PrivateKey(bytes.fromhex(FORMATS["recipient_private_key"])), "name", {TOY: TOY_CODES}, MAX_MESSAGE_BYTES
    )


@pytest.mark.parametrize("chunk_bytes", [None, 1])
def test_plain_auth_from_before_eip_8_is_refused_with_its_last_byte(chunk_bytes: int | None) -> None:
    # Read as EIP-8, its first two bytes announce 1,164 bytes: the session must not wait for them.
    session = receiving(published_config())

    feed(session, AUTHS["Auth1"][: PLAIN_AUTH_BYTES - 1], chunk_bytes=chunk_bytes)
    assert session.state is SessionState.HANDSHAKE
    feed(session, AUTHS["Auth1"][PLAIN_AUTH_BYTES - 1 :])

    [event] = session.events()
    assert event == BREACH
    assert isinstance(event, SessionClosed)
    assert "before EIP-8" in event.cause
    assert session.data_to_send() == []


def long_entropy(name: str) -> Entropy:
    """With padding that brings the size prefix to 0x04.., where a plain packet begins too."""
    base = entropy(name)
    return Entropy(base.ephemeral_key, base.nonce, base.seal_key, base.iv, bytes(900))


@pytest.mark.parametrize("chunk_bytes", [None, 100])
def test_auth_of_eip_8_that_begins_like_a_plain_one_is_taken(chunk_bytes: int | None) -> None:
    auth = Initiator(private_key(INITIATOR_KEY_NAME), RECIPIENT_ID, long_entropy(INITIATOR_KEY_NAME)).auth
    session = receiving(session_config(RECIPIENT_KEY_NAME))
    assert auth[0] == 0x04

    feed(session, auth, chunk_bytes=chunk_bytes)

    assert session.state is SessionState.HELLO


@pytest.mark.parametrize("chunk_bytes", [None, 100])
def test_ack_of_eip_8_that_begins_like_a_plain_one_is_taken(chunk_bytes: int | None) -> None:
    session = initiating(session_config(INITIATOR_KEY_NAME), private_key(RECIPIENT_KEY_NAME))
    [auth] = session.data_to_send()
    ack, _ = Recipient(private_key(RECIPIENT_KEY_NAME), long_entropy(RECIPIENT_KEY_NAME)).receive_auth(auth)
    assert ack[0] == 0x04

    feed(session, ack, chunk_bytes=chunk_bytes)

    assert session.state is SessionState.HELLO


@pytest.mark.parametrize("name", ["Ack2", "Ack3"])
def test_published_ack_is_taken(name: str) -> None:
    published = Entropy(
        PrivateKey(bytes.fromhex(FORMATS["initiator_ephemeral_private_key"])),
        bytes.fromhex(FORMATS["initiator_nonce"]),
        private_key("seal"),
        bytes(16),
        bytes(100),
    )
    config = SessionConfig(
        PrivateKey(bytes.fromhex(FORMATS["initiator_private_key"])), "name", {TOY: TOY_CODES}, MAX_MESSAGE_BYTES
    )
    session = Session(config, lambda: published, START, remote_id=published_config().key.public_key)

    feed(session, ACKS[name], chunk_bytes=1)

    assert session.state is SessionState.HELLO


def test_plain_ack_from_before_eip_8_never_opens_a_session() -> None:
    session = initiating(session_config(INITIATOR_KEY_NAME), private_key(RECIPIENT_KEY_NAME))

    feed(session, ACKS["Ack1"])
    session.handle_timer(START + HANDSHAKE_TIMEOUT_S)

    assert session.events() == [AnyClosed(DisconnectReason.REQUESTED, by_peer=False)]


@pytest.mark.parametrize("prefix", [b"\x00\x00", b"\x00\x71", b"\x0f\xff", b"GE", b"\xff\xff"])
def test_impossible_packet_size_closes_the_session_with_its_second_byte(prefix: bytes) -> None:
    session = receiving(session_config(RECIPIENT_KEY_NAME))

    feed(session, prefix[:1])
    assert session.state is SessionState.HANDSHAKE
    feed(session, prefix[1:])

    assert session.events() == [BREACH]
    assert session.data_to_send() == []


def test_auth_for_another_key_closes_the_session_without_an_answer() -> None:
    session = receiving(session_config(RECIPIENT_KEY_NAME))

    feed(session, AUTHS["Auth2"])

    assert session.events() == [BREACH]
    assert session.data_to_send() == []
    assert session.remote_id is None


def test_ack_from_someone_else_closes_the_session_without_an_answer() -> None:
    session = initiating(session_config(INITIATOR_KEY_NAME), private_key(RECIPIENT_KEY_NAME))
    session.data_to_send()

    feed(session, ACKS["Ack2"])

    assert session.events() == [BREACH]
    assert session.data_to_send() == []
