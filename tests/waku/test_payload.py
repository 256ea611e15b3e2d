"""mailserver.waku.payload against recorded envelopes and requests, and against AES-GCM of `cryptography`."""

from functools import cache
from hashlib import sha256
from typing import Any

import pytest
import rlp
from Crypto.Hash import keccak
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import example, given
from hypothesis import strategies as st

from mailserver.codec.ecies import OVERHEAD_BYTES, open_sealed, seal
from mailserver.codec.keys import NodeId, PrivateKey
from mailserver.errors import DecodeError
from mailserver.waku.envelope import decode_envelope
from mailserver.waku.packets import PacketCode
from mailserver.waku.payload import (
    MAX_PADDING_BYTES,
    OpenedPayload,
    key_from_password,
    open_asymmetric,
    open_symmetric,
    payload_size,
    seal_asymmetric,
    seal_symmetric,
)
from tests.data import load
from tests.properties import settings

WAKU_OFFSET = 0x10
"""Where the message ids of the only capability start."""

RECORDED = load("envelopes.json")["envelopes"]
PACKETS = load("packets.json")
SESSIONS = load("sessions.json")["sessions"]

KEY = sha256(b"symmetric key").digest()
NONCE = bytes(range(12))
IV = bytes(range(16))
PADDING = bytes(range(1, 1 + MAX_PADDING_BYTES))
ALICE = PrivateKey(sha256(b"alice").digest())
BOB = PrivateKey(sha256(b"bob").digest())
EPHEMERAL = PrivateKey(sha256(b"ephemeral").digest())

signing_keys = st.sampled_from([None, ALICE])

key_of = cache(key_from_password)


def signer_of(signing_key: PrivateKey | None) -> NodeId | None:
    return None if signing_key is None else signing_key.public_key


