"""mailserver.reconcile.sides: both roles, against recorded conversations and sets that hypothesis draws."""

from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mailserver.errors import DecodeError
from mailserver.reconcile import sides as sides_module
from mailserver.reconcile.sides import BUCKETS, IDS_PER_WORK, LIST_BELOW, SLICE_WORK, Initiator, Responder, run
from mailserver.reconcile.storage import MemoryStorage
from mailserver.reconcile.wire import (
    INFINITY,
    MAX_MESSAGE_BYTES,
    MIN_FRAME_BYTES,
    VERSION,
    FrameWriter,
    Mode,
    OtherVersion,
    Range,
    read_ranges,
    split_ids,
)
from tests.data import load
from tests.properties import settings
from tests.reconcile.sets import Item, Talk, TimesStorage, ids, item, items, received, sides, talk

CONVERSATIONS = load("negentropy.json")["conversations"]
each_conversation = pytest.mark.parametrize("vector", CONVERSATIONS, ids=[each["name"] for each in CONVERSATIONS])
HEAD = bytes([VERSION])
REST = b"\0\0\1"
"""How a fingerprint up to infinity begins."""


def told(initiator: Initiator, responder: Responder) -> Talk:
    return talk(initiator, lambda message: run(responder.respond(message)))


def sets_of(vector: Any) -> tuple[list[Item], list[Item]]:
    """The items of initiator and responder."""
    own, others = (
        items((number for each in vector[side] for number in range(*each)), vector["spread"])
        for side in ("initiator", "responder")
    )
    return own, others


# As recorded


@each_conversation
def test_difference_of_a_recorded_conversation_is_found(vector: Any) -> None:
    own, others = sets_of(vector)
    limit, their_limit = vector["frame_bytes"]

    held = told(Initiator(MemoryStorage(own), limit), Responder(MemoryStorage(others), their_limit))

    assert (held.have, held.need) == (ids(own) - ids(others), ids(others) - ids(own))
    # The rest of a full frame has another fingerprint than the reference's, so what follows differs, too.
    if not any(REST in bytes.fromhex(message)[-19:] for message in vector["messages"][1:]):
        assert [message.hex() for message in held.messages] == vector["messages"]


@each_conversation
def test_each_message_is_that_of_the_reference(vector: Any) -> None:
    own, others = sets_of(vector)
    limit, their_limit = vector["frame_bytes"]
    messages = [bytes.fromhex(each) for each in vector["messages"]]
    initiator, responder = Initiator(MemoryStorage(own), limit), Responder(MemoryStorage(others), their_limit)

    made = [initiator.begin()]
    for number, message in enumerate(messages):
        made.append(run(initiator.receive(message)) or b"" if number % 2 else run(responder.respond(message)))

    for ours, recorded in zip(made, [*messages, b""], strict=True):
        assert ours == recorded or _has_another_rest(ours, recorded)


def _has_another_rest(ours: bytes, recorded: bytes) -> bool:
    """Whether the two differ only in the range with which a full frame ends, and in the skip before it."""
    kept = recorded[:-19]
    return recorded[-19:-16] == ours[-19:-16] == REST and ours.startswith(kept) and len(ours) <= len(recorded) + 43


def test_conversations_of_all_kinds_are_recorded() -> None:
    messages = [bytes.fromhex(each) for vector in CONVERSATIONS for each in vector["messages"]]

    modes = {each.mode for message in messages for each in read_ranges(message)}
    assert modes == set(Mode)
    assert sum(message[-19:-16] == REST for message in messages[1:]) > 4
    assert min(map(len, messages)) == 1


# Any sets

timestamps = st.one_of(st.just(7), st.integers(0, 5), st.integers(0, 2**64 - 2))
kinds = st.sampled_from([MemoryStorage, TimesStorage])
shapes = st.sampled_from([0, 1, 31, 32, 33, 100, 700])


@st.composite
def two_sets(draw: st.DrawFn) -> tuple[list[Item], list[Item]]:
    """Sets that have much, little or nothing in common, with ids that share long prefixes, or do not."""
    spread = draw(st.sampled_from([1, 2, 50, 2**32]))
    everything = items(range(draw(shapes)), spread)
    everything += [(draw(timestamps), number.to_bytes(32, "big")) for number in range(draw(st.integers(0, 8)))]
    some = everything[: draw(st.integers(0, len(everything)))]
    chosen = draw(st.sampled_from([everything, some, []]))
    dropped = draw(st.sets(st.sampled_from(range(len(everything))), max_size=40)) if everything else set()
    ours = [each for index, each in enumerate(everything) if index not in dropped or index % 2]
    theirs = [each for index, each in enumerate(chosen) if index not in dropped or not index % 2]
    extra = items(range(10_000, 10_000 + draw(shapes)), spread)
    return (ours + extra, theirs) if draw(st.booleans()) else (theirs, ours + extra)


