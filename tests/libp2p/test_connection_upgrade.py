import tracemalloc
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.codec import varint
from mailserver.errors import LocalProtocolError
from mailserver.libp2p import mplex, yamux
from mailserver.libp2p.connection import HANDSHAKE_TIMEOUT_S, Connection
from mailserver.libp2p.events import Closed, Secured
from mailserver.libp2p.faults import Cause
from mailserver.libp2p.multistream import HEADER, MAX_LINE_BYTES, MAX_PROPOSALS
from mailserver.libp2p.noise import MAX_HANDSHAKE_MESSAGE_BYTES, NOISE, HandshakePayload
from mailserver.libp2p.upgrade import MAX_MUXER_MESSAGES
from tests.libp2p.links import Pair, ScriptedPeer, closed, dialing, feed, lines, listening
from tests.libp2p.names import DIALER, LISTENER, MUXERS, identity, noise_keys
from tests.pairs import START
from tests.properties import settings

PEERS: dict[str, Callable[[], ScriptedPeer]] = {
    "listener": ScriptedPeer.of_listener,
    "dialer": ScriptedPeer.of_dialer,
}
both_roles = pytest.mark.parametrize("role", PEERS)


def cause(connection: Connection) -> Cause:
    fault = closed(connection.events()).fault
    assert fault is not None
    return fault.cause


@pytest.mark.parametrize("chunk_bytes", [None, 1, 7])
@pytest.mark.parametrize(
    ("dialers", "listeners", "muxer"),
    [
        (MUXERS, MUXERS, yamux.PROTOCOL),
        ((mplex.PROTOCOL,), MUXERS, mplex.PROTOCOL),
        (MUXERS, (mplex.PROTOCOL,), mplex.PROTOCOL),
    ],
)
def test_both_sides_know_each_other_and_their_muxer(
    dialers: Sequence[str], listeners: Sequence[str], muxer: str, chunk_bytes: int | None
) -> None:
    pair = Pair(dialing(dialers, expected=identity(LISTENER).peer_id), listening(listeners))

    pair.pump(chunk_bytes=chunk_bytes)

    assert pair.dialer.events() == [Secured(identity(LISTENER).peer_id, muxer)]
    assert pair.listener.events() == [Secured(identity(DIALER).peer_id, muxer)]
    assert pair.dialer.may_open
    assert pair.listener.may_open


@both_roles
def test_muxer_is_the_first_of_ours_as_it_is_for_js_libp2p(role: str) -> None:
    peer = PEERS[role]()
    peer.payload = noise_keys(peer.name, MUXERS[::-1]).payload
    peer.agree_on_noise()

    peer.shake_hands()

    assert peer.connection.events() == [Secured(identity(peer.name).peer_id, yamux.PROTOCOL)]


@pytest.mark.parametrize("muxer", MUXERS)
def test_peer_that_names_no_muxers_is_asked_by_multistream(muxer: str) -> None:
    peer = ScriptedPeer.of_listener()
    peer.payload = noise_keys(DIALER, ()).payload
    peer.agree_on_noise()
    peer.shake_hands()
    assert peer.connection.events() == []

    peer.say_sealed(lines(HEADER))
    peer.say_sealed(lines("/other", muxer))

    assert peer.heard_sealed() == lines(HEADER, "na", muxer)
    assert peer.connection.events() == [Secured(identity(DIALER).peer_id, muxer)]


def test_dialer_proposes_its_muxers_to_a_peer_that_names_none() -> None:
    peer = ScriptedPeer.of_dialer()
    peer.payload = noise_keys(LISTENER, ()).payload
    peer.agree_on_noise()
    peer.shake_hands()

    assert peer.heard_sealed() == lines(HEADER, yamux.PROTOCOL)
    peer.say_sealed(lines(HEADER, "na"))
    assert peer.heard_sealed() == lines(mplex.PROTOCOL)
    peer.say_sealed(lines(mplex.PROTOCOL))

    assert peer.connection.events() == [Secured(identity(LISTENER).peer_id, mplex.PROTOCOL)]


