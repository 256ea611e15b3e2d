import time
from hashlib import sha256

import coincurve
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_private_key,
)
from hypothesis import given
from hypothesis import strategies as st

from mailserver.codec import protobuf
from mailserver.errors import DecodeError
from mailserver.libp2p.identity import (
    MAX_PUBLIC_KEY_BYTES,
    MAX_RSA_BITS,
    MAX_RSA_EXPONENT,
    IdentityKey,
    KeyType,
    PublicKey,
)
from tests.data import load
from tests.libp2p.names import identity
from tests.properties import settings

KEYS = load("peer_ids.json")["keys"]
KINDS = sorted(KEYS)

# By go-libp2p and js-libp2p; the identity ones carry the key, the others are its SHA-256.
PEER_IDS = {
    "ecdsa": "QmVMT29id3TUASyfZZ6k9hmNyc2nYabCo4uMSpDw4zrgDk",
    "ed25519": "12D3KooWBtg3aaRMjxwedh83aGiUkwSxDwUZkzuJcfaqUmo7R3pq",
    "rsa": "QmaeANgBs1DTSxWSrPPtobgQuxW8XTfsS4ydbK4rCHzqxG",
    "secp256k1": "16Uiu2HAmLhLvBoYaoZfaMUKuibM6ac163GwKY74c5kiSLg5KvLpY",
}

MESSAGE = b"what is signed"


def public(kind: str) -> bytes:
    return bytes.fromhex(KEYS[kind]["public"])


def private_data(kind: str) -> bytes:
    fields = protobuf.read_fields(bytes.fromhex(KEYS[kind]["private"]))
    data = {field.number: field.value for field in fields}[2]
    assert isinstance(data, bytes)
    return data


def signature(kind: str, message: bytes) -> bytes:
    """Signed with the private key of the specification, as it says for each kind."""
    data = private_data(kind)
    if kind == "ed25519":
        return Ed25519PrivateKey.from_private_bytes(data[:32]).sign(message)
    if kind == "secp256k1":
        return coincurve.PrivateKey(data).sign(message)
    key = load_der_private_key(data, None)
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(message, ec.ECDSA(hashes.SHA256()))
    assert isinstance(key, rsa.RSAPrivateKey)
    return key.sign(message, padding.PKCS1v15(), hashes.SHA256())