@settings(max_examples=150)
@given(
    two_sets(),
    st.sampled_from([MIN_FRAME_BYTES, 4500, 9000, MAX_MESSAGE_BYTES]),
    st.sampled_from([MIN_FRAME_BYTES, 5000, MAX_MESSAGE_BYTES]),
    st.tuples(kinds, kinds),
)
def test_difference_of_any_two_sets_is_found_exactly(
    both: tuple[list[Item], list[Item]],
    frame_bytes: int,
    their_frame_bytes: int,
    divided: tuple[type[MemoryStorage], type[MemoryStorage]],
) -> None:
    ours, theirs = both
    initiator = Initiator(divided[0](ours), frame_bytes)
    responder = Responder(divided[1](theirs), their_frame_bytes)

    held = told(initiator, responder)

    assert (held.have, held.need) == (ids(ours) - ids(theirs), ids(theirs) - ids(ours))
    assert max(map(len, held.messages[::2])) <= frame_bytes
    assert max(map(len, held.messages[1::2])) <= their_frame_bytes
    timestamps = {item_id: timestamp for timestamp, item_id in theirs}
    for needed in held.needed:
        assert all(needed.lower <= timestamps[item_id] <= needed.upper for item_id in needed.ids)


def test_what_is_needed_comes_with_a_narrow_range_of_time() -> None:
    """Whoever has it then finds it without looking at all that it has."""
    theirs = sorted(items(range(20_000), 100_000))
    missing = theirs[7_700:7_703]

    held = told(
        Initiator(MemoryStorage(each for each in theirs if each not in missing)), Responder(MemoryStorage(theirs))
    )

    assert held.need == ids(missing)
    assert held.needed
    assert all(needed.upper - needed.lower < 1000 for needed in held.needed)  # of the 100,000 seconds


@pytest.mark.parametrize("count", [0, 1, 5, LIST_BELOW - 1])
def test_small_sets_take_one_round(count: int) -> None:
    held = told(*sides(items(range(count)), items(range(3, count + 3))))

    assert len(held.messages) == 2


def test_equal_sets_take_one_round_and_an_answer_of_one_byte() -> None:
    held = told(*sides(items(range(5000)), items(range(5000))))

    assert [len(message) < 400 for message in held.messages] == [True, True]
    assert held.messages[1] == HEAD


def test_cost_is_that_of_the_difference() -> None:
    most = items(range(20_000), 30 * 86_400)
    missing = {most[index] for index in range(0, 20_000, 2000)}

    held = told(*sides([each for each in most if each not in missing], most))

    assert held.need == ids(missing)
    assert sum(map(len, held.messages)) < 25_000 < 32 * len(most) / 20


# Full frames


KNOWN, LAST = (900, b"\1" * 32), (1000, b"\2" * 32)


def filled() -> tuple[MemoryStorage, bytes]:
    """A set, and a message that is right about KNOWN alone, and has nothing above it. Once all before KNOWN is listed,
    a frame of MIN_FRAME_BYTES has no room for LAST."""
    counts = (31, 31, 31, 28)
    many = [(place, bytes([place, number]) * 16) for place, count in enumerate(counts) for number in range(count)]
    known = MemoryStorage([KNOWN])
    frame = FrameWriter(MAX_MESSAGE_BYTES)
    frame.add([Range((place + 1).to_bytes(8, "big"), Mode.FINGERPRINT, bytes(16)) for place in range(len(counts))])
    frame.add([Range((950).to_bytes(8, "big"), Mode.FINGERPRINT, known.fingerprint(0, 1))])
    frame.add([Range(INFINITY, Mode.FINGERPRINT, known.fingerprint(1, 1))])
    return MemoryStorage([*many, KNOWN, LAST]), frame.message()


