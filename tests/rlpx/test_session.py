import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.codec import rlp, snappy
from mailserver.codec.keys import NodeId, PrivateKey
from mailserver.errors import DecodeError, DisconnectReason, LocalProtocolError
from mailserver.rlpx import p2p
from mailserver.rlpx.capabilities import Capability, SharedCapability
from mailserver.rlpx.events import BaseMessageReceived, Closed, MessageReceived, Opened
from mailserver.rlpx.framing import HEADER_BYTES
from mailserver.rlpx.handshake import PLAIN_AUTH_BYTES, Entropy, Initiator, Recipient
from mailserver.rlpx.liveness import IDLE_TIMEOUT_S, PING_INTERVAL_S, PROBE_TIMEOUT_S, SEEN_S
from mailserver.rlpx.moves import SessionState
from mailserver.rlpx.p2p import MessageId
from mailserver.rlpx.session import HANDSHAKE_TIMEOUT_S, MAX_SNAPPY_BYTES, Session
from mailserver.rlpx.session_config import SessionConfig, Undecided
from mailserver.rlpx.shared_payload import SharedPayload
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
    codes_and_payloads,
    entropy,
    entropy_of,
    feed,
    initiating,
    initiator_and_peer,
    open_session,
    private_key,
    receiving,
    recipient_and_peer,
    session_config,
)
from tests.properties import settings

OTHER = Capability("other", 1)
INITIATOR_ID = private_key(INITIATOR_KEY_NAME).public_key
RECIPIENT_ID = private_key(RECIPIENT_KEY_NAME).public_key
FORMATS = load("eip8_formats.json")
AUTHS = {vector["name"]: bytes.fromhex(vector["packet"]) for vector in FORMATS["auth"]}
ACKS = {vector["name"]: bytes.fromhex(vector["packet"]) for vector in FORMATS["ack"]}


ROLES: dict[str, Callable[[], tuple[Session, ScriptedPeer]]] = {
    "initiator": initiator_and_peer,
    "recipient": recipient_and_peer,
}
both_roles = pytest.mark.parametrize("role", ROLES)


def disconnect_of(reason: DisconnectReason) -> tuple[int, bytes]:
    return MessageId.DISCONNECT, p2p.encode_disconnect(reason)


# --- the key exchange and Hello -------------------------------------------------------------------


@pytest.mark.parametrize("chunk_bytes", [None, 1, 7])
def test_both_sides_open_however_the_bytes_are_cut(chunk_bytes: int | None) -> None:
    pair = Pair.join()

    pair.pump(chunk_bytes=chunk_bytes)

    shared = (SharedCapability(TOY, TOY_OFFSET, TOY_CODES),)
    assert pair.initiator.events() == [Opened(RECIPIENT_ID, "recipient/1", shared)]
    assert pair.recipient.events() == [Opened(INITIATOR_ID, "initiator/1", shared)]
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
    assert isinstance(event, Closed)
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


@both_roles
def test_refused_peer_hears_the_reason_in_place_of_hello(role: str) -> None:
    refusing = session_config(role, refuse=lambda _: DisconnectReason.TOO_MANY_PEERS)
    session, peer = recipient_and_peer(refusing) if role == "recipient" else initiator_and_peer(refusing)

    heard = peer.hear()

    assert heard == [disconnect_of(DisconnectReason.TOO_MANY_PEERS)]
    assert session.events() == [AnyClosed(DisconnectReason.TOO_MANY_PEERS, by_peer=False)]
    assert session.remote_id == peer.key.public_key


def test_refused_session_learns_the_reason() -> None:
    pair = Pair.join(
        recipient_config=session_config(RECIPIENT_KEY_NAME, refuse=lambda _: DisconnectReason.ALREADY_CONNECTED)
    )

    pair.pump()

    assert pair.initiator.events() == [AnyClosed(DisconnectReason.ALREADY_CONNECTED, by_peer=True)]
    assert pair.recipient.events() == [AnyClosed(DisconnectReason.ALREADY_CONNECTED, by_peer=False)]


@both_roles
def test_peer_that_is_not_refused_is_greeted(role: str) -> None:
    asked: list[NodeId] = []

    def refuse(node_id: NodeId) -> DisconnectReason | None:
        asked.append(node_id)
        return None

    config = session_config(role, refuse=refuse)
    session, peer = recipient_and_peer(config) if role == "recipient" else initiator_and_peer(config)
    peer.greet()

    assert asked == [peer.key.public_key] * 2
    assert session.state is SessionState.OPEN


@both_roles
def test_peer_that_is_not_wanted_any_more_when_its_hello_comes_is_told(role: str) -> None:
    answers = iter([None, DisconnectReason.TOO_MANY_PEERS])
    config = session_config(role, refuse=lambda _: next(answers))
    session, peer = recipient_and_peer(config) if role == "recipient" else initiator_and_peer(config)

    peer.greet()

    assert session.state is SessionState.CLOSED
    assert session.events() == [AnyClosed(DisconnectReason.TOO_MANY_PEERS, by_peer=False)]


