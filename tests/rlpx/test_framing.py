from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.codec import snappy
from mailserver.codec.keys import PrivateKey
from mailserver.errors import DecodeError
from mailserver.rlpx.framing import (
    HEADER_BYTES,
    MAC_BYTES,
    MAX_FRAME_BODY_BYTES,
    FrameDecoder,
    FrameEncoder,
    padded,
)
from mailserver.rlpx.handshake import Entropy, Recipient, open_auth
from tests.data import load
from tests.pairs import digest, private_key, split_message
from tests.properties import settings

SESSIONS = {session["name"]: session for session in load("sessions.json")["sessions"]}
DIRECTIONS = [(name, sender) for name in SESSIONS for sender in ("initiator", "recipient")]

AES, MAC, SEED = digest("aes"), digest("mac"), b"seed"
BODY = b"\x10a body that is longer than one block"
FRAME = FrameEncoder(AES, MAC, SEED).encode(BODY)


def decoder() -> FrameDecoder:
    return FrameDecoder(AES, MAC, SEED)


def open_frame(frames: FrameDecoder, frame: bytes, max_body_bytes: int = MAX_FRAME_BODY_BYTES) -> bytes:
    size = frames.decode_header(frame[:HEADER_BYTES], max_body_bytes=max_body_bytes)
    return frames.decode_body(frame[HEADER_BYTES:], size)


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def recorded_secrets(session: dict[str, Any], sender: str) -> tuple[bytes, bytes, bytes]:
    """AES secret, MAC secret and MAC seed of what `sender` sent."""
    key = PrivateKey(bytes.fromhex(session["recipient_private_key"]))
    auth, ack = bytes.fromhex(session["auth"]), bytes.fromhex(session["ack"])
    entropy = Entropy(
        PrivateKey(bytes.fromhex(session["recipient_ephemeral_private_key"])),
        bytes.fromhex(session["recipient_nonce"]),
        private_key("seal"),
        bytes(16),
        b"",
    )
    secrets = Recipient(key, entropy).secrets(auth, ack, *open_auth(key, auth))
    return secrets.aes, secrets.mac, secrets.ingress_seed if sender == "initiator" else secrets.egress_seed


def test_sizes_are_padded_to_whole_blocks() -> None:
    assert [padded(size) for size in (0, 1, 15, 16, 17, 32, MAX_FRAME_BODY_BYTES)] == [0, 16, 16, 16, 32, 32, 1 << 24]


def test_frame_of_go_ethereum_has_its_ciphertexts() -> None:
    # Only the ciphertexts: its MAC was replaced by a stand-in.
    vector = load("rlpx_frame.json")
    encoder = FrameEncoder(bytes.fromhex(vector["aes_secret"]), bytes.fromhex(vector["mac_secret"]), b"")

    frame = encoder.encode(bytes([vector["message_id"]]) + bytes.fromhex(vector["payload"]))

    assert frame[:16].hex() == vector["header_ciphertext"]
    assert frame[32:48].hex() == vector["frame_ciphertext"]
    assert len(frame) == 64


@pytest.mark.parametrize(("name", "sender"), DIRECTIONS)
def test_recorded_frames_decode_to_the_recorded_messages_and_encode_to_the_same_bytes(name: str, sender: str) -> None:
    session = SESSIONS[name]
    stream = bytes.fromhex(session[f"{sender}_frames"])
    secrets = recorded_secrets(session, sender)
    frames, encoder = FrameDecoder(*secrets), FrameEncoder(*secrets)

    messages = []
    at = 0
    while at < len(stream):
        size = frames.decode_header(stream[at : at + HEADER_BYTES], max_body_bytes=1 << 20)
        end = at + HEADER_BYTES + padded(size) + MAC_BYTES
        body = frames.decode_body(stream[at + HEADER_BYTES : end], size)
        assert encoder.encode(body).hex() == stream[at:end].hex()
        messages.append(split_message(body))
        at = end

    expected = [
        (message["message_id"], message["payload"]) for message in session["messages"] if message["from"] == sender
    ]
    hello, *others = messages
    inflated = [hello] + [(message_id, snappy.decompress(data, max_bytes=1 << 20)) for message_id, data in others]
    assert [(message_id, payload.hex()) for message_id, payload in inflated] == expected
    assert len(expected) > 1


@settings(max_examples=50)
@given(st.lists(st.binary(min_size=1, max_size=100), min_size=1, max_size=5))
def test_frames_decode_in_the_order_in_which_they_were_encoded(bodies: list[bytes]) -> None:
    encoder, frames = FrameEncoder(AES, MAC, SEED), decoder()

    for body in bodies:
        frame = encoder.encode(body)

        assert len(frame) == HEADER_BYTES + padded(len(body)) + MAC_BYTES
        assert open_frame(frames, frame) == body


