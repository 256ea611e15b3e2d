"""Messages of negentropy to both sides, and whole conversations about any two sets."""

from collections.abc import Iterator

from mailserver.errors import DecodeError
from mailserver.reconcile.sides import BUCKETS, SLICE_WORK, Initiator, Responder, run
from mailserver.reconcile.storage import MemoryStorage
from mailserver.reconcile.wire import (
    KEY_BYTES,
    MIN_FRAME_BYTES,
    TIMESTAMP_BYTES,
    FrameWriter,
    Mode,
    OtherVersion,
    check_version,
    read_ranges,
)
from tests.data import load
from tests.fuzz.choices import Choices
from tests.fuzz.target import Target
from tests.reconcile.sets import Talk, ids, item, items, received, talk

FEW, MANY = items(range(2000, 2040), 3), items(range(900), 50)
STORAGES = [MemoryStorage([]), MemoryStorage(FEW), MemoryStorage(MANY)]
PREFIXED = [(7, number.to_bytes(32, "big")) for number in range(120)]
"""Ids with long prefixes in common, all of one time."""

ROUNDS = 400


def fuzz_message(data: bytes) -> None:
    """What is read is canonical; no answer is longer than a frame, or takes long to the next slice."""
    canonical = _ranges(data)
    for storage in STORAGES:
        for is_asked in (True, False):
            _answered(storage, data, is_asked=is_asked, is_sound=canonical)


def _ranges(data: bytes) -> bool:
    """Whether the message is sound: each of its ranges as it should be, and written again as it was."""
    frame = FrameWriter(2 * len(data) + MIN_FRAME_BYTES)
    lower = bytes(TIMESTAMP_BYTES)
    try:
        check_version(data)
        for each in read_ranges(data):
            assert TIMESTAMP_BYTES <= len(each.upper) <= KEY_BYTES
            assert each.upper >= lower
            assert len(each.payload) == 16 or each.mode is not Mode.FINGERPRINT
            lower = each.upper
            frame.put([each])
    except DecodeError:
        return False
    assert frame.message() == data
    return True


def _answered(storage: MemoryStorage, data: bytes, *, is_asked: bool, is_sound: bool) -> None:
    found, answer = Talk(), b""
    slices = 0
    try:
        if is_asked:
            steps = Responder(storage, MIN_FRAME_BYTES).respond(data)
            while True:
                try:
                    next(steps)
                except StopIteration as done:
                    answer = done.value
                    break
                slices += 1
        else:
            answer = received(Initiator(storage, MIN_FRAME_BYTES), data, found.learn) or b"\x61"
    except OtherVersion:
        assert not is_asked
        return
    except DecodeError:
        assert not is_sound or b"\2" in data  # the initiator also refuses a list with an id twice
        return
    assert 0 < len(answer) <= MIN_FRAME_BYTES
    list(read_ranges(answer))
    assert found.have <= set(storage.ids(0, len(storage)))
    assert slices <= 1 + (len(data) + len(storage)) * (BUCKETS + 1) // SLICE_WORK


def message_seeds() -> Iterator[bytes]:
    """Messages of recorded conversations, and some about the sets of this target."""
    for vector in load("negentropy.json")["conversations"]:
        yield from (bytes.fromhex(each)[:1500] for each in vector["messages"][:2])
    for storage in STORAGES:
        yield Initiator(storage).begin()
    yield from (b"\x60", b"\x61", bytes.fromhex("61 00 00 02 00"), bytes.fromhex("61 00 00 02 00 00 00 00"))


def fuzz_talk(data: bytes) -> None:
    """Whatever two sets have, and whatever the limits of their frames, the difference is found, exactly."""
    choices = Choices(data)
    limits = [MIN_FRAME_BYTES + choices.below(3000) for _ in range(2)]
    ours, theirs = ([each for start in range(choices.below(3)) for each in _part(choices, start)] for _ in range(2))
    later = [*theirs, item(10_000, 50)] if choices.flag() else theirs

    initiator = Initiator(MemoryStorage(ours), limits[0])
    first, second = (Responder(MemoryStorage(some), limits[1]) for some in (theirs, later))
    asked = [0]

    def respond(message: bytes) -> bytes:
        """Answer; after the first message the set may be another."""
        asked[0] += 1
        return run((first if asked[0] == 1 else second).respond(message))

    held = talk(initiator, respond, most_rounds=ROUNDS)

    assert held.have == ids(ours) - ids(theirs)
    assert ids(theirs) - ids(ours) <= held.need <= ids(later) - ids(ours)


def _part(choices: Choices, start: int) -> list[tuple[int, bytes]]:
    """Some neighbours in one of the sets."""
    pool = (MANY, FEW, PREFIXED)[(start + choices.below(3)) % 3]
    begin = choices.below(len(pool))
    return pool[begin : begin + choices.below(700)]


def talk_seeds() -> Iterator[bytes]:
    """All of the sets against each other."""
    for sets in range(9):
        yield bytes(
            [0, 0, 0, 0, 2, sets % 3, 0, 0, 2, 188, sets // 3, 0, 0, 2, 188, 2, 0, 0, 5, 2, 150, 1, 0, 9, 1, 90, 1]
        )


TARGETS = {
    "message": Target(fuzz_message, message_seeds, max_bytes=1536),
    "talk": Target(fuzz_talk, talk_seeds, max_bytes=64),
}