def der(key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.parametrize("kind", KINDS)
def test_published_key_is_read_and_written(kind: str) -> None:
    key = PublicKey.decode(public(kind))

    assert key.encode() == public(kind)
    assert key.key_type is KeyType[kind.upper()]
    assert str(key.peer_id) == PEER_IDS[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_signature_of_the_published_private_key_is_verified(kind: str) -> None:
    key = PublicKey.decode(public(kind))
    signed = signature(kind, MESSAGE)

    assert key.has_signed(MESSAGE, signed)
    assert not key.has_signed(MESSAGE + b"!", signed)
    assert not key.has_signed(MESSAGE, signed[:-1])
    assert not key.has_signed(MESSAGE, signed + b"\0")
    assert not key.has_signed(MESSAGE, b"")
    assert not key.has_signed(MESSAGE, bytes(64))
    assert not key.has_signed(MESSAGE, bytes(10_000))


@pytest.mark.parametrize("kind", KINDS)
def test_truncated_key_is_refused(kind: str) -> None:
    whole = public(kind)

    for length in range(len(whole)):
        with pytest.raises(DecodeError):
            PublicKey.decode(whole[:length])


def test_our_key_is_the_published_one_of_its_seed() -> None:
    ours = IdentityKey(private_data("ed25519")[:32])

    assert ours.public_key.encode() == public("ed25519")
    assert str(ours.peer_id) == PEER_IDS["ed25519"]
    assert ours.sign(MESSAGE) == signature("ed25519", MESSAGE)


def test_seed_of_another_length_is_refused() -> None:
    with pytest.raises(DecodeError, match="seed"):
        IdentityKey(bytes(31))


def field(number: int, value: int | bytes) -> bytes:
    return protobuf.write_number(number, value) if isinstance(value, int) else protobuf.write_bytes(number, value)


ED25519_DATA = sha256(b"any 32 bytes").digest()


@pytest.mark.parametrize(
    "encoded",
    [
        pytest.param(field(2, ED25519_DATA), id="no kind"),
        pytest.param(field(1, 1), id="no data"),
        pytest.param(field(1, 1) + field(2, 7), id="data is a number"),
        pytest.param(field(1, b"\1") + field(2, ED25519_DATA), id="kind is bytes"),
        pytest.param(field(1, 4) + field(2, ED25519_DATA), id="unknown kind"),
        pytest.param(field(2, ED25519_DATA) + field(1, 1), id="out of order"),
        pytest.param(field(1, 1) + field(2, ED25519_DATA) + field(3, 0), id="another field"),
        pytest.param(b"\x08\x81\x00" + field(2, ED25519_DATA), id="padded number"),
        pytest.param(field(1, 1) + field(1, 1) + field(2, ED25519_DATA), id="field twice"),
        pytest.param(field(1, 1) + field(2, ED25519_DATA[:-1]), id="key too short"),
        pytest.param(field(1, 2) + field(2, b"\x02" + bytes(32)), id="point not on the curve"),
        pytest.param(field(1, 3) + field(2, public("rsa")[5:]), id="RSA as ECDSA"),
        pytest.param(field(1, 0) + field(2, public("ecdsa")[4:]), id="ECDSA as RSA"),
    ],
)
def test_key_in_another_encoding_than_its_only_one_is_refused(encoded: bytes) -> None:
    with pytest.raises(DecodeError):
        PublicKey.decode(encoded)


def test_key_that_is_too_long_is_not_read() -> None:
    with pytest.raises(DecodeError, match=f"public key is too long, got {MAX_PUBLIC_KEY_BYTES + 1}"):
        PublicKey.decode(bytes(MAX_PUBLIC_KEY_BYTES + 1))


def test_point_that_is_not_compressed_is_refused() -> None:
    point = coincurve.PublicKey(public("secp256k1")[4:]).format(compressed=False)

    with pytest.raises(DecodeError, match="not compressed"):
        PublicKey(KeyType.SECP256K1, point)


def test_der_with_something_behind_it_is_refused() -> None:
    with pytest.raises(DecodeError):
        PublicKey(KeyType.ECDSA, public("ecdsa")[4:] + b"\0")


def test_compressed_point_in_der_is_refused() -> None:
    prefix = bytes.fromhex("3039301306072a8648ce3d020106082a8648ce3d030107032200")
    key = ec.derive_private_key(7, ec.SECP256R1()).public_key()
    compressed = prefix + key.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)

    with pytest.raises(DecodeError, match="not a key of ECDSA that is taken"):
        PublicKey(KeyType.ECDSA, compressed)


def test_point_of_another_form_in_der_is_refused() -> None:
    key = bytearray(public("ecdsa")[4:])
    key[26] = 6 | key[-1] & 1  # a hybrid point: as long, and with both coordinates

    with pytest.raises(DecodeError):
        PublicKey(KeyType.ECDSA, bytes(key))


@pytest.mark.parametrize("curve", [ec.SECP384R1(), ec.SECP521R1()])
def test_ecdsa_of_the_larger_curves_is_taken(curve: ec.EllipticCurve) -> None:
    key = ec.derive_private_key(7, curve)

    assert PublicKey(KeyType.ECDSA, der(key.public_key())).has_signed(
        MESSAGE, key.sign(MESSAGE, ec.ECDSA(hashes.SHA256()))
    )


def test_ecdsa_of_another_curve_is_refused() -> None:
    with pytest.raises(DecodeError, match="not a key of ECDSA that is taken"):
        PublicKey(KeyType.ECDSA, der(ec.derive_private_key(7, ec.SECP256K1()).public_key()))


@pytest.mark.parametrize("bits", [1024, 2047, MAX_RSA_BITS + 1])
def test_rsa_key_of_another_length_is_refused(bits: int) -> None:
    key = rsa.RSAPublicNumbers(65537, (1 << bits) - 1).public_key()

    with pytest.raises(DecodeError):
        PublicKey(KeyType.RSA, der(key))


@pytest.mark.parametrize("bits", [2048, MAX_RSA_BITS])
def test_rsa_key_of_the_shortest_and_the_longest_length_is_taken(bits: int) -> None:
    key = rsa.RSAPublicNumbers(65537, (1 << bits) - 1).public_key()

    encoded = PublicKey(KeyType.RSA, der(key)).encode()

    assert len(encoded) <= MAX_PUBLIC_KEY_BYTES
    assert PublicKey.decode(encoded).encode() == encoded


def test_rsa_exponent_is_bounded() -> None:
    modulus = (1 << 2048) - 1

    longest = PublicKey(KeyType.RSA, der(rsa.RSAPublicNumbers(MAX_RSA_EXPONENT, modulus).public_key()))

    assert not longest.has_signed(MESSAGE, bytes(256))
    with pytest.raises(DecodeError, match="exponent"):
        PublicKey(KeyType.RSA, der(rsa.RSAPublicNumbers(MAX_RSA_EXPONENT + 2, modulus).public_key()))


def tlv(tag: int, body: bytes) -> bytes:
    """A value of DER."""
    size = len(body).to_bytes(2)
    return bytes([tag]) + (size[1:] if len(body) < 0x80 else b"\x82" + size) + body


def integer(value: int) -> bytes:
    return tlv(2, value.to_bytes(value.bit_length() // 8 + 1))


def diffie_hellman(algorithm: str, *parameters: int) -> bytes:
    """A key of Diffie-Hellman in DER: its public number is 3."""
    kind = tlv(6, bytes.fromhex(algorithm)) + tlv(0x30, b"".join(map(integer, parameters)))
    return tlv(0x30, tlv(0x30, kind) + tlv(3, b"\0" + integer(3)))


PRIME = 2**4423 - 1
"""A test whether this is a prime takes two seconds and more."""

DIFFIE_HELLMAN = {
    "PKCS 3": diffie_hellman("2a864886f70d010301", PRIME, 2),
    "X9.42": diffie_hellman("2a8648ce3e0201", PRIME, 2, 2**521 - 1),
}

UNTESTED_WITHIN_S = 0.2
"""Refusing a key takes some microseconds of the processor."""


@pytest.mark.parametrize("key_type", [KeyType.RSA, KeyType.ECDSA])
@pytest.mark.parametrize("form", DIFFIE_HELLMAN)
def test_key_of_diffie_hellman_is_refused_before_its_primes_are_tested(key_type: KeyType, form: str) -> None:
    encoded = field(1, key_type) + field(2, DIFFIE_HELLMAN[form])
    assert len(encoded) <= MAX_PUBLIC_KEY_BYTES

    began = time.thread_time()
    with pytest.raises(DecodeError, match=f"not a key of {key_type.name} that is taken"):
        PublicKey.decode(encoded)

    assert time.thread_time() - began < UNTESTED_WITHIN_S


@given(st.sampled_from(KeyType), st.binary(max_size=100))
@settings()
def test_random_bytes_are_a_key_or_refused(key_type: KeyType, data: bytes) -> None:
    encoded = field(1, key_type) + field(2, data)
    try:
        key = PublicKey.decode(encoded)
    except DecodeError:
        return
    assert key.encode() == encoded
    assert not key.has_signed(MESSAGE, data)


def test_keys_of_two_names_are_two() -> None:
    assert identity("one").peer_id != identity("two").peer_id