def padding_of(payload: bytes, signing_key: PrivateKey | None) -> bytes:
    """What is used of PADDING to fill the last block."""
    used = 1 + len(payload_size(len(payload))) + len(payload) + (0 if signing_key is None else 65)
    return PADDING[: -(-used // 256) * 256 - used]


def keccak256(data: bytes) -> bytes:
    return keccak.new(digest_bits=256, data=data).digest()


def sealed_by_hand(plaintext: bytes) -> bytes:
    """Symmetric sealing of any plaintext by another library."""
    return AESGCM(KEY).encrypt(NONCE, plaintext, None) + NONCE


def opened_by_hand(data: bytes, key: bytes = KEY) -> bytes:
    return AESGCM(key).decrypt(data[-12:], data[:-12], None)


def signed(plaintext: bytes, v_offset: int = 0) -> bytes:
    """The plaintext and ALICE's signature of it, V moved by `v_offset`."""
    signature = ALICE.sign(keccak256(plaintext))
    return plaintext + signature[:64] + bytes([signature[64] + v_offset])


def recorded_data(vector: dict[str, Any]) -> bytes:
    data = rlp.decode(bytes.fromhex(vector["raw"]))[3]
    assert isinstance(data, bytes)
    return data


def recorded_request(session: dict[str, Any]) -> bytes:
    """The data of the first request envelope in a session."""
    payload = next(
        bytes.fromhex(message["payload"])
        for message in session["messages"]
        if message["message_id"] == WAKU_OFFSET + PacketCode.P2P_REQUEST
    )
    return decode_envelope(payload).data


def session(name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(vector for vector in SESSIONS if vector["name"] == name)
    return found


# Recorded payloads

each_recorded = pytest.mark.parametrize("vector", RECORDED, ids=range(len(RECORDED)))


def test_key_of_a_password_is_that_of_deployed_clients() -> None:
    assert key_of(PACKETS["mailserver_password"]).hex() == PACKETS["mailserver_symmetric_key"]


@each_recorded
def test_recorded_payload_opens_with_its_password(vector: dict[str, Any]) -> None:
    data, key = recorded_data(vector), key_of(vector["symmetric_key_password"])
    payload = bytes.fromhex(vector["payload"])
    padding = opened_by_hand(data, key)[1 + len(payload_size(len(payload))) + len(payload) :]

    opened = open_symmetric(data, key)

    assert opened == OpenedPayload(payload, None, padding)


@each_recorded
def test_recorded_payload_seals_to_the_same_bytes(vector: dict[str, Any]) -> None:
    data = recorded_data(vector)
    key = key_of(vector["symmetric_key_password"])
    payload = bytes.fromhex(vector["payload"])
    plaintext = opened_by_hand(data, key)
    padding = plaintext[plaintext.index(payload) + len(payload) :]

    assert seal_symmetric(payload, key, nonce=data[-12:], padding=padding) == data


@pytest.mark.parametrize("vector", [RECORDED[0], RECORDED[-1]], ids=["first", "last"])
def test_every_truncation_of_a_recorded_payload_is_refused(vector: dict[str, Any]) -> None:
    data = recorded_data(vector)
    key = key_of(vector["symmetric_key_password"])

    for end in range(len(data)):
        with pytest.raises(DecodeError):
            open_symmetric(data[:end], key)
        with pytest.raises(DecodeError):
            open_symmetric(data[end + 1 :], key)


def test_recorded_request_envelope_opens_with_the_password() -> None:
    (payload,) = [
        bytes.fromhex(packet["payload"])
        for packet in PACKETS["packets"]
        if (packet["group"], packet["code"]) == ("env", PacketCode.P2P_REQUEST)
    ]

    opened = open_symmetric(decode_envelope(payload).data, key_of(PACKETS["mailserver_password"]))

    assert len(rlp.decode(opened.payload)) == 7
    assert opened.signer is not None


@pytest.mark.parametrize("name", ["req-env", "req-bloom", "req-real"])
def test_recorded_request_opens_with_the_password_and_is_signed_by_its_sender(name: str) -> None:
    recorded = session(name)

    opened = open_symmetric(recorded_request(recorded), key_of(PACKETS["mailserver_password"]))

    assert len(rlp.decode(opened.payload)) == 7
    assert opened.signer == bytes.fromhex(recorded["secrets"]["initiator_public_key"])


def test_recorded_request_opens_with_the_private_key_and_is_signed_by_its_sender() -> None:
    recorded = session("req-asym")
    key = PrivateKey(bytes.fromhex(recorded["recipient_private_key"]))

    opened = open_asymmetric(recorded_request(recorded), key)

    assert len(rlp.decode(opened.payload)) == 7
    assert opened.signer == bytes.fromhex(recorded["secrets"]["initiator_public_key"])


def test_every_truncation_of_a_recorded_asymmetric_request_is_refused() -> None:
    recorded = session("req-asym")
    data = recorded_request(recorded)
    key = PrivateKey(bytes.fromhex(recorded["recipient_private_key"]))

    for end in range(len(data)):
        with pytest.raises(DecodeError):
            open_asymmetric(data[:end], key)


# Sealing and opening

payloads = st.integers(0, 600).map(lambda length: bytes(number % 251 for number in range(length)))


@given(payloads, signing_keys)
@example(b"", None)
@example(b"", ALICE)
@example(bytes(254), None)
@example(bytes(189), ALICE)
@example(bytes(65_535), None)
@example(bytes(65_536), ALICE)
@settings(max_examples=40)
def test_symmetric_payload_opens_as_it_was_sealed(payload: bytes, signing_key: PrivateKey | None) -> None:
    data = seal_symmetric(payload, KEY, nonce=NONCE, padding=PADDING, signing_key=signing_key)

    assert data.endswith(NONCE)
    assert open_symmetric(data, KEY) == OpenedPayload(payload, signer_of(signing_key), padding_of(payload, signing_key))


@given(payloads, signing_keys)
@settings(max_examples=20)
def test_asymmetric_payload_opens_as_it_was_sealed(payload: bytes, signing_key: PrivateKey | None) -> None:
    data = seal_asymmetric(
        payload, BOB.public_key, ephemeral_key=EPHEMERAL, iv=IV, padding=PADDING, signing_key=signing_key
    )

    assert (len(data) - OVERHEAD_BYTES) % 256 == 0
    assert open_asymmetric(data, BOB) == OpenedPayload(
        payload, signer_of(signing_key), padding_of(payload, signing_key)
    )


@given(payloads, signing_keys)
@example(bytes(254), None)
@example(bytes(255), None)
@example(bytes(256), None)
@example(bytes(65_536), None)
@settings(max_examples=40)
def test_plaintext_has_the_form_of_the_specification(payload: bytes, signing_key: PrivateKey | None) -> None:
    plaintext = opened_by_hand(seal_symmetric(payload, KEY, nonce=NONCE, padding=PADDING, signing_key=signing_key))

    size_bytes = 1 if len(payload) < 2**8 else 2 if len(payload) < 2**16 else 3
    head = bytes([size_bytes | (4 if signing_key else 0)]) + len(payload).to_bytes(size_bytes, "little") + payload
    content = plaintext[:-65] if signing_key else plaintext
    signature = plaintext[len(content) :]
    # Rounded up to a multiple of 256 with the padding given, signature counted.
    assert len(plaintext) == -(-(len(head) + len(signature)) // 256) * 256
    assert content == head + PADDING[: len(content) - len(head)]
    assert signature == (ALICE.sign(keccak256(content)) if signing_key else b"")


def test_payload_that_fills_its_block_needs_no_padding() -> None:
    data = seal_symmetric(bytes(254), KEY, nonce=NONCE, padding=b"")

    assert len(opened_by_hand(data)) == 256


@pytest.mark.parametrize(("payload_bytes", "needed"), [(0, 254), (253, 1), (255, 255)])
def test_too_little_padding_is_a_mistake_of_the_caller(payload_bytes: int, needed: int) -> None:
    sealed = seal_symmetric(bytes(payload_bytes), KEY, nonce=NONCE, padding=bytes(needed))

    assert len(opened_by_hand(sealed)) % 256 == 0
    with pytest.raises(ValueError, match=f"{needed} bytes of padding needed, {needed - 1} given"):
        seal_symmetric(bytes(payload_bytes), KEY, nonce=NONCE, padding=bytes(needed - 1))


exact_paddings = pytest.mark.parametrize(
    "padding",
    [
        pytest.param(b"", id="none"),
        pytest.param(b"\x00", id="1 byte"),
        pytest.param(PADDING[:100], id="less than a block"),
        pytest.param(b"padding " * 1000, id="many blocks"),
    ],
)


@exact_paddings
@pytest.mark.parametrize("signing_key", [None, ALICE], ids=["unsigned", "signed"])
def test_exact_padding_is_used_as_it_is(padding: bytes, signing_key: PrivateKey | None) -> None:
    content = bytes([5 if signing_key else 1, 3]) + b"abc" + padding
    signature = ALICE.sign(keccak256(content)) if signing_key else b""

    symmetric = seal_symmetric(b"abc", KEY, nonce=NONCE, padding=padding, exact_padding=True, signing_key=signing_key)
    asymmetric = seal_asymmetric(
        b"abc",
        BOB.public_key,
        ephemeral_key=EPHEMERAL,
        iv=IV,
        padding=padding,
        exact_padding=True,
        signing_key=signing_key,
    )

    assert opened_by_hand(symmetric) == open_sealed(BOB, asymmetric) == content + signature
    assert open_symmetric(symmetric, KEY) == OpenedPayload(b"abc", signer_of(signing_key), padding)
    assert open_asymmetric(asymmetric, BOB) == OpenedPayload(b"abc", signer_of(signing_key), padding)


@pytest.mark.parametrize(
    ("length", "field"),
    [
        (0, "00"),
        (1, "01"),
        (255, "ff"),
        (256, "0001"),
        (0x1234, "3412"),
        (65_535, "ffff"),
        (65_536, "000001"),
        (2**24 - 1, "ffffff"),
    ],
)
def test_payload_length_is_little_endian_in_as_few_bytes_as_hold_it(length: int, field: str) -> None:
    assert payload_size(length).hex() == field


def test_asymmetric_sealing_needs_a_point_of_the_curve() -> None:
    with pytest.raises(DecodeError):
        seal_asymmetric(b"payload", bytes(64), ephemeral_key=EPHEMERAL, iv=IV, padding=PADDING)


# What does not open


def test_symmetric_payload_does_not_open_with_another_key() -> None:
    data = seal_symmetric(b"payload", KEY, nonce=NONCE, padding=PADDING)

    with pytest.raises(DecodeError):
        open_symmetric(data, sha256(b"another key").digest())


def test_asymmetric_payload_does_not_open_with_another_key() -> None:
    data = seal_asymmetric(b"payload", BOB.public_key, ephemeral_key=EPHEMERAL, iv=IV, padding=PADDING)

    with pytest.raises(DecodeError):
        open_asymmetric(data, ALICE)


def test_symmetric_payload_with_any_byte_changed_does_not_open() -> None:
    data = seal_symmetric(b"payload", KEY, nonce=NONCE, padding=PADDING)

    for at in range(len(data)):
        with pytest.raises(DecodeError):
            open_symmetric(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], KEY)


def test_asymmetric_payload_with_any_byte_changed_does_not_open() -> None:
    data = seal_asymmetric(b"payload", BOB.public_key, ephemeral_key=EPHEMERAL, iv=IV, padding=PADDING)

    for at in range(len(data)):
        with pytest.raises(DecodeError):
            open_asymmetric(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], BOB)


@given(st.binary(max_size=400))
@example(bytes(11))
@example(bytes(12))
@example(bytes(27))
@example(bytes(28))
@example(b"\x04" + bytes(OVERHEAD_BYTES - 1))
@settings(max_examples=50)
def test_random_data_does_not_open(data: bytes) -> None:
    with pytest.raises(DecodeError):
        open_symmetric(data, KEY)
    with pytest.raises(DecodeError):
        open_asymmetric(data, BOB)


# What is inside: plaintexts made by hand


@pytest.mark.parametrize(
    ("plaintext", "payload", "padding"),
    [
        pytest.param(b"\x01\x03abc", b"abc", b"", id="no padding"),
        pytest.param(b"\x01\x03abcdef", b"abc", b"def", id="padding"),
        pytest.param(b"\x02\x03\x00abc", b"abc", b"", id="length of 2 bytes, not the shortest"),
        pytest.param(b"\x03\x03\x00\x00abc", b"abc", b"", id="length of 3 bytes, not the shortest"),
        pytest.param(b"\x01\x00abc", b"", b"abc", id="length 0"),
        pytest.param(b"\x00abc", b"", b"abc", id="no length field"),
        pytest.param(b"\x00", b"", b"", id="flags alone"),
        pytest.param(b"\xf9\x03abc", b"abc", b"", id="unknown flags"),
    ],
)
def test_payload_is_as_long_as_its_length_field_says(plaintext: bytes, payload: bytes, padding: bytes) -> None:
    assert open_symmetric(sealed_by_hand(plaintext), KEY) == OpenedPayload(payload, None, padding)


@pytest.mark.parametrize("v_offset", [0, 27], ids=["deployed", "specified"])
def test_signature_is_read_with_v_from_zero_and_from_27(v_offset: int) -> None:
    data = sealed_by_hand(signed(b"\x05\x03abcdef", v_offset))

    assert open_symmetric(data, KEY) == OpenedPayload(b"abc", ALICE.public_key, b"def")


def test_signed_plaintext_may_be_flags_and_signature_alone() -> None:
    assert open_symmetric(sealed_by_hand(signed(b"\x04")), KEY) == OpenedPayload(b"", ALICE.public_key, b"")


def test_signature_over_another_payload_names_another_signer() -> None:
    signature = signed(b"\x05\x03abc")[-65:]

    opened = open_symmetric(sealed_by_hand(b"\x05\x03abd" + signature), KEY)

    assert opened.signer != ALICE.public_key


@pytest.mark.parametrize(
    "plaintext",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x01", id="no room for the length field"),
        pytest.param(b"\x02\x00", id="no room for the second byte of the length"),
        pytest.param(b"\x03\x00\x00", id="no room for the third byte of the length"),
        pytest.param(b"\x01\x04abc", id="length beyond the data"),
        pytest.param(b"\x03\xff\xff\xffabc", id="length far beyond the data"),
        pytest.param(b"\x04", id="signed, no signature"),
        pytest.param(b"\x04" + bytes(64), id="signature takes the flags"),
        pytest.param(b"\x05\x00" + bytes(65), id="signature of zeros"),
        pytest.param(b"\x05\x00" + b"\xff" * 65, id="signature beyond the group order"),
        pytest.param(signed(b"\x05\x00", 4), id="V of 4 or 5"),
        pytest.param(signed(b"\x05\x00", 25), id="V of 25 or 26"),
        pytest.param(signed(b"\x05\x04abc"), id="length reaches into the signature"),
        pytest.param(signed(b"\x05"), id="length field reaches into the signature"),
    ],
)
def test_plaintext_of_another_form_is_refused(plaintext: bytes) -> None:
    with pytest.raises(DecodeError):
        open_symmetric(sealed_by_hand(plaintext), KEY)
    with pytest.raises(DecodeError):
        open_asymmetric(seal(BOB.public_key, plaintext, ephemeral_key=EPHEMERAL, iv=IV), BOB)


@given(st.binary(max_size=100))
@settings(max_examples=60)
def test_any_plaintext_opens_to_a_part_of_itself_or_is_refused(plaintext: bytes) -> None:
    try:
        opened = open_symmetric(sealed_by_hand(plaintext), KEY)
    except DecodeError:
        return

    size_bytes = plaintext[0] & 3
    length = int.from_bytes(plaintext[1 : 1 + size_bytes], "little")
    assert opened.payload == plaintext[1 + size_bytes :][:length]
    assert len(opened.payload) == length
    assert plaintext[1 + size_bytes + length :].startswith(opened.padding)


def test_asymmetric_payload_is_plain_ecies_without_authenticated_data() -> None:
    data = seal_asymmetric(b"abc", BOB.public_key, ephemeral_key=EPHEMERAL, iv=IV, padding=PADDING)

    assert open_sealed(BOB, data) == b"\x01\x03abc" + PADDING[:251]
    assert data == seal(BOB.public_key, b"\x01\x03abc" + PADDING[:251], ephemeral_key=EPHEMERAL, iv=IV)
