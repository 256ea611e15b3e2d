"""Memory for large frames, shared by all connections: a frame can be opened only when all of it is in memory.

A frame of more than SMALL_FRAME_BYTES is read only once memory is reserved for it. Until then it waits in the peer's
TCP window. Smaller frames are served first, and those up to SMALL_FRAME_BYTES need no reservation. So an attacker can
delay a frame only with frames that are as small, and with very many of them.

Long messages are those that are longer than strangers may send; only named peers may send them. They have a budget of
their own, with room for one: from the first bytes of its frame until it was acted on. The next one waits unread.
"""

import asyncio
from asyncio import TimerHandle
from collections.abc import Callable

from mailserver.codec.snappy import max_compressed_bytes
from mailserver.rlpx.framing import PartialFrame

SMALL_FRAME_BYTES = 32 * 1024
"""Frames of up to this many bytes need no reservation: one each of 500 peers take 16 MiB. A phone's posts are
shorter."""

MAX_LARGE_FRAMES_BYTES = 32 * 1024 * 1024
"""Memory for all larger frames that are being read: 18 of the largest, or one of 64 KiB from each of 500 peers."""

MAX_FRAME_OVERHEAD_BYTES = 64
"""At least as much as a frame has besides its message: message id, padding, MAC."""

FRAME_TIMEOUT_S = 30.0
"""How long a large frame may take to come once memory is reserved. Deployed clients take no longer for any frame."""

MAX_LONG_MESSAGE_BYTES = 32 * 1024 * 1024
"""The most memory that one long message needs: a frame of 16 MiB, and what it inflates to."""


class Reservation:
    """Memory for one frame: granted, or waiting to be. Made by `ReceiveMemory.reserve`."""

    __slots__ = ("is_granted", "on_granted", "size")

    def __init__(self, size: int, on_granted: Callable[[], None]) -> None:
        self.size = size
        self.on_granted = on_granted
        self.is_granted = False


class ReceiveMemory:
    """Decides which large frames may be read now."""

    def __init__(self, max_bytes: int = MAX_LARGE_FRAMES_BYTES) -> None:
        """Start with all of `max_bytes` free. A larger frame would wait for ever."""
        self._free = max_bytes
        self._long: ReceiveMemory | None = None
        self._waiting: list[Reservation] = []  # oldest first; at most one per connection

    def reserve(self, size: int, on_granted: Callable[[], None]) -> Reservation:
        """Reserve memory for a frame of `size` bytes. `release` it when the frame was read, or will not come.

        Args:
            on_granted: called when the memory is granted later; not if it is granted at once.
        """
        reservation = Reservation(size, on_granted)
        if size <= self._free:  # so it is smaller than all that wait
            self._grant(reservation)
        else:
            self._waiting.append(reservation)
        return reservation

    @property
    def long(self) -> "ReceiveMemory":
        """The budget for long messages. Each reserves all of it, so that they come one after another."""
        if self._long is None:
            self._long = ReceiveMemory(MAX_LONG_MESSAGE_BYTES)
        return self._long

    def release(self, reservation: Reservation) -> None:
        """Give the memory back, or stop waiting for it. Call this once for each reservation."""
        if reservation.is_granted:
            self._free += reservation.size
        else:
            self._waiting.remove(reservation)
        while self._waiting:
            smallest = min(self._waiting, key=lambda waiting: waiting.size)
            if smallest.size > self._free:
                return
            self._waiting.remove(smallest)
            self._grant(smallest)
            smallest.on_granted()

    def _grant(self, reservation: Reservation) -> None:
        reservation.is_granted = True
        self._free -= reservation.size


class FrameReservation:
    """The memory that one connection has reserved for the frame that is coming, for FRAME_TIMEOUT_S at most."""

    def __init__(
        self,
        memory: ReceiveMemory,
        *,
        max_message_bytes: int,
        on_granted: Callable[[], None],
        on_late: Callable[[], None],
    ) -> None:
        """Start with nothing reserved.

        Args:
            max_message_bytes: a message that inflates to more is a long message.
            on_granted: called when memory is granted that was not free at once.
            on_late: called when a frame has not come within FRAME_TIMEOUT_S.
        """
        self._memory = memory
        self._max_message_bytes = max_message_bytes
        self._max_wire_bytes = MAX_FRAME_OVERHEAD_BYTES + max_compressed_bytes(max_message_bytes)
        self.is_long = False
        self._on_granted = on_granted
        self._on_late = on_late
        self._frame: PartialFrame | None = None
        self._reservation: Reservation | None = None
        self._timer: TimerHandle | None = None

    @property
    def is_granted(self) -> bool:
        """Whether the frame that is coming may be read."""
        return self._reservation is None or self._reservation.is_granted

    @property
    def long_bytes_due(self) -> int:
        """The length of the long message that is coming, or waits for memory; 0 if there is none."""
        is_due = self.is_long and (self._timer is not None or not self.is_granted)
        return (self._frame.message_bytes or self._frame.wire_bytes) if is_due and self._frame is not None else 0

    def reserve(self, frame: PartialFrame | None) -> bool:
        """Reserve memory for the frame that is coming, if that was not done yet; return whether it may be read."""
        if frame is not self._frame:
            self.release()
            self._frame = frame
            if frame is not None and SMALL_FRAME_BYTES < frame.wire_bytes <= self._max_wire_bytes:
                self._take(self._memory, frame.wire_bytes)
        if frame is not None and not self.is_long and self._makes_long(frame):
            self._release()
            self.is_long = True
            self._take(self._memory.long, MAX_LONG_MESSAGE_BYTES)
        return self.is_granted

    def _makes_long(self, frame: PartialFrame) -> bool:
        return frame.wire_bytes > self._max_wire_bytes or (frame.message_bytes or 0) > self._max_message_bytes

    def _take(self, memory: ReceiveMemory, size: int) -> None:
        self._reservation = memory.reserve(size, self._grant)
        if self._reservation.is_granted:
            self._start_timer()

    def release_unless(self, frame: PartialFrame | None) -> None:
        """Release the memory unless it is for this frame: the frame that it was for has come.

        The memory of a long message is kept until the next frame reserves some: the message still has to be inflated
        and acted on.
        """
        if frame is not self._frame and self.is_long:
            self._stop_timer()
        elif frame is not self._frame:
            self.release()

    def release(self) -> None:
        """Release the memory: the frame was read, or will not come."""
        self._frame = None
        self._release()
        self.is_long = False

    def _release(self) -> None:
        self._stop_timer()
        if self._reservation is not None:
            (self._memory.long if self.is_long else self._memory).release(self._reservation)
            self._reservation = None

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Release the memory, and drop the callbacks: they refer to the connection, which has ended."""
        self.release()
        self._on_granted = self._on_late = _do_nothing

    def _grant(self) -> None:
        self._start_timer()
        self._on_granted()

    def _start_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(FRAME_TIMEOUT_S, self._on_late)


def _do_nothing() -> None:
    """The callback of a connection that has ended."""
