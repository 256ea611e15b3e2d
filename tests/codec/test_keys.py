import coincurve
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.codec.keys import (
    PUBLIC_KEY_BYTES,
    SIGNATURE_BYTES,
    Enode,
    NodeId,
    PrivateKey,
    check_public_key,
    compress,
    decompress,
    recover,
)
from mailserver.errors import DecodeError
from tests.properties import settings

ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141

# SEC 2, "secp256k1": the base point G, which is the public key of 1, and 2 G.
G = bytes.fromhex(
    "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798"
    "483ada7726a3c4655da4fbfc0e1108a8fd17b448a68554199c47d08ffb10d4b8"
)
TWO_G_X = bytes.fromhex("c6047f9441ed7d6d3045406e95c07cd85c778e4b8cef3ca7abac09b95c709ee5")

DIGEST = bytes(range(32))
OFF_CURVE = G[:63] + b"\x00"

SECRETS = st.integers(1, ORDER - 1).map(lambda secret: secret.to_bytes(32, "big"))


def key_of(secret: int) -> PrivateKey:
    return PrivateKey(secret.to_bytes(32, "big"))


def test_public_key_of_one_is_the_base_point() -> None:
    assert key_of(1).public_key == G


def test_secret_reads_back() -> None:
    assert key_of(ORDER - 1).secret == (ORDER - 1).to_bytes(32, "big")


@pytest.mark.parametrize("secret", [0, ORDER, 2**256 - 1])
def test_secret_outside_the_group_is_refused(secret: int) -> None:
    with pytest.raises(DecodeError, match="not on the curve"):
        key_of(secret)


@pytest.mark.parametrize("length", [*range(32), 33, 64])
def test_secret_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(DecodeError, match="wrong length") as caught:
        PrivateKey(b"\x01" * length)

    assert (caught.value.got, caught.value.limit) == (length, 32)


def test_key_agreement_is_the_x_coordinate_of_the_shared_point() -> None:
    assert key_of(2).agree(G) == TWO_G_X


@settings(max_examples=20)
@given(SECRETS, SECRETS)
def test_both_sides_agree(left: bytes, right: bytes) -> None:
    left_key, right_key = PrivateKey(left), PrivateKey(right)

    assert left_key.agree(right_key.public_key) == right_key.agree(left_key.public_key)


def test_key_agreement_with_no_point_of_the_curve_is_refused() -> None:
    with pytest.raises(DecodeError, match="not on the curve"):
        key_of(1).agree(OFF_CURVE)


@settings(max_examples=20)
@given(SECRETS, st.binary(min_size=32, max_size=32))
def test_signer_is_recovered_from_either_way_of_writing_v(secret: bytes, digest: bytes) -> None:
    key = PrivateKey(secret)

    signature = key.sign(digest)

    assert len(signature) == SIGNATURE_BYTES
    assert signature[64] in range(4)
    assert recover(signature, digest) == key.public_key
    assert recover(signature[:64] + bytes([signature[64] + 27]), digest) == key.public_key


def test_signature_of_another_digest_recovers_another_key() -> None:
    key = key_of(7)

    assert recover(key.sign(DIGEST), bytes(32)) != key.public_key


@pytest.mark.parametrize("v", [4, 5, 26, 31, 32, 255])
def test_signature_with_v_out_of_range_is_refused(v: int) -> None:
    signature = key_of(7).sign(DIGEST)[:64] + bytes([v])

    with pytest.raises(DecodeError, match="fits no key"):
        recover(signature, DIGEST)


@pytest.mark.parametrize("signature", [bytes(65), b"\xff" * 64 + b"\x00", bytes(32) + b"\x01" * 32 + b"\x00"])
def test_signature_of_impossible_numbers_is_refused(signature: bytes) -> None:
    with pytest.raises(DecodeError, match="fits no key"):
        recover(signature, DIGEST)


@pytest.mark.parametrize("length", [*range(65), 66])
def test_signature_of_another_length_is_refused(length: int) -> None:
    signature = (key_of(7).sign(DIGEST) + b"\x00")[:length]

    with pytest.raises(DecodeError, match="wrong length") as caught:
        recover(signature, DIGEST)

    assert (caught.value.got, caught.value.limit) == (length, 65)


@settings(max_examples=100)
@given(st.binary(min_size=65, max_size=65), st.integers(0, 3))
def test_random_signature_recovers_a_point_of_the_curve_or_is_refused(signature: bytes, v: int) -> None:
    for candidate in (signature, signature[:64] + bytes([v])):
        try:
            node_id = recover(candidate, DIGEST)
        except DecodeError:
            continue
        assert check_public_key(node_id) == node_id


def test_public_key_on_the_curve_is_taken() -> None:
    assert check_public_key(G) == G


@pytest.mark.parametrize("public_key", [OFF_CURVE, bytes(64), b"\xff" * 64])
def test_public_key_off_the_curve_is_refused(public_key: bytes) -> None:
    with pytest.raises(DecodeError, match="not on the curve"):
        check_public_key(public_key)


