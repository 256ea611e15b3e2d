import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from mailserver.codec import protobuf
from mailserver.errors import DecodeError
from mailserver.libp2p.faults import Cause, Libp2pFault
from mailserver.libp2p.noise import (
    MAX_HANDSHAKE_MESSAGE_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_PAYLOAD_FIELDS,
    MAX_PLAINTEXT_BYTES,
    HandshakePayload,
    NoiseChannel,
    NoiseHandshake,
)
from mailserver.libp2p.noise_xx import HandshakeState
from tests.libp2p.names import DIALER, LISTENER, ephemeral_of, identity, noise_keys
from tests.pairs import digest
from tests.properties import settings


def handshakes() -> tuple[NoiseHandshake, NoiseHandshake]:
    dialer = NoiseHandshake(noise_keys(DIALER), ephemeral_of(DIALER)(), is_dialer=True)
    return dialer, NoiseHandshake(noise_keys(LISTENER), ephemeral_of(LISTENER)(), is_dialer=False)


def answer(side: NoiseHandshake, data: bytes) -> bytes:
    received = bytearray(data)
    reply = side.advance(received)
    assert reply is not None
    assert not received
    return reply


def channels() -> tuple[NoiseChannel, NoiseChannel]:
    dialer, listener = handshakes()
    assert answer(listener, answer(dialer, answer(listener, dialer.begin()))) == b""
    return dialer.channel(), listener.channel()


def framed(message: bytes) -> bytes:
    return len(message).to_bytes(2, "big") + message


def fault_of_listener(payload: bytes, *, static: str = f"{DIALER}, static") -> Cause | None:
    """What a listener says of a dialer that sends this payload."""
    _, listener = handshakes()
    keys = [X25519PrivateKey.from_private_bytes(digest(name)) for name in (static, "ephemeral")]
    dialer = HandshakeState(keys[0], keys[1], is_initiator=True)
    dialer.read_message(answer(listener, framed(dialer.write_message(b"")))[2:])
    try:
        listener.advance(bytearray(framed(dialer.write_message(payload))))
    except Libp2pFault as fault:
        return fault.cause
    assert listener.is_finished
    return None


def test_each_side_learns_who_the_other_is_and_its_muxers() -> None:
    dialer, listener = handshakes()

    third = answer(dialer, answer(listener, dialer.begin()))
    assert dialer.is_finished
    assert answer(listener, third) == b""

    assert listener.is_finished
    assert listener.remote_key is not None
    assert listener.remote_key.peer_id == identity(DIALER).peer_id
    assert dialer.remote_key is not None
    assert dialer.remote_key.peer_id == identity(LISTENER).peer_id
    assert dialer.remote_muxers == listener.remote_muxers == ("/yamux/1.0.0", "/mplex/6.7.0")


def test_nothing_of_us_is_in_the_first_message() -> None:
    assert len(handshakes()[0].begin()) == 2 + 32


def test_payload_is_as_in_the_specification() -> None:
    payload = HandshakePayload(b"key", b"sig", ("/a", "/b"))

    assert payload.encode() == bytes.fromhex("0a036b6579 1203736967 2208 12022f61 12022f62")
    assert HandshakePayload.decode(payload.encode()) == payload


def test_payload_without_extensions_names_no_muxers() -> None:
    assert HandshakePayload.decode(HandshakePayload(b"key", b"sig").encode()).muxers == ()


def test_other_fields_of_a_payload_are_ignored() -> None:
    hashes = protobuf.write_bytes(4, protobuf.write_bytes(1, b"certificate") + protobuf.write_bytes(2, b"/a"))

    assert HandshakePayload.decode(hashes + protobuf.write_number(3, 1)) == HandshakePayload(b"", b"", ("/a",))


def test_fields_of_a_payload_of_another_wire_type_are_ignored() -> None:
    others = b"".join(protobuf.write_number(number, 1) for number in (1, 2, 4))
    extensions = protobuf.write_bytes(4, protobuf.write_bytes(2, b"/a") + protobuf.write_number(2, 1))

    assert HandshakePayload.decode(HandshakePayload(b"key", b"sig").encode() + others + extensions) == (
        HandshakePayload(b"key", b"sig", ("/a",))
    )


def test_extensions_that_come_twice_add_up_and_of_other_fields_the_last_counts() -> None:
    payload = HandshakePayload(b"key", b"sig", ("/a",)).encode() + HandshakePayload(b"other", b"", ("/b",)).encode()

    assert HandshakePayload.decode(payload) == HandshakePayload(b"other", b"", ("/a", "/b"))


def test_payload_of_too_many_fields_is_refused() -> None:
    muxer = protobuf.write_bytes(2, b"/a")

    assert HandshakePayload.decode(protobuf.write_bytes(4, muxer * MAX_PAYLOAD_FIELDS)).muxers == ("/a",) * 64
    for payload in (protobuf.write_bytes(4, muxer * (MAX_PAYLOAD_FIELDS + 1)), muxer * (MAX_PAYLOAD_FIELDS + 1)):
        with pytest.raises(DecodeError, match="too many fields"):
            HandshakePayload.decode(payload)


