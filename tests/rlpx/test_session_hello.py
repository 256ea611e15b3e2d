"""mailserver.rlpx.session: Hello, and whom a session refuses."""

import pytest

from mailserver.codec import rlp
from mailserver.codec.keys import NodeId
from mailserver.errors import DisconnectReason
from mailserver.rlpx import p2p
from mailserver.rlpx.capabilities import Capability, SharedCapability
from mailserver.rlpx.events import SessionOpened
from mailserver.rlpx.framing import HEADER_BYTES
from mailserver.rlpx.moves import SessionState
from mailserver.rlpx.p2p import MessageId
from tests.pairs import (
    BREACH,
    INITIATOR_KEY_NAME,
    RECIPIENT_KEY_NAME,
    TOY,
    TOY_OFFSET,
    AnyClosed,
    Pair,
    ScriptedPeer,
    feed,
    initiator_and_peer,
    open_session,
    private_key,
    receiving,
    recipient_and_peer,
    session_config,
)
from tests.rlpx.roles import INITIATOR_ID, OTHER, ROLES, both_roles, disconnect_of


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
    assert session.events() == [SessionOpened(INITIATOR_ID, "scripted/1", shared)]


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
