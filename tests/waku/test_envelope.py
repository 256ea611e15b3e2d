"""mailserver.waku.envelope: one envelope, against recorded ones, the `rlp` package and pycryptodome's Keccak."""

import math
from typing import Any

import pytest
import rlp
from hypothesis import example, given
from hypothesis import strategies as st

from mailserver.errors import DecodeError
from mailserver.waku.envelope import (
    Envelope,
    decode_envelope,
    decode_envelopes,
    encode_envelope,
    mine,
    pow_of,
)
from mailserver.waku.envelope_rows import read_fields
from tests.properties import settings
from tests.waku.envelopes import LONG, RECORDED, RECORDED_RAWS, SMALL, TOPIC, USUAL, keccak256

each_recorded = pytest.mark.parametrize("vector", RECORDED, ids=range(len(RECORDED)))
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
topics = st.binary(min_size=4, max_size=4)

# Around 55 bytes and 255 the headers grow; a single byte below 0x80 has none.
contents = st.one_of(st.binary(max_size=80), st.integers(200, 300).map(bytes), st.just(bytes(70_000)))
Fields = tuple[int, int, bytes, bytes, int]


def fields_of(envelope: Envelope) -> Fields:
    return envelope.expiry, envelope.ttl, envelope.topic, envelope.data, envelope.nonce


def minimal(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8, "big")


def expected_fields(raw: bytes) -> Fields | None:
    """What the `rlp` package and the text of 6/WAKU1 make of these bytes; None if they are no envelope."""
    try:
        item = rlp.decode(raw)
    except rlp.DecodingError:
        return None
    if isinstance(item, bytes) or len(item) != 5 or not all(isinstance(field, bytes) for field in item):
        return None
    if rlp.encode(item) != raw:
        return None
    expiry, ttl, topic, data, nonce = item
    if len(expiry) > 4 or len(ttl) > 4 or len(topic) != 4 or len(nonce) > 8:
        return None
    if any(number.startswith(b"\x00") for number in (expiry, ttl, nonce)):
        return None
    return (
        int.from_bytes(expiry, "big"),
        int.from_bytes(ttl, "big"),
        topic,
        data,
        int.from_bytes(nonce, "big"),
    )


def decoded_fields(raw: bytes) -> Fields | None:
    """What we make of these bytes, by themselves and between others; None if they are no envelope."""
    _, found, last = read_fields(USUAL + raw + SMALL, [len(USUAL), len(raw), len(SMALL)])
    assert last == (0x6B0120E3 - 0x32, 0x32, TOPIC, b"data", b"\1\0".rjust(8, b"\0"))
    try:
        envelope = decode_envelope(raw)
    except DecodeError:
        assert found is None
        return None
    assert envelope.raw == raw
    assert found == (envelope.created, envelope.ttl, envelope.topic, envelope.data, envelope.nonce.to_bytes(8, "big"))
    return fields_of(envelope)


def expected_pow(fields: Fields, counted_ttl: int) -> float:
    """6/WAKU1 "Proof of Work", from the fields alone; divided in the order of the deployed node."""
    expiry, ttl, topic, data, nonce = fields
    body = rlp.encode([minimal(expiry), minimal(ttl), topic, data])
    bits = f"{int.from_bytes(keccak256(body + nonce.to_bytes(8, 'big')), 'big'):0256b}"
    return 2.0 ** (256 - len(bits.lstrip("0"))) / len(body) / counted_ttl


def recorded(index: int = 0) -> Envelope:
    return decode_envelope(RECORDED_RAWS[index])


# Recorded envelopes


@each_recorded
def test_recorded_envelope_decodes_to_its_fields(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["raw"])

    envelope = decode_envelope(raw)

    assert envelope.raw == raw
    assert (envelope.expiry, envelope.ttl, envelope.nonce) == (
        vector["expiry"],
        vector["ttl"],
        vector["nonce"],
    )
    assert envelope.topic == bytes.fromhex(vector["topic"])
    assert envelope.data == rlp.decode(raw)[3]
    assert envelope.created == vector["expiry"] - vector["ttl"]