def test_connection_to_ourselves_is_closed_on_both_ends_without_a_hello() -> None:
    config = session_config(RECIPIENT_KEY_NAME)
    pair = Pair.join(config, config)

    pair.pump()

    assert pair.initiator.events() == [AnyClosed(DisconnectReason.SELF_CONNECTION, by_peer=False)]
    assert pair.recipient.events() == [AnyClosed(DisconnectReason.SELF_CONNECTION, by_peer=False)]


def test_peer_with_our_own_key_hears_only_that_it_is_us() -> None:
    session = receiving(session_config(RECIPIENT_KEY_NAME))

    peer = ScriptedPeer.dial(session, private_key(RECIPIENT_KEY_NAME), name=RECIPIENT_KEY_NAME)

    assert peer.hear() == [disconnect_of(DisconnectReason.SELF_CONNECTION)]


def test_peer_without_a_common_capability_is_useless_on_both_sides() -> None:
    pair = Pair.join(session_config(INITIATOR_KEY_NAME, capabilities={OTHER: 5, Capability("toy", 2): 5}))

    pair.pump()

    assert pair.initiator.events() == [AnyClosed(DisconnectReason.USELESS_PEER, by_peer=False)]
    assert pair.recipient.events() == [AnyClosed(DisconnectReason.USELESS_PEER, by_peer=False)]


@both_roles
def test_useless_peer_hears_so_compressed_since_both_hellos_are_in(role: str) -> None:
    session, peer = ROLES[role]()
    peer.hear()

    peer.greet(capabilities=[OTHER])

    assert session.events() == [AnyClosed(DisconnectReason.USELESS_PEER, by_peer=False)]
    assert peer.hear_inflated() == [disconnect_of(DisconnectReason.USELESS_PEER)]


@both_roles
def test_useless_peer_of_p2p_version_4_hears_so_uncompressed(role: str) -> None:
    _, peer = ROLES[role]()
    peer.hear()

    peer.greet(capabilities=[OTHER], version=4)

    assert peer.hear() == [disconnect_of(DisconnectReason.USELESS_PEER)]


@both_roles
def test_hello_that_names_another_node_id_is_refused(role: str) -> None:
    session, peer = ROLES[role]()
    peer.hear()

    peer.greet(key=private_key("someone else"))

    assert session.events() == [AnyClosed(DisconnectReason.UNEXPECTED_IDENTITY, by_peer=False)]
    assert peer.hear_inflated() == [disconnect_of(DisconnectReason.UNEXPECTED_IDENTITY)]


def test_highest_common_version_of_each_name_is_shared() -> None:
    waku_0, waku_1 = Capability("waku", 0), Capability("waku", 1)
    session, peer = recipient_and_peer(session_config(RECIPIENT_KEY_NAME, capabilities={waku_1: 128, TOY: 3}))

    peer.greet(capabilities=[waku_0, waku_1, TOY, OTHER])

    shared = (SharedCapability(TOY, 16, 3), SharedCapability(waku_1, 19, 128))
    assert session.events() == [Opened(INITIATOR_ID, "scripted/1", shared)]


def test_hello_of_a_later_version_with_further_elements_opens_a_compressed_session() -> None:
    session, peer = recipient_and_peer()
    peer.hear()
    hello: list[rlp.Item] = [b"\x37", b"later", [[b"toy", b"\x01", b"more"]], b"", INITIATOR_ID, [b"more"], b"and more"]

    peer.say(MessageId.HELLO, rlp.encode(hello))

    assert session.state is SessionState.OPEN
    session.send(TOY, 0, b"payload")
    assert peer.hear_inflated() == [(TOY_OFFSET, b"payload")]


@pytest.mark.parametrize("payload", [b"", b"\xc0", b"\xff", rlp.encode(b"hello")])
def test_hello_that_does_not_decode_closes_the_session(payload: bytes) -> None:
    session, peer = recipient_and_peer()

    peer.say(MessageId.HELLO, payload)

    assert session.events() == [BREACH]
    assert peer.hear()[1:] == [disconnect_of(DisconnectReason.PROTOCOL_BREACH)]


@pytest.mark.parametrize("message_id", [MessageId.PING, MessageId.PONG, 0x0F, TOY_OFFSET, 0xFF])
def test_other_message_before_hello_closes_the_session(message_id: int) -> None:
    session, peer = recipient_and_peer()
    good_hello = p2p.Hello(p2p.P2P_VERSION, "scripted/1", (TOY,), 0, INITIATOR_ID).encode()

    peer.say(message_id, good_hello)

    assert session.events() == [BREACH]
    assert peer.hear()[1:] == [disconnect_of(DisconnectReason.PROTOCOL_BREACH)]


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        pytest.param(b"\xc1\x04", DisconnectReason.TOO_MANY_PEERS, id="list"),
        pytest.param(b"\x04", DisconnectReason.TOO_MANY_PEERS, id="bare integer"),
        pytest.param(b"\xc1\x0c", None, id="reason without a name"),
        pytest.param(b"", None, id="nothing"),
    ],
)
@both_roles
def test_disconnect_in_place_of_hello_is_understood(role: str, payload: bytes, reason: DisconnectReason) -> None:
    session, peer = ROLES[role]()
    peer.hear()

    peer.say(MessageId.DISCONNECT, payload)

    assert session.events() == [AnyClosed(reason, by_peer=True)]
    assert peer.hear() == []


