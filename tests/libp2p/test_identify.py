import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.codec import protobuf, varint
from mailserver.errors import DecodeError
from mailserver.libp2p.identify import MAX_IDENTIFY_BYTES, MAX_IDENTIFY_MESSAGES, Identify, IdentifyReader
from mailserver.libp2p.multiaddr import Multiaddr
from tests.libp2p.names import identity
from tests.properties import settings

WHOLE = Identify(
    public_key=identity("somebody").public_key.encode(),
    listen_addrs=(Multiaddr.parse("/ip4/127.0.0.1/tcp/1").encode(), Multiaddr.parse("/dns4/a/tcp/2/ws").encode()),
    protocols=("/ipfs/id/1.0.0", "/ipfs/ping/1.0.0"),
    observed_addr=Multiaddr.parse("/ip4/127.0.0.1/tcp/3").encode(),
    protocol_version="waku/1.0.0",
    agent_version="mailserver/1",
)


def told(data: bytes, piece_bytes: int | None = None) -> Identify:
    reader = IdentifyReader()
    step = piece_bytes or max(len(data), 1)
    for at in range(0, len(data), step):
        reader.receive_data(data[at : at + step])
    return reader.finish()


def message(*fields: bytes) -> bytes:
    body = b"".join(fields)
    return varint.encode(len(body)) + body


def test_message_is_read_as_it_was_written() -> None:
    assert told(WHOLE.encode()) == WHOLE


def test_fields_have_the_numbers_of_the_specification() -> None:
    body = WHOLE.encode()
    fields = [(field.number, field.value) for field in protobuf.read_fields(body[varint.decode(body, 0, 2)[1] :])]  # type: ignore[index]

    assert fields == [
        (1, WHOLE.public_key),
        (2, WHOLE.listen_addrs[0]),
        (2, WHOLE.listen_addrs[1]),
        (3, b"/ipfs/id/1.0.0"),
        (3, b"/ipfs/ping/1.0.0"),
        (4, WHOLE.observed_addr),
        (5, b"waku/1.0.0"),
        (6, b"mailserver/1"),
    ]


def test_absent_fields_are_empty() -> None:
    assert Identify().encode() == b"\0"
    assert told(b"\0") == Identify()


def test_fields_of_later_messages_are_added_or_replace() -> None:
    first = Identify(protocols=("/one",), agent_version="first/1", protocol_version="v").encode()
    second = Identify(protocols=("/two",), agent_version="second/2").encode()

    assert told(first + second) == Identify(protocols=("/one", "/two"), agent_version="second/2", protocol_version="v")


def test_unknown_fields_are_ignored() -> None:
    assert told(message(protobuf.write_bytes(8, b"signed record"), protobuf.write_number(100, 7))) == Identify()


def test_byte_by_byte_is_the_same() -> None:
    assert told(WHOLE.encode() * 2, piece_bytes=1) == told(WHOLE.encode() * 2)


def test_truncated_message_is_refused() -> None:
    whole = WHOLE.encode()

    for length in range(len(whole)):
        with pytest.raises(DecodeError):
            told(whole[:length])


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x80\x80\x01", id="length too long"),
        pytest.param(b"\x81\x00a", id="padded length"),
        pytest.param(message(b"\xff"), id="no protobuf"),
        pytest.param(message(protobuf.write_bytes(3, b"\xff")), id="protocol is no text"),
        pytest.param(message(protobuf.write_bytes(6, b"\xff")), id="agent is no text"),
    ],
)
def test_malformed_message_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        told(data)


def test_fields_of_another_wire_type_are_ignored() -> None:
    others = b"".join(protobuf.write_number(number, 1) for number in range(1, 7))

    assert told(message(protobuf.write_bytes(1, b"key") + others)) == Identify(public_key=b"key")


def test_length_of_a_message_is_bounded() -> None:
    longest = message(protobuf.write_bytes(1, bytes(MAX_IDENTIFY_BYTES - 3)))

    assert len(told(longest).public_key) == MAX_IDENTIFY_BYTES - 3
    with pytest.raises(DecodeError, match="too long"):
        told(varint.encode(MAX_IDENTIFY_BYTES + 1))
    with pytest.raises(DecodeError, match="too long"):
        told(longest + message(protobuf.write_bytes(1, b"")))
    with pytest.raises(DecodeError, match="too long"):
        Identify.decode(bytes(MAX_IDENTIFY_BYTES + 1))


def test_number_of_messages_is_bounded() -> None:
    assert told(b"\0" * MAX_IDENTIFY_MESSAGES) == Identify()
    with pytest.raises(DecodeError, match="too many messages"):
        told(b"\0" * (MAX_IDENTIFY_MESSAGES + 1))


@given(st.binary(max_size=100))
@settings()
def test_random_bytes_are_a_message_or_refused(data: bytes) -> None:
    try:
        identify = Identify.decode(data)
    except DecodeError:
        return
    assert told(identify.encode()) == identify
