"""mailserver.mail.request: the fields of a request, in every form."""

from collections.abc import Callable
from typing import Any

import pytest
import rlp

from mailserver.errors import DecodeError, Rejection, RequestRejected
from mailserver.mail.request import (
    CURSOR_BYTES,
    MAX_REQUEST_TOPICS,
    ClearRequest,
    Cursor,
    MailRequest,
    decode_clear,
    decode_fields,
    decode_request,
)
from mailserver.waku.bloom import FULL_BLOOM, Interest, bloom_of
from mailserver.waku.envelope import EnvelopeHash
from tests.mail.values import CURSOR, CURSOR_ON_THE_WIRE, ID, MAX_U32, NEWS, SPORT

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
