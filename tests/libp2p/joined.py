"""Two muxers joined by a wire, each with an application that remembers what it was told, and what must hold of them."""

from collections.abc import Callable
from dataclasses import dataclass, field

from mailserver.errors import LocalProtocolError
from mailserver.libp2p.mplex import Mplex
from mailserver.libp2p.streams import DataReceived, IncomingStream, Muxer, PeerGoingAway, StreamId, StreamReset
from mailserver.libp2p.yamux import Yamux
from tests.fuzz.choices import Choices

MAX_STREAM_BYTES = 256 * 1024
MAX_CONNECTION_BYTES = 1024 * 1024

MUXERS: dict[str, Callable[[bool], Muxer]] = {
    "mplex": lambda is_dialer: Mplex(),
    "yamux": lambda is_dialer: Yamux(is_dialer=is_dialer),
}
"""A muxer of each kind; the argument says whether it is that of the dialer."""

MOST_STREAMS = 4
"""Of each side at once, in a conversation."""


@dataclass
class Heard:
    """What an application was told of one stream."""

    data: bytearray = field(default_factory=bytearray)
    unread: int = 0
    is_closed: bool = False
    is_reset: bool = False


class Side:
    """A muxer, and an application that remembers all that it was told."""

    def __init__(self, muxer: Muxer) -> None:
        self.muxer = muxer
        self.heard: dict[StreamId, Heard] = {}
        self.opened: list[StreamId] = []  # by the other side, in this order
        self.going_away: list[int] = []

    def receive(self, data: bytes) -> None:
        """Take bytes, and all events that they make."""
        try:
            self.muxer.receive_data(data)
        finally:
            self.listen()

    def listen(self) -> None:
        """Take all events; each must be one that may come now."""
        for event in self.muxer.events():
            if isinstance(event, PeerGoingAway):
                self.going_away.append(event.code)
                continue
            if isinstance(event, IncomingStream):
                self.opened.append(event.stream)
                self.heard[event.stream] = Heard()
                continue
            heard = self.heard[event.stream]
            assert not heard.is_reset
            if isinstance(event, StreamReset):
                heard.is_reset = True
                heard.unread = 0
                continue
            assert not heard.is_closed
            if isinstance(event, DataReceived):
                assert event.data
                heard.data += event.data
                heard.unread += len(event.data)
            else:
                heard.is_closed = True
        assert all(heard.unread <= MAX_STREAM_BYTES for heard in self.heard.values())
        assert self.unread <= MAX_CONNECTION_BYTES

    @property
    def unread(self) -> int:
        """How many bytes have come that were not consumed."""
        return sum(heard.unread for heard in self.heard.values())

    def open(self) -> StreamId:
        """Open a stream."""
        stream = self.muxer.open_stream()
        assert stream not in self.heard or self.heard[stream].is_reset
        self.heard[stream] = Heard()
        return stream

    def consume(self, stream: StreamId, most: int) -> int:
        """Have done with some of what has come of a stream; return how much."""
        heard = self.heard[stream]
        count = min(most, heard.unread)
        if count:
            heard.unread -= count
            self.muxer.consumed(stream, count)
        return count

    def data_to_send(self) -> bytes:
        """All that is to be sent, joined; it is as much as the muxer says."""
        queued = self.muxer.queued_bytes
        data = b"".join(self.muxer.data_to_send())
        assert queued - len(data) == self.muxer.queued_bytes
        return data


@dataclass
class Half:
    """What one side has done on one stream."""

    stream: StreamId
    sent: bytearray = field(default_factory=bytearray)
    is_closed: bool = False
    has_reset: bool = False