@each_recorded
def test_recorded_envelope_has_its_hash_and_proof_of_work(vector: dict[str, Any]) -> None:
    envelope = decode_envelope(bytes.fromhex(vector["raw"]))

    assert envelope.hash().hex() == vector["hash"]
    assert envelope.pow() == vector["pow"]


@each_recorded
def test_recorded_envelope_encodes_to_the_same_bytes(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["raw"])
    decoded = decode_envelope(raw)

    encoded = encode_envelope(*fields_of(decoded))

    assert encoded == decoded


@each_recorded
def test_every_truncation_of_a_recorded_envelope_is_refused(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["raw"])

    for end in range(len(raw)):
        with pytest.raises(DecodeError):
            decode_envelope(raw[:end])


@each_recorded
def test_recorded_envelope_with_a_byte_behind_it_is_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(DecodeError, match="followed by other bytes"):
        decode_envelope(bytes.fromhex(vector["raw"]) + b"\x00")


# Any envelope


@given(u32, u32, topics, contents, u64)
@example(0, 0, bytes(4), b"", 0)
@example(0x7F, 0x80, bytes(4), b"\x7f", 0x80)
@example(2**32 - 1, 2**32 - 1, b"\xff" * 4, b"\x80", 2**64 - 1)
@settings(max_examples=100)
def test_envelope_survives_encoding_and_decoding(expiry: int, ttl: int, topic: bytes, data: bytes, nonce: int) -> None:
    fields = (expiry, ttl, topic, data, nonce)

    envelope = encode_envelope(*fields)

    assert envelope.raw == rlp.encode([minimal(expiry), minimal(ttl), topic, data, minimal(nonce)])
    assert fields_of(envelope) == fields
    assert envelope.created == expiry - ttl
    assert envelope.hash() == keccak256(envelope.raw)
    assert envelope.pow() == expected_pow(fields, ttl or 1)


@pytest.mark.parametrize(
    ("expiry", "ttl", "topic", "nonce"),
    [
        pytest.param(2**32, 50, TOPIC, 0, id="expiry beyond 32 bits"),
        pytest.param(1, 2**32, TOPIC, 0, id="ttl beyond 32 bits"),
        pytest.param(1, 50, TOPIC[:3], 0, id="topic of 3 bytes"),
        pytest.param(1, 50, TOPIC + b"\x00", 0, id="topic of 5 bytes"),
        pytest.param(1, 50, TOPIC, 2**64, id="nonce beyond 64 bits"),
    ],
)
def test_envelope_that_could_not_be_read_is_not_encoded(expiry: int, ttl: int, topic: bytes, nonce: int) -> None:
    with pytest.raises(DecodeError):
        encode_envelope(expiry, ttl, topic, b"data", nonce)


def test_creation_before_1970_shows_as_below_zero() -> None:
    envelope = encode_envelope(10, 11, TOPIC, b"", 0)

    assert envelope.created == -1


# What is not an envelope


@pytest.mark.parametrize("raw", [SMALL, LONG, USUAL, RECORDED_RAWS[0]], ids=["small", "long", "usual", "recorded"])
def test_every_changed_byte_is_judged_as_the_rlp_package_judges_it(raw: bytes) -> None:
    for at in {*range(24), *range(len(raw) - 4, len(raw))}:
        for value in range(256):
            changed = raw[:at] + bytes([value]) + raw[at + 1 :]
            assert decoded_fields(changed) == expected_fields(changed), changed.hex()


@pytest.mark.parametrize("raw", [SMALL, LONG, USUAL, RECORDED_RAWS[27]], ids=["small", "long", "usual", "recorded"])
def test_every_missing_or_additional_byte_is_judged_as_the_rlp_package_judges_it(raw: bytes) -> None:
    for at in range(len(raw)):
        removed = raw[:at] + raw[at + 1 :]
        assert decoded_fields(removed) == expected_fields(removed), removed.hex()
        for value in (0x00, 0x01, 0x7F, 0x80, 0x81, 0x84, 0x85, 0xB7, 0xB8, 0xC0, 0xC1, 0xF8, 0xFF):
            added = raw[:at] + bytes([value]) + raw[at:]
            assert decoded_fields(added) == expected_fields(added), added.hex()


