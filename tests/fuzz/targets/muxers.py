"""The muxers: two joined ones in any conversation, and one against a peer that says whatever the fuzzer's bytes say."""

from collections.abc import Callable, Iterator

from mailserver.codec import varint
from mailserver.libp2p.faults import Cause, Libp2pFault
from mailserver.libp2p.streams import MAX_STREAMS, StreamId
from mailserver.libp2p.yamux import HEADER
from tests.fuzz.choices import Choices
from tests.fuzz.target import Target
from tests.libp2p.joined import MUXERS, Side, converse

MAX_ACTIONS = 64
MEMORY_BYTES = 16 * 1024 * 1024
"""Two sides with what a connection may have unread, and what the conversations have sent."""

LONG = (0, 1, 255, 65_536, 262_144, 262_145, 1_048_576)
"""Lengths of frames around the bounds."""


def mplex_frame(choices: Choices, data: bytes) -> bytes:
    """Any frame of mplex, its length mostly that of its data."""
    number = choices.pick((0, 1, 2, 3, 300, (1 << 60) - 1))
    length = len(data) if choices.below(8) else choices.pick(LONG)
    return varint.encode(number << 3 | choices.below(8)) + varint.encode(length) + data


def yamux_frame(choices: Choices, data: bytes) -> bytes:
    """Any frame of yamux; only those of data have data."""
    kind, flags = choices.pick((0, 0, 1, 1, 2, 3, 4)), choices.below(16)
    stream = choices.pick((1, 2, 3, 4, 5, 6, 0, 0xFFFFFFFF))
    length = choices.pick((*LONG, 0xFFFFFFFF)) if kind or not choices.below(8) else len(data)
    return HEADER.pack(0, kind, flags, stream, length) + (b"" if kind else data)


class Accused:
    """One or two sides that get the same bytes, the second one in pieces, and do the same."""

    def __init__(self, kind: str, choices: Choices, *, is_twin: bool) -> None:
        is_dialer = choices.flag()
        self.sides = [Side(MUXERS[kind](is_dialer)) for _ in range(1 + is_twin)]
        self.said = [b""] * len(self.sides)
        self.faults: list[Cause | None] = [None] * len(self.sides)

    def feed(self, data: bytes, cut: int) -> None:
        """Give the same bytes to all."""
        for index, (side, size) in enumerate(zip(self.sides, (len(data) or 1, cut), strict=False)):
            try:
                for at in range(0, len(data), size):
                    side.receive(data[at : at + size])
            except Libp2pFault as fault:
                self.faults[index] = fault.cause

    def do(self, act: Callable[[Side], object]) -> None:
        """Do the same with all."""
        for side in self.sides:
            act(side)

    def check(self) -> None:
        """All have heard and said the same, within their bounds."""
        for index, side in enumerate(self.sides):
            self.said[index] += side.data_to_send()
            live = [heard for heard in side.heard.values() if not (heard.is_reset or heard.is_closed)]
            assert len(live) <= 2 * MAX_STREAMS
        whole, other = self.sides[0], self.sides[-1]
        assert whole.heard == other.heard
        assert whole.opened == other.opened
        assert whole.going_away == other.going_away
        assert whole.muxer.ignored_frames == other.muxer.ignored_frames
        assert whole.muxer.refused_streams == other.muxer.refused_streams
        assert self.said[0] == self.said[-1]
        assert self.faults[0] == self.faults[-1]


def hostile(kind: str, choices: Choices, frame: Callable[[Choices, bytes], bytes]) -> None:
    """A peer without rules. Long data goes to one side that reads nothing, short data to twins that read it at once."""
    is_twin = choices.flag()
    accused = Accused(kind, choices, is_twin=is_twin)
    for _ in range(MAX_ACTIONS):
        if not choices.more or accused.faults[0] is not None:
            break
        action = choices.below(16)
        if action < 9:
            data = choices.take(32) if is_twin else bytes(choices.pick(LONG))
            accused.feed(frame(choices, data), choices.pick((1, 2, 7, 16)))
        elif action < 11:
            accused.feed(choices.take(40), choices.pick((1, 2, 7, 16)))
        else:
            use(accused, action, choices)
        if is_twin:
            accused.do(lambda side: [side.consume(stream, 1 << 30) for stream in side.heard])
        accused.check()


def use(accused: Accused, action: int, choices: Choices) -> None:
    """Do what an application does."""
    first = accused.sides[0]
    if action == 11 and first.muxer.may_open:
        accused.do(lambda side: side.open())
    if action == 12:
        code = choices.below(3)
        accused.do(lambda side: side.muxer.go_away(code))
    if not first.heard:
        return
    stream = choices.pick(list(first.heard))
    if action == 13:
        accused.do(lambda side: side.muxer.close_write(stream))
    elif action == 14:
        accused.do(lambda side: reset(side, stream))
    elif action == 15:
        most = choices.pick((1, 1000, 1 << 30))
        accused.do(lambda side: side.consume(stream, most))


def reset(side: Side, stream: StreamId) -> None:
    """Reset a stream, and remember it."""
    side.muxer.reset(stream)
    side.heard[stream].is_reset = True
    side.heard[stream].unread = 0


def fuzz_muxer(kind: str, frame: Callable[[Choices, bytes], bytes], data: bytes) -> None:
    """Nothing is lost, and nothing but a fault is raised, whatever the peer does."""
    choices = Choices(data)
    if choices.flag():
        converse(kind, choices, MAX_ACTIONS)
    else:
        hostile(kind, choices, frame)


def seeds() -> Iterator[bytes]:
    """Conversations of some length, and hostile peers of both sorts."""
    opening = bytes([1, 0, 0, 0, 1, 0, 1, 1, 0])
    for action in range(8):
        yield opening + bytes([0, action, 0, 0, 1, 1, 0]) * 6
    for is_twin in (0, 1):
        for action in range(16):
            yield bytes([0, is_twin, 0, 0, 0, 0, 0, 1, 0, 1, 0, action, 2, 65, 66, 1, 1, 2, 0, action, 1, 1, 1, 1, 3])


TARGETS = {
    "mplex": Target(lambda data: fuzz_muxer("mplex", mplex_frame, data), seeds, 512, MEMORY_BYTES),
    "yamux": Target(lambda data: fuzz_muxer("yamux", yamux_frame, data), seeds, 512, MEMORY_BYTES),
}
