from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.codec import ecies, rlp
from mailserver.codec.keccak import running_keccak
from mailserver.codec.keys import NodeId, PrivateKey
from mailserver.errors import DecodeError
from mailserver.rlpx.handshake import (
    MAX_HANDSHAKE_PACKET_BYTES,
    PLAIN_AUTH_BYTES,
    RLPX_VERSION,
    Entropy,
    Initiator,
    Recipient,
    is_plain_auth,
    open_auth,
    packet_length,
)
from tests.data import load
from tests.pairs import digest, entropy, private_key
from tests.properties import settings

FORMATS = load("eip8_formats.json")
AUTHS = {vector["name"]: bytes.fromhex(vector["packet"]) for vector in FORMATS["auth"]}
ACKS = {vector["name"]: bytes.fromhex(vector["packet"]) for vector in FORMATS["ack"]}
EIP_8_FORMS = {"Auth2", "Auth3", "Ack2", "Ack3"}
SESSIONS = {session["name"]: session for session in load("sessions.json")["sessions"]}

INITIATOR = private_key("initiator")
RECIPIENT = private_key("recipient")


def key_of(vector: dict[str, Any], name: str) -> PrivateKey:
    return PrivateKey(bytes.fromhex(vector[name]))


def published_entropy(side: str, vector: dict[str, Any] = FORMATS) -> Entropy:
    """Key and nonce of one side of a vector; what it sealed and padded with was not published."""
    return Entropy(
        ephemeral_key=key_of(vector, f"{side}_ephemeral_private_key"),
        nonce=bytes.fromhex(vector[f"{side}_nonce"]),
        seal_key=private_key("seal"),
        iv=bytes(16),
        padding=bytes(100),
    )


def published_initiator() -> Initiator:
    return Initiator(
        key_of(FORMATS, "initiator_private_key"),
        key_of(FORMATS, "recipient_private_key").public_key,
        published_entropy("initiator"),
    )


def seal(recipient: PrivateKey, body: bytes) -> bytes:
    """A handshake packet with this body."""
    size = (len(body) + ecies.OVERHEAD_BYTES).to_bytes(2, "big")
    sealed = ecies.seal(recipient.public_key, body, ephemeral_key=private_key("seal"), iv=bytes(16), authdata=size)
    return size + sealed


def auth_fields() -> list[rlp.Item]:
    """The elements of a good auth from INITIATOR to RECIPIENT."""
    auth = Initiator(INITIATOR, RECIPIENT.public_key, entropy("initiator")).auth
    return rlp.as_list(rlp.decode_first(ecies.open_sealed(RECIPIENT, auth[2:], authdata=auth[:2])))


def ack_fields() -> list[rlp.Item]:
    """The elements of a good ack."""
    return [private_key("recipient, ephemeral").public_key, digest("recipient, nonce"), b"\x04"]


def with_field(fields: list[rlp.Item], index: int, item: rlp.Item) -> list[rlp.Item]:
    return [*fields[:index], item, *fields[index + 1 :]]


@pytest.mark.parametrize("name", ["Auth2", "Auth3"])
def test_published_auth_opens(name: str) -> None:
    remote_id, remote_ephemeral_id, nonce = open_auth(key_of(FORMATS, "recipient_private_key"), AUTHS[name])

    assert remote_id == key_of(FORMATS, "initiator_private_key").public_key
    assert remote_ephemeral_id == key_of(FORMATS, "initiator_ephemeral_private_key").public_key
    assert nonce.hex() == FORMATS["initiator_nonce"]


@pytest.mark.parametrize("name", ["Auth2", "Auth3"])
def test_published_auth_is_answered_and_gives_the_published_secrets(name: str) -> None:
    recipient = Recipient(key_of(FORMATS, "recipient_private_key"), published_entropy("recipient"))

    ack, secrets = recipient.receive_auth(AUTHS[name])

    assert secrets.aes.hex() == FORMATS["aes_secret"]
    assert secrets.mac.hex() == FORMATS["mac_secret"]
    assert secrets.remote_id == key_of(FORMATS, "initiator_private_key").public_key
    from_ack = published_initiator().receive_ack(ack)
    assert (from_ack.aes, from_ack.mac) == (secrets.aes, secrets.mac)


@pytest.mark.parametrize("name", ["Ack2", "Ack3"])
def test_published_ack_gives_the_published_secrets(name: str) -> None:
    secrets = published_initiator().receive_ack(ACKS[name])

    assert secrets.aes.hex() == FORMATS["aes_secret"]
    assert secrets.mac.hex() == FORMATS["mac_secret"]
    assert secrets.remote_id == key_of(FORMATS, "recipient_private_key").public_key