def test_hello_that_is_too_long_is_refused_on_its_header() -> None:
    session, peer = recipient_and_peer()

    feed(session, peer.frame_of(b"\x80" + bytes(p2p.MAX_P2P_MESSAGE_BYTES + 2))[:HEADER_BYTES])

    assert session.events() == [BREACH]


def test_second_hello_closes_the_session() -> None:
    session, peer = open_session()

    peer.greet()

    assert session.events() == [BREACH]


# --- messages -------------------------------------------------------------------------------------


def test_messages_of_every_code_arrive_in_order_on_both_sides() -> None:
    pair = Pair.open()
    sent = [(code, bytes([code]) * code) for code in range(TOY_CODES)]

    for code, payload in sent:
        pair.initiator.send(TOY, code, payload)
        pair.recipient.send(TOY, code, payload[::-1])
    pair.pump(chunk_bytes=100)

    assert pair.recipient.events() == [MessageReceived(TOY, code, payload) for code, payload in sent]
    assert codes_and_payloads(pair.initiator.events()) == sent


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(0, TOY_CODES - 1), st.binary(max_size=300)), max_size=6),
    st.integers(1, 200),
)
def test_messages_arrive_however_the_bytes_are_cut(messages: list[tuple[int, bytes]], chunk_bytes: int) -> None:
    pair = Pair.open()

    for code, payload in messages:
        pair.initiator.send(TOY, code, payload)
    pair.pump(chunk_bytes=chunk_bytes)

    assert codes_and_payloads(pair.recipient.events()) == messages


def test_messages_behind_hello_in_one_piece_arrive() -> None:
    session, peer = recipient_and_peer()
    hello = p2p.Hello(p2p.P2P_VERSION, "scripted/1", (TOY,), 0, INITIATOR_ID)
    stream = peer.frame(MessageId.HELLO, hello.encode())
    peer.compressed = True

    feed(session, stream + peer.frame(TOY_OFFSET, b"one") + peer.frame(TOY_OFFSET + 1, b"two"))

    opened, *messages = session.events()
    assert isinstance(opened, Opened)
    assert codes_and_payloads(messages) == [(0, b"one"), (1, b"two")]


def test_message_id_is_not_compressed_and_payload_is() -> None:
    session, peer = open_session()

    session.send(TOY, 3, b"payload")

    [(message_id, data)] = peer.hear()
    assert message_id == TOY_OFFSET + 3
    assert data != b"payload"
    assert snappy.decompress(data, max_bytes=7) == b"payload"


def test_nothing_is_compressed_with_a_peer_of_p2p_version_4() -> None:
    session, peer = open_session(version=4)

    session.send(TOY, 3, b"ours")
    peer.say_raw(TOY_OFFSET + 4, b"theirs")
    peer.say_raw(MessageId.PING, p2p.EMPTY_PAYLOAD)

    assert peer.hear() == [(TOY_OFFSET + 3, b"ours"), (MessageId.PONG, p2p.EMPTY_PAYLOAD)]
    assert session.events() == [MessageReceived(TOY, 4, b"theirs"), BaseMessageReceived(1)]


@pytest.mark.parametrize("message_id", [0x7F, 0x80, 0x81])
def test_empty_message_of_a_peer_of_p2p_version_4_is_taken(message_id: int) -> None:
    session, peer = open_session(version=4)

    peer.say_raw(message_id, b"")

    assert session.events() == [MessageReceived(TOY, message_id - TOY_OFFSET, b"")]


def test_each_capability_gets_its_own_codes() -> None:
    session, peer = recipient_and_peer(session_config(RECIPIENT_KEY_NAME, capabilities={TOY: 3, OTHER: 2}))
    peer.greet(capabilities=[TOY, OTHER])
    peer.hear()
    session.events()

    session.send(OTHER, 1, b"a")
    session.send(TOY, 0, b"b")
    for message_id in range(0x10, 0x15):
        peer.say(message_id, b"")

    assert peer.hear_inflated() == [(0x11, b"a"), (0x12, b"b")]
    assert session.events() == [
        MessageReceived(OTHER, 0, b""),
        MessageReceived(OTHER, 1, b""),
        MessageReceived(TOY, 0, b""),
        MessageReceived(TOY, 1, b""),
        MessageReceived(TOY, 2, b""),
    ]


def test_message_id_above_all_capabilities_is_refused() -> None:
    session, peer = open_session()

    peer.say(TOY_OFFSET + TOY_CODES - 1, b"last")
    peer.say(TOY_OFFSET + TOY_CODES, b"nobody's")

    assert session.events() == [MessageReceived(TOY, TOY_CODES - 1, b"last"), BREACH]
    assert peer.hear_inflated() == [disconnect_of(DisconnectReason.PROTOCOL_BREACH)]


