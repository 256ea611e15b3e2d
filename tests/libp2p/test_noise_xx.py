from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from mailserver.errors import LocalProtocolError
from mailserver.libp2p.faults import Cause, Libp2pFault
from mailserver.libp2p.noise_xx import KEY_BYTES, LAST_NONCE, CipherState, HandshakeState
from tests.data import load
from tests.pairs import digest
from tests.properties import settings

VECTORS = load("noise_xx.json")["vectors"]

LOW_ORDER_POINTS = [
    bytes(32),
    (1).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    ((1 << 255) - 20).to_bytes(32, "little"),
    ((1 << 255) - 19).to_bytes(32, "little"),
    ((1 << 255) - 18).to_bytes(32, "little"),
]
"""All points of low order, by RFC 7748's security considerations and the list on cr.yp.to/ecdh.html."""


def key(name: str) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(digest(name))


def sides() -> tuple[HandshakeState, HandshakeState]:
    initiator = HandshakeState(key("i, static"), key("i, ephemeral"), is_initiator=True)
    return initiator, HandshakeState(key("r, static"), key("r, ephemeral"), is_initiator=False)


def shaken() -> tuple[HandshakeState, HandshakeState]:
    initiator, responder = sides()
    responder.read_message(initiator.write_message(b""))
    initiator.read_message(responder.write_message(b"two"))
    responder.read_message(initiator.write_message(b"three"))
    return initiator, responder


def published(vector: dict[str, Any]) -> tuple[HandshakeState, HandshakeState]:
    keys = {
        name: X25519PrivateKey.from_private_bytes(bytes.fromhex(vector[name]))
        for name in ("init_static", "init_ephemeral", "resp_static", "resp_ephemeral")
    }
    return (
        HandshakeState(keys["init_static"], keys["init_ephemeral"], is_initiator=True),
        HandshakeState(keys["resp_static"], keys["resp_ephemeral"], is_initiator=False),
    )


@pytest.mark.parametrize("vector", VECTORS, ids=["without payloads", "with payloads"])
def test_both_sides_write_and_read_the_published_messages(vector: dict[str, Any]) -> None:
    initiator, responder = published(vector)
    messages = [(bytes.fromhex(each["payload"]), bytes.fromhex(each["ciphertext"])) for each in vector["messages"]]

    writer, reader = initiator, responder
    for payload, ciphertext in messages[:3]:
        assert writer.is_our_turn
        assert writer.write_message(payload) == ciphertext
        assert reader.read_message(ciphertext) == payload
        writer, reader = reader, writer

    assert initiator.is_finished
    assert responder.is_finished
    (initiators, from_responder), (responders, from_initiator) = initiator.split(), responder.split()
    (payload, ciphertext), (answer, sealed_answer) = messages[3:]
    assert initiators.seal(payload) == ciphertext
    assert from_initiator.open(ciphertext) == payload
    assert responders.seal(answer) == sealed_answer
    assert from_responder.open(sealed_answer) == answer


def test_each_side_learns_the_static_key_of_the_other() -> None:
    initiator, responder = shaken()

    assert initiator.remote_static == key("r, static").public_key().public_bytes_raw()
    assert responder.remote_static == key("i, static").public_key().public_bytes_raw()


def test_static_key_is_unknown_before_it_has_come() -> None:
    initiator, responder = sides()
    responder.read_message(initiator.write_message(b""))

    assert responder.remote_static is None


def test_message_out_of_turn_is_a_bug_of_ours() -> None:
    initiator, responder = sides()

    with pytest.raises(LocalProtocolError):
        responder.write_message(b"")
    with pytest.raises(LocalProtocolError):
        initiator.read_message(b"")
    with pytest.raises(LocalProtocolError):
        initiator.split()


def test_nothing_is_written_or_read_after_the_last_message() -> None:
    initiator, responder = shaken()

    assert not initiator.is_our_turn
    assert not responder.is_our_turn
    with pytest.raises(LocalProtocolError):
        responder.write_message(b"")
    with pytest.raises(LocalProtocolError):
        initiator.read_message(b"")


def messages() -> list[bytes]:
    initiator, responder = sides()
    first = initiator.write_message(b"")
    responder.read_message(first)
    second = responder.write_message(b"two")
    initiator.read_message(second)
    return [first, second, initiator.write_message(b"three")]


def read(message_number: int, message: bytes) -> bytes:
    """Have the side whose turn it is read a message in the place of one of the three."""
    initiator, responder = sides()
    first = initiator.write_message(b"")
    if message_number == 0:
        return responder.read_message(message)
    responder.read_message(first)
    second = responder.write_message(b"two")
    if message_number == 1:
        return initiator.read_message(message)
    initiator.read_message(second)
    return responder.read_message(message)


@pytest.mark.parametrize("number", range(3))
def test_truncated_message_is_refused(number: int) -> None:
    whole = messages()[number]

    for length in range(len(whole)):
        with pytest.raises(Libp2pFault) as raised:
            read(number, whole[:length])
        assert raised.value.cause is Cause.UNDECRYPTABLE


@pytest.mark.parametrize("number", [1, 2])
def test_flipped_bit_is_found(number: int) -> None:
    whole = messages()[number]

    for at in range(len(whole)):
        with pytest.raises(Libp2pFault) as raised:
            read(number, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert raised.value.cause is Cause.UNDECRYPTABLE


@given(st.integers(0, 2), st.binary(max_size=200))
@settings()
def test_random_bytes_are_refused_or_are_a_first_message(number: int, data: bytes) -> None:
    try:
        payload = read(number, data)
    except Libp2pFault:
        return
    assert number == 0
    assert payload == data[KEY_BYTES:]


@pytest.mark.parametrize("point", LOW_ORDER_POINTS, ids=lambda point: point.hex()[:8])
def test_point_of_low_order_is_refused(point: bytes) -> None:
    _, responder = sides()
    responder.read_message(point)

    with pytest.raises(Libp2pFault) as raised:
        responder.write_message(b"")

    assert raised.value.cause is Cause.LOW_ORDER_POINT


def test_message_that_was_replayed_or_left_out_cannot_be_opened() -> None:
    initiator, responder = shaken()
    egress, ingress = initiator.split()[0], responder.split()[1]
    first, second, third = (egress.seal(bytes([number])) for number in range(3))

    assert ingress.open(first) == b"\0"
    with pytest.raises(Libp2pFault):
        ingress.open(first)
    ingress = responder.split()[1]
    assert ingress.open(first) == b"\0"
    with pytest.raises(Libp2pFault):
        ingress.open(third)
    assert second != third


def test_both_directions_have_keys_of_their_own() -> None:
    egress, ingress = shaken()[0].split()

    with pytest.raises(Libp2pFault):
        ingress.open(egress.seal(b"reflected"))


def test_nonces_are_not_used_twice() -> None:
    sealed = CipherState(digest("key"), LAST_NONCE).seal(b"last")
    cipher = CipherState(digest("key"), LAST_NONCE)

    assert cipher.open(sealed) == b"last"
    with pytest.raises(Libp2pFault) as raised:
        cipher.open(sealed)
    assert raised.value.cause is Cause.NONCES_USED_UP
    with pytest.raises(LocalProtocolError):
        cipher.seal(b"one more")