def test_published_ingress_mac_of_the_recipient_continues_with_foo() -> None:
    recipient = Recipient(key_of(FORMATS, "recipient_private_key"), published_entropy("recipient"))
    remote_id, remote_ephemeral_id, nonce = open_auth(key_of(FORMATS, "recipient_private_key"), AUTHS["Auth2"])

    secrets = recipient.secrets(AUTHS["Auth2"], ACKS["Ack2"], remote_id, remote_ephemeral_id, nonce)

    ingress_mac = running_keccak(secrets.ingress_seed)
    ingress_mac.update(b"foo")
    assert ingress_mac.digest().hex() == FORMATS["recipient_ingress_mac_foo"]


def test_vector_of_the_deployed_implementation_gives_its_secrets_on_both_sides() -> None:
    vector = load("eip8.json")
    auth, ack = bytes.fromhex(vector["auth"]), bytes.fromhex(vector["ack"])
    recipient_key = key_of(vector, "recipient_private_key")
    initiator = Initiator(
        key_of(vector, "initiator_private_key"), recipient_key.public_key, published_entropy("initiator", vector)
    )

    initiator_secrets = initiator.receive_ack(ack)
    recipient_secrets = Recipient(recipient_key, published_entropy("recipient", vector)).secrets(
        auth, ack, *open_auth(recipient_key, auth)
    )

    for secrets in (initiator_secrets, recipient_secrets):
        assert secrets.aes.hex() == vector["aes_secret"]
        assert secrets.mac.hex() == vector["mac_secret"]
    assert initiator_secrets.ingress_seed == recipient_secrets.egress_seed


@pytest.mark.parametrize("name", SESSIONS)
def test_recorded_session_gives_the_recorded_secrets(name: str) -> None:
    session = SESSIONS[name]
    auth, ack, expected = bytes.fromhex(session["auth"]), bytes.fromhex(session["ack"]), session["secrets"]
    key = key_of(session, "recipient_private_key")

    remote_id, remote_ephemeral_id, nonce = open_auth(key, auth)
    recipient = Recipient(key, published_entropy("recipient", session))
    secrets = recipient.secrets(auth, ack, remote_id, remote_ephemeral_id, nonce)

    assert packet_length(auth) == len(auth)
    assert packet_length(ack) == len(ack)
    assert remote_id.hex() == expected["initiator_public_key"]
    assert remote_ephemeral_id.hex() == expected["initiator_ephemeral_public_key"]
    assert nonce.hex() == expected["initiator_nonce"]
    assert secrets.aes.hex() == expected["aes_secret"]
    assert secrets.mac.hex() == expected["mac_secret"]


def test_both_sides_end_with_mirrored_secrets() -> None:
    initiator = Initiator(INITIATOR, RECIPIENT.public_key, entropy("initiator"))

    ack, recipient_secrets = Recipient(RECIPIENT, entropy("recipient")).receive_auth(initiator.auth)
    initiator_secrets = initiator.receive_ack(ack)

    assert initiator_secrets.remote_id == RECIPIENT.public_key
    assert recipient_secrets.remote_id == INITIATOR.public_key
    assert (initiator_secrets.aes, initiator_secrets.mac) == (recipient_secrets.aes, recipient_secrets.mac)
    assert initiator_secrets.egress_seed == recipient_secrets.ingress_seed
    assert initiator_secrets.ingress_seed == recipient_secrets.egress_seed
    assert len({initiator_secrets.aes, initiator_secrets.mac}) == 2
    assert initiator_secrets.egress_seed != initiator_secrets.ingress_seed


def test_secrets_depend_on_both_nonces_and_both_ephemeral_keys() -> None:
    def aes_secret(initiator_entropy: Entropy, recipient_entropy: Entropy) -> bytes:
        auth = Initiator(INITIATOR, RECIPIENT.public_key, initiator_entropy).auth
        return Recipient(RECIPIENT, recipient_entropy).receive_auth(auth)[1].aes

    def with_nonce(base: Entropy) -> Entropy:
        return Entropy(base.ephemeral_key, bytes(32), base.seal_key, base.iv, base.padding)

    left, right = entropy("left"), entropy("right")

    secrets = {
        aes_secret(left, right),
        aes_secret(entropy("other"), right),
        aes_secret(left, entropy("other")),
        aes_secret(with_nonce(left), right),
        aes_secret(left, with_nonce(right)),
    }

    assert len(secrets) == 5