@pytest.mark.parametrize("message_id", [MessageId.PONG, *range(4, 16)])
def test_pong_and_reserved_message_ids_change_nothing(message_id: int) -> None:
    session, peer = open_session()

    peer.say(message_id, b"anything")

    assert session.events() == [BaseMessageReceived(8)]
    assert peer.hear() == []
    assert session.state is SessionState.OPEN


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\x81", id="truncated"),
        pytest.param(b"\x81\x10", id="not in its shortest form"),
        pytest.param(b"\x82\x01\x00", id="above 255"),
        pytest.param(b"\xc0", id="list"),
        pytest.param(b"\xc1\x10", id="list of an id"),
        pytest.param(b"\xff", id="endless"),
    ],
)
def test_message_id_that_is_no_small_rlp_integer_is_refused(body: bytes) -> None:
    session, peer = open_session()

    feed(session, peer.frame_of(body))

    assert session.events() == [BREACH]


def test_hello_whose_message_id_is_no_rlp_integer_is_refused() -> None:
    # 0 as an RLP integer is the empty string, 0x80.
    session, peer = recipient_and_peer()
    hello = p2p.Hello(p2p.P2P_VERSION, "scripted/1", (TOY,), 0, peer.key.public_key)

    feed(session, peer.frame_of(b"\x00" + hello.encode()))

    assert session.events() == [BREACH]


