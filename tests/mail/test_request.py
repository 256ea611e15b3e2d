"""mailserver.mail.request: what a request is, bounds, cursors, and any bytes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import rlp
from hypothesis import example, given
from hypothesis import strategies as st

from mailserver.codec.keccak import keccak256
from mailserver.codec.keys import PrivateKey
from mailserver.errors import DecodeError, Rejection, RequestRejected
from mailserver.mail.completion import decode_completion
from mailserver.mail.request import (
    CURSOR_BYTES,
    ClearRequest,
    Cursor,
    MailRequest,
    RequestId,
    SealedRequest,
    decode_clear,
    decode_fields,
    decode_request,
    encode_fields,
    fallback_request_id,
)
from mailserver.waku.bloom import FULL_BLOOM, Interest, bloom_of
from mailserver.waku.envelope import EnvelopeHash, Topic
from mailserver.waku.packets import PacketCode
from mailserver.waku.payload import open_asymmetric, open_symmetric
from tests.data import load
from tests.mail.values import CURSOR, CURSOR_ON_THE_WIRE, ID, MAX_U32, NEWS, NOW, SPORT
from tests.properties import settings

WAKU_OFFSET = 0x10
PACKETS = load("packets.json")
SYMMETRIC_KEY = bytes.fromhex(PACKETS["mailserver_symmetric_key"])
SESSIONS = load("sessions.json")["sessions"]


# Recorded requests


@dataclass(frozen=True)
class Recorded:
    """One recorded P2P Request, what answered it, and what it asks for."""

    payload: bytes
    completion: bytes
    private_key: str
    asks: MailRequest

    def plaintext(self) -> bytes:
        """What is in the envelope; the symmetric key opens it, or for one of them the private key."""
        request = decode_request(self.payload)
        assert isinstance(request, SealedRequest)
        try:
            return open_symmetric(request.envelope.data, SYMMETRIC_KEY).payload
        except DecodeError:
            return open_asymmetric(request.envelope.data, PrivateKey(bytes.fromhex(self.private_key))).payload


def packets_of(group: str, code: int) -> list[bytes]:
    packets = PACKETS["packets"]
    return [
        bytes.fromhex(packet["payload"]) for packet in packets if (packet["group"], packet["code"]) == (group, code)
    ]


def messages_of(session: Any, code: int) -> list[bytes]:
    messages = session["messages"]
    return [bytes.fromhex(message["payload"]) for message in messages if message["message_id"] == WAKU_OFFSET + code]


def asks(
    lower: int, upper: int, *topics: bytes, limit: int, bloom: bytes = FULL_BLOOM, request_id: str = ""
) -> MailRequest:
    interest = Interest(topics=frozenset(Topic(topic) for topic in topics)) if topics else Interest(bloom=bloom)
    return MailRequest(RequestId(bytes.fromhex(request_id)), lower, upper, interest, limit)


def asks_for_second_1(request_id: str) -> MailRequest:
    """What the client asks to measure the round trip."""
    return asks(1, 1, limit=1, request_id=request_id)


ASKED_IN_PACKETS = {
    "plain": asks(
        0x6B011C8E,
        0x6B011EE5,
        b"\x01\x02\x03\x04",
        limit=1,
        request_id="3934326637383035396261613431636138336663346230646133663466376337",
    ),
    "env": asks(
        0x6B011C8E,
        0,
        b"\x01\x02\x03\x04",
        b"\x0a\x0b\x0c\x0d",
        limit=2,
        request_id="ad6ba047db4d56187f4becef92cec689242bd42e1e6931b704d30a47d5a08009",
    ),
}
ASKED_IN_SESSIONS = {
    "handshake": [
        asks_for_second_1("6633613032346366613834333462316138616330356538333038373939346333"),
        asks_for_second_1("6463393031653636653864663431383961666638316539613131656466363162"),
    ],
    "req-env": [
        asks(
            0x6B0112C4,
            0x6B0120D3,
            NEWS,
            SPORT,
            limit=500,
            request_id="8d51fe999b19b5f549dce5cd0a9c8f497660ff8d25b490b4cfd28edec9dbbc06",
        )
    ],
    "req-plain": [
        asks(
            0x6B01132D,
            0x6B01213C,
            NEWS,
            limit=1000,
            request_id="6237633464366237393262333462633062346263666334666532376338633637",
        )
    ],
    "req-bloom": [
        asks(
            0x6AFFCF64,
            0x6B0120E3,
            limit=100,
            request_id="111357e9db68e4f88c4c20d5474cd6b201d78abd5e8bbde17351b22d12860a6b",
        )
    ],
    "req-real": [
        asks(
            0x6B0112DD,
            0x6B0120EC,
            NEWS,
            limit=100,
            request_id="2c166a4700b0532ac32822de4998a45b36cf33b8c10f678054a96be473ca21e3",
        )
    ],
    "req-asym": [
        asks(
            0x6B0112E5,
            0x6B0120F4,
            NEWS,
            limit=100,
            request_id="309a141f938ee505f20959c8a8d6f5ef5ad29ae5eeeced4e35b5789875a0c904",
        )
    ],
    "light": [asks_for_second_1("3565323061633533643536303437643738353065623966323662396132623039")],
    "v0": [asks_for_second_1("6361303333346436313264643439383061396531343934653365303264386463")],
}


def recorded_requests() -> dict[str, Recorded]:
    recorded = {}
    for group, asked in ASKED_IN_PACKETS.items():
        (request,) = packets_of(group, PacketCode.P2P_REQUEST)
        (completion,) = packets_of(group, PacketCode.P2P_REQUEST_COMPLETE)
        recorded[group] = Recorded(request, completion, "", asked)
    for session in SESSIONS:
        requests = messages_of(session, PacketCode.P2P_REQUEST)
        completions = messages_of(session, PacketCode.P2P_REQUEST_COMPLETE)
        expected = ASKED_IN_SESSIONS.get(session["name"], [])
        for number, fields in enumerate(zip(requests, completions, expected, strict=True)):
            request, completion, asked = fields
            name = f"{session['name']} {number}"
            recorded[name] = Recorded(request, completion, session["recipient_private_key"], asked)
    return recorded


RECORDED = recorded_requests()
CLEAR = {name: each for name, each in RECORDED.items() if isinstance(decode_request(each.payload), ClearRequest)}
SEALED = {name: each for name, each in RECORDED.items() if name not in CLEAR}
each_recorded = pytest.mark.parametrize("recorded", list(RECORDED.values()), ids=list(RECORDED))
each_clear = pytest.mark.parametrize("recorded", list(CLEAR.values()), ids=list(CLEAR))
each_sealed = pytest.mark.parametrize("recorded", list(SEALED.values()), ids=list(SEALED))


def test_every_recorded_request_is_known_here() -> None:
    in_packets = [packet for packet in PACKETS["packets"] if packet["code"] == PacketCode.P2P_REQUEST]
    in_sessions = [message for session in SESSIONS for message in messages_of(session, PacketCode.P2P_REQUEST)]

    assert len(RECORDED) == len(in_packets) + len(in_sessions) == 11
    assert len(CLEAR) == 6
    assert len(SEALED) == 5


@each_clear
def test_recorded_request_in_the_clear_is_read(recorded: Recorded) -> None:
    request = decode_request(recorded.payload)

    assert isinstance(request, ClearRequest)
    assert request.request_id == recorded.asks.request_id
    assert decode_clear(request) == recorded.asks


@each_sealed
def test_recorded_request_in_an_envelope_is_read(recorded: Recorded) -> None:
    request = decode_request(recorded.payload)

    assert isinstance(request, SealedRequest)
    assert request.request_id == recorded.asks.request_id
    assert decode_fields(request.request_id, recorded.plaintext()) == recorded.asks


@pytest.mark.parametrize("name", [name for name in SEALED if name != "env"])
def test_our_request_is_encoded_as_the_deployed_client_does(name: str) -> None:
    # Not "env": where two bits of a topic share a byte of the bloom filter, deployed clients set only the later one.
    recorded = SEALED[name]

    assert encode_fields(recorded.asks) == recorded.plaintext()


def test_recorded_request_to_a_public_key_is_not_opened_by_the_password() -> None:
    request = decode_request(RECORDED["req-asym 0"].payload)

    assert isinstance(request, SealedRequest)
    with pytest.raises(DecodeError):
        open_symmetric(request.envelope.data, SYMMETRIC_KEY)


@each_recorded
def test_recorded_completion_bears_the_id_of_its_request(recorded: Recorded) -> None:
    request = decode_request(recorded.payload)

    assert decode_completion(recorded.completion).request_id == request.request_id


@each_sealed
def test_id_of_a_request_in_an_envelope_is_the_hash_of_the_envelope(recorded: Recorded) -> None:
    assert decode_request(recorded.payload).request_id == keccak256(recorded.payload)


@each_recorded
def test_every_truncation_of_a_recorded_request_is_refused(recorded: Recorded) -> None:
    for end in range(len(recorded.payload)):
        with pytest.raises(DecodeError):
            decode_request(recorded.payload[:end])


@each_sealed
def test_every_truncation_of_a_recorded_plaintext_is_refused(recorded: Recorded) -> None:
    plaintext = recorded.plaintext()

    for end in range(len(plaintext)):
        with pytest.raises(RequestRejected) as caught:
            decode_fields(ID, plaintext[:end])
        assert caught.value.rejection is Rejection.MALFORMED


# What a P2P Request is


def envelope_fields(**changed: Any) -> list[Any]:
    fields = {"expiry": b"\x6b\x01\x1f\x18", "ttl": b"\x32", "topic": bytes(4), "data": b"sealed", "nonce": b"\x07"}
    return list((fields | changed).values())


def clear_fields(**changed: Any) -> list[Any]:
    fields: dict[str, Any] = {
        "id": ID,
        "lower": b"\x01",
        "upper": b"\x02",
        "limit": b"\x03",
        "cursor": b"",
        "bloom": FULL_BLOOM,
        "topics": [],
    }
    return list((fields | changed).values())


@pytest.mark.parametrize("zero", ["expiry", "ttl", "nonce"])
def test_envelope_may_have_zeros_as_nim_clients_send(zero: str) -> None:
    payload = rlp.encode(envelope_fields(**{zero: b""}))

    request = decode_request(payload)

    assert isinstance(request, SealedRequest)
    assert request.envelope.raw == payload
    assert request.envelope.data == b"sealed"


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(rlp.encode(b"text"), id="a string"),
        pytest.param(rlp.encode(ID), id="an id alone"),
        pytest.param(rlp.encode([]), id="an empty list"),
        pytest.param(rlp.encode(envelope_fields()[:4]), id="4 fields"),
        pytest.param(rlp.encode([*envelope_fields(), b""]), id="6 fields"),
        pytest.param(rlp.encode([*envelope_fields(), b"", b""]), id="7 fields and no id"),
        pytest.param(rlp.encode(clear_fields()[:6]), id="6 fields and an id"),
        pytest.param(rlp.encode(clear_fields()[:5]), id="5 fields and an id"),
        pytest.param(rlp.encode(clear_fields(id=ID[:31])), id="id of 31 bytes"),
        pytest.param(rlp.encode(clear_fields(id=ID + b"\x00")), id="id of 33 bytes"),
        pytest.param(rlp.encode(clear_fields(id=[ID])), id="id is a list"),
        pytest.param(rlp.encode(envelope_fields(topic=bytes(3))), id="envelope with a topic of 3 bytes"),
        pytest.param(rlp.encode(envelope_fields(data=[])), id="envelope whose data is a list"),
        pytest.param(rlp.encode(clear_fields()) + b"\x00", id="other bytes after it"),
    ],
)
def test_neither_an_envelope_nor_the_clear_form_is_refused(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_request(payload)


def test_id_in_the_clear_may_be_any_32_bytes() -> None:
    request = decode_request(rlp.encode(clear_fields(id=bytes(32))))

    assert isinstance(request, ClearRequest)
    assert request.request_id == bytes(32)


def test_elements_after_those_of_the_clear_form_are_ignored() -> None:
    plain = decode_request(rlp.encode(clear_fields()))
    longer = decode_request(rlp.encode([*clear_fields(), b"more", [b"and more"]]))

    assert isinstance(plain, ClearRequest)
    assert isinstance(longer, ClearRequest)
    assert decode_clear(longer) == decode_clear(plain)


def test_request_without_readable_id_is_answered_under_the_hash_of_its_bytes() -> None:
    # Keccak-256 of the empty string, a well-known value.
    empty = bytes.fromhex("c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470")

    assert fallback_request_id(b"") == empty
    assert fallback_request_id(b"request") == keccak256(b"request")


# Bounds


def bounds(lower: int, upper: int, now: int = NOW) -> tuple[int, int]:
    return MailRequest(ID, lower, upper, Interest()).bounds(now)


@pytest.mark.parametrize(
    ("lower", "upper"), [(0, 1), (5, 9), (5, 5), (0, MAX_U32), (MAX_U32, MAX_U32), (NOW, NOW + 1_000_000)]
)
def test_bounds_are_as_asked_for(lower: int, upper: int) -> None:
    assert bounds(lower, upper) == (lower, upper)


def test_upper_of_zero_is_a_minute_from_now() -> None:
    assert bounds(0, 0) == (0, NOW + 60)
    assert bounds(NOW + 60, 0) == (NOW + 60, NOW + 60)


def test_upper_of_zero_stays_within_4_bytes() -> None:
    assert bounds(0, 0, now=MAX_U32 - 60) == (0, MAX_U32)
    assert bounds(0, 0, now=MAX_U32 - 59) == (0, MAX_U32)
    assert bounds(0, 0, now=MAX_U32) == (0, MAX_U32)


@pytest.mark.parametrize(("lower", "upper"), [(2, 1), (MAX_U32, 1), (MAX_U32, MAX_U32 - 1), (NOW + 61, 0)])
def test_lower_above_upper_is_refused(lower: int, upper: int) -> None:
    with pytest.raises(RequestRejected) as caught:
        bounds(lower, upper)

    assert caught.value.rejection is Rejection.BAD_RANGE


# Cursors


u32 = st.integers(0, MAX_U32)
hashes = st.binary(min_size=32, max_size=32).map(EnvelopeHash)
cursors = st.builds(Cursor, u32, hashes)


def test_cursor_is_created_and_hash() -> None:
    assert CURSOR.encode() == CURSOR_ON_THE_WIRE
    assert Cursor.decode(CURSOR_ON_THE_WIRE) == CURSOR


@given(cursors)
@example(Cursor(0, EnvelopeHash(bytes(32))))
@example(Cursor(MAX_U32, EnvelopeHash(b"\xff" * 32)))
@settings(max_examples=50)
def test_cursor_survives_encoding_and_decoding(cursor: Cursor) -> None:
    assert len(cursor.encode()) == CURSOR_BYTES
    assert Cursor.decode(cursor.encode()) == cursor


@given(cursors, cursors)
@settings(max_examples=50)
def test_cursors_stand_in_the_order_of_their_bytes(one: Cursor, other: Cursor) -> None:
    assert (one < other) == (one.encode() < other.encode())


@given(st.binary(max_size=80).filter(lambda data: len(data) != CURSOR_BYTES))
@settings(max_examples=30)
def test_cursor_of_another_length_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        Cursor.decode(data)


# Any request, any bytes


interests = st.one_of(
    st.frozensets(st.binary(min_size=4, max_size=4).map(Topic), min_size=1, max_size=20).map(
        lambda topics: Interest(topics=topics)
    ),
    st.binary(min_size=64, max_size=64).map(lambda bloom: Interest(bloom=bloom)),
)
requests = st.builds(
    MailRequest,
    hashes.map(RequestId),
    lower=u32,
    upper=u32,
    interest=interests,
    limit=u32,
    cursor=st.none() | cursors,
    one_per_packet=st.booleans(),
)


@given(requests)
@settings(max_examples=60)
def test_request_survives_encoding_and_decoding(request: MailRequest) -> None:
    assert decode_fields(request.request_id, encode_fields(request)) == request


@given(requests)
@settings(max_examples=30)
def test_request_is_encoded_with_the_bloom_of_its_topics(request: MailRequest) -> None:
    fields = rlp.decode(encode_fields(request))

    topics = request.interest.topics
    assert len(fields) == 7
    assert fields[2] == (request.interest.bloom if topics is None else bloom_of(topics))
    assert list(fields[3]) == ([] if topics is None else sorted(topics))


likely: list[Any] = [b"", b"\x00", b"\x01", bytes(4), NEWS, ID, CURSOR_ON_THE_WIRE, FULL_BLOOM, [], [NEWS], [b""]]
any_field = st.sampled_from([*likely, [likely], [NEWS, b""]]) | st.binary(max_size=5)
any_payload = st.binary(max_size=80) | st.lists(any_field, max_size=9).map(rlp.encode)


@given(any_payload)
@settings(max_examples=60)
def test_any_bytes_are_a_request_or_refused(payload: bytes) -> None:
    try:
        request = decode_request(payload)
    except DecodeError:
        return
    if isinstance(request, SealedRequest):
        assert request.envelope.raw == payload
        return
    assert len(request.request_id) == 32
    assert_is_sound_or_rejected(lambda: decode_clear(request))


@given(any_payload)
@settings(max_examples=60)
def test_any_plaintext_is_a_request_or_rejected(plaintext: bytes) -> None:
    assert_is_sound_or_rejected(lambda: decode_fields(ID, plaintext))


@given(st.lists(any_field, min_size=6, max_size=8))
@settings(max_examples=60)
def test_any_fields_in_the_clear_are_a_request_or_rejected(fields: Sequence[Any]) -> None:
    request = decode_request(rlp.encode([ID, *fields]))

    assert isinstance(request, ClearRequest)
    assert_is_sound_or_rejected(lambda: decode_clear(request))


@given(st.sampled_from(list(SEALED)), st.integers(0, 95), st.integers(0, 255))
@settings(max_examples=60)
def test_any_changed_byte_of_a_recorded_plaintext_is_a_request_or_rejected(name: str, at: int, value: int) -> None:
    plaintext = bytearray(PLAINTEXTS[name])
    plaintext[at % len(plaintext)] = value

    assert_is_sound_or_rejected(lambda: decode_fields(ID, bytes(plaintext)))


PLAINTEXTS = {name: recorded.plaintext() for name, recorded in SEALED.items()}


def assert_is_sound_or_rejected(decode: Callable[[], MailRequest]) -> None:
    """Any error but RequestRejected goes through and fails the test."""
    try:
        request = decode()
    except RequestRejected:
        return
    assert 0 <= request.lower <= MAX_U32
    assert 0 <= request.upper <= MAX_U32
    assert 0 <= request.limit <= MAX_U32
    assert request.cursor is None or len(request.cursor.hash) == 32
    if request.interest.topics is None:
        assert len(request.interest.bloom) == 64
    else:
        assert request.interest.topics
        assert all(len(topic) == 4 for topic in request.interest.topics)