def test_auth_carries_version_4_and_ends_in_padding() -> None:
    auth = Initiator(INITIATOR, RECIPIENT.public_key, entropy("initiator")).auth

    plaintext = ecies.open_sealed(RECIPIENT, auth[2:], authdata=auth[:2])

    fields = rlp.as_list(rlp.decode_first(plaintext))
    assert fields[1:] == [INITIATOR.public_key, digest("initiator, nonce"), bytes([RLPX_VERSION])]
    assert plaintext == rlp.encode(fields) + bytes(100)
    assert packet_length(auth) == len(auth)


def test_ack_carries_version_4_and_ends_in_padding() -> None:
    auth = Initiator(INITIATOR, RECIPIENT.public_key, entropy("initiator")).auth

    ack, _ = Recipient(RECIPIENT, entropy("recipient")).receive_auth(auth)

    plaintext = ecies.open_sealed(INITIATOR, ack[2:], authdata=ack[:2])
    assert plaintext == rlp.encode(ack_fields()) + bytes(100)
    assert packet_length(ack) == len(ack)


def test_initiator_refuses_a_node_id_off_the_curve() -> None:
    with pytest.raises(DecodeError, match="not on the curve"):
        Initiator(INITIATOR, NodeId(bytes(64)), entropy("initiator"))


def test_version_and_further_elements_of_a_packet_are_ignored() -> None:
    auth = seal(RECIPIENT, rlp.encode([*auth_fields()[:3], b"\xff", [b"more"]]))
    ack = seal(INITIATOR, rlp.encode([*ack_fields()[:2], [b"no version"]]))

    remote_id, _, _ = open_auth(RECIPIENT, auth)
    secrets = Initiator(INITIATOR, RECIPIENT.public_key, entropy("initiator")).receive_ack(ack)

    assert remote_id == INITIATOR.public_key
    assert secrets.remote_id == RECIPIENT.public_key


@pytest.mark.parametrize("count", range(3))
def test_auth_with_too_few_elements_is_refused(count: int) -> None:
    auth = seal(RECIPIENT, rlp.encode(auth_fields()[:count]))

    with pytest.raises(DecodeError) as caught:
        open_auth(RECIPIENT, auth)

    assert (caught.value.got, caught.value.limit) == (count, 3)


@pytest.mark.parametrize("count", range(2))
def test_ack_with_too_few_elements_is_refused(count: int) -> None:
    ack = seal(INITIATOR, rlp.encode(ack_fields()[:count]))

    with pytest.raises(DecodeError) as caught:
        Initiator(INITIATOR, RECIPIENT.public_key, entropy("initiator")).receive_ack(ack)

    assert (caught.value.got, caught.value.limit) == (count, 2)


@pytest.mark.parametrize(
    ("index", "item"),
    [
        pytest.param(0, bytes(64), id="signature too short"),
        pytest.param(0, bytes(65), id="signature that fits no key"),
        pytest.param(0, [bytes(65)], id="signature in a list"),
        pytest.param(1, bytes(63), id="public key too short"),
        pytest.param(1, bytes(64), id="public key off the curve"),
        pytest.param(1, [INITIATOR.public_key], id="public key in a list"),
        pytest.param(2, bytes(31), id="nonce too short"),
        pytest.param(2, bytes(33), id="nonce too long"),
        pytest.param(2, [bytes(32)], id="nonce in a list"),
    ],
)
def test_auth_with_a_wrong_element_is_refused(index: int, item: rlp.Item) -> None:
    auth = seal(RECIPIENT, rlp.encode(with_field(auth_fields(), index, item)))

    with pytest.raises(DecodeError):
        Recipient(RECIPIENT, entropy("recipient")).receive_auth(auth)


@pytest.mark.parametrize(
    ("index", "item"),
    [
        pytest.param(0, bytes(63), id="ephemeral key too short"),
        pytest.param(0, bytes(64), id="ephemeral key off the curve"),
        pytest.param(0, [RECIPIENT.public_key], id="ephemeral key in a list"),
        pytest.param(1, bytes(31), id="nonce too short"),
        pytest.param(1, bytes(33), id="nonce too long"),
        pytest.param(1, [bytes(32)], id="nonce in a list"),
    ],
)
def test_ack_with_a_wrong_element_is_refused(index: int, item: rlp.Item) -> None:
    ack = seal(INITIATOR, rlp.encode(with_field(ack_fields(), index, item)))

    with pytest.raises(DecodeError):
        Initiator(INITIATOR, RECIPIENT.public_key, entropy("initiator")).receive_ack(ack)