def test_muxer_must_be_agreed_on_in_a_bounded_number_of_messages() -> None:
    peer = ScriptedPeer.of_listener()
    peer.payload = noise_keys(DIALER, ()).payload
    peer.agree_on_noise()
    peer.shake_hands()
    said = lines(HEADER, "x" * 100)

    for byte in said[:MAX_MUXER_MESSAGES]:
        peer.say_sealed(bytes([byte]))
    assert peer.connection.events() == []
    peer.say_sealed(said[MAX_MUXER_MESSAGES:])

    assert cause(peer.connection) is Cause.TOO_MANY_PROPOSALS


def test_frames_behind_the_negotiation_of_the_muxer_are_of_the_muxer() -> None:
    peer = ScriptedPeer.of_listener()
    peer.payload = noise_keys(DIALER, ()).payload
    peer.agree_on_noise()
    peer.shake_hands()

    peer.say_sealed(lines(HEADER, mplex.PROTOCOL) + b"\x07\x00")

    assert cause(peer.connection) is Cause.BAD_FRAME


@pytest.mark.parametrize("muxers", [(), ("/other/1.0.0",)])
def test_dialer_whose_muxers_are_refused_gives_up(muxers: Sequence[str]) -> None:
    peer = ScriptedPeer.of_dialer()
    peer.payload = noise_keys(LISTENER, muxers).payload
    peer.agree_on_noise()
    peer.shake_hands()

    if not muxers:
        peer.say_sealed(lines(HEADER, "na", "na"))

    assert cause(peer.connection) is Cause.NO_COMMON_MUXER


def test_listener_has_no_muxer_in_common() -> None:
    peer = ScriptedPeer.of_listener()
    peer.payload = noise_keys(DIALER, ("/other/1.0.0",)).payload
    peer.agree_on_noise()
    peer.shake_hands()

    assert cause(peer.connection) is Cause.NO_COMMON_MUXER


def test_dialer_proposes_noise_at_once_and_nothing_else() -> None:
    assert ScriptedPeer.of_dialer().heard == lines(HEADER, NOISE)


def test_listener_is_silent_until_it_is_spoken_to() -> None:
    assert ScriptedPeer.of_listener().heard == b""


def test_no_key_is_drawn_for_a_stranger_who_does_not_speak_noise() -> None:
    def refuse() -> bytes:
        raise AssertionError("no key is needed")

    peer = ScriptedPeer(listening(ephemeral_secret=refuse), is_dialer=True)

    peer.say(lines(HEADER, "/tls/1.0.0"))

    assert peer.heard == lines(HEADER, "na")
    assert peer.connection.events() == []


def test_dialer_need_not_wait_before_it_begins_with_noise() -> None:
    peer = ScriptedPeer.of_listener()
    message = peer.handshake.write_message(b"")

    peer.say(lines(HEADER, NOISE) + len(message).to_bytes(2, "big") + message)

    peer.heard_lines(HEADER, NOISE)
    peer.handshake.read_message(peer.heard_message())
    peer.say_message(peer.handshake.write_message(peer.payload))
    assert peer.connection.events() == [Secured(identity(DIALER).peer_id, yamux.PROTOCOL)]


def test_node_that_does_not_speak_noise_is_left() -> None:
    peer = ScriptedPeer.of_dialer()

    peer.say(lines(HEADER, "na"))

    assert cause(peer.connection) is Cause.NO_NOISE


def test_another_node_than_the_one_dialled_is_left_before_it_learns_who_we_are() -> None:
    peer = ScriptedPeer.of_dialer(expected=identity("another").peer_id)
    peer.agree_on_noise()
    peer.handshake.read_message(peer.heard_message())

    peer.say_message(peer.handshake.write_message(peer.payload))

    assert peer.heard == b""
    assert cause(peer.connection) is Cause.WRONG_PEER


@both_roles
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(
            b"GET / HTTP/1.1\r\nHost: example.org\r\nUser-Agent: curl/8\r\n\r\n" * 2, Cause.BAD_LINE, id="HTTP"
        ),
        pytest.param(b"\xff\xff\x7f", Cause.BAD_LINE, id="giant line"),
        pytest.param(b"\x81\x08", Cause.LINE_TOO_LONG, id="line one too long"),
        pytest.param(lines("/multistream/0.9.0"), Cause.NO_MULTISTREAM, id="another version"),
    ],
)
def test_peer_that_speaks_something_else_is_left(role: str, data: bytes, expected: Cause) -> None:
    peer = PEERS[role]()

    peer.say(data)

    assert cause(peer.connection) is expected


