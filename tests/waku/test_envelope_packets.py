"""mailserver.waku.envelope: packets of envelopes, whole and a part at a time."""

import contextlib
from typing import Any

import pytest
import rlp
from hypothesis import example, given
from hypothesis import strategies as st

from mailserver.errors import DecodeError
from mailserver.waku import envelope as envelope_module
from mailserver.waku.envelope import (
    MAX_ENVELOPES_PER_LONG_PACKET,
    MAX_ENVELOPES_PER_PACKET,
    PART_BYTES,
    PART_ENVELOPES,
    EnvelopeReader,
    TooManyEnvelopes,
    count_envelopes,
    decode_envelope,
    decode_envelopes,
    encode_envelope,
    encode_envelopes,
    packet_bytes,
)
from tests.data import load
from tests.properties import settings
from tests.waku.envelopes import LONG, RECORDED, RECORDED_RAWS, SMALL, TOPIC, USUAL, keccak256

# Packets that were recorded truncated: their hex ends in "...".
CUT_PACKETS = [
    bytes.fromhex(packet["payload"].removesuffix("..."))
    for packet in load("packets.json")["packets"]
    if packet["payload"].endswith("...")
]


# Packets of envelopes


def test_envelopes_of_a_packet_keep_their_bytes() -> None:
    payload = rlp.encode([rlp.decode(raw) for raw in RECORDED_RAWS])

    envelopes = decode_envelopes(payload)

    assert envelopes == [decode_envelope(raw) for raw in RECORDED_RAWS]
    assert [envelope.pow() for envelope in envelopes] == [vector["pow"] for vector in RECORDED]


def test_packet_of_no_envelopes_is_an_empty_list() -> None:
    assert decode_envelopes(b"\xc0") == []
    assert encode_envelopes([]) == b"\xc0"


@given(st.lists(st.sampled_from([SMALL, LONG, RECORDED_RAWS[0]]), max_size=130))
@example([SMALL] * 2)
@example([SMALL] * 3)
@example([RECORDED_RAWS[0]] * 117)
@settings(max_examples=40)
def test_packet_is_the_rlp_list_of_its_envelopes(raws: list[bytes]) -> None:
    payload = encode_envelopes(raws)

    assert payload == rlp.encode([rlp.decode(raw) for raw in raws])
    assert len(payload) == packet_bytes(sum(map(len, raws)))
    assert [envelope.raw for envelope in decode_envelopes(payload)] == raws


