"""Memory for large frames, shared by all connections: a frame can be opened only when all of it is there.

A frame of more than SMALL_FRAME_BYTES is read once there is memory for it; until then it waits in the peer's own TCP
window. Smaller frames go first, and those up to SMALL_FRAME_BYTES wait for nothing: who holds up others' frames has
to send frames as small as theirs, and many more of them.
"""

import asyncio
from asyncio import TimerHandle
from collections.abc import Callable

from mailserver.rlpx.framing import ComingFrame

SMALL_FRAME_BYTES = 32 * 1024
"""A frame of up to so many bytes is read at once: 500 peers with one each take 16 MiB. A phone's posts are shorter."""

MAX_LARGE_FRAMES_BYTES = 32 * 1024 * 1024
"""Bytes of all larger frames that are being read: 18 of the largest at a time, or those of 500 peers of 64 KiB each."""

FRAME_TIMEOUT_S = 30.0
"""How long a large frame may take to come, once there is memory for it; deployed clients take no more for any frame."""


class Share:
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
        self._waiting: list[Share] = []  # oldest first; no more than connections

    def ask(self, size: int, on_granted: Callable[[], None]) -> Share:
        """Ask for memory for a frame of so many bytes; `give_back` it when the frame is there, or will not come.

        Args:
            on_granted: called when it is granted later; not if it is at once.
        """
        share = Share(size, on_granted)
        if size <= self._free:  # so it is smaller than all that wait
            self._grant(share)
        else:
            self._waiting.append(share)
        return share

    def give_back(self, share: Share) -> None:
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

    def _grant(self, share: Share) -> None:
        share.is_granted = True
        self._free -= share.size


class FrameRoom:
    """What one connection has of the memory: a share for the frame that is coming, for FRAME_TIMEOUT_S at most."""

    def __init__(self, memory: ReceiveMemory, *, on_granted: Callable[[], None], on_late: Callable[[], None]) -> None:
        """Have nothing yet.

        Args:
            on_granted: called when what was asked for is there.
            on_late: called when a frame takes too long.
        """
        self._memory = memory
        self._on_granted = on_granted
        self._on_late = on_late
        self._frame: ComingFrame | None = None
        self._share: Share | None = None
        self._timer: TimerHandle | None = None

    @property
    def is_granted(self) -> bool:
        """Whether there is memory for the frame that is coming."""
        return self._share is None or self._share.is_granted

    def ask(self, frame: ComingFrame | None) -> bool:
        """Ask for memory for the frame that is coming, unless that is done; return whether it is there."""
        if frame is not self._frame:
            self.leave()
            self._frame = frame
            if frame is not None and frame.wire_bytes > SMALL_FRAME_BYTES:
                self._share = self._memory.ask(frame.wire_bytes, self._grant)
                if self._share.is_granted:
                    self._start_timer()
        return self.is_granted

    def leave_unless(self, frame: ComingFrame | None) -> None:
        """Give back what another frame than this one had: it has come, and its peer may be slowed now."""
        if frame is not self._frame:
            self.leave()

    def leave(self) -> None:
        """The frame is there, or will not come."""
        self._frame = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._share is not None:
            self._memory.give_back(self._share)
            self._share = None

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
