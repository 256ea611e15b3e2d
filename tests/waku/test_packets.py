"""mailserver.waku.packets: packet codes and confirmations, against recorded packets and the `rlp` package."""

from collections.abc import Callable
from typing import Any

import pytest
import rlp
from hypothesis import given
from hypothesis import strategies as st

from mailserver.errors import DecodeError
from mailserver.waku.bloom import FULL_BLOOM
from mailserver.waku.envelope import EnvelopeHash
from mailserver.waku.packets import (
    MAX_PACKET_BYTES,
    MAX_RECEIVED_PACKET_BYTES,
    PACKET_CODE_COUNT,
    EnvelopeError,
    EnvelopeErrorCode,
    MessageResponse,
    PacketCode,
    StatusOptions,
    decode_batch_acknowledged,
    encode_batch_acknowledged,
)
from tests.properties import settings
from tests.waku.packets import HASH, NEWS, OTHER_HASH, RECORDED_STATUSES, minimal, recorded_packet, u64

# Numbers of the specification


def test_packet_codes_are_those_of_the_specification() -> None:
    # 22 is decimal on the wire, though 10/WAKU-USAGE writes 0x22.
    assert {code.name: code.value for code in PacketCode} == {
        "STATUS": 0,
        "MESSAGES": 1,
        "BATCH_ACKNOWLEDGED": 11,
        "MESSAGE_RESPONSE": 12,
        "STATUS_UPDATE": 22,
        "P2P_REQUEST_COMPLETE": 125,
        "P2P_REQUEST": 126,
        "P2P_MESSAGE": 127,
    }
    assert PACKET_CODE_COUNT == 128


def test_packets_that_we_send_are_no_longer_than_deployed_clients_take() -> None:
    assert MAX_PACKET_BYTES == 1024 * 1024
    assert MAX_RECEIVED_PACKET_BYTES >= 1_500_000


# Message Response


def test_recorded_message_response_survives_decoding_and_encoding() -> None:
    payload = recorded_packet("confirmations", PacketCode.MESSAGE_RESPONSE)
    batch_hash = recorded_packet("confirmations", PacketCode.BATCH_ACKNOWLEDGED)[1:]

    response = MessageResponse.decode(payload)

    assert response == MessageResponse(batch_hash)
    assert MessageResponse(batch_hash).encode() == payload


envelope_errors = st.builds(
    EnvelopeError,
    st.binary(min_size=32, max_size=32).map(EnvelopeHash),
    u64.filter(lambda code: code != 21),
    st.text("a \xe9\u20ac", max_size=20),
)


@given(st.binary(min_size=32, max_size=32), st.lists(envelope_errors, max_size=5).map(tuple))
@settings(max_examples=40)
def test_message_response_survives_encoding_and_decoding(batch_hash: bytes, errors: tuple[EnvelopeError, ...]) -> None:
    response = MessageResponse(batch_hash, errors)

    encoded = response.encode()

    assert MessageResponse.decode(encoded) == response
    assert encoded == rlp.encode(
        [
            b"\x01",
            [batch_hash, [[error.hash, minimal(error.code), error.description.encode()] for error in errors]],
        ]
    )


@pytest.mark.parametrize(("sent", "meaning"), [(1, 1), (2, 2), (21, 1), (0, 0), (20, 20), (22, 22)])
def test_code_of_deployed_nodes_is_read_as_a_wrong_clock(sent: int, meaning: int) -> None:
    payload = rlp.encode([b"\x01", [HASH, [[OTHER_HASH, minimal(sent), b"why"]]]])

    response = MessageResponse.decode(payload)

    assert response == MessageResponse(HASH, (EnvelopeError(EnvelopeHash(OTHER_HASH), meaning, "why"),))


def test_error_codes_that_we_send_are_one_and_two() -> None:
    assert (EnvelopeErrorCode.TIME_SYNC, EnvelopeErrorCode.INVALID) == (1, 2)


def test_additional_elements_of_a_message_response_are_ignored() -> None:
    payload = rlp.encode([b"\x01", [HASH, [[OTHER_HASH, b"\x02", b"why", b"more"]], [b"more"]], b"more"])

    response = MessageResponse.decode(payload)

    assert response == MessageResponse(HASH, (EnvelopeError(EnvelopeHash(OTHER_HASH), 2, "why"),))


def test_description_that_is_not_utf8_is_read_with_replacements() -> None:
    payload = rlp.encode([b"\x01", [HASH, [[OTHER_HASH, b"\x02", b"caf\xe9"]]]])

    response = MessageResponse.decode(payload)

    assert response is not None
    assert [error.description for error in response.errors] == ["caf\N{REPLACEMENT CHARACTER}"]


