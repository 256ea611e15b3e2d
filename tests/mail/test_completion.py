"""mailserver.mail.completion against recorded completions and the `rlp` package."""

from typing import Any

import pytest
import rlp
from hypothesis import example, given
from hypothesis import strategies as st

from mailserver.errors import DecodeError
from mailserver.mail.completion import NO_ENVELOPE, Completion, CompletionFormat, Failure, decode_completion
from mailserver.mail.request import Cursor, RequestId
from mailserver.waku.envelope import EnvelopeHash
from mailserver.waku.packets import PacketCode
from tests.data import load
from tests.properties import settings

WAKU_OFFSET = 0x10

ID = RequestId(bytes(range(32)))
LAST = EnvelopeHash(bytes(range(32, 64)))
CURSOR = Cursor(0x6B011EE2, EnvelopeHash(bytes(range(64, 96))))
CURSOR_ON_THE_WIRE = b"\x6b\x01\x1e\xe2" + bytes(range(64, 96))


# Recorded completions


def recorded_completions() -> dict[str, bytes]:
    recorded = {}
    for packet in load("packets.json")["packets"]:
        if packet["code"] == PacketCode.P2P_REQUEST_COMPLETE:
            recorded[packet["group"]] = bytes.fromhex(packet["payload"])
    for session in load("sessions.json")["sessions"]:
        for number, message in enumerate(session["messages"]):
            if message["message_id"] == WAKU_OFFSET + PacketCode.P2P_REQUEST_COMPLETE:
                recorded[f"{session['name']} {number}"] = bytes.fromhex(message["payload"])
    return recorded


RECORDED = recorded_completions()
WITH_CURSOR = ["plain", "env"]
FAILED = "err"

each_recorded = pytest.mark.parametrize("payload", list(RECORDED.values()), ids=list(RECORDED))


@pytest.mark.parametrize("name", WITH_CURSOR)
def test_recorded_completion_with_a_cursor_is_read(name: str) -> None:
    completion = decode_completion(RECORDED[name])

    # Both pages ended at the envelope that their cursor names.
    assert isinstance(completion, Completion)
    assert completion.cursor is not None
    assert completion.cursor.created == 0x6B011EE2
    assert completion.cursor.hash == completion.last_envelope_hash != NO_ENVELOPE


@pytest.mark.parametrize("name", [name for name in RECORDED if name not in {*WITH_CURSOR, FAILED}])
def test_recorded_completion_that_found_nothing_is_read(name: str) -> None:
    completion = decode_completion(RECORDED[name])

    assert isinstance(completion, Completion)
    assert completion.last_envelope_hash == bytes(32)
    assert completion.cursor is None


def test_recorded_error_completion_is_read() -> None:
    assert decode_completion(RECORDED[FAILED]) == Failure(
        RequestId(b"26caa043de1f4d5da980ca8304a616b5"),
        "request is invalid: limit exceeds the maximum allowed value",
    )


@each_recorded
def test_recorded_completion_encodes_to_the_same_bytes(payload: bytes) -> None:
    assert decode_completion(payload).encode() == payload


def test_some_completion_of_each_kind_is_recorded() -> None:
    assert len(RECORDED) == 12
    assert isinstance(decode_completion(RECORDED[FAILED]), Failure)


@pytest.mark.parametrize(
    "payload",
    [*RECORDED.values(), rlp.encode([ID, LAST, CURSOR_ON_THE_WIRE]), rlp.encode([ID, LAST, [CURSOR_ON_THE_WIRE]])],
    ids=[*RECORDED, "a list", "the brackets taken literally"],
)
def test_every_truncation_of_a_completion_is_refused(payload: bytes) -> None:
    for end in range(len(payload)):
        with pytest.raises(DecodeError):
            decode_completion(payload[:end])
    assert decode_completion(payload) is not None


# The deployed form


def test_completion_is_a_byte_string_by_default() -> None:
    assert Completion(ID, LAST, CURSOR).encode() == rlp.encode(ID + LAST + CURSOR_ON_THE_WIRE)
    assert Completion(ID, LAST, CURSOR).encode(CompletionFormat.BYTES) == rlp.encode(ID + LAST + CURSOR_ON_THE_WIRE)


def test_cursor_is_absent_where_nothing_remains() -> None:
    assert Completion(ID, LAST).encode() == rlp.encode(ID + LAST)
    assert decode_completion(rlp.encode(ID + LAST)) == Completion(ID, LAST, None)


def test_last_hash_is_zeros_where_nothing_was_found() -> None:
    assert Completion(ID).encode() == rlp.encode(ID + bytes(32))


def test_cursor_of_zeros_is_a_cursor() -> None:
    completion = Completion(ID, LAST, Cursor(0, EnvelopeHash(bytes(32))))

    assert completion.encode() == rlp.encode(ID + LAST + bytes(36))
    assert decode_completion(completion.encode()) == completion


@pytest.mark.parametrize("length", [0, 1, 32, 63, 65, 68, 99, 101, 136, 200])
def test_byte_string_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(DecodeError):
        decode_completion(rlp.encode(bytes(length)))


