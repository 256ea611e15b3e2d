"""mailserver.rlpx.session: timeouts, pings and probes."""

import pytest

from mailserver.errors import DisconnectReason
from mailserver.rlpx import p2p
from mailserver.rlpx.events import BaseMessageReceived, SessionClosed
from mailserver.rlpx.liveness import IDLE_TIMEOUT_S, PING_INTERVAL_S, PROBE_TIMEOUT_S, SEEN_RECENTLY_S
from mailserver.rlpx.moves import SessionState
from mailserver.rlpx.p2p import MessageId
from mailserver.rlpx.session import HANDSHAKE_TIMEOUT_S
from tests.pairs import (
    RECIPIENT_KEY_NAME,
    START,
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
        SessionClosed(DisconnectReason.PING_TIMEOUT, by_peer=False, cause=f"peer was silent for {PROBE_TIMEOUT_S:g} s")
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

    assert session.events()[-1] == SessionClosed(
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

    opened = session.probe(START + SEEN_RECENTLY_S - 0.01)
    asked = session.probe(PROBED)
    unanswered = session.probe(PROBED + 1)
    peer.say(MessageId.PONG, p2p.EMPTY_PAYLOAD, PROBED + 2)
    answered = session.probe(PROBED + 2 + SEEN_RECENTLY_S - 0.01)
    later = session.probe(PROBED + 2 + SEEN_RECENTLY_S)

    assert (opened, asked, unanswered, answered, later) == (True, False, False, True, False)
    assert [message_id for message_id, _ in peer.hear_inflated()] == [MessageId.PING, MessageId.PING]


def test_probe_is_quicker_than_a_handshake_and_slower_than_a_bad_line() -> None:
    assert 2 < PROBE_TIMEOUT_S < HANDSHAKE_TIMEOUT_S < PING_INTERVAL_S < IDLE_TIMEOUT_S


def test_going_on_with_what_has_come_is_no_sign_of_life() -> None:
    session, peer = recipient_and_peer()
    peer.greet()
    session.receive_data(peer.frame(MessageId.PING, p2p.EMPTY_PAYLOAD), START, max_frames=1)
    assert session.has_more

    session.receive_data(b"", START + IDLE_TIMEOUT_S, max_frames=1)
    session.handle_timer(START + IDLE_TIMEOUT_S)

    assert session.state is SessionState.CLOSED
    assert not session.has_more