@pytest.mark.parametrize("version", [0, 2, 255, 2**64 - 1])
def test_message_response_of_another_version_is_not_read(version: int) -> None:
    assert MessageResponse.decode(rlp.encode([minimal(version), b"what it means then"])) is None


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x01", id="a string"),
        pytest.param(b"\xc0", id="an empty list"),
        pytest.param(rlp.encode([b"\x01"]), id="a version alone"),
        pytest.param(rlp.encode([[], [HASH, []]]), id="a list as version"),
        pytest.param(rlp.encode([bytes([1] * 9), [HASH, []]]), id="a version of 9 bytes"),
        pytest.param(rlp.encode([b"\x00\x01", [HASH, []]]), id="a version with a leading zero"),
        pytest.param(rlp.encode([b"\x01", HASH]), id="no list of hash and errors"),
        pytest.param(rlp.encode([b"\x01", []]), id="neither hash nor errors"),
        pytest.param(rlp.encode([b"\x01", [HASH]]), id="no errors"),
        pytest.param(rlp.encode([b"\x01", [HASH, b""]]), id="errors are a string"),
        pytest.param(rlp.encode([b"\x01", [HASH[:31], []]]), id="a hash of 31 bytes"),
        pytest.param(rlp.encode([b"\x01", [[HASH], []]]), id="a list as hash"),
        pytest.param(rlp.encode([b"\x01", [HASH, [b"error"]]]), id="an error is a string"),
        pytest.param(rlp.encode([b"\x01", [HASH, [[HASH, b"\x01"]]]]), id="an error without description"),
        pytest.param(
            rlp.encode([b"\x01", [HASH, [[HASH + b"\x00", b"\x01", b""]]]]), id="an envelope hash of 33 bytes"
        ),
        pytest.param(rlp.encode([b"\x01", [HASH, [[HASH, bytes([1] * 9), b""]]]]), id="an error code of 9 bytes"),
        pytest.param(rlp.encode([b"\x01", [HASH, [[HASH, b"\x01", []]]]]), id="a list as description"),
        pytest.param(rlp.encode([b"\x01", [HASH, []]]) + b"\x00", id="bytes behind the list"),
    ],
)
def test_message_response_of_another_form_is_refused(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        MessageResponse.decode(payload)


# Batch Acknowledged


def test_recorded_batch_acknowledgement_survives_decoding_and_encoding() -> None:
    payload = recorded_packet("confirmations", PacketCode.BATCH_ACKNOWLEDGED)

    batch_hash = decode_batch_acknowledged(payload)

    assert payload == b"\xa0" + batch_hash
    assert encode_batch_acknowledged(batch_hash) == payload


def test_batch_acknowledgement_of_the_specification_is_a_list() -> None:
    assert decode_batch_acknowledged(rlp.encode([b"\x01", HASH])) == HASH


def test_additional_elements_of_a_batch_acknowledgement_are_ignored() -> None:
    assert decode_batch_acknowledged(rlp.encode([b"\x01", HASH, b"more"])) == HASH


@given(st.binary(min_size=32, max_size=32))
@settings(max_examples=20)
def test_batch_hash_survives_encoding_and_decoding(batch_hash: bytes) -> None:
    assert encode_batch_acknowledged(batch_hash) == rlp.encode(batch_hash)
    assert decode_batch_acknowledged(encode_batch_acknowledged(batch_hash)) == batch_hash


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xc0", id="an empty list"),
        pytest.param(rlp.encode(HASH[:31]), id="a hash of 31 bytes"),
        pytest.param(rlp.encode(HASH + b"\x00"), id="a hash of 33 bytes"),
        pytest.param(HASH, id="a hash without its header"),
        pytest.param(rlp.encode([b"\x01", HASH[:31]]), id="a hash of 31 bytes in a list"),
        pytest.param(rlp.encode([b"\x01", [HASH]]), id="a list in the list"),
        pytest.param(rlp.encode([b"\x01"]), id="a version alone"),
        pytest.param(rlp.encode(HASH) + b"\x00", id="bytes behind the hash"),
    ],
)
def test_batch_acknowledgement_of_another_form_is_refused(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_batch_acknowledged(payload)


# Anything at all


DECODERS: list[Callable[[bytes], object]] = [
    StatusOptions.decode,
    MessageResponse.decode,
    decode_batch_acknowledged,
]


WITH_ERRORS = MessageResponse(HASH, (EnvelopeError(EnvelopeHash(OTHER_HASH), 2, "too old"),)).encode()
each_decoder = pytest.mark.parametrize("decode", DECODERS, ids=["status", "message response", "batch acknowledged"])


@pytest.mark.parametrize(
    ("decode", "payload"),
    [
        (MessageResponse.decode, recorded_packet("confirmations", PacketCode.MESSAGE_RESPONSE)),
        (MessageResponse.decode, WITH_ERRORS),
        (decode_batch_acknowledged, recorded_packet("confirmations", PacketCode.BATCH_ACKNOWLEDGED)),
        (decode_batch_acknowledged, rlp.encode([b"\x01", HASH])),
    ],
    ids=["response", "response with errors", "deployed acknowledgement", "specified acknowledgement"],
)
def test_every_truncation_of_a_confirmation_is_refused(decode: Callable[[bytes], object], payload: bytes) -> None:
    for end in range(len(payload)):
        with pytest.raises(DecodeError):
            decode(payload[:end])
    assert decode(payload) is not None


nested: st.SearchStrategy[Any] = st.recursive(
    st.binary(max_size=8) | st.sampled_from([b"", b"\x00", b"\x01", HASH, NEWS, FULL_BLOOM]),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


def decodes_or_is_refused(decode: Callable[[bytes], object], payload: bytes) -> bool:
    """Whether it decodes; any error but DecodeError goes through and fails the test."""
    try:
        decode(payload)
    except DecodeError:
        return False
    return True


@each_decoder
@given(payload=st.binary(max_size=80) | nested.map(rlp.encode))
@settings(max_examples=60)
def test_any_bytes_decode_or_are_refused(decode: Callable[[bytes], object], payload: bytes) -> None:
    accepted = decodes_or_is_refused(decode, payload)

    # Whatever is accepted is canonical RLP and fills the payload.
    assert not accepted or rlp.encode(rlp.decode(payload)) == payload


@each_decoder
@given(at=st.integers(0, 30), value=st.integers(0, 255))
@settings(max_examples=60)
def test_any_changed_byte_decodes_or_is_refused(decode: Callable[[bytes], object], at: int, value: int) -> None:
    for payload in (RECORDED_STATUSES["light node"][0], WITH_ERRORS, b"\xa0" + HASH):
        changed = payload[:at] + bytes([value]) + payload[at + 1 :]

        accepted = decodes_or_is_refused(decode, changed)

        assert not accepted or rlp.encode(rlp.decode(changed)) == changed
