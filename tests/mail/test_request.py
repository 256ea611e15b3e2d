"""mailserver.mail.request against recorded requests and requests built by the `rlp` package."""

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
    MAX_REQUEST_TOPICS,
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
from tests.properties import settings

WAKU_OFFSET = 0x10
MAX_U32 = 0xFFFF_FFFF
NOW = 1_795_000_000

PACKETS = load("packets.json")
SYMMETRIC_KEY = bytes.fromhex(PACKETS["mailserver_symmetric_key"])
SESSIONS = load("sessions.json")["sessions"]

NEWS = Topic(b"\x9a\xcb\x04\x42")
SPORT = Topic(b"\xf0\xc5\x34\x1e")
ID = RequestId(bytes(range(32)))
CURSOR = Cursor(NOW, EnvelopeHash(bytes(range(100, 132))))
CURSOR_ON_THE_WIRE = NOW.to_bytes(4, "big") + bytes(range(100, 132))


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


# The fields, in every form


def deployed(*, lower: Any, upper: Any, bloom: Any, topics: Any, limit: Any, cursor: Any) -> MailRequest:
    return decode_fields(ID, rlp.encode([lower, upper, bloom, topics, limit, cursor, b"\x01"]))


def specified(*, lower: Any, upper: Any, bloom: Any, topics: Any, limit: Any, cursor: Any) -> MailRequest:
    return decode_fields(ID, rlp.encode([lower, upper, bloom, limit, cursor, topics]))


def in_the_clear(*, lower: Any, upper: Any, bloom: Any, topics: Any, limit: Any, cursor: Any) -> MailRequest:
    request = decode_request(rlp.encode([ID, lower, upper, limit, cursor, bloom, topics]))
    assert isinstance(request, ClearRequest)
    return decode_clear(request)


class Form:
    """One form of a request; `ask` sends one, with fields other than the usual ones by name."""

    def __init__(self, decode: Callable[..., MailRequest]) -> None:
        self.decode = decode

    def ask(self, **changed: Any) -> MailRequest:
        fields = {"lower": b"\x05", "upper": b"\x09", "bloom": FULL_BLOOM, "topics": [], "limit": b"", "cursor": b""}
        return self.decode(**(fields | changed))

    def rejects(self, **changed: Any) -> Rejection:
        with pytest.raises(RequestRejected) as caught:
            self.ask(**changed)
        return caught.value.rejection


FORMS = {"deployed": Form(deployed), "specified": Form(specified), "in the clear": Form(in_the_clear)}

each_form = pytest.mark.parametrize("form", list(FORMS.values()), ids=list(FORMS))
each_form_but_the_deployed = pytest.mark.parametrize("form", list(FORMS.values())[1:], ids=list(FORMS)[1:])
each_number = pytest.mark.parametrize("field", ["lower", "upper", "limit"])


@each_form
def test_every_field_is_read_in_its_place(form: Form) -> None:
    request = form.ask(
        lower=b"\x01\x02",
        upper=b"\x03\x04\x05",
        bloom=bloom_of([NEWS]),
        topics=[],
        limit=b"\x06",
        cursor=CURSOR_ON_THE_WIRE,
    )

    assert request == MailRequest(
        ID, lower=0x0102, upper=0x030405, interest=Interest(bloom=bloom_of([NEWS])), limit=6, cursor=CURSOR
    )


@each_form
@each_number
@pytest.mark.parametrize(
    ("on_the_wire", "number"),
    [
        (b"", 0),
        (b"\x00", 0),
        (b"\x07", 7),
        (b"\x00\x00\x00\x00", 0),
        (b"\x00\x00\x00\x07", 7),
        (b"\x00\x01\x00\x00", 0x10000),
        (b"\xff\xff\xff\xff", MAX_U32),
    ],
)
def test_number_has_up_to_4_bytes_and_may_begin_with_zeros(
    form: Form, field: str, on_the_wire: bytes, number: int
) -> None:
    assert getattr(form.ask(**{field: on_the_wire}), field) == number


@each_form
@each_number
@pytest.mark.parametrize("on_the_wire", [b"\x01\x00\x00\x00\x00", bytes(5), bytes(32)])
def test_number_of_more_than_4_bytes_is_malformed(form: Form, field: str, on_the_wire: bytes) -> None:
    assert form.rejects(**{field: on_the_wire}) is Rejection.MALFORMED