@pytest.mark.parametrize(
    ("size", "nonce"),
    [
        pytest.param(256, b"\x89" + b"\x01" * 9, id="nonce of 9 bytes"),
        pytest.param(256, b"\x88" + b"\x01" * 8, id="nonce of 8 bytes"),
        pytest.param(256, b"\x81\x7f", id="nonce of one byte with a header"),
        pytest.param(256, b"\x81\x80", id="nonce of one byte that has to have one"),
        pytest.param(256, b"\x7f", id="nonce that is its own encoding"),
        pytest.param(256, b"\x80", id="nonce of 0"),
        pytest.param(256, b"\x82\x00\x80", id="nonce with leading zeros"),
        pytest.param(255, b"\x82\x01\x00", id="length of data with leading zeros"),
        pytest.param(65_000, b"\x82\x01\x00", id="long data"),
    ],
)
def test_usual_envelope_is_judged_as_the_rlp_package_judges_it(size: int, nonce: bytes) -> None:
    body = USUAL[3:14] + b"\xb9" + size.to_bytes(2, "big") + bytes(size) + nonce
    raw = b"\xf9" + len(body).to_bytes(2, "big") + body

    assert decoded_fields(raw) == expected_fields(raw)


@st.composite
def mutated_envelopes(draw: st.DrawFn) -> bytes:
    """A valid envelope with one to four bytes changed, inserted or removed, mostly near its start or end."""
    raw = bytearray(draw(st.sampled_from([SMALL, LONG, USUAL, *RECORDED_RAWS])))
    for _ in range(draw(st.integers(1, 4))):
        near = min(24, len(raw) - 1)
        at = draw(st.one_of(st.integers(0, near), st.integers(-near, -1), st.integers(0, len(raw) - 1)))
        edit = draw(st.sampled_from(["change", "insert", "remove"]))
        if edit == "remove":
            del raw[at]
        elif edit == "insert":
            raw.insert(at, draw(st.integers(0, 255)))
        else:
            raw[at] ^= draw(st.integers(1, 255))
    return bytes(raw)


@given(mutated_envelopes())
@settings(max_examples=200)
def test_mutated_envelope_is_judged_as_the_rlp_package_judges_it(raw: bytes) -> None:
    assert decoded_fields(raw) == expected_fields(raw)


items: st.SearchStrategy[Any] = st.one_of(
    st.binary(max_size=9),
    st.sampled_from([b"", b"\x00", b"\x00\x01", b"\x01", b"\x80", TOPIC, bytes(56), []]),
    st.lists(st.binary(max_size=2), max_size=2),
)