def test_range_that_found_no_room_is_part_of_the_rest() -> None:
    """The other side would take a fingerprint without LAST for its own."""
    storage, message = filled()

    answer = run(Initiator(storage, MIN_FRAME_BYTES).receive(message))

    assert answer is not None
    *_, rest = read_ranges(answer)
    assert rest == Range(INFINITY, Mode.FINGERPRINT, MemoryStorage([LAST]).fingerprint(0, 1))
    assert len(answer) <= MIN_FRAME_BYTES


def test_skip_before_a_rest_is_told() -> None:
    """The other side would count KNOWN as part of the rest."""
    storage, message = filled()

    answer = run(Responder(storage, MIN_FRAME_BYTES).respond(message))

    *_, skip, rest = read_ranges(answer)
    assert skip == Range((950).to_bytes(8, "big"), Mode.SKIP)
    assert rest.upper == INFINITY


def test_list_that_is_too_long_for_the_frame_is_continued() -> None:
    initiator, responder = sides([], items(range(1000)), MIN_FRAME_BYTES)

    first = run(responder.respond(initiator.begin()))

    listed, rest = read_ranges(first)
    assert listed.mode is Mode.ID_LIST
    assert MIN_FRAME_BYTES - 200 < len(first) <= MIN_FRAME_BYTES
    assert rest.mode is Mode.FINGERPRINT
    held = told(initiator, responder)
    assert held.need == ids(items(range(1000)))


def test_list_that_fills_the_frame_and_is_all_needs_no_rest() -> None:
    _, responder = sides([], items(range(122)), MIN_FRAME_BYTES)

    answer = run(responder.respond(HEAD + bytes.fromhex("00 00 02 00")))

    assert len(list(read_ranges(answer))) == 1
    assert len(answer) > MIN_FRAME_BYTES - 200


@pytest.mark.parametrize("frame_bytes", [0, MIN_FRAME_BYTES - 1, MAX_MESSAGE_BYTES + 1])
def test_frame_limit_out_of_bounds_is_refused(frame_bytes: int) -> None:
    with pytest.raises(ValueError, match=str(frame_bytes)):
        sides([], [], frame_bytes)


# Versions


@pytest.mark.parametrize("version", [0x60, 0x62, 0x6F])
def test_responder_names_its_version_to_whoever_speaks_another(version: int) -> None:
    _, responder = sides([], items(range(9)))

    assert run(responder.respond(bytes([version]) + b"whatever its format")) == HEAD


def test_initiator_is_told_that_the_other_version_is_no_fault() -> None:
    initiator, _ = sides(items(range(9)), [])
    initiator.begin()

    with pytest.raises(OtherVersion):
        run(initiator.receive(b"\x60"))


def test_message_without_a_version_is_refused_by_both() -> None:
    initiator, responder = sides([], [])

    for steps in (initiator.receive(b""), responder.respond(b""), responder.respond(b"\x41")):
        with pytest.raises(DecodeError, match="no version"):
            run(steps)


# Liars


@pytest.mark.parametrize("body", ["00 00 02 8f00", "0b 00 00  01 00 00", "0b 00 07", "ff" * 11, "00 00 01"])
def test_message_against_the_format_is_refused_by_both(body: str) -> None:
    initiator, responder = sides(items(range(100)), items(range(100)))
    message = HEAD + bytes.fromhex(body)

    for steps in (initiator.receive(message), responder.respond(message)):
        with pytest.raises(DecodeError):
            run(steps)


def test_initiator_refuses_a_list_with_an_id_twice() -> None:
    initiator, _ = sides([], [])

    with pytest.raises(DecodeError, match="list has an id twice"):
        run(initiator.receive(HEAD + bytes.fromhex("00 00 02 02") + bytes(64)))


def test_answer_to_a_liar_is_no_longer_than_a_frame() -> None:
    _, responder = sides([], items(range(3000), 2**31), MIN_FRAME_BYTES)
    frame = FrameWriter(MAX_MESSAGE_BYTES)
    frame.add([Range(item(n, 2**31)[0].to_bytes(8, "big"), Mode.FINGERPRINT, bytes(16)) for n in _rising(3000)])

    assert len(run(responder.respond(frame.message()))) <= MIN_FRAME_BYTES


def _rising(count: int) -> list[int]:
    return sorted(range(count), key=lambda number: item(number, 2**31))


# Slices


def slices(steps: Generator[object, None, object]) -> list[object]:
    """What comes with each slice."""
    return list(steps)


