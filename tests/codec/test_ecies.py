import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mailserver.codec import ecies, rlp
from mailserver.codec.keys import PrivateKey
from mailserver.errors import DecodeError
from tests.data import load
from tests.pairs import private_key
from tests.properties import settings

RECIPIENT = private_key("recipient")
EPHEMERAL = private_key("ephemeral")
IV = bytes(range(16))
PLAINTEXT = b"a text that is longer than one block"
SEALED = ecies.seal(RECIPIENT.public_key, PLAINTEXT, ephemeral_key=EPHEMERAL, iv=IV, authdata=b"size")


def test_published_auth_packet_opens() -> None:
    vector = load("eip8.json")
    auth = bytes.fromhex(vector["auth"])

    plaintext = ecies.open_sealed(
        PrivateKey(bytes.fromhex(vector["recipient_private_key"])), auth[2:], authdata=auth[:2]
    )

    initiator = PrivateKey(bytes.fromhex(vector["initiator_private_key"]))
    fields = rlp.as_list(rlp.decode_first(plaintext))
    assert fields[1:] == [initiator.public_key, bytes.fromhex(vector["initiator_nonce"]), b"\x04"]


def test_published_packet_before_eip_8_opens_without_authdata() -> None:
    vector = load("eip8_formats.json")
    packets = {auth["name"]: bytes.fromhex(auth["packet"]) for auth in vector["auth"]}

    plaintext = ecies.open_sealed(PrivateKey(bytes.fromhex(vector["recipient_private_key"])), packets["Auth1"])

    # signature(65) || hash(32) || public key(64) || nonce(32) || flag(1)
    assert plaintext[161:193].hex() == vector["initiator_nonce"]
    assert plaintext[193:] == b"\x00"


def test_sealed_message_is_ephemeral_key_then_iv_then_ciphertext_then_tag() -> None:
    assert SEALED[:1] == b"\x04"
    assert SEALED[1:65] == EPHEMERAL.public_key
    assert SEALED[65:81] == IV
    assert len(SEALED) == len(PLAINTEXT) + ecies.OVERHEAD_BYTES == len(PLAINTEXT) + 113
    assert PLAINTEXT not in SEALED


@settings(max_examples=30)
@given(st.binary(max_size=200), st.binary(max_size=20))
@example(b"", b"")
def test_open_gives_back_what_was_sealed(plaintext: bytes, authdata: bytes) -> None:
    sealed = ecies.seal(RECIPIENT.public_key, plaintext, ephemeral_key=EPHEMERAL, iv=IV, authdata=authdata)

    assert ecies.open_sealed(RECIPIENT, sealed, authdata=authdata) == plaintext


def test_authdata_is_empty_by_default_on_both_sides() -> None:
    sealed = ecies.seal(RECIPIENT.public_key, PLAINTEXT, ephemeral_key=EPHEMERAL, iv=IV)

    assert ecies.open_sealed(RECIPIENT, sealed) == PLAINTEXT
    assert ecies.open_sealed(RECIPIENT, sealed, authdata=b"") == PLAINTEXT


def test_other_authdata_is_refused() -> None:
    with pytest.raises(DecodeError, match="tag differs"):
        ecies.open_sealed(RECIPIENT, SEALED, authdata=b"sise")


def test_other_private_key_is_refused() -> None:
    with pytest.raises(DecodeError, match="tag differs"):
        ecies.open_sealed(EPHEMERAL, SEALED, authdata=b"size")


@pytest.mark.parametrize("at", range(len(SEALED)))
def test_flipped_bit_anywhere_is_refused(at: int) -> None:
    flipped = SEALED[:at] + bytes([SEALED[at] ^ 0x10]) + SEALED[at + 1 :]

    with pytest.raises(DecodeError):
        ecies.open_sealed(RECIPIENT, flipped, authdata=b"size")


@pytest.mark.parametrize("prefix", [0x00, 0x02, 0x03, 0x05, 0x06])
def test_compressed_and_other_forms_of_the_ephemeral_key_are_refused(prefix: int) -> None:
    with pytest.raises(DecodeError, match="another form"):
        ecies.open_sealed(RECIPIENT, bytes([prefix]) + SEALED[1:], authdata=b"size")


def test_ephemeral_key_off_the_curve_is_refused() -> None:
    off_curve = b"\x04" + bytes(64) + SEALED[65:]

    with pytest.raises(DecodeError, match="not on the curve"):
        ecies.open_sealed(RECIPIENT, off_curve, authdata=b"size")


@pytest.mark.parametrize("length", range(len(SEALED)))
def test_every_truncation_is_refused(length: int) -> None:
    with pytest.raises(DecodeError) as caught:
        ecies.open_sealed(RECIPIENT, SEALED[:length], authdata=b"size")

    assert ("too short" in str(caught.value)) is (length < 113)


@settings(max_examples=50)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused_with_and_without_a_valid_start(data: bytes) -> None:
    for candidate in (data, SEALED[:65] + data):
        with pytest.raises(DecodeError):
            ecies.open_sealed(RECIPIENT, candidate)


def test_sealing_to_no_point_of_the_curve_is_refused() -> None:
    with pytest.raises(DecodeError, match="not on the curve"):
        ecies.seal(bytes(64), PLAINTEXT, ephemeral_key=EPHEMERAL, iv=IV)
