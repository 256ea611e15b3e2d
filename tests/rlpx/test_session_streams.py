"""Whole streams into a Session: recorded, cut, flipped and random. Its rules are in the other test_session_*.py."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.codec import snappy
from mailserver.codec.keys import PrivateKey
from mailserver.rlpx import p2p
from mailserver.rlpx.capabilities import Capability, SharedCapability
from mailserver.rlpx.events import Event, MessageReceived, SessionClosed, SessionOpened
from mailserver.rlpx.framing import HEADER_BYTES
from mailserver.rlpx.handshake import Entropy
from mailserver.rlpx.moves import SessionState
from mailserver.rlpx.p2p import MessageId
from mailserver.rlpx.session import Session
from mailserver.rlpx.session_config import SessionConfig
from tests.data import load
from tests.pairs import (
    BREACH,
    INITIATOR_KEY_NAME,
    RECIPIENT_KEY_NAME,
    START,
    TOY,
    AnyClosed,
    Pair,
    codes_and_payloads,
    feed,
    initiating,
    open_session,
    private_key,
    receiving,
    recipient_and_peer,
    session_config,
)
from tests.properties import settings

WAKU = Capability("waku", 1)
SESSIONS = {session["name"]: session for session in load("sessions.json")["sessions"]}


def good_streams() -> dict[str, bytes]:
    """All that each side says in one session: handshake, Hello, three messages."""
    pair = Pair.join()
    said = {"initiator": b"", "recipient": b""}
    for _ in range(3):
        rightward = b"".join(pair.initiator.data_to_send())
        feed(pair.recipient, rightward)
        leftward = b"".join(pair.recipient.data_to_send())
        feed(pair.initiator, leftward)
        said = {"initiator": said["initiator"] + rightward, "recipient": said["recipient"] + leftward}
    for code in range(3):
        pair.initiator.send(TOY, code, b"from the initiator")
        pair.recipient.send(TOY, code, b"from the recipient")
    said["initiator"] += b"".join(pair.initiator.data_to_send())
    said["recipient"] += b"".join(pair.recipient.data_to_send())
    return said


STREAMS = good_streams()


def replay(sender: str, stream: bytes, *, chunk_bytes: int | None = None) -> list[Event]:
    """What the other side makes of `stream` and of its end; its own bytes are thrown away."""
    if sender == "initiator":
        session = receiving(session_config(RECIPIENT_KEY_NAME))
    else:
        session = initiating(session_config(INITIATOR_KEY_NAME), private_key(RECIPIENT_KEY_NAME))
    feed(session, stream, chunk_bytes=chunk_bytes)
    session.receive_eof()
    assert session.state is SessionState.CLOSED
    return session.events()


@pytest.mark.parametrize("sender", STREAMS)
@pytest.mark.parametrize("chunk_bytes", [None, 1])
def test_good_stream_opens_the_session_and_brings_three_messages(sender: str, chunk_bytes: int | None) -> None:
    opened, *messages, end = replay(sender, STREAMS[sender], chunk_bytes=chunk_bytes)

    assert isinstance(opened, SessionOpened)
    assert codes_and_payloads(messages) == [(code, f"from the {sender}".encode()) for code in range(3)]
    assert end == AnyClosed(None, by_peer=True)


@pytest.mark.parametrize("sender", STREAMS)
def test_flipped_bit_anywhere_ends_the_session_before_the_message_it_is_in(sender: str) -> None:
    stream = STREAMS[sender]
    good = replay(sender, stream)[:-1]

    for at in range(len(stream)):
        *events, end = replay(sender, stream[:at] + bytes([stream[at] ^ 1 << at % 8]) + stream[at + 1 :])

        assert isinstance(end, SessionClosed)
        assert events == good[: len(events)]
        assert len(events) < len(good)


@pytest.mark.parametrize("sender", STREAMS)
def test_every_truncation_ends_the_session_with_what_was_whole(sender: str) -> None:
    stream = STREAMS[sender]
    good = replay(sender, stream)[:-1]

    for length in range(len(stream)):
        *events, end = replay(sender, stream[:length])

        assert end == AnyClosed(None, by_peer=True)
        assert events == good[: len(events)]
        assert len(events) < len(good)


@settings(max_examples=100)
@given(st.binary(max_size=600), st.sampled_from(sorted(STREAMS)), st.integers(1, 600))
def test_random_bytes_in_place_of_a_handshake_never_raise(junk: bytes, sender: str, chunk_bytes: int) -> None:
    [end] = replay(sender, junk, chunk_bytes=chunk_bytes)

    assert isinstance(end, SessionClosed)


@settings(max_examples=50)
@given(st.binary(min_size=HEADER_BYTES, max_size=200), st.sampled_from(sorted(STREAMS)))
def test_random_bytes_in_place_of_a_frame_end_the_session(junk: bytes, sender: str) -> None:
    *events, end = replay(sender, STREAMS[sender] + junk)

    assert len(codes_and_payloads(events)) == 3
    assert end == BREACH


@settings(max_examples=200)
@given(
    st.lists(
        st.binary(min_size=1, max_size=60)
        | st.builds(
            lambda start, rest: bytes([start]) + snappy.compress(rest), st.integers(0, 0x7F), st.binary(max_size=60)
        ),
        max_size=4,
    ),
    st.booleans(),
)
def test_random_frame_bodies_never_raise(bodies: list[bytes], greeted: bool) -> None:
    session, peer = open_session() if greeted else recipient_and_peer()

    for body in bodies:
        feed(session, peer.frame_of(body))
    session.receive_eof()

    events = session.events()
    assert [type(event) for event in events].count(SessionClosed) == 1
    assert isinstance(events[-1], SessionClosed)


@pytest.mark.parametrize("name", SESSIONS)
@pytest.mark.parametrize("chunk_bytes", [None, 1])
def test_recorded_initiator_is_understood_to_its_last_message(name: str, chunk_bytes: int | None) -> None:
    # Our ack differs from the recorded one, but what the initiator seals does not depend on the ack's bytes:
    # with the recorded key and nonce the secrets are the same.
    recorded = SESSIONS[name]
    known = Entropy(
        PrivateKey(bytes.fromhex(recorded["recipient_ephemeral_private_key"])),
        bytes.fromhex(recorded["recipient_nonce"]),
        private_key("seal"),
        bytes(16),
        bytes(100),
    )
    key = PrivateKey(bytes.fromhex(recorded["recipient_private_key"]))
    session = Session(SessionConfig(key, "name", {WAKU: 128}, 1 << 20), lambda: known, START)

    feed(session, bytes.fromhex(recorded["auth"] + recorded["initiator_frames"]), chunk_bytes=chunk_bytes)

    opened, *events = session.events()
    assert isinstance(opened, SessionOpened)
    assert opened.node_id.hex() == recorded["secrets"]["initiator_public_key"]
    assert opened.shared == (SharedCapability(WAKU, 0x10, 128),)
    assert events == [
        expected_event(message["message_id"], bytes.fromhex(message["payload"]))
        for message in recorded["messages"]
        if message["from"] == "initiator" and message["message_id"] != MessageId.HELLO
    ]


def expected_event(message_id: int, payload: bytes) -> Any:
    if message_id == MessageId.DISCONNECT:
        return AnyClosed(p2p.decode_disconnect(payload), by_peer=True)
    assert message_id >= 0x10
    return MessageReceived(WAKU, message_id - 0x10, payload)