def test_longest_message_is_taken_in_both_directions() -> None:
    pair = Pair.open()
    incompressible = b"".join(private_key(str(number)).secret for number in range(MAX_MESSAGE_BYTES // 32))

    pair.initiator.send(TOY, 0, incompressible)
    pair.recipient.send(TOY, 0, bytes(MAX_MESSAGE_BYTES))
    pair.pump()

    assert codes_and_payloads(pair.recipient.events()) == [(0, incompressible)]
    assert codes_and_payloads(pair.initiator.events()) == [(0, bytes(MAX_MESSAGE_BYTES))]


def test_message_that_announces_too_much_is_refused() -> None:
    session, peer = open_session()

    peer.say(TOY_OFFSET, bytes(MAX_MESSAGE_BYTES + 1))

    [event] = session.events()
    assert event == BREACH
    assert isinstance(event, Closed)
    assert f"got {MAX_MESSAGE_BYTES + 1}, limit {MAX_MESSAGE_BYTES}" in event.cause


def test_short_frame_becomes_no_long_message_whatever_it_announces() -> None:
    config = dataclasses.replace(
        session_config(RECIPIENT_KEY_NAME), may_be_long=lambda _: True, max_long_message_bytes=MAX_SNAPPY_BYTES
    )
    session, peer = open_session(config)

    peer.say(TOY_OFFSET, bytes(MAX_MESSAGE_BYTES + 1))

    [event] = session.events()
    assert event == BREACH
    assert isinstance(event, Closed)
    assert f"got {MAX_MESSAGE_BYTES + 1}, limit {MAX_MESSAGE_BYTES}" in event.cause


def test_frame_that_is_too_long_is_refused_on_its_header() -> None:
    session, peer = open_session()
    longest = 2 + snappy.max_compressed_bytes(MAX_MESSAGE_BYTES)
    feed(session, peer.frame_of(b"\x05" + snappy.compress(b"") + bytes(longest - 2))[:HEADER_BYTES])
    assert session.state is SessionState.OPEN

    session, peer = open_session()
    feed(session, peer.frame_of(b"\x05" + bytes(longest))[:HEADER_BYTES])

    assert session.events() == [BREACH]


def test_uncompressed_message_that_is_too_long_is_refused() -> None:
    session, peer = open_session(version=4)

    peer.say_raw(TOY_OFFSET, bytes(MAX_MESSAGE_BYTES))
    peer.say_raw(TOY_OFFSET, bytes(MAX_MESSAGE_BYTES + 1))

    assert session.events() == [MessageReceived(TOY, 0, bytes(MAX_MESSAGE_BYTES)), BREACH]


@pytest.mark.parametrize("version", [4, 5])
def test_p2p_message_has_a_lower_limit(version: int) -> None:
    session, peer = open_session(version=version)

    peer.say(MessageId.PONG, bytes(p2p.MAX_P2P_MESSAGE_BYTES))
    assert session.state is SessionState.OPEN
    peer.say(MessageId.PONG, bytes(p2p.MAX_P2P_MESSAGE_BYTES + 1))

    assert session.events() == [BaseMessageReceived(p2p.MAX_P2P_MESSAGE_BYTES), BREACH]


def test_no_config_raises_the_limit_above_that_of_snappy() -> None:
    config = session_config(RECIPIENT_KEY_NAME, max_message_bytes=2 * MAX_SNAPPY_BYTES)
    session, peer = open_session(config)
    announced = bytes([0x81, 0x80, 0x80, 0x08])  # 16 MiB and 1 byte, seven bits in each

    peer.say_raw(TOY_OFFSET, announced)

    [event] = session.events()
    assert event == BREACH
    assert isinstance(event, Closed)
    assert f"got {MAX_SNAPPY_BYTES + 1}, limit {MAX_SNAPPY_BYTES}" in event.cause


def test_disconnect_that_was_said_before_our_hello_was_heard_is_understood() -> None:
    # Whoever says it cannot know yet that we compress (EIP-706), and we have had its Hello.
    pair = Pair.join()
    feed(pair.recipient, b"".join(pair.initiator.data_to_send()))
    pair.recipient.disconnect(DisconnectReason.CLIENT_QUITTING, "shutting down")

    feed(pair.initiator, b"".join(pair.recipient.data_to_send()))

    assert pair.initiator.events()[1:] == [AnyClosed(DisconnectReason.CLIENT_QUITTING, by_peer=True)]


@pytest.mark.parametrize("message_id", [MessageId.PING, 0x0F, TOY_OFFSET])
@pytest.mark.parametrize("data", [b"", b"\x05abc", b"\xff\xff\xff\xff\xff\xff"])
def test_damaged_compression_closes_the_session(message_id: int, data: bytes) -> None:
    session, peer = open_session()

    peer.say_raw(message_id, data)

    assert session.events() == [BREACH]


@pytest.mark.parametrize(
    "session",
    [
        pytest.param(receiving(session_config(RECIPIENT_KEY_NAME)), id="HANDSHAKE"),
        pytest.param(recipient_and_peer()[0], id="HELLO"),
    ],
)
def test_sending_before_the_session_is_open_is_a_bug_of_ours(session: Session) -> None:
    with pytest.raises(LocalProtocolError, match=f"send in state {session.state.name}"):
        session.send(TOY, 0, b"")


def test_sending_after_the_end_is_a_bug_of_ours() -> None:
    session, _ = open_session()
    session.receive_eof()

    with pytest.raises(LocalProtocolError, match="send in state CLOSED"):
        session.send(TOY, 0, b"")


@pytest.mark.parametrize(("capability", "code"), [(OTHER, 0), (Capability("toy", 0), 0), (TOY, TOY_CODES), (TOY, -1)])
def test_sending_a_code_that_is_not_shared_is_a_bug_of_ours(capability: Capability, code: int) -> None:
    session, peer = open_session()

    with pytest.raises(LocalProtocolError, match="has no code"):
        session.send(capability, code, b"")

    assert peer.hear() == []


# --- timers ---------------------------------------------------------------------------------------


def test_handshake_that_takes_too_long_ends_without_a_word() -> None:
    session = receiving(session_config(RECIPIENT_KEY_NAME))
    assert session.next_timer() == START + HANDSHAKE_TIMEOUT_S

    session.handle_timer(START + HANDSHAKE_TIMEOUT_S - 0.01)
    assert session.state is SessionState.HANDSHAKE
    session.handle_timer(START + HANDSHAKE_TIMEOUT_S)

    assert session.events() == [AnyClosed(DisconnectReason.REQUESTED, by_peer=False)]
    assert session.data_to_send() == []
    assert session.next_timer() is None


def test_bytes_of_the_handshake_give_no_more_time() -> None:
    session, peer = recipient_and_peer()
    peer.hear()

    feed(session, peer.frame(MessageId.HELLO, b"\xc0")[:-1], START + 4)
    assert session.next_timer() == START + HANDSHAKE_TIMEOUT_S
    session.handle_timer(START + HANDSHAKE_TIMEOUT_S)

    assert session.events() == [AnyClosed(DisconnectReason.REQUESTED, by_peer=False)]
    assert peer.hear() == [disconnect_of(DisconnectReason.REQUESTED)]


def test_pausing_does_not_stop_the_handshake_timer() -> None:
    session = receiving(session_config(RECIPIENT_KEY_NAME))

    session.pause_reading()
    assert session.next_timer() == START + HANDSHAKE_TIMEOUT_S
    session.handle_timer(START + HANDSHAKE_TIMEOUT_S)

    assert session.events() == [AnyClosed(DisconnectReason.REQUESTED, by_peer=False)]


def test_pausing_and_resuming_gives_the_handshake_no_more_time() -> None:
    session = receiving(session_config(RECIPIENT_KEY_NAME))

    session.pause_reading()
    session.resume_reading(START + 1)
    assert session.next_timer() == START + HANDSHAKE_TIMEOUT_S
    session.handle_timer(START + HANDSHAKE_TIMEOUT_S)

    assert session.events() == [AnyClosed(DisconnectReason.REQUESTED, by_peer=False)]


def test_ping_is_sent_each_interval() -> None:
    session, peer = open_session(now=START + 1)
    assert session.next_timer() == START + 1 + PING_INTERVAL_S

    session.handle_timer(START + 1 + PING_INTERVAL_S - 0.01)
    assert peer.hear() == []
    session.handle_timer(START + 1 + PING_INTERVAL_S)

    assert peer.hear_inflated() == [(MessageId.PING, p2p.EMPTY_PAYLOAD)]
    assert session.next_timer() == START + 1 + 2 * PING_INTERVAL_S


def test_ping_that_was_late_does_not_bring_the_next_forward() -> None:
    session, peer = open_session()

    session.handle_timer(START + PING_INTERVAL_S + 5)
    peer.say(MessageId.PONG, p2p.EMPTY_PAYLOAD, START + PING_INTERVAL_S + 5)

    assert len(peer.hear()) == 1
    assert session.next_timer() == START + 2 * PING_INTERVAL_S + 5


def test_ping_is_answered_with_pong() -> None:
    session, peer = open_session()

    peer.say(MessageId.PING, p2p.EMPTY_PAYLOAD)

    assert peer.hear_inflated() == [(MessageId.PONG, p2p.EMPTY_PAYLOAD)]
    assert session.events() == [BaseMessageReceived(1)]


def test_peers_that_answer_pings_stay_open_for_good() -> None:
    pair = Pair.open()

    now = START
    for _ in range(20):
        now = min(pair.initiator.next_timer() or now, pair.recipient.next_timer() or now)
        pair.initiator.handle_timer(now)
        pair.recipient.handle_timer(now)
        pair.pump(now + 0.1)

    assert now > START + 5 * IDLE_TIMEOUT_S
    assert pair.initiator.state is pair.recipient.state is SessionState.OPEN
    assert set(pair.initiator.events() + pair.recipient.events()) == {BaseMessageReceived(1)}


def test_silent_peer_is_given_up() -> None:
    session, peer = open_session()
    session.handle_timer(START + PING_INTERVAL_S)
    peer.hear()

    session.handle_timer(START + IDLE_TIMEOUT_S - 0.01)
    assert session.state is SessionState.OPEN
    session.handle_timer(START + IDLE_TIMEOUT_S)

    assert session.events() == [AnyClosed(DisconnectReason.PING_TIMEOUT, by_peer=False)]
    assert peer.hear_inflated() == [disconnect_of(DisconnectReason.PING_TIMEOUT)]
    assert session.next_timer() is None


def test_any_byte_from_the_peer_counts_as_a_sign_of_life() -> None:
    session, peer = open_session()
    session.handle_timer(START + PING_INTERVAL_S)

    feed(session, peer.frame(TOY_OFFSET, b"")[:1], START + 29)
    session.handle_timer(START + 58)
    assert session.state is SessionState.OPEN
    session.handle_timer(START + 59)

    assert session.events() == [AnyClosed(DisconnectReason.PING_TIMEOUT, by_peer=False)]


def test_silence_does_not_count_while_we_do_not_read() -> None:
    session, peer = open_session()
    session.handle_timer(START + PING_INTERVAL_S)
    peer.hear()

    session.pause_reading()
    assert session.next_timer() == START + 2 * PING_INTERVAL_S
    session.handle_timer(START + 10 * IDLE_TIMEOUT_S)

    assert session.state is SessionState.OPEN
    assert peer.hear_inflated() == [(MessageId.PING, p2p.EMPTY_PAYLOAD)]


def test_silence_counts_anew_from_when_we_read_again() -> None:
    session, peer = open_session()
    session.pause_reading()
    session.handle_timer(START + 100)
    peer.hear()

    session.resume_reading(START + 110)
    assert session.next_timer() == START + 100 + PING_INTERVAL_S
    session.handle_timer(START + 100 + PING_INTERVAL_S)
    assert session.next_timer() == START + 100 + 2 * PING_INTERVAL_S
    session.handle_timer(START + 100 + 2 * PING_INTERVAL_S)
    assert session.next_timer() == START + 110 + IDLE_TIMEOUT_S
    session.handle_timer(START + 110 + IDLE_TIMEOUT_S)

    assert session.events() == [AnyClosed(DisconnectReason.PING_TIMEOUT, by_peer=False)]


PROBED = START + 10
"""When peers are probed that have shown for long enough nothing of themselves."""


def test_probed_peer_is_pinged_at_once_and_given_up_if_it_stays_silent() -> None:
    session, peer = open_session()

    session.probe(PROBED)
    assert peer.hear_inflated() == [(MessageId.PING, p2p.EMPTY_PAYLOAD)]
    assert session.next_timer() == PROBED + PROBE_TIMEOUT_S
    session.handle_timer(PROBED + PROBE_TIMEOUT_S - 0.01)
    assert session.state is SessionState.OPEN
    session.handle_timer(PROBED + PROBE_TIMEOUT_S)

    assert session.events() == [
        Closed(DisconnectReason.PING_TIMEOUT, by_peer=False, cause=f"peer was silent for {PROBE_TIMEOUT_S:g} s")
    ]
    assert peer.hear_inflated() == [disconnect_of(DisconnectReason.PING_TIMEOUT)]


@pytest.mark.parametrize("message_id", [MessageId.PONG, MessageId.PING, TOY_OFFSET])
def test_probed_peer_that_says_anything_has_as_long_as_any_other(message_id: int) -> None:
    session, peer = open_session()

    session.probe(PROBED)
    peer.say(message_id, p2p.EMPTY_PAYLOAD, PROBED + PROBE_TIMEOUT_S - 0.01)
    session.handle_timer(PROBED + PROBE_TIMEOUT_S)
    answered = PROBED + PROBE_TIMEOUT_S - 0.01
    session.handle_timer(answered + IDLE_TIMEOUT_S - 0.01)
    assert session.state is SessionState.OPEN
    session.handle_timer(answered + IDLE_TIMEOUT_S)

    assert session.events()[-1] == Closed(
        DisconnectReason.PING_TIMEOUT, by_peer=False, cause=f"peer was silent for {IDLE_TIMEOUT_S:g} s"
    )


def test_probe_gives_nobody_more_time() -> None:
    session, _ = open_session()

    session.probe(START + IDLE_TIMEOUT_S - 1)

    assert session.next_timer() == START + IDLE_TIMEOUT_S
    session.handle_timer(START + IDLE_TIMEOUT_S)
    assert session.state is SessionState.CLOSED


def test_second_probe_is_no_second_ping_and_does_not_put_off_the_first() -> None:
    session, peer = open_session()

    session.probe(PROBED)
    session.probe(PROBED + 2)

    assert len(peer.hear()) == 1
    assert session.next_timer() == PROBED + PROBE_TIMEOUT_S


def test_probe_is_the_ping_that_was_due() -> None:
    session, peer = open_session()

    session.probe(PROBED)
    peer.say(MessageId.PONG, p2p.EMPTY_PAYLOAD, PROBED)

    assert len(peer.hear()) == 1
    assert session.next_timer() == PROBED + PING_INTERVAL_S


def test_probed_peer_that_we_do_not_read_from_is_waited_for_when_we_do() -> None:
    session, _ = open_session()
    session.pause_reading()

    session.probe(PROBED)
    session.handle_timer(PROBED + PROBE_TIMEOUT_S)
    state_meanwhile = session.state
    session.resume_reading(START + 100)
    session.handle_timer(START + 100 + PROBE_TIMEOUT_S - 0.01)
    assert session.state is SessionState.OPEN
    session.handle_timer(START + 100 + PROBE_TIMEOUT_S)

    assert state_meanwhile is SessionState.OPEN
    assert session.events() == [AnyClosed(DisconnectReason.PING_TIMEOUT, by_peer=False)]


def test_answer_to_a_probe_counts_also_after_a_pause() -> None:
    session, peer = open_session()
    session.probe(PROBED)
    peer.say(MessageId.PONG, p2p.EMPTY_PAYLOAD, PROBED + 1)

    session.pause_reading()
    session.resume_reading(PROBED + 2)
    session.handle_timer(PROBED + 2 + IDLE_TIMEOUT_S - 0.01)

    assert session.state is SessionState.OPEN


@pytest.mark.parametrize("stage", ["before the key exchange", "before Hello"])
def test_probe_before_the_session_is_open_says_nothing_and_gives_no_more_time(stage: str) -> None:
    session = receiving(session_config(RECIPIENT_KEY_NAME))
    if stage == "before Hello":
        session, peer = recipient_and_peer()
        peer.hear()

    session.probe(PROBED)

    assert session.data_to_send() == []
    assert session.next_timer() == START + HANDSHAKE_TIMEOUT_S


def test_peer_that_has_opened_or_answered_is_there_and_not_pinged_for_a_while() -> None:
    session, peer = open_session()

    opened = session.probe(START + SEEN_S - 0.01)
    asked = session.probe(PROBED)
    unanswered = session.probe(PROBED + 1)
    peer.say(MessageId.PONG, p2p.EMPTY_PAYLOAD, PROBED + 2)
    answered = session.probe(PROBED + 2 + SEEN_S - 0.01)
    later = session.probe(PROBED + 2 + SEEN_S)

    assert (opened, asked, unanswered, answered, later) == (True, False, False, True, False)
    assert [message_id for message_id, _ in peer.hear_inflated()] == [MessageId.PING, MessageId.PING]


def test_probe_is_quicker_than_a_handshake_and_slower_than_a_bad_line() -> None:
    assert 2 < PROBE_TIMEOUT_S < HANDSHAKE_TIMEOUT_S < PING_INTERVAL_S < IDLE_TIMEOUT_S


# --- undecided ------------------------------------------------------------------------------------


class Deciding:
    """Refuses as it is told."""

    def __init__(self) -> None:
        self.verdict: DisconnectReason | Undecided | None = Undecided.UNDECIDED

    def __call__(self, node_id: NodeId) -> DisconnectReason | Undecided | None:
        return self.verdict


def held(role: str) -> tuple[Session, ScriptedPeer, Deciding]:
    """A session that has not decided, and a peer that has said Hello and more all the same."""
    deciding = Deciding()
    config = session_config(role, refuse=deciding)
    session, peer = recipient_and_peer(config) if role == "recipient" else initiator_and_peer(config)
    peer.greet()
    return session, peer, deciding


@both_roles
def test_nothing_is_said_or_looked_at_while_it_is_undecided_if_the_peer_is_wanted(role: str) -> None:
    session, _, _ = held(role)

    session.reconsider(START + 1)

    assert session.is_held
    assert session.state is SessionState.HELLO
    assert session.data_to_send() == []
    assert session.events() == []


@both_roles
def test_peer_that_is_wanted_in_the_end_is_greeted_and_what_it_said_meanwhile_counts(role: str) -> None:
    session, peer, deciding = held(role)

    deciding.verdict = None
    session.reconsider(START + 1)

    assert not session.is_held
    assert session.state is SessionState.OPEN
    assert [message_id for message_id, _ in peer.hear()] == [MessageId.HELLO]
    assert session.next_timer() == START + 1 + PING_INTERVAL_S


@both_roles
def test_peer_that_is_not_wanted_in_the_end_hears_the_reason(role: str) -> None:
    session, peer, deciding = held(role)

    deciding.verdict = DisconnectReason.ALREADY_CONNECTED
    session.reconsider(START + 1)

    assert not session.is_held
    assert peer.hear() == [disconnect_of(DisconnectReason.ALREADY_CONNECTED)]
    assert session.events() == [AnyClosed(DisconnectReason.ALREADY_CONNECTED, by_peer=False)]


def test_peer_that_nobody_decides_about_hears_at_the_end_of_the_handshakes_time_that_it_is_connected() -> None:
    session, peer, _ = held("recipient")

    assert session.next_timer() == START + HANDSHAKE_TIMEOUT_S
    session.handle_timer(START + HANDSHAKE_TIMEOUT_S)
    session.reconsider(START + HANDSHAKE_TIMEOUT_S)

    assert not session.is_held
    assert peer.hear() == [disconnect_of(DisconnectReason.ALREADY_CONNECTED)]


def test_peer_that_another_connection_appears_of_while_its_hello_is_on_its_way_is_refused() -> None:
    answers = iter([None, Undecided.UNDECIDED])
    session, peer = recipient_and_peer(session_config("recipient", refuse=lambda _: next(answers)))

    peer.greet()

    assert session.events() == [AnyClosed(DisconnectReason.ALREADY_CONNECTED, by_peer=False)]


def test_session_that_was_never_held_has_nothing_to_reconsider() -> None:
    session, _ = open_session()

    session.reconsider(START + 1)

    assert session.data_to_send() == []


# --- payloads that several sessions send ----------------------------------------------------------


def test_shared_payload_is_sent_to_each_as_it_understands_it() -> None:
    payload = SharedPayload(b"said to many " * 50)
    heard = []

    for version in (5, 4, 5):
        session, peer = open_session(version=version)
        session.send(TOY, 3, payload)
        heard.append(peer.hear())

    compressed = [(TOY_OFFSET + 3, snappy.compress(payload.raw))]
    assert heard == [compressed, [(TOY_OFFSET + 3, payload.raw)], compressed]


def test_shared_payload_is_compressed_once_and_only_if_someone_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    compressed: list[bytes] = []
    compress = snappy.compress

    def count(data: bytes) -> bytes:
        compressed.append(data)
        return compress(data)

    monkeypatch.setattr(snappy, "compress", count)
    payload = SharedPayload(b"said to many")

    for version in (4, 4):
        session, _ = open_session(version=version)
        compressed.clear()
        session.send(TOY, 0, payload)
    unneeded = list(compressed)
    for _ in range(3):
        session, _ = open_session()
        session.send(TOY, 0, payload)

    assert unneeded == []
    assert compressed.count(payload.raw) == 1


def test_empty_shared_payload_is_a_payload_too() -> None:
    session, peer = open_session()

    session.send(TOY, 0, SharedPayload(b""))

    assert peer.hear_inflated() == [(TOY_OFFSET, b"")]


# --- the end --------------------------------------------------------------------------------------


def test_disconnect_says_why_and_ends_the_session() -> None:
    session, peer = open_session()

    session.disconnect(DisconnectReason.CLIENT_QUITTING, "stopping")

    assert session.events() == [Closed(DisconnectReason.CLIENT_QUITTING, by_peer=False, cause="stopping")]
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
    assert event == Closed(reason, by_peer=True, cause=f"peer disconnected: {reason.name}")
    assert peer.hear() == []


@pytest.mark.parametrize("payload", [b"", b"\xc1\x0c", b"\xff"])
def test_disconnect_of_the_peer_for_no_known_reason_ends_the_session(payload: bytes) -> None:
    session, peer = open_session()

    peer.say(MessageId.DISCONNECT, payload)

    [event] = session.events()
    assert event == Closed(None, by_peer=True, cause="peer disconnected: unknown reason")


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

    assert session.events() == [Closed(None, by_peer=True, cause=f"connection closed in state {state.name}")]
    assert session.data_to_send() == []
    assert session.next_timer() is None


def test_no_more_frames_are_opened_than_asked_for_and_the_rest_later() -> None:
    session, peer = recipient_and_peer()
    peer.greet()
    session.events()
    pings = b"".join(peer.frame(MessageId.PING, p2p.EMPTY_PAYLOAD) for _ in range(5))

    opened = []
    session.receive_data(pings, START, max_frames=2)
    while session.has_more:
        opened.append(len(session.events()))
        session.receive_data(b"", START, max_frames=2)
    opened.append(len(session.events()))

    assert opened == [2, 2, 1]


def test_going_on_with_what_has_come_is_no_sign_of_life() -> None:
    session, peer = recipient_and_peer()
    peer.greet()
    session.receive_data(peer.frame(MessageId.PING, p2p.EMPTY_PAYLOAD), START, max_frames=1)
    assert session.has_more

    session.receive_data(b"", START + IDLE_TIMEOUT_S, max_frames=1)
    session.handle_timer(START + IDLE_TIMEOUT_S)

    assert session.state is SessionState.CLOSED
    assert not session.has_more
