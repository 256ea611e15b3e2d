"""mailserver.rlpx.session: a session waits while it is undecided whether its peer is wanted."""

from mailserver.codec.keys import NodeId
from mailserver.errors import DisconnectReason
from mailserver.rlpx.liveness import PING_INTERVAL_S
from mailserver.rlpx.moves import SessionState
from mailserver.rlpx.p2p import MessageId
from mailserver.rlpx.session import HANDSHAKE_TIMEOUT_S, Session
from mailserver.rlpx.session_config import Undecided
from tests.pairs import (
    START,
    AnyClosed,
    ScriptedPeer,
    initiator_and_peer,
    open_session,
    recipient_and_peer,
    session_config,
)
from tests.rlpx.roles import both_roles, disconnect_of


class Deciding:
    """Refuses as it is told."""

    def __init__(self) -> None:
        self.verdict: DisconnectReason | Undecided | None = Undecided.UNDECIDED

    def __call__(self, node_id: NodeId) -> DisconnectReason | Undecided | None:
        return self.verdict


def undecided(role: str) -> tuple[Session, ScriptedPeer, Deciding]:
    """A session that has not decided, and a peer that has said Hello and more all the same."""
    deciding = Deciding()
    config = session_config(role, refuse=deciding)
    session, peer = recipient_and_peer(config) if role == "recipient" else initiator_and_peer(config)
    peer.greet()
    return session, peer, deciding


@both_roles
def test_nothing_is_said_or_looked_at_while_it_is_undecided_if_the_peer_is_wanted(role: str) -> None:
    session, _, _ = undecided(role)

    session.reconsider(START + 1)

    assert session.is_undecided
    assert session.state is SessionState.HELLO
    assert session.data_to_send() == []
    assert session.events() == []


@both_roles
def test_peer_that_is_wanted_in_the_end_is_greeted_and_what_it_said_meanwhile_counts(role: str) -> None:
    session, peer, deciding = undecided(role)

    deciding.verdict = None
    session.reconsider(START + 1)

    assert not session.is_undecided
    assert session.state is SessionState.OPEN
    assert [message_id for message_id, _ in peer.hear()] == [MessageId.HELLO]
    assert session.next_timer() == START + 1 + PING_INTERVAL_S


@both_roles
def test_peer_that_is_not_wanted_in_the_end_hears_the_reason(role: str) -> None:
    session, peer, deciding = undecided(role)

    deciding.verdict = DisconnectReason.ALREADY_CONNECTED
    session.reconsider(START + 1)

    assert not session.is_undecided
    assert peer.hear() == [disconnect_of(DisconnectReason.ALREADY_CONNECTED)]
    assert session.events() == [AnyClosed(DisconnectReason.ALREADY_CONNECTED, by_peer=False)]


def test_peer_that_nobody_decides_about_hears_at_the_end_of_the_handshakes_time_that_it_is_connected() -> None:
    session, peer, _ = undecided("recipient")

    assert session.next_timer() == START + HANDSHAKE_TIMEOUT_S
    session.handle_timer(START + HANDSHAKE_TIMEOUT_S)
    session.reconsider(START + HANDSHAKE_TIMEOUT_S)

    assert not session.is_undecided
    assert peer.hear() == [disconnect_of(DisconnectReason.ALREADY_CONNECTED)]


def test_peer_that_another_connection_appears_of_while_its_hello_is_on_its_way_is_refused() -> None:
    answers = iter([None, Undecided.UNDECIDED])
    session, peer = recipient_and_peer(session_config("recipient", refuse=lambda _: next(answers)))

    peer.greet()

    assert session.events() == [AnyClosed(DisconnectReason.ALREADY_CONNECTED, by_peer=False)]


def test_session_that_was_never_undecided_has_nothing_to_reconsider() -> None:
    session, _ = open_session()

    session.reconsider(START + 1)

    assert session.data_to_send() == []