# Errors


def test_failure_is_error_request_id_and_message() -> None:
    assert Failure(ID, "no such thing").encode() == rlp.encode(b"ERROR=" + ID + b"no such thing")


@pytest.mark.parametrize("length", [0, 26, 62, 98])
def test_failure_of_any_length_is_a_failure(length: int) -> None:
    # With 26 bytes of text it is as long as a completion, with 62 as one with a cursor.
    failure = Failure(ID, "x" * length)

    assert decode_completion(failure.encode()) == failure


@pytest.mark.parametrize("length", [0, 1, 31])
def test_failure_without_a_whole_request_id_is_refused(length: int) -> None:
    with pytest.raises(DecodeError):
        decode_completion(rlp.encode(b"ERROR=" + ID[:length]))


def test_message_that_is_not_utf_8_is_read_with_marks_in_its_place() -> None:
    decoded = decode_completion(rlp.encode(b"ERROR=" + ID + b"caf\xe9"))

    assert decoded == Failure(ID, "caf\N{REPLACEMENT CHARACTER}")


# The specification's form


def test_completion_may_be_a_list_as_the_specification_says() -> None:
    assert Completion(ID, LAST, CURSOR).encode(CompletionFormat.LIST) == rlp.encode([ID, LAST, CURSOR_ON_THE_WIRE])
    assert Completion(ID, LAST).encode(CompletionFormat.LIST) == rlp.encode([ID, LAST, b""])


@pytest.mark.parametrize(
    ("fields", "cursor"),
    [
        ([ID, LAST], None),
        ([ID, LAST, b""], None),
        ([ID, LAST, []], None),
        ([ID, LAST, [b""]], None),
        ([ID, LAST, [[]]], None),
        ([ID, LAST, CURSOR_ON_THE_WIRE], CURSOR),
        ([ID, LAST, [CURSOR_ON_THE_WIRE]], CURSOR),
        ([ID, LAST, [CURSOR_ON_THE_WIRE, b"more"]], CURSOR),
        ([ID, LAST, CURSOR_ON_THE_WIRE, b"more"], CURSOR),
    ],
)
def test_list_is_read_however_its_cursor_is_written(fields: list[Any], cursor: Cursor | None) -> None:
    assert decode_completion(rlp.encode(fields)) == Completion(ID, LAST, cursor)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param([], id="empty"),
        pytest.param([ID], id="request id alone"),
        pytest.param([ID[:31], LAST], id="request id of 31 bytes"),
        pytest.param([ID, LAST + b"\x00"], id="last hash of 33 bytes"),
        pytest.param([ID, b""], id="last hash is empty"),
        pytest.param([[ID], LAST], id="request id is a list"),
        pytest.param([ID, [LAST]], id="last hash is a list"),
        pytest.param([ID, LAST, bytes(35)], id="cursor of 35 bytes"),
        pytest.param([ID, LAST, [bytes(37)]], id="cursor of 37 bytes in brackets"),
        pytest.param([ID, LAST, [[CURSOR_ON_THE_WIRE]]], id="cursor in two brackets"),
    ],
)
def test_list_that_is_no_completion_is_refused(fields: list[Any]) -> None:
    with pytest.raises(DecodeError):
        decode_completion(rlp.encode(fields))


# Any completion, any bytes


ids = st.binary(min_size=32, max_size=32).map(RequestId)
hashes = st.binary(min_size=32, max_size=32).map(EnvelopeHash)
cursors = st.builds(Cursor, st.integers(0, 0xFFFF_FFFF), hashes)
completions = st.builds(Completion, ids, hashes, st.none() | cursors)


@given(completions, st.sampled_from(CompletionFormat))
@settings(max_examples=80)
def test_completion_survives_encoding_and_decoding(completion: Completion, form: CompletionFormat) -> None:
    assert decode_completion(completion.encode(form)) == completion


@given(ids, st.text("aé€\N{GRINNING FACE}\n=", max_size=80))
@example(ID, "")
@settings(max_examples=50)
def test_failure_survives_encoding_and_decoding(request_id: RequestId, message: str) -> None:
    assert decode_completion(Failure(request_id, message).encode()) == Failure(request_id, message)


likely: list[Any] = [b"", ID, LAST, CURSOR_ON_THE_WIRE, b"ERROR=", b"ERROR=" + ID, ID + LAST, []]
any_item = st.sampled_from([*likely, [likely], [CURSOR_ON_THE_WIRE]]) | st.binary(max_size=5)


@given(st.binary(max_size=120) | st.one_of(any_item, st.lists(any_item, max_size=4)).map(rlp.encode))
@settings(max_examples=100)
def test_any_bytes_are_a_completion_or_refused(payload: bytes) -> None:
    try:
        decoded = decode_completion(payload)
    except DecodeError:
        return
    assert len(decoded.request_id) == 32
    if isinstance(decoded, Completion):
        assert len(decoded.last_envelope_hash) == 32
        assert decoded.cursor is None or len(decoded.cursor.encode()) == 36
