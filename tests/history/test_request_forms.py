"""mailserver.history.delivery: every form of a request and of a completion, and what is refused."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from mailserver.codec import aes, rlp
from mailserver.codec.keccak import keccak256
from mailserver.errors import Rejection, RequestRejected
from mailserver.history.delivery import MAX_REQUEST_BYTES
from mailserver.mail.completion import Completion, CompletionFormat, Failure, decode_completion
from mailserver.mail.request import MAX_REQUEST_TOPICS, RequestId
from mailserver.waku.bloom import FULL_BLOOM
from mailserver.waku.envelope import Envelope, mine
from mailserver.waku.packets import PacketCode
from mailserver.waku.payload import MAX_PADDING_BYTES, seal_symmetric
from tests.history.desk import CLEAR_ID, SETTINGS, Desk, clear_request, completion_of, cursor_at, request_id
from tests.mailservers import (
    NEWS,
    NOW,
    PASSWORD_KEY,
    deployed_fields,
    fill,
    make_envelope,
    make_envelopes,
    sealed_request,
)
from tests.pairs import digest, private_key
from tests.properties import settings

# Forms


async def test_form_of_the_specification_is_read(desk: Desk) -> None:
    envelopes = make_envelopes(3)
    await fill(desk.store, envelopes)
    lower, upper, limit = rlp.encode_uint(NOW - 100), rlp.encode_uint(NOW), b"\x02"
    forms: list[list[rlp.Encodable]] = [
        [lower, upper, FULL_BLOOM, limit],
        [lower, upper, FULL_BLOOM, limit, b""],
        [lower, upper, b"", limit, b"", [NEWS]],
        [b"\x00" + lower[:3], upper, FULL_BLOOM, b"\x00\x00\x00\x02"],
    ]

    for form in forms:
        request = sealed_request(rlp.encode(form))

        assert await desk.answer(request.raw) == completion_of(request, envelopes[1], cursor_at(envelopes[1]))
        assert desk.envelopes == envelopes[:2]


async def test_cursor_in_the_form_of_the_specification_is_followed(desk: Desk) -> None:
    envelopes = make_envelopes(3)
    await fill(desk.store, envelopes)
    cursor = cursor_at(envelopes[0]).encode()

    await desk.answer(sealed_request(rlp.encode([b"", b"", FULL_BLOOM, b"", cursor])).raw)

    assert desk.envelopes == envelopes[1:]


async def test_request_in_the_clear_is_answered_under_its_own_id(desk: Desk) -> None:
    envelopes = make_envelopes(3)
    await fill(desk.store, envelopes)

    outcome = await desk.answer(clear_request())

    assert outcome == Completion(RequestId(CLEAR_ID), envelopes[-1].hash())
    assert desk.envelopes == envelopes


async def test_request_in_the_clear_is_refused_where_that_is_set(desk: Desk) -> None:
    strict = desk.with_settings(replace(SETTINGS, allow_clear=False))

    outcome = await strict.answer(clear_request())

    assert outcome == Failure(RequestId(CLEAR_ID), Rejection.CLEAR_REFUSED.value)


async def test_signed_request_is_answered_like_any_other(desk: Desk) -> None:
    await fill(desk.store, make_envelopes(1))
    data = seal_symmetric(
        deployed_fields(),
        PASSWORD_KEY,
        nonce=bytes(12),
        padding=bytes(MAX_PADDING_BYTES),
        signing_key=private_key("client"),
    )

    await desk.answer(mine(NOW + 50, 50, bytes(4), data, target=0.0).raw)

    assert len(desk.envelopes) == 1


# Completions


async def test_completion_is_a_byte_string_of_64_bytes_and_100_with_a_cursor(desk: Desk) -> None:
    envelopes = make_envelopes(3)
    await fill(desk.store, envelopes)
    whole, part = sealed_request(deployed_fields()), sealed_request(deployed_fields(limit=2))

    await desk.answer(whole.raw)
    without = rlp.decode(desk.sent[-1][1])
    await desk.answer(part.raw)
    cursor = rlp.decode(desk.sent[-1][1])

    last = envelopes[1]
    assert without == whole.hash() + envelopes[-1].hash()
    assert cursor == part.hash() + last.hash() + last.created.to_bytes(4, "big") + last.hash()


async def test_completion_is_a_list_where_that_is_set(desk: Desk) -> None:
    envelopes = make_envelopes(3)
    await fill(desk.store, envelopes)
    listing = desk.with_settings(replace(SETTINGS, completion_format=CompletionFormat.LIST))
    request = sealed_request(deployed_fields(limit=2))

    await listing.answer(request.raw)

    last = envelopes[1]
    assert rlp.decode(listing.sent[-1][1]) == [request.hash(), last.hash(), cursor_at(last).encode()]


async def test_failure_is_a_byte_string_in_both_formats(desk: Desk) -> None:
    request = sealed_request(b"no list")
    expected = b"ERROR=" + request.hash() + Rejection.MALFORMED.value.encode()

    for form in CompletionFormat:
        failing = desk.with_settings(replace(SETTINGS, completion_format=form))
        await failing.answer(request.raw)

        assert rlp.decode(failing.sent[-1][1]) == expected


# Refusals

SEALED_FAULTS: dict[str, tuple[bytes, Rejection]] = {
    "not RLP": (b"\xff\xff", Rejection.MALFORMED),
    "nothing": (b"", Rejection.MALFORMED),
    "a string": (rlp.encode(b"request"), Rejection.MALFORMED),
    "an empty list": (b"\xc0", Rejection.MALFORMED),
    "three fields": (rlp.encode([b"", b"", FULL_BLOOM]), Rejection.MALFORMED),
    "RLP bomb": (b"\xc1" * 200, Rejection.MALFORMED),
    "lower is a list": (rlp.encode([[], b"", FULL_BLOOM, [NEWS], b"", b"", b""]), Rejection.MALFORMED),
    "upper of 5 bytes": (rlp.encode([b"", b"\x01" * 5, FULL_BLOOM, [NEWS], b"", b"", b""]), Rejection.MALFORMED),
    "limit is a list": (rlp.encode([b"", b"", FULL_BLOOM, [NEWS], [], b"", b""]), Rejection.MALFORMED),
    "bloom of 63 bytes": (deployed_fields(topics=[], bloom=bytes(63)), Rejection.BAD_BLOOM),
    "bloom of 65 bytes": (deployed_fields(topics=[], bloom=bytes(65)), Rejection.BAD_BLOOM),
    "bloom is a list": (rlp.encode([b"", b"", [], [], b"", b"", b""]), Rejection.MALFORMED),
    "topic of 3 bytes": (deployed_fields(topics=[NEWS, b"abc"]), Rejection.BAD_TOPIC),
    "topic of 5 bytes": (deployed_fields(topics=[b"abcde"]), Rejection.BAD_TOPIC),
    "topic is a list": (rlp.encode([b"", b"", b"", [[NEWS]], b"", b"", b""]), Rejection.BAD_TOPIC),
    "neither topics nor bloom": (deployed_fields(topics=[]), Rejection.EMPTY_FILTER),
    "lower above upper": (deployed_fields(lower=11, upper=10), Rejection.BAD_RANGE),
    "lower beyond now": (deployed_fields(lower=NOW + 61), Rejection.BAD_RANGE),
    "cursor of 35 bytes": (deployed_fields(cursor=bytes(35)), Rejection.BAD_CURSOR),
    "cursor of 37 bytes": (deployed_fields(cursor=bytes(37)), Rejection.BAD_CURSOR),
    "cursor is a list": (rlp.encode([b"", b"", b"", [NEWS], b"", [b"x"], b""]), Rejection.BAD_CURSOR),
    "too many topics": (
        deployed_fields(topics=[n.to_bytes(4, "big") for n in range(MAX_REQUEST_TOPICS + 1)]),
        Rejection.TOO_MANY_TOPICS,
    ),
}


@pytest.mark.parametrize("fault", SEALED_FAULTS)
async def test_sealed_request_that_is_wrong_is_told_so_under_its_id(desk: Desk, fault: str) -> None:
    plaintext, rejection = SEALED_FAULTS[fault]
    request = sealed_request(plaintext)

    assert await desk.answer(request.raw) == Failure(request_id(request), rejection.value)
    assert isinstance(await desk.answer(sealed_request(deployed_fields()).raw), Completion)


async def test_as_many_topics_as_the_specification_allows_are_taken(desk: Desk) -> None:
    topics = [n.to_bytes(4, "big") for n in range(MAX_REQUEST_TOPICS - 1)]
    envelopes = make_envelopes(2)
    await fill(desk.store, envelopes)

    outcome = await desk.answer(sealed_request(deployed_fields(topics=[*topics, NEWS])).raw)

    assert isinstance(outcome, Completion)
    assert desk.envelopes == envelopes


async def test_request_sealed_with_another_password_is_told_so(desk: Desk) -> None:
    request = sealed_request(deployed_fields(), key=digest("another password"))

    assert await desk.answer(request.raw) == Failure(request_id(request), Rejection.UNDECRYPTABLE.value)


@pytest.mark.parametrize("size", [0, 11, 12, 27, 28, 112, 113, 300])
async def test_envelope_with_anything_inside_is_undecryptable(desk: Desk, size: int) -> None:
    request = make_envelope(1, data_bytes=size)

    assert await desk.answer(request.raw) == Failure(request_id(request), Rejection.UNDECRYPTABLE.value)


async def test_proof_of_work_is_asked_of_sealed_requests_only(desk: Desk) -> None:
    strict = desk.with_settings(replace(SETTINGS, min_request_pow=0.01))
    lazy = sealed_request(deployed_fields(), ttl=50)
    worked = mine(NOW + 50, 50, bytes(4), lazy.data, target=0.01)

    assert await strict.answer(lazy.raw) == Failure(request_id(lazy), Rejection.POW_TOO_LOW.value)
    assert isinstance(await strict.answer(worked.raw), Completion)
    assert isinstance(await strict.answer(clear_request()), Completion)


async def test_request_envelope_without_times_is_taken_as_some_clients_send_it(desk: Desk) -> None:
    request = sealed_request(deployed_fields(), ttl=0)

    assert (request.expiry, request.ttl) == (0, 0)
    assert isinstance(await desk.answer(request.raw), Completion)


CLEAR_FAULTS: dict[str, tuple[bytes, Rejection]] = {
    "bloom of 63 bytes": (clear_request(topics=[], bloom=bytes(63)), Rejection.BAD_BLOOM),
    "topics is a string": (clear_request(topics=b"topics"), Rejection.MALFORMED),
    "topic of 3 bytes": (clear_request(topics=[b"abc"]), Rejection.BAD_TOPIC),
    "neither topics nor bloom": (clear_request(topics=[]), Rejection.EMPTY_FILTER),
    "lower above upper": (clear_request(lower=b"\x02", upper=b"\x01"), Rejection.BAD_RANGE),
    "cursor of 1 byte": (clear_request(cursor=b"\x01"), Rejection.BAD_CURSOR),
    "limit of 5 bytes": (clear_request(limit=b"\x01" * 5), Rejection.MALFORMED),
}


@pytest.mark.parametrize("fault", CLEAR_FAULTS)
async def test_clear_request_that_is_wrong_is_told_so_under_its_id(desk: Desk, fault: str) -> None:
    payload, rejection = CLEAR_FAULTS[fault]

    assert await desk.answer(payload) == Failure(RequestId(CLEAR_ID), rejection.value)


GARBAGE = [
    b"",
    b"\x80",
    b"\xc0",
    b"\xff" * 10,
    b"\xc1" * 1000,
    b"\xbf" + b"\xff" * 8,
    rlp.encode([b""] * 5),
    rlp.encode([CLEAR_ID[:31]] * 7),
    b"\xf9\x0b\xb8" + b"\x80" * 3000,
    bytes(MAX_REQUEST_BYTES + 1),
]


@pytest.mark.parametrize("payload", GARBAGE, ids=lambda payload: f"{len(payload)} bytes of {payload[:2].hex()}")
async def test_garbage_is_told_so_under_the_hash_of_the_packet(desk: Desk, payload: bytes) -> None:
    expected = Failure(RequestId(keccak256(payload)), Rejection.MALFORMED.value)

    assert await desk.answer(payload) == expected


async def test_garbage_that_begins_with_an_id_is_told_so_under_it(desk: Desk) -> None:
    expected = Failure(RequestId(CLEAR_ID), Rejection.MALFORMED.value)

    assert await desk.answer(rlp.encode([CLEAR_ID] * 6)) == expected


async def test_every_truncation_of_each_form_is_answered(desk: Desk) -> None:
    plaintext = deployed_fields(lower=1, upper=NOW, bloom=FULL_BLOOM, limit=3, cursor=bytes(36))
    payloads = [clear_request()[:end] for end in range(len(clear_request()))]
    payloads += [sealed_request(plaintext[:end]).raw for end in range(len(plaintext))]
    sealed = sealed_request(plaintext).raw
    payloads += [sealed[:end] for end in range(0, len(sealed), 7)]

    for payload in payloads:
        assert isinstance(await desk.answer(payload), Failure)


async def test_refusal_carries_the_id_of_a_request_that_is_readable(desk: Desk) -> None:
    request = sealed_request(deployed_fields())
    rejected = RequestRejected(Rejection.TOO_MANY_WAITING, retry_after_s=7)

    for payload in (request.raw, clear_request(), b"\xff"):
        await desk.delivery.refuse(payload, rejected, desk.client, desk.requester.node_id)

    message = Rejection.TOO_MANY_WAITING.value + ": come back in 7 s"
    assert {code for code, _ in desk.sent} == {PacketCode.P2P_REQUEST_COMPLETE}
    assert [decode_completion(payload) for _, payload in desk.sent] == [
        Failure(request_id(request), message),
        Failure(RequestId(CLEAR_ID), message),
        Failure(RequestId(keccak256(b"\xff")), message),
    ]


# Whatever else

ITEMS: st.SearchStrategy[rlp.Encodable] = st.recursive(
    st.binary(max_size=70) | st.sampled_from([NEWS, FULL_BLOOM, bytes(36), CLEAR_ID, rlp.encode_uint(NOW)]),
    lambda items: st.lists(items, max_size=7),
    max_leaves=12,
)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields=st.lists(ITEMS, max_size=9), sealed=st.booleans())
async def test_whatever_is_asked_is_answered(desk: Desk, fields: list[rlp.Encodable], sealed: bool) -> None:
    plaintext = rlp.encode(fields)
    payload = sealed_request(plaintext).raw if sealed else plaintext

    outcome = await desk.answer(payload)

    assert outcome.request_id in (keccak256(payload), fields[0] if fields else None)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plaintext=st.binary(max_size=300), payload=st.binary(max_size=300))
async def test_whatever_bytes_are_sealed_or_sent_are_answered(desk: Desk, plaintext: bytes, payload: bytes) -> None:
    request = sealed_request(plaintext)

    assert (await desk.answer(request.raw)).request_id == request_id(request)
    assert (await desk.answer(payload)).request_id == keccak256(payload)
    # Sealed as it is, without the form that a payload should have: flags, length and signature are random, too.
    assert isinstance(await desk.answer(sealed_as_it_is(plaintext).raw), Failure | Completion)


def sealed_as_it_is(plaintext: bytes) -> Envelope:
    """An envelope that opens with the password, but whose plaintext need not be a payload."""
    return mine(0, 0, bytes(4), aes.gcm_seal(PASSWORD_KEY, bytes(12), plaintext) + bytes(12), target=0.0)