def test_long_list_is_compared_in_slices_and_so_are_its_differences() -> None:
    initiator, _ = sides(items(range(20_000)), [])

    found = list(initiator.receive(HEAD + bytes.fromhex("00 00 02 00")))

    at_once = SLICE_WORK * IDS_PER_WORK
    assert [len(each.have) for each in found[:-1]] == [at_once] * (20_000 // at_once)
    assert sum(len(each.have) for each in found) == 20_000


def test_long_list_of_the_other_side_is_taken_in_slices() -> None:
    initiator, _ = sides([], [])
    theirs = b"".join(sorted(ids(items(range(20_000)))))
    frame = FrameWriter(MAX_MESSAGE_BYTES)
    frame.put([Range(INFINITY, Mode.ID_LIST, theirs)])

    found = list(initiator.receive(frame.message()))

    assert max(len(each.need_ids) for each in found) == SLICE_WORK * IDS_PER_WORK
    assert {each for some in found for each in some.need_ids} == set(split_ids(theirs))


def test_many_ranges_are_answered_in_slices() -> None:
    _, responder = sides([], items(range(10_000), 2**31))
    frame = FrameWriter(MAX_MESSAGE_BYTES)
    frame.add([Range((1000 * n).to_bytes(8, "big"), Mode.FINGERPRINT, bytes(16)) for n in range(1, 2001)])

    assert len(slices(responder.respond(frame.message()))) >= 2000 // SLICE_WORK
    assert len(slices(responder.respond(HEAD + bytes.fromhex("00 00 02 00")))) == 10_000 // IDS_PER_WORK // SLICE_WORK


# No time


def in_a_hurry(our_items: list[Item], their_items: list[Item]) -> tuple[Initiator, Responder]:
    """Two sides that end each message after one slice."""
    return (
        Initiator(MemoryStorage(our_items), goes_on=lambda: False),
        Responder(MemoryStorage(their_items), goes_on=lambda: False),
    )


@settings(max_examples=100)
@given(two_sets())
def test_difference_is_found_however_often_a_message_is_ended(both: tuple[list[Item], list[Item]]) -> None:
    ours, theirs = both
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sides_module, "SLICE_WORK", BUCKETS + 2)  # enough to skip a range, and to divide the next
        held = told(*in_a_hurry(ours, theirs))

    assert (held.have, held.need) == (ids(ours) - ids(theirs), ids(theirs) - ids(ours))


def test_message_that_is_ended_tells_the_rest_by_one_fingerprint() -> None:
    theirs = items(range(10_000), 2**31)
    frame = FrameWriter(MAX_MESSAGE_BYTES)
    bounds = [(item(n, 2**31)[0] + 1).to_bytes(8, "big") for n in _rising(1000)]
    frame.add([Range(bound, Mode.FINGERPRINT, bytes(16)) for bound in bounds])
    asked: list[int] = []

    def goes_on() -> bool:
        asked.append(1)
        return len(asked) < 3

    answer = list(read_ranges(run(Responder(MemoryStorage(theirs), goes_on=goes_on).respond(frame.message()))))

    assert len(asked) == 3
    assert answer[-1].upper == INFINITY
    assert answer[-1].mode is Mode.FINGERPRINT
    in_a_slice = SLICE_WORK // (1 + BUCKETS) + 1
    assert answer[-2].upper == bounds[3 * in_a_slice - 1]
    assert len(answer) < 3 * (SLICE_WORK + BUCKETS)


def test_whole_answer_is_given_where_it_ends_with_the_slice() -> None:
    ours = items(range(3000), 2**31)
    message = Initiator(MemoryStorage(ours)).begin()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sides_module, "SLICE_WORK", BUCKETS)
        answer = run(Responder(MemoryStorage(ours), goes_on=lambda: False).respond(message))

    assert answer == HEAD


def test_set_may_change_between_two_messages() -> None:
    ours, theirs = items(range(3000)), items(range(30, 3020))
    initiator, responder = sides(ours, theirs)
    later = Responder(MemoryStorage([*theirs, item(9999, 10_000)]))
    held = Talk()

    message: bytes | None = initiator.begin()
    answer = run(responder.respond(message or b""))
    while (message := received(initiator, answer, held.learn)) is not None:
        answer = run(later.respond(message))

    assert held.have == ids(ours) - ids(theirs)
    assert ids(theirs) - ids(ours) <= held.need <= ids(theirs) - ids(ours) | {item(9999, 10_000)[1]}
