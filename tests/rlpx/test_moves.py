"""mailserver.rlpx.moves: the table by itself, without a byte."""

import pytest

from mailserver.rlpx.capabilities import RESERVED_MESSAGE_IDS
from mailserver.rlpx.moves import MOVES, Move, SessionState, move_of
from mailserver.rlpx.p2p import MessageId

OF_PEER = {Move.HELLO, Move.DISCONNECT, Move.PING, Move.PONG, Move.RESERVED, Move.MESSAGE}


def test_each_state_has_its_moves() -> None:
    assert MOVES.keys() == set(SessionState)


def test_handshake_is_left_with_keys_and_no_message_comes_before() -> None:
    moves = MOVES[SessionState.HANDSHAKE]

    assert moves == {Move.KEYS_AGREED: SessionState.HELLO, Move.END: SessionState.CLOSED}


def test_hello_comes_first_or_a_disconnect_in_its_place() -> None:
    moves = MOVES[SessionState.HELLO]

    assert OF_PEER & moves.keys() == {Move.HELLO, Move.DISCONNECT}
    assert moves[Move.HELLO] is SessionState.OPEN
    assert Move.SEND not in moves


def test_open_session_takes_everything_but_a_second_hello_and_stays_open() -> None:
    moves = MOVES[SessionState.OPEN]

    assert OF_PEER - moves.keys() == {Move.HELLO}
    assert {move for move, state in moves.items() if state is SessionState.CLOSED} == {Move.DISCONNECT, Move.END}
    assert all(state is SessionState.OPEN for move, state in moves.items() if move not in (Move.DISCONNECT, Move.END))


def test_closed_session_does_nothing() -> None:
    assert MOVES[SessionState.CLOSED] == {}


def test_every_other_state_can_be_ended() -> None:
    for state in set(SessionState) - {SessionState.CLOSED}:
        assert MOVES[state][Move.END] is SessionState.CLOSED


def test_no_move_leads_back() -> None:
    order = list(SessionState)

    for state, moves in MOVES.items():
        assert all(order.index(after) >= order.index(state) for after in moves.values())


@pytest.mark.parametrize(
    ("message_id", "move"),
    [
        (MessageId.HELLO, Move.HELLO),
        (MessageId.DISCONNECT, Move.DISCONNECT),
        (MessageId.PING, Move.PING),
        (MessageId.PONG, Move.PONG),
        (MessageId.PONG + 1, Move.RESERVED),
        (RESERVED_MESSAGE_IDS - 1, Move.RESERVED),
        (RESERVED_MESSAGE_IDS, Move.MESSAGE),
        (255, Move.MESSAGE),
    ],
)
def test_message_id_says_which_move_it_is(message_id: int, move: Move) -> None:
    assert move_of(message_id) is move
