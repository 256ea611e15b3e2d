import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.errors import DecodeError
from mailserver.libp2p.multiaddr import (
    MAX_MULTIADDR_BYTES,
    MAX_NAME_BYTES,
    MAX_PARTS,
    MAX_TEXT_CHARACTERS,
    AddressProtocol,
    Multiaddr,
)
from tests.libp2p.names import identity
from tests.properties import settings

PEER = str(identity("somebody").peer_id)

# The bytes by the codes of multiformats/multicodec, `table.csv`, put together by hand.
EXAMPLES = {
    "/ip4/127.0.0.1/tcp/60000": "04 7f000001 06 ea60",
    "/ip6/2001:db8::1/tcp/1": "29 20010db8000000000000000000000001 06 0001",
    "/dns4/a.example/tcp/443/wss": "36 09 612e6578616d706c65 06 01bb de03",
    "/dns6/a.example/tcp/80/ws": "37 09 612e6578616d706c65 06 0050 dd03",
    "/dns/a.example/tcp/443/tls/ws": "35 09 612e6578616d706c65 06 01bb c003 dd03",
    f"/p2p/{PEER}": "a503 26" + identity("somebody").peer_id.multihash.hex(),
}


@pytest.mark.parametrize("text", EXAMPLES)
def test_text_and_bytes_are_the_same_address(text: str) -> None:
    encoded = bytes.fromhex(EXAMPLES[text])

    assert Multiaddr.parse(text).encode() == encoded
    assert str(Multiaddr.decode(encoded)) == text
    assert Multiaddr.decode(encoded) == Multiaddr.parse(text)


def test_value_is_that_of_the_first_part_that_is_wanted() -> None:
    address = Multiaddr.parse(f"/dns4/a.example/tcp/443/wss/p2p/{PEER}")

    assert address.value(AddressProtocol.IP4, AddressProtocol.DNS4) == "a.example"
    assert address.value(AddressProtocol.TCP) == "443"
    assert address.value(AddressProtocol.WSS) == ""
    assert address.value(AddressProtocol.P2P) == PEER
    assert address.value(AddressProtocol.WS) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "tcp/1",
        "/tcp",
        "/tcp/",
        "/tcp/-1",
        "/tcp/65536",
        "/tcp/000001",
        "/tcp/1_0",
        "/tcp/٣",
        "/udp/1",
        "/ip4/1.2.3",
        "/ip4/::1",
        "/ip6/1.2.3.4",
        "/ip6/fe80::1%eth0",
        "/dns4",
        "/dns4/",
        "/dns4/" + "a" * (MAX_NAME_BYTES + 1),
        "/dns4/a b",
        "/dns4/a\x7f",
        "/dns4/ä.example",
        "/dns4/\ud800",
        "/p2p/Qm",
        "/ws/",
        "/ws/x",
        "/ws" * (MAX_PARTS + 1),
        "/dns4/" + "a" * MAX_TEXT_CHARACTERS,
    ],
)
def test_text_that_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(DecodeError):
        Multiaddr.parse(text)


def test_bounds_are_as_named() -> None:
    assert len(Multiaddr.parse("/ws" * MAX_PARTS).parts) == MAX_PARTS
    assert Multiaddr.parse("/dns4/" + "a" * MAX_NAME_BYTES).value(AddressProtocol.DNS4) == "a" * MAX_NAME_BYTES


@pytest.mark.parametrize(
    "data",
    [
        pytest.param("", id="nothing"),
        pytest.param("00", id="unknown code"),
        pytest.param("8400 7f000001", id="padded code"),
        pytest.param("808080 00", id="code too long"),
        pytest.param("36 00", id="empty name"),
        pytest.param("36 03 612f62", id="name with a slash"),
        pytest.param("36 01 ff", id="name that is no text"),
        pytest.param("a503 02 1200", id="no peer id"),
        pytest.param("36 fe01" + "61" * 254, id="name too long"),
    ],
)
def test_bytes_that_are_no_address_are_refused(data: str) -> None:
    with pytest.raises(DecodeError):
        Multiaddr.decode(bytes.fromhex(data))


def test_bytes_are_bounded() -> None:
    name = b"\x36" + bytes([0xFD, 1]) + b"a" * MAX_NAME_BYTES

    assert len(Multiaddr.decode(name * 2).parts) == 2
    with pytest.raises(DecodeError, match="too long"):
        Multiaddr.decode((name * 3)[: MAX_MULTIADDR_BYTES + 1])


@pytest.mark.parametrize("text", EXAMPLES)
def test_truncated_address_is_refused_or_ends_with_a_part(text: str) -> None:
    whole = bytes.fromhex(EXAMPLES[text])

    for length in range(len(whole)):
        try:
            address = Multiaddr.decode(whole[:length])
        except DecodeError:
            continue
        assert text.startswith(str(address))
        assert address.encode() == whole[:length]


@given(st.binary(max_size=80))
@settings()
def test_random_bytes_are_an_address_or_refused(data: bytes) -> None:
    try:
        address = Multiaddr.decode(data)
    except DecodeError:
        return
    assert address.encode() == data
    assert Multiaddr.parse(str(address)) == address


@given(st.text(alphabet="/abdinpstw46.:0123", max_size=60).map(lambda text: f"/{text}"))
@settings()
def test_random_text_is_an_address_or_refused(text: str) -> None:
    try:
        address = Multiaddr.parse(text)
    except DecodeError:
        return
    assert Multiaddr.decode(address.encode()) == address