@pytest.mark.parametrize("length", [*range(PUBLIC_KEY_BYTES), 65])
def test_public_key_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(DecodeError, match="wrong length") as caught:
        check_public_key((G + b"\x00")[:length])

    assert (caught.value.got, caught.value.limit) == (length, 64)


@settings(max_examples=100)
@given(st.binary(min_size=60, max_size=68))
def test_random_public_key_is_taken_as_it_is_or_refused(public_key: bytes) -> None:
    try:
        node_id = check_public_key(public_key)
    except DecodeError:
        return

    assert node_id == public_key


ENODE = f"enode://{G.hex()}@10.3.58.6:30303"


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        (ENODE, "10.3.58.6", 30303),
        (ENODE + "?discport=30301", "10.3.58.6", 30303),
        (f"  {ENODE}\n", "10.3.58.6", 30303),
        (f"enode://{G.hex().upper()}@mail-1.example.org:1", "mail-1.example.org", 1),
        (f"enode://{G.hex()}@[2001:db8::1]:65535", "2001:db8::1", 65535),
        (f"enode://{G.hex()}@[::ffff:192.0.2.1]:30303", "::ffff:192.0.2.1", 30303),
    ],
)
def test_enode_url_parses(text: str, host: str, port: int) -> None:
    assert Enode.parse(text) == Enode(NodeId(G), host, port)


@pytest.mark.parametrize("host", ["10.3.58.6", "mail-1.example.org", "2001:db8::1"])
def test_enode_url_reads_back(host: str) -> None:
    enode = Enode(NodeId(G), host, 30303)

    assert Enode.parse(str(enode)) == enode


def test_enode_url_of_an_ipv6_address_has_brackets() -> None:
    assert str(Enode(NodeId(G), "2001:db8::1", 30303)) == f"enode://{G.hex()}@[2001:db8::1]:30303"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param(ENODE.removeprefix("enode://"), id="no scheme"),
        pytest.param(ENODE.replace("enode", "http"), id="other scheme"),
        pytest.param(ENODE.replace(G.hex(), G.hex()[1:]), id="id too short"),
        pytest.param(ENODE.replace(G.hex(), G.hex() + "0"), id="id too long"),
        pytest.param(ENODE.replace(G.hex(), "g" * 128), id="id not in hex"),
        pytest.param(ENODE.replace(":30303", ""), id="no port"),
        pytest.param(ENODE.replace("30303", "303030"), id="port too long"),
        pytest.param(ENODE.replace("30303", "-1"), id="port negative"),
        pytest.param(ENODE.replace("30303", "\u0663"), id="port of another script"),
        pytest.param(ENODE.replace("10.3.58.6", ""), id="no host"),
        pytest.param(ENODE.replace("10.3.58.6", "2001:db8::1"), id="ipv6 without brackets"),
        pytest.param(ENODE.replace("10.3.58.6", "a b"), id="host with a space"),
        pytest.param(ENODE + "#fragment", id="fragment"),
        pytest.param(ENODE + "/path", id="path"),
    ],
)
def test_enode_url_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(DecodeError, match="not an enode URL"):
        Enode.parse(text)


@pytest.mark.parametrize("port", [0, 65536, 99999])
def test_enode_url_with_a_port_out_of_range_is_refused(port: int) -> None:
    with pytest.raises(DecodeError, match="port is out of range") as caught:
        Enode.parse(f"enode://{G.hex()}@10.3.58.6:{port}")

    assert (caught.value.got, caught.value.limit) == (port, 65535)


def test_enode_url_with_an_id_off_the_curve_is_refused() -> None:
    with pytest.raises(DecodeError, match="not on the curve"):
        Enode.parse(f"enode://{OFF_CURVE.hex()}@10.3.58.6:30303")


@pytest.mark.parametrize("length", range(len(ENODE) - 4))
def test_every_truncation_of_an_enode_url_before_its_port_is_refused(length: int) -> None:
    with pytest.raises(DecodeError, match="not an enode URL"):
        Enode.parse(ENODE[:length])


@settings(max_examples=100)
@given(st.text(alphabet="enode:/@[]?#.-_ \n0123456789abcdef\u0663\u00e9", max_size=40))
def test_random_text_is_refused_as_an_enode_url_wherever_it_stands(text: str) -> None:
    for candidate in (text, f"enode://{G.hex()}@{text}", f"enode://{text}@10.3.58.6:30303"):
        try:
            enode = Enode.parse(candidate)
        except DecodeError:
            continue
        assert Enode.parse(str(enode)) == enode


@pytest.mark.parametrize("number", range(1, 9))
def test_compressed_key_is_the_same_key(number: int) -> None:
    public_key = PrivateKey(number.to_bytes(32, "big")).public_key

    compressed = compress(public_key)

    assert compressed == coincurve.PublicKey(b"\x04" + public_key).format(compressed=True)
    assert decompress(compressed) == public_key


@pytest.mark.parametrize(
    "compressed",
    [b"", b"\x02" + bytes(31), b"\x02" + bytes(33), b"\x04" + b"\x11" * 32, b"\x02" + b"\xff" * 32, b"\x04" + G],
)
def test_what_is_no_compressed_key_is_refused(compressed: bytes) -> None:
    with pytest.raises(DecodeError):
        decompress(compressed)