@pytest.mark.parametrize("body", [rlp.encode(b"x" * 300), b"\xf9\x01", b"", b"\xff" * 300])
def test_packet_whose_body_is_no_list_is_refused(body: bytes) -> None:
    with pytest.raises(DecodeError):
        open_auth(RECIPIENT, seal(RECIPIENT, body))


def test_packet_for_another_key_is_refused() -> None:
    auth = Initiator(INITIATOR, private_key("someone else").public_key, entropy("initiator")).auth

    with pytest.raises(DecodeError, match="tag differs"):
        Recipient(RECIPIENT, entropy("recipient")).receive_auth(auth)


def test_size_prefix_is_authenticated() -> None:
    auth = AUTHS["Auth2"]

    with pytest.raises(DecodeError, match="tag differs"):
        open_auth(key_of(FORMATS, "recipient_private_key"), (len(auth) - 1).to_bytes(2, "big") + auth[2:])


@pytest.mark.parametrize("name", AUTHS)
def test_every_truncation_of_an_auth_is_refused(name: str) -> None:
    recipient = Recipient(key_of(FORMATS, "recipient_private_key"), published_entropy("recipient"))

    for length in range(len(AUTHS[name])):
        with pytest.raises(DecodeError):
            recipient.receive_auth(AUTHS[name][:length])


@pytest.mark.parametrize("name", ACKS)
def test_every_truncation_of_an_ack_is_refused(name: str) -> None:
    initiator = published_initiator()

    for length in range(len(ACKS[name])):
        with pytest.raises(DecodeError):
            initiator.receive_ack(ACKS[name][:length])


@settings(max_examples=50)
@given(st.binary(max_size=400))
def test_random_bytes_are_refused_sealed_or_not(data: bytes) -> None:
    recipient = Recipient(RECIPIENT, entropy("recipient"))
    initiator = Initiator(INITIATOR, RECIPIENT.public_key, entropy("initiator"))

    for packet in (data, len(data).to_bytes(2, "big") + data, seal(RECIPIENT, data)):
        with pytest.raises(DecodeError):
            recipient.receive_auth(packet)
    for packet in (data, len(data).to_bytes(2, "big") + data, seal(INITIATOR, data)):
        with pytest.raises(DecodeError):
            initiator.receive_ack(packet)


def test_plain_auth_and_plain_ack_from_before_eip_8_are_refused() -> None:
    with pytest.raises(DecodeError):
        open_auth(key_of(FORMATS, "recipient_private_key"), AUTHS["Auth1"])
    with pytest.raises(DecodeError):
        published_initiator().receive_ack(ACKS["Ack1"])


def test_plain_auth_is_recognised_by_its_first_307_bytes() -> None:
    key = key_of(FORMATS, "recipient_private_key")

    assert len(AUTHS["Auth1"]) == PLAIN_AUTH_BYTES == 307
    assert is_plain_auth(key, AUTHS["Auth1"])
    assert is_plain_auth(key, AUTHS["Auth1"] + b"and more")


@pytest.mark.parametrize("name", ["Auth2", "Auth3"])
def test_auth_of_eip_8_is_not_taken_for_a_plain_one(name: str) -> None:
    assert not is_plain_auth(key_of(FORMATS, "recipient_private_key"), AUTHS[name])


def test_plain_auth_for_another_key_is_not_recognised() -> None:
    assert not is_plain_auth(private_key("someone else"), AUTHS["Auth1"])


@pytest.mark.parametrize("name", sorted(EIP_8_FORMS))
def test_length_of_a_published_packet_is_read_from_its_prefix(name: str) -> None:
    packet = (AUTHS | ACKS)[name]

    assert packet_length(packet[:2]) == packet_length(packet) == len(packet)


@pytest.mark.parametrize("length", [2 + ecies.OVERHEAD_BYTES + 1, MAX_HANDSHAKE_PACKET_BYTES])
def test_shortest_and_longest_packet_length_are_taken(length: int) -> None:
    assert packet_length((length - 2).to_bytes(2, "big")) == length


@pytest.mark.parametrize("length", [2, 2 + ecies.OVERHEAD_BYTES, MAX_HANDSHAKE_PACKET_BYTES + 1, 65537])
def test_packet_length_out_of_bounds_is_refused(length: int) -> None:
    with pytest.raises(DecodeError) as caught:
        packet_length((length - 2).to_bytes(2, "big"))

    assert (caught.value.got, caught.value.limit) == (length, MAX_HANDSHAKE_PACKET_BYTES)
