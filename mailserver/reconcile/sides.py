"""The two sides of a comparison. The initiator asks and learns the difference; the responder only answers.

A message may have a megabyte, and be about a million items. So each side works on it in slices of some milliseconds:
what takes a message returns a generator that pauses after each slice, for others to run, and returns the answer.

    steps = responder.respond(message)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value
        await asyncio.sleep(0)

The difference leaves in the same slices, so neither side ever holds all of it. All slices are about equally long, so
whoever sent a message can be charged for them. `run` is for those who need no pauses. Whoever has no more time for a
message ends it after any slice: as where a frame is full, one fingerprint then stands for the rest.
Spec: negentropy-protocol-v1.md "Message", and README.md "Algorithm" and "Frame Size Limits" beside it.
"""

from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple, TypeVar

from mailserver.errors import DecodeError
from mailserver.reconcile.storage import ItemStorage
from mailserver.reconcile.wire import (
    ID_BYTES,
    INFINITY,
    MAX_MESSAGE_BYTES,
    MIN_FRAME_BYTES,
    TIMESTAMP_BYTES,
    VERSION,
    FrameWriter,
    Mode,
    OtherVersion,
    Range,
    check_version,
    read_ranges,
    split_ids,
)

BUCKETS = 16
"""Into how many parts a range is divided that differs."""

LIST_BELOW = 2 * BUCKETS
"""A range that differs is listed instead if it has fewer items. Both numbers are those of the other implementations."""

SLACK_PART = 8
"""By one of so many parts of its length a part of a range may begin earlier than if all had the same, where it costs
less to begin there. Any division is one of the protocol."""

SLICE_WORK = 128
"""How much is done in a slice, in 3 ms: a range that is read or written counts 1, and so do IDS_PER_WORK ids."""

IDS_PER_WORK = 16

_IDS_AT_ONCE = SLICE_WORK * IDS_PER_WORK

NOTHING_DIFFERS = bytes([VERSION])
"""The answer to a message where all that it asked about is the same. The initiator needs no items to take it."""

R = TypeVar("R")


class Needed(NamedTuple):
    """Ids that only the responder has, 32 bytes each, with timestamps from `lower` to `upper`, both inclusive."""

    lower: int
    upper: int
    ids: list[bytes]


class Differences(NamedTuple):
    """Some ids that only the initiator has, 32 bytes each, and some that only the responder has."""

    have: list[bytes]
    need: list[Needed]

    @property
    def need_ids(self) -> list[bytes]:
        """What is needed, whatever its timestamps."""
        return [item_id for needed in self.need for item_id in needed.ids]


def _always() -> bool:
    return True