def test_giant_line_is_waited_for_up_to_its_bound_only() -> None:
    peer = ScriptedPeer.of_listener()

    peer.say(varint.encode(MAX_LINE_BYTES) + b"x" * (MAX_LINE_BYTES - 1))
    assert peer.connection.events() == []
    peer.say(b"x")

    assert cause(peer.connection) is Cause.BAD_LINE


def test_endless_proposals_are_a_fault() -> None:
    peer = ScriptedPeer.of_listener()
    peer.say(lines(HEADER))

    for _ in range(MAX_PROPOSALS):
        peer.say(lines("/tls/1.0.0"))
    assert peer.connection.events() == []
    peer.say(lines(NOISE))

    assert cause(peer.connection) is Cause.TOO_MANY_PROPOSALS
    assert peer.heard == lines(HEADER, *["na"] * MAX_PROPOSALS)


@both_roles
@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        pytest.param(b"", Cause.BAD_IDENTITY_KEY, id="empty"),
        pytest.param(noise_keys("another").payload, Cause.WRONG_SIGNATURE, id="of another static key"),
        pytest.param(
            HandshakePayload(identity(DIALER).public_key.encode(), bytes(64)).encode(),
            Cause.WRONG_SIGNATURE,
            id="no signature",
        ),
    ],
)
def test_peer_that_does_not_prove_who_it_is_is_left(role: str, payload: bytes, expected: Cause) -> None:
    peer = PEERS[role]()
    peer.agree_on_noise()
    if peer.is_dialer:
        peer.say_message(peer.handshake.write_message(b""))
    peer.handshake.read_message(peer.heard_message())

    peer.say_message(peer.handshake.write_message(payload))

    assert peer.heard == b""
    assert cause(peer.connection) is expected


@both_roles
def test_message_that_was_replayed_in_the_handshake_is_a_fault(role: str) -> None:
    peer = PEERS[role]()
    peer.agree_on_noise()
    message = peer.heard_message() if not peer.is_dialer else peer.handshake.write_message(b"")
    if peer.is_dialer:
        peer.say_message(message)

    peer.say_message(message)

    assert cause(peer.connection) is Cause.UNDECRYPTABLE


def test_whole_connection_of_another_that_was_replayed_is_a_fault() -> None:
    """The listener has another ephemeral key now, so the dialer's third message proves nothing."""
    dialer, listener = dialing(), listening()
    said = b""
    for _ in range(3):
        piece = b"".join(dialer.data_to_send())
        said += piece
        feed(listener, piece)
        feed(dialer, b"".join(listener.data_to_send()))
    assert len(listener.events()) == 1

    replayed = listening(ephemeral_secret=lambda: bytes(range(32)))
    feed(replayed, said)

    assert cause(replayed) is Cause.UNDECRYPTABLE


@both_roles
def test_point_of_low_order_is_a_fault(role: str) -> None:
    peer = PEERS[role]()
    peer.agree_on_noise()

    peer.say_message(bytes(200))

    assert cause(peer.connection) is Cause.LOW_ORDER_POINT


@both_roles
def test_message_of_the_handshake_is_bounded(role: str) -> None:
    peer = PEERS[role]()
    peer.agree_on_noise()

    peer.say((MAX_HANDSHAKE_MESSAGE_BYTES + 1).to_bytes(2, "big"))

    assert cause(peer.connection) is Cause.FRAME_TOO_LONG


def half_open() -> list[tuple[str, Connection]]:
    """Connections at every stage before the muxer is known, of both roles."""
    stages = []
    for role, make in PEERS.items():
        stages.append((f"{role}, nothing", make().connection))
        peer = make()
        peer.agree_on_noise()
        stages.append((f"{role}, multistream", peer.connection))
        peer = make()
        peer.payload = noise_keys(peer.name, ()).payload
        peer.agree_on_noise()
        peer.shake_hands()
        stages.append((f"{role}, Noise", peer.connection))
    return stages


@pytest.mark.parametrize("stage", range(6))
def test_half_an_upgrade_ends_by_its_timer(stage: int) -> None:
    _, connection = half_open()[stage]
    deadline = START + HANDSHAKE_TIMEOUT_S

    connection.handle_timer(deadline - 0.1)
    assert connection.next_timer() == deadline
    assert connection.events() == []
    connection.handle_timer(deadline)

    assert cause(connection) is Cause.HANDSHAKE_TIMEOUT
    assert connection.next_timer() is None