def test_same_body_is_sealed_anew_each_time() -> None:
    encoder = FrameEncoder(AES, MAC, SEED)

    first, second = encoder.encode(BODY), encoder.encode(BODY)

    assert first == FRAME
    assert not set(blocks(first)) & set(blocks(second))


def blocks(frame: bytes) -> list[bytes]:
    return [frame[at : at + 16] for at in range(0, len(frame), 16)]


def test_frame_out_of_order_is_refused() -> None:
    encoder = FrameEncoder(AES, MAC, SEED)
    encoder.encode(BODY)

    with pytest.raises(DecodeError, match="header MAC differs"):
        open_frame(decoder(), encoder.encode(BODY))


def test_repeated_frame_is_refused() -> None:
    frames = decoder()
    open_frame(frames, FRAME)

    with pytest.raises(DecodeError, match="header MAC differs"):
        open_frame(frames, FRAME)


@pytest.mark.parametrize("at", range(HEADER_BYTES))
def test_flipped_bit_in_the_header_is_refused_by_the_header_mac(at: int) -> None:
    with pytest.raises(DecodeError, match="header MAC differs"):
        decoder().decode_header(flip(FRAME, at)[:HEADER_BYTES], max_body_bytes=MAX_FRAME_BODY_BYTES)


@pytest.mark.parametrize("at", range(HEADER_BYTES, len(FRAME)))
def test_flipped_bit_in_the_body_is_refused_by_the_body_mac(at: int) -> None:
    with pytest.raises(DecodeError, match="body MAC differs"):
        open_frame(decoder(), flip(FRAME, at))


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param(FrameDecoder(AES, digest("other"), SEED), id="other mac secret"),
        pytest.param(FrameDecoder(AES, MAC, b"other"), id="other seed"),
    ],
)
def test_frame_of_other_secrets_is_refused(frames: FrameDecoder) -> None:
    with pytest.raises(DecodeError, match="header MAC differs"):
        open_frame(frames, FRAME)


def test_frame_as_long_as_allowed_is_taken() -> None:
    assert open_frame(decoder(), FRAME, max_body_bytes=len(BODY)) == BODY


def test_frame_longer_than_allowed_is_refused_on_its_header() -> None:
    with pytest.raises(DecodeError, match="too long") as caught:
        decoder().decode_header(FRAME[:HEADER_BYTES], max_body_bytes=len(BODY) - 1)

    assert (caught.value.got, caught.value.limit) == (len(BODY), len(BODY) - 1)


def test_empty_frame_is_refused() -> None:
    frame = FrameEncoder(AES, MAC, SEED).encode(b"")

    with pytest.raises(DecodeError, match="empty") as caught:
        decoder().decode_header(frame[:HEADER_BYTES], max_body_bytes=MAX_FRAME_BODY_BYTES)

    assert caught.value.got == 0


def test_size_takes_all_three_bytes_of_the_header() -> None:
    for body in (bytes(0x01_02_03), bytes(MAX_FRAME_BODY_BYTES)):
        frame = FrameEncoder(AES, MAC, SEED).encode(body)

        size = decoder().decode_header(frame[:HEADER_BYTES], max_body_bytes=MAX_FRAME_BODY_BYTES)
        assert size == len(body)


def test_body_that_is_too_long_for_a_frame_cannot_be_encoded() -> None:
    with pytest.raises(OverflowError):
        FrameEncoder(AES, MAC, SEED).encode(bytes(MAX_FRAME_BODY_BYTES + 1))


@pytest.mark.parametrize("length", range(HEADER_BYTES))
def test_every_truncation_of_a_header_is_refused(length: int) -> None:
    with pytest.raises(DecodeError, match="header MAC differs"):
        decoder().decode_header(FRAME[:length], max_body_bytes=MAX_FRAME_BODY_BYTES)


@pytest.mark.parametrize("length", range(HEADER_BYTES, len(FRAME)))
def test_every_truncation_of_a_body_is_refused(length: int) -> None:
    with pytest.raises(DecodeError, match="body MAC differs"):
        open_frame(decoder(), FRAME[:length])


@settings(max_examples=50)
@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES), st.binary(max_size=100))
def test_random_bytes_are_refused_as_header_and_as_body(header: bytes, body: bytes) -> None:
    with pytest.raises(DecodeError, match="header MAC differs"):
        decoder().decode_header(header, max_body_bytes=MAX_FRAME_BODY_BYTES)
    with pytest.raises(DecodeError, match="body MAC differs"):
        open_frame(decoder(), FRAME[:HEADER_BYTES] + body)
