"""Memory for large frames, shared by all connections: a frame can be opened only when all of it is there.

A frame of more than SMALL_FRAME_BYTES is read once there is memory for it; until then it waits in the peer's own TCP
window. Smaller frames go first, and those up to SMALL_FRAME_BYTES wait for nothing: who holds up others' frames has
to send frames as small as theirs, and many more of them.

Messages that are longer than a stranger may send, which peers may that the operator has named, have a budget of their
own. It has room for one of them, from its frame's first bytes until it has been acted on; the next one waits unread.
"""

import asyncio
from asyncio import TimerHandle
from collections.abc import Callable

from mailserver.codec.snappy import max_compressed_bytes
from mailserver.rlpx.framing import PartialFrame

SMALL_FRAME_BYTES = 32 * 1024
"""A frame of up to so many bytes is read at once: 500 peers with one each take 16 MiB. A phone's posts are shorter."""

MAX_LARGE_FRAMES_BYTES = 32 * 1024 * 1024
"""Bytes of all larger frames that are being read: 18 of the largest at a time, or those of 500 peers of 64 KiB each."""

MAX_FRAME_OVERHEAD_BYTES = 64
"""What a frame has around its message, or more: message id, padding, MAC."""

FRAME_TIMEOUT_S = 30.0
"""How long a large frame may take to come, once there is memory for it; deployed clients take no more for any frame."""


MAX_LONG_MESSAGE_BYTES = 32 * 1024 * 1024
"""What one long message takes at most: a frame of 16 MiB, and what it inflates to."""


class FrameShare:
    """Memory for one frame, asked for or held. Made by `ReceiveMemory.ask`."""

    __slots__ = ("is_granted", "on_granted", "size")

    def __init__(self, size: int, on_granted: Callable[[], None]) -> None:
        self.size = size
        self.on_granted = on_granted
        self.is_granted = False


class ReceiveMemory:
    """Says whose large frame is read now."""

    def __init__(self, max_bytes: int = MAX_LARGE_FRAMES_BYTES) -> None:
        """Have so many bytes to give. A frame that is larger would wait for ever."""
        self._free = max_bytes
        self._long: ReceiveMemory | None = None
        self._waiting: list[FrameShare] = []  # oldest first; no more than connections

    def ask(self, size: int, on_granted: Callable[[], None]) -> FrameShare:
        """Ask for memory for a frame of so many bytes; `give_back` it when the frame is there, or will not come.

        Args:
            on_granted: called when it is granted later; not if it is at once.
        """
        share = FrameShare(size, on_granted)
        if size <= self._free:  # so it is smaller than all that wait
            self._grant(share)
        else:
            self._waiting.append(share)
        return share

    @property
    def long(self) -> "ReceiveMemory":
        """The budget for long messages. Each asks for all of it, so that they come one at a time, in turn."""
        if self._long is None:
            self._long = ReceiveMemory(MAX_LONG_MESSAGE_BYTES)
        return self._long

    def give_back(self, share: FrameShare) -> None:
        """Take the memory back, or off the list of those who wait. Once for each share."""
        if share.is_granted:
            self._free += share.size
        else:
            self._waiting.remove(share)
        while self._waiting:
            smallest = min(self._waiting, key=lambda waiting: waiting.size)
            if smallest.size > self._free:
                return
            self._waiting.remove(smallest)
            self._grant(smallest)
            smallest.on_granted()

    def _grant(self, share: FrameShare) -> None:
        share.is_granted = True
        self._free -= share.size


class FrameRoom:
    """What one connection has of the memory: a share for the frame that is coming, for FRAME_TIMEOUT_S at most."""

    def __init__(
        self,
        memory: ReceiveMemory,
        *,
        max_message_bytes: int,
        on_granted: Callable[[], None],
        on_late: Callable[[], None],
    ) -> None:
        """Have nothing yet.

        Args:
            max_message_bytes: what inflates to more is a long message.
            on_granted: called when what was asked for is there.
            on_late: called when a frame takes too long.
        """
        self._memory = memory
        self._max_message_bytes = max_message_bytes
        self._max_wire_bytes = MAX_FRAME_OVERHEAD_BYTES + max_compressed_bytes(max_message_bytes)
        self.is_long = False
        self._on_granted = on_granted
        self._on_late = on_late
        self._frame: PartialFrame | None = None
        self._share: FrameShare | None = None
        self._timer: TimerHandle | None = None

    @property
    def is_granted(self) -> bool:
        """Whether there is memory for the frame that is coming."""
        return self._share is None or self._share.is_granted

    @property
    def long_bytes_due(self) -> int:
        """How long the long message is that has begun to come, or waits for memory, and is not there; 0 if none is."""
        is_due = self.is_long and (self._timer is not None or not self.is_granted)
        return (self._frame.message_bytes or self._frame.wire_bytes) if is_due and self._frame is not None else 0

    def ask(self, frame: PartialFrame | None) -> bool:
        """Ask for memory for the frame that is coming, unless that is done; return whether it is there."""
        if frame is not self._frame:
            self.leave()
            self._frame = frame
            if frame is not None and SMALL_FRAME_BYTES < frame.wire_bytes <= self._max_wire_bytes:
                self._take(self._memory, frame.wire_bytes)
        if frame is not None and not self.is_long and self._makes_long(frame):
            self._give_back()
            self.is_long = True
            self._take(self._memory.long, MAX_LONG_MESSAGE_BYTES)
        return self.is_granted

    def _makes_long(self, frame: PartialFrame) -> bool:
        return frame.wire_bytes > self._max_wire_bytes or (frame.message_bytes or 0) > self._max_message_bytes

    def _take(self, memory: ReceiveMemory, size: int) -> None:
        self._share = memory.ask(size, self._grant)
        if self._share.is_granted:
            self._start_timer()

    def leave_unless(self, frame: PartialFrame | None) -> None:
        """Give back what another frame than this one had: it has come, and its peer may be slowed now.

        What a long message has is kept until something else is asked for: it is still to be inflated and acted on.
        """
        if frame is not self._frame and self.is_long:
            self._stop_timer()
        elif frame is not self._frame:
            self.leave()

    def leave(self) -> None:
        """The frame is there, or will not come."""
        self._frame = None
        self._give_back()
        self.is_long = False

    def _give_back(self) -> None:
        self._stop_timer()
        if self._share is not None:
            (self._memory.long if self.is_long else self._memory).give_back(self._share)
            self._share = None

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self) -> None:
        """The connection has ended: there will be no frame any more, and nobody to call."""
        self.leave()
        self._on_granted = self._on_late = _nobody

    def _grant(self) -> None:
        self._start_timer()
        self._on_granted()

    def _start_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(FRAME_TIMEOUT_S, self._on_late)


def _nobody() -> None:
    """Called where there is nobody any more."""