@given(st.lists(items, max_size=7).map(rlp.encode))
@example(rlp.encode([b"\x01", b"\x01", TOPIC, [b"data"], b"\x01"]))
@example(rlp.encode([b"\x01", b"\x01", TOPIC, b"data", [b"\x01"]]))
@example(rlp.encode([b"\x01", b"\x01", TOPIC, b"data", bytes([1] * 9)]))
@example(rlp.encode([b"\x01", b"\x01", TOPIC, b"data", b"\x00\x01"]))
@example(rlp.encode([b"\x01", b"\x01", TOPIC, b"data", b"\x01", b"\x01"]))
@example(rlp.encode([b"\x01", b"\x01", TOPIC, b"data"]))
@example(rlp.encode([b"\x01", b"\x01"]))
@example(rlp.encode([b"\x01"]))
@example(rlp.encode([b"\x00", b"\x01", TOPIC, b"data", b"\x01"]))
@example(rlp.encode([b"\x00\x80", b"\x01", TOPIC, b"data", b"\x01"]))
@example(rlp.encode([[b"\x01"], b"\x01", TOPIC, b"data", b"\x01"]))
@settings(max_examples=150)
def test_list_of_any_fields_is_judged_as_the_rlp_package_judges_it(raw: bytes) -> None:
    assert decoded_fields(raw) == expected_fields(raw)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\x81\x7f\x01\x84abcd\x80\x80", id="expiry of one byte with a header"),
        pytest.param(b"\x01\x81\x7f\x84abcd\x80\x80", id="ttl of one byte with a header"),
        pytest.param(b"\x01\x01\x84abcd\x81\x7f\x80", id="data of one byte with a header"),
        pytest.param(b"\x01\x01\x84abcd\x80\x81\x7f", id="nonce of one byte with a header"),
        pytest.param(b"\x01\x01\xb8\x04abcd\x80\x80", id="topic with a length of its own"),
        pytest.param(b"\x01\x01\x84abcd\xb8\x01\x80\x80", id="data with a length of its own"),
        pytest.param(b"\x01\x01\x84abcd\x80", id="four fields"),
        pytest.param(b"\x01\x01\x84abcd\x80\x80\x80", id="six fields"),
        pytest.param(b"\x01\x82\x01", id="ttl beyond the list"),
        pytest.param(b"\x01\x01\x84abc", id="topic beyond the list"),
        pytest.param(b"\x01\x01\x84abcd\x82\x80", id="data beyond the list"),
        pytest.param(b"\x01\x01\x84abcd\x80\x82\x80", id="nonce beyond the list"),
    ],
)
def test_list_with_fields_in_another_form_is_refused(body: bytes) -> None:
    raw = bytes([0xC0 + len(body)]) + body

    with pytest.raises(DecodeError):
        decode_envelope(raw)
    with pytest.raises(DecodeError):
        decode_envelopes(bytes([0xC0 + len(raw) + len(SMALL)]) + raw + SMALL)
    assert expected_fields(raw) is None


@given(st.binary(max_size=60))
@example(b"")
@example(b"\x80")
@example(b"\xc0")
@example(b"\xff" * 9)
@settings(max_examples=100)
def test_any_bytes_are_judged_as_the_rlp_package_judges_them(raw: bytes) -> None:
    assert decoded_fields(raw) == expected_fields(raw)


# Proof of work


@given(u32.filter(bool), st.integers(-30, 10))
@example(50, 1)
@settings(max_examples=50)
def test_proof_of_work_counts_time_ahead_and_a_second_more(ttl: int, ahead: int) -> None:
    fields = (2_000_000_000, ttl, TOPIC, b"data", 12)
    counted_ttl = ttl + ahead + 1 if ahead > 0 else ttl

    assert encode_envelope(*fields).pow(ahead) == expected_pow(fields, counted_ttl)


def test_proof_of_work_with_a_ttl_of_zero_is_finite() -> None:
    fields = (2_000_000_000, 0, TOPIC, b"data", 12)

    assert encode_envelope(*fields).pow() == expected_pow(fields, 1)
    assert math.isfinite(encode_envelope(*fields).pow())


@pytest.mark.parametrize("zero_bits", [0, 1, 7, 8, 9, 255, 256])
def test_proof_of_work_doubles_with_each_leading_zero_bit(zero_bits: int) -> None:
    digest = ((1 << 256 >> zero_bits) - 1).to_bytes(32, "big")

    assert pow_of(digest, 100, 50) == 2.0**zero_bits / 5000


@pytest.mark.parametrize("first_nonce", [1000, 1001])
def test_mined_envelope_has_the_first_nonce_that_reaches_the_target(first_nonce: int) -> None:
    target = 0.05

    envelope = mine(2_000_000_000, 50, TOPIC, b"data", target=target, first_nonce=first_nonce)

    attempts = [(2_000_000_000, 50, TOPIC, b"data", nonce) for nonce in range(first_nonce, envelope.nonce + 1)]
    reached = [expected_pow(fields, 50) >= target for fields in attempts]
    assert fields_of(envelope) == attempts[-1]
    assert reached == [False] * (len(attempts) - 1) + [True]
    assert len(attempts) > 1
