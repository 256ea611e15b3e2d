"""mailserver.waku.topics against published topics, pycryptodome's Keccak and the ECDH of `cryptography`."""

import pytest
from Crypto.Hash import keccak
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from mailserver.codec.keys import NodeId, PrivateKey
from mailserver.errors import DecodeError
from mailserver.waku.topics import (
    contact_code_topic,
    negotiated_topic,
    parse_topic,
    partitioned_topic,
    topic_of,
)
from tests.properties import settings

GROUP_ORDER = 0xFFFFFFFF_FFFFFFFF_FFFFFFFF_FFFFFFFE_BAAEDCE6_AF48A03B_BFD25E8C_D0364141

secrets = st.integers(1, GROUP_ORDER - 1)


def private_key(secret: int) -> PrivateKey:
    return PrivateKey(secret.to_bytes(32, "big"))


def expected_topic(name: str) -> bytes:
    return keccak.new(digest_bits=256, data=name.encode()).digest()[:4]


def point(secret: int) -> ec.EllipticCurvePublicNumbers:
    return ec.derive_private_key(secret, ec.SECP256K1()).public_key().public_numbers()


# The values below were computed by pycryptodome and `cryptography`, from the formulas of 10/WAKU-USAGE.


@pytest.mark.parametrize(
    ("name", "topic"),
    [
        # Status' client specification, "Topics", gives this one: the static topic of private chats.
        ("contact-discovery", "f8946aac"),
        ("status", "cd423760"),
        ("w\N{LATIN SMALL LETTER A WITH DIAERESIS}ku", "cd9a9647"),
        ("", "c5d24601"),
    ],
)
def test_topic_of_a_name_is_the_start_of_its_keccak(name: str, topic: str) -> None:
    assert topic_of(name).hex() == topic


@given(st.text("azAZ09-_ \xe9\u20ac", max_size=40))
@settings(max_examples=20)
def test_topic_of_any_name_is_the_start_of_its_keccak(name: str) -> None:
    assert topic_of(name) == expected_topic(name)


@pytest.mark.parametrize(
    ("secret", "partition", "topic"),
    [(1, 4240, "a2083df7"), (2, 1597, "c78e811e"), (3, 3121, "6c78d169")],
)
def test_partitioned_topic_is_named_for_x_modulo_5000(secret: int, partition: int, topic: str) -> None:
    public_key = private_key(secret).public_key

    assert partitioned_topic(public_key).hex() == topic
    assert partitioned_topic(public_key) == expected_topic(f"contact-discovery-{partition}")


@given(secrets)
@settings(max_examples=20)
def test_partitioned_topic_of_any_key_depends_on_its_x_alone(secret: int) -> None:
    topic = partitioned_topic(private_key(secret).public_key)
    topic_of_opposite = partitioned_topic(private_key(GROUP_ORDER - secret).public_key)

    assert topic == expected_topic(f"contact-discovery-{point(secret).x % 5000}")
    assert topic_of_opposite == topic


@pytest.mark.parametrize(("secret", "topic"), [(1, "2ebf3423"), (2, "16a05356"), (3, "f04453fc")])
def test_contact_code_topic_is_named_for_the_whole_public_key(secret: int, topic: str) -> None:
    public_key = private_key(secret).public_key

    assert contact_code_topic(public_key).hex() == topic
    assert contact_code_topic(public_key) == expected_topic(
        f"0x04{point(secret).x:064x}{point(secret).y:064x}-contact-code"
    )


def test_negotiated_topic_is_named_for_the_shared_key() -> None:
    shared = "fff97bd5755eeea420453a14355235d382f6472f8568a18b2f057a1460297556"

    topic = negotiated_topic(private_key(2), private_key(3).public_key)

    assert topic.hex() == "63636b00"
    assert topic == expected_topic(shared)


def test_negotiated_topic_keeps_leading_zeros_of_the_shared_key() -> None:
    shared = "00136933174bc388a74ebd6746e13afe0eef5d66580c8e23d33464c342dc0080"

    topic = negotiated_topic(private_key(2), private_key(123).public_key)

    assert topic.hex() == "688f348d"
    assert topic == expected_topic(shared)


@given(secrets, secrets)
@settings(max_examples=20)
def test_both_parties_negotiate_the_same_topic(alice: int, bob: int) -> None:
    bob_public = ec.derive_private_key(bob, ec.SECP256K1()).public_key()
    shared = ec.derive_private_key(alice, ec.SECP256K1()).exchange(ec.ECDH(), bob_public)

    assert negotiated_topic(private_key(alice), private_key(bob).public_key) == expected_topic(shared.hex())
    assert negotiated_topic(private_key(bob), private_key(alice).public_key) == expected_topic(shared.hex())


def test_no_topic_is_negotiated_with_what_is_no_key() -> None:
    with pytest.raises(DecodeError):
        negotiated_topic(private_key(2), NodeId(bytes(64)))


@pytest.mark.parametrize("text", ["0x9acb0442", "0x9ACB0442"])
def test_topic_is_read_from_hex(text: str) -> None:
    assert parse_topic(text) == bytes.fromhex("9acb0442")


@pytest.mark.parametrize("text", ["status", "9acb0442", "", "x9acb0442"])
def test_text_without_0x_is_a_name(text: str) -> None:
    assert parse_topic(text) == expected_topic(text)


@pytest.mark.parametrize(
    "text", ["0x", "0x9acb04", "0x9acb044", "0x9acb044200", "0x9acb044g", "0xstatus", "0x 9acb0442z"]
)
def test_text_with_0x_that_is_not_4_bytes_is_refused(text: str) -> None:
    with pytest.raises(DecodeError) as refused:
        parse_topic(text)

    assert refused.value.got == text
