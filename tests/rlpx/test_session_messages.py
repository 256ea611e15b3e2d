"""mailserver.rlpx.session: messages, their bounds and their compression."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.codec import snappy
from mailserver.errors import DisconnectReason, LocalProtocolError
from mailserver.rlpx import p2p
from mailserver.rlpx.capabilities import Capability
from mailserver.rlpx.events import BaseMessageReceived, MessageReceived, SessionClosed, SessionOpened
from mailserver.rlpx.framing import HEADER_BYTES
from mailserver.rlpx.moves import SessionState
from mailserver.rlpx.p2p import MessageId
from mailserver.rlpx.session import MAX_SNAPPY_BYTES, Session
from tests.pairs import (
    BREACH,
    MAX_MESSAGE_BYTES,
    RECIPIENT_KEY_NAME,
    START,
    TOY,
    TOY_CODES,
    TOY_OFFSET,
    AnyClosed,
    Pair,
    codes_and_payloads,
    feed,
    open_session,
    private_key,
    receiving,
    recipient_and_peer,
    session_config,
)
from tests.properties import settings
from tests.rlpx.roles import INITIATOR_ID, OTHER, disconnect_of


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
    assert isinstance(opened, SessionOpened)
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
    assert isinstance(event, SessionClosed)
    assert f"got {MAX_MESSAGE_BYTES + 1}, limit {MAX_MESSAGE_BYTES}" in event.cause


def test_short_frame_becomes_no_long_message_whatever_it_announces() -> None:
    config = dataclasses.replace(
        session_config(RECIPIENT_KEY_NAME), may_send_long=lambda _: True, max_long_message_bytes=MAX_SNAPPY_BYTES
    )
    session, peer = open_session(config)

    peer.say(TOY_OFFSET, bytes(MAX_MESSAGE_BYTES + 1))

    [event] = session.events()
    assert event == BREACH
    assert isinstance(event, SessionClosed)
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
    assert isinstance(event, SessionClosed)
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