PAYLOAD = HandshakePayload.decode(noise_keys(DIALER).payload)


def test_payload_that_fits_is_taken() -> None:
    assert fault_of_listener(PAYLOAD.encode()) is None


@pytest.mark.parametrize(
    ("payload", "cause"),
    [
        pytest.param(b"", Cause.BAD_IDENTITY_KEY, id="empty"),
        pytest.param(b"\xff", Cause.BAD_IDENTITY_KEY, id="no protobuf"),
        pytest.param(protobuf.write_number(1, 1), Cause.BAD_IDENTITY_KEY, id="key is a number"),
        pytest.param(b"\x22\x01\xff", Cause.BAD_IDENTITY_KEY, id="extensions are no protobuf"),
        pytest.param(b"\x22\x02\x10\x01", Cause.BAD_IDENTITY_KEY, id="muxer is a number"),
        pytest.param(
            HandshakePayload(PAYLOAD.identity_key[:-1], PAYLOAD.identity_sig).encode(),
            Cause.BAD_IDENTITY_KEY,
            id="truncated key",
        ),
        pytest.param(
            HandshakePayload(PAYLOAD.identity_key, bytes(64)).encode(), Cause.WRONG_SIGNATURE, id="no signature"
        ),
        pytest.param(
            HandshakePayload(identity("another").public_key.encode(), PAYLOAD.identity_sig).encode(),
            Cause.WRONG_SIGNATURE,
            id="key of another",
        ),
        pytest.param(
            HandshakePayload(
                PAYLOAD.identity_key,
                identity(DIALER).sign(noise_keys(DIALER).static.public_key().public_bytes_raw()),
            ).encode(),
            Cause.WRONG_SIGNATURE,
            id="signed without the prefix",
        ),
        pytest.param(noise_keys("another").payload, Cause.WRONG_SIGNATURE, id="payload of another"),
    ],
)
def test_payload_that_proves_nothing_is_a_fault(payload: bytes, cause: Cause) -> None:
    assert fault_of_listener(payload) is cause


def test_payload_of_another_static_key_is_a_fault() -> None:
    assert fault_of_listener(PAYLOAD.encode(), static="swapped") is Cause.WRONG_SIGNATURE


def test_message_of_a_handshake_is_bounded() -> None:
    _, listener = handshakes()
    longest = MAX_HANDSHAKE_MESSAGE_BYTES.to_bytes(2, "big")

    assert listener.advance(bytearray(longest)) is None
    with pytest.raises(Libp2pFault) as raised:
        listener.advance(bytearray((MAX_HANDSHAKE_MESSAGE_BYTES + 1).to_bytes(2, "big")))
    assert raised.value.cause is Cause.FRAME_TOO_LONG


def test_message_of_a_handshake_is_waited_for() -> None:
    dialer, listener = handshakes()
    first = dialer.begin()

    for length in range(len(first)):
        received = bytearray(first[:length])
        assert listener.advance(received) is None
        assert received == first[:length]


def test_sealed_bytes_are_opened_by_the_other_side() -> None:
    dialer, listener = channels()
    received = bytearray(b"".join(dialer.seal([b"one", b"two"]) + dialer.seal([b"three"])))

    assert listener.open(received) == b"onetwo"
    assert listener.open(received) == b"three"
    assert listener.open(received) is None
    assert not received


@pytest.mark.parametrize("size", [0, 1, MAX_PLAINTEXT_BYTES, MAX_PLAINTEXT_BYTES + 1, 3 * MAX_PLAINTEXT_BYTES])
def test_pieces_go_into_as_few_messages_as_can_be(size: int) -> None:
    dialer, listener = channels()
    data = bytes(size)

    messages = dialer.seal([data[at : at + 1000] for at in range(0, size, 1000)])

    assert len(messages) == -(-size // MAX_PLAINTEXT_BYTES)
    assert all(len(message) <= 2 + MAX_MESSAGE_BYTES for message in messages)
    received = bytearray(b"".join(messages))
    assert b"".join(iter(lambda: listener.open(received) or b"", b"")) == data


def test_message_is_waited_for() -> None:
    dialer, listener = channels()
    (message,) = dialer.seal([b"data"])

    for length in range(len(message)):
        assert listener.open(bytearray(message[:length])) is None
    assert listener.open(bytearray(message)) == b"data"


@pytest.mark.parametrize("message", [b"\0\0", b"\0\x0f" + bytes(15), b"\0\x20" + bytes(32)])
def test_message_that_nobody_sealed_is_a_fault(message: bytes) -> None:
    with pytest.raises(Libp2pFault) as raised:
        channels()[1].open(bytearray(message))
    assert raised.value.cause is Cause.UNDECRYPTABLE


@given(st.binary(max_size=200))
@settings()
def test_random_payload_is_read_or_refused(data: bytes) -> None:
    try:
        payload = HandshakePayload.decode(data)
    except DecodeError:
        return
    assert HandshakePayload.decode(payload.encode()) == payload
