"""mailserver.wakuid: the packets of the capability, as docs/wakuid.md specifies them."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.codec import rlp
from mailserver.errors import DecodeError, Rejection, RemoteProtocolError
from mailserver.ids.muid import Muid
from mailserver.waku.bloom import FULL_INTEREST, Interest
from mailserver.waku.envelope import Topic
from mailserver.waku.peer import PacketIgnored
from mailserver.wakuid.access import check_access, encode_access
from mailserver.wakuid.answers import (
    Answer,
    Done,
    Envelopes,
    Ids,
    Reconciled,
    Refused,
    Terms,
    decode_answer,
    encode_envelopes,
)
from mailserver.wakuid.packets import (
    MAX_CURSOR_BYTES,
    MAX_FETCHED_IDS,
    MAX_QUESTION_BYTES,
    MAX_RECONCILE_BYTES,
    MAX_TEXT_BYTES,
    QUESTIONS,
    REASONS,
    IdPacketCode,
    Order,
    What,
)
from mailserver.wakuid.peer import IdPacketReceived, receive_id_packet
from mailserver.wakuid.questions import (
    Fetch,
    FetchItems,
    Items,
    Open,
    Query,
    Question,
    Reconcile,
    decode_question,
    request_id_of,
)
from tests.mailservers import NEWS, make_envelope, make_envelopes
from tests.pairs import private_key

NETWORK = "/waku/2/rs/1/4"
BLOOM = Interest(bloom=bytes(range(64)))
TOPICS = Interest(topics=frozenset({NEWS, Topic(b"abcd")}))
MUIDS = [Muid(bytes([number]) * (33 + number % 32)) for number in range(40)]

QUERY = Query(
    7,
    NETWORK,
    1,
    2,
    what=What.ENVELOPES,
    order=Order.AS_ARRIVED,
    interest=TOPICS,
    low=b"l",
    high=b"m" * 32,
    cursor=b"c" * 36,
    limit=9,
)

EVERY_QUESTION: list[Question] = [
    Open(0),
    Open(2**64 - 1, make_envelope(1)),
    Query(1, NETWORK, 0, 2**32 - 1),
    QUERY,
    Query(1, NETWORK, 0, 1, interest=BLOOM),
    Query(1, NETWORK, 0, 1, interest=Interest(topics=frozenset())),
    Fetch(1, NETWORK, []),
    Fetch(1, NETWORK, MUIDS),
    FetchItems(1, NETWORK, []),
    FetchItems(1, NETWORK, [Items(3, 4, [b"i" * 32, b"j" * 32]), Items(5, 5, [b"k" * 32])]),
    Reconcile(1, NETWORK, 3, 4, b"\x61", TOPICS),
    Reconcile(1, NETWORK, 3, 4, b"m" * MAX_RECONCILE_BYTES),
]

EVERY_ANSWER: list[tuple[IdPacketCode, Answer]] = [
    (IdPacketCode.TERMS, Terms(1, NETWORK, 0, 2, 3, 4, 5)),
    (IdPacketCode.REFUSED, Refused(1, Rejection.OTHER_NETWORK, "text", 60)),
    (IdPacketCode.IDS, Ids(1, MUIDS)),
    (IdPacketCode.IDS, Ids(1, [])),
    (IdPacketCode.IDS, Ids(1, [Muid(bytes([number % 256]) * 52) for number in range(MAX_FETCHED_IDS)])),
    (IdPacketCode.IDS, Ids(1, [Muid(b"m" * 33)])),
    (IdPacketCode.IDS, Ids(1, [Muid(b"m" * 64)] * 2)),
    (IdPacketCode.RECONCILED, Reconciled(1, b"\x61abc")),
    (IdPacketCode.DONE, Done(1)),
    (IdPacketCode.DONE, Done(2**64 - 1, b"c" * 36, is_all=False)),
]


@pytest.mark.parametrize("question", EVERY_QUESTION)
def test_question_is_read_as_it_was_written(question: Question) -> None:
    payload = question.encode()

    assert decode_question(question.code, payload) == question
    assert request_id_of(payload) == question.request_id
    assert len(payload) <= MAX_QUESTION_BYTES
    assert question.code in QUESTIONS


@pytest.mark.parametrize(("code", "answer"), EVERY_ANSWER)
def test_answer_is_read_as_it_was_written(code: IdPacketCode, answer: Answer) -> None:
    assert not isinstance(answer, Envelopes)
    assert decode_answer(code, answer.encode()) == answer
    assert code not in QUESTIONS


@pytest.mark.parametrize("count", [0, 1, 300])
def test_envelopes_are_sent_byte_for_byte(count: int) -> None:
    envelopes = make_envelopes(count)

    answer = decode_answer(IdPacketCode.ENVELOPES, encode_envelopes(5, b"".join(each.raw for each in envelopes)))

    assert answer == Envelopes(5, envelopes)


def test_each_question_and_answer_has_its_bytes() -> None:
    assert Open(1).encode().hex() == "c20180"
    assert Query(1, "n", 2, 3).encode().hex() == "cb016e8080020380808080" + "80"
    assert Fetch(1, "n", [Muid(b"m" * 33)]).encode().hex() == "e5016ee2a1" + "6d" * 33
    assert FetchItems(1, "n", [Items(2, 3, [b"i" * 32])]).encode().hex() == "e8016ee5e40203e1a0" + "69" * 32
    assert Reconcile(1, "n", 2, 3, b"\x61").encode().hex() == "c6016e02038061"
    assert Terms(1, "n", 2, 3, 4, 5, 6).encode().hex() == "c7016e0203040506"
    assert Refused(1, Rejection.MALFORMED, "x", 2).encode().hex() == "c401017802"
    assert Ids(1, [Muid(b"m" * 33)]).encode().hex() == "e401e2a1" + "6d" * 33
    assert encode_envelopes(1, b"\xc0").hex() == "c301c1c0"
    assert Reconciled(1, b"\x61").encode().hex() == "c20161"
    assert Done(1, b"c", is_all=True).encode().hex() == "c3016301"


def test_what_follows_the_last_element_is_ignored() -> None:
    def longer(payload: bytes) -> bytes:
        return rlp.encode([*rlp.decode_list(payload), b"more", [b"and", b"more"]])

    for question in EVERY_QUESTION:
        if not isinstance(question, Open):
            assert decode_question(question.code, longer(question.encode())) == question
    for code, answer in EVERY_ANSWER:
        assert not isinstance(answer, Envelopes)
        assert decode_answer(code, longer(answer.encode())) == answer
    assert decode_question(IdPacketCode.OPEN, longer(Open(1).encode())) == Open(1)


def test_every_reason_has_a_number_of_its_own_and_an_unknown_one_is_none() -> None:
    assert len(set(REASONS.values())) == len(REASONS)
    assert 0 not in REASONS.values()
    assert decode_answer(IdPacketCode.REFUSED, rlp.encode([b"\1", b"\x7f", b"text", b""])) == Refused(1, None, "text")


def test_text_of_a_refusal_is_cut_to_its_bound() -> None:
    answer = decode_answer(IdPacketCode.REFUSED, Refused(1, Rejection.MALFORMED, "é" * 400).encode())

    assert isinstance(answer, Refused)
    assert answer.text == "é" * (MAX_TEXT_BYTES // 2)


def fields_of(question: Question) -> list[rlp.Item]:
    return rlp.decode_list(question.encode())


def with_field(question: Question, index: int, value: rlp.Encodable) -> tuple[IdPacketCode, bytes]:
    fields: list[rlp.Encodable] = [*fields_of(question)]
    fields[index] = value
    return question.code, rlp.encode(fields)


FETCH, ITEMS = Fetch(1, NETWORK, MUIDS), FetchItems(1, NETWORK, [Items(3, 4, [b"i" * 32])])
RECONCILE = Reconcile(1, NETWORK, 3, 4, b"\x61", TOPICS)
GROUP: list[rlp.Encodable] = [b"\1", b"\2", [b"i" * 32]]


@pytest.mark.parametrize(
    ("packet", "why"),
    [
        (with_field(QUERY, 0, bytes([1]) * 9), "integer is too long"),
        (with_field(QUERY, 0, b"\0\1"), "leading zeros"),
        (with_field(QUERY, 0, [b"\1"]), "expected an RLP string"),
        (with_field(QUERY, 1, b"n" * 256), "network topic is too long"),
        (with_field(QUERY, 1, b"\xff"), "not UTF-8"),
        (with_field(QUERY, 2, b"\2"), "2 is not a valid What"),
        (with_field(QUERY, 3, b"\2"), "2 is not a valid Order"),
        (with_field(QUERY, 4, bytes([1]) * 5), "integer is too long"),
        (with_field(QUERY, 6, b"b" * 63), "wrong length"),
        (with_field(QUERY, 6, [b"abc"]), "wrong length"),
        (with_field(QUERY, 6, [number.to_bytes(4, "big") for number in range(1001)]), "too many topics"),
        (with_field(QUERY, 7, b"l" * 33), "metadata is too long"),
        (with_field(QUERY, 8, b"l" * 33), "metadata is too long"),
        (with_field(QUERY, 9, b"c" * (MAX_CURSOR_BYTES + 1)), "cursor is too long"),
        (with_field(FETCH, 2, b"m" * 40), "expected an RLP list"),
        (with_field(FETCH, 2, [b"m" * 32]), "MUID is not 33 to 64 bytes"),
        (with_field(FETCH, 2, [b"m" * 65]), "MUID is not 33 to 64 bytes"),
        (with_field(FETCH, 2, [b"m" * 33] * (MAX_FETCHED_IDS + 1)), "too many ids"),
        (with_field(ITEMS, 2, [[b"\1", b"\2"]]), "group of ids has too few elements"),
        (with_field(ITEMS, 2, [[b"\1", b"\2", [b"i" * 31]]]), "wrong length"),
        (with_field(ITEMS, 2, [GROUP, [b"\1", b"\2", []]]), "group has no ids"),
        (with_field(ITEMS, 2, [GROUP] * (MAX_FETCHED_IDS + 1)), "too many"),
        (with_field(ITEMS, 2, [[b"\1", b"\2", [b"i" * 32] * 600]] * 2), "too many ids"),
        (with_field(RECONCILE, 5, b"m" * (MAX_RECONCILE_BYTES + 1)), "reconciliation message is too long"),
        ((IdPacketCode.OPEN, b"\xc1\x01"), "truncated"),
        ((IdPacketCode.OPEN, b"\xc2\x01\x05"), "something else than an envelope"),
        ((IdPacketCode.OPEN, b"\xc3\x01\xc1\x05"), "expiry|topic|missing"),
        ((IdPacketCode.OPEN, b"\x01"), "not one list"),
        ((IdPacketCode.OPEN, b"\xc2\xc0\x80"), "request id is a list"),
        ((IdPacketCode.FETCH, b"\xc2\x01\x6e"), "too few elements"),
        ((IdPacketCode.FETCH, b""), "truncated"),
        ((IdPacketCode.FETCH, b"f" * (MAX_QUESTION_BYTES + 1)), "FETCH is too long"),
        ((IdPacketCode.IDS, b"\xc2\x01\xc0"), "packet is no question"),
    ],
)
def test_question_that_breaks_a_rule_is_refused(packet: tuple[IdPacketCode, bytes], why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        decode_question(*packet)


@pytest.mark.parametrize(
    ("code", "payload", "why"),
    [
        (IdPacketCode.TERMS, rlp.encode([b"\1", b"n", b"", b"", b"", b""]), "too few elements"),
        (IdPacketCode.IDS, rlp.encode([b"\1", [b"m" * 33] * (MAX_FETCHED_IDS + 1)]), "too many ids"),
        (IdPacketCode.IDS, rlp.encode([b"\1", [b"m" * 32]]), "MUID is not 33 to 64 bytes"),
        (IdPacketCode.IDS, rlp.encode([b"\1", [b"m" * 65] * 2]), "MUID is not 33 to 64 bytes"),
        (IdPacketCode.IDS, rlp.encode([b"\1", [b"m" * 52, [b"m" * 51]]]), "expected an RLP string"),
        (IdPacketCode.IDS, rlp.encode([b"\1", b"m" * 52]), "expected an RLP list"),
        (IdPacketCode.IDS, rlp.encode([b"\1"]), "truncated|too few elements"),
        (IdPacketCode.DONE, rlp.encode([b"\1", b"c" * 37, b""]), "cursor is too long"),
        (IdPacketCode.REFUSED, rlp.encode([b"\1", b"\1", b"t" * 501, b""]), "text is too long"),
        (IdPacketCode.RECONCILED, rlp.encode([b"\1", b"m" * (MAX_RECONCILE_BYTES + 1)]), "message is too long"),
        (IdPacketCode.ENVELOPES, rlp.encode([b"\1", [b"no envelope"]]), "envelope is not an RLP list"),
        (IdPacketCode.ENVELOPES, rlp.encode([b"\1"]), "truncated"),
        (IdPacketCode.OPEN, Open(1).encode(), "packet is no answer"),
    ],
)
def test_answer_that_breaks_a_rule_is_refused(code: IdPacketCode, payload: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=why):
        decode_answer(code, payload)


@given(
    code=st.sampled_from(IdPacketCode),
    question=st.sampled_from(EVERY_QUESTION[:-1]),
    cut=st.integers(0, 200),
    flipped=st.integers(0, 200),
    junk=st.binary(max_size=40),
)
def test_no_bytes_raise_anything_but_decode_errors(
    code: IdPacketCode, question: Question, cut: int, flipped: int, junk: bytes
) -> None:
    whole = bytearray(question.encode())
    whole[flipped % len(whole)] ^= 1 << flipped % 8
    for payload in (bytes(whole), bytes(whole[: cut % len(whole)]) + junk, junk):
        for decode in (decode_question, decode_answer):
            with contextlib.suppress(DecodeError):
                assert decode(code, payload).request_id == request_id_of(payload)
        assert 0 <= request_id_of(payload) < 2**64


def test_packet_before_status_ends_the_connection() -> None:
    with pytest.raises(RemoteProtocolError, match="packet 3 of wakuid before Status"):
        receive_id_packet(IdPacketCode.QUERY, b"", is_ready=False)


def test_unknown_packet_is_ignored_and_a_known_one_is_decoded_later() -> None:
    assert receive_id_packet(15, b"?", is_ready=True) == PacketIgnored(15)
    assert receive_id_packet(3, b"?", is_ready=True) == IdPacketReceived(IdPacketCode.QUERY, b"?")


def test_access_is_for_one_asker() -> None:
    asker, other = private_key("asker").public_key, private_key("other").public_key
    check_access(encode_access(asker), asker)

    for plaintext, why in [
        (encode_access(other), "made for another node"),
        (rlp.encode([b"wakuid/2", asker]), "holds something else"),
        (rlp.encode([b"wakuid/1"]), "holds something else"),
        (rlp.encode(b"wakuid/1"), "expected an RLP list"),
    ]:
        with pytest.raises(DecodeError, match=why):
            check_access(plaintext, asker)


def test_interest_in_everything_is_the_shortest() -> None:
    assert fields_of(Query(1, NETWORK, 0, 1, interest=FULL_INTEREST))[6] == b""
    assert fields_of(QUERY)[6] == sorted(TOPICS.topics or ())
    assert fields_of(Query(1, NETWORK, 0, 1, interest=BLOOM))[6] == BLOOM.bloom