@each_form
@pytest.mark.parametrize("field", ["lower", "upper"])
def test_bound_that_is_a_list_is_malformed(form: Form, field: str) -> None:
    assert form.rejects(**{field: [b"\x01"]}) is Rejection.MALFORMED


@pytest.mark.parametrize("form", [FORMS["deployed"], FORMS["in the clear"]], ids=["deployed", "in the clear"])
@pytest.mark.parametrize("limit", [[], [b"\x01"]])
def test_limit_that_is_a_list_is_malformed(form: Form, limit: Any) -> None:
    assert form.rejects(limit=limit) is Rejection.MALFORMED


@each_form
@pytest.mark.parametrize("null", [b"", []], ids=["empty string", "empty list"])
def test_null_cursor_is_no_cursor(form: Form, null: Any) -> None:
    assert form.ask(cursor=null).cursor is None


@each_form
@pytest.mark.parametrize("cursor", [bytes(CURSOR_BYTES), b"\xff" * CURSOR_BYTES, CURSOR_ON_THE_WIRE])
def test_cursor_may_be_any_36_bytes(form: Form, cursor: bytes) -> None:
    request = form.ask(cursor=cursor)

    assert request.cursor == Cursor(int.from_bytes(cursor[:4], "big"), EnvelopeHash(cursor[4:]))


@each_form
@pytest.mark.parametrize(
    "cursor",
    [b"\x00", bytes(4), bytes(32), bytes(35), bytes(37), bytes(72), [CURSOR_ON_THE_WIRE], [b""]],
    ids=["1 byte", "4 bytes", "32 bytes", "35 bytes", "37 bytes", "72 bytes", "a list", "a list of nothing"],
)
def test_malformed_cursor_is_refused(form: Form, cursor: Any) -> None:
    assert form.rejects(cursor=cursor) is Rejection.BAD_CURSOR


@each_form
@pytest.mark.parametrize(
    "bloom",
    [b"", FULL_BLOOM, bytes(64), b"\x01", bytes(63), bytes(65), []],
    ids=["empty", "full", "zeros", "1 byte", "63 bytes", "65 bytes", "a list"],
)
def test_topics_are_asked_for_and_the_bloom_ignored_whatever_it_is(form: Form, bloom: Any) -> None:
    request = form.ask(topics=[SPORT, NEWS, SPORT], bloom=bloom)

    assert request.interest == Interest(topics=frozenset({NEWS, SPORT}))


@each_form
@pytest.mark.parametrize("bloom", [FULL_BLOOM, bytes(64), bloom_of([NEWS])], ids=["full", "zeros", "one topic"])
def test_bloom_is_asked_for_where_there_are_no_topics(form: Form, bloom: bytes) -> None:
    request = form.ask(topics=[], bloom=bloom)

    assert request.interest == Interest(topics=None, bloom=bloom)


@each_form
@pytest.mark.parametrize("size", [1, 32, 63, 65, 128, 512])
def test_bloom_of_another_size_is_refused_where_there_are_no_topics(form: Form, size: int) -> None:
    assert form.rejects(bloom=b"\xff" * size) is Rejection.BAD_BLOOM


@each_form
def test_bloom_that_is_a_list_is_malformed_where_there_are_no_topics(form: Form) -> None:
    assert form.rejects(bloom=[FULL_BLOOM]) is Rejection.MALFORMED


@each_form
def test_neither_topics_nor_bloom_is_refused(form: Form) -> None:
    assert form.rejects(topics=[], bloom=b"") is Rejection.EMPTY_FILTER


@each_form
@pytest.mark.parametrize(
    "wrong", [b"", b"\x01", NEWS[:3], NEWS + b"\x00", bytes(32), [NEWS], []], ids=lambda wrong: repr(wrong)[:12]
)
@pytest.mark.parametrize("before", [0, 1])
def test_topic_that_is_not_4_bytes_is_refused(form: Form, wrong: Any, before: int) -> None:
    assert form.rejects(topics=[NEWS] * before + [wrong]) is Rejection.BAD_TOPIC


def numbered_topics(count: int) -> list[bytes]:
    return [number.to_bytes(4, "big") for number in range(count)]


@each_form
def test_1000_topics_may_be_asked_for(form: Form) -> None:
    topics = numbered_topics(1000)

    assert MAX_REQUEST_TOPICS == 1000
    assert form.ask(topics=topics).interest.topics == frozenset(topics)


@each_form
@pytest.mark.parametrize("count", [1001, 2000])
def test_more_than_1000_topics_are_refused(form: Form, count: int) -> None:
    assert form.rejects(topics=numbered_topics(count)) is Rejection.TOO_MANY_TOPICS
    assert form.rejects(topics=[NEWS] * count) is Rejection.TOO_MANY_TOPICS


