import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.codec import rlp
from mailserver.codec.keys import NodeId
from mailserver.errors import DecodeError, DisconnectReason
from mailserver.rlpx.capabilities import Capability
from mailserver.rlpx.p2p import (
    EMPTY_PAYLOAD,
    MAX_CAPABILITIES,
    MAX_CLIENT_ID_BYTES,
    MAX_P2P_MESSAGE_BYTES,
    P2P_VERSION,
    Hello,
    MessageId,
    decode_disconnect,
    encode_disconnect,
)
from tests.data import load
from tests.pairs import private_key
from tests.properties import settings

NODE_ID = private_key("node").public_key
HELLO = Hello(P2P_VERSION, "waku-mailserver/0.1", (Capability("waku", 0), Capability("waku", 1)), 30303, NODE_ID)

RECORDED = {
    f"{session['name']}, {message['from']}": bytes.fromhex(message["payload"])
    for session in load("sessions.json")["sessions"]
    for message in session["messages"]
    if message["message_id"] == MessageId.HELLO
}


def fields_of(hello: Hello) -> list[rlp.Item]:
    return rlp.decode_list(hello.encode())


def with_field(index: int, item: rlp.Item) -> bytes:
    fields = fields_of(HELLO)
    fields[index] = item
    return rlp.encode(fields)


def test_message_ids_are_those_of_the_specification() -> None:
    assert [*MessageId] == [0, 1, 2, 3]
    assert rlp.decode(EMPTY_PAYLOAD) == []


def test_hello_is_laid_out_as_in_the_specification() -> None:
    assert fields_of(HELLO) == [
        b"\x05",
        b"waku-mailserver/0.1",
        [[b"waku", b""], [b"waku", b"\x01"]],
        (30303).to_bytes(2, "big"),
        NODE_ID,
    ]


@pytest.mark.parametrize("name", RECORDED)
def test_hello_of_a_recorded_session_decodes_and_encodes_to_the_same_bytes(name: str) -> None:
    hello = Hello.decode(RECORDED[name])

    assert hello.encode() == RECORDED[name]
    assert hello.version == P2P_VERSION
    assert Capability("waku", 1) in hello.capabilities


def test_published_hello_of_a_later_version_with_further_elements_decodes() -> None:
    vector = load("eip8_formats.json")["hello"]

    hello = Hello.decode(bytes.fromhex(vector["payload"]))

    assert hello == Hello(
        vector["version"],
        vector["client_id"],
        tuple(Capability(name, version) for name, version in vector["capabilities"]),
        vector["listen_port"],
        NodeId(bytes.fromhex(vector["node_id"])),
    )


def test_further_elements_of_hello_and_of_its_capabilities_are_ignored() -> None:
    fields = fields_of(HELLO)
    fields[2] = [[b"waku", b"", b"more"], [b"waku", b"\x01", [b"more"]]]

    assert Hello.decode(rlp.encode([*fields, b"more", [b"and more"]])) == HELLO


@settings(max_examples=50)
@given(
    st.builds(
        Hello,
        st.integers(0, 2**64 - 1),
        st.text(max_size=60),
        st.lists(st.builds(Capability, st.text(max_size=8), st.integers(0, 2**64 - 1)), max_size=5).map(tuple),
        st.integers(0, 65535),
        st.binary(min_size=64, max_size=64).map(NodeId),
    )
)
def test_hello_reads_back(hello: Hello) -> None:
    assert Hello.decode(hello.encode()) == hello


