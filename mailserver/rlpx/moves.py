"""The moves of an RLPx session: what may happen in which state, and to which state it leads.

    HANDSHAKE --auth, ack--> HELLO --both Hellos--> OPEN
        \\___________________________\\________________\\--> CLOSED

Spec: rlpx.md "Initial Handshake", "p2p" Capability.
"""

from enum import Enum, auto

from mailserver.rlpx.capabilities import RESERVED_MESSAGE_IDS
from mailserver.rlpx.p2p import MessageId


class SessionState(Enum):
    """The state of a session."""

    __hash__ = object.__hash__  # Enum's own is slow, in Python, and members are looked up for each frame

    HANDSHAKE = auto()
    HELLO = auto()
    OPEN = auto()
    CLOSED = auto()


class Move(Enum):
    """What may happen to a session."""

    __hash__ = object.__hash__

    KEYS_AGREED = auto()
    """Auth and ack have been exchanged."""

    HELLO = auto()
    DISCONNECT = auto()
    PING = auto()
    PONG = auto()
    """The peer has sent this message."""

    RESERVED = auto()
    """The peer has sent a message of the base protocol that has no meaning yet."""

    MESSAGE = auto()
    """The peer has sent a message of a capability."""

    SEND = auto()
    """We send a message of a capability."""

    END = auto()
    """We end the session, or the transport is broken."""


MOVES: dict[SessionState, dict[Move, SessionState]] = {
    SessionState.HANDSHAKE: {
        Move.KEYS_AGREED: SessionState.HELLO,
        Move.END: SessionState.CLOSED,
    },
    SessionState.HELLO: {
        Move.HELLO: SessionState.OPEN,
        Move.DISCONNECT: SessionState.CLOSED,
        Move.END: SessionState.CLOSED,
    },
    SessionState.OPEN: {
        Move.PING: SessionState.OPEN,
        Move.PONG: SessionState.OPEN,
        Move.RESERVED: SessionState.OPEN,
        Move.MESSAGE: SessionState.OPEN,
        Move.SEND: SessionState.OPEN,
        Move.DISCONNECT: SessionState.CLOSED,
        Move.END: SessionState.CLOSED,
    },
    SessionState.CLOSED: {},
}
"""The lawful moves of each state. Any other move of the peer breaches the protocol; any other of ours is a bug."""

_BASE_MOVES: dict[int, Move] = {
    MessageId.HELLO: Move.HELLO,
    MessageId.DISCONNECT: Move.DISCONNECT,
    MessageId.PING: Move.PING,
    MessageId.PONG: Move.PONG,
}


def move_of(message_id: int) -> Move:
    """Return the move that a peer makes when it sends a message with this id."""
    if message_id >= RESERVED_MESSAGE_IDS:
        return Move.MESSAGE
    return _BASE_MOVES.get(message_id, Move.RESERVED)