@pytest.mark.parametrize("stage", range(6))
def test_peer_may_leave_at_any_stage(stage: int) -> None:
    _, connection = half_open()[stage]

    connection.receive_eof(START)

    assert connection.events() == [Closed(None)]


@pytest.mark.parametrize("stage", range(6))
def test_we_may_leave_at_any_stage(stage: int) -> None:
    _, connection = half_open()[stage]

    connection.close()
    connection.close()

    assert connection.events() == [Closed(None)]
    assert connection.data_to_send() == []


@pytest.mark.parametrize("stage", range(6))
def test_no_stream_is_opened_before_the_muxer_is_known(stage: int) -> None:
    _, connection = half_open()[stage]

    assert not connection.may_open
    assert connection.queued_bytes == 0
    with pytest.raises(LocalProtocolError):
        connection.open_stream("/chat/1.0.0", START)


def test_nothing_is_waited_for_once_the_connection_is_secured() -> None:
    pair = Pair.open()

    pair.listener.handle_timer(START + 10 * HANDSHAKE_TIMEOUT_S)

    assert pair.listener.next_timer() is None
    assert pair.listener.events() == []


@both_roles
def test_bytes_after_the_end_are_not_read(role: str) -> None:
    peer = PEERS[role]()
    peer.say(b"\0")
    peer.connection.events()
    before = peer.heard

    peer.say(lines(HEADER, NOISE))
    peer.connection.receive_eof(START)
    peer.connection.handle_timer(START + HANDSHAKE_TIMEOUT_S)

    assert peer.connection.events() == []
    assert peer.heard == before


@both_roles
def test_bytes_after_the_end_are_not_kept(role: str) -> None:
    connection = PEERS[role]().connection
    connection.close()

    tracemalloc.start()
    for _ in range(16):
        connection.receive_data(bytes(1 << 16), START)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert kept < 1 << 16


def conversation() -> tuple[list[bytes], list[bytes]]:
    """What a dialer and a listener say, in turns."""
    dialer, listener = dialing(), listening()
    said: tuple[list[bytes], list[bytes]] = [], []
    for _ in range(3):
        said[0].append(b"".join(dialer.data_to_send()))
        feed(listener, said[0][-1])
        said[1].append(b"".join(listener.data_to_send()))
        feed(dialer, said[1][-1])
    return said


@pytest.mark.parametrize("make", [dialing, listening], ids=["dialer", "listener"])
def test_truncated_upgrade_is_waited_for_and_ends_without_a_fault(make: Callable[[], Connection]) -> None:
    whole = b"".join(conversation()[0 if make is listening else 1])

    for length in range(len(whole)):
        connection = make()
        feed(connection, whole[:length])
        assert connection.events() == []
        connection.receive_eof(START)
        assert connection.events() == [Closed(None)]
    connection = make()
    feed(connection, whole)
    assert [type(event) for event in connection.events()] == [Secured]


@pytest.mark.parametrize("make", [dialing, listening], ids=["dialer", "listener"])
def test_no_flipped_bit_goes_unseen(make: Callable[[], Connection]) -> None:
    whole = b"".join(conversation()[0 if make is listening else 1])

    for at in range(len(whole)):
        connection = make()
        feed(connection, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] + bytes(2000))
        assert Secured not in map(type, connection.events())


@both_roles
@given(data=st.lists(st.binary(max_size=300) | st.sampled_from([lines(HEADER), lines(NOISE), lines("na"), b"\0\x20"])))
@settings()
def test_random_bytes_end_in_a_fault_or_are_waited_for(role: str, data: list[bytes]) -> None:
    connections = [PEERS[role]().connection for _ in range(2)]
    said = [b"", b""]

    for piece in data:
        for number, chunk_bytes in enumerate((None, 1)):
            feed(connections[number], piece, chunk_bytes=chunk_bytes)
            said[number] += b"".join(connections[number].data_to_send())

    events = [connection.events() for connection in connections]
    assert Secured not in map(type, events[0])
    assert [str(event) for event in events[0]] == [str(event) for event in events[1]]
    assert said[0] == said[1]