@pytest.mark.parametrize("count", range(5))
def test_hello_with_too_few_elements_is_refused(count: int) -> None:
    with pytest.raises(DecodeError) as caught:
        Hello.decode(rlp.encode(fields_of(HELLO)[:count]))

    assert (caught.value.got, caught.value.limit) == (count, 5)


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(rlp.encode(b"hello"), id="a string"),
        pytest.param(with_field(0, [b"\x05"]), id="version is a list"),
        pytest.param(with_field(0, b"\x00\x05"), id="version has leading zeros"),
        pytest.param(with_field(0, b"\x01" * 9), id="version is too long"),
        pytest.param(with_field(1, [b"client"]), id="client id is a list"),
        pytest.param(with_field(2, b"waku"), id="capabilities are a string"),
        pytest.param(with_field(2, [b"waku"]), id="capability is a string"),
        pytest.param(with_field(2, [[]]), id="capability is empty"),
        pytest.param(with_field(2, [[b"waku"]]), id="capability has no version"),
        pytest.param(with_field(2, [[[b"waku"], b"\x01"]]), id="capability name is a list"),
        pytest.param(with_field(2, [[b"waku", [b"\x01"]]]), id="capability version is a list"),
        pytest.param(with_field(2, [[b"waku", b"\x01" * 9]]), id="capability version is too long"),
        pytest.param(with_field(3, [b"\x01"]), id="port is a list"),
        pytest.param(with_field(3, b"\x01" * 9), id="port is too long"),
        pytest.param(with_field(4, [NODE_ID]), id="node id is a list"),
        pytest.param(with_field(4, NODE_ID[1:]), id="node id is too short"),
        pytest.param(with_field(4, NODE_ID + b"\x00"), id="node id is too long"),
        pytest.param(HELLO.encode() + b"\x00", id="bytes left over"),
    ],
)
def test_hello_with_an_element_of_the_wrong_kind_is_refused(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        Hello.decode(payload)


def test_as_many_capabilities_as_allowed_are_taken() -> None:
    offered = tuple(Capability(f"c{number}", 1) for number in range(MAX_CAPABILITIES))

    hello = Hello.decode(Hello(5, "", offered, 0, NODE_ID).encode())

    assert hello.capabilities == offered


def test_more_capabilities_than_allowed_are_refused() -> None:
    offered = tuple(Capability(f"c{number}", 1) for number in range(MAX_CAPABILITIES + 1))

    with pytest.raises(DecodeError, match="too many capabilities") as caught:
        Hello.decode(Hello(5, "", offered, 0, NODE_ID).encode())

    assert (caught.value.got, caught.value.limit) == (MAX_CAPABILITIES + 1, MAX_CAPABILITIES)


def test_long_client_id_is_cut() -> None:
    assert Hello.decode(with_field(1, b"x" * 1000)).client_id == "x" * MAX_CLIENT_ID_BYTES


def test_names_that_are_not_utf_8_are_made_readable() -> None:
    assert Hello.decode(with_field(1, b"geth\xff")).client_id == "geth\ufffd"
    assert Hello.decode(with_field(2, [[b"\xc3", b"\x01"]])).capabilities == (Capability("\ufffd", 1),)


@pytest.mark.parametrize("name", RECORDED)
def test_every_truncation_of_a_recorded_hello_is_refused(name: str) -> None:
    for length in range(len(RECORDED[name])):
        with pytest.raises(DecodeError):
            Hello.decode(RECORDED[name][:length])


@settings(max_examples=100)
@given(
    st.binary(max_size=100)
    | st.tuples(st.integers(0, 4), st.recursive(st.binary(max_size=9), st.lists)).map(lambda pair: with_field(*pair))
)
def test_arbitrary_bytes_decode_to_a_hello_or_are_refused(payload: bytes) -> None:
    try:
        hello = Hello.decode(payload)
    except DecodeError:
        return

    assert len(hello.node_id) == 64


@pytest.mark.parametrize("reason", DisconnectReason)
def test_disconnect_reads_back_as_a_list_and_as_a_bare_integer(reason: DisconnectReason) -> None:
    as_list = encode_disconnect(reason)
    bare = rlp.encode(rlp.encode_uint(reason))

    assert as_list == rlp.encode([rlp.encode_uint(reason)])
    assert decode_disconnect(as_list) is reason
    assert decode_disconnect(bare) is reason


def test_disconnect_without_a_reason_is_one_that_was_requested() -> None:
    assert decode_disconnect(b"\xc0") is DisconnectReason.REQUESTED


def test_further_elements_of_disconnect_are_ignored() -> None:
    assert decode_disconnect(rlp.encode([b"\x04", b"more"])) is DisconnectReason.TOO_MANY_PEERS


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="empty"),
        pytest.param(rlp.encode([b"\x0c"]), id="reason without a name"),
        pytest.param(rlp.encode([b"\x01\x00"]), id="reason of two bytes"),
        pytest.param(rlp.encode([b"\x00"]), id="reason with leading zeros"),
        pytest.param(rlp.encode([[b"\x04"]]), id="list in a list"),
        pytest.param(rlp.encode([b"\x04"]) + b"\x00", id="bytes left over"),
        pytest.param(encode_disconnect(DisconnectReason.TOO_MANY_PEERS)[:1], id="truncated"),
    ],
)
def test_disconnect_that_says_nothing_we_know_has_no_reason(payload: bytes) -> None:
    assert decode_disconnect(payload) is None


@settings(max_examples=100)
@given(st.binary(max_size=40))
def test_disconnect_of_random_bytes_never_raises(payload: bytes) -> None:
    assert decode_disconnect(payload) in (None, *DisconnectReason)


def test_longest_hello_of_ours_fits_a_message() -> None:
    offered = tuple(Capability("waku", version) for version in range(MAX_CAPABILITIES))

    assert len(Hello(5, "x" * MAX_CLIENT_ID_BYTES, offered, 65535, NODE_ID).encode()) <= MAX_P2P_MESSAGE_BYTES