class _Side:
    """What both sides do with a message."""

    def __init__(
        self, storage: ItemStorage, frame_bytes: int = MAX_MESSAGE_BYTES, goes_on: Callable[[], bool] = _always
    ) -> None:
        """Compare a set.

        Args:
            storage: it must stay the same while a message is worked on, not from message to message.
            frame_bytes: the longest message to send.
            goes_on: asked after a slice whether there is time for another. If not, the message is ended, and more of
                them are needed. Each goes further than the one before, so it may always say no.
        Raises:
            ValueError: `frame_bytes` is below MIN_FRAME_BYTES or above MAX_MESSAGE_BYTES.
        """
        if not MIN_FRAME_BYTES <= frame_bytes <= MAX_MESSAGE_BYTES:
            raise ValueError(f"{frame_bytes} bytes are not between {MIN_FRAME_BYTES} and {MAX_MESSAGE_BYTES}")
        self._storage = storage
        self._frame_bytes = frame_bytes
        self._goes_on = goes_on
        self._work_left = SLICE_WORK
        self._bounds = b"", INFINITY  # of the range that is worked on

    def _walk(self, message: bytes) -> Generator[None, None, bytes]:
        """Go through the ranges of a message, in slices; return what there is to say of them."""
        storage, size, lower, bound = self._storage, len(self._storage), 0, b""
        frame = FrameWriter(self._frame_bytes)
        for each in read_ranges(message):
            self._bounds, bound = (bound, each.upper), each.upper
            upper = storage.find(each.upper, lower, size)
            if each.mode is Mode.ID_LIST:
                lower = yield from self._take_list(each, lower, upper, frame)
                is_room = frame.room >= 0 or (lower == size and each.upper == INFINITY)
            elif each.mode is Mode.SKIP or storage.fingerprint(lower, upper) == each.payload:
                frame.skip(each.upper)
                lower, is_room = upper, True
            else:
                is_room = frame.add(self._split(lower, upper, each.upper))
                lower = upper if is_room else lower
                self._work_left -= BUCKETS
            if is_room and self._slice_ends(1):
                yield
                is_room = each.upper == INFINITY or self._goes_on()
            if not is_room:
                # The range that found no room is part of the rest. The reference leaves it out of this fingerprint:
                # where only one side has items in it, both then take the rest for equal, and lose the difference.
                frame.put([Range(INFINITY, Mode.FINGERPRINT, storage.fingerprint(lower, size))])
                break
        return frame.message()

    def _take_list(self, theirs: Range, lower: int, upper: int, frame: FrameWriter) -> Generator[None, None, int]:
        """Say what there is to say of a list of ids; return up to which of our items that is done."""
        raise NotImplementedError

    def _split(self, lower: int, upper: int, bound: bytes) -> Iterator[Range]:
        """Our items of a range that differs: a list of them, or the fingerprints of its parts."""
        storage, count = self._storage, upper - lower
        if count < LIST_BELOW:
            yield Range(bound, Mode.ID_LIST, b"".join(storage.ids(lower, upper)))
            return
        size, larger = divmod(count, BUCKETS)
        start = place = lower
        for bucket in range(BUCKETS):
            place += size + (bucket < larger)
            end, end_bound = (upper, bound) if place == upper else storage.cut(place, size // SLACK_PART)
            yield Range(end_bound, Mode.FINGERPRINT, storage.fingerprint(start, end))
            start = end

    def _slice_ends(self, work: int) -> bool:
        """Count work; whether the slice is over with it."""
        self._work_left -= work
        if self._work_left > 0:
            return False
        self._work_left = SLICE_WORK
        return True


class Responder(_Side):
    """The side that is asked. It keeps nothing from message to message."""

    def respond(self, message: bytes) -> Generator[None, None, bytes]:
        """Answer a message, in slices. To one of another version the answer is the version that we speak.

        Raises:
            DecodeError: the message is none, see `read_ranges`. What follows a full frame is not looked at.
        """
        try:
            check_version(message)
        except OtherVersion:
            return bytes([VERSION])
        return (yield from self._walk(message))

    def _take_list(self, theirs: Range, lower: int, upper: int, frame: FrameWriter) -> Generator[None, None, int]:
        """Answer with our own list, or with as much of it as there is room for."""
        fit = frame.room // ID_BYTES + 1  # one of them in the reserve, as the reference has it
        end, bound = (upper, theirs.upper) if upper - lower <= fit else (lower + fit, self._storage.key(lower + fit))
        chunks = []
        for at in range(lower, end, _IDS_AT_ONCE):
            ids = self._storage.ids(at, min(at + _IDS_AT_ONCE, end))
            chunks += ids
            if self._slice_ends(len(ids) // IDS_PER_WORK):
                yield
        frame.put([Range(bound, Mode.ID_LIST, b"".join(chunks))])
        return end


class Initiator(_Side):
    """The side that asks. It says what differs as it learns of it; with limited frames, it may say so twice."""

    def __init__(
        self, storage: ItemStorage, frame_bytes: int = MAX_MESSAGE_BYTES, goes_on: Callable[[], bool] = _always
    ) -> None:
        """Compare a set: as for the other side."""
        super().__init__(storage, frame_bytes, goes_on)
        self._found = Differences([], [])

    def begin(self) -> bytes:
        """The first message."""
        frame = FrameWriter(self._frame_bytes)
        frame.put(self._split(0, len(self._storage), INFINITY))
        return frame.message()

    def receive(self, message: bytes) -> Generator[Differences, None, bytes | None]:
        """Take an answer, in slices; with each comes what was found in it. Return the next message, None at the end.

        Nothing says that an honest responder has sent the ids: it may lie about what it has, and name an id that we
        have elsewhere, or that nobody has.

        Raises:
            OtherVersion: the responder does not speak our version.
            DecodeError: the message is none, see `read_ranges`, or lists an id twice.
        """
        check_version(message)
        answer = b""
        steps = self._walk(message)
        while not answer:
            try:
                next(steps)
            except StopIteration as done:
                answer = done.value
            found, self._found = self._found, Differences([], [])
            yield found
        return answer if len(answer) > 1 else None

    def _take_list(self, theirs: Range, lower: int, upper: int, frame: FrameWriter) -> Generator[None, None, int]:
        """Compare their list with our items. With it, the range is done."""
        frame.skip(theirs.upper)
        left: set[bytes] = set()
        for at in range(0, len(theirs.payload), _IDS_AT_ONCE * ID_BYTES):
            ids = split_ids(theirs.payload[at : at + _IDS_AT_ONCE * ID_BYTES])
            left.update(ids)
            if self._slice_ends(len(ids) // IDS_PER_WORK):
                yield
        if len(left) * ID_BYTES != len(theirs.payload):
            raise DecodeError("list has an id twice")
        for at in range(lower, upper, _IDS_AT_ONCE):
            ids = self._storage.ids(at, min(at + _IDS_AT_ONCE, upper))
            self._found.have.extend(each for each in ids if each not in left)
            left.difference_update(ids)
            if self._slice_ends(len(ids) // IDS_PER_WORK):
                yield
        while left:
            ids = [left.pop() for _ in range(min(len(left), _IDS_AT_ONCE))]
            self._found.need.append(Needed(*_timestamps(*self._bounds), ids))
            if self._slice_ends(len(ids) // IDS_PER_WORK):
                yield
        return upper


def _timestamps(lower: bytes, upper: bytes) -> tuple[int, int]:
    """From which timestamp to which there can be items between two bounds, both inclusive."""
    first, last = (int.from_bytes(bound[:TIMESTAMP_BYTES], "big") for bound in (lower, upper))
    return first, last if len(upper) > TIMESTAMP_BYTES else last - 1


def run(steps: Generator[object, None, R]) -> R:
    """Do all slices at once; return the answer."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            answer: R = done.value
            return answer