class Joined:
    """Two sides and the bytes between them, which come in any pieces."""

    def __init__(self, kind: str) -> None:
        self.sides = (Side(MUXERS[kind](True)), Side(MUXERS[kind](False)))
        self.flying = (bytearray(), bytearray())  # to the first, to the second
        # Of each stream: what its opener does, what the other does; the latter once the stream has come there.
        self.streams: tuple[list[list[Half]], list[list[Half]]] = ([], [])

    def fly(self, to: int, most: int) -> int:
        """Let some of the bytes arrive; return how many."""
        self.flying[to].extend(self.sides[1 - to].data_to_send())
        piece = bytes(self.flying[to][:most])
        del self.flying[to][:most]
        side = self.sides[to]
        side.receive(piece)
        for halves, stream in zip(self.streams[1 - to], side.opened, strict=False):
            if len(halves) == 1:
                halves.append(Half(stream))
        return len(piece)

    def settle(self) -> None:
        """Let everything arrive and be consumed, until nothing moves."""
        moved = True
        while moved:
            moved = False
            for to in (0, 1):
                while self.fly(to, 1 << 20):
                    moved = True
                for stream in self.sides[to].heard:
                    moved |= self.sides[to].consume(stream, 1 << 30) > 0

    def act(self, choices: Choices) -> None:
        """Do one thing, as chosen."""
        at = choices.below(2)
        side = self.sides[at]
        action = choices.below(8)
        if action == 0:
            if sum(self._lives(opener[0], at) for opener in self.streams[at]) < MOST_STREAMS:
                assert side.muxer.may_open
                self.streams[at].append([Half(side.open())])
            return
        if action in (1, 2):
            self.fly(at, choices.pick((1 << 20, 1, 13, 300, 4000)))
            return
        mine = [halves[0] for halves in self.streams[at]]
        mine += [halves[1] for halves in self.streams[1 - at] if len(halves) == 2]
        if not mine:
            return
        half = choices.pick(mine)
        if action == 3:
            side.consume(half.stream, choices.pick((1 << 30, 1, 700)))
        elif action == 4:
            side.muxer.close_write(half.stream)
            half.is_closed = True
        elif action == 5 and choices.below(4) == 1:
            side.muxer.reset(half.stream)
            side.heard[half.stream].is_reset = half.has_reset = True
            side.heard[half.stream].unread = 0
        else:
            data = bytes([choices.below(256)]) * choices.pick((1, 0, 300, 5000, 130_000))
            self._send(side, half, data)

    def _send(self, side: Side, half: Half, data: bytes) -> None:
        if not half.is_closed:
            side.muxer.send(half.stream, data)
            half.sent += data
            return
        try:
            side.muxer.send(half.stream, data)
        except LocalProtocolError:
            return
        # Of a stream that is gone nothing is said.
        assert side.muxer.unsent(half.stream) == 0

    def _lives(self, half: Half, at: int) -> bool:
        heard = self.sides[at].heard[half.stream]
        return not (heard.is_reset or (half.is_closed and heard.is_closed))

    def check(self) -> None:
        """Once all has arrived: each stream has brought exactly what was sent, or has been reset on both sides."""
        for at in (0, 1):
            assert len(self.sides[1 - at].opened) == len(self.streams[at])
            for ours, theirs in self.streams[at]:
                here, there = self.sides[at].heard[ours.stream], self.sides[1 - at].heard[theirs.stream]
                assert theirs.sent.startswith(here.data)
                assert ours.sent.startswith(there.data)
                if here.is_reset or there.is_reset:
                    # Either side may have been through with it before the reset came.
                    assert here.is_reset or (ours.is_closed and here.is_closed)
                    assert there.is_reset or (theirs.is_closed and there.is_closed)
                    continue
                assert not ours.has_reset
                assert not theirs.has_reset
                assert (here.data, there.data) == (theirs.sent, ours.sent)
                assert (here.is_closed, there.is_closed) == (theirs.is_closed, ours.is_closed)
        for side in self.sides:
            assert side.muxer.queued_bytes == 0
            assert side.unread == 0


def converse(kind: str, choices: Choices, most_actions: int = 200) -> Joined:
    """Any conversation, then everything arrives."""
    joined = Joined(kind)
    for _ in range(most_actions):
        if not choices.more:
            break
        joined.act(choices)
    joined.settle()
    joined.check()
    return joined