def test_far_too_many_topics_are_refused_before_they_are_built() -> None:
    topics = numbered_topics(10_000)

    with pytest.raises(DecodeError):
        in_the_clear(lower=b"", upper=b"", bloom=b"", topics=topics, limit=b"", cursor=b"")
    for form in (FORMS["deployed"], FORMS["specified"]):
        assert form.rejects(topics=topics) is Rejection.MALFORMED


@each_form_but_the_deployed
def test_topics_that_are_a_string_are_malformed(form: Form) -> None:
    assert form.rejects(topics=NEWS) is Rejection.MALFORMED


# The forms in an envelope, and what may be absent


def sealed(*fields: Any) -> MailRequest:
    return decode_fields(ID, rlp.encode(list(fields)))


DEPLOYED_FIELDS = [b"\x05", b"\x09", b"", [NEWS], b"\x07", CURSOR_ON_THE_WIRE, b"\x01"]
SPECIFIED_FIELDS = [b"\x05", b"\x09", FULL_BLOOM, b"\x07", CURSOR_ON_THE_WIRE, [NEWS]]
TOPICS = Interest(topics=frozenset({NEWS}))


@pytest.mark.parametrize(
    ("count", "limit", "cursor"), [(4, 0, None), (5, 7, None), (6, 7, CURSOR), (7, 7, CURSOR)], ids=lambda _: ""
)
def test_deployed_form_may_have_4_to_7_fields(count: int, limit: int, cursor: Cursor | None) -> None:
    request = sealed(*DEPLOYED_FIELDS[:count])

    assert request == MailRequest(ID, 5, 9, TOPICS, limit, cursor, one_per_packet=False)


def test_elements_after_those_of_the_deployed_form_are_ignored() -> None:
    assert sealed(*DEPLOYED_FIELDS, b"more", []) == sealed(*DEPLOYED_FIELDS)


@pytest.mark.parametrize(
    ("batch", "one_per_packet"),
    [(b"\x01", False), (b"", True), (b"\x00", True), (b"\x02", False), ([], False)],
    ids=["1", "0", "0 with a leading zero", "2", "a list"],
)
def test_batch_0_asks_for_one_envelope_per_packet(batch: Any, one_per_packet: bool) -> None:
    assert sealed(*DEPLOYED_FIELDS[:6], batch).one_per_packet is one_per_packet


def test_deployed_form_with_an_empty_list_of_topics_goes_by_the_bloom() -> None:
    request = sealed(b"\x05", b"\x09", bloom_of([NEWS]), [])

    assert request.interest == Interest(bloom=bloom_of([NEWS]))


@pytest.mark.parametrize(
    ("count", "cursor", "interest"),
    [(4, None, Interest()), (5, CURSOR, Interest()), (6, CURSOR, TOPICS)],
    ids=["4", "5", "6"],
)
def test_form_of_the_specification_may_have_4_to_6_fields(
    count: int, cursor: Cursor | None, interest: Interest
) -> None:
    request = sealed(*SPECIFIED_FIELDS[:count])

    assert request == MailRequest(ID, 5, 9, interest, 7, cursor, one_per_packet=False)


def test_elements_after_those_of_the_specification_are_ignored() -> None:
    assert sealed(*SPECIFIED_FIELDS, b"more", []) == sealed(*SPECIFIED_FIELDS)


def test_null_topics_of_the_specification_go_by_the_bloom() -> None:
    assert sealed(*SPECIFIED_FIELDS[:5], b"") == sealed(*SPECIFIED_FIELDS[:5], []) == sealed(*SPECIFIED_FIELDS[:5])


@pytest.mark.parametrize(
    "plaintext",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"hello", id="text"),
        pytest.param(rlp.encode(b"a string of some length"), id="a string"),
        pytest.param(rlp.encode([]), id="no fields"),
        pytest.param(rlp.encode([b"\x05", b"\x09", FULL_BLOOM]), id="3 fields"),
        pytest.param(rlp.encode(SPECIFIED_FIELDS) + b"\x00", id="other bytes after it"),
    ],
)
def test_plaintext_that_is_no_request_is_malformed(plaintext: bytes) -> None:
    with pytest.raises(RequestRejected) as caught:
        decode_fields(ID, plaintext)

    assert caught.value.rejection is Rejection.MALFORMED


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
