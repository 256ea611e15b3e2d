from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.codec import varint
from mailserver.libp2p.faults import Cause, Libp2pFault
from mailserver.libp2p.multistream import (
    HEADER,
    MAX_LINE_BYTES,
    MAX_PROPOSALS,
    NOT_AVAILABLE,
    Answering,
    Proposing,
    encode_line,
)
from tests.properties import settings

SPOKEN = ("/noise", "/chat/1.0.0")

Side = Answering | Proposing


def answering() -> Answering:
    return Answering(SPOKEN)


def proposing() -> Proposing:
    """One whose first proposal was sent."""
    side = Proposing(("/chat/2.0.0", "/chat/1.0.0"))
    side.data_to_send()
    return side


def lines(*texts: str) -> bytes:
    return b"".join(encode_line(text) for text in texts)


def answer(side: Side, data: bytes) -> bytes:
    side.receive_data(data)
    return side.data_to_send()


def cause_of(side: Side, data: bytes) -> Cause:
    with pytest.raises(Libp2pFault) as raised:
        side.receive_data(data)
    return raised.value.cause


def test_line_is_as_in_the_specification() -> None:
    assert encode_line("na") == bytes.fromhex("036e610a")
    assert encode_line(HEADER) == b"\x13/multistream/1.0.0\n"


def test_header_and_proposal_go_out_together() -> None:
    side = Proposing(("/chat/2.0.0", "/chat/1.0.0"))

    assert side.data_to_send() == lines(HEADER, "/chat/2.0.0")
    assert side.data_to_send() == b""


def test_proposal_that_we_speak_is_echoed() -> None:
    side = answering()

    assert answer(side, lines(HEADER, "/noise")) == lines(HEADER, "/noise")
    assert side.agreed == "/noise"


def test_proposals_that_we_do_not_speak_are_answered_no() -> None:
    side = answering()

    assert answer(side, lines(HEADER, "/tls/1.0.0", "/chat/1.0.0")) == lines(HEADER, "na", "/chat/1.0.0")
    assert side.agreed == "/chat/1.0.0"


@pytest.mark.parametrize("question", ["ls", HEADER, "", "/noise ", "na"])
def test_question_that_is_no_protocol_of_ours_is_answered_no(question: str) -> None:
    side = answering()

    assert answer(side, lines(HEADER, question)) == lines(HEADER, "na")
    assert side.agreed is None


def test_next_protocol_is_proposed_after_a_no() -> None:
    side = proposing()

    assert answer(side, lines(HEADER, "na")) == lines("/chat/1.0.0")
    assert answer(side, lines("/chat/1.0.0")) == b""
    assert side.agreed == "/chat/1.0.0"


def test_no_to_all_proposals_is_a_refusal() -> None:
    side = proposing()

    side.receive_data(lines(HEADER, "na", "na"))

    assert side.is_refused
    assert side.agreed is None


def test_both_sides_agree() -> None:
    dialer, listener = Proposing(("/chat/2.0.0", "/chat/1.0.0")), answering()

    second = answer(dialer, answer(listener, dialer.data_to_send()))
    dialer.receive_data(answer(listener, second))

    assert dialer.agreed == listener.agreed == "/chat/1.0.0"


@pytest.mark.parametrize(
    ("side", "negotiation"),
    [(answering(), lines(HEADER, "/noise")), (Proposing(("/noise",)), lines(HEADER, "/noise"))],
    ids=["answering", "proposing"],
)
def test_what_follows_the_negotiation_is_left(side: Side, negotiation: bytes) -> None:
    side.receive_data(negotiation + b"\xff\xffbytes of the protocol")

    assert side.agreed == "/noise"
    assert side.rest() == b"\xff\xffbytes of the protocol"
    assert side.rest() == b""


MAKERS: dict[str, Callable[[], Side]] = {"answering": answering, "proposing": proposing}
both_sides = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


@both_sides
@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (lines("/multistream/2.0.0"), Cause.NO_MULTISTREAM),
        (lines("/noise"), Cause.NO_MULTISTREAM),
        (b"GET / HTTP/1.1\r\n" + bytes(60), Cause.BAD_LINE),
        (b"\x00", Cause.BAD_LINE),
        (b"\x03abc", Cause.BAD_LINE),
        (b"\x02\xff\n", Cause.BAD_LINE),
        (b"\x93\x00" + lines(HEADER)[1:], Cause.BAD_LINE),
        (b"\x80\x80\x01", Cause.BAD_LINE),
        (varint.encode(MAX_LINE_BYTES + 1), Cause.LINE_TOO_LONG),
    ],
)
def test_bytes_that_are_no_multistream_are_a_fault(make: Callable[[], Side], data: bytes, cause: Cause) -> None:
    assert cause_of(make(), data) is cause


def test_lines_before_a_fault_are_answered() -> None:
    side = answering()

    assert cause_of(side, lines(HEADER, "/tls") + b"\0") is Cause.BAD_LINE
    assert side.data_to_send() == lines(HEADER, "na")


def test_longest_line_is_taken() -> None:
    text = "x" * (MAX_LINE_BYTES - 1)

    assert answer(answering(), lines(HEADER, text)) == lines(HEADER, NOT_AVAILABLE)


@both_sides
def test_line_that_is_not_whole_is_held(make: Callable[[], Side]) -> None:
    side, line = make(), varint.encode(MAX_LINE_BYTES) + b"x" * MAX_LINE_BYTES

    side.receive_data(lines(HEADER) + line[:-1])

    assert side.held_bytes == len(line) - 1 <= 260
    assert make().held_bytes == 0


def test_proposals_are_bounded() -> None:
    side = answering()

    assert answer(side, lines(HEADER, *["/other"] * MAX_PROPOSALS)) == lines(HEADER, *["na"] * MAX_PROPOSALS)
    assert cause_of(side, lines("/noise")) is Cause.TOO_MANY_PROPOSALS


def test_answer_that_is_neither_yes_nor_no_is_a_fault() -> None:
    assert cause_of(proposing(), lines(HEADER, "/chat/1.0.0")) is Cause.WRONG_ANSWER


@both_sides
def test_line_is_waited_for(make: Callable[[], Side]) -> None:
    whole = lines(HEADER)

    for length in range(len(whole)):
        side = make()
        assert answer(side, whole[:length]) == b""
        assert side.agreed is None


CONVERSATIONS = {
    "answering": lines(HEADER, "ls", "/tls/1.0.0", "/chat/1.0.0") + b"rest",
    "proposing": lines(HEADER, "na", "/chat/1.0.0") + b"rest",
}


@pytest.mark.parametrize("name", MAKERS)
def test_byte_by_byte_is_the_same(name: str) -> None:
    whole, cut = MAKERS[name](), MAKERS[name]()

    answers = b"".join(answer(cut, bytes([byte])) for byte in CONVERSATIONS[name])

    assert answers == answer(whole, CONVERSATIONS[name])
    assert cut.agreed == whole.agreed == "/chat/1.0.0"
    assert cut.rest() == whole.rest() == b"rest"


@both_sides
@given(data=st.lists(st.sampled_from([HEADER, "na", "/noise", "/chat/1.0.0", "x"]).map(encode_line) | st.binary()))
@settings()
def test_random_bytes_end_in_a_protocol_of_ours_or_a_fault(make: Callable[[], Side], data: list[bytes]) -> None:
    side = make()
    try:
        for piece in data:
            side.receive_data(piece)
    except Libp2pFault:
        return
    assert side.agreed in {None, "/noise", "/chat/1.0.0", "/chat/2.0.0"}