@pytest.mark.parametrize("body_bytes", [0, 55, 56, 255, 256, 0xFFFF, 0x10000])
def test_packet_length_is_known_before_it_is_built(body_bytes: int) -> None:
    assert packet_bytes(body_bytes) == len(rlp.encode([b"\x01"] * body_bytes))
    assert packet_bytes(body_bytes) == len(encode_envelopes([bytes(body_bytes)]))


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x80", id="a string"),
        pytest.param(SMALL, id="an envelope without its list"),
        pytest.param(rlp.encode([rlp.decode(SMALL)]) + b"\x00", id="bytes behind the list"),
        pytest.param(rlp.encode([rlp.decode(SMALL), b"\x01"]), id="a string among envelopes"),
        pytest.param(rlp.encode([rlp.decode(SMALL), []]), id="an empty list among envelopes"),
        pytest.param(bytes([0xC0 + len(SMALL) - 1]) + SMALL[:-1], id="an envelope longer than the list"),
    ],
)
def test_packet_of_anything_but_envelopes_is_refused(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_envelopes(payload)


def test_every_truncation_of_a_packet_is_refused() -> None:
    payload = encode_envelopes(RECORDED_RAWS[-3:])

    for end in range(len(payload)):
        with pytest.raises(DecodeError):
            decode_envelopes(payload[:end])


@pytest.mark.parametrize("payload", CUT_PACKETS, ids=range(len(CUT_PACKETS)))
def test_packet_that_was_recorded_truncated_is_refused(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_envelopes(payload)


@given(st.binary(max_size=60))
@settings(max_examples=50)
def test_packet_of_any_bytes_holds_what_the_rlp_package_finds(payload: bytes) -> None:
    try:
        raws = [envelope.raw for envelope in decode_envelopes(payload)]
    except DecodeError:
        return

    assert payload == rlp.encode([rlp.decode(raw) for raw in raws])


@given(st.lists(st.sampled_from([*RECORDED_RAWS, SMALL, LONG, USUAL])))
def test_envelopes_of_a_packet_are_counted(raws: list[bytes]) -> None:
    assert count_envelopes(encode_envelopes(raws)) == len(raws)


PIECES = [b"\xf9\x00\x01\x00", b"\xf9\x01", b"\xf9", SMALL, b"\xc0"]


@given(
    st.one_of(st.binary(max_size=55), st.lists(st.sampled_from(PIECES)).map(lambda parts: b"".join(parts)[:55])).map(
        lambda body: bytes([0xC0 + len(body)]) + body
    )
)
def test_no_fewer_are_counted_than_are_looked_at(payload: bytes) -> None:
    looked_at = []

    def noted(data: bytes, at: int, end: int) -> Any:
        looked_at.append(at)
        return scan(data, at, end)

    scan = vars(envelope_module)["_scan"]
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(DecodeError):
        patch.setattr(envelope_module, "_scan", noted)
        decode_envelopes(payload)

    assert len(looked_at) <= count_envelopes(payload) <= len(payload)


def test_more_than_may_be_in_a_packet_are_not_counted() -> None:
    assert count_envelopes(encode_envelopes([b"\xc0"] * 10_000)) == MAX_ENVELOPES_PER_PACKET + 1


def test_packet_of_too_many_envelopes_is_refused() -> None:
    shortest = encode_envelope(0, 0, TOPIC, b"", 0).raw

    accepted = decode_envelopes(encode_envelopes([shortest] * MAX_ENVELOPES_PER_PACKET))
    with pytest.raises(DecodeError) as refused:
        decode_envelopes(encode_envelopes([shortest] * (MAX_ENVELOPES_PER_PACKET + 1)))

    assert len(accepted) == MAX_ENVELOPES_PER_PACKET
    assert refused.value.limit == MAX_ENVELOPES_PER_PACKET


# Long packets, a part at a time


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_long_packet_is_read_in_parts_whole_and_in_order(kind: type[bytes | bytearray]) -> None:
    raws = [encode_envelope(1000 + number, 10, TOPIC, bytes(number % 700), number).raw for number in range(3000)]
    payload = encode_envelopes(raws)
    reader = EnvelopeReader(kind(payload))

    parts = []
    while part := reader.read():
        parts.append(part)

    assert [envelope.raw for part in parts for envelope in part] == raws
    assert len(parts) == -(-3000 // PART_ENVELOPES)
    assert max(map(len, parts)) == PART_ENVELOPES
    assert reader.payload_hash() == keccak256(payload)
    assert reader.size == len(payload)


def test_part_of_a_long_packet_is_bounded_in_bytes() -> None:
    raws = [encode_envelope(1000, 10, TOPIC, bytes(PART_BYTES // 2), number).raw for number in range(4)]

    assert len(EnvelopeReader(bytearray(encode_envelopes(raws))).read()) == 2


def test_empty_long_packet_has_no_parts() -> None:
    reader = EnvelopeReader(bytearray(b"\xc0"))

    assert reader.read() == []
    assert reader.payload_hash() == keccak256(b"\xc0")


@pytest.mark.parametrize("payload", [b"", b"\x80", b"\xc0\x00", b"\xc2\x00"])
def test_long_packet_that_is_not_one_list_is_refused(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        EnvelopeReader(bytearray(payload))


def test_damage_within_a_long_packet_is_found_when_it_is_reached() -> None:
    whole = encode_envelope(1000, 10, TOPIC, bytes(300), 1).raw
    reader = EnvelopeReader(bytearray(encode_envelopes([whole] * PART_ENVELOPES + [b"\xc1\x00"])))

    assert len(reader.read()) == PART_ENVELOPES
    with pytest.raises(DecodeError):
        reader.read()


def test_long_packet_holds_no_more_envelopes_than_are_taken() -> None:
    raw = encode_envelope(1000, 10, TOPIC, b"", 1).raw
    reader = EnvelopeReader(bytearray(encode_envelopes([raw] * (MAX_ENVELOPES_PER_LONG_PACKET + 1))))

    with pytest.raises(TooManyEnvelopes):  # noqa: PT012 - at whichever part
        while reader.read():
            pass
